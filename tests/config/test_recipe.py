"""UserConstraints of the user: scopes, pins at ops and at the boundary, range methods; refused in words where impossible."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
from torch import Tensor

import ingot
from ingot.calibrate.statistics import Ranges
from ingot.cli import main
from ingot.config.recipe import Recipe, recipe_from
from ingot.config.scopes import Scope
from ingot.config.tensor_specs import Spec
from ingot.plan.plan_data import Plan, QParams, QuantizationPoint


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return self.head(torch.cat([y[:, 4:], y[:, :4]], 1) + y)


BATCHES = [(torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)) * 2 - 1,) for i in range(6)]


@pytest.fixture(scope="module")
def recorded() -> tuple[ingot.Program, Ranges]:
    program = ingot.capture(Net().eval(), BATCHES[0])
    return program, ingot.record(program, BATCHES)


def planned(recorded: Any, **recipe: Any) -> Plan:
    program, ranges = recorded
    return ingot.plan(program, ranges, "xnnpack", recipe=recipe)


def precision(plan: Plan, name: str) -> str:
    (d,) = [d for d in plan if d.point == QuantizationPoint(name)]
    fused = "one kernel" in d.rule
    return "int8" if d.qparams is not None or fused else "float"


@pytest.mark.parametrize(
    "scope",
    [{"path": "head"}, {"name": "conv2d_2"}, {"path": "he*"}, {"type": "Conv2d"}, {"op": "conv2d"}],
)
def test_a_scope_is_an_op_a_type_a_path_or_a_name(recorded: Any, scope: dict[str, str]) -> None:
    plan = planned(recorded, scopes=[{**scope, "precision": "float"}])
    assert precision(plan, "conv2d_2") == "float"
    assert "requested by the recipe" in plan.why("conv2d_2")
    elsewhere = "float" if {"type", "op"} & scope.keys() else "int8"
    assert precision(plan, "conv2d_1") == elsewhere


def test_the_narrower_scope_wins(recorded: Any) -> None:
    scopes = [{"type": "Conv2d", "precision": "float"}, {"path": "head", "precision": "int8"}]
    for order in (scopes, scopes[::-1]):
        plan = planned(recorded, scopes=order)
        assert precision(plan, "conv2d_2") == "int8"
        assert precision(plan, "conv2d") == "float"


def test_scopes_that_contradict_each_other_are_named(recorded: Any) -> None:
    scopes = [{"path": "head", "precision": "float"}, {"name": "conv2d_2", "precision": "int8"}]
    with pytest.raises(ingot.PlanError, match=r"name conv2d_2 asks for int8, path head asks for float"):
        planned(recorded, scopes=scopes)


@pytest.mark.parametrize(
    ("scope", "hint"),
    [({"path": "haed"}, "head"), ({"op": "conv2"}, "conv2d"), ({"type": "Conv2D"}, "Conv2d"), ({"name": "cta"}, "cat")],
)
def test_a_scope_that_matches_nothing_gets_the_nearest_name(recorded: Any, scope: dict[str, str], hint: str) -> None:
    with pytest.raises(ingot.InputError, match=f"matches nothing.*did you mean '{hint}'"):
        planned(recorded, scopes=[{**scope, "precision": "float"}])


def test_what_the_target_cannot_do_is_refused(recorded: Any) -> None:
    with pytest.raises(ingot.PlanError, match=r"cannot run in int16 on xnnpack.*test_recipe\.py:\d+"):
        planned(recorded, scopes=[{"path": "head", "precision": "int16"}])


def test_demands_that_cannot_meet_name_both_rules_and_the_path(recorded: Any) -> None:
    """The cat only moves numbers: what it reads and what it gives are stored alike."""
    scopes = [{"name": "cat", "inputs": ["snorm8"]}, {"name": "cat", "output": {"dtype": "int8", "scale": 0.5}}]
    with pytest.raises(ingot.PlanError) as e:
        planned(recorded, scopes=scopes)
    text = str(e.value)
    for part in (
        "the scope name cat, input 0",
        "the scope name cat, output",
        "cat moves values: input and output share one scale",
        "test_recipe.py:",
    ):
        assert part in text


def test_a_type_that_the_op_does_not_run_in(recorded: Any) -> None:
    with pytest.raises(ingot.PlanError, match="runs in int8, but int16 is requested"):
        planned(recorded, scopes=[{"name": "add", "output": "snorm16"}])


def test_a_pin_inside_is_kept_and_runs(recorded: Any) -> None:
    program, _ = recorded
    plan = planned(recorded, scopes=[{"name": "cat", "output": {"dtype": "int8", "scale": 0.0078125}}])
    assert plan.qparams("cat") == plan.qparams("cat", 0) == QParams("int8", 0.0078125, 0, -128, 127)
    casting = ingot.lower(program, plan)
    assert len(casting.delegates) == 1
    assert ingot.verify(casting, BATCHES).outputs[0].faithful_db > 60


class Square(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return self.b(y * y)


def test_two_positions_of_one_value_may_differ() -> None:
    program = ingot.capture(Square().eval(), BATCHES[0])
    fine, coarse = {"dtype": "int8", "scale": 0.02}, {"dtype": "int8", "scale": 0.04}
    recipe = {"scopes": [{"op": "mul", "inputs": [fine, coarse]}]}
    plan = ingot.plan(program, ingot.record(program, BATCHES), "xnnpack", recipe=recipe)
    assert plan.qparams("mul", 0) != plan.qparams("mul", 1)
    check = ingot.verify(ingot.lower(program, plan), BATCHES)
    assert check.passed
    assert check.outputs[0].faithful_db > 60


def test_inputs_and_outputs_as_asked() -> None:
    recipe = {"inputs": {"x": "snorm8"}, "outputs": ["int8"]}
    casting = ingot.cast(Net().eval(), BATCHES[0], target="xnnpack", calibration=BATCHES, recipe=recipe)
    (x,), (y,) = casting.io.inputs, casting.io.outputs
    assert (x.dtype, x.zero_point, x.qmin, x.qmax) == ("int8", 0, -127, 127)
    assert x.scale == pytest.approx(1 / 127, rel=1e-6)
    assert (y.dtype, y.qmin, y.qmax) == ("int8", -128, 127)
    assert casting.check.passed
    assert len(casting.delegates) == 1
    assert not casting.host_ops


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({"inputs": ["snorm8", None]}, "2 inputs, the model has 1: x"),
        ({"inputs": {"y": "snorm8"}}, "no input 'y'.*x"),
        ({"outputs": ["snrom8"]}, "did you mean 'snorm8'"),
        ({"inputs": [{"dtype": "int7"}]}, "did you mean 'int8'"),
        ({"inputs": [{"dtype": "int8", "scael": 1}]}, "unknown key 'scael' in a tensor spec.*scale"),
        ({"inputs": [{"dtype": "int8", "qmin": -300}]}, "int8 holds -128 … 127"),
        ({"inputs": [{"dtype": "int8", "scale": -1.0}]}, "a scale is positive"),
        ({"scopes": [{"precision": "float"}]}, "exactly one selector of op, type, path, name"),
        ({"scopes": [{"op": "add"}]}, "asks for nothing"),
        ({"scopes": [{"op": "add", "precision": "int9"}]}, "unknown precision 'int9'"),
        ({"scopes": "head"}, "must be a list of tables"),
        ({"range": "mise"}, "did you mean 'mse'"),
        ({"range": "percentile:2"}, "invalid parameter in .percentile:2"),
        ({"rnage": "mse"}, "did you mean 'range'"),
        ({"noise_vs_latency": -1.0}, "'noise_vs_latency' in the recipe.*greater than or equal to 0"),
        ({"options": {"system": "x"}}, "no option 'system'"),
    ],
)
def test_recipes_are_refused_in_words(recorded: Any, recipe: dict, said: str) -> None:
    with pytest.raises(ingot.InputError, match=said):
        planned(recorded, **recipe)


@pytest.mark.parametrize("method", ["minmax", "percentile", "percentile:99.9", "mse", "entropy", "auto"])
def test_every_range_method_casts(recorded: Any, method: str) -> None:
    plan = planned(recorded, range=method)
    assert all(d.qparams for d in plan if d.point == QuantizationPoint("add"))
    if method != "auto":
        assert f"range estimator: {'min-max' if method == 'minmax' else method}" in plan.why("add")


def test_a_scope_has_its_own_range_method(recorded: Any) -> None:
    plan = planned(recorded, range="minmax", scopes=[{"name": "add", "range": "percentile:90"}])
    assert "range estimator: percentile:90" in plan.why("add")
    assert plan.qparams("add").scale < planned(recorded, range="minmax").qparams("add").scale


TOML = """
range = "percentile:99.99"
min_sqnr_db = 15
inputs = ["snorm8"]

[[scopes]]
path = "head"
precision = "float"

[outputs]
conv2d_2 = "float"
"""


def test_one_toml_is_one_plan(recorded: Any, tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text(TOML)
    program, ranges = recorded
    again = ingot.plan(program, ranges, "xnnpack", recipe=file)
    same = Recipe(
        range="percentile:99.99",
        min_sqnr_db=15.0,
        inputs=["snorm8"],  # type: ignore[arg-type]
        scopes=[Scope(path="head", precision="float")],  # type: ignore[arg-type]
        outputs={"conv2d_2": "float"},  # type: ignore[arg-type]
    )
    assert recipe_from(file) == same
    assert hash(same) == hash(recipe_from(file))
    assert ingot.plan(program, ranges, "xnnpack", recipe=same).to_json() == again.to_json()
    assert recipe_from({"inputs": [Spec("int8", 0.5)]}).inputs[0][1].scale == 0.5


def test_the_shell_prints_the_plan_of_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.toml").write_text('[[scopes]]\npath = "head"\nprecision = "float"\n')
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
    (tmp_path / "net.py").write_text(
        code
        + "from tests.config.test_recipe import Net, BATCHES\ndef build():\n    return Net().eval(), BATCHES[0], BATCHES\n"
    )
    arguments = ["plan", f"{tmp_path}/net.py:build", "--target", "xnnpack", "--recipe", f"{tmp_path}/r.toml", "--quiet"]
    printed = []
    for _ in range(2):
        assert main(arguments) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert precision(Plan.from_json(printed[0]), "conv2d_2") == "float"


def test_an_edited_plan_is_replayed(recorded: Any) -> None:
    program, _ = recorded
    plan = planned(recorded)
    data = json.loads(plan.to_json())
    old = plan.qparams("conv2d_2")
    for d in data["decisions"]:
        if d["point"] == {"node": "conv2d_2", "operand": None}:
            d["qparams"]["scale"] *= 2
    edited = Plan.from_json(json.dumps(data))
    assert plan.diff(edited).startswith("conv2d_2: int8")
    casting = ingot.lower(program, edited)
    assert casting.plan.qparams("conv2d_2").scale == pytest.approx(2 * old.scale)
    assert ingot.verify(casting, BATCHES).passed


def edited(plan: Plan, point: QuantizationPoint, **changes: Any) -> Plan:
    def change(d: Any) -> Any:
        return dataclasses.replace(d, qparams=dataclasses.replace(d.qparams, **changes)) if d.point == point else d

    return dataclasses.replace(plan, decisions=tuple(map(change, plan)))


@pytest.mark.parametrize(
    ("point", "changes", "said"),
    [
        (QuantizationPoint("cat"), {"scale": 0.5}, "has the output qparams .*, but its operand . has"),
        (QuantizationPoint("add"), {"scale": 0.0}, "a scale must be positive and finite"),
        (QuantizationPoint("add"), {"zero_point": 999}, "an integer in -128 … 127"),
        (QuantizationPoint("add"), {"dtype": "int16"}, "xnnpack needs int8 there"),
    ],
)
def test_an_edit_that_cannot_be_is_refused(recorded: Any, point: QuantizationPoint, changes: dict, said: str) -> None:
    with pytest.raises(ingot.PlanError, match=said):
        ingot.lower(recorded[0], edited(planned(recorded), point, **changes))


def test_a_point_that_does_not_exist_is_refused(recorded: Any) -> None:
    plan = planned(recorded)
    strange = dataclasses.replace(plan.decisions[-1], point=QuantizationPoint("conv2d_22"))
    with pytest.raises(ingot.PlanError, match=r"does not have.*conv2d_2"):
        ingot.lower(recorded[0], dataclasses.replace(plan, decisions=(*plan, strange)))


class Attention(nn.Module):
    """One head, with a mask written as people write it."""

    mask: Tensor

    def __init__(self, mask: Tensor, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out, self.how = nn.Linear(16, 48), nn.Linear(16, 16), how
        self.register_buffer("mask", mask)
        self.never = float(mask.min())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 4
        if self.how == "add":
            scores = scores + self.mask
        elif self.how == "where":
            scores = torch.where(self.mask == 0, scores, self.mask)
        elif self.how == "fill":
            scores = scores.masked_fill(self.mask != 0, self.never)
        return self.out(scores.softmax(-1) @ v)


@pytest.mark.parametrize("how", ["add", "where", "fill"])
@pytest.mark.parametrize("never", [-torch.inf, -1e9, torch.finfo(torch.float32).min])
def test_masks_cost_nothing(how: str, never: float) -> None:
    batches = [(torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(i)),) for i in range(6)]
    mask = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1) > 0, never)
    plain, masked = (
        ingot.cast(Attention(mask, h).eval(), batches[0], target="xnnpack", calibration=batches)
        .check.outputs[0]
        .sqnr_db
        for h in ("none", how)
    )
    assert masked > plain - 3


LIBRARY = torch.library.Library("ingot_test_recipe", "DEF")
LIBRARY.define("swirl(Tensor x) -> Tensor")
LIBRARY.impl("swirl", lambda x: x.flip(-1).roll(1, -2).contiguous(), "CPU")
LIBRARY.impl("swirl", lambda x: torch.empty_like(x), "Meta")


class Swirl(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.ops.ingot_test_recipe.swirl(self.a(x)))


def test_an_op_never_seen_that_only_moves_is_a_mover() -> None:
    """Registered by the user, with a CPU kernel and nothing declared."""
    from ingot.capture.op_semantics import Kind, effect_of
    from ingot.core.fx import calls, constant_of

    program = ingot.capture(Swirl().eval(), BATCHES[0])
    (swirl,) = [n for n in calls(program.module) if "swirl" in str(n.target)]
    assert effect_of(swirl, constant_of).kind is Kind.MOVES
    plan = ingot.plan(program, ingot.record(program, BATCHES), "xnnpack")
    assert "swirl" in plan.why("swirl")


def test_one_record_serves_every_precision(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning records nothing: neither anew nor more."""
    program, ranges = recorded
    monkeypatch.setattr("ingot.api.record_module", None)
    monkeypatch.setattr("ingot.calibrate.recorder.record_module", None)
    plans = {
        name: ingot.plan(program, ranges, "xnnpack", recipe={"scopes": scopes})
        for name, scopes in {
            "int8": [{"op": "*", "precision": "int8"}],
            "mixed": [{"path": "head", "precision": "float"}],
            "float": [{"op": "*", "precision": "float"}],
        }.items()
    }
    stored = {name: sum(d.qparams is not None for d in plan) for name, plan in plans.items()}
    assert stored["int8"] > stored["mixed"] > stored["float"] == 0


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        ({"name": "conv2d_2", "precision": "float", "output": "snorm8"}, "nothing is quantized there"),
        ({"name": "conv2d_2", "inputs": [None, "snorm8"]}, "that operand is not an activation"),
    ],
)
def test_a_pin_that_cannot_take_effect_is_refused(recorded: Any, scope: dict, said: str) -> None:
    with pytest.raises(ingot.PlanError, match=said):
        planned(recorded, scopes=[scope])


def test_a_pin_between_two_ops_keeps_them_apart(recorded: Any) -> None:
    plan = planned(recorded, scopes=[{"name": "conv2d", "output": {"dtype": "int8", "scale": 0.05}}])
    assert plan.qparams("conv2d") == QParams("int8", 0.05, 0, -128, 127)


def test_the_narrower_pin_wins(recorded: Any) -> None:
    scopes = [{"op": "conv2d", "output": "int8"}, {"name": "conv2d_2", "output": "snorm8"}]
    for order in (scopes, scopes[::-1]):
        assert planned(recorded, scopes=order).qparams("conv2d_2").qmin == -127


def test_scopes_that_agree_are_no_contradiction(recorded: Any) -> None:
    scopes = [{"op": "add", "precision": "int8", "range": "minmax"}, {"name": "add", "precision": "int8"}]
    assert planned(recorded, scopes=scopes).qparams("add")


def test_a_given_scale_that_clips_is_said_and_predicted(recorded: Any) -> None:
    narrow = {"dtype": "int8", "scale": 0.001}
    plan = planned(recorded, inputs=[narrow])
    assert any("values are clipped" in n for n in plan.notes)
    assert plan.qparams("conv2d", 0) == plan.qparams("x")  # nothing is left beyond it: no reader rescales
    (note,) = [n for n in plan.notes if "predicted" in n]
    assert float(note.split(": ")[1].split()[0]) < 10


@pytest.mark.parametrize("spec", ["unorm8", "int16", {"dtype": "int8", "qmin": -100, "qmax": 100}])
def test_other_types_at_the_boundary(spec: Any) -> None:
    batches = [(b.abs(),) for (b,) in BATCHES]
    recipe = {"inputs": [spec]}
    casting = ingot.cast(Net().eval(), batches[0], target="xnnpack", calibration=batches, recipe=recipe)
    assert casting.check.passed
    assert not casting.host_ops
    if isinstance(spec, dict):
        assert (casting.io.inputs[0].qmin, casting.io.inputs[0].qmax) == (-100, 100)


@pytest.mark.parametrize(
    "recipe",
    [
        {"inputs": [{"dtype": "int8", "zero_point": 3.0}]},
        {"scopes": [{"name": 3, "precision": "float"}]},
        {"scopes": [{"name": "add", "range": 3}]},
        {"inputs": [{"dtype": "int8", "scale": float("inf")}]},
    ],
)
def test_wrong_types_are_refused_in_words(recorded: Any, recipe: dict) -> None:
    with pytest.raises(ingot.InputError):
        planned(recorded, **recipe)


@pytest.mark.parametrize(
    ("point", "changes"),
    [
        (QuantizationPoint("add"), {"qmin": -200}),
        (QuantizationPoint("conv2d_2", 1), {"axis": 7}),
        (QuantizationPoint("add"), {"zero_point": -12.5}),
        (QuantizationPoint("add"), {"axis": 0, "scale": (0.1,), "zero_point": (0,)}),
        (QuantizationPoint("conv2d_2", 1), {"axis": None}),
        (QuantizationPoint("conv2d_2", 1), {"scale": 0.1}),
    ],
)
def test_more_edits_that_cannot_be(recorded: Any, point: QuantizationPoint, changes: dict) -> None:
    with pytest.raises(ingot.PlanError, match="cannot be quantized as"):
        ingot.lower(recorded[0], edited(planned(recorded), point, **changes))


def test_biases_follow_an_edit(recorded: Any) -> None:
    program, _ = recorded
    plan = edited(planned(recorded), QuantizationPoint("conv2d", 0), scale=0.05)
    casting = ingot.lower(program, plan)
    weight = casting.plan.qparams("conv2d", 1).scale
    assert casting.plan.qparams("conv2d", 2).scale == pytest.approx(
        tuple(plan.qparams("conv2d", 0).scale * w for w in weight)
    )


def test_plus_infinity_is_no_mask() -> None:
    class Plus(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.b(torch.sigmoid(self.a(x) + y))

    inf = torch.zeros(4, 8).masked_fill(torch.rand(4, 8, generator=torch.Generator().manual_seed(1)) < 0.3, torch.inf)
    batches = [(torch.randn(4, 8, generator=torch.Generator().manual_seed(i)), inf) for i in range(4)]
    casting = ingot.cast(Plus().eval(), batches[0], target="xnnpack", calibration=batches)
    assert casting.check.outputs[0].sqnr_db > 30


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a = ", b"a = " + b"[" * 100_000])
def test_a_file_that_is_no_toml(content: bytes, tmp_path: Path) -> None:
    """No UTF-8, no TOML, nested too deeply."""
    (tmp_path / "recipe.toml").write_bytes(content)
    with pytest.raises(ingot.InputError, match="is not TOML"):
        recipe_from(tmp_path / "recipe.toml")
