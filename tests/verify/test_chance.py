"""Chances against closed forms, and variances that are drawn to those of their group."""

from __future__ import annotations

import math

import pytest
import torch

from ingot.verify.chance import SMALLEST, count_chance, incomplete_beta, pool_variances, variance_chance

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize("ratio", [0.1, 1.0, 7.0, 1e4, 1e12])
def test_the_f_distribution_where_it_has_a_closed_form(ratio: float) -> None:
    assert variance_chance(ratio, 2, 2) == pytest.approx(1 / (1 + ratio), rel=1e-9)
    assert variance_chance(ratio, 1, 1) == pytest.approx(2 / math.pi * math.atan(ratio**-0.5), rel=1e-9)


@pytest.mark.parametrize("ratio", [0.1, 1.0, 7.0, 300.0])
def test_a_variance_that_is_known_exactly_gives_chi_square(ratio: float) -> None:
    assert variance_chance(ratio, 2, 1e12) == pytest.approx(math.exp(-ratio), rel=1e-4)


def test_a_chance_is_never_zero_nor_above_one() -> None:
    assert variance_chance(math.inf, 4, 4) == SMALLEST
    assert SMALLEST <= variance_chance(1e9, 1e5, 1e5) < 1e-200
    assert variance_chance(0.0, 4, 4) == variance_chance(3.0, 4, 0) == 1.0


def test_counts_are_binomial() -> None:
    assert count_chance(4, 4, 0.1) == pytest.approx(1e-4)
    assert count_chance(1, 10, 0.1) == pytest.approx(1 - 0.9**10)
    assert count_chance(2, 3, 0.5) == pytest.approx(0.5)
    assert count_chance(0, 5, 0.1) == count_chance(5, 5, 1.0) == 1.0
    assert incomplete_beta(0.5, 3.5, 3.5) == pytest.approx(0.5)


def test_channels_that_are_alike_share_one_variance() -> None:
    """500 channels of 4 samples each: every variance is then known from thousands of samples."""
    seen = torch.randn(500, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).square().mean(1)
    pooled = pool_variances(seen, torch.full((500,), 4.0, dtype=torch.float64))
    assert float(pooled.known.min()) > 20
    assert 3 * float((pooled.variance - 1).abs().max()) < float((seen - 1).abs().max())


def test_channels_that_differ_keep_their_own_variance() -> None:
    true = torch.logspace(-1, 1, 500, dtype=torch.float64)
    noise = torch.randn(500, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = true * noise.square().mean(1)
    pooled = pool_variances(seen, torch.full((500,), 40.0, dtype=torch.float64))
    assert float(pooled.known.max()) < 45
    assert float((pooled.variance / seen).log().abs().max()) < 0.3


def test_two_channels_say_nothing_of_each_other() -> None:
    seen = torch.tensor([1.0, 9.0], dtype=torch.float64)
    pooled = pool_variances(seen, torch.tensor([4.0, 4.0], dtype=torch.float64))
    assert torch.equal(pooled.variance, seen)
