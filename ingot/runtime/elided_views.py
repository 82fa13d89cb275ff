"""Values of a program that no instruction writes: ExecuTorch elides static reshapes and lets them share memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any


def elided_views(plan: Any) -> dict[int, int]:
    """By value that is another one in another shape: that other value, which was last written to its memory."""
    written: dict[Any, int] = {p: i for i in plan.inputs if (p := _place(plan, i)) is not None}
    views: dict[int, int] = {}
    known, calls = set(plan.inputs), [i.instr_args for i in plan.chains[0].instructions]
    for n, call in enumerate(calls):
        results = set(_results(plan, call, known, written, calls[n + 1 :]))
        views |= _views(plan, set(_tensors(plan, _arguments(call))) - results - known, written)
        known |= results | views.keys()
        written |= {p: i for i in results if (p := _place(plan, i)) is not None}
    return views | _views(plan, set(plan.outputs) - known, written)


def _views(plan: Any, unwritten: set[int], written: dict[Any, int]) -> dict[int, int]:
    return {i: written[p] for i in unwritten if (p := _place(plan, i)) in written}


def _results(plan: Any, call: Any, known: set[int], written: dict[Any, int], later: list[Any]) -> Iterator[int]:
    """Of a kernel: its last argument. Of a delegate: what follows the last operand, and its first is never a result."""
    arguments = list(_tensors(plan, _arguments(call)))
    if hasattr(call, "op_index"):
        yield from _tensors(plan, call.args[-1:])
    elif hasattr(call, "delegate_index"):
        last = max((n for n, i in enumerate(arguments) if i in known), default=0)
        used = {i for c in later for i in _tensors(plan, _arguments(c))} | set(plan.outputs)
        yield from (i for i in arguments[last + 1 :] if i in used or _place(plan, i) not in written)
    elif hasattr(call, "move_to"):
        yield call.move_to


def _arguments(call: Any) -> list[int]:
    if hasattr(call, "move_to"):
        return [call.move_from, call.move_to]
    return list(getattr(call, "args", ()))


def _tensors(plan: Any, indices: Any) -> Iterator[int]:
    """Also those in lists, where -1 means no tensor."""
    for i in indices:
        val = plan.values[i].val
        if type(val).__name__ == "Tensor":
            yield i
        elif type(val).__name__ in ("TensorList", "OptionalTensorList"):
            yield from (n for n in val.items if n >= 0)


def _place(plan: Any, i: int) -> Any:
    """Where the value is, and what type it has; None: it has no planned memory."""
    val = plan.values[i].val
    at = getattr(val, "allocation_info", None)
    if at is None or val.data_buffer_idx:
        return None
    return at.memory_id, at.memory_offset_high, at.memory_offset_low, val.scalar_type, math.prod(val.sizes)
