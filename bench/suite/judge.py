"""Casts one model of the suite and judges the artefact: by Ingot's check, and by the suite's comparison with eager."""

from __future__ import annotations

import copy
import traceback
from types import SimpleNamespace
from typing import Any

import torch

import ingot
from ingot.verify.check import flat_tensors, run_artefact
from ingot.verify.metrics import measure

# From best to worst: a test with several models has the worst result of them.
RESULTS = ("fine", "invalid", "refused", "check failed", "wrong", "crashed")
ATOL, RTOL = 1e-1, 4e-2  # the suite's own, for every backend
# Elements next to zero of a widely spread int8 output break any elementwise tolerance of that kind. Below this SQNR the
# numbers are wrong; above it they are quantized.
WRONG_DB = 20.0


class IngotRunner:
    """Stands in for the suite's test runner. Keeps a row for each model that the test hands over."""

    _flow = SimpleNamespace(quantize=True)  # what tests ask of a flow

    def __init__(self, target: str) -> None:
        self.target = target
        self.rows: list[dict[str, Any]] = []

    def lower_and_run_model(
        self, model: torch.nn.Module, inputs: Any, generate_random_test_inputs: bool = True, dynamic_shapes: Any = None
    ) -> None:
        self.rows.append(judge(model.eval(), inputs, self.target, dynamic_shapes))


def judge(model: torch.nn.Module, inputs: Any, target: str, dynamic_shapes: Any) -> dict[str, Any]:
    try:
        with torch.no_grad():
            wanted = flat_tensors(model(*copy.deepcopy(inputs)))
    except Exception as e:
        return {"result": "invalid", "why": f"eager: {type(e).__name__}: {_line(e)}"}
    try:
        casting = ingot.cast(model, inputs, target=target, calibration=[inputs], dynamic_shapes=dynamic_shapes)
    except ingot.MismatchError as e:
        return {"result": "check failed", "why": _line(e)}
    except ingot.IngotError as e:
        return {"result": "refused", "why": _line(e), "error": type(e).__name__}
    except Exception as e:  # Ingot promises errors of its own only
        return {"result": "crashed", "why": f"{type(e).__name__}: {_line(e)}", "trace": traceback.format_exc()[-2000:]}
    return _compared(casting, inputs, wanted)


def _compared(casting: Any, inputs: Any, wanted: list[torch.Tensor]) -> dict[str, Any]:
    evidence = casting.needed_evidence
    made = run_artefact(casting.pte, evidence, [evidence.program.flatten(inputs)])[0]
    close, sqnr = within_tolerance(made, wanted), _sqnr(wanted, made)
    kinds = sorted({op.op for op in casting.host_ops})
    facts = {"delegates": len(casting.delegates), "host_ops": len(casting.host_ops), "host_kinds": kinds}
    result = "fine" if close or sqnr >= WRONG_DB else "wrong"
    return {"result": result, "within_tolerance": close, "sqnr_db": round(sqnr, 1), **facts}


def within_tolerance(made: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    """The suite's own function and tolerances."""
    from executorch.backends.test.harness import Tester

    try:
        Tester._compare_outputs(wanted, made, atol=ATOL, rtol=RTOL)
    except AssertionError:
        return False
    return True


def _sqnr(wanted: list[torch.Tensor], made: list[torch.Tensor]) -> float:
    """The worst output's. Shapes and dtypes that differ are -inf."""
    if len(wanted) != len(made) or any(w.shape != m.shape for w, m in zip(wanted, made, strict=True)):
        return float("-inf")
    return min((measure([w], [m]).sqnr_db for w, m in zip(wanted, made, strict=True)), default=float("inf"))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:600]
