"""The verdict on one output: exact figures, no false alarms on rounding noise, no mutant that passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ingot.capture.element_origin import Origin
from ingot.core.artefact import OutputCheck
from ingot.verify.integer_outputs import Rerun, integer_mismatch
from ingot.verify.judge_output import Compared, in_noise_units, judge_output
from ingot.verify.metrics import measure
from ingot.verify.slices import View, independent_share

pytestmark = pytest.mark.smoke


def judged(
    float_: Tensor, graph: Tensor, artefact: Tensor, axis: int = 1, groups: list[int] | None = None,
    rerun: Rerun | None = None,
) -> OutputCheck:  # fmt: skip
    """Tensors of [batches, …]; `axis` is the channel axis of a batch, `groups` the joined group of each channel."""
    shape = [-1 if i == axis else 1 for i in range(float_.dim() - 1)]
    channels = torch.arange(float_.shape[axis + 1]).view(shape).expand(float_.shape[1:])
    joined = None if groups is None else torch.tensor(groups).view(shape).expand(float_.shape[1:])
    origins = [Origin(joined, channels)] * len(float_)
    return judge_output("y", replace(compared(float_, graph, artefact), origins=origins, rerun=rerun), 10.0)


def compared(float_: Tensor, graph: Tensor, artefact: Tensor) -> Compared:
    f, g, a = (list(t.float()) for t in (float_, graph, artefact))
    return Compared(f, g, a)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rounded(x: Tensor, step: float) -> Tensor:
    return (x / step).round() * step


# ---- exact figures ----


def test_figures_of_a_wrong_channel() -> None:
    """Noise 0.1 everywhere; one of eight channels is off by 1: ten times its noise, 20 dB below its signal of 10."""
    signs = torch.ones(4, 1, 8, 16)
    signs[..., ::2] = -1
    float_ = 10 * signs
    graph = float_ + 0.1 * signs.flip(-2)
    artefact = graph.clone()
    artefact[:, :, 3] += 1
    check = judged(float_.double(), graph.double(), artefact.double())
    assert check.disagrees
    assert check.worst is not None
    assert (check.worst.kind, check.worst.index, check.worst.of, check.worst.values) == ("channel", 3, 8, 64)
    assert check.worst.noise_ratio == pytest.approx(10, rel=1e-3)
    assert check.worst.graph_db == pytest.approx(20.0, abs=0.1)
    assert check.worst.chance < 1e-6
    assert check.problem is not None
    assert "disagree: SQNR 20.0 dB in channel 3 of 8, 10 times its rounding noise (limit 2)" in check.problem
    assert "64 values" in check.problem


def test_groups_have_noise_and_sqnr_of_their_own() -> None:
    float_ = torch.cat([640 * normal(4, 1, 3, 50), normal(4, 1, 2, 50, seed=1)], 2)
    graph = float_ + torch.cat([6.4 * normal(4, 1, 3, 50, seed=2), 0.1 * normal(4, 1, 2, 50, seed=3)], 2)
    check = judged(float_, graph, graph, groups=[0, 0, 0, 1, 1])
    assert check.problem is None
    assert check.groups_db == pytest.approx((40, 20), abs=0.8)
    assert check.worst_channel_db == pytest.approx(19.5, abs=1.0)
    assert judged(float_, graph, graph).groups_db == ()


def test_the_noise_of_neighbours_that_are_copies_counts_once() -> None:
    white = normal(64, 4096)
    keys = torch.arange(64).view(-1, 1).expand(64, 4096)
    assert independent_share([white], View("channel", [keys], 64)) > 0.95
    copies = normal(64, 256).repeat_interleave(16, 1)
    assert independent_share([copies], View("channel", [keys], 64)) == pytest.approx(1 / 11, rel=0.15)


def test_float_noise_is_measured() -> None:
    float_ = normal(4, 1, 8, 16)
    in_double = float_ + 1e-3 * normal(4, 1, 8, 16, seed=1)
    given = compared(float_, float_, float_ + 8e-3)
    assert judge_output("y", given, 10.0).disagrees
    assert judge_output("y", replace(given, in_double=list(in_double.float())), 10.0).problem is None


def test_half_precision_rounds_coarsely() -> None:
    """Half an ulp is no disagreement in the type that has it; it is one in a finer type."""
    float_ = normal(4, 1, 8, 16)
    ulps = 1 + 2.0**-11 * normal(4, 1, 8, 16, seed=1)
    for dtype, passes in ((torch.float16, True), (torch.float32, False)):
        f, a = (list(t.to(dtype)) for t in (float_, float_ * ulps))
        assert (judge_output("y", Compared(f, f, a), 10.0).problem is None) is passes
    wrong = [-t for t in float_.half()]
    assert judge_output("y", Compared(list(float_.half()), list(float_.half()), wrong), 10.0).disagrees


def test_what_varies_by_rounding_only_is_constant() -> None:
    float_ = 3 + 1e-7 * normal(4, 1, 8, 16)
    constant = torch.full_like(float_, 3.01)
    assert judge_output("y", compared(float_, constant, constant), 10.0).problem is None
    varies = 3 + 1e-3 * normal(4, 1, 8, 16)
    assert str(judge_output("y", compared(varies, constant, constant), 10.0).problem).startswith("dead")


def test_an_output_that_is_rounding_noise_of_the_float_model() -> None:
    """It is no failure that other noise comes out; larger errors are one."""
    float_ = 1e-8 * normal(4, 1, 8, 16)
    noisy = list((1e-6 * normal(4, 1, 8, 16, seed=1)).float())
    for size, passes in ((1e-7, True), (1e-5, False)):
        artefact = float_ + size * normal(4, 1, 8, 16, seed=2)
        given = compared(float_, artefact, artefact)
        assert str(judge_output("y", given, 10.0).problem).startswith("far")
        assert (judge_output("y", replace(given, noisy_reference=lambda run: noisy), 10.0).problem is None) is passes


def test_integers_at_a_tie_of_the_float_model_are_no_failure() -> None:
    """x / |x| cut to an integer is 0 or 1, as rounding has it."""
    ones, zeros = (torch.full((4, 16), n) for n in (1, 0))
    given = Compared(list(ones), list(zeros), list(zeros))
    noise = torch.Generator().manual_seed(0)

    def near_a_tie(run: int) -> list[torch.Tensor]:
        return list(torch.randint(0, 2, (4, 16), generator=noise))

    assert judge_output("y", replace(given, noisy_reference=near_a_tie), 10.0).problem is None
    for sure in (None, lambda run: list(ones)):
        assert str(judge_output("y", replace(given, noisy_reference=sure), 10.0).problem).startswith("far")


def test_other_types_and_shapes_are_named() -> None:
    y = torch.arange(12).view(3, 4)
    assert judge_output("y", Compared([y], [y], [y.int()]), 10.0).problem == "dtype torch.int32 instead of torch.int64"
    z = y.float()
    assert (
        judge_output("y", Compared([z], [z], [z.double()]), 10.0).problem
        == "dtype torch.float64 instead of torch.float32"
    )
    assert judge_output("y", Compared([z], [z], [z.T]), 10.0).problem == "shape (4, 3) instead of (3, 4)"
    assert judge_output("y", Compared([z], [z], [z]), 10.0).problem is None


def test_empty_scalar_and_complex_outputs() -> None:
    for y in (torch.zeros(0, 4), torch.tensor(3.0), torch.randn(2, 3, dtype=torch.complex64)):
        assert judge_output("y", Compared([y, y], [y, y], [y, y]), 10.0).problem is None
    wrong = torch.tensor([1 + 1j, 2 - 1j])
    assert judge_output("y", Compared([wrong], [wrong], [wrong.conj().resolve_conj()]), 10.0).problem


# ---- no false alarms ----


def _hardly_used(f: Tensor) -> Tensor:
    """Half of the channels vary by less than a step."""
    f = f.clone()
    f[:, :, ::2] *= 1e-3
    return f


NOISES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "normal": lambda f, seed: f + 0.05 * normal(*f.shape, seed=seed),
    "uniform": lambda f, seed: f + 0.05 * torch.erf(normal(*f.shape, seed=seed)),
    "a step": lambda f, seed: rounded(f + 0.03 * normal(*f.shape, seed=seed), 0.1),
    "a step, hardly used channels": lambda f, seed: rounded(_hardly_used(f) + 0.02 * normal(*f.shape, seed=seed), 0.1),
    "channels that differ": lambda f, seed: (
        f + 0.3 * normal(*f.shape, seed=seed) * torch.logspace(-2, 0, f.shape[2], dtype=torch.float64)[:, None]
    ),
    "few values": lambda f, seed: f + normal(*f.shape, seed=seed) * (normal(*f.shape, seed=seed + 7) > 1.5) * 0.2,
    "few values, the same": lambda f, seed: f + normal(*f.shape, seed=seed) * (f > 1.5) * 0.2,
    "neighbours alike": lambda f, seed: (
        f + 0.1 * normal(*f.shape[:-1], -(-f.shape[-1] // 4), seed=seed).repeat_interleave(4, -1)[..., : f.shape[-1]]
    ),
}


@pytest.mark.parametrize("noise", list(NOISES))
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 8), st.sampled_from([1, 2, 4, 10, 100, 1000]), st.integers(1, 30), st.integers(0, 10_000))
def test_two_independent_roundings_of_one_net_pass(
    noise: str, batches: int, channels: int, size: int, seed: int
) -> None:
    float_ = normal(batches, 1, channels, size if channels < 1000 else 1, seed=seed)
    float_ = _hardly_used(float_) if "hardly" in noise else float_
    graph, artefact, *others = (NOISES[noise](float_, 20 * seed + k) for k in range(10))
    check = judged(float_, graph, artefact, rerun=lambda i: list(others[i].float()))
    assert check.problem is None or check.sqnr_db < 10 or "dead: every" in check.problem  # these are useless anyway


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 8), st.sampled_from([1, 2, 10, 300]), st.integers(1, 40), st.floats(0, 0.03), st.integers(0, 999))
def test_ties_that_round_to_the_other_side_pass(
    batches: int, channels: int, size: int, share: float, seed: int
) -> None:
    float_ = 5 * normal(batches, 1, channels, size, seed=seed)
    graph, artefact = (rounded(float_ + 0.1 * share * normal(*float_.shape, seed=seed + k), 0.1) for k in (1, 2))
    assert judged(float_, graph, artefact).problem is None


def test_a_classifier_with_channels_that_take_one_step_only() -> None:
    """1000 classes, four images, 40 dB: what a class varies by may be less than a step of all classes."""
    means = 3 * normal(1, 1, 1000, seed=1)
    spread = torch.logspace(-3, 0, 1000, dtype=torch.float64)[
        torch.randperm(1000, generator=torch.Generator().manual_seed(2))
    ]
    float_ = means + spread * normal(4, 1, 1000, seed=3)
    graph, artefact = (rounded(float_ + 0.02 * normal(4, 1, 1000, seed=4 + k), 0.08) for k in (0, 1))
    assert int((artefact.amax(0) == artefact.amin(0)).sum()) > 100
    check = judged(float_, graph, artefact)
    assert check.problem is None
    assert 35 < check.sqnr_db < 45


def test_bins_that_are_hardly_ever_used() -> None:
    """A pitch net: 360 sigmoids, of which the data reaches a third; the others stay near zero."""
    at = torch.linspace(20, 140, 24, dtype=torch.float64).view(4, 6, 1)
    bins = torch.arange(360, dtype=torch.float64)
    float_ = 0.9 * torch.exp(-((bins - at) ** 2) / 50) + 2e-3 * torch.rand(
        4, 6, 360, generator=torch.Generator().manual_seed(0)
    )
    graph, artefact = (rounded(float_ + 2e-3 * normal(4, 6, 360, seed=k), 1 / 256) for k in (1, 2))
    check = judged(float_, graph, artefact)
    assert check.problem is None
    assert 30 < check.sqnr_db < 40


# ---- mutants ----

MUTATIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "negate": lambda t, c: -t[:, :, c],
    "zero": lambda t, c: 0 * t[:, :, c],
    "scale": lambda t, c: 1.3 * t[:, :, c],
    "shift": lambda t, c: t[:, :, c] + 0.3,
    "swap": lambda t, c: t[:, :, c - 1],
    "roll": lambda t, c: t[:, :, c].roll(1, -1),
}


@pytest.mark.parametrize("mutation", list(MUTATIONS))
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.sampled_from([2, 3, 10, 100]), st.integers(8, 60), st.booleans(), st.integers(0, 10_000))
def test_a_channel_off_by_twice_its_noise_fails(
    mutation: str, channels: int, size: int, diverged: bool, seed: int
) -> None:
    float_ = normal(6, 1, channels, size, seed=seed)
    graph = rounded(float_ + 0.03 * normal(*float_.shape, seed=seed + 1), 0.1)
    good = rounded(float_ + 0.03 * normal(*float_.shape, seed=seed + 2), 0.1) if diverged else graph
    assert judged(float_, graph, good).problem is None
    made, c = good.clone(), seed % channels
    made[:, :, c] = MUTATIONS[mutation](good, c)
    check = judged(float_, graph, made)
    assert check.problem is not None
    assert check.disagrees


def test_small_channels_beside_large_ones() -> None:
    """Boxes in pixels, scores of one: in the whole output every mutant of the scores is below the noise."""
    boxes, scores = 640 * normal(8, 1, 4, 36), normal(8, 1, 4, 36, seed=1)
    float_ = torch.cat([boxes, scores], 2)
    graph = torch.cat([rounded(boxes, 5.0), rounded(scores, 0.008)], 2)
    groups = [0] * 4 + [1] * 4
    assert judged(float_, graph, graph, groups=groups).problem is None
    for c in range(5, 8):
        for mutate in MUTATIONS.values():
            made = graph.clone()
            made[:, :, c] = mutate(graph, c)
            check = judged(float_, graph, made, groups=groups)
            assert check.sqnr_db > 35
            assert check.disagrees, check


def test_a_group_that_is_drowned_in_a_shared_step_fails() -> None:
    float_ = torch.cat([640 * normal(8, 1, 4, 36), normal(8, 1, 4, 36, seed=1)], 2)
    graph = rounded(float_, 5.0)
    check = judged(float_, graph, graph, groups=[0] * 4 + [1] * 4)
    assert not check.disagrees
    assert check.problem is not None
    assert "joined group 1 of 2 is far from the float model: SQNR" in check.problem


def test_a_channel_that_rounding_has_ruined_fails() -> None:
    float_ = normal(8, 1, 10, 36)
    graph = float_ + 0.02 * normal(8, 1, 10, 36, seed=1)
    graph[:, :, 4] = float_[:, :, 4].mean()
    check = judged(float_, graph, graph)
    assert check.problem is not None
    assert "quantization has ruined channel 4 of 10" in check.problem
    assert not check.disagrees


# ---- integers ----


def test_integers_are_equal_but_for_ties() -> None:
    want = torch.randint(0, 9, (1, 40, 40), generator=torch.Generator().manual_seed(0))
    near_tie = torch.rand(want.shape, generator=torch.Generator().manual_seed(1)) < 0.05

    def rerun(run: int) -> list[Tensor]:
        coin = torch.rand(want.shape, generator=torch.Generator().manual_seed(2 + run)) < 0.5
        return [want + (near_tie & coin)]

    assert integer_mismatch([want], [want], rerun) is None
    assert integer_mismatch([want], rerun(99), rerun) is None
    wrong = want.clone()
    wrong[0, 3] = wrong[0, 3].roll(1)
    said = integer_mismatch([want], [wrong], rerun)
    assert said is not None
    assert "integers differ where the graph is not near a tie" in said
    one = want.clone()
    one[~near_tie] += torch.arange(int((~near_tie).sum())) == 5
    assert integer_mismatch([want], [one], lambda run: [want]) is not None


# ---- what is left of the plain metrics ----


def test_measure_of_integers_is_the_share_that_differs() -> None:
    want = torch.arange(100)
    assert measure([want], [want + (want < 10)]).sqnr_db == pytest.approx(10.0)
    assert measure([want], [want]).sqnr_db == 200.0


@pytest.mark.parametrize(("wrong", "of", "passes"), [(1, 6, True), (2, 8, True), (5, 6, False), (120, 600, False)])
def test_few_integers_that_differ_say_little(wrong: int, of: int, passes: bool) -> None:
    """Class numbers of six images, one of which flips: more than a tenth, and no more than chance."""
    want = torch.arange(of).view(of, 1)
    got = torch.where(want < wrong, want + 1, want)
    check = judge_output("y", Compared(list(want), list(got), list(got)), 10.0)
    assert (check.problem is None) is passes


@pytest.mark.parametrize("fill", [-1e9, torch.finfo(torch.float32).min, 65504.0])
@pytest.mark.parametrize("noise", [0.01, 3.0])
def test_mask_fills_are_no_signal(fill: float, noise: float) -> None:
    """Without them scores that are lost would have the SQNR of the fill."""
    float_ = normal(4, 1, 8, 16)
    masked = torch.zeros(4, 1, 8, 16, dtype=torch.bool)
    masked[..., 11:] = True
    graph = (float_ + noise * normal(4, 1, 8, 16, seed=1)).masked_fill(masked, fill)
    check = judged(float_.masked_fill(masked, fill), graph, graph)
    assert check.sqnr_db == pytest.approx(-20 * math.log10(noise), abs=1.5)
    assert (check.problem is None) is (noise < 1)


def test_a_fill_that_is_lost_is_no_fill() -> None:
    float_ = normal(4, 1, 8, 16)
    float_[..., 11:] = -1e9
    lost = float_.clone()
    lost[0, 0, 0, 12] = 0.0
    assert judged(float_, float_, lost).problem is not None


def test_ones_of_a_sure_softmax_are_no_fills() -> None:
    """They are all the signal there is: without them the rounded tails would be far from the float model."""
    float_ = torch.softmax(normal(4, 10, 6, seed=2) * 1e3, -1)
    assert 0 < float(float_[float_ < 1].max()) < 1e-4
    graph = (float_ * 255).round() / 255
    assert judged(float_, graph, graph).problem is None


def test_units_are_those_of_the_noise() -> None:
    float_ = normal(2, 1, 3, 5)
    differences, db = in_noise_units(compared(float_, float_ + 0.1, float_ + 0.3))
    assert float(differences.noise[0].mean()) == pytest.approx(1.0)
    assert float(differences.graph[1].mean()) == pytest.approx(2.0)
    assert db[0] == pytest.approx(20 * math.log10(float(float_.square().mean().sqrt()) / 0.3))
