"""Functions that do not exist: names, arguments, values, and how somebody would ask for them."""

from __future__ import annotations

import json
import random

import words

ONSETS = "b c d f g h j k l m n p r s t v w z bl br ch cl cr dr fl fr gl gr kr pl pr qu sh sk sl sn sp st str th tr tw".split() + [""]
VOWELS = "a e i o u a e i o u ai au ea ee ie oa oo ou y".split()
CODAS = ["", "", "", "", *"b d g k l m n p r s t x z ck ld lm ln ll mp nd ng nk nt rd rk rm rn rt sh ss st th".split()]


class Names:
    """Draws from one generator, so that a seed gives the same names."""

    def __init__(self, generator: random.Random) -> None:
        self.random = generator

    def nonsense(self) -> str:
        """A word that looks like one."""
        pick = self.random
        return "".join(pick.choice(ONSETS) + pick.choice(VOWELS) + pick.choice(CODAS) for _ in range(pick.choice([1, 2, 2, 2, 3])))

    def word(self) -> str:
        """A word, half of the time one that exists."""
        pick = self.random
        return pick.choice(pick.choice([words.NOUNS, words.COMMON])) if pick.random() < 0.5 else self.nonsense()

    def thing(self) -> str:
        """A word or a name."""
        return self.word() if self.random.random() < 0.6 else self.word().capitalize()

    def code(self) -> str:
        """Letters and digits, as on a ticket."""
        pick = self.random
        letters = "".join(pick.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(pick.randint(1, 4)))
        return letters + pick.choice(["", "", "-"]) + "".join(pick.choice("0123456789") for _ in range(pick.randint(1, 5)))

    def value_string(self) -> str:
        """A value: a name, a word, two words, a code."""
        pick, roll = self.random, self.random.random()
        if roll < 0.45:
            return self.nonsense().capitalize()
        if roll < 0.60:
            return self.word()
        if roll < 0.75:
            return f"{self.word().capitalize()} {self.word().capitalize()}"
        if roll < 0.85:
            return self.code()
        if roll < 0.92:
            return pick.choice(words.CITIES)
        return pick.choice([f"{self.word()} {self.word()}", f"{self.word()}-{self.word()}", f"{self.word()}.{pick.choice(['txt', 'md', 'csv', 'com'])}"])

    def value_integer(self) -> int:
        return self.random.randint(0, 10 ** self.random.randint(1, 4) - 1)

    def function(self, verb: str, noun: str) -> str:
        """A name in one of the usual spellings."""
        roll = self.random.random()
        if roll < 0.7:
            return f"{verb}_{noun}".lower()
        if roll < 0.85:
            return verb.lower() + noun.capitalize()
        return self.random.choice([f"{noun}_{verb}", f"{noun}.{verb}", f"{verb}-{noun}", noun, f"{verb}_{noun}_{self.word()}"]).lower()

    def tool(self, like: dict | None = None, key: str = "") -> dict:
        """A function; `like` another one in all but its `key`."""
        pick = self.random
        verb = pick.choice(words.VERBS) if pick.random() < 0.75 else self.nonsense()
        noun = pick.choice(words.NOUNS) if pick.random() < 0.5 else self.nonsense()
        if like is not None:
            verb, noun = (verb, like["noun"]) if key == "verb" else (like["verb"], noun)
        keys: dict[str, str] = {}
        for _ in range(pick.choice([1, 1, 1, 2, 2, 2, 3])):
            kind = pick.choice(["string", "string", "string", "integer", "integer", "number"])
            of_kind = words.KEYS if kind == "string" else words.NUMBER_KEYS
            name = pick.choice(of_kind) if pick.random() < 0.7 else self.word()
            if pick.random() < 0.1:
                name = f"{name}_{pick.choice(words.KEYS)}"
            keys[name] = kind
        if like is not None and pick.random() < 0.5:
            keys = like["keys"]
        first = next(iter(keys))
        description = pick.choice(["", f"{verb.capitalize()}s the {noun} of a {first}.", f"{verb.capitalize()}s the {noun}.", f"{verb.capitalize()} a {noun}.", f"{verb.capitalize()}s a {noun}.", f"{noun.capitalize()} by {first}.", f"{verb.capitalize()}s {noun}s"])
        return {"name": self.function(verb, noun), "verb": verb, "noun": noun, "keys": keys, "description": description}

    def schema(self, tool: dict) -> dict:
        """As a client sends it."""
        parameters = {"type": "object", "properties": {name: {"type": kind} for name, kind in tool["keys"].items()}, "required": list(tool["keys"])}
        function = {"name": tool["name"], "parameters": parameters}
        if tool["description"]:
            function["description"] = tool["description"]
        return {"type": "function", "function": function}

    def arguments(self, tool: dict) -> dict:
        """Values for all its arguments."""
        made: dict[str, object] = {}
        for name, kind in tool["keys"].items():
            if kind == "string":
                made[name] = self.value_string()
            elif kind == "integer":
                made[name] = self.value_integer()
            else:
                made[name] = self.random.randint(1, 9999) / 10 if self.random.random() < 0.7 else self.random.randint(1, 999)
        return made

    def listing(self, arguments: dict) -> tuple[str, dict[str, str]]:
        """Names with their values as somebody would type them, and the values alone."""
        pick = self.random
        quote = pick.random() < 0.08
        values = {name: f'"{value}"' if quote and isinstance(value, str) else str(value) for name, value in arguments.items()}
        join = pick.choice(["{k} {v}", "{k} {v}", "{k} {v}", "{k}: {v}", "{k} = {v}", "{k}={v}", "the {k} {v}"])
        spoken = [join.format(k=name if pick.random() < 0.6 else name.replace("_", " "), v=value) for name, value in values.items()]
        if pick.random() < 0.15:
            pick.shuffle(spoken)
        listed = pick.choice([", ".join(spoken), " and ".join([", ".join(spoken[:-1]), spoken[-1]]) if len(spoken) > 1 else spoken[0]])
        return listed, values

    def request(self, tool: dict, arguments: dict, precise: bool) -> str:
        """How somebody asks for the call; `precise` names its verb or the function, because another one is about the same thing."""
        pick = self.random
        verb, noun = tool["verb"], tool["noun"]
        listed, values = self.listing(arguments)
        ways = [
            f"{verb.capitalize()} the {noun} with {listed}.", f"{verb.capitalize()} the {noun} for {listed}.", f"{verb.capitalize()} the {noun}: {listed}.",
            f"Please {verb} the {noun}: {listed}.", f"Please {verb} the {noun} with {listed}.", f"Can you {verb} a {noun} with {listed}?", f"{verb.capitalize()} {noun}, {listed}.",
            f"Call {tool['name']} with {listed}.", f"Call {tool['name']}: {listed}", f"Use {tool['name']} with {listed}", f"Use {tool['name']} for {listed}.", f"I want to {verb} a {noun}. {listed.capitalize() if pick.random() < 0.5 else listed}.",
            f"{listed}. {verb.capitalize()} the {noun}.",
        ]
        kinds = [] if precise else list(tool["keys"].values())
        only = list(values.values())
        if kinds == ["string"] or kinds == ["number"] or kinds == ["integer"]:
            value, key = only[0], next(iter(values))
            ways += [
                f"{verb.capitalize()} the {noun} of {value}.", f"What is the {noun} of {value}?", f"What is the {noun} in {value}?", f"How is the {noun} in {value}?", f"{verb.capitalize()} the {noun} for {value}.",
                f"I need the {noun} of {value}.", f"What is the {noun} for {value}?", f"Tell me the {noun} in {value}.", f"{verb.capitalize()} {value}.", f"{noun.capitalize()} in {value}?", f"{verb.capitalize()} {noun} {value}", f"What is the {noun} at {value}?",
                f"What is the {noun} in the {key} {value}?", f"What's the {noun} in {value}?", f"What is the {noun} like in {value}?", f"How is the {noun} in {value} today?",
            ]
        elif len(kinds) == 2 and kinds.count("string") == 1:
            (text_key, text), (number_key, number) = sorted(values.items(), key=lambda item: tool["keys"][item[0]] != "string")
            ways += [
                f"What is the {noun} in {text} for {number} {number_key}?", f"{verb.capitalize()} the {noun} of {text} for {number} {number_key}.", f"{verb.capitalize()} {number} {number_key} of {noun} in {text}.",
                f"{verb.capitalize()} the {noun} in {text} with {number_key} {number}.", f"{verb.capitalize()} a {noun} for {number} {number_key} in {text}.", f"I need the {noun} of {text}, {number} {number_key}.",
                f"What is the {noun} for {text_key} {text} at {number_key} {number}?",
            ]
        question = pick.choice(ways)
        if pick.random() < 0.1:
            question = question.rstrip(".?")
        # Lower case only where no value would change.
        return question[:1].lower() + question[1:] if pick.random() < 0.15 and not listed.startswith(question[:4]) else question

    def result(self, said: list[str]) -> tuple[str, str]:
        """What a function gives back, and how it is said; it may take up words that were `said` before."""
        pick = self.random

        def phrase() -> str:
            if said and pick.random() < 0.3:
                word = pick.choice(said)
                return pick.choice([f"{word} {self.value_integer()} {self.word()}", f"{word}ed, {self.word()} {self.value_integer()}", f"{word} {self.word()}", f"{self.word()} {word}", f"{word}ed by {self.thing()}"])
            unit = pick.choice([self.word(), self.word() + "s", "percent", "degrees", "km", "minutes"])
            return pick.choice([f"{self.value_integer()} {unit}", f"{self.value_integer()} {unit}", self.value_string(), f"{self.word()} {self.word()}", str(self.value_integer()), f"{self.word()} by {self.value_integer()} {unit}", f"{self.word()}, {self.word()} {self.value_integer()}", f"{self.word()} {self.value_integer()} {self.word()}"])

        if pick.random() < 0.5:
            text = phrase()
            return text, text
        made: dict[str, object] = {}
        for _ in range(pick.choice([1, 1, 2, 2, 3])):
            name = pick.choice(words.KEYS + words.NUMBER_KEYS) if pick.random() < 0.6 else self.word()
            made[name] = self.value_integer() if pick.random() < 0.5 else phrase()
        return json.dumps(made), ", ".join(f"{name} {value}" for name, value in made.items())
