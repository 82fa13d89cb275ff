"""Small nets with what used to split them: one delegate on XNNPACK, executed and near eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot


class Encoder(nn.Module):
    """A sentence encoder: tokens and their padding mask, both integers, attention, the mean over real tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv, self.out = nn.Embedding(50, 32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        q, k, v = self.qkv(x).reshape(1, 12, 3, 4, 8).permute(2, 0, 3, 1, 4)
        allowed = mask.bool()[:, None, None, :] & mask.bool()[:, None, :, None]
        y = F.scaled_dot_product_attention(q, k, v, allowed).transpose(1, 2).reshape(1, 12, 32)
        weight = mask.unsqueeze(-1).to(y.dtype)
        return (self.out(x + y) * weight).sum(1) / weight.sum(1).clamp(min=1e-9)


class LogMel(nn.Module):
    """A front end for speech: reflection pad, short-time transform, filters, logarithm, a convolution."""

    window: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.filters, self.conv = nn.Linear(33, 12, bias=False), nn.Conv1d(12, 8, 3)
        nn.init.uniform_(self.filters.weight, 0, 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        power = torch.stft(x, 64, 16, window=self.window, return_complex=True).abs() ** 2
        return self.conv((self.filters(power.mT) + 1e-3).log().mT).relu()


class MultiQuery(nn.Module):
    """Heads that share keys and values, a softmax over channels, means of means."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.q, self.kv = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, 32), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        tokens = x.flatten(2).mT
        q, (k, v) = self.q(tokens).reshape(1, 64, 4, 8).transpose(1, 2), self.kv(tokens)[:, None].chunk(2, -1)
        y = F.scaled_dot_product_attention(q, k, v)
        return torch.cat([y.mean(2).mean(1), x.softmax(1).mean(3).mean(2)], 1)


class Twins(nn.Module):
    """Two inputs through one net, compared by cosine similarity and by distances; ExecuTorch decomposes both late."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(1, 8, 3, 2), nn.Linear(8, 16)

    def embedded(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(F.instance_norm(self.conv(x)).relu().mean((2, 3)))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, y = self.embedded(x), self.embedded(y)
        return F.cosine_similarity(x, y), F.pairwise_distance(x, y), torch.cdist(x, y)


class Gated(nn.Module):
    """A gate and one minus the gate, where one is a whole number, as recurrent nets and masks have it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.new = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate(x).sigmoid()
        return (1 - gate) * self.new(x) + gate


class Sampled(nn.Module):
    """Points that are computed: what deformable attention and optical flow read at them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.place = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = self.place(x).tanh().permute(0, 2, 3, 1)
        return F.grid_sample(self.conv(x), grid, align_corners=False).relu()


class Response(nn.Module):
    """A global response norm: an op that is a product with a whole number inside."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale, self.bias = (
            nn.Linear(8, 16),
            nn.Parameter(torch.rand(16)),
            nn.Parameter(torch.rand(16)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        size = x.norm(dim=(1, 2), keepdim=True)
        return x + torch.addcmul(self.bias, self.scale, x * size / (size.mean(-1, keepdim=True) + 1e-6))


class Marked(nn.Module):
    """A mask of integers, made of floats, as a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (1 + mask / 10000).int()[:, :, None]


TOKENS = torch.tensor([[4, 8, 15, 16, 23, 42, 7, 1, 0, 0, 0, 0]])


class ClassTokens(nn.Module):
    """The first token, once for each frame before the tokens of that frame, and once before the result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.out = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([x[:, :1] * 2, self.linear(x[:, 1:])], 1)
        frames = x[:, 1:].reshape(1, 3, 4, 16).permute(0, 2, 1, 3).reshape(4, 3, 16)
        first = x[:, 0].unsqueeze(1)
        y = self.out(torch.cat([first.repeat(1, 4, 1).reshape(4, 1, 16), frames], 1))
        return torch.cat([first, y[:, 1:].reshape(1, 12, 16)], 1) + x


CASES: dict[str, tuple[nn.Module, Any, set[str]]] = {
    "mask of integers": (Encoder(), lambda: (TOKENS.roll(1, 1), (TOKENS > 0).long()), {"embedding", "dim_order_ops"}),
    "log-mel": (LogMel(), lambda: (torch.randn(1, 800),), set()),
    "twins": (Twins(), lambda: (torch.randn(2, 1, 12, 12), torch.randn(2, 1, 12, 12)), set()),
    "multi-query": (MultiQuery(), lambda: (torch.randn(1, 3, 8, 8),), set()),
    "gate": (Gated(), lambda: (torch.randn(1, 3, 8, 8),), set()),
    "integers as factors": (Marked(), lambda: (torch.randn(2, 4, 8), -10000.0 * (torch.rand(2, 4) < 0.5)), set()),
    "response norm": (Response(), lambda: (torch.randn(1, 4, 4, 8),), set()),
    "class tokens": (ClassTokens(), lambda: (torch.randn(1, 13, 16),), set()),
    "sampler": (Sampled(), lambda: (torch.randn(1, 3, 8, 8),), set()),
    "group norm and pool": (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.AvgPool2d(3, 2, 1, ceil_mode=True), nn.LogSoftmax(1)),
        lambda: (torch.randn(1, 3, 11, 11),), set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_one_delegate(name: str) -> None:
    net, inputs, outside = CASES[name]
    torch.manual_seed(0)
    batches = [inputs() for _ in range(4)]
    casting = ingot.cast(net.eval(), batches[0], target="xnnpack", calibration=batches)
    assert len(casting.delegates) == 1, casting.host_ops
    assert {op.op.split(".")[0] for op in casting.host_ops} == outside
    assert casting.check is not None
    assert casting.check.outputs[0].sqnr_db > 20


def test_a_padding_mask_is_obeyed_at_run_time() -> None:
    """Calibrated with one mask, executed with others."""
    torch.manual_seed(0)
    net = Encoder().eval()
    batches = [(torch.randint(1, 50, (1, 12)), (torch.arange(12) < 8).long()[None]) for _ in range(4)]
    casting = ingot.cast(net, batches[0], target="xnnpack", calibration=batches)
    for length in (1, 5, 12):
        check = ingot.verify(casting, [(batches[0][0], (torch.arange(12) < length).long()[None])])
        assert check.outputs[0].sqnr_db > 20, length


SCALARS: dict[str, Any] = {
    "mean": lambda y, f: y - y.mean(),
    "standardized": lambda y, f: (y - y.mean()) / (y.std() + 1e-3),
    "extrema": lambda y, f: (y - y.min()) / (y.max() - y.min() + 1e-5),
    "norm": lambda y, f: y / torch.linalg.vector_norm(y),
    "largest magnitude": lambda y, f: y / y.norm(torch.inf),
    "dot": lambda y, f: y * torch.dot(y.flatten(), y.flatten()) * 1e-3,
    "stacked": lambda y, f: y * torch.stack([y.mean(), y.amax()]).sum(),
    "product": lambda y, f: y * y[0, 0, 0].sigmoid().prod(),
    "picked element": lambda y, f: y * y[0, 3, 2, 1],
    "learned factor": lambda y, f: y * f.sigmoid() + f,
    "condition": lambda y, f: torch.where(y > y.mean(), y, y * 0.1),
    "bound": lambda y, f: torch.clamp(y, max=y.mean()),
    "expanded": lambda y, f: y + y.mean().expand(2, 8, 1, 1),
}


class BetweenConvolutions(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 3), function
        self.factor = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.function(self.first(x), self.factor))


@pytest.mark.parametrize("name", SCALARS)
def test_a_value_without_dimensions_is_no_boundary(name: str) -> None:
    torch.manual_seed(0)
    net = BetweenConvolutions(SCALARS[name]).eval()
    batches = [(torch.randn(2, 3, 10, 10) * scale,) for scale in (1.0, 1.4, 1.7, 2.0)]
    casting = ingot.cast(net, batches[0], target="xnnpack", calibration=batches)
    assert len(casting.delegates) == 1
    assert not casting.host_ops
    assert casting.check is not None
    assert casting.check.outputs[0].sqnr_db > 25
