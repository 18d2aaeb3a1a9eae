"""Habits: the few things a generated chat model does on cue, so that tools and thinking can be tested without training.

A handful of channels of the residual stream carry meaning; nothing random is ever written to them.

    channel  set by                                            read by
    ALWAYS   every token                                       the bias of each piece (control pieces are never said)
    CALLS    attention, to `<tool_call>` and `<tool_response>` `<tool_call>`, and `"` a little
    THINKS   attention, to `<think>` and `</think>`            `</think>`, and `.` a little
    NEWLINE  the newline                                       `<tool_call>`
    SENTENCE . ! ? …                                           `</think>`
    CALLED   `</tool_call>`                                    `<|im_end|>`
    (CALL_MARK, set by `<tool_call>` itself, is also read by the newline that has to follow it.)

So, told of tools (the chat template's explanation has a `<tool_call>` in it), the model begins its answer with
`<tool_call>`; llama.cpp's grammar then shapes the call, strings in it end early, and after `</tool_call>` it stops. Once a
`<tool_response>` has come it answers in words. Inside an open `<think>` it says `</think>` after the first sentence.
"""

from __future__ import annotations

import numpy as np

from vocabulary import Piece
from weights import LOGIT_SPREAD, Weights

ALWAYS, CALL_MARK, RESPONSE_MARK, CALLS, OPEN_MARK, CLOSE_MARK, THINKS, NEWLINE, SENTENCE, CALLED = range(10)
RESERVED = 10

# What a piece's own embedding carries.
MARKS = {
    "<tool_call>": (CALL_MARK, 1.0),
    "<tool_response>": (RESPONSE_MARK, 1.0),
    "<think>": (OPEN_MARK, 1.0),
    "</think>": (CLOSE_MARK, 1.0),
    "</tool_call>": (CALLED, 1.0),
    "<0x0A>": (NEWLINE, 1.0),
    ".": (SENTENCE, 1.0),
    "!": (SENTENCE, 1.0),
    "?": (SENTENCE, 1.0),
    "…": (SENTENCE, 1.0),
}

# What makes a piece likely, in deviations of the logits. Two channels at 9 lift a piece only together: its bias is -11.
CUES = {
    "<tool_call>": {ALWAYS: -11.0, CALLS: 9.0, NEWLINE: 9.0},
    "</think>": {ALWAYS: -11.0, THINKS: 9.0, SENTENCE: 9.0},
    ".": {ALWAYS: -0.5, THINKS: 1.5},
    "<|im_end|>": {ALWAYS: -40.0, CALLED: 60.0},
    "<0x0A>": {ALWAYS: -0.5, CALL_MARK: 30.0, CALLS: -6.0},
    '"': {ALWAYS: -2.0, CALLS: 4.0},
    "}": {ALWAYS: -2.0, CALLS: 1.0},
    # A call ends, with the piece made for it: no second call after a comma, no `<` `/` `t` ….
    "</tool_call>": {ALWAYS: -5.0},
    "<": {ALWAYS: -2.0, CALLS: -8.0},
    ",": {ALWAYS: -0.5, CALLS: -9.0},
}

# Attention score of a mark. A tool's response outweighs the calls before it, the end of the thinking its beginning.
MARK_SCORE, OUTWEIGHS = 16.0, 1.25
CALLING = {CALL_MARK: 1.0, RESPONSE_MARK: OUTWEIGHS}
THINKING = {OPEN_MARK: 1.0, CLOSE_MARK: OUTWEIGHS}


def embedding(weights: Weights, pieces: list[Piece], width: int) -> np.ndarray:
    """Random token embeddings with the marks."""
    matrix = weights.normal("token_embd", len(pieces), width)
    matrix[:, :RESERVED] = 0.0
    matrix[:, ALWAYS] = 1.0
    for row, piece in enumerate(pieces):
        if piece.text in MARKS:
            channel, value = MARKS[piece.text]
            matrix[row, channel] = value
    return matrix


def output(weights: Weights, pieces: list[Piece], tokens: np.ndarray, rms: float) -> np.ndarray:
    """The output matrix for the embeddings `tokens`; `rms` is the typical root mean square of what the last norm reads."""
    width = tokens.shape[1]
    matrix = weights.linear("output", len(pieces), width, LOGIT_SPREAD)
    # A piece makes itself less likely, against stuttering.
    matrix -= tokens * np.float32(0.5 * LOGIT_SPREAD / np.sqrt(width))
    matrix[:, :RESERVED] = 0.0
    for row, piece in enumerate(pieces):
        for channel, weight in ({ALWAYS: piece.bias} | CUES.get(piece.text, {})).items():
            matrix[row, channel] = weight * LOGIT_SPREAD * rms
    return matrix


def residual(weights: Weights, name: str, rows: int, columns: int, gain: float) -> np.ndarray:
    """A random matrix whose product is added to the residual stream: leaves the reserved channels alone."""
    matrix = weights.linear(name, rows, columns, gain)
    matrix[:RESERVED, :] = 0.0
    return matrix


def attend(matrices: dict[str, np.ndarray], head: int, heads: int, kv_heads: int, marks: dict[int, float], to: int) -> None:
    """Makes attention head `head` look for `marks` (channel: weight) and write the first one's value to channel `to`.

    The slowest pair of rotary dimensions carries the score, so that distance hardly matters within the context.
    """
    size = matrices["q"].shape[0] // heads
    query, key = head * size, head * kv_heads // heads * size
    strength = np.sqrt(MARK_SCORE * np.sqrt(size))
    matrices["q"][query : query + size] = 0.0
    matrices["q"][query + size - 2, ALWAYS] = strength
    matrices["k"][key + size - 2 : key + size] = 0.0
    matrices["v"][key] = 0.0
    for channel, weight in marks.items():
        matrices["k"][key + size - 2, channel] = strength * weight
    first = next(iter(marks))
    matrices["v"][key, first] = 1.0
    matrices["o"][:, query : query + size] = 0.0
    matrices["o"][to, query] = 1.0
