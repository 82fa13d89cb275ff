"""Weights rounded by the error of their products: each row with the clipping that costs least, then GPTQ.

Rounding to the nearest code treats all inputs alike, and as if they were independent. Second moments of the inputs say
which errors matter and which cancel. With 4 bits this decides whether a net is usable; with 8 it hardly matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.calibrate.second_moments import SecondMoments, has_rows
from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import groups_of, weight_axis
from ingot.core.fx import calls, constant_of
from ingot.plan.plan_data import Decision, Plan, QParams
from ingot.plan.qparams import min_weight_scale
from ingot.plan.rounded_weights import packed_codes
from ingot.plan.validate import with_bias_qparams
from ingot.plan.weight_rounding import best_clip_ratios, error_feedback, rounded_codes, shrunk
from ingot.rewrite.channel_factors import writes_channels
from ingot.rewrite.scalable_channels import tied_constants

NARROW = 7  # the largest code of 4 bits


def roundable(module: GraphModule, plan: Plan, how: str) -> list[Node]:
    """Ops whose weights are rounded so: those narrower than 8 bits, or all."""
    if how == "nearest":
        return []
    tied = tied_constants(module)
    able = [n for n in calls(module) if writes_channels(n) and has_rows(n) and tied.isdisjoint(operands(n))]
    planned = ((n, plan.qparams(n.name, 1)) for n in able)
    by_row = [(n, q) for n, q in planned if q is not None and q.axis == weight_axis(n)]
    return [n for n, q in by_row if how == "gptq" or q.qmax <= NARROW]


def with_rounded_weights(plan: Plan, module: GraphModule, moments: Mapping[Node, SecondMoments]) -> Plan:
    scales, codes = dict[str, QParams](), dict[str, str]()
    for node, found in moments.items():
        qparams = plan.qparams(node.name, 1)
        assert qparams is not None  # roundable
        scales[node.name], made = _rounded(node, qparams, plan, found)
        codes[node.name] = packed_codes(made)
    decisions = tuple(_with_scale(d, scales) for d in plan)
    return with_bias_qparams(replace(plan, decisions=decisions, rounded_weights=codes), module)


def _rounded(node: Node, qparams: QParams, plan: Plan, found: SecondMoments) -> tuple[QParams, Tensor]:
    """The scales and the codes of a weight, as groups x rows x width."""
    weight = constant_of(operands(node)[1])
    assert weight is not None  # writes_channels
    rows = weight.detach().float().reshape(groups_of(node), -1, found.total.shape[-1])
    feedback, importance = error_feedback(shrunk(found.mean, found.rows))
    codes, least = (qparams.qmin, qparams.qmax), _least_scale(node, plan)
    minmax = torch.tensor(qparams.scale).reshape(rows.shape[:2])
    ratios = best_clip_ratios(rows, minmax, codes, importance[:, None], -1) if qparams.qmax <= NARROW else 1.0
    scale = (minmax * ratios).flatten()
    clipped = replace(qparams, scale=tuple((scale if least is None else torch.maximum(scale, least)).tolist()))
    made = rounded_codes(rows, torch.tensor(clipped.scale).reshape(rows.shape[:2]), feedback, codes)
    return clipped, made.reshape(weight.shape)


def _least_scale(node: Node, plan: Plan) -> Tensor | None:
    """At which the bias fits into its accumulator."""
    read, x = operands(node), plan.qparams(node.name, 0) or plan.qparams(operands(node)[0].name)
    least = min_weight_scale(constant_of(read[2]), x) if len(read) > 2 and x is not None else None
    return None if least is None else least.float()


def _with_scale(d: Decision, scales: Mapping[str, QParams]) -> Decision:
    if d.point.operand != 1 or d.point.node not in scales:
        return d
    return replace(d, qparams=scales[d.point.node], rule=f"{d.rule}; rounded by the error of its products (GPTQ)")
