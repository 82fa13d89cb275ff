"""Rewrites that keep an op inside the delegate: one rule a file, its docstring is the rewrite, its numbers compared."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ingot.capture import Program
from ingot.errors import InputError, nearest
from ingot.legalize import attention, depth_pool, layer_norm, means, products, scalars, scatter, softplus
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
    modules = (scatter, depth_pool, softplus, attention, products, layer_norm, means, scalars)
    return tuple(m.RULE for m in modules)


def legalized(program: Program, target: Target, recipe: Recipe) -> Legal:
    """The program rewritten for `target`; the same arguments give the same object."""
    return _legalized(program, target.name, recipe.without_rules, tuple(target.rules()))


@lru_cache(maxsize=4)
def _legalized(program: Program, _target: str, without: tuple[str, ...], rules: tuple[Rule, ...]) -> Legal:
    for name in without:
        if name not in {r.name for r in rules}:
            raise InputError(f"no rewriting rule '{name}'", hint=nearest(name, [r.name for r in rules]))
    module = copy.deepcopy(
        program.module, {id(t): t for t in (*program.module.parameters(), *program.module.buffers())}
    )
    rewrites: list[str] = []
    for rule in rules:
        if rule.name not in without:
            rewrites += [f"{rule.name}: {place}" for place in rule.apply(module)]
    if rewrites:
        settle(module)
        check_equal("legalize", program.module, module, program.example_inputs)
    return Legal(replace(program, module=module), tuple(rewrites))
