"""Other programs rely on these names. A change here is a change of the public contract."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys

import ingot
from ingot.core.artefact import Check, Delegate, HostOp, OutputCheck, ProgramIO, TensorInfo
from ingot.result.casting import Casting


def fields(kind: type) -> set[str]:
    return {f.name for f in dataclasses.fields(kind)}


def test_verbs() -> None:
    parameters = inspect.signature(ingot.cast).parameters
    assert list(parameters)[:2] == ["model", "example_inputs"]
    assert set(parameters) >= {"target", "calibration", "recipe", "dynamic_shapes", "weights", "on_mismatch"}
    assert parameters["on_mismatch"].default == "raise"
    for verb in ("capture", "record", "plan", "lower", "verify", "localize", "reduce", "targets"):
        assert inspect.isfunction(getattr(ingot, verb)), verb


def test_data() -> None:
    assert fields(Casting) >= {"pte", "delegates", "host_ops", "io", "plan", "check", "timings"}
    assert fields(Delegate) >= {"backend", "ops", "inputs", "outputs"}
    assert fields(HostOp) == {"op", "name", "source", "reason", "hint"}
    assert fields(ProgramIO) == {"inputs", "outputs"}
    assert fields(TensorInfo) == {"name", "dtype", "shape", "layout", "scale", "zero_point", "qmin", "qmax"}
    assert fields(Check) >= {"executed_on", "outputs", "passed", "culprit"}
    assert fields(OutputCheck) >= {"sqnr_db", "max_abs_error"}
    assert callable(Casting.save)
    assert callable(Casting.report)
    for method in ("why", "diff", "to_json", "from_json"):
        assert callable(getattr(ingot.Plan, method))


def test_the_boundary_as_json() -> None:
    x = TensorInfo("x", "int8", (1, "n"), "channels_last", 1 / 127, 0, -127, 127)
    data = json.loads(ProgramIO((x,), (TensorInfo("y", "float32", (1,)),)).to_json())
    assert TensorInfo(**{**data["inputs"][0], "shape": tuple(data["inputs"][0]["shape"])}) == x
    assert data["outputs"][0]["scale"] is None


def test_all_errors_are_ingots() -> None:
    for name in (
        "InputError",
        "CaptureError",
        "PlanError",
        "LowerError",
        "TargetError",
        "ArtefactError",
        "MismatchError",
    ):
        assert issubclass(getattr(ingot, name), ingot.IngotError)


def test_a_verb_survives_the_import_of_its_package() -> None:
    import ingot.plan.plan_data
    import ingot.targets.base

    assert inspect.isfunction(ingot.plan)
    assert inspect.isfunction(ingot.targets)


def test_import_costs_nothing() -> None:
    code = "import sys, ingot; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_xnnpack_users_need_no_other_backend() -> None:
    status = {t.name: t for t in ingot.targets()}
    assert status["xnnpack"].installed
    assert not status["xnnpack"].missing
