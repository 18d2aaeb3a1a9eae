"""Random weights that behave: what the model families here share.

Channel 0 of the residual stream is a constant: every embedding has it, no layer writes to it. After the last norm it is
positive wherever the model is, so a column of the output matrix works as a bias per token. That is how control tokens and
stray bytes are kept out of greedy text although llama.cpp's graphs have no output bias.

Every tensor draws from its own generator, seeded by its name: adding a tensor changes no other.
"""

from __future__ import annotations

import hashlib

import numpy as np

from vocabulary import Piece

# Standard deviation of the logits, before the biases.
LOGIT_SPREAD = 3.0


class Weights:
    """Draws tensors for one model."""

    def __init__(self, seed: str) -> None:
        self._seed = seed

    def normal(self, name: str, *shape: int) -> np.ndarray:
        """Independent draws of mean 0 and deviation 1."""
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "little"))).standard_normal(shape, np.float32)

    def linear(self, name: str, rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        """A matrix that maps inputs of deviation 1 to outputs of deviation `gain`."""
        return self.normal(name, rows, columns) * np.float32(gain / np.sqrt(columns))

    def residual(self, name: str, rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        """Like `linear`, for what is added to the residual stream: leaves the constant channel alone."""
        matrix = self.linear(name, rows, columns, gain)
        matrix[0, :] = 0.0
        return matrix

    def embedding(self, pieces: list[Piece], width: int) -> np.ndarray:
        """Token embeddings with the constant channel."""
        matrix = self.normal("token_embd", len(pieces), width)
        matrix[:, 0] = 1.0
        return matrix

    def output(self, pieces: list[Piece], width: int, rms: float) -> np.ndarray:
        """The output matrix; `rms` is the typical root mean square of the residual stream it reads."""
        matrix = self.linear("output", len(pieces), width, LOGIT_SPREAD)
        matrix[:, 0] = [piece.bias * LOGIT_SPREAD * rms for piece in pieces]
        return matrix


def ones(width: int) -> np.ndarray:
    """A norm's scale that changes nothing."""
    return np.ones(width, np.float32)
