"""Runs of a graph with rounding noise: what has noise, and what it excuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.verify.check import References
from ingot.verify.integer_outputs import IN_FLOAT32_RUN, RUNS
from ingot.verify.reference.perturbed import run_perturbed


class PooledSteps(nn.Module):
    """A mean of two int8 numbers lies in the middle between two steps as often as not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.avg_pool1d(self.linear(x), 2).floor()


class Spread(nn.Module):
    """The deviation of values that a given range clips to one number."""

    def forward(self, x: Tensor) -> Tensor:
        return x.std(-1, keepdim=True) + 0.0 * x


def made(net: nn.Module, batches: list[tuple[Tensor, ...]], **recipe: object) -> ingot.Casting:
    return ingot.cast(net.eval(), batches[0], target="xnnpack", calibration=batches, recipe=recipe, on_mismatch="keep")


@pytest.fixture(scope="module")
def casting() -> ingot.Casting:
    torch.manual_seed(0)
    return made(PooledSteps(), [(3 * torch.randn(4, 6, 8),) for _ in range(8)], noise_vs_latency=0.0)


def test_ops_on_integers_have_rounding_noise_too(casting: ingot.Casting) -> None:
    """Their operands are dequantized values, of which the graph has no fake value."""
    evidence, batches = casting.needed_evidence, [(3 * torch.randn(4, 6, 8),) for _ in range(4)]
    plain = References(evidence, batches).quantized
    runs = [run_perturbed(evidence.quantized, batches, evidence.target, seed) for seed in range(3)]
    assert casting.plan.predicted.precisions["int8"]
    for run in runs:
        changed = sum(
            int(((a[0] if isinstance(a, tuple) else a) - b[0]).abs().gt(0.5).sum())
            for a, b in zip(run, plain, strict=True)
        )
        assert changed > 0


def test_one_of_the_runs_is_plain_float32(casting: ingot.Casting) -> None:
    """Noise never makes two numbers equal; whether a deviation is zero shows without it only."""
    evidence, batches = casting.needed_evidence, [(3 * torch.randn(4, 6, 8),)]
    references = References(evidence, batches)
    plain = evidence.quantized(*batches[0])
    given = plain[0] if isinstance(plain, tuple) else plain
    assert torch.equal(references._noisy(IN_FLOAT32_RUN, 0)[0], given)
    assert RUNS > IN_FLOAT32_RUN


def test_a_deviation_of_equal_numbers_is_no_error() -> None:
    """Computed in steps it is 1e-8 instead of zero: an SQNR of -200 dB that is float arithmetic alone."""
    batches: list[tuple[Tensor, ...]] = [(torch.full((2, 5), 0.1 * (i + 1)),) for i in range(4)]
    casting = made(Spread(), batches, quantize=False)
    assert casting.check.passed, casting.check.outputs


class TinyLog(nn.Module):
    """log1p as XNNPACK runs it: the error of 1 + x is taken back, so that noise in it cancels."""

    def forward(self, x: Tensor) -> Tensor:
        return 1000 * torch.log1p(x.abs())


def test_a_kernel_rounds_its_operand() -> None:
    """The kernel's logarithm next to 1 is wrong by as much as a step of 1, not of the result."""
    batches: list[tuple[Tensor, ...]] = [
        (1e-4 * torch.randn(6, 9, generator=torch.Generator().manual_seed(i)),) for i in range(2)
    ]
    casting = made(TinyLog(), batches, quantize=False)
    assert casting.check.outputs[0].faithful_db < 100
    assert casting.check.passed, casting.check.outputs
