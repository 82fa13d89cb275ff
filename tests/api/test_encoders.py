"""Encoders of text and speech as they are deployed: each is one delegate, with its mask or its front end inside."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import ingot

WIDTH, HEADS = 32, 4
# Token ids, positions and the mask, and its conversion to float.
INTEGER_OPS = {
    "embedding.default", "slice_copy.Tensor", "full_like.default", "unsqueeze_copy.default", "squeeze_copy.dims",
    "dim_order_ops._to_dim_order_copy.default",
}  # fmt: skip


class Block(nn.Module):
    """Post-norm, as BERT; `mask` is added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (f(x).view(n, length, HEADS, WIDTH // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(n, length, WIDTH)
        x = self.first(x + self.o(y))
        z: Tensor = self.second(x + self.down(F.gelu(self.up(x))))
        return z


class SentenceEncoder(nn.Module):
    """Token ids and an attention mask in; mean over the tokens that the mask leaves, of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.types = (
            nn.Embedding(100, WIDTH),
            nn.Embedding(64, WIDTH),
            nn.Embedding(2, WIDTH),
        )
        self.norm, self.blocks = nn.LayerNorm(WIDTH), nn.ModuleList(Block() for _ in range(2))
        self.register_buffer("order", torch.arange(64)[None])

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        order: Any = self.order
        x = self.words(ids) + self.positions(order[:, : ids.shape[1]]) + self.types(torch.zeros_like(ids))
        x = self.norm(x)
        added = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for block in self.blocks:
            x = block(x, added)
        weights = mask[..., None].to(x.dtype)
        return F.normalize((x * weights).sum(1) / weights.sum(1).clamp(min=1e-9), dim=-1)


class SpeechEncoder(nn.Module):
    """Log-mel spectrogram, two convolutions, positions, blocks: waves in, states out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.register_buffer("filters", torch.rand(16, 33) ** 4)
        self.first, self.second = nn.Conv1d(16, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, 2, 1)
        self.positions, self.blocks = nn.Parameter(torch.randn(25, WIDTH) * 0.3), nn.ModuleList([Block()])

    def forward(self, wave: Tensor) -> Tensor:
        window: Any = self.window
        spectrum = torch.stft(wave, 64, 32, window=window, return_complex=True)
        mel = self.filters @ (spectrum[..., :-1].abs() ** 2)
        log = torch.clamp(mel, min=1e-10).log10()
        log = (torch.maximum(log, log.max() - 8.0) + 4.0) / 4.0
        x = F.gelu(self.second(F.gelu(self.first(log)))).mT + self.positions
        for block in self.blocks:
            x = block(x)
        return x


def _sentences(n: int, length: int, count: int = 4) -> list[tuple[Tensor, ...]]:
    kept = [
        torch.arange(length)[None] < torch.tensor([[max(2, length - 2 * (i + j))] for j in range(n)])
        for i in range(count)
    ]
    return [(torch.randint(0, 100, (n, length)), k.long()) for k in kept]


def _waves(count: int = 4) -> list[tuple[Tensor, ...]]:
    time = torch.arange(1600) / 1600
    return [(torch.sin(2 * math.pi * (40 + 60 * i) * time)[None] + 0.05 * torch.randn(1, 1600),) for i in range(count)]


def _one_delegate(casting: Any) -> None:
    left = {h.op for h in casting.host_ops}
    assert len(casting.delegates) == 1, left
    assert left <= INTEGER_OPS, left
    assert casting.check.passed, casting.check.outputs


def test_a_sentence_encoder_with_its_mask_as_an_input() -> None:
    torch.manual_seed(0)
    batches = _sentences(1, 16)
    _one_delegate(ingot.cast(SentenceEncoder().eval(), batches[0], target="xnnpack", calibration=batches))


def test_a_speech_encoder_with_its_log_mel_front_end() -> None:
    torch.manual_seed(0)
    batches = _waves()
    _one_delegate(ingot.cast(SpeechEncoder().eval(), batches[0], target="xnnpack", calibration=batches))


def test_a_sentence_encoder_of_any_batch_and_length() -> None:
    torch.manual_seed(0)
    n, length = Dim("n", min=1, max=4), Dim("length", min=4, max=32)
    batches = [b for size in ((2, 6), (3, 11), (2, 20)) for b in _sentences(*size, count=2)]
    shapes = ({0: n, 1: length}, {0: n, 1: length})
    casting = ingot.cast(
        SentenceEncoder().eval(), batches[0], target="xnnpack", calibration=batches, dynamic_shapes=shapes
    )
    _one_delegate(casting)
    for size in ((1, 4), (4, 32), (3, 17)):
        assert ingot.verify(casting, _sentences(*size, count=1)).passed, size
