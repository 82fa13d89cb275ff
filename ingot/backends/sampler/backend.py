"""Our own ExecuTorch backend for grid_sample: a small job, run by numpy on the host or by a shader on Vulkan."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from ingot.backends.base import Backend, Shader
from ingot.core.fx import value_of
from ingot.targets.base import Ability

__all__ = ["SAMPLER", "SAMPLER_RGBA"]
aten = torch.ops.aten
OPS = (aten.grid_sampler.default, aten.grid_sampler_2d.default)  # it is a sampler: what else it could do is no question
FORMATS = ("int16", "int8", "float")  # of the grid: eight bits are coarse for places in an image


def ability(node: Node, stored: Collection[str]) -> Ability | None:
    """Float, and int8 images beside a target that can make a finer grid for them."""
    if node.target not in OPS or value_of(node).dim() != 4:
        return None
    if not {"int8", "int16"} <= set(stored):
        return Ability(frozenset({"float"}), "the sampler takes it in float: the target has no int16 for the grid")
    return Ability(
        frozenset({"float", "int8"}),
        "the sampler takes it whole",
        {1: FORMATS, None: ("int8", "float"), 0: ("int8", "float")},
    )


def _partitioner() -> Any:
    from ingot.backends.sampler.lowering import SamplerPartitioner

    return SamplerPartitioner()


def _run(payload: bytes, batches: list[list[Any]], outputs: int) -> list[list[Any]]:
    from ingot.backends.sampler.host import run

    return run(payload, batches, outputs)


def _shader(payload: bytes) -> Shader:
    from ingot.backends.sampler.job import Job
    from ingot.backends.sampler.shader import can_be_texture, dispatch

    job = Job.from_bytes(payload)
    return dispatch(job, can_be_texture(job))


def _with_alpha() -> tuple[Any, ...]:
    from ingot.backends.sampler.rgba import RULE

    return (RULE,)


SAMPLER = Backend(
    "sampler", "IngotSampler", ability, _partitioner, _run, "grid_sample as one quantized op", shader=_shader
)
SAMPLER_RGBA = replace(
    SAMPLER,
    name="sampler-rgba",
    description="the same, RGB images padded to RGBA so that they can be textures",
    rules=_with_alpha,
)
