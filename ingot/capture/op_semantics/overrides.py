"""Declared exceptions: what an experiment cannot tell. Each row says why."""

from __future__ import annotations

from typing import Any

from ingot.capture.op_semantics.effect import Effect, creates

_UNDEFINED = "its content is undefined: fresh memory may by chance hold the operand's numbers"

# operator name without overload -> the effect
ROWS: dict[str, Effect] = {
    "aten::empty_like": creates(_UNDEFINED),
    "aten::new_empty": creates(_UNDEFINED),
    "aten::new_empty_strided": creates(_UNDEFINED),
}


def row_of(target: Any) -> Effect | None:
    """The declared row of an operator, if it has one."""
    schema = getattr(target, "_schema", None)
    return ROWS.get(schema.name) if schema is not None else None
