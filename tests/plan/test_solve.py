"""The parts of the solver, each against a slower computation of the same answer."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Graph

import ingot
from ingot.calibrate.histogram import observe, sparse_histogram
from ingot.calibrate.sensitivity import operand_key
from ingot.calibrate.statistics import Stats
from ingot.plan.lut_alignment import slope_discontinuities
from ingot.plan.mask_fills import bulk_range
from ingot.plan.mincut import PairwiseEnergy, minimize
from ingot.plan.noise_model import quantization_errors
from ingot.plan.plan_data import QParams
from ingot.plan.pointwise_consumers import pointwise_function
from ingot.plan.preferred_zero_points import with_preferred_zero_point
from ingot.plan.qparams import qparams_for, round_down_to_bits, weight_qparams, with_multiplier_bits
from ingot.plan.range_estimators import CLIPPING_ESTIMATORS, estimate_qparams
from ingot.plan.scale_groups import DisjointSets
from ingot.targets.base import Format
from tests.support.requirements import need

INT8 = Format("int8", -128, 127, symmetric=False)
INT16 = Format("int16", -32767, 32767, symmetric=True)
WEIGHT = Format("int8", -127, 127, symmetric=True)


@st.composite
def energies(draw: st.DrawFn) -> tuple[list, list[list[float]], list[tuple[int, int, list[float]]]]:
    graph = Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(draw(st.integers(1, 7)))]
    price = st.integers(0, 20).map(float)
    unary = [[draw(price), draw(price)] for _ in nodes]
    pairs = list(itertools.combinations(range(len(nodes)), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=12)) if pairs else []
    # Submodular: c00 + c11 <= c01 + c10.
    edges = [(a, b, [0.0, draw(price), draw(price), 0.0]) for a, b in chosen]
    return nodes, unary, edges


def cost(assignment: tuple[int, ...], unary: list[list[float]], edges: list[tuple[int, int, list[float]]]) -> float:
    own = sum(c[s] for c, s in zip(unary, assignment, strict=True))
    return own + sum(c[2 * assignment[a] + assignment[b]] for a, b, c in edges)


def _entry(table: dict[tuple[str, str], float], x: str, y: str) -> float:
    return table[x, y]


@settings(max_examples=300, deadline=None)
@given(energies())
def test_the_cut_is_the_best_of_all_assignments(drawn: Any) -> None:
    nodes, unary, edges = drawn
    energy, pair = PairwiseEnergy(), ("int8", "float")
    for node, c in zip(nodes, unary, strict=True):
        energy.add_node(node, dict(zip(pair, c, strict=True)), pair)
    for a, b, c in edges:
        table = {(x, y): c[2 * i + j] for i, x in enumerate(pair) for j, y in enumerate(pair)}
        energy.add_edge(nodes[a], nodes[b], pair, pair, partial(_entry, table))
    found = minimize(energy)
    assignment = tuple(pair.index(found[n]) for n in nodes)
    best = min(cost(a, unary, edges) for a in itertools.product((0, 1), repeat=len(nodes)))
    assert cost(assignment, unary, edges) == pytest.approx(best)


def test_sensitivity_is_the_squared_jacobian() -> None:
    """Of a linear map y = A x the sensitivity to x is |A|^2 / |y|^2, on average over the probes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 40, bias=False), nn.Linear(40, 200, bias=False))
    x = torch.randn(1, 6)
    program = ingot.capture(net, (x,))
    ranges = ingot.record(program, [(x,)])
    whole = net[1].weight @ net[0].weight
    exact = float(whole.square().sum() / net(x).square().sum())
    assert ranges.sensitivity["linear"] == pytest.approx(
        float(net[1].weight.square().sum() / net(x).square().sum()), rel=0.5
    )
    assert ranges.sensitivity[operand_key("linear", "input_1", 0)] == pytest.approx(exact, rel=0.5)


class Joined(nn.Module):
    """Boxes in pixels beside scores."""

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.cat([boxes * 640, scores.sigmoid()], 1).flatten(2).transpose(1, 2)


def test_joined_groups_weigh_alike() -> None:
    """An error that ruins the small group is no small one."""
    batches = [(torch.rand(1, 4, 8, 8), torch.randn(1, 6, 8, 8) - 2) for _ in range(4)]
    ranges = ingot.record(program := ingot.capture(Joined(), batches[0]), batches)
    outputs = [program.module(*b)[0] for b in batches[:2]]
    scores = torch.stack([y[..., 4:].square().mean() for y in outputs]).mean()
    measured = ranges.sensitivity[next(n.name for n in program.module.graph.nodes if "cat" in n.name)]
    assert isinstance(measured, float)
    assert measured == pytest.approx(0.5 / float(scores), rel=0.3)  # 1 / power of each group, on average


@pytest.mark.parametrize("target", ["xnnpack", "ethos-u55-128"])
def test_a_group_that_int8_would_ruin_gets_a_wider_precision(target: str) -> None:
    need(target)
    batches = [(torch.rand(1, 4, 8, 8), torch.randn(1, 6, 8, 8) - 2) for _ in range(4)]
    casting = ingot.cast(Joined(), batches[0], target=target, calibration=batches)
    assert casting.check is not None
    assert min(casting.check.outputs[0].groups_db) > 25


@pytest.mark.parametrize("estimator", ["auto", "mse", "entropy", "percentile:99"])
def test_the_fill_value_of_a_pad_is_not_clipped(estimator: str) -> None:
    class Padded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.pad(x.relu(), (1, 1), value=-7.5) * 2

    batches = [(torch.randn(1, 4, 8, 32),) for _ in range(4)]
    program = ingot.capture(Padded(), batches[0])
    plan = ingot.plan(program, ingot.record(program, batches), "xnnpack", recipe={"range": estimator})
    found = plan.qparams(next(n.name for n in program.module.graph.nodes if "pad" in n.name))
    assert found is None or found.representable_range[0] <= -7.5 + float(found.scale)  # type: ignore[arg-type]
    casting = ingot.cast(Padded(), batches[0], target="xnnpack", calibration=batches, recipe={"range": estimator})
    assert casting.check is not None
    assert casting.check.outputs[0].sqnr_db > 25


def test_zeros_have_the_scale_of_what_they_are_added_to() -> None:
    class Added(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * 1e-6 + y

    batches = [(torch.randn(1, 4, 8, 8), torch.zeros(1, 4, 8, 8)) for _ in range(4)]
    plan = ingot.plan(program := ingot.capture(Added(), batches[0]), ingot.record(program, batches), "xnnpack")
    tiny, zeros = plan.qparams("add", 0), plan.qparams("add", 1)
    assert tiny is not None
    assert zeros is not None
    assert zeros.scale == pytest.approx(tiny.scale)


def test_each_use_of_a_value_has_its_own_sensitivity() -> None:
    net = Two()
    x = torch.randn(4, 8)
    program = ingot.capture(net.eval(), (x,))
    sensitivity = ingot.record(program, [(x,)]).sensitivity
    strong, weak = (sensitivity[operand_key(n, "tanh", 0)] for n in ("linear", "linear_1"))
    assert strong > 1000 * weak
    assert sensitivity["tanh"] >= strong / 2


class Two(nn.Module):
    """One value with two consumers, of large and of small weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.strong, self.weak = nn.Linear(8, 8), nn.Linear(8, 8)
        self.weak.weight.data *= 1e-3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        return self.strong(y) + self.weak(y)


def test_noise_is_predicted() -> None:
    """The predicted SQNR against the measured one, on a net with cats and a residual."""
    from tests.support.digits import digits, fitted

    x, y = digits()
    batches = [(x[i : i + 8],) for i in range(0, 128, 8)]
    recipe = {"noise_vs_latency": 0.0}
    casting = ingot.cast(fitted(x, y), batches[0], target="xnnpack", calibration=batches, recipe=recipe)
    (note,) = [n for n in casting.notes if "predicted SQNR" in n]
    predicted = float(note.split(": ")[1].split()[0])
    assert predicted == pytest.approx(casting.check.outputs[0].sqnr_db, abs=4)


def test_less_noise_costs_time() -> None:
    """The more time halving the noise may cost, the more ops run in float."""
    model, batches = Outliers(), [(torch.randn(4, 16),) for _ in range(8)]
    program = ingot.capture(model.eval(), batches[0])
    ranges = ingot.record(program, batches)
    floats = []
    for share_of_time in (0.0, 0.3, 10.0):
        plan = ingot.plan(program, ranges, "xnnpack", recipe={"noise_vs_latency": share_of_time})
        floats.append(sum(d.qparams is None and "float" in d.rule for d in plan))
    assert floats[0] <= floats[1] <= floats[2]
    assert floats[0] < floats[2]


class Outliers(nn.Module):
    """One channel is a hundred times as large as the rest, and the outputs depend on the others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.wide, self.head = nn.Linear(16, 16), nn.Linear(16, 8)
        self.wide.weight.data[0] *= 100
        self.head.weight.data[:, 0] *= 0.001

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.wide(x) + 1.0)


def stats_of(x: torch.Tensor) -> Stats:
    m = observe(x.reshape(-1))
    raw = np.bincount(m.bins, minlength=1 << 13).astype(np.uint32)
    return Stats(m.low, m.high, m.count, m.nonfinite, m.neginf, sparse_histogram(raw))


def distribution_of(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    return x.double().numpy(), np.full(len(x), 1 / len(x))


@pytest.mark.parametrize("estimator", [*CLIPPING_ESTIMATORS, "auto", "minmax", "percentile:99"])
def test_every_estimator_gives_a_range_inside_the_measured_one(estimator: str) -> None:
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    qparams, _ = estimate_qparams(distribution_of(x), (float(x.min()), float(x.max())), INT8, estimator)
    low, high = qparams.representable_range
    slack = qparams.scale
    assert float(x.min()) - slack <= low < 0 < high <= float(x.max()) + slack


def test_the_chosen_range_has_the_least_error() -> None:
    """A rare outlier is clipped if that costs little, a frequent one never."""
    x = torch.cat([torch.randn(5000, generator=torch.Generator().manual_seed(0)), torch.tensor([60.0])])
    value_range, distribution = (float(x.min()), float(x.max())), distribution_of(x)
    auto, _ = estimate_qparams(distribution, value_range, INT8, "auto")
    others = [estimate_qparams(distribution, value_range, INT8, e)[0] for e in (*CLIPPING_ESTIMATORS, "minmax")]
    least = quantization_errors(distribution, others).min()
    assert quantization_errors(distribution, [auto])[0] <= least * 1.03
    often = torch.cat([x, torch.full((500,), 60.0)])
    kept, _ = estimate_qparams(distribution_of(often), value_range, INT8, "auto")
    assert kept.representable_range[1] > 55


def test_a_constant_value_is_quantized_exactly() -> None:
    qparams, _ = estimate_qparams(distribution_of(torch.full((9,), 3.0)), (3.0, 3.0), INT8, "auto")
    assert (qparams.qmax - qparams.zero_point) * qparams.scale == pytest.approx(3.0)
    assert qparams_for(0.0, 0.0, INT8).scale > 0


@pytest.mark.parametrize("fill", [-1e9, -3.4e38, -1e4])
def test_mask_fill_values_are_found(fill: float) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    x[::3] = fill
    low, high = bulk_range(stats_of(x))
    assert -5 < low < 0 < high < 5


def test_outliers_are_not_mask_fill_values() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    x[5] = -300.0
    assert bulk_range(stats_of(x)) is None
    assert bulk_range(stats_of(torch.randn(100) * 1e6)) is None


def test_the_path_through_a_scale_group_is_explained() -> None:
    groups: DisjointSets[int] = DisjointSets()
    for a, b in ((1, 2), (2, 3), (3, 4), (1, 9)):
        groups.union(a, b, f"{a}-{b}")
    paths, at, path = groups.paths_to(1), 4, []
    while at != 1:
        at, why = paths[at]
        path.append(why)
    assert path == ["3-4", "2-3", "1-2"]
    assert not groups.same(1, 77)
    assert len(list(groups.groups())) == 1  # the question about 77 added no member


@pytest.mark.parametrize(
    ("op", "args", "pointwise"),
    [
        (torch.ops.aten.tanh.default, (), True),
        (torch.ops.aten.gelu.default, (), True),
        (torch.ops.aten.clamp.default, (-1, 1), True),
        (torch.ops.aten.softmax.int, (0,), False),
        (torch.ops.aten.cumsum.default, (0,), False),
        (torch.ops.aten.sort.default, (), False),
        (torch.ops.aten.max_pool2d.default, ([2, 2],), False),
    ],
)
def test_pointwise_ops_are_found_by_experiment(op: Any, args: Any, pointwise: bool) -> None:
    graph = Graph()
    found = pointwise_function(graph.call_function(op, (graph.placeholder("x"), *args)))
    assert (found is not None) == pointwise


class Saturated(nn.Module):
    """Most results of the first layer are large, where tanh is flat."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(16, 32), act, nn.Linear(32, 4)
        nn.init.normal_(self.first.weight, std=2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x).reshape(1, 4, 8, -1)).reshape(-1, 32))


def test_a_pointwise_function_sees_each_element_alone() -> None:
    """reshape(-1) of a vector is the vector; of a matrix of candidates it would not be the matrix."""
    graph, x = Graph(), np.linspace(-2, 2, 12).reshape(3, 4)
    for op, args in ((torch.ops.aten.reshape.default, ([-1],)), (torch.ops.aten.tanh.default, ())):
        function = pointwise_function(graph.call_function(op, (graph.placeholder("x"), *args)))
        assert function(x).shape == x.shape
        assert np.array_equal(function(x)[1], function(x[1]))


def test_errors_are_seen_through_a_pointwise_consumer() -> None:
    """Also behind a reshape; with a second consumer of the same value nothing is clipped."""
    batches = [(torch.randn(4, 16, generator=torch.Generator().manual_seed(i)),) for i in range(8)]
    kept = {}
    for name, act in (("tanh", nn.Tanh()), ("both", Both())):
        torch.manual_seed(0)
        program = ingot.capture(Saturated(act), batches[0])
        ranges = ingot.record(program, batches)
        low, high = ranges.values["linear"].min, ranges.values["linear"].max
        plan = ingot.plan(program, ranges, "xnnpack", recipe={"range": "mse", "dynamic_activations": False})
        qlow, qhigh = plan.qparams("linear").representable_range
        kept[name] = (qhigh - qlow) / (high - low)
    assert kept["tanh"] < 0.6
    assert kept["both"] > 0.9


class Both(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh() + x


def test_weight_scales_give_multipliers_of_few_bits() -> None:
    """Rounding to as many bits recovers them. No scale becomes smaller, or the largest weight would be clipped."""
    weight = weight_qparams(torch.randn(64, 8, generator=torch.Generator().manual_seed(0)), WEIGHT, 0)
    x, out = qparams_for(-1.3, 2.1, INT16), qparams_for(-7.7, 5.2, INT16)
    aligned = with_multiplier_bits(weight, x, out, 15)
    scales: Any = weight.scale, aligned.scale
    for before, after in zip(*scales, strict=True):
        mantissa = np.frexp(x.scale * after / out.scale)[0] * 2**15
        assert abs(mantissa - round(mantissa)) < 2**-7
        assert before * (1 - 1e-6) <= after <= before * (1 + 2**-14)
    assert with_multiplier_bits(aligned, x, out, 15).scale == pytest.approx(aligned.scale, rel=1e-7)


def test_multipliers_are_rounded_down_to_few_bits() -> None:
    assert [round_down_to_bits(x, 3) for x in (0.9, 5 / 8, 5 / 8 - 1e-9, 3.2)] == [7 / 8, 5 / 8, 5 / 8, 3.0]


@pytest.mark.parametrize(("zero", "wanted", "found"), [(1, True, 0), (-1, True, 0), (2, True, 2), (0, False, -1), (3, False, 3)])  # fmt: skip
def test_a_zero_point_moves_by_one_step_and_the_range_stays(zero: int, wanted: bool, found: int) -> None:
    before = QParams("int8", 0.5, zero, -128, 127)
    after = with_preferred_zero_point(before, wanted)
    assert after.zero_point == found
    assert after.scale <= before.scale * 128 / 127
    assert after.representable_range[0] <= before.representable_range[0] + 1e-6
    assert after.representable_range[1] >= before.representable_range[1] - 1e-6


def test_slope_discontinuities_are_found() -> None:
    found = {op: slope_discontinuities(_function(op)).tolist() for op in ("hardswish", "silu", "exp", "relu")}
    assert found == {"hardswish": [-3, 3], "silu": [], "exp": [], "relu": [0]}


def _function(op: str) -> Any:
    graph = Graph()
    return pointwise_function(graph.call_function(getattr(torch.ops.aten, op).default, (graph.placeholder("x"),)))
