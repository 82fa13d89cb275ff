"""What users write, checked by pydantic; its errors in Ingot's form: what · where · why · try."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, dataclass_transform, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ingot.errors import InputError, nearest

T = TypeVar("T")
# Strict: "20" is no number and 1 is no bool, in Python as in TOML. An int is a float.
# Docstrings of fields are descriptions in the JSON schema.
CONFIG = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

UNKNOWN_KEY = ("unexpected_keyword_argument", "extra_forbidden")  # as pydantic names it, of a dataclass and of a model


@dataclass_transform(frozen_default=True)
def checked(what: str) -> Callable[[type[T]], type[T]]:
    """A frozen dataclass whose fields are validated whenever it is made; a wrong one is an InputError."""

    def decorate(kind: type[T]) -> type[T]:
        made: Any = dataclass(frozen=True, config=CONFIG)(kind)
        init = made.__init__

        @wraps(init)
        def checked_init(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                init(self, *args, **kwargs)
            except ValidationError as e:
                raise refusal(e, what, made) from e

        made.__init__ = checked_init
        return made

    return decorate


def parsed(kind: type[T], data: object, what: str) -> T:
    """`data` (of TOML or JSON) as `kind`, which may be any type that pydantic knows."""
    try:
        return TypeAdapter(kind).validate_python(data, strict=False)
    except ValidationError as e:
        raise refusal(e, what, kind) from e


def parsed_json(kind: type[T], text: str | bytes, what: str) -> T:
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as e:
        raise refusal(e, what, kind) from e


def refusal(error: ValidationError, what: str, kind: Any) -> InputError:
    """The first problem: its path, what was expected. An unknown key, with the nearest one, before one missing."""
    found = error.errors(include_url=False)
    first = next((e for e in found if e["type"] in UNKNOWN_KEY), found[0])
    path = [p for p in first["loc"] if not isinstance(p, str) or "[" not in p]
    key = str(path[-1]) if path else ""
    if first["type"] in UNKNOWN_KEY:
        inner, inside = _kind_at(kind, path[:-1]), ".".join(map(str, path[:-1]))
        known = [f.name for f in dataclasses.fields(inner)] if dataclasses.is_dataclass(inner) else []
        told = f"unknown key '{key}' in {what}" + (f", in {inside}" if inside else "")
        return InputError(told, hint=nearest(key, known) if known else None)
    where = ".".join(map(str, path))
    why = f"{first['msg']}; given: {first['input']!r:.80}" if not isinstance(first["input"], dict) else first["msg"]
    return InputError(f"'{where}' in {what} is not valid" if where else f"{what} is not valid", why=why)


def _kind_at(kind: Any, path: Sequence[object]) -> Any:
    """The type of what is at `path` in a `kind`: of a field, of the values of a dict, of the items of a list."""
    for key in path:
        fields = get_type_hints(kind) if dataclasses.is_dataclass(kind) else None
        inner = next(iter(get_args(kind)[-1:]), None) if fields is None else fields.get(str(key))
        kind = next((k for k in get_args(inner) if dataclasses.is_dataclass(k)), inner) if _optional(inner) else inner
    return kind


def _optional(kind: Any) -> bool:
    return type(None) in get_args(kind)


def fields_of(kind: type[T], data: Mapping[str, Any], what: str) -> T:
    """One table of a file as its dataclass."""
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in data:
        if name not in known:
            raise InputError(f"unknown key '{name}' in {what}", hint=nearest(name, known))
    return kind(**data)
