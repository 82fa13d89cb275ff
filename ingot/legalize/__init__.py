"""Rewrites that keep an op inside the delegate: one rule a file, its docstring is the rewrite, its numbers compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from torch.fx import GraphModule

from ingot.capture import Program
from ingot.errors import CaptureError, InputError, nearest
from ingot.graph import copied
from ingot.legalize import (
    attention,
    depth_pool,
    hardsigmoid,
    layer_norm,
    means,
    moves,
    products,
    scalars,
    scatter,
    softmax,
    softplus,
    strides,
    sums,
    upsampling,
)
from ingot.legalize.rule import Rule
from ingot.normalize import check_equal, settle
from ingot.recipe import Recipe
from ingot.targets.base import Target

__all__ = ["Legal", "Rule", "for_xnnpack", "legalized"]


@dataclass(frozen=True, eq=False)
class Legal:
    """The program as a target will see it, and which rules made it so."""

    program: Program
    rewrites: tuple[str, ...]


def for_xnnpack() -> Sequence[Rule]:
    """In order: a rule may leave work for those after it (attention makes products, a hard sigmoid numbers)."""
    early = (sums, scatter, strides, upsampling, depth_pool, hardsigmoid, softplus)
    late = (attention, products, softmax, layer_norm, means, scalars, moves)
    return tuple(m.RULE for m in (*early, *late))


def legalized(program: Program, target: Target, recipe: Recipe) -> Legal:
    """The program rewritten for `target`; the same arguments give the same object."""
    if program.legal_for == target.name:
        return Legal(program, ())
    return _legalized(program, target.name, recipe.without_rules, tuple(target.rules()))


@lru_cache(maxsize=4)
def _legalized(program: Program, _target: str, without: tuple[str, ...], rules: tuple[Rule, ...]) -> Legal:
    for name in without:
        if name not in {r.name for r in rules}:
            raise InputError(f"no rewriting rule '{name}'", hint=nearest(name, [r.name for r in rules]))
    module, rewrites = copied(program.module), list[str]()
    for rule in rules:
        if rule.name not in without:
            module, used = _applied(rule, module, program)
            rewrites += used
    return Legal(replace(program, module=module), tuple(rewrites))


def _applied(rule: Rule, module: GraphModule, program: Program) -> tuple[GraphModule, list[str]]:
    """The module after the rule; as it was, with a word, where the rule would move the numbers."""
    changed = copied(module)
    places = rule.apply(changed)
    if not places:
        return module, []
    try:
        settle(changed)
        check_equal(rule.name, module, changed, program.example_inputs)
    except CaptureError as e:
        return module, [f"{rule.name}: not used, {e.what}"]
    return changed, [f"{rule.name}: {place}" for place in places]
