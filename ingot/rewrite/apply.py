"""Applies a target's rewrite rules. A rule is kept if outputs stay equal and fragmentation does not grow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.fx import GraphModule, Node

from ingot.capture.canonicalize.identities import views_as_reshapes
from ingot.capture.canonicalize.output_check import ExpectedOutputs, expected_outputs, run_outputs
from ingot.capture.canonicalize.passes import clean_up_graph
from ingot.capture.export import Program
from ingot.config.recipe import Recipe
from ingot.core.fx import copy_graph_module, value_name
from ingot.core.host_memory import gc_paused
from ingot.errors import CaptureError, IngotError, InputError, first_sentence, nearest
from ingot.patches.speed_contexts import lazy_codegen
from ingot.rewrite.fragmentation import Fragmentation, fragmentation
from ingot.targets.base import RewriteRule, Target

AbilityQuery = Callable[[Node], Any]


@dataclass(frozen=True, eq=False)
class Rewritten:
    """The program after the target's rewrites, and a line for each place that a rule changed."""

    program: Program
    rewrites: tuple[str, ...]


def rewrite_for(program: Program, target: Target, recipe: Recipe) -> Rewritten:
    """The program rewritten for `target`. Cached: equal arguments return the same object."""
    if program.rewritten_for == target.name:
        return Rewritten(program, ())
    ask = target.kernels.ability if target.kernels.cheap_to_query else None
    disabled, rules = recipe.disabled_rewrites, tuple(target.lowering.rules())
    known, key = _known_rewrites.setdefault(program, {}), (target.name, disabled, rules, ask)
    if key not in known:
        known[key] = _rewritten(program, disabled, rules, ask)
    return known[key]


# By program, weakly: a model's weights are freed as soon as its user drops it.
_known_rewrites: WeakKeyDictionary[Program, dict[Any, Rewritten]] = WeakKeyDictionary()


@gc_paused()
def _rewritten(
    program: Program, disabled: tuple[str, ...], rules: tuple[RewriteRule, ...], ask: AbilityQuery | None
) -> Rewritten:
    for name in disabled:
        if name not in {r.name for r in rules}:
            raise InputError(f"no rewrite rule '{name}'", hint=nearest(name, [r.name for r in rules]))
    with lazy_codegen():
        found = _search(program, [r for r in rules if r.name not in disabled], ask)
    views_as_reshapes(found.module)  # of decompositions: inputs may be channels-last, where a view would have to copy
    found.module.recompile()
    return Rewritten(replace(program, module=found.module), found.rewrites)


@dataclass(frozen=True)
class _State:
    """A step of the search: the graph, its fragmentation, and the rules applied so far."""

    module: GraphModule
    fragmentation: Fragmentation
    names: frozenset[str]  # of all values so far, also of those that are gone
    rewrites: tuple[str, ...] = ()
    spare: GraphModule | None = None  # an unchanged copy, if the rule before matched nothing


def _search(program: Program, rules: Sequence[RewriteRule], ask: AbilityQuery | None) -> _State:
    """Apply the rules in order.

    A rule may increase fragmentation if later rules reduce it again (attention leaves matmuls). Otherwise the search is
    repeated without it. What replaces an op that runs nowhere is required, and not judged.
    """
    module, wanted = copy_graph_module(program.module), expected_outputs(program.module, program.example_inputs)
    best = now = _State(module, _fragmentation(module, ask), _names(module))
    raised: list[RewriteRule] = []
    for rule in rules:
        before, now = now, _apply_rule(rule, now, program.example_inputs, wanted, ask)
        if getattr(rule, "required", False):
            best = now if now is not before and before.fragmentation <= best.fragmentation else best
            continue
        raised += [rule] if now.fragmentation > before.fragmentation else []
        best, raised = (now, []) if now.fragmentation <= best.fragmentation else (best, raised)
    if not raised:
        # A rule that writes into the user's tensors would change both graphs: compare with the recorded outputs.
        wanted.check("rewriting", run_outputs(now.module, program.example_inputs))
        return now
    again = _search(program, [r for r in rules if r is not raised[0]], ask)
    return replace(again, rewrites=(*again.rewrites, f"{raised[0].name}: not used, it would increase fragmentation"))


_Inputs = tuple[torch.Tensor, ...]


def _apply_rule(
    rule: RewriteRule, now: _State, inputs: _Inputs, wanted: ExpectedOutputs, ask: AbilityQuery | None
) -> _State:
    changed = now.spare or copy_graph_module(now.module)
    try:
        found = rule.apply(changed)
    except IngotError:
        raise
    except Exception as e:  # the program is right without the rule
        return replace(now, rewrites=(*now.rewrites, _why_not_used(rule, e)), spare=None)
    if not found:
        return replace(now, spare=changed)
    module, places = _checked(rule, now.module, changed, found, inputs, wanted)
    if module is now.module:
        return replace(now, rewrites=(*now.rewrites, *places), spare=None)
    _name_new_values(now.module, module, now.names)
    after = _fragmentation(module, ask)
    saved = now.fragmentation.saved_by(after) if ask else "fragmentation not measured, queries to this target are slow"
    return _State(module, after, now.names | _names(module), (*now.rewrites, *places, f"{rule.name}: {saved}"))


def _names(module: GraphModule) -> frozenset[str]:
    return frozenset(name for n in module.graph.nodes for name in (n.name, value_name(n)))


def _name_new_values(before: GraphModule, after: GraphModule, names: frozenset[str]) -> None:
    """A copied graph gives names again that are free in it. Such a name has the statistics of another value."""
    known = {n.name for n in before.graph.nodes}
    for node in [n for n in after.graph.nodes if n.name not in known and value_name(n) == n.name]:
        if node.name in names:
            node.meta["ingot_value"] = next(free for i in count(1) if (free := f"{node.name}.{i}") not in names)


def _fragmentation(module: GraphModule, ask: AbilityQuery | None) -> Fragmentation:
    return fragmentation(module, ask) if ask else Fragmentation(0, 0)


def _checked(
    rule: RewriteRule,
    module: GraphModule,
    changed: GraphModule,
    places: list[str],
    inputs: _Inputs,
    wanted: ExpectedOutputs,
) -> tuple[GraphModule, list[str]]:
    """The module after the rule, or what a narrower rule makes; the one before it, with a note, if outputs differ."""
    try:
        clean_up_graph(changed)
        wanted.check(rule.name, run_outputs(changed, inputs))
    except CaptureError as e:
        narrower = _narrowed(rule, module, inputs, wanted)
        return narrower or (module, [f"{rule.name}: not used, {e.what}"])
    except Exception as e:
        return module, [_why_not_used(rule, e)]
    return changed, [f"{rule.name}: {place}" for place in places]


def _narrowed(
    rule: RewriteRule, module: GraphModule, inputs: _Inputs, wanted: ExpectedOutputs
) -> tuple[GraphModule, list[str]] | None:
    """What the rule makes without the ops for which it is wrong, if it can say which these are."""

    def tried(each: RewriteRule) -> tuple[GraphModule, list[str]]:
        changed = copy_graph_module(module)
        found = each.apply(changed)
        clean_up_graph(changed)
        wanted.check(each.name, run_outputs(changed, inputs))
        return changed, [f"{each.name}: {place}" for place in found]

    def is_right(each: RewriteRule) -> bool:
        try:
            tried(each)
        except Exception:  # a pass may raise anything
            return False
        return True

    narrow = getattr(rule, "narrowed", None)
    narrower = None if narrow is None else narrow(module, is_right)
    return tried(narrower) if narrower is not None and is_right(narrower) else None


def _why_not_used(rule: RewriteRule, error: Exception) -> str:
    return f"{rule.name}: not used, it fails: {type(error).__name__}: {first_sentence(error)}"
