"""Outputs whose size depends on values: boxes above a score, the places of what is not zero.

Quantization moves values across a threshold, so such an output may have another size than the float model's. It must
have the size of its quantized graph, and is compared with the float model where that has as many elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from ingot.capture.export import Program
from ingot.core.artefact import OutputCheck
from ingot.core.fx import has_symbols, output_nodes, value_of
from ingot.verify.judge_output import Compared, judge_output
from ingot.verify.metrics import shape_defect


def is_sized_by_values(program: Program, i: int, float_: Sequence[Tensor], graph: Sequence[Tensor]) -> bool:
    """Its size is open, although those of the inputs are fixed; or two programs gave different ones."""
    returned = [n for n in output_nodes(program.module) if isinstance(value_of(n), Tensor)]
    is_open = program.dynamic_shapes is None and i < len(returned) and has_symbols(value_of(returned[i]).shape)
    return is_open or shape_defect(float_, graph) is not None


def judge_sized_by_values(name: str, given: Compared, min_sqnr_db: float) -> tuple[OutputCheck, tuple[str, ...]]:
    """The verdict, and a note where it is on some of the batches only."""
    count, defect = len(given.artefact), shape_defect(given.quantized, given.artefact)
    if defect is not None:
        return failed_output(name, f"{defect}, which its quantized graph has"), ()
    each = enumerate(zip(given.reference, given.quantized, strict=True))
    alike = [k for k, (f, g) in each if f.shape == g.shape]
    if not alike:
        why = f"its size depends on values, and is the float model's in none of {count} batches"
        return failed_output(name, why, disagrees=False), ()
    reference, graph, made = ([side[k] for k in alike] for side in (given.reference, given.quantized, given.artefact))
    check = judge_output(name, Compared(reference, graph, made), min_sqnr_db)
    note = f"the size of {name} depends on values: judged on the {len(alike)} of {count} batches with the float model's"
    return check, (note,) if len(alike) < count else ()


def failed_output(name: str, problem: str, disagrees: bool = True) -> OutputCheck:
    return OutputCheck(name, -math.inf, math.inf, -math.inf, -math.inf, problem, disagrees=disagrees)
