"""Arm's accelerators: VGF for GPUs, Ethos-U55 and Ethos-U85. What they can do is asked of Arm's own partitioner."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ingot.semantics.weights import weight_axis
from ingot.targets.arm.ability import ability
from ingot.targets.arm.backend import FORMATS, WEIGHT
from ingot.targets.arm.lowering import finish, partitioners, run
from ingot.targets.arm.marking import fuses
from ingot.targets.arm.masks import Masks
from ingot.targets.arm.requirements import COMMON, CONVERTER, VELA
from ingot.targets.arm.rewriting import Decompositions
from ingot.targets.base import Prices, Requirement, Target

__all__ = ["ETHOS_U55", "ETHOS_U85", "VGF"]


def _target(name: str, backend: str, description: str, needs: Iterable[Requirement], prices: Prices) -> Target:
    return Target(
        name=name,
        backend=backend,
        description=description,
        requirements=(*COMMON, *needs),
        formats=FORMATS,
        weight=WEIGHT,
        ability=partial(ability, name),
        fuses=fuses,
        rescales=lambda node: False,  # TOSA moves numbers untouched: a rescale is an op of its own
        float_inside=name == "vgf",
        float_bias=False,
        weight_axis=weight_axis,
        rules=lambda: (Decompositions(name), Masks(name)),
        partitioners=partial(partitioners, name),
        run=run,
        executed_on="TOSA reference model, on what the compiler was given",
        prices=prices,
        finish=finish,
    )


GPU = Prices({"int8": 1.0, "int16": 2.0, "float": 4.0})
NPU = Prices({"int8": 1.0, "int16": 2.0, "float": 100.0})
VGF = _target("vgf", "VgfBackend", "Arm GPUs with neural accelerators, through VGF", [CONVERTER], GPU)
ETHOS_U55 = _target("ethos-u55-128", "EthosUBackend", "Arm Ethos-U55 with 128 MACs", [VELA], NPU)
ETHOS_U85 = _target("ethos-u85-256", "EthosUBackend", "Arm Ethos-U85 with 256 MACs", [VELA], NPU)
