"""The sampler as an extra backend: it owns grid_sample, in float and in int8 with an int16 grid."""

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
OPS = (aten.grid_sampler.default, aten.grid_sampler_2d.default)
GRID_FORMATS = ("int16", "int8", "float")  # int16 first: 8 bits are too coarse for coordinates


def _ability(node: Node, formats: Collection[str]) -> Ability | None:
    """Float; and int8 images where the target has int16 for the grid."""
    if node.target not in OPS or value_of(node).dim() != 4:
        return None
    if not {"int8", "int16"} <= set(formats):
        return Ability(frozenset({"float"}), "the sampler runs it in float: the target has no int16 for the grid")
    return Ability(
        frozenset({"float", "int8"}),
        "the sampler has a kernel for it",
        {1: GRID_FORMATS, None: ("int8", "float"), 0: ("int8", "float")},
    )


def _partitioner() -> Any:
    from ingot.backends.sampler.lowering import SamplerPartitioner

    return SamplerPartitioner()


def _run(payload: bytes, batches: list[list[Any]], outputs: int) -> list[list[Any]]:
    from ingot.backends.sampler.host import sample_on_host

    return sample_on_host(payload, batches, outputs)


def _shader(payload: bytes) -> Shader:
    from ingot.backends.sampler.payload import SampleJob
    from ingot.backends.sampler.shader import can_be_texture, shader_for

    job = SampleJob.from_bytes(payload)
    return shader_for(job, can_be_texture(job))


def _rgba_rules() -> tuple[Any, ...]:
    from ingot.backends.sampler.rgba import RULE

    return (RULE,)


SAMPLER = Backend(
    "sampler", "IngotSampler", _ability, _partitioner, _run, "grid_sample as one quantized op", shader=_shader
)
SAMPLER_RGBA = replace(
    SAMPLER,
    name="sampler-rgba",
    description="grid_sample as one quantized op, RGB padded to RGBA so that images can be textures",
    rules=_rgba_rules,
)
