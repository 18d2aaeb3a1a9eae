"""Random weights that behave: what the model families here share.

Every tensor draws from its own generator, seeded by its name: adding a tensor changes no other.
"""

from __future__ import annotations

import hashlib

import numpy as np

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


def ones(width: int) -> np.ndarray:
    """A norm's scale that changes nothing."""
    return np.ones(width, np.float32)
