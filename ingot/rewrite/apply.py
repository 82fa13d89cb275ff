"""Rewrites that keep an op inside the delegate: one rule a file, its docstring is the rewrite, its numbers compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture.canonicalize.passes import check_same, outputs, settle
from ingot.capture.export import Program
from ingot.config.recipe import Recipe
from ingot.core.fx import copied
from ingot.core.host_memory import gc_paused
from ingot.errors import CaptureError, InputError, nearest
from ingot.patches.contexts import lazy_codegen
from ingot.rewrite.fragmentation import Fragmentation, fragmentation
from ingot.rewrite.rule import Rule
from ingot.targets.base import Target

AbilityQuery = Callable[[Node], Any]


@dataclass(frozen=True, eq=False)
class Rewritten:
    """The program as a target will see it, and which rules made it so."""

    program: Program
    rewrites: tuple[str, ...]


def rewrite_for(program: Program, target: Target, recipe: Recipe) -> Rewritten:
    """The program rewritten for `target`; the same arguments give the same object."""
    if program.rewritten_for == target.name:
        return Rewritten(program, ())
    ask = target.kernels.ability if target.kernels.cheap_to_query else None
    return _rewritten(program, target.name, recipe.without_rules, tuple(target.lowering.rules()), ask)


@lru_cache(maxsize=4)
@gc_paused()
def _rewritten(
    program: Program, _target: str, without: tuple[str, ...], rules: tuple[Rule, ...], ask: AbilityQuery | None
) -> Rewritten:
    for name in without:
        if name not in {r.name for r in rules}:
            raise InputError(f"no rewriting rule '{name}'", hint=nearest(name, [r.name for r in rules]))
    with lazy_codegen():
        found = _search(program, [r for r in rules if r.name not in without], ask)
    found.module.recompile()
    return Rewritten(replace(program, module=found.module), found.rewrites)


@dataclass(frozen=True)
class _State:
    """How far the search is: the graph, what it still leaves to the host, and the rules that made it so."""

    module: GraphModule
    left: Fragmentation
    rewrites: tuple[str, ...] = ()
    spare: GraphModule | None = None  # a copy for the next rule, where the one before found nothing in it


def _search(program: Program, rules: Sequence[Rule], ask: AbilityQuery | None) -> _State:
    """Rule after rule. One may leave more to the host for those after it to take (attention leaves products); one that
    nothing makes good is left out, and the search begins again without it."""
    module, wanted = copied(program.module), outputs(program.module, program.example_inputs)
    best = now = _State(module, _fragmentation(module, ask))
    raised: list[Rule] = []
    for rule in rules:
        before, now = now, _apply_rule(rule, now, program.example_inputs, wanted, ask)
        raised += [rule] if now.left > before.left else []
        best, raised = (now, []) if now.left <= best.left else (best, raised)
    if not raised:
        # The tensors are the user's own: a rule that writes into them must not go unseen.
        check_same("rewriting", wanted, outputs(now.module, program.example_inputs))
        return now
    again = _search(program, [r for r in rules if r is not raised[0]], ask)
    return replace(again, rewrites=(*again.rewrites, f"{raised[0].name}: not used, it would leave more to the host"))


_Inputs = tuple[torch.Tensor, ...]


def _apply_rule(
    rule: Rule, now: _State, inputs: _Inputs, wanted: list[torch.Tensor], ask: AbilityQuery | None
) -> _State:
    changed = now.spare or copied(now.module)
    if not (found := rule.apply(changed)):
        return replace(now, spare=changed)
    module, places = _checked(rule, now.module, changed, found, inputs, wanted)
    if module is now.module:
        return replace(now, rewrites=(*now.rewrites, *places), spare=None)
    left = _fragmentation(module, ask)
    saved = now.left.saved_by(left) if ask else "not weighed, asking this target takes too long"
    return _State(module, left, (*now.rewrites, *places, f"{rule.name}: {saved}"))


def _fragmentation(module: GraphModule, ask: AbilityQuery | None) -> Fragmentation:
    return fragmentation(module, ask) if ask else Fragmentation(0, 0)


def _checked(
    rule: Rule,
    module: GraphModule,
    changed: GraphModule,
    places: list[str],
    inputs: _Inputs,
    wanted: list[torch.Tensor],
) -> tuple[GraphModule, list[str]]:
    """The module after the rule; as it was, with a word, where the rule would move the numbers."""
    try:
        settle(changed)
        check_same(rule.name, wanted, outputs(changed, inputs))
    except CaptureError as e:
        return module, [f"{rule.name}: not used, {e.what}"]
    return changed, [f"{rule.name}: {place}" for place in places]
