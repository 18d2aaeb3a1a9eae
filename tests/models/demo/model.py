"""The network: the llama family's, small, in PyTorch."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Sizes; every row length is a multiple of 32, as Q8_0 wants it."""

    vocabulary: int
    width: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 4
    head: int = 64
    feed_forward: int = 640
    context: int = 2048
    rope_base: float = 100000.0
    epsilon: float = 1e-5

    def plain(self) -> dict:
        return asdict(self)


SHAPES = {
    "muster-demo": {},
    "muster-demo-draft": {"width": 128, "layers": 2, "heads": 2, "kv_heads": 2, "feed_forward": 320},
}


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
        self.attn_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.attn_q = nn.Linear(shape.width, queries, bias=False)
        self.attn_k = nn.Linear(shape.width, keys, bias=False)
        self.attn_v = nn.Linear(shape.width, keys, bias=False)
        self.attn_output = nn.Linear(queries, shape.width, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.ffn_gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        normed = self.attn_norm(x)
        split = lambda projected, heads: projected.view(batch, length, heads, self.shape.head).transpose(1, 2)
        query = rotate(split(self.attn_q(normed), self.shape.heads), cos, sin)
        key = rotate(split(self.attn_k(normed), self.shape.kv_heads), cos, sin)
        value = split(self.attn_v(normed), self.shape.kv_heads)
        groups = self.shape.heads // self.shape.kv_heads
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        # PyTorch's fused attention takes longer than this on a CPU, and most of that backwards.
        scores = (query * self.shape.head**-0.5) @ key.transpose(-2, -1) + mask
        attended = scores.softmax(dim=-1, dtype=scores.dtype) @ value
        x = x + self.attn_output(attended.transpose(1, 2).reshape(batch, length, -1))
        normed = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(normed)) * self.ffn_up(normed))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on neighbouring pairs, as llama.cpp computes them for this family."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class Llama(nn.Module):
    """Token ids to logits; the output matrix is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        frequencies = shape.rope_base ** (-torch.arange(0, shape.head, 2) / shape.head)
        angles = torch.outer(torch.arange(shape.context), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        nn.init.normal_(self.token_embd.weight, std=0.05)
        for name, parameter in self.blk.named_parameters():
            if parameter.ndim == 2:
                # What writes to the stream begins silent.
                silent = "output" in name or "down" in name
                nn.init.normal_(parameter, std=0.0 if silent else parameter.shape[1] ** -0.5)
        begin_with_copying(self)

    def hidden(self, ids: Tensor) -> Tensor:
        x = self.token_embd(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        if torch.is_autocast_enabled("cpu"):
            cos, sin = cos.bfloat16(), sin.bfloat16()
        mask = torch.full((ids.shape[1], ids.shape[1]), -torch.inf, dtype=cos.dtype).triu(1)
        for block in self.blk:
            x = block(x, cos, sin, mask)
        return self.output_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.token_embd.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.hidden(ids))


@torch.no_grad()
def begin_with_copying(model: Llama) -> None:
    """Writes an induction circuit into the first two layers, as large models learn it: "what came after this token before?".

    Left to chance it appears late, and on so little text perhaps never; training then refines it. Half of the heads of the
    first layer look at the token before and note its identity in a part of the stream that embeddings leave free; half of
    those of the second look for the places whose note is the present token, and say the token that stands there.
    """
    shape, first, second = model.shape, model.blk[0], model.blk[1]
    width, head, copying = shape.width, shape.head, max(1, shape.heads // 2)
    # Pairs that turn by less than a radian over a prompt carry identities, the fast ones positions.
    frequencies = shape.rope_base ** (-torch.arange(0, head, 2) / head)
    fast = int((frequencies > 0.006).sum())
    slow = head - 2 * fast
    constant, free = width - 1, width - 1 - copying * slow
    embedding = model.token_embd.weight
    # All of one length, so that the constant is one after the norm, too.
    scale = 0.05
    embedding[:, :free] *= scale * free**0.5 / embedding[:, :free].norm(dim=1, keepdim=True)
    embedding[:, free:constant] = 0.0
    embedding[:, constant] = 4.0 * scale
    near = int((frequencies > 0.05).sum())
    for number in range(copying):
        rows = slice(number * head, (number + 1) * head)
        note = slice(free + number * slow, free + (number + 1) * slow)
        identity = torch.linalg.qr(torch.randn(free, slow))[0].T
        first.attn_q.weight[rows] = 0.0
        first.attn_k.weight[rows] = 0.0
        turns = frequencies[:near]
        first.attn_q.weight[rows][0 : 2 * near : 2, constant] = 1.8
        first.attn_k.weight[rows][0 : 2 * near : 2, constant] = 1.8 * turns.cos()
        first.attn_k.weight[rows][1 : 2 * near : 2, constant] = 1.8 * turns.sin()
        first.attn_v.weight[rows] = 0.0
        first.attn_v.weight[rows][:slow, :free] = identity
        first.attn_output.weight[:, rows] = 0.0
        first.attn_output.weight[note, rows][:, :slow] = torch.eye(slow) * scale
        second.attn_q.weight[rows] = 0.0
        second.attn_q.weight[rows][2 * fast :, :free] = 1.8 * identity
        second.attn_k.weight[rows] = 0.0
        second.attn_k.weight[rows][2 * fast :, note] = 1.8 * torch.eye(slow)
        said = torch.linalg.qr(torch.randn(free, head))[0].T
        second.attn_v.weight[rows] = 0.0
        second.attn_v.weight[rows][:, :free] = said
        second.attn_output.weight[:, rows] = 0.0
        second.attn_output.weight[:free, rows] = said.T * 2 * scale
