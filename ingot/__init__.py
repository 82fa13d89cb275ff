"""Ingot: any PyTorch model, cast into one quantized ExecuTorch delegate; planned, executed, explained."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.9.0"

# Public name -> the module that has it. Nothing heavy is imported until one is asked for.
_PUBLIC = {
    "cast": "ingot.api",
    "capture": "ingot.api",
    "record": "ingot.api",
    "plan": "ingot.api",
    "lower": "ingot.api",
    "train": "ingot.api",
    "verify": "ingot.api",
    "localize": "ingot.api",
    "reduce": "ingot.verify.minify.reducer",
    "targets": "ingot.api",
    "Program": "ingot.capture.export",
    "Ranges": "ingot.calibrate.statistics",
    "Plan": "ingot.plan.model",
    "Recipe": "ingot.config.recipe",
    "Scope": "ingot.config.scopes",
    "Spec": "ingot.config.specs",
    "Training": "ingot.quantize.qat",
    "Casting": "ingot.result.casting",
    "Check": "ingot.core.artefact",
    "Finding": "ingot.verify.localize.finding",
    "Reduction": "ingot.verify.minify.reducer",
    "IngotError": "ingot.errors",
    "InputError": "ingot.errors",
    "CaptureError": "ingot.errors",
    "PlanError": "ingot.errors",
    "LowerError": "ingot.errors",
    "TargetError": "ingot.errors",
    "ArtefactError": "ingot.errors",
    "MismatchError": "ingot.errors",
}

__all__ = [*_PUBLIC, "__version__"]

if TYPE_CHECKING:
    from ingot.api import capture as capture
    from ingot.api import cast as cast
    from ingot.api import localize as localize
    from ingot.api import lower as lower
    from ingot.api import plan as plan
    from ingot.api import record as record
    from ingot.api import targets as targets
    from ingot.api import train as train
    from ingot.api import verify as verify
    from ingot.calibrate.statistics import Ranges as Ranges
    from ingot.capture.export import Program as Program
    from ingot.config.recipe import Recipe as Recipe
    from ingot.config.scopes import Scope as Scope
    from ingot.config.specs import Spec as Spec
    from ingot.core.artefact import Check as Check
    from ingot.errors import ArtefactError as ArtefactError
    from ingot.errors import CaptureError as CaptureError
    from ingot.errors import IngotError as IngotError
    from ingot.errors import InputError as InputError
    from ingot.errors import LowerError as LowerError
    from ingot.errors import MismatchError as MismatchError
    from ingot.errors import PlanError as PlanError
    from ingot.errors import TargetError as TargetError
    from ingot.plan.model import Plan as Plan
    from ingot.quantize.qat import Training as Training
    from ingot.result.casting import Casting as Casting
    from ingot.verify.localize.finding import Finding as Finding
    from ingot.verify.minify.reducer import Reduction as Reduction
    from ingot.verify.minify.reducer import reduce as reduce


class _Lazy(ModuleType):
    """`ingot.plan` is the verb, although a package `ingot/plan/` exists: importing that must not replace the verb."""

    def __getattr__(self, name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"module 'ingot' has no attribute '{name}'")
        return getattr(importlib.import_module(_PUBLIC[name]), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_PUBLIC})


sys.modules[__name__].__class__ = _Lazy
