#!/usr/bin/env python3
"""Makes tokenizer.json out of the text: 849 merges within words, 420 with the space before them."""

from __future__ import annotations

import itertools

from corpus import Corpus
from tokenizer import train

if __name__ == "__main__":
    text = [prompt + answer for prompt, answer in itertools.islice(iter(Corpus("muster-demo/tokenizer")), 12_000)]
    train(text, inner=849, words=420).save()
