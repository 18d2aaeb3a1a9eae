"""An embedding model and a reranker of the BERT family."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, PoolingType

from gguf_file import Model
from vocabulary import bert_vocabulary
from weights import Weights, ones

WIDTH, LAYERS, HEADS, FEED_FORWARD, CONTEXT = 64, 2, 2, 128, 512


def write(path: Path, seed: str, rerank: bool) -> None:
    """Writes an embedding model (mean pooling), or a reranker (one score from a classification head)."""
    pieces, weights = bert_vocabulary(), Weights(seed)
    model = Model("bert", seed, GGMLQuantizationType.F32)
    writer = model.writer
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(PoolingType.RANK if rerank else PoolingType.MEAN)
    writer.add_vocab_size(len(pieces))

    ids = {text: index for index, (text, _) in enumerate(pieces)}
    writer.add_tokenizer_model("bert")
    writer.add_token_list([text for text, _ in pieces])
    writer.add_token_types([kind for _, kind in pieces])
    writer.add_token_type_count(2)
    writer.add_bos_token_id(ids["[CLS]"])
    writer.add_eos_token_id(ids["[SEP]"])
    writer.add_sep_token_id(ids["[SEP]"])
    writer.add_unk_token_id(ids["[UNK]"])
    writer.add_pad_token_id(ids["[PAD]"])
    writer.add_mask_token_id(ids["[MASK]"])

    def norm(name: str) -> None:
        model.tensor(f"{name}.weight", ones(WIDTH))
        model.tensor(f"{name}.bias", np.zeros(WIDTH))

    def linear(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        model.tensor(f"{name}.weight", weights.linear(name, rows, columns, gain))
        model.tensor(f"{name}.bias", np.zeros(rows))

    model.tensor("token_embd.weight", weights.normal("token_embd", len(pieces), WIDTH))
    model.tensor("token_types.weight", weights.normal("token_types", 2, WIDTH) * 0.1)
    model.tensor("position_embd.weight", weights.normal("position_embd", CONTEXT, WIDTH) * 0.1)
    norm("token_embd_norm")
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v"):
            linear(f"{block}.{part}", WIDTH, WIDTH)
        linear(f"{block}.attn_output", WIDTH, WIDTH)
        norm(f"{block}.attn_output_norm")
        linear(f"{block}.ffn_up", FEED_FORWARD, WIDTH)
        linear(f"{block}.ffn_down", WIDTH, FEED_FORWARD)
        norm(f"{block}.layer_output_norm")
    if rerank:
        writer.add_array("bert.classifier.output_labels", ["LABEL_0"])
        linear("cls", WIDTH, WIDTH)
        linear("cls.output", 1, WIDTH, 2.0)
    model.save(path)
