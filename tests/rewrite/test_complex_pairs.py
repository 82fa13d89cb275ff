"""Programs with complex values inside: pairs of floats give the same, and nothing complex is left."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ingot
from ingot.core.fx import calls, value_of
from ingot.rewrite.complex_pairs import RULE

Draw = random.Random


class Run(nn.Module):
    def __init__(self, run: Callable[..., Tensor], *constants: Tensor) -> None:
        super().__init__()
        self.run = run
        for k, tensor in enumerate(constants):
            self.register_buffer(f"c{k}", tensor)
        self.many = len(constants)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(*inputs, *[getattr(self, f"c{k}") for k in range(self.many)])


def check(net: nn.Module, *inputs: Tensor) -> None:
    expected = net(*inputs)
    module = ingot.capture(net.eval(), inputs).module
    assert RULE.apply(module)
    assert not any(v.is_complex() for n in calls(module) if isinstance(v := value_of(n), Tensor))
    module.recompile()
    got = module(*inputs)
    torch.testing.assert_close(got[0] if isinstance(got, tuple) else got, expected, rtol=1e-4, atol=1e-4)


def noise(draw: Draw, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(draw.randrange(1 << 30)))


def transform(draw: Draw) -> dict[str, Any]:
    """Name, shape, and the arguments: lengths that cut or pad, dimensions, norm."""
    shape = [draw.randint(2, 6) for _ in range(draw.randint(2, 4))]
    name = draw.choice(("fft", "rfft", "ifft", "fft2", "rfft2", "ifft2", "fftn", "rfftn", "ifftn"))
    many = 1 if name[-1] == "t" else 2 if name[-1] == "2" else draw.randint(1, len(shape))
    dims = draw.sample(range(-len(shape), 0), many)
    lengths = [draw.randint(2, 8) for _ in dims] if draw.random() < 0.6 else None
    given = {"norm": draw.choice((None, "backward", "ortho", "forward"))}
    if many == 1 and name[-1] == "t":
        return {"name": name, "shape": shape, "given": {**given, "n": lengths and lengths[0], "dim": dims[0]}}
    return {"name": name, "shape": shape, "given": {**given, "s": lengths, "dim": dims}}


@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_transform_of_any_length_and_direction(draw: Draw) -> None:
    """What is transformed is the spectrum of a real value: a complex one."""
    chosen = transform(draw)
    name, options = chosen["name"], chosen["given"]

    def run(x: Tensor, turn: Tensor) -> Tensor:
        given = x if name.startswith("r") else x * turn
        return torch.view_as_real(getattr(torch.fft, name)(given, **options)) * 1.0

    check(Run(run, torch.polar(torch.ones(1), noise(draw, 1))), noise(draw, *chosen["shape"]))


@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False))
def test_back_to_real_values(draw: Draw) -> None:
    """irfft, irfft2 and irfftn, also to a length that the spectrum does not have."""
    shape = [draw.randint(2, 6) for _ in range(draw.randint(2, 4))]
    ending = draw.choice(("", "2", "n"))
    many = {"": 1, "2": 2, "n": draw.randint(1, len(shape))}[ending]
    dims = draw.sample(range(-len(shape), 0), many)
    sizes = [draw.randint(2, 9) for _ in dims] if draw.random() < 0.7 else None
    norm = draw.choice((None, "ortho", "forward"))

    def run(x: Tensor) -> Tensor:
        if ending == "":
            spectrum = torch.fft.rfft(x, dim=dims[0])
            return torch.fft.irfft(spectrum * spectrum, n=sizes[0] if sizes else None, dim=dims[0], norm=norm)
        spectrum = torch.fft.rfftn(x, dim=dims)
        return getattr(torch.fft, f"irfft{ending}")(spectrum * spectrum, s=sizes, dim=dims, norm=norm)

    check(Run(run), noise(draw, *shape))


@settings(max_examples=6, deadline=None)
@given(st.randoms(use_true_random=False))
def test_short_time_transform_and_back(draw: Draw) -> None:
    size = draw.choice((8, 12, 16))
    width = draw.choice((size, size - 4))
    step, frames = draw.randint(1, width // 2), draw.randint(2, 5)
    window = torch.hann_window(width) + 0.1
    lead, normalized = draw.choice(([], [2])), draw.random() < 0.5
    length = draw.choice((None, step * (frames - 1)))
    options: Any = {"n_fft": size, "hop_length": step, "win_length": width, "normalized": normalized}

    def run(x: Tensor, gain: Tensor, w: Tensor) -> Tensor:
        z = torch.stft(x, window=w, return_complex=True, pad_mode="constant", **options)
        return torch.istft(z * gain, window=w, length=length, **options)

    samples = step * (frames - 1) + size // 2
    check(Run(run, noise(draw, size // 2 + 1, 1), window), noise(draw, *lead, samples))


PARTS = {
    "products of matrices": lambda a, b: torch.view_as_real(a @ b.mT),
    "an equation": lambda a, b: torch.view_as_real(torch.einsum("bij,bkj->bik", a, b)),
    "a quotient": lambda a, b: torch.view_as_real(a / (b + (3 + 2j))),
    "a quotient of a real value": lambda a, b: torch.view_as_real(a / (b.abs() + 1)),
    "with numbers": lambda a, b: torch.view_as_real((1j * a - b) * (0.5 - 2j) + a.real),
    "written into a part": lambda a, b: torch.view_as_real(torch.slice_scatter(a, b[:, :2], 1, 1, 3)),
    "joined": lambda a, b: torch.view_as_real(torch.cat([a, b.conj()], 1)).sum(1),
    "summed": lambda a, b: torch.view_as_real((a - b).sum(1) + b.mean(1)),
    "an exponential": lambda a, b: torch.view_as_real(torch.exp(a * 0.3) + torch.polar(b.abs(), a.angle())),
}


@pytest.mark.parametrize("name", PARTS)
def test_arithmetic(name: str) -> None:
    draw = random.Random(name)

    def run(x: Tensor, y: Tensor) -> Tensor:
        return PARTS[name](torch.view_as_complex(x * 2), torch.view_as_complex(y + 0.1))

    check(Run(run), noise(draw, 2, 3, 4, 2), noise(draw, 2, 3, 4, 2))


def test_a_net_with_its_own_front_and_back_end_is_one_delegate() -> None:
    """Samples to a spectrum, a mask from a recurrent layer, and back to samples."""

    class Denoiser(nn.Module):
        window: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("window", torch.hann_window(32))
            self.cells, self.gate = nn.GRU(17, 8, batch_first=True), nn.Linear(8, 17)

        def forward(self, x: Tensor) -> Tensor:
            spectrum = torch.stft(x, 32, 8, window=self.window, return_complex=True)
            level = (spectrum.abs() + 1e-3).log().mT
            gain = self.gate(self.cells(level)[0]).sigmoid().mT
            return torch.istft(spectrum * gain, 32, 8, window=self.window, length=x.shape[-1])

    torch.manual_seed(0)
    batches = [(torch.randn(1, 64),) for _ in range(4)]
    casting = ingot.cast(Denoiser().eval(), batches[0], target="xnnpack", calibration=batches)
    assert len(casting.delegates) == 1
    assert not casting.host_ops
