"""The entry of the weight-only pipeline: a captured program in, a verified casting with integer weights out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ingot.calibrate.held_out import CheckData
from ingot.capture.export import Program
from ingot.capture.varying_size import infer_inserted_sizes
from ingot.config.recipe import Recipe, recipe_from
from ingot.core.host_memory import trim_heap
from ingot.core.progress import Silent, Steps
from ingot.lower.edge import MethodGraph
from ingot.plan.solve import unquantized
from ingot.result.casting import Casting
from ingot.result.lower_and_verify import QuantizedProgram, judged, verified
from ingot.result.recovery.recover import lowered_and_checked
from ingot.rewrite.apply import rewrite_for
from ingot.targets.barred import Bar, host_bars, with_bars
from ingot.targets.registry import find_target
from ingot.weight_only.hessian import HessianRecorder
from ingot.weight_only.options import refuse_activation_settings, resolve_for_target, weights_from
from ingot.weight_only.quantize_weights import add_weight_decisions, quantize_weights

Batch = tuple[torch.Tensor, ...]


def cast_weights(
    program: Program,
    target: str,
    weights: Any,
    batches: list[Batch],
    recipe: Any = None,
    steps: Steps | None = None,
    on_mismatch: str = "raise",
    recorded: HessianRecorder | None = None,
    other_methods: Mapping[str, tuple[Program, list[Batch]]] | None = None,
    checked: CheckData | None = None,
) -> Casting:
    """Weights become integers; activations stay float, or are quantized per token at run time: no ranges are recorded.

    `other_methods` are further methods of the same model, each with the batches that verify it. `checked` verify the
    first; by default the calibration batches do.
    """
    settings, asked, steps = recipe_from(recipe), weights_from(weights), steps or Steps(Silent())
    backend = find_target(target, settings.options, settings.extra_backends)
    asked = resolve_for_target(asked, backend)
    refuse_activation_settings(settings)
    form = rewrite_for(program, backend, settings)
    if program.bounded_dims:
        infer_inserted_sizes(form.program.module)
    with steps("quantize"):
        gains = backend.weight_only.fused_norm_gains
        chosen = quantize_weights(form.program.module, asked, batches, recorded, gains)
        trim_heap()
        parts = {n: rewrite_for(p, backend, settings).program for n, (p, _) in (other_methods or {}).items()}
        graphs = {n: chosen.apply_to(p.module) for n, p in parts.items()}
        quantized, layers, notes = chosen.apply_to(form.program.module), chosen.layers, chosen.notes
        del chosen  # frees the unpacked codes of embeddings
    facts = (form.program.module, backend, form.program.fingerprint, form.rewrites)
    plan = add_weight_decisions(unquantized(*facts, "only weights are quantized"), layers, asked, notes)
    plan = replace(plan, settings={**settings.remembered, "weights": asked.scheme})
    trim_heap()
    methods = {n: MethodGraph(p, graphs[n], plan) for n, p in parts.items()}
    work = QuantizedProgram(program, form.program, quantized, plan, backend, settings, methods, in_double=False)
    data = checked or _check_data(batches, program)
    casting, check = lowered_and_checked(partial(_barred, work), settings, data.batches, steps, on_mismatch)
    done = judged(replace(casting, layers=layers), check, data, steps, on_mismatch)
    for name in casting.others:
        trim_heap()
        done = _verify_method(done, name, (other_methods or {})[name][1], steps, on_mismatch)
    return done


def _check_data(batches: list[Batch], program: Program) -> CheckData:
    return CheckData(list(batches), "calibration") if batches else CheckData([program.example_inputs], "example")


def _barred(work: QuantizedProgram, recipe: Recipe, _: tuple[Bar, ...]) -> QuantizedProgram:
    """Without the host ops of the recipe. There are no precisions to choose from."""
    target = with_bars(work.target, host_bars(recipe.host_ops, work.form.module))
    plan = replace(work.plan, settings={**work.plan.settings, **recipe.remembered})
    return replace(work, plan=plan, target=target, recipe=recipe)


def _verify_method(casting: Casting, name: str, batches: list[Batch], steps: Steps, on_mismatch: str) -> Casting:
    """Verify one more method. Its outputs are prefixed with its name, and the check passes only if all methods do."""
    own = casting.others[name]
    own = verified(own, _check_data(batches, own.needed_evidence.program), steps, on_mismatch)
    assert own.check is not None
    assert casting.check is not None
    outputs = tuple(replace(o, name=f"{name}: {o.name}") for o in own.check.outputs)
    both = replace(
        casting.check,
        outputs=(*casting.check.outputs, *outputs),
        passed=casting.check.passed and own.check.passed,
        culprit=casting.check.culprit or own.check.culprit,
    )
    delegates, host_ops = len(own.delegates), len(own.host_ops)
    note = f"method {name}: {delegates} delegate{'s' * (delegates != 1)}, {host_ops} host ops, shared weights"
    return replace(casting, check=both, notes=(*casting.notes, note), others={**casting.others, name: own})
