"""What a plan should save: time, bytes of the file, or energy. One cost model for each, from that of the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ingot.config.recipe import Prefer
from ingot.targets.base import DYNAMIC, CostModel

SERIALIZED_OP = 100.0  # bytes of an op in a .pte, about; a delegate boundary has tensors and a header
SERIALIZED_BOUNDARY = 1_000.0
# Energy in units of an int8 MAC (0.23 pJ), at 45 nm and 0.9 V: Horowitz, "Computing's energy problem", ISSCC 2014.
# int16 by the square of the width; 8 bytes of SRAM take 10 pJ, a byte of DRAM 160 pJ.
MAC_ENERGY = {"int8": 1.0, DYNAMIC: 1.0, "int16": 4.0, "float": 20.0}
SRAM_BYTE, DRAM_BYTE = 5.0, 700.0


def preferred_cost(cost: CostModel, prefer: Prefer) -> CostModel:
    return _MODELS[prefer](cost)


def _of_bytes(cost: CostModel) -> CostModel:
    """Nothing but the file: weights count by the byte, and activations are not in it."""
    free = dict.fromkeys(cost.multiply, 0.0)
    return replace(
        cost, multiply=free, byte=0.0, weight_byte=1.0, op=SERIALIZED_OP, boundary=SERIALIZED_BOUNDARY
    )  # fmt: skip


def _of_energy(cost: CostModel) -> CostModel:
    """MACs and memory; each weight is read from memory once."""
    multiply = {p: MAC_ENERGY.get(p, MAC_ENERGY["float"]) for p in cost.multiply}
    return replace(cost, multiply=multiply, byte=SRAM_BYTE, weight_byte=DRAM_BYTE)


_MODELS: dict[Prefer, Callable[[CostModel], CostModel]] = {
    "time": lambda cost: cost, "bytes": _of_bytes, "energy": _of_energy,
}  # fmt: skip
