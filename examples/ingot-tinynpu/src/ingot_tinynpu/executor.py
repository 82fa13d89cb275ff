"""The executor: runs the bytes of a delegate in numpy, as the accelerator would. Integers only."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

FRACTION_BITS = 31  # of a fixed-point multiplier
Arrays = list[np.ndarray]


def run(payload: bytes, batches: list[Arrays], outputs: int, accumulator_bits: int = 32) -> list[Arrays]:
    """The outputs of each batch of inputs. Ingot calls such a function an `Executor`."""
    with np.load(io.BytesIO(payload)) as file:
        constants = {name: file[name] for name in file.files}
    program = json.loads(str(constants.pop("program")))
    return [_run(program, constants, inputs, accumulator_bits) for inputs in batches]


def _run(program: Any, constants: dict[str, np.ndarray], inputs: Arrays, bits: int) -> Arrays:
    values = constants | dict(zip(program["inputs"], inputs, strict=True))
    for row in program["instructions"]:
        operands = [values[name].astype(np.int64) for name in row["reads"]]
        sums = [_mac(row, *operands, bits=bits)] if row["unit"] == "mac" else _alu(row, operands)
        scaled = sum(x * np.array(m) for x, m in zip(sums, row["multipliers"], strict=True))
        steps = (scaled + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS  # rounds half up
        clamped = np.clip(steps + row["zero_point"], *row["clamp"])
        values[row["writes"]] = clamped.astype(np.int8).reshape(row["shape"])
    return [values[name] for name in program["outputs"]]


def _alu(row: Any, operands: Arrays) -> Arrays:
    return [x - zero for x, zero in zip(operands, row["zero_points"], strict=True)]


def _mac(row: Any, x: np.ndarray, weight: np.ndarray, *bias: np.ndarray, bits: int) -> np.ndarray:
    """x * weight + bias. A sum that does not fit the accumulator wraps around."""
    sums = (x - row["zero_points"][0]) @ weight.T + sum(bias)
    half = 1 << (bits - 1)
    return (sums + half) % (2 * half) - half
