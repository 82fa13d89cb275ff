"""Declared effects of ops that a probe cannot classify, with the reason."""

from __future__ import annotations

from typing import Any

from ingot.capture.op_semantics.effect import Effect, creates

_UNDEFINED = "its content is undefined: uninitialized memory may contain the values of the operand"

# operator name without overload -> the effect
OVERRIDES: dict[str, Effect] = {
    "aten::empty_like": creates(_UNDEFINED),
    "aten::new_empty": creates(_UNDEFINED),
    "aten::new_empty_strided": creates(_UNDEFINED),
}


def override_of(target: Any) -> Effect | None:
    """The declared effect of an op, or None."""
    schema = getattr(target, "_schema", None)
    return OVERRIDES.get(schema.name) if schema is not None else None
