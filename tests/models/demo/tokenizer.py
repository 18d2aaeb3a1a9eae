"""The demo model's tokenizer: byte-level BPE, cut as llama.cpp's `smollm` pre-tokenizer cuts.

Digits stand alone. Merges never join a space with letters until a word is whole, so that an unseen name falls into the same
pieces after a space, after a quote and after an underscore: copying it is copying tokens. Short words never carry their
space, since every other name begins with one.
"""

from __future__ import annotations

import collections
import functools
import json
from pathlib import Path

import regex

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPECIAL = [*CONTROL, "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>"]
SHORT = ("is", "of", "to")
FILE = Path(__file__).parent / "tokenizer.json"

_SPECIALS = regex.compile("(" + "|".join(regex.escape(text) for text in SPECIAL) + ")")
_DIGIT = regex.compile(r"(\p{N})")
_PIECE = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s")


def _byte_characters() -> list[str]:
    """GPT-2's printable stand-ins for the bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


BYTES = _byte_characters()
SPACE = BYTES[0x20]


def pieces(text: str) -> list[str]:
    """Cuts text into the units within which merges happen, in stand-in characters."""
    cut = [piece for part in _DIGIT.split(text) for piece in _PIECE.findall(part)]
    return ["".join(BYTES[byte] for byte in piece.encode()) for piece in cut]


class Tokenizer:
    """Text to ids and back, by a list of merges."""

    def __init__(self, merges: list[tuple[str, str]]) -> None:
        self.merges = merges
        self.tokens = [*SPECIAL, *BYTES, *(left + right for left, right in merges)]
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._piece = functools.lru_cache(maxsize=50_000)(self._merge)
        if len(self.ids) != len(self.tokens):
            raise ValueError("two merges give the same token")

    @classmethod
    def load(cls, path: Path = FILE) -> Tokenizer:
        return cls([tuple(pair) for pair in json.loads(path.read_text(encoding="utf-8"))["merges"]])

    def save(self, path: Path = FILE) -> None:
        path.write_text(json.dumps({"merges": self.merges}, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")

    def _merge(self, piece: str) -> tuple[int, ...]:
        parts = list(piece)
        while len(parts) > 1:
            pairs = [self._ranks.get(pair, len(self._ranks)) for pair in zip(parts, parts[1:], strict=False)]
            best = min(range(len(pairs)), key=pairs.__getitem__)
            if pairs[best] == len(self._ranks):
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        return tuple(self.ids[part] for part in parts)

    def encode(self, text: str) -> list[int]:
        """Ids of a text; special tokens are recognised."""
        ids: list[int] = []
        for index, part in enumerate(_SPECIALS.split(text)):
            if index % 2:
                ids.append(self.ids[part])
            else:
                for piece in pieces(part):
                    ids.extend(self._piece(piece))
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of some ids."""
        values = {character: byte for byte, character in enumerate(BYTES)}
        parts = []
        for index in ids:
            token = self.tokens[index]
            parts.append(token.encode() if index < len(SPECIAL) else bytes(values[character] for character in token))
        return b"".join(parts).decode(errors="replace")


def train(texts: list[str], inner: int, words: int) -> Tokenizer:
    """Learns `inner` merges within words and within punctuation, then `words` that join a space with what follows it."""
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        for index, part in enumerate(_SPECIALS.split(text)):
            if index % 2 == 0:
                counts.update(pieces(part))
    bare: collections.Counter[str] = collections.Counter()
    for piece, count in counts.items():
        bare[piece.removeprefix(SPACE)] += count
    split = {piece: list(piece) for piece in bare if len(piece) > 1 and not piece.isspace()}
    merges: list[tuple[str, str]] = []
    pairs: collections.Counter[tuple[str, str]] = collections.Counter()
    places: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for piece, parts in split.items():
        for pair in zip(parts, parts[1:], strict=False):
            pairs[pair] += bare[piece]
            places[pair].add(piece)
    made = set(BYTES)
    while len(merges) < inner:
        # Ties go to the smaller pair, so that the result does not depend on the order of a set.
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        count = pairs.pop(best)
        if count < 2:
            break
        # Newlines stay alone, and two ways to one token are one too many.
        if best[0] + best[1] in made or BYTES[0x0A] in "".join(best) or SPACE in "".join(best):
            continue
        made.add("".join(best))
        merges.append(best)
        for piece in places.pop(best):
            parts, joined, index = split[piece], [], 0
            for pair in zip(parts, parts[1:], strict=False):
                pairs[pair] -= bare[piece]
            while index < len(parts):
                if tuple(parts[index : index + 2]) == best:
                    joined.append("".join(best))
                    index += 2
                else:
                    joined.append(parts[index])
                    index += 1
            split[piece] = joined
            for pair in zip(joined, joined[1:], strict=False):
                pairs[pair] += bare[piece]
                places[pair].add(piece)
        pairs = collections.Counter({pair: count for pair, count in pairs.items() if count > 0})
    whole = collections.Counter()
    for piece, count in counts.items():
        word = piece.removeprefix(SPACE)
        if piece != word and (len(word) > 2 or not word.isalpha() or word in SHORT) and len(split.get(word, [word])) == 1 and word and not word.isspace():
            whole[word] += count
    ranked = sorted(whole, key=lambda word: (-whole[word], word))
    merges += [(SPACE, word) for word in ranked[:words]]
    return Tokenizer(merges)
