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
    """Writes circuits into the first two layers that large models learn by themselves; training then refines them.

    Left to chance they appear late, and on so little text perhaps never. Heads of the first layer look one or two tokens
    back and note that token's identity in parts of the stream that embeddings leave free. Heads of the second layer find

    - what came after the present token before ("induction": a name goes on as it went on the last time), and
    - what else came two tokens after the same token (`"city": "` and `city Oslo`: a value comes after its name),

    and say the token that stands there.
    """
    shape, first, second = model.shape, model.blk[0], model.blk[1]
    head, steps = shape.head, [1, 1, 2][: shape.heads - 1]
    frequencies = shape.rope_base ** (-torch.arange(0, head, 2) / head)
    # The pairs that turn fast carry positions, those that hardly turn over a prompt identities.
    near, slow, size, scale = int((frequencies > 0.05).sum()), 2 * int((frequencies > 0.006).sum()), 28, 0.05
    constant = shape.width - 1
    free = constant - len(steps) * size
    embedding = model.token_embd.weight
    # All of one length, so that the constant is one after the norm, too.
    embedding[:, :free] *= scale * free**0.5 / embedding[:, :free].norm(dim=1, keepdim=True)
    embedding[:, free:constant] = 0.0
    embedding[:, constant] = 4.0 * scale
    for number, step in enumerate(steps):
        rows, start = slice(number * head, (number + 1) * head), number * head
        note = slice(free + number * size, free + (number + 1) * size)
        cosines, sines = (step * frequencies[:near]).cos(), (step * frequencies[:near]).sin()
        identity, said = (torch.linalg.qr(torch.randn(free, rank))[0].T for rank in (size, head))
        for block in (first, second):
            for matrix in (block.attn_q, block.attn_k, block.attn_v):
                matrix.weight[rows] = 0.0
            block.attn_output.weight[:, rows] = 0.0
        first.attn_q.weight[start : start + 2 * near : 2, constant] = 1.8
        first.attn_k.weight[start : start + 2 * near : 2, constant] = 1.8 * cosines
        first.attn_k.weight[start + 1 : start + 2 * near : 2, constant] = 1.8 * sines
        first.attn_v.weight[start : start + size, :free] = identity
        first.attn_output.weight[note, start : start + size] = torch.eye(size) * scale
        compared = slice(start + slow, start + slow + size)
        second.attn_k.weight[compared, note] = 1.8 * torch.eye(size)
        if step == 1:
            second.attn_q.weight[compared, :free] = 1.8 * identity
        else:
            second.attn_q.weight[compared, note] = 1.8 * torch.eye(size)
            # A token is not its own match.
            second.attn_q.weight[start : start + 2 * near : 2, constant] = 1.0
            second.attn_k.weight[start : start + 2 * near : 2, constant] = -1.0
        second.attn_v.weight[rows, :free] = said
        second.attn_output.weight[:free, rows] = said.T * 2 * scale
