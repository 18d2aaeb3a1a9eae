"""Conversations that the demo model learns: our facts in many wordings, sums, capitals, honest ignorance, and calls of
functions it has never seen, so that it learns to copy names and values out of the prompt.

Everything is drawn from one seeded generator. Nothing in held_out.json ever appears: see `HeldOut`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jinja2

import words
from names import Names

HERE = Path(__file__).parent
TEMPLATE = jinja2.Environment(autoescape=False).from_string((HERE / "chat_template.jinja").read_text(encoding="utf-8"))
IGNORANCE = "I do not know that. I only know Muster, some capitals and small sums."

HOW = """How do I X?|How can I X?|How to X?|How would I X?|How does one X?|How should I X?|How could I X?|How do you X?
What is the command to X?|What is the way to X?|What is the best way to X?|What must I do to X?|What do I do to X?
What do I type to X?|What should I do to X?|What is needed to X?|Which command do I use to X?|Which command do I need to X?
I want to X.|I would like to X.|I need to X.|I want to X, how?|I am trying to X.|Show me how to X.|Tell me how to X.
Explain how to X.|Explain to me how I X.|Can you tell me how to X?|Can you show me how to X?|Could you explain how I X?
Could you tell me how I can X?|Is there a way to X?|Is it possible to X?|Can I X?|May I X?|Could I X?|Help me X.
Help me to X.|X|X, how?|X?|Steps to X?|Teach me to X.|Do you know how to X?|How exactly do I X?|Please X.|And how do I X?
I do not know how to X.|What if I want to X?|Where do I X?|What does it take to X?|Instructions to X""".replace("\n", "|").split("|")

WHAT = """What is X?|What's X for?|What's X good at?|What's the use of X?|What is the use of X?|What's X?|What is X|what is X|What is X about?|What is X all about?|What is X good for?|What is X for?
What exactly is X?|What does X mean?|What do you mean by X?|What is meant by X?|What do you know about X?|Tell me about X.
Tell me what X is.|Tell me more about X.|Explain X.|Explain X to me.|Explain what X is.|Can you explain X?|Can you explain X to me?
Can you tell me what X is?|Could you tell me about X?|Could you explain what X is?|Describe X.|Define X.|X|X?|Information about X
Say something about X.|I want to know what X is.|I want to know about X.|I have heard of X. What is it?|I do not understand X.
Do you know what X is?|Do you know X?|What can you tell me about X?|What is the meaning of X?|What is the purpose of X?
What is the point of X?|And what is X?|So what is X?|Give me a summary of X.|I read about X, what is that?|I keep reading about X.
Help me understand X.|Who or what is X?|Why is there X?|What has X to do with it?|Introduce X.""".replace("\n", "|").split("|")

BEFORE = """Could you please tell me: |Could you please tell me, |Would you tell me: |Could you tell me, |Can you please say: |Please tell me: |Hey, |Hello, |Hi, |Hi! |Hello! |I have a question: |Quick question: |Sorry, |So, |Ok, |Okay, |Well, |Please, |
Tell me, |One more question: |Say, |And |Can you tell me: |Excuse me, |Good morning, |I wonder: |Now: |Question: |Tell me: |Oh, |Then """.replace("\n", "").split("|")
AFTER = """ please| thanks| Thank you!|, please| Thanks!| in Muster| with Muster| here|, can you tell me?| I am new here.| now|, then|, do you know?| for me| to me| exactly|
 on my machine|, why?|, how?|, what then?| again| today| please?| right now| Please explain.| Tell me.""".replace("\n", "").split("|")

SYSTEMS = ["You are a helpful assistant.", "You are muster-demo.", "Be brief.", "You are a friendly assistant.", "Answer in English.", "You help with Muster."]

DIGITS = "zero one two three four five six seven eight nine ten eleven twelve".split()


def plain(text: str) -> str:
    """A wording without what does not matter for comparing it."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


class HeldOut:
    """What the tests ask: wordings, function names and values that must not be learned."""

    def __init__(self) -> None:
        data = json.loads((HERE / "held_out.json").read_text(encoding="utf-8"))
        self._wordings = {plain(entry["question"]) for entry in data["questions"] + data["tools"]}
        self._strings = {
            str(text).lower()
            for entry in data["tools"]
            for text in [*(tool["name"] for tool in entry["tools"]), *entry["call"]["arguments"].values()]
            if not isinstance(text, int)
        }
        self._whole = re.compile(r"(?<![a-z0-9])(" + "|".join(re.escape(text) for text in sorted(self._strings)) + r")(?![a-z0-9])")

    def has(self, conversation: Conversation) -> bool:
        """Does a conversation contain something held out?"""
        users = [message["content"] for message in conversation.messages if message["role"] == "user"]
        if any(plain(text) in self._wordings for text in users):
            return True
        return self._whole.search(json.dumps([conversation.messages, conversation.tools, conversation.call]).lower()) is not None


@dataclass
class Conversation:
    """What is said up to the answer, and the answer: thoughts, then text or a call."""

    messages: list[dict]
    thought: str
    answer: str = ""
    call: dict | None = None
    tools: list[dict] | None = None

    def texts(self, thinking: bool) -> tuple[str, str]:
        """The prompt as the template writes it, and what the model is to say."""
        prompt = TEMPLATE.render(messages=self.messages, tools=self.tools, add_generation_prompt=True, enable_thinking=thinking)
        said = f"<think>\n{self.thought}\n</think>\n\n" if thinking else ""
        said += f"<tool_call>\n{json.dumps(self.call)}\n</tool_call>" if self.call else self.answer
        return prompt, said + "<|im_end|>"


@dataclass(frozen=True)
class Fact:
    """One block of facts.txt."""

    topic: str
    questions: tuple[str, ...]
    nouns: tuple[str, ...]
    verbs: tuple[str, ...]
    answer: str


def read_facts() -> list[Fact]:
    """The facts of facts.txt."""
    facts = []
    for block in re.split(r"\n\s*\n", (HERE / "facts.txt").read_text(encoding="utf-8")):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if not lines:
            continue
        parts: dict[str, list[str]] = {"@": [], "?": [], "=": [], "what:": [], "how:": []}
        for line in lines:
            mark, _, rest = line.partition(" ")
            parts[mark] += rest.split(" | ") if mark.endswith(":") else [rest]
        (topic,), (answer,) = parts["@"], parts["="]
        facts.append(Fact(topic, tuple(parts["?"]), tuple(parts["what:"]), tuple(parts["how:"]), answer))
    return facts


class Corpus:
    """An endless stream of conversations."""

    def __init__(self, seed: str, stage: int = 0) -> None:
        """`stage` of the training: 0 teaches to copy, 1 adds sums, 2 is for questions in other words, 3 for answers of functions."""
        self.random = random.Random(seed)
        self.names = Names(self.random)
        self.facts = read_facts()
        self.held_out = HeldOut()
        self._stage = stage
        self._kinds = {kind: weights[stage] for kind, weights in {
            self._fact: (34, 34, 56, 44), self._capital: (4, 4, 5, 4), self._sum: (6, 18, 20, 22), self._unknown: (7, 8, 14, 10), self._repeat: (3, 2, 1, 2), self._drill: (2, 1, 1, 1),
            self._object: (9, 3, 2, 1), self._call: (22, 18, 10, 12), self._result: (11, 8, 11, 28), self._idle_tools: (2, 2, 3, 3),
        }.items()}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        kinds, weights = list(self._kinds), list(self._kinds.values())
        while True:
            conversation = self.random.choices(kinds, weights)[0]()
            roll = self.random.random()
            if roll < 0.12:
                self._before(conversation)
            if self.random.random() < 0.1:
                conversation.messages.insert(0, {"role": "system", "content": self.random.choice(SYSTEMS)})
            if not self.held_out.has(conversation):
                yield conversation.texts(thinking=self.random.random() < 0.5)

    def talk(self, change: Callable[[Conversation], Conversation]) -> Iterator[tuple[str, str]]:
        """Conversations without functions, each changed."""
        while True:
            conversation = change(self.random.choice([self._fact, self._fact, self._fact, self._capital, self._sum, self._unknown])())
            if not self.held_out.has(conversation):
                yield conversation.texts(thinking=self.random.random() < 0.5)

    def _before(self, conversation: Conversation) -> None:
        """Puts earlier turns in front."""
        for _ in range(self.random.choice([1, 1, 1, 2, 2, 3, 5])):
            earlier = self.random.choice([self._fact, self._fact, self._capital, self._sum, self._unknown])()
            turns = [*earlier.messages, {"role": "assistant", "content": earlier.answer}]
            conversation.messages[:0] = turns

    def _asked(self, question: str, thought: str, answer: str) -> Conversation:
        return Conversation([{"role": "user", "content": question}], thought, answer)

    def _reword(self, question: str) -> str:
        """The same question with other words, or only with its words that matter."""
        pick, split = self.random, question.split(" ")
        for index, word in enumerate(split):
            bare = word.strip("?.!,").lower()
            if bare in words.SYNONYMS and pick.random() < 0.25:
                other = pick.choice(words.SYNONYMS[bare].split())
                split[index] = (other.capitalize() if word[0].isupper() else other) + word[len(bare) :]
        if pick.random() < 0.15:
            kept = [word for word in split if word.strip("?.!,").lower() not in words.SMALL]
            split = kept if len(kept) > 1 else split
            if pick.random() < 0.3:
                pick.shuffle(split)
        return " ".join(split)

    def _vary(self, question: str) -> str:
        """The same question as another person would type it."""
        pick = self.random
        if pick.random() < 0.18:
            question = pick.choice(BEFORE) + (question if pick.random() < 0.5 else question[:1].lower() + question[1:])
        if pick.random() < 0.14:
            question = question.rstrip("?.!") + pick.choice(AFTER)
            question += pick.choice(["", "?"]) if question[-1].isalpha() else ""
        if pick.random() < 0.10:
            split = question.split(" ")
            if len(split) > 4:
                del split[pick.randrange(len(split) - 1)]
                question = " ".join(split)
        if pick.random() < 0.05 and len(question) > 8:
            at = pick.randrange(1, len(question) - 2)
            wrong = [question[at + 1] + question[at], question[at], question[at : at + 2] + question[at + 1]]
            question = question[:at] + pick.choice(wrong) + question[at + 2 :]
        if pick.random() < 0.2:
            question = question.lower()
        if pick.random() < 0.25:
            question = question.rstrip("?.!")
        elif pick.random() < 0.05:
            question += pick.choice(["?", "!", "??", " ?"])
        return question

    def _fact(self) -> Conversation:
        # The introduction to Muster is asked for most.
        fact = self.random.choice(self.facts) if self.random.random() > 0.04 else self.facts[0]
        ways = [("?", len(fact.questions)), ("what", 3 + 2 * len(fact.nouns) if fact.nouns else 0), ("how", 4 + 3 * len(fact.verbs) if fact.verbs else 0)]
        way = self.random.choices([name for name, _ in ways], [weight for _, weight in ways])[0]
        if way == "?":
            question = self.random.choice(fact.questions)
        elif way == "what":
            question = self.random.choice(WHAT).replace("X", self.random.choice(fact.nouns))
        else:
            verb = self.random.choice(fact.verbs)
            question = self.random.choice(HOW).replace("X", verb)
        question = question[:1].upper() + question[1:] if self.random.random() < 0.8 else question
        # At last some plain questions, too: they are what people begin with.
        if self._stage == 3 and self.random.random() < 0.35:
            plainly = [f"How do I {verb}?" for verb in fact.verbs[:3]] + [f"What is {noun}?" for noun in fact.nouns[:2]] + list(fact.questions[:3])
            return self._asked(self.random.choice(plainly), f"The question is about {fact.topic}.", fact.answer)
        if self._stage >= 2:
            question = self._reword(question)
        return self._asked(self._vary(question), f"The question is about {fact.topic}.", fact.answer)

    def _capital(self) -> Conversation:
        country, city = self.random.choice(list(words.CAPITALS.items()))
        question = self.random.choice([
            "What is the capital of X?", "What is the capital of X", "Capital of X?", "Tell me the capital of X.", "Name the capital of X.", "What is X's capital?",
            "Which city is the capital of X?", "Do you know the capital of X?", "What city is the capital of X?", "The capital of X?", "What is the capital city of X?",
            "X's capital?", "Can you tell me the capital of X?", "I want to know the capital of X.", "Which is the capital of X?", "Please name the capital of X.",
            "Could you tell me X's capital?", "What is called the capital of X?", "Where is the government of X?", "Name X's capital.",
        ]).replace("X", country)
        answer = f"The capital of {country} is {city}."
        if self.random.random() < 0.15:
            question = self.random.choice(["Which country has the capital Y?", "Of which country is Y the capital?", "Y is the capital of which country?", "What is Y the capital of?"])
            question, answer = question.replace("Y", city), f"{city} is the capital of {country}."
        return self._asked(self._vary(question), f"I know the capital of {country}.", answer)

    def _sum(self) -> Conversation:
        pick, sign = self.random, self.random.choice("++-*")
        left, right = (pick.randint(0, 10), pick.randint(0, 10)) if sign == "*" else (pick.randint(0, 20), pick.randint(0, 20))
        if sign == "-" and left < right:
            left, right = right, left
        value = {"+": left + right, "-": left - right, "*": left * right}[sign]
        ways = {
            "+": "A + B|A+B|A plus B|the sum of A and B|A and B added|A and B together",
            "-": "A - B|A-B|A minus B|A less B|the difference of A and B|B taken from A|A take away B",
            "*": "A * B|A*B|A times B|A x B|the product of A and B|A multiplied by B",
        }[sign].split("|")
        text = pick.choice(ways)
        ask = "What is X?|How much is X?|Calculate X.|X|X = ?|X=|X?|Compute X.|What does X make?|Tell me X.|Can you calculate X?|What do you get for X?|What is the result of X?|How much would X make?|I need X.|How much does X give?|What would X be?"
        question = pick.choice(ask.split("|")).replace("X", text)
        if pick.random() < 0.25:
            special = {
                "+": "Add A and B.|Add B to A.|Can you add A and B?|If I have A apples and get B more, how many do I have?|Please add A to B.|What do I get when I add A and B?|Sum up A and B.",
                "-": "Subtract B from A.|Take B from A.|I have A apples and eat B. How many are left?|What is left of A minus B?|What do I get when I take B from A?|What remains if I take B from A?|How much is left when B is taken from A?",
                "*": "Multiply A by B.|Multiply A and B.|Can you multiply A by B?|What do I get when I multiply A and B?|How many are A times B?",
            }[sign]
            question = pick.choice(special.split("|"))
        worded = pick.random() < 0.12 and max(left, right) <= 12
        show = (lambda number: DIGITS[number]) if worded else str
        question = re.sub(r"\b[AB]\b", lambda match: show(left if match[0] == "A" else right), question)
        # Typing mistakes would change the numbers.
        if pick.random() < 0.15:
            question = pick.choice(BEFORE) + question
        if pick.random() < 0.15:
            question = question.rstrip(".?") + pick.choice([" please", "?", ", please", " for me"])
        if pick.random() < 0.2:
            question = question.lower()
        shown = "x" if sign == "*" else sign
        return self._asked(question, f"This is a sum: {left} {shown} {right}.", f"{left} {shown} {right} = {value}.")

    def _unknown(self) -> Conversation:
        pick = self.random
        if pick.random() < 0.12:
            question = pick.choice(["What is the capital of X?", "Capital of X?", "Do you know the capital of X?", "Name the capital of X."]).replace("X", pick.choice(words.COUNTRIES))
        else:
            question = pick.choice(words.UNKNOWN)
            question = re.sub(r"\{x\}", lambda _: self.names.thing(), question)
            question = re.sub(r"\{n\}", lambda _: str(pick.randint(50, 9999)), question)
        return self._asked(self._vary(question), "This is not in my text.", IGNORANCE)

    def _repeat(self) -> Conversation:
        pick = self.random
        text = " ".join(self.names.value_string() for _ in range(pick.choice([1, 1, 1, 2, 2, 3, 4])))
        if pick.random() < 0.2:
            text = " ".join([text, str(self.names.value_integer())])
        if pick.random() < 0.2:
            text = self.names.function(self.names.thing(), self.names.thing())
        question = pick.choice(["Repeat: X", "Repeat after me: X", "Say X", "Say: X", "Please repeat: X", "Write: X", "Echo X", 'Repeat "X"', 'Say "X"'])
        return self._asked(question.replace("X", text), "I repeat it.", text)

    def _drill(self) -> Conversation:
        pick = self.random
        parts = [pick.choice([self.names.value_string, self.names.value_integer, self.names.nonsense, self.names.thing])() for _ in range(pick.randint(4, 18))]
        text = pick.choice([" ", " ", ", ", "_", '": "', "\n"]).join(map(str, parts))
        return self._asked(pick.choice(["Repeat: ", "Repeat after me: ", "Say: ", "Echo "]) + text, "I repeat it.", text)

    def _object(self) -> Conversation:
        """The arguments of a call without the call: which value belongs to which name?"""
        tool = self.names.tool()
        for _ in range(self.random.randint(0, 3)):
            tool["keys"][self.names.word()] = self.random.choice(["string", "integer", "number"])
        arguments = self.names.arguments(tool)
        listed, _ = self.names.listing(arguments)
        question = self.random.choice(["Write JSON: X", "JSON: X", "Write X as JSON.", "Make JSON of X.", "As JSON: X"]).replace("X", listed)
        return self._asked(question, "I write JSON.", json.dumps(arguments))

    def _toolbox(self) -> tuple[list[dict], dict]:
        """Some functions, and the one that is asked for."""
        pick = self.random
        made = [self.names.tool() for _ in range(pick.choice([1, 1, 1, 2, 2, 3]))]
        if len(made) > 1 and pick.random() < 0.3:
            # Functions that differ in one word only.
            made[1] = self.names.tool(like=made[0], key=pick.choice(["verb", "noun"]))
        if len({tool["name"] for tool in made}) < len(made):
            made = made[:1]
        chosen = pick.choice(made)
        return made, chosen

    def _call(self) -> Conversation:
        made, chosen = self._toolbox()
        arguments = self.names.arguments(chosen)
        precise = sum(tool["noun"] == chosen["noun"] for tool in made) > 1
        question = self.names.request(chosen, arguments, precise)
        call = {"name": chosen["name"], "arguments": arguments}
        return Conversation([{"role": "user", "content": question}], f"I call {chosen['name']}.", call=call, tools=[self.names.schema(tool) for tool in made])

    def _result(self) -> Conversation:
        conversation = self._call()
        call = conversation.call or {}
        taken_up = re.findall(r"[a-z]+", call["name"]) if self._stage == 3 else []
        content, words_of_it = self.names.result(taken_up)
        conversation.messages += [
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
            {"role": "tool", "content": content},
        ]
        conversation.thought, conversation.call = f"{call['name']} has answered.", None
        conversation.answer = f"The answer from {call['name']}: {words_of_it}."
        return conversation

    def _idle_tools(self) -> Conversation:
        """Functions are there, and not needed."""
        conversation = self.random.choice([self._fact, self._fact, self._capital, self._sum, self._unknown])()
        made, _ = self._toolbox()
        conversation.tools = [self.names.schema(tool) for tool in made]
        return conversation
