"""A program with integer weights, cast: nothing is recorded, ranges are found when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from ingot.capture.export import Program
from ingot.config.recipe import recipe_from
from ingot.core.host_memory import trim_heap
from ingot.core.progress import Silent, Steps
from ingot.plan.solve import unquantized
from ingot.result.assemble import lowered, verified
from ingot.result.casting import Casting
from ingot.rewrite.apply import rewrite_for
from ingot.targets.registry import find_target
from ingot.verify.check import Evidence
from ingot.weight_only.hessian import Moments
from ingot.weight_only.options import refuse_storage, settled, weights_from
from ingot.weight_only.pipeline import chosen_weights, planned

Batch = tuple[torch.Tensor, ...]


def cast_weights(
    program: Program,
    target: str,
    weights: Any,
    batches: list[Batch],
    recipe: Any = None,
    steps: Steps | None = None,
    on_mismatch: str = "raise",
    seen: Moments | None = None,
    others: Mapping[str, tuple[Program, list[Batch]]] | None = None,
    checked: list[Batch] | None = None,
) -> Casting:
    """Weights as integers, activations by token or float: nothing is recorded, ranges are found when it runs.

    `others` are more methods of the same model, each with what it is verified on. `checked` are the batches to verify
    on, the calibration batches by default.
    """
    settings, asked, steps = recipe_from(recipe), weights_from(weights), steps or Steps(Silent())
    backend = find_target(target, settings.options, settings.extra_backends)
    asked = settled(asked, backend)
    refuse_storage(settings)
    form = rewrite_for(program, backend, settings)
    with steps("quantize"):
        chosen = chosen_weights(form.program.module, asked, batches, seen, backend.weight_only.fused_norm_gains)
        trim_heap()
        parts = {n: rewrite_for(p, backend, settings).program for n, (p, _) in (others or {}).items()}
        methods = {n: (p, chosen.applied(p.module)) for n, p in parts.items()}
        quantized, layers, notes = chosen.applied(form.program.module), chosen.layers, chosen.notes
        del chosen  # a table's numbers are packed by now
    facts = (form.program.module, backend, form.program.fingerprint, form.rewrites)
    made = planned(unquantized(*facts, "only weights are quantized"), layers, asked, notes)
    made = replace(made, settings={**settings.remembered, "weights": asked.scheme})
    trim_heap()
    casting = lowered(program, form.program, quantized, made, backend, settings, steps, methods, in_double=False)
    done = verified(replace(casting, layers=layers), checked or batches or [program.example_inputs], steps, on_mismatch)
    for name, evidence in casting.needed_evidence.others.items():
        trim_heap()
        done = _with_method(done, evidence, (others or {})[name][1], steps, on_mismatch)
    return done


def _with_method(casting: Casting, evidence: Evidence, batches: list[Batch], steps: Steps, on_mismatch: str) -> Casting:
    """Verified as well; its outputs are named after it, and each method has its say in the check."""
    own = replace(casting, evidence=evidence, check=None)
    check = verified(own, batches or [evidence.program.example_inputs], steps, on_mismatch).check
    assert check is not None
    assert casting.check is not None
    outputs = tuple(replace(o, name=f"{evidence.method}: {o.name}") for o in check.outputs)
    both = replace(
        casting.check,
        outputs=(*casting.check.outputs, *outputs),
        passed=casting.check.passed and check.passed,
        culprit=casting.check.culprit or check.culprit,
    )
    many, left = len(evidence.delegates), len(evidence.host_ops)
    note = f"method {evidence.method}: {many} delegate{'s' * (many != 1)}, {left} ops on the host, the same weights"
    return replace(casting, check=both, notes=(*casting.notes, note))
