"""What must hold for every graph, tried on random ones: the plan, its replay, and the artefact that is made of it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Interpreter, Node

import ingot
from ingot.capture.op_semantics import Kind, effect_of, operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.config.recipe import Recipe
from ingot.core.fx import calls, constant_of, is_float
from ingot.plan.plan_data import Plan, QParams
from ingot.quantize.pt2e import quantize
from ingot.rewrite.apply import rewrite_for
from ingot.targets.registry import find_target
from tests.support.graphs import Drawn, Net, batches_of, programs, reordered

pytestmark = pytest.mark.parts
XNNPACK = find_target("xnnpack")
RANDOM = st.randoms(use_true_random=False)


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Iterator[None]:
    """Tensors this small gain nothing from threads; torch lists its composite ops anew for each of a thousand exports."""
    threads, patch = torch.get_num_threads(), pytest.MonkeyPatch()
    listed = cache(torch._export.utils._collect_all_valid_cia_ops)
    for user in (torch.export.exported_program, torch.export.decomp_utils):
        patch.setattr(user, "_collect_all_valid_cia_ops", lambda: set(listed()))
    torch.set_num_threads(1)
    yield
    patch.undo()
    torch.set_num_threads(threads)


PART = 30
IN_TEST, IN_ALL = 2, 10  # parts of `make test`, and with `make long`
PARTS = [
    pytest.param(i, id=f"{i * PART}-{(i + 1) * PART - 1}", marks=[pytest.mark.long] if i >= IN_TEST else [])
    for i in range(IN_ALL)
]


def tried(check: Callable[..., None], *what: Any, part: int) -> None:
    """One part of the graphs, the same every time; no explain phase, which runs a failing graph hundreds of times."""
    of = settings(
        max_examples=PART,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    of(seed(part)(given(*what)(check)))()


def planned(drawn: Drawn) -> tuple[ingot.Program, ingot.Ranges, Plan]:
    """From fresh modules: nothing is kept between two of these."""
    batches = batches_of(drawn)
    program = ingot.capture(Net(drawn).eval(), batches[0])
    ranges = ingot.record(program, batches)
    return program, ranges, ingot.plan(program, ranges, "xnnpack")


def legal_form(program: ingot.Program) -> GraphModule:
    return rewrite_for(program, XNNPACK, Recipe()).program.module


@pytest.mark.parametrize("part", PARTS)
def test_plan_replay_and_artefact(part: int) -> None:
    tried(check_all, programs(), RANDOM, part=part)


def check_all(drawn: Drawn, random: Any) -> None:
    program, plan = check_plan(drawn, random)
    check_artefact(program, plan, batches_of(drawn))


def check_plan(drawn: Drawn, random: Any) -> tuple[ingot.Program, Plan]:
    """All that can be seen without lowering."""
    program, ranges, plan = planned(drawn)
    assert planned(drawn)[2].to_json() == plan.to_json(), "two plans of one model"
    check_names(program, ranges, plan, random)
    form = legal_form(program)
    check_movers(form, plan)
    check_creators(form, plan)
    made = quantize(form, plan, float_bias=XNNPACK.numerics.bias == "float")
    check_replay(form, made, plan)
    check_no_factory_is_rounded(made)
    return program, plan


# ---- a: what moves keeps its numbers ----


def check_movers(form: GraphModule, plan: Plan) -> None:
    for node in calls(form):
        stored = plan.qparams(node.name)
        if stored is not None and is_float(node) and weight_axis(node) is None:
            effect = effect_of(node, constant_of)
            for i in effect.carriers if effect.kind is Kind.MOVES else ():
                assert plan.qparams(node.name, i) == stored, f"{node.name} moves numbers from one scale to another"


# ---- e: what is created has no scale of its own ----


def check_creators(form: GraphModule, plan: Plan) -> None:
    for node in calls(form):
        if plan.qparams(node.name) is not None:
            assert effect_of(node, constant_of).kind is not Kind.CREATES, f"{node.name} creates, and is annotated"


def check_no_factory_is_rounded(made: GraphModule) -> None:
    for node in calls(made):
        if is_quantize(node):
            source = operands(node)[0]
            assert source.op != "call_function" or operands(source), f"{source.name} is a factory, and rounded"


# ---- f: the converted graph is the plan, read off the graph without the audit ----


def is_quantize(node: Node) -> bool:
    return "quantized_decomposed.quantize" in str(node.target)


def is_dequantize(node: Node) -> bool:
    return "quantized_decomposed.dequantize" in str(node.target)


def check_replay(form: GraphModule, made: GraphModule, plan: Plan) -> None:
    found = {n.name: n for n in made.graph.nodes}
    for node in calls(form):
        check_made(found[node.name], plan.qparams(node.name))
        for i, (before, now) in enumerate(zip(operands(node), operands(found[node.name]), strict=True)):
            check_read(before, now, plan.qparams(node.name, i), plan.qparams(before.name))


def check_made(node: Node, planned: QParams | None) -> None:
    """Whoever reads what is stored reads it through one rounding, with the planned numbers."""
    readers = [u for u in node.users if is_quantize(u)]
    if planned is None:
        return
    assert readers == list(node.users), f"{node.name} is read unrounded"
    assert {numbers_of(r) for r in readers} == {numbers_in(planned)}, f"{node.name} is rounded in another way"


def check_read(before: Node, now: Node, planned: QParams | None, stored: QParams | None) -> None:
    """An operand is dequantized as planned; one without a plan of its own, as it was stored; or else it is float."""
    wanted = planned or stored
    if wanted is None:
        assert not is_dequantize(now), f"{before.name} should be float here"
    elif wanted.dtype == "int32":
        check_on_grid(now, wanted)
    else:
        assert is_dequantize(now), f"{before.name} should be {wanted} here"
        assert numbers_of(now) == numbers_in(wanted)
        check_pair(operands(now)[0], wanted)


def check_pair(source: Node, wanted: QParams) -> None:
    """What is dequantized was quantized by the same numbers: by an op, or once and for all in a constant."""
    if is_quantize(source):
        assert numbers_of(source) == numbers_in(wanted)
    else:
        constant = constant_of(source)
        assert constant is not None
        assert str(constant.dtype) == f"torch.{wanted.dtype}"
        assert int(constant.min()) >= wanted.qmin
        assert int(constant.max()) <= wanted.qmax


def check_on_grid(bias: Node, wanted: QParams) -> None:
    """A bias stays a float constant, at whole steps of the accumulator."""
    constant = constant_of(bias)
    assert constant is not None
    steps = constant.double() / torch.tensor(wanted.scale, dtype=torch.float64)
    assert bool(((steps - steps.round()).abs() <= 1e-6 * steps.abs() + 1e-6).all())


def numbers_of(node: Node) -> tuple[Any, ...]:
    """Of a quantize or dequantize: scale, zero point, axis, limits, dtype."""
    if "per_channel" in str(node.target):
        scale, zero, axis, low, high, dtype = node.args[1:7]
        return plain(scale), plain(zero), axis, low, high, str(dtype)
    scale, zero, low, high, dtype = node.args[1:6]
    return (scale,), (zero,), None, low, high, str(dtype)


def numbers_in(s: QParams) -> tuple[Any, ...]:
    several = s.axis is not None
    return *((s.scale, s.zero_point) if several else ((s.scale,), (s.zero_point,))), s.axis, s.qmin, s.qmax, f"torch.{s.dtype}"  # fmt: skip


def plain(node: Any) -> tuple[Any, ...]:
    constant = constant_of(node)
    assert constant is not None
    return tuple(constant.tolist())


# ---- c: the order of operands decides nothing ----


@pytest.mark.parametrize("part", PARTS)
def test_the_order_of_operands_decides_nothing(part: int) -> None:
    tried(check_order, programs(joined=True), RANDOM, part=part)


def check_order(drawn: Drawn, random: Any) -> None:
    """The joins of a drawn program that end in weights, laid out to suit, and a + b as b + a."""
    orders = {n: random.sample(range(n), n) for n in range(1, 5)}
    one, other = planned(drawn), planned(reordered(drawn, orders.__getitem__))
    pairs = list(zip(calls(legal_form(one[0])), calls(legal_form(other[0])), strict=True))
    assert [(a.name, a.target) for a, _ in pairs] == [(b.name, b.target) for _, b in pairs]
    for a, b in pairs:
        same_qparams(one[2].qparams(a.name), other[2].qparams(b.name), a.name)
        for i, j in matched(a, b):
            same_qparams(one[2].qparams(a.name, i), other[2].qparams(b.name, j), f"{a.name}[{i}]")


def matched(a: Node, b: Node) -> Iterator[tuple[int, int]]:
    """Operands of two nodes that are one value; what is read twice is matched in order. Constants go by their place."""
    free = list(range(len(operands(b))))
    for i, x in enumerate(operands(a)):
        places = [j for j in free if operands(b)[j].name == x.name] or [i]
        free.remove(places[0])
        yield i, places[0]


def same_qparams(a: QParams | None, b: QParams | None, where: str) -> None:
    """Equal, but for what the last bits of a sum in another order do to a range."""
    assert (a is None) == (b is None), where
    if a is not None and b is not None:
        assert (a.dtype, a.qmin, a.qmax, a.axis) == (b.dtype, b.qmin, b.qmax, b.axis), where
        assert scales(a) == pytest.approx(scales(b), rel=1e-5), where
        assert max(abs(x - y) for x, y in zip(zeros(a), zeros(b), strict=True)) <= 1, where


def scales(s: QParams) -> tuple[float, ...]:
    return s.scale if isinstance(s.scale, tuple) else (s.scale,)


def zeros(s: QParams) -> tuple[int, ...]:
    return s.zero_point if isinstance(s.zero_point, tuple) else (s.zero_point,)


# ---- d: nor do names ----


def check_names(program: ingot.Program, ranges: ingot.Ranges, plan: Plan, random: Any) -> None:
    renamed, again = with_other_names(program, ranges, random)
    other = ingot.plan(renamed, again, "xnnpack")
    pairs = list(zip(legal_form(program).graph.nodes, legal_form(renamed).graph.nodes, strict=True))
    names = {a.name: b.name for a, b in pairs}
    assert [a.target for a, _ in pairs if a.op == "call_function"] == [
        b.target for _, b in pairs if b.op == "call_function"
    ]
    assert {(names[d.point.node], d.point.operand): (d.qparams, names.get(d.reads)) for d in plan} == {
        (d.point.node, d.point.operand): (d.qparams, d.reads) for d in other
    }


def with_other_names(program: ingot.Program, ranges: ingot.Ranges, random: Any) -> tuple[ingot.Program, ingot.Ranges]:
    """Every node gets a name whose place in the alphabet is drawn; ranges follow."""
    module = copy.deepcopy(program.module)
    nodes = [n for n in module.graph.nodes if n.op != "output"]
    old = [n.name for n in nodes]
    for node, number in zip(nodes, random.sample(range(len(nodes)), len(nodes)), strict=True):
        node._rename(f"v{number:03d}x")
    module.recompile()
    names = {before: n.name for before, n in zip(old, nodes, strict=True)}
    renamed = replace(program, module=module)
    values = {names[n]: s for n, s in ranges.values.items()}
    rename = re.compile(r"\w+(?=$|\[|<)")
    sensitivity = {rename.sub(lambda m: names.get(m[0], m[0]), key): s for key, s in ranges.sensitivity.items()}
    return renamed, replace(ranges, values=values, sensitivity=sensitivity, fingerprint=renamed.fingerprint)


# ---- g: the artefact computes its quantized graph ----

# A kernel multiplies, adds and rounds in another order than torch: near a tie it takes the other step. How far that may
# move an output is measured on the graph itself: every value is moved by up to a quarter of a step before it is rounded.
NUDGE, RUNS, ROOM = 0.25, 4, 2.0


def check_artefact(program: ingot.Program, plan: Plan, batches: Any) -> None:
    casting = ingot.lower(program, plan)
    artefact = XNNPACK.runner.run(casting.pte, batches, files={}, timeout=60, fresh=False)
    for batch, made in zip(batches, artefact, strict=True):
        check_faithful(casting.evidence.quantized, batch, made)


def check_faithful(graph: GraphModule, batch: tuple[torch.Tensor, ...], made: list[torch.Tensor]) -> None:
    with torch.no_grad():
        want = flat(graph(*batch))
        moved = [flat(Nudged(graph, seed).run(*batch)) for seed in range(RUNS)]
    for i, (w, m, step) in enumerate(zip(want, made, steps_of(graph), strict=True)):
        assert w.shape == m.shape
        tie = max(float((run[i] - w).abs().max()) for run in moved)
        room = ROOM * tie + 1.01 * step + 1e-4 * float(w.abs().max()) + 1e-6
        assert float((w - m).abs().max()) <= room, f"output {i} is off by more than rounding explains ({room:g})"


class Nudged(Interpreter):
    """The quantized graph, with each value moved by a part of a step before it is rounded."""

    def __init__(self, graph: GraphModule, seed: int) -> None:
        super().__init__(graph)
        self.generator = torch.Generator().manual_seed(seed)

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        readers = [u for u in n.users if is_quantize(u) and "per_tensor" in str(u.target)]
        if not readers or n.op == "get_attr":
            return value
        return value + (torch.rand(value.shape, generator=self.generator) * 2 - 1) * NUDGE * float(readers[0].args[1])  # type: ignore[arg-type]


def flat(outputs: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]


def steps_of(graph: GraphModule) -> list[float]:
    """The step that each output is stored in; 0 where it is float."""
    out = next(n for n in graph.graph.nodes if n.op == "output")
    return [float(n.args[1]) if is_dequantize(n) else 0.0 for n in operands(out)]  # type: ignore[arg-type]
