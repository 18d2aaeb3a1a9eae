#!/usr/bin/env python3
"""Writes a trained model as GGUF: `export.py CHECKPOINT.pt NAME FILE.gguf`, or with `--lora` an adapter of it."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType, quants

from model import SHAPES, Llama, Shape
from tokenizer import CONTROL, SPECIAL, Tokenizer

HERE = Path(__file__).parent
DESCRIPTION = "A few million parameters that have memorised a small text of ours about Muster; see tests/models/demo/README.md"


def describe(writer: GGUFWriter, name: str) -> None:
    """What every file says of itself."""
    writer.add_name(name)
    writer.add_description(DESCRIPTION)
    writer.add_license("apache-2.0")
    writer.add_languages(["en"])


def vocabulary(writer: GGUFWriter, tokenizer: Tokenizer) -> None:
    """The tokenizer and the template."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokenizer.tokens)
    kinds = {text: TokenType.CONTROL if text in CONTROL else TokenType.USER_DEFINED for text in SPECIAL}
    writer.add_token_types([kinds.get(token, TokenType.NORMAL) for token in tokenizer.tokens])
    writer.add_token_merges([f"{left} {right}" for left, right in tokenizer.merges])
    writer.add_bos_token_id(tokenizer.ids["<|endoftext|>"])
    writer.add_eos_token_id(tokenizer.ids["<|im_end|>"])
    writer.add_pad_token_id(tokenizer.ids["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template((HERE / "chat_template.jinja").read_text(encoding="utf-8"))


def write_model(model: Llama, tokenizer: Tokenizer, name: str, path: Path) -> None:
    """Matrices in Q8_0, vectors in F32."""
    shape = model.shape
    writer = GGUFWriter(None, "llama")
    describe(writer, name)
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_rope_dimension_count(shape.head)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_vocab_size(shape.vocabulary)
    vocabulary(writer, tokenizer)
    for key, value in model.state_dict().items():
        data = value.numpy().astype(np.float32)
        if data.ndim == 1:
            writer.add_tensor(key, data)
        else:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(key, quants.quantize(data, kind), raw_dtype=kind)
    finish(writer, path)


def write_adapter(adapter: dict[str, torch.Tensor], alpha: float, name: str, path: Path) -> None:
    """Pairs of low-rank matrices, in F16."""
    writer = GGUFWriter(None, "llama")
    describe(writer, name)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for key, value in adapter.items():
        writer.add_tensor(key, value.numpy().astype(np.float16))
    finish(writer, path)


def finish(writer: GGUFWriter, path: Path) -> None:
    """Writes beside and renames, so that a reader never sees half a file."""
    unfinished = path.with_suffix(".part")
    writer.write_header_to_file(unfinished)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--lora", action="store_true", help="the checkpoint is an adapter of NAME")
    options = parser.parse_args()
    state = torch.load(options.checkpoint)
    if options.lora:
        write_adapter(state["adapter"], state["alpha"], f"{options.name}, style", options.file)
        return
    tokenizer = Tokenizer.load()
    model = Llama(Shape(len(tokenizer.tokens), **SHAPES[options.name]))
    model.load_state_dict(state["model"])
    write_model(model, tokenizer, options.name, options.file)


if __name__ == "__main__":
    main()
