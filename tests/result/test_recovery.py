"""A backend that fails on an op costs that op: real programs that kill XNNPACK and Arm's tools, and the runtime."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.errors import ArtefactError, LowerError, NoKernelError, NoRuntimeError
from ingot.result import lower_and_verify
from ingot.targets.xnnpack import constraints
from tests.support import failing_backend
from tests.support.requirements import need
from tests.support.wrong_kernels import (
    Net,
    dying_on,
    sharpened,
    sigmoid_for_tanh,
)
from tests.support.wrong_kernels import register as register_wrong_kernels

F = nn.functional
IMAGES = [(torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(i)),) for i in range(3)]


class Between(nn.Module):
    """Something between two convolutions."""

    def __init__(self, middle: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.after, self.middle = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1), middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.middle(self.before(x).relu()))


def in_seven_dimensions(x: torch.Tensor) -> torch.Tensor:
    blocks = x.reshape(1, 2, 4, 4, 3, 4, 3).permute(0, 2, 1, 4, 3, 6, 5)
    return blocks.sigmoid().reshape(1, 8, 12, 12)


WORDS = "Attempting to convert non-NHWC compatible node to NHWC"


@pytest.fixture
def dying() -> Iterator[None]:
    """XNNPACK's serializer fails at each hardswish, in words that do not name it."""
    with dying_on("aten.hardswish.default", WORDS):
        yield


dies = pytest.mark.usefixtures("dying")


class Cancelling(nn.Module):
    """Products that are a million times larger than their sum."""

    def __init__(self) -> None:
        super().__init__()
        eye = torch.eye(8)
        self.register_buffer("weight", torch.cat([1000 * eye, -1000 * eye, 1e-4 * eye], 1)[:, :, None, None])
        self.weight: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(torch.cat([x, x.abs(), x], 1), self.weight)


def cast(middle: Any, target: str = "xnnpack", **recipe: Any) -> ingot.Casting:
    net = Between(middle).eval()
    return ingot.cast(net, IMAGES[0], target=target, calibration=IMAGES, recipe=recipe or None)


def fails_without_recovery(middle: Any, target: str, **recipe: Any) -> str:
    """What the backend says where nothing is recovered: the verbs one by one."""
    program = ingot.capture(Between(middle).eval(), IMAGES[0])
    plan = ingot.plan(program, ingot.record(program, IMAGES), target, recipe=recipe)
    with pytest.raises((LowerError, ArtefactError)) as raised:
        ingot.verify(ingot.lower(program, plan), IMAGES)
    return str(raised.value)


@pytest.fixture
def lowerings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    real = lower_and_verify.lower_graph

    def counted(*args: Any) -> Any:
        made.append(args)
        return real(*args)

    monkeypatch.setattr(lower_and_verify, "lower_graph", counted)
    return made


def test_a_cast_without_failures_is_lowered_once(lowerings: list[Any]) -> None:
    casting = cast(torch.relu)
    assert len(lowerings) == 1
    assert not any("fails on" in note for note in casting.notes)


@dies
def test_an_op_that_kills_a_pass_of_xnnpack_runs_on_the_host() -> None:
    assert WORDS in fails_without_recovery(F.hardswish, "xnnpack")
    casting = cast(F.hardswish)
    assert casting.check is not None
    assert casting.check.passed
    assert casting.delegates
    reasons = {h.reason for h in casting.host_ops}
    assert reasons == {f"xnnpack fails on it: AssertionError: {WORDS}"}
    assert any("hardswish (test_recovery.py:" in n and "on the host" in n for n in casting.notes)
    assert any('host_ops = ["hardswish"]' in n for n in casting.notes)


@dies
def test_the_recipe_that_a_note_gives_needs_no_search(lowerings: list[Any]) -> None:
    casting = cast(F.hardswish, host_ops=["hardswish"])
    assert len(lowerings) == 1
    assert {h.reason for h in casting.host_ops} == {"the recipe keeps it on the host"}


@dies
def test_a_plan_keeps_what_was_barred() -> None:
    casting = cast(F.hardswish)
    plan = ingot.Plan.from_json(casting.plan.to_json())
    program = ingot.capture(Between(F.hardswish).eval(), IMAGES[0])
    again = ingot.lower(program, plan)
    assert again.pte == casting.pte
    assert [h.reason for h in again.host_ops] == [h.reason for h in casting.host_ops]


@dies
def test_a_saved_casting_can_be_checked_again(tmp_path: Any) -> None:
    casting = ingot.Casting.load(cast(F.hardswish).save_folder(tmp_path / "out"))
    assert ingot.verify(casting, IMAGES).passed
    assert "hardswish" in casting.needed_evidence.target.lowering.barred
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["settings"]["host_ops"].keys() == {"hardswish"}


def test_an_op_that_crashes_the_runtime_runs_in_another_precision() -> None:
    said = fails_without_recovery(Cancelling(), "xnnpack", noise_vs_latency=0.0)
    assert "signal SIGABRT" in said or "does not load" in said  # memory is corrupted: both were seen
    casting = cast(Cancelling(), noise_vs_latency=0.0)
    assert casting.check is not None
    assert casting.check.passed
    assert not casting.host_ops, "float inside the delegate was possible"
    assert casting.plan.qparams("conv2d_1") is None
    assert casting.plan.qparams("conv2d") is not None or casting.plan.qparams("relu") is not None
    assert any("fails on conv2d_1" in n and "inside the delegate, in float" in n for n in casting.notes)


def test_a_light_op_is_moved_where_a_heavy_one_could_be() -> None:
    casting = cast(F.mish)
    assert casting.check is not None
    assert casting.check.passed
    assert not any("convolution" in h.op for h in casting.host_ops)


@pytest.mark.parametrize(("name", "words"), [("hang", "seconds and was killed"), ("crash", "signal SIGSEGV")])
def test_an_op_on_which_a_backend_hangs_or_crashes_runs_on_the_host(name: str, words: str) -> None:
    net, recipe = Between(F.hardswish).eval(), {"extra_backends": [failing_backend.register(name)]}
    casting = ingot.cast(net, IMAGES[0], target="xnnpack", calibration=IMAGES[:1], recipe=recipe)
    assert casting.check is not None
    assert casting.check.passed
    assert {d.backend for d in casting.delegates} == {"XnnpackBackend"}
    assert casting.host_ops
    assert all(words in h.reason for h in casting.host_ops)
    assert casting.plan.settings["host_ops"].keys() == {"hardswish"}


def test_an_op_with_which_a_file_does_not_load_runs_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """XNNPACK's own runtime refuses more than six dimensions; Ingot would not give it such an op otherwise."""
    monkeypatch.setattr(constraints, "MAX_DIMENSIONS", 99)
    words = "Failed to define tensor"
    refused = fails_without_recovery(in_seven_dimensions, "xnnpack")
    assert "does not load" in refused
    assert words in refused
    casting = cast(in_seven_dimensions)
    assert casting.check is not None
    assert casting.check.passed
    assert {"conv2d", "conv2d_1"} <= {v for d in casting.delegates for v in d.values}
    moved = casting.plan.settings["host_ops"].keys()
    assert moved <= {"reshape", "view", "permute", "sigmoid", "reshape_1", "view_1"}
    assert all(words in h.reason for h in casting.host_ops)
    assert all(any(f"fails on {name} (test_recovery.py:" in n for n in casting.notes) for name in moved)


def test_an_op_whose_kernel_is_wrong_runs_elsewhere_and_a_note_says_so() -> None:
    net = Net(torch.tanh).eval()
    with sigmoid_for_tanh():
        casting = ingot.cast(net, IMAGES[0], target="xnnpack", calibration=IMAGES)
        with pytest.raises(ingot.MismatchError, match="tanh"):
            ingot.cast(net, IMAGES[0], target="xnnpack", calibration=IMAGES, recipe={"recover": False})
    assert casting.check is not None
    assert casting.check.passed
    assert casting.plan.settings["host_ops"].keys() == {"tanh"}
    assert any("is wrong at tanh (wrong_kernels.py:" in n for n in casting.notes)
    assert all("disagrees with the quantized graph on the same inputs" in h.reason for h in casting.host_ops)


def test_a_wrong_op_that_nothing_else_can_run_is_a_mismatch() -> None:
    register_wrong_kernels()
    net, recipe = Net(sharpened).eval(), {"extra_backends": ["doubling"]}
    with pytest.raises(ingot.MismatchError, match="sharpen"):
        ingot.cast(net, IMAGES[0], target="xnnpack", calibration=IMAGES, recipe=recipe)


def test_a_recovery_searches_no_longer_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further search has what the earlier ones left of `localize_seconds`; the first has all of it."""
    register_wrong_kernels()
    given, real = list[float | None](), lower_and_verify.diagnose

    def noted(casting: Any, batches: Any, tick: Any, seconds: float | None) -> Any:
        given.append(seconds)
        return real(casting, batches, tick, seconds)

    monkeypatch.setattr(lower_and_verify, "diagnose", noted)
    net, recipe = Net(sharpened).eval(), {"extra_backends": ["doubling"], "localize_seconds": 30.0}
    with pytest.raises(ingot.MismatchError):
        ingot.cast(net, IMAGES[0], target="xnnpack", calibration=IMAGES, recipe=recipe)
    first, *others = given
    assert first is None
    assert others
    assert all(seconds is not None and seconds <= 30.0 for seconds in others)


@dies
def test_failures_behind_each_other_are_all_recovered() -> None:
    """The runtime fails on a convolution of a program that was not even lowered at first."""
    casting = cast(nn.Sequential(nn.Hardswish(), Cancelling()), noise_vs_latency=0.0)
    assert casting.check is not None
    assert casting.check.passed
    assert casting.plan.settings["host_ops"].keys() == {"hardswish"}
    assert casting.plan.qparams("conv2d_1") is None, "in float inside the delegate"
    assert [any(words in n for n in casting.notes) for words in (WORDS, "fails on conv2d_1")] == [True, True]


def test_an_op_that_nothing_can_run_is_refused_with_its_line() -> None:
    with pytest.raises((LowerError, ArtefactError), match=r"sharpen.*where: .*test_recovery\.py:\d+"):
        cast(sharpened)
    with pytest.raises(NoKernelError, match=r"nothing can run lgamma"):
        cast(lambda x: torch.lgamma(x + 1))


@dies
def test_without_time_the_refusal_says_so() -> None:
    with pytest.raises(LowerError) as raised:
        cast(F.hardswish, localize_seconds=0.0)
    assert WORDS in str(raised.value)
    assert "localize_seconds = 0 was too short to find the op on which it fails" in str(raised.value)


def test_where_no_op_helps_the_refusal_has_the_backends_words_and_a_way_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any) -> Any:
        raise LowerError("xnnpack refused the program", why="OSError: its licence has expired", hint="buy another")

    monkeypatch.setattr(lower_and_verify, "lower_graph", dies)
    with pytest.raises(LowerError) as raised:
        cast(torch.relu)
    assert "OSError: its licence has expired; the program fails without any one op" in str(raised.value)
    assert "--reduce repro.py" in str(raised.value)


def test_a_refusal_without_a_reason_or_a_hint_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any) -> Any:
        raise LowerError("the delegate cannot be read")

    monkeypatch.setattr(lower_and_verify, "lower_graph", dies)
    with pytest.raises(LowerError) as raised:
        cast(torch.relu)
    assert "None" not in str(raised.value)


def test_a_runtime_that_does_not_start_is_no_fault_of_an_op(
    lowerings: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: Any) -> Any:
        raise NoRuntimeError("the runtime did not start", why="undefined symbol", hint="reinstall ExecuTorch")

    monkeypatch.setattr(lower_and_verify, "run_and_compare", absent)
    with pytest.raises(NoRuntimeError) as raised:
        cast(torch.relu)
    assert len(lowerings) == 1
    assert "without any one op" not in str(raised.value)


@dies
def test_recovery_can_be_switched_off(lowerings: list[Any]) -> None:
    with pytest.raises(LowerError, match=WORDS):
        cast(F.hardswish, recover=False)
    assert len(lowerings) == 1


def test_what_cannot_be_recovered_can_be_kept() -> None:
    net = Between(lambda x: torch.lgamma(x + 1)).eval()
    casting = ingot.cast(net, IMAGES[0], target="xnnpack", calibration=IMAGES, on_mismatch="keep")
    assert casting.check is not None
    assert not casting.check.passed
    assert "nothing can run lgamma" in str(casting.check.culprit)


def test_a_host_op_that_the_program_does_not_have_is_refused() -> None:
    with pytest.raises(ingot.InputError, match=r"host_ops names 'rleu'.*did you mean 'relu'"):
        cast(torch.relu, host_ops=["rleu"])


def test_an_op_that_kills_arms_passes_runs_elsewhere() -> None:
    """48-bit sums need a multiplier that TOSA cannot express; in int8 they do not."""
    asked = {"scopes": [{"op": "*", "precision": "int16"}]}
    assert "Shift should be in range [2, 62]" in fails_without_recovery(Cancelling(), need("ethos-u55-128"), **asked)
    casting = cast(Cancelling(), "ethos-u55-128", **asked)
    assert casting.check is not None
    assert casting.check.passed
    assert any("Shift should be in range [2, 62]; it runs inside the delegate, in int8" in n for n in casting.notes)
    assert {d.qparams.dtype for d in casting.plan if d.point.node == "conv2d_1" and d.qparams} <= {"int8", "int32"}
    assert casting.plan.qparams("relu").dtype == "int16"


def test_arms_tools_leave_no_files_whether_a_lowering_fails_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    casting = cast(Cancelling(), need("ethos-u55-128"), scopes=[{"op": "*", "precision": "int16"}])
    assert any("Shift should be in range" in n for n in casting.notes), "a lowering has failed"
    assert all("graph.tosa" in d.files for d in casting.delegates)
    assert casting.edge_program is not None
    assert not list(tmp_path.glob("ingot-tosa-*"))


@dies
def test_an_op_of_a_program_with_dynamic_shapes_runs_on_the_host() -> None:
    net = Between(F.hardswish).eval()
    shapes = {"x": {0: torch.export.Dim("batch", min=1, max=4)}}
    batches = [(x.repeat(2, 1, 1, 1),) for (x,) in IMAGES]
    casting = ingot.cast(net, batches[0], target="xnnpack", calibration=batches, dynamic_shapes=shapes)
    assert casting.check is not None
    assert casting.check.passed
    assert casting.plan.settings["host_ops"].keys() == {"hardswish"}


ROWS = [(torch.randn(4, 64, generator=torch.Generator().manual_seed(i)),) for i in range(2)]


@dies
@pytest.mark.parametrize("weights", ["8da8w", "8da4w"])
def test_weight_only_casts_recover_too(weights: str) -> None:
    """Linears are not moved: the host has no kernels for what quantizes their inputs at run time."""
    net = nn.Sequential(nn.Linear(64, 64), nn.Hardswish(), nn.Linear(64, 32)).eval()
    casting = ingot.cast(net, ROWS[0], target="xnnpack", calibration=ROWS, weights=weights)
    assert casting.check is not None
    assert casting.check.passed
    assert casting.plan.settings["host_ops"].keys() == {"hardswish"}
    assert {h.reason.split(":")[0] for h in casting.host_ops} == {"xnnpack fails on it"}
    assert {v for d in casting.delegates for v in d.values} >= {"linear", "linear_1"}


def test_a_weight_only_layer_that_only_the_backend_can_run_is_refused_in_its_words() -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval()
    with dying_on("aten.linear.default", "out of registers"), pytest.raises(LowerError, match="out of registers"):
        ingot.cast(net, ROWS[0], target="xnnpack", calibration=ROWS, weights="8da8w")
