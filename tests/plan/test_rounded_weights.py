"""GPTQ and clipping in static plans: less error in products, codes that are plain data and are replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.calibrate.second_moments import has_rows, record_second_moments
from ingot.capture.op_semantics import operands
from ingot.core.fx import constant_of
from ingot.plan.plan_data import Plan
from ingot.plan.rounded_weights import packed_codes
from ingot.plan.simulated_quantization import Simulation
from ingot.plan.weight_rounding import error_feedback, rounded_codes
from tests.support.requirements import need

INT4 = {"scopes": [{"op": "conv2d", "weights": "int4"}, {"op": "linear", "weights": "int4"}]}


def test_gptq_makes_less_error_in_products_than_rounding_to_nearest() -> None:
    """Of several groups at once, each with its own inputs; their inputs are correlated."""
    torch.manual_seed(0)
    x = torch.randn(3, 500, 6) @ torch.randn(3, 6, 24) + 0.1 * torch.randn(3, 500, 24)
    weight, moment = torch.randn(3, 10, 24), x.transpose(1, 2) @ x / 500
    scales = weight.abs().amax(-1) / 7
    codes = rounded_codes(weight, scales, error_feedback(moment.clone())[0], (-7, 7))
    nearest = (weight / scales[..., None]).round()
    errors = [((c * scales[..., None] - weight) @ x.transpose(1, 2)).square().sum((1, 2)) for c in (codes, nearest)]
    assert bool((errors[0] < 0.5 * errors[1]).all())
    assert bool((codes == codes.round()).all())
    assert float(codes.abs().max()) <= 7
    alone = rounded_codes(weight[1:2], scales[1:2], error_feedback(moment[1:2].clone())[0], (-7, 7))
    assert torch.equal(alone[0], codes[1])


OPS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Linear(6, 5, bias=False), (2, 7, 6)),
    (nn.Conv2d(6, 4, 3, padding=1, bias=False), (2, 6, 5, 5)),
    (nn.Conv2d(6, 8, (3, 2), stride=2, dilation=(2, 1), groups=2, bias=False), (1, 6, 9, 9)),
    (nn.Conv2d(6, 12, 3, padding=2, groups=6, bias=False), (1, 6, 5, 5)),
    (nn.Conv1d(6, 4, 3, stride=2, padding=1, dilation=2, bias=False), (3, 6, 11)),
]


@pytest.mark.parametrize(("op", "shape"), OPS)
def test_second_moments_are_of_what_the_weight_is_multiplied_with(op: nn.Module, shape: tuple[int, ...]) -> None:
    """w @ moment @ w is the power of what the op gives."""
    batches: list[tuple[Tensor, ...]] = [(torch.randn(*shape),) for _ in range(3)]
    module = ingot.capture(op, batches[0]).module
    node = next(n for n in module.graph.nodes if n.op == "call_function" and has_rows(n))
    found = record_second_moments(module, batches, [node])[node]
    weight = constant_of(operands(node)[1])
    assert weight is not None
    rows = weight.detach().reshape(len(found.total), -1, found.total.shape[-1])
    power = torch.einsum("grw,gwv,grv->", rows, found.total, rows)
    expected = sum(float(module(*b)[0].square().sum()) for b in batches)
    assert float(power) == pytest.approx(expected, rel=1e-4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, 2), nn.Conv2d(16, 24, 3)
        self.head = nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.a(x).relu()).relu().mean((2, 3)))


def recorded(count: int = 24) -> tuple[ingot.Program, ingot.Ranges, list[tuple[Tensor, ...]]]:
    """Smooth images: neighbours are correlated. Twenty batches to record, the rest unseen."""
    torch.manual_seed(0)
    small = (torch.randn(2, 3, 4, 4) for _ in range(count))
    batches: list[tuple[Tensor, ...]] = [(nn.functional.interpolate(x, size=14, mode="bilinear"),) for x in small]
    program = ingot.capture(Net().eval(), batches[0])
    return program, ingot.record(program, batches[:20]), batches[20:]


def noise(program: ingot.Program, plan: Plan, batches: list[tuple[Tensor, ...]]) -> float:
    with torch.no_grad():
        simulation = Simulation.of(program.module, batches)
        outputs, _ = simulation.run(plan, correct_biases=False)
    pairs = [(e[0], a[0]) for e, a in zip(simulation.float_results, outputs, strict=True)]
    return sum(float((e - a).square().sum()) for e, a in pairs) / sum(float(e.square().sum()) for e, _ in pairs)


def test_int4_weights_on_arm_have_less_noise_on_unseen_data() -> None:
    need("ethos-u55-128")
    program, ranges, unseen = recorded()
    off = {**INT4, "round_weights": "nearest", "correct_biases": False}
    nearest, rounded = (
        ingot.plan(program, ranges, "ethos-u55-128", recipe=r) for r in (off, {**off, "round_weights": "auto"})
    )
    assert not nearest.rounded_weights
    assert len(rounded.rounded_weights) == 3
    casting = ingot.lower(program, rounded)
    form = casting.needed_evidence.program
    assert noise(form, rounded, unseen) < 0.7 * noise(form, nearest, unseen)
    check = ingot.verify(casting, unseen)
    assert check.passed
    assert check.outputs[0].faithful_db > 60
    assert "weights of 3 ops rounded by GPTQ" in rounded.notes[-1]


def test_the_quantized_graph_has_the_codes_of_the_plan() -> None:
    """On a target with float biases; asked for, since its weights have 8 bits. Replayed from JSON."""
    program, ranges, unseen = recorded()
    plan = ingot.plan(program, ranges, "xnnpack", recipe={"range": "minmax"})
    weights = [n for n in program.module.graph.nodes if n.op == "call_function" and has_rows(n)]
    codes = {n.name: torch.randint(-20, 20, constant_of(n.args[1]).shape) for n in weights}
    coarse = replace(plan, rounded_weights={name: packed_codes(c) for name, c in codes.items()}, bias_corrections={})
    again = Plan.from_json(coarse.to_json())
    assert again.rounded_weights == coarse.rounded_weights
    assert "conv2d: different rounding of the weight" in plan.diff(coarse)
    casting = ingot.lower(program, again)
    with torch.no_grad():
        outputs, _ = Simulation.of(program.module, unseen).run(again, correct_biases=False)
        expected = [torch.utils._pytree.tree_leaves(casting.needed_evidence.quantized(*b))[0] for b in unseen]
    for (got,), want in zip(outputs, expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_a_recipe_asks_for_gptq_of_all_weights_or_of_none() -> None:
    program, ranges, _ = recorded()
    made = {how: ingot.plan(program, ranges, "xnnpack", recipe={"round_weights": how}) for how in ("nearest", "auto")}
    assert made["nearest"].decisions == made["auto"].decisions  # of 8 bits: to the nearest
    with pytest.raises(ingot.InputError, match="round_weights"):
        ingot.plan(program, ranges, "xnnpack", recipe={"round_weights": "sometimes"})


@pytest.mark.parametrize(
    ("name", "codes", "says"),
    [
        ("nothing", packed_codes(torch.zeros(8)), "no such op"),
        ("relu", packed_codes(torch.zeros(8)), "no such op"),
        ("conv2d", packed_codes(torch.zeros(8)), "it needs 432 codes from -127 to 127"),
        ("conv2d", packed_codes(torch.full((432,), -128)), "it needs 432 codes from -127 to 127"),
        ("conv2d", "no base64 at all", "cannot be read"),
        ("conv2d", "AAAA", "cannot be read"),
    ],
)
def test_edited_codes_are_checked(name: str, codes: str, says: Any) -> None:
    program, ranges, _ = recorded(4)
    plan = replace(ingot.plan(program, ranges, "xnnpack"), rounded_weights={name: codes})
    with pytest.raises(ingot.PlanError, match=says):
        ingot.lower(program, plan)
