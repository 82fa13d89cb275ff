"""Writes docs/api.md from the signatures and docstrings of `ingot.__all__`: python docs/make_api.py"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ingot

HEAD = """# API reference

Generated from the code by `python docs/make_api.py`. Recipe keys are explained in [recipes](recipes.md), terms in the
[glossary](glossary.md).
"""


def page() -> str:
    public = {name: getattr(ingot, name) for name in ingot.__all__ if name != "__version__"}
    functions = {name: f for name, f in public.items() if inspect.isroutine(f)}
    errors = {name: c for name, c in public.items() if inspect.isclass(c) and issubclass(c, Exception)}
    classes = {name: c for name, c in public.items() if inspect.isclass(c) and name not in errors}
    aliases = {name: t for name, t in public.items() if name not in {**functions, **errors, **classes}}
    return "\n".join(
        [
            HEAD,
            "## Functions\n",
            *(line for name, function in functions.items() for line in _function(name, function)),
            "## Classes\n",
            *(line for name, kind in classes.items() for line in _class(name, kind)),
            *(line for name, kind in aliases.items() for line in _alias(name, kind)),
            "## Exceptions\n",
            *(_item(f"- `{name}`: {_doc(kind)}") for name, kind in errors.items()),
            "",
        ]
    )


def _function(name: str, function: Any) -> Iterator[str]:
    yield f"### ingot.{name}\n\n```\n{name}{_signature(function)}\n```\n\n{_doc(function)}\n"


def _signature(function: Any) -> str:
    """On one line where it fits, else one line for each argument."""
    signature = inspect.signature(function)
    flat = _unquoted(str(signature))
    if len(flat) < 100:
        return flat
    parameters = signature.parameters.values()
    named = [str(p) for p in parameters if p.kind is p.KEYWORD_ONLY]
    lines = [*(str(p) for p in parameters if p.kind is not p.KEYWORD_ONLY), *(["*"] if named else []), *named]
    return _unquoted("(\n" + "".join(f"    {line},\n" for line in lines)) + ")" + flat.rpartition(")")[2]


def _unquoted(signature: str) -> str:
    """Annotations are strings, because nothing is imported for them."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"### ingot.{name}\n\n{_doc(kind)}\n"
    yield from map(_item, _fields(kind))
    for method, member in vars(kind).items():
        if not method.startswith("_") and method not in _validators(kind) and (line := _member(method, member)):
            yield _item(line)
    yield ""


def _alias(name: str, kind: Any) -> Iterator[str]:
    """A union of types."""
    yield f"### ingot.{name}\n\n{_item(f'`{kind}`')}\n"


def _item(text: str) -> str:
    """One entry of a list, in lines of 120 columns."""
    return textwrap.fill(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _validators(kind: Any) -> set[str]:
    """Methods that pydantic calls, not users."""
    found = getattr(kind, "__pydantic_decorators__", None)
    return {"model_post_init", *found.field_validators, *found.model_validators} if found else set()


def _fields(kind: Any) -> Iterator[str]:
    """Of a dataclass or of a pydantic model."""
    if dataclasses.is_dataclass(kind):
        yield from (_field(f.name, f.type, f.default) for f in dataclasses.fields(kind) if f.repr)
        return
    annotations = inspect.get_annotations(kind)
    for name, field in getattr(kind, "model_fields", {}).items():
        yield _field(name, annotations.get(name, field.annotation), field.default)


def _field(name: str, kind: Any, default: Any) -> str:
    plain = isinstance(default, (str, int, float, bool, type(None)))
    return f"- `{name}: {kind}{f' = {default!r}' if plain else ''}`"


def _member(name: str, member: Any) -> str | None:
    function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
    if isinstance(member, property):
        return f"- `{name}` (property): {_doc(member)}" if member.__doc__ else f"- `{name}` (property)"
    if not inspect.isfunction(function):
        return None
    called = (
        _unquoted(str(inspect.signature(function)))
        .replace("(self, ", "(")
        .replace("(self)", "()")
        .replace("(cls, ", "(")
    )
    return f"- `{name}{called}`: {_doc(function)}" if function.__doc__ else f"- `{name}{called}`"


def _doc(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


if __name__ == "__main__":
    (Path(__file__).parent / "api.md").write_text(page())
