"""Embedding tables in static int8 plans: one symmetric scale for each row, where the runtime looks up integer rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics.weighted_ops import is_embedding
from ingot.config.recipe import Recipe
from ingot.core.fx import calls, constant_of, source_of, value_of
from ingot.plan.plan_data import Decision, Plan, QuantizationPoint
from ingot.plan.qparams import weight_qparams
from ingot.plan.user_constraints import matching_ops
from ingot.targets.base import Target

MIN_ELEMENTS = 1 << 12  # a smaller table saves less than what its scales and the other kernel cost
RULE = "embedding table: symmetric, one scale for each row, from its largest magnitude"


def with_embedding_tables(plan: Plan, module: GraphModule, recipe: Recipe, target: Target) -> Plan:
    """The plan with int8 tables, if it quantizes anything."""
    if not target.numerics.int8_embeddings or not any(d.qparams for d in plan):
        return plan
    return replace(plan, decisions=(*plan.decisions, *_decisions(module, recipe, target)))


def _decisions(module: GraphModule, recipe: Recipe, target: Target) -> Iterator[Decision]:
    """Nothing for tables that a scope keeps in float."""
    lookups = [n for n in calls(module) if _is_large_lookup(n)]
    in_float = [s for s in recipe.scopes if s.precision == "float"] if lookups else []
    nodes = list(calls(module)) if in_float else []
    kept = {n for scope in in_float for n in matching_ops(scope, nodes)}
    yield from (_decision(n, target) for n in lookups if n not in kept)


def _is_large_lookup(node: Node) -> bool:
    table = constant_of(node.args[0]) if is_embedding(node) else None  # type: ignore[arg-type]
    if table is None or table.dtype != torch.float32 or table.numel() < MIN_ELEMENTS:
        return False
    return value_of(node.args[1]).dtype == torch.int64 and bool(torch.isfinite(table).all())  # type: ignore[arg-type]


def _decision(node: Node, target: Target) -> Decision:
    table: Node = node.args[0]  # type: ignore[assignment]
    qparams = weight_qparams(constant_of(table), target.numerics.weight, 0)  # type: ignore[arg-type]
    point, op = QuantizationPoint(node.name, 0), str(node.target)
    return Decision(point, qparams, RULE, reads=table.name, source=source_of(node), op=op, fixed=True)
