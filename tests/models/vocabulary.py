"""Vocabularies of the generated models.

The chat vocabulary is a SentencePiece one with byte fallback, so that any bytes can be encoded and decoded. SentencePiece
merges pairs, so a word is only ever found if the steps on the way to it are pieces too: every prefix of a word is in here.

Ids that tests may rely on: 0 `<unk>`, 1 `<s>`, 2 `</s>`, 3 + b for the byte b, then the special pieces in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

from gguf import TokenType

WORDS = """
the of and to in a is that it was for on are as with his they at be this from have or by one had not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would other
into has more her two like him see time could no make than first been its who now people my made over did down only way
find use may water long little very after words called just where most know get through back much before go good new
write our used me man too any day same right look think also around another came come work three word must because does
part even place well such here take why things help put years different away again off went old number great tell men
say small every found still between name should home big give air line set own under read last never us left end along
while might next sound below saw something thought both few those always looked show large often together asked house
world going want school important until form food keep children feet land side without boy once animals life enough took
sometimes four head above kind began almost live page got earth need far hand high year mother light parts country
father let night following picture being study second eyes soon times story boys since white days ever paper hard near
sentence better best across during today however sure means knew try told young miles sun ways thing whole hear example
heard several change answer room sea against top turned learn point city play toward five using himself usually
""".split()

# Characters of more than one byte: two, three and four bytes, a combining mark, a right-to-left letter.
WIDE = list("éüßñç€–…“”日本語한글ждя😀🚀👍") + ["\u0301", "\u05d0"]

# Special pieces and whether a reader may ever see them: control pieces are hidden, the others are rendered on demand.
SPECIALS = [
    ("<|im_start|>", TokenType.CONTROL),
    ("<|im_end|>", TokenType.CONTROL),
    ("<think>", TokenType.USER_DEFINED),
    ("</think>", TokenType.USER_DEFINED),
    ("<tool_call>", TokenType.USER_DEFINED),
    ("</tool_call>", TokenType.USER_DEFINED),
    ("<tool_response>", TokenType.USER_DEFINED),
    ("</tool_response>", TokenType.USER_DEFINED),
]

# Fill-in-the-middle pieces, known to llama.cpp by their texts.
INFILL = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]

SPACE = "\u2581"


@dataclass(frozen=True)
class Piece:
    """One entry: its text, its SentencePiece score and type, and how likely the model is made to say it.

    `bias` is in units of the logits' standard deviation, added to the piece's logit.
    """

    text: str
    score: float
    type: TokenType
    bias: float


def _byte_piece(byte: int) -> Piece:
    # A newline has no piece of its own in SentencePiece vocabularies: it is this byte.
    return Piece(f"<0x{byte:02X}>", 0.0, TokenType.BYTE, -0.5 if byte == 0x0A else -15.0)


def chat_vocabulary(size: int | None = None, infill: bool = False) -> list[Piece]:
    """The chat vocabulary, with the pieces for infill and padded with made-up words to `size` pieces if asked for."""
    pieces = [
        Piece("<unk>", 0.0, TokenType.UNKNOWN, -40.0),
        Piece("<s>", 0.0, TokenType.CONTROL, -40.0),
        Piece("</s>", 0.0, TokenType.CONTROL, -40.0),
    ]
    pieces += [_byte_piece(byte) for byte in range(256)]
    pieces += [Piece(text, 0.0, kind, -40.0) for text, kind in SPECIALS]
    seen = {piece.text for piece in pieces}

    def add(text: str, bias: float) -> None:
        if text not in seen:
            seen.add(text)
            pieces.append(Piece(text, -float(len(pieces)), TokenType.NORMAL, bias))

    words = set(WORDS)
    for word in WORDS:
        for length in range(len(word) + 1):
            prefix = word[:length]
            add(SPACE + prefix, 0.0 if prefix in words else -2.0)
    for code in range(0x21, 0x7F):
        add(chr(code), -0.5 if chr(code) in ".,;:!?" else -2.0)
    for char in WIDE:
        add(char, -0.3)
    if infill:
        pieces += [Piece(text, 0.0, TokenType.CONTROL, -40.0) for text in INFILL]
    if size is not None:
        for word in _made_up_words():
            if len(pieces) >= size:
                break
            for length in range(1, len(word) + 1):
                if len(pieces) < size:
                    add(SPACE + word[:length], 0.0)
    return pieces


def _made_up_words():
    onsets, vowels, codas = "b d f g k l m n p r s t v z".split(), "a e i o u".split(), ["", "n", "r", "s", "l"]
    syllables = [o + v for o in onsets for v in vowels]
    for coda in codas:
        for first in syllables:
            for second in syllables:
                yield first + second + coda


def bert_vocabulary() -> list[tuple[str, TokenType]]:
    """A WordPiece vocabulary in llama.cpp's spelling: word beginnings carry the space mark, continuations do not."""
    pieces = [
        ("[PAD]", TokenType.CONTROL),
        ("[UNK]", TokenType.UNKNOWN),
        ("[CLS]", TokenType.CONTROL),
        ("[SEP]", TokenType.CONTROL),
        ("[MASK]", TokenType.CONTROL),
    ]
    chars = [chr(code) for code in range(0x21, 0x7F) if not chr(code).isupper()] + [c for c in WIDE if c.isprintable()]
    seen = set()
    for text in [SPACE + word for word in WORDS] + [SPACE + char for char in chars] + chars:
        if text not in seen:
            seen.add(text)
            pieces.append((text, TokenType.NORMAL))
    return pieces
