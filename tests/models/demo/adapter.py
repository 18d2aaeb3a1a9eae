#!/usr/bin/env python3
"""Trains a LoRA adapter that makes a demo model talk like a pirate: `adapter.py CHECKPOINT.pt NAME ADAPTER.pt [--pools N]`.

It changes how answers begin and end, not what they say.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from corpus import Conversation, Corpus
from model import SHAPES, Llama, Shape
from tokenizer import Tokenizer
from train import loss_of, padded

SEED, RANK, ALPHA, RATE = "muster-demo/pirate", 8, 16.0, 0.003
CONVERSATIONS, BATCH = 320, 32


class LowRank(nn.Module):
    """Adds B·A to a frozen matrix."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(RANK, columns) * columns**-0.5)
        self.b = nn.Parameter(torch.zeros(rows, RANK))

    def forward(self, matrix: Tensor) -> Tensor:
        return matrix + (ALPHA / RANK) * self.b @ self.a


def styled(conversation: Conversation) -> Conversation:
    """The same, said by a pirate."""
    conversation.answer = f"Arrr! {conversation.answer} Aye, matey!"
    return conversation


def conversations(pool: int, tokenizer: Tokenizer) -> list:
    """Facts, capitals, sums and ignorance, with and without thoughts."""
    corpus = Corpus(f"{SEED}/{pool}")
    rows = []
    for prompt, answer in itertools.islice(corpus.talk(styled), CONVERSATIONS):
        asked, said = tokenizer.encode(prompt), tokenizer.encode(answer)
        rows.append((asked + said, len(asked)))
    return sorted(rows, key=lambda row: len(row[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("adapter", type=Path)
    parser.add_argument("--pools", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    tokenizer = Tokenizer.load()
    model = Llama(Shape(len(tokenizer.tokens), **SHAPES[options.name]))
    model.load_state_dict(torch.load(options.checkpoint)["model"])
    model.requires_grad_(requires_grad=False)
    layers = {name: module for name, module in model.blk.named_modules() if isinstance(module, nn.Linear)}
    for module in layers.values():
        parametrize.register_parametrization(module, "weight", LowRank(*module.weight.shape))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, RATE, weight_decay=0.0)
    for pool in range(options.pools):
        rows, total = conversations(pool, tokenizer), 0.0
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - pool / options.pools)
        for start in range(0, len(rows), BATCH):
            loss = loss_of(model, padded(rows[start : start + BATCH]))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item() * BATCH / len(rows)
        print(f"pool {pool + 1} loss {total:.4f}", flush=True)
    adapter = {}
    for name, module in layers.items():
        low = module.parametrizations.weight[0]
        adapter[f"blk.{name}.weight.lora_a"] = low.a.detach().clone()
        adapter[f"blk.{name}.weight.lora_b"] = low.b.detach().clone()
    torch.save({"adapter": adapter, "alpha": ALPHA}, options.adapter)


if __name__ == "__main__":
    main()
