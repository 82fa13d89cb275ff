"""Tensor specs: how one tensor is stored: integer type, range and qparams, given or measured; or float."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from ingot.config.validation import checked, fields_of
from ingot.errors import InputError, nearest

LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


@checked("a tensor spec")
class Spec:
    """A fixed scale, or one from the measured range (scale None); or float."""

    dtype: str
    scale: float | None = None
    zero_point: int = 0
    qmin: int | None = None
    qmax: int | None = None

    def __post_init__(self) -> None:
        if self.is_float:
            if (self.scale, self.zero_point, self.qmin, self.qmax) != (None, 0, None, None):
                raise InputError("a float tensor has no scale, zero point or range", why=str(self))
            return
        if self.dtype not in LIMITS:
            raise InputError(f"a tensor cannot be stored as '{self.dtype}'", hint=nearest(self.dtype, LIMITS))
        self._complete_range(*LIMITS[self.dtype])

    def _complete_range(self, low: int, high: int) -> None:
        qmin, qmax = low if self.qmin is None else self.qmin, high if self.qmax is None else self.qmax
        object.__setattr__(self, "qmin", qmin)
        object.__setattr__(self, "qmax", qmax)
        if not low <= qmin < qmax <= high:
            raise InputError(f"{self.dtype} holds {low} … {high}, not {qmin} … {qmax}")
        if self.scale is not None and not (0 < self.scale < float("inf") and qmin <= self.zero_point <= qmax):
            raise InputError("a scale is positive and finite, and a zero point is in the range", why=str(self))

    @property
    def is_float(self) -> bool:
        return self.dtype == "float"

    @property
    def is_cut(self) -> bool:
        """Its range is smaller than its type's."""
        return (self.qmin, self.qmax) != LIMITS[self.dtype]


# Named specs, as graphics APIs call them: normalised integers for -1 … 1 or 0 … 1.
NAMED = {
    "float": Spec("float"),
    "int8": Spec("int8"),
    "int16": Spec("int16"),
    "snorm8": Spec("int8", 1 / 127, 0, -127, 127),
    "snorm16": Spec("int16", 1 / 32767, 0, -32767, 32767),
    "unorm8": Spec("uint8", 1 / 255, 0, 0, 255),
}


def spec_from(value: Any) -> Spec | None:
    """A Spec from itself, a name or a table; None stays None."""
    if value is None or isinstance(value, Spec):
        return value
    if isinstance(value, str):
        if value not in NAMED:
            raise InputError(f"unknown tensor spec '{value}'", hint=nearest(value, NAMED))
        return NAMED[value]
    if not isinstance(value, Mapping):
        raise InputError(f"a tensor spec is a name or a table, not a {type(value).__name__}", hint="'snorm8'")
    return fields_of(Spec, value, "a tensor spec")


def specs_from(value: Any) -> tuple[tuple[str | int, Spec | None], ...]:
    """A list is by position, a table by name."""
    if isinstance(value, Mapping):
        return tuple((k, spec_from(v)) for k, v in value.items())
    if isinstance(value, (tuple, list)) and all(isinstance(v, (tuple, list)) and len(v) == 2 for v in value):
        return tuple((k, spec_from(v)) for k, v in value)  # in this form already
    if isinstance(value, (list, tuple)):
        return tuple((i, spec_from(v)) for i, v in enumerate(value))
    raise InputError(f"tensor specs are a list or a table, not a {type(value).__name__}", hint="inputs = ['snorm8']")


_TABLE = {
    "type": "object",
    "properties": {
        "dtype": {"enum": [*LIMITS, "float"]},
        "scale": {"type": "number", "exclusiveMinimum": 0},
        **{k: {"type": "integer"} for k in ("zero_point", "qmin", "qmax")},
    },
    "required": ["dtype"],
    "additionalProperties": False,
}
_ONE = {"anyOf": [{"enum": list(NAMED)}, _TABLE]}
_MANY = {"anyOf": [{"type": "array", "items": _ONE}, {"type": "object", "additionalProperties": _ONE}]}

OneSpec = Annotated[Spec | None, BeforeValidator(spec_from), WithJsonSchema(_ONE)]
Specs = Annotated[tuple[tuple[str | int, Spec | None], ...], BeforeValidator(specs_from), WithJsonSchema(_MANY)]
