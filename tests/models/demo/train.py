#!/usr/bin/env python3
"""Trains a demo model: `train.py NAME DIRECTORY [--pools N] [--decay N] [--threads N]`.

The text comes in pools of conversations, each drawn from a seed of its own, so that a run that was interrupted continues
where it was: DIRECTORY/NAME.pt holds everything. Matrices are trained with Muon, the rest with AdamW; the learning rate is
constant and falls to zero over the last `--decay` pools. Loss is taken on what the assistant says.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from corpus import Corpus
from model import SHAPES, Llama, Shape
from tokenizer import Tokenizer

SEED = "muster-demo/1"
# Pools at which the stages of the text begin, see Corpus.
STAGES = (70, 130, 240)
CONVERSATIONS, BATCH_TOKENS = 640, 4096
MATRIX_RATE, OTHER_RATE, WARMUP_STEPS = 0.015, 0.003, 60

# Ids, and which of them the assistant says.
Batch = tuple[Tensor, Tensor]


def batches(pool: int, tokenizer: Tokenizer) -> list[Batch]:
    """One pool of text, conversations of like length together."""
    rows = []
    for prompt, answer in itertools.islice(iter(Corpus(f"{SEED}/{pool}", stage=sum(pool >= first for first in STAGES))), CONVERSATIONS):
        asked, said = tokenizer.encode(prompt), tokenizer.encode(answer)
        rows.append((asked + said, len(asked)))
    rows.sort(key=lambda row: len(row[0]))
    cut: list[list] = [[]]
    for row in rows:
        if (len(cut[-1]) + 1) * len(row[0]) > BATCH_TOKENS:
            cut.append([])
        cut[-1].append(row)
    random.Random(f"{SEED}/order/{pool}").shuffle(cut)
    return [padded(rows) for rows in cut]


def padded(rows: list) -> Batch:
    """Rows as two tensors: the ids, and which of them the assistant says."""
    length = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    said = torch.zeros(len(rows), length, dtype=torch.bool)
    for index, (row, start) in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        said[index, start : len(row)] = True
    return ids, said


def loss_of(model: Llama, batch: Batch) -> Tensor:
    """Mean loss per token that the assistant says."""
    ids, said = batch
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model.logits(model.hidden(ids[:, :-1])[said[:, 1:]])
    return functional.cross_entropy(logits.float(), ids[:, 1:][said[:, 1:]])


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal (Newton-Schulz), for matrices."""

    def __init__(self, parameters: list[Tensor], lr: float, momentum: float = 0.95, decay: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonal(parameter.grad.lerp(state["momentum"], group["momentum"]))
                scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
                parameter.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-group["lr"] * scale)


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest orthogonal matrix, roughly."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return (x.T if tall else x).float()


def rate(step: int, pool: float, pools: int, decay: int) -> float:
    """Share of the full learning rate."""
    return min(1.0, (step + 1) / WARMUP_STEPS, max(0.0, (pools - pool) / decay))


@torch.no_grad()
def exact(model: Llama, tokenizer: Tokenizer, count: int = 160) -> dict[str, float]:
    """Share of unseen conversations whose whole answer would be said as it should be, by the kind of conversation."""
    corpus = Corpus(f"{SEED}/check", stage=2)
    found: dict[str, float] = {}
    for kind in (corpus._fact, corpus._unknown, corpus._sum, corpus._repeat, corpus._call, corpus._result):  # noqa: SLF001
        rows = []
        for index in range(count):
            prompt, answer = kind().texts(thinking=index % 2 == 0)
            asked, said = tokenizer.encode(prompt), tokenizer.encode(answer)
            rows.append((asked + said, len(asked)))
        rows.sort(key=lambda row: len(row[0]))
        right = 0.0
        for start in range(0, count, 32):
            ids, said = padded(rows[start : start + 32])
            with torch.autocast("cpu", dtype=torch.bfloat16):
                guessed = model(ids[:, :-1]).argmax(-1)
            wrong = (guessed != ids[:, 1:]) & said[:, 1:]
            right += (~wrong.any(1)).sum().item()
        found[kind.__name__.strip("_")] = right / count
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pools", type=int, default=150)
    parser.add_argument("--decay", type=int, default=130)
    parser.add_argument("--stop", type=int, help="end after this many pools, wherever the learning rate is")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--check", type=int, default=10, help="pools between checks and checkpoints")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    tokenizer = Tokenizer.load()
    model = Llama(Shape(len(tokenizer.tokens), **SHAPES[options.name]))
    matrices = [parameter for parameter in model.blk.parameters() if parameter.ndim == 2]
    others = [parameter for name, parameter in model.named_parameters() if parameter.ndim == 1 or name.startswith("token")]
    optimizers = [Muon(matrices, MATRIX_RATE), torch.optim.AdamW(others, OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0)]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["full"] = group["lr"]
    path, first, step = options.directory / f"{options.name}.pt", 0, 0
    options.directory.mkdir(parents=True, exist_ok=True)
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first, step = state["pool"], state["step"]
    print(f"{options.name}: {sum(parameter.numel() for parameter in model.parameters()) / 1e6:.2f} M parameters, from pool {first}", flush=True)
    started, tokens, total = time.monotonic(), 0, 0.0
    last = options.stop or options.pools
    for pool in range(first, last):
        made = batches(pool, tokenizer)
        for index, batch in enumerate(made):
            share = rate(step, pool + index / len(made), options.pools, options.decay)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["full"] * share
            loss = loss_of(model, batch)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            step, tokens, total = step + 1, tokens + batch[0].numel(), total + loss.item()
        spent = time.monotonic() - started
        print(f"pool {pool + 1} step {step} loss {total / len(made):.4f} {tokens / spent:.0f} tokens/s {spent:.0f} s", flush=True)
        total = 0.0
        if (pool + 1) % options.check == 0 or pool + 1 == last:
            state = {"model": model.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in optimizers], "pool": pool + 1, "step": step}
            torch.save(state, path.with_suffix(".part"))
            path.with_suffix(".part").replace(path)
            print("  ", " ".join(f"{kind} {share:.2f}" for kind, share in exact(model, tokenizer).items()), flush=True)


if __name__ == "__main__":
    main()
