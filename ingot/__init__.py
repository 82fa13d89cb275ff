"""Ingot quantizes a PyTorch model for ExecuTorch as one delegate where it can: planned, executed, explained."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

__version__ = "0.10.0"

if TYPE_CHECKING:
    from ingot.api import capture as capture
    from ingot.api import cast as cast
    from ingot.api import localize as localize
    from ingot.api import lower as lower
    from ingot.api import plan as plan
    from ingot.api import record as record
    from ingot.api import reduce as reduce
    from ingot.api import targets as targets
    from ingot.api import train as train
    from ingot.api import verify as verify
    from ingot.backends.base import Backend as Backend
    from ingot.backends.registry import register_backend as register_backend
    from ingot.calibrate.statistics import Ranges as Ranges
    from ingot.capture.export import Program as Program
    from ingot.capture.inputs import Batch as Batch
    from ingot.capture.inputs import Inputs as Inputs
    from ingot.config.recipe import Recipe as Recipe
    from ingot.config.scopes import Scope as Scope
    from ingot.config.tensor_specs import Spec as Spec
    from ingot.core.artefact import Check as Check
    from ingot.core.artefact import Delegate as Delegate
    from ingot.core.artefact import HostOp as HostOp
    from ingot.core.artefact import OutputCheck as OutputCheck
    from ingot.core.artefact import ProgramIO as ProgramIO
    from ingot.core.artefact import SliceCheck as SliceCheck
    from ingot.core.artefact import TensorInfo as TensorInfo
    from ingot.errors import ArtefactError as ArtefactError
    from ingot.errors import CaptureError as CaptureError
    from ingot.errors import GoalError as GoalError
    from ingot.errors import IngotError as IngotError
    from ingot.errors import InputError as InputError
    from ingot.errors import LowerError as LowerError
    from ingot.errors import MismatchError as MismatchError
    from ingot.errors import PlanError as PlanError
    from ingot.errors import TargetError as TargetError
    from ingot.fleet.shards import record_shards as record_shards
    from ingot.fleet.sweep import SweepResult as SweepResult
    from ingot.fleet.sweep import sweep as sweep
    from ingot.goal.goal import Goal as Goal
    from ingot.plan.plan_data import Decision as Decision
    from ingot.plan.plan_data import Plan as Plan
    from ingot.plan.plan_data import QParams as QParams
    from ingot.plan.plan_data import QuantizationPoint as QuantizationPoint
    from ingot.quantize.qat import Training as Training
    from ingot.result.casting import Casting as Casting
    from ingot.result.details.records import Details as Details
    from ingot.targets.base import Target as Target
    from ingot.targets.registry import Availability as Availability
    from ingot.targets.registry import register_target as register_target
    from ingot.verify.localize.finding import Finding as Finding
    from ingot.verify.localize.finding import ValueCheck as ValueCheck
    from ingot.verify.minify.reducer import Reduction as Reduction
    from ingot.weight_only.options import Weights as Weights

# Module -> its public names. Nothing heavy is imported until one is asked for.
_PUBLIC = {
    "ingot.api": (
        "cast",
        "capture",
        "record",
        "plan",
        "lower",
        "train",
        "verify",
        "localize",
        "reduce",
        "targets",
    ),
    "ingot.backends.base": ("Backend",),
    "ingot.backends.registry": ("register_backend",),
    "ingot.calibrate.statistics": ("Ranges",),
    "ingot.capture.export": ("Program",),
    "ingot.capture.inputs": (
        "Batch",
        "Inputs",
    ),
    "ingot.config.recipe": ("Recipe",),
    "ingot.config.scopes": ("Scope",),
    "ingot.config.tensor_specs": ("Spec",),
    "ingot.core.artefact": (
        "Check",
        "Delegate",
        "HostOp",
        "OutputCheck",
        "ProgramIO",
        "SliceCheck",
        "TensorInfo",
    ),
    "ingot.errors": (
        "ArtefactError",
        "CaptureError",
        "GoalError",
        "IngotError",
        "InputError",
        "LowerError",
        "MismatchError",
        "PlanError",
        "TargetError",
    ),
    "ingot.fleet.shards": ("record_shards",),
    "ingot.fleet.sweep": (
        "SweepResult",
        "sweep",
    ),
    "ingot.goal.goal": ("Goal",),
    "ingot.plan.plan_data": (
        "Decision",
        "Plan",
        "QParams",
        "QuantizationPoint",
    ),
    "ingot.quantize.qat": ("Training",),
    "ingot.result.casting": ("Casting",),
    "ingot.result.details.records": ("Details",),
    "ingot.targets.base": ("Target",),
    "ingot.targets.registry": (
        "Availability",
        "register_target",
    ),
    "ingot.verify.localize.finding": (
        "Finding",
        "ValueCheck",
    ),
    "ingot.verify.minify.reducer": ("Reduction",),
    "ingot.weight_only.options": ("Weights",),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = [*_MODULE_OF, "__version__"]


class _Lazy(ModuleType):
    """`ingot.plan` is the verb, although there is a package `ingot/plan/`: importing that must not replace the verb."""

    def __getattr__(self, name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'ingot' has no attribute '{name}'")
        from ingot.patches.version_errors import version_errors

        with version_errors():
            return getattr(importlib.import_module(_MODULE_OF[name]), name)

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULE_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_MODULE_OF})


sys.modules[__name__].__class__ = _Lazy
