"""Writes docs/api.md from the signatures and docstrings of `ingot.__all__`: python docs/make_api.py"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ingot

HEAD = """# API reference

Made from the code by `python docs/make_api.py`: the public contract. What a recipe may say is in [recipes](recipes.md).
"""


def page() -> str:
    things = {name: getattr(ingot, name) for name in ingot.__all__ if name != "__version__"}
    verbs = [line for name, thing in things.items() if not inspect.isclass(thing) for line in _verb(name, thing)]
    data = {name: t for name, t in things.items() if inspect.isclass(t) and not issubclass(t, Exception)}
    errors = {name: t for name, t in things.items() if inspect.isclass(t) and issubclass(t, Exception)}
    return "\n".join(
        [
            HEAD,
            "## Verbs\n",
            *verbs,
            "## Data\n",
            *(line for name, kind in data.items() for line in _class(name, kind)),
            "## Errors\n",
            *(f"- `{name}`: {_words(kind)}" for name, kind in errors.items()),
            "",
        ]
    )


def _verb(name: str, function: Any) -> Iterator[str]:
    yield f"### ingot.{name}\n\n```\n{name}{_signature(function)}\n```\n\n{_words(function)}\n"


def _signature(function: Any) -> str:
    """One line where it fits, else one for each argument."""
    signature = inspect.signature(function)
    flat = _unquoted(str(signature))
    if len(flat) < 100:
        return flat
    given = signature.parameters.values()
    named = [str(p) for p in given if p.kind is p.KEYWORD_ONLY]
    lines = [*(str(p) for p in given if p.kind is not p.KEYWORD_ONLY), *(["*"] if named else []), *named]
    return _unquoted("(\n" + "".join(f"    {line},\n" for line in lines)) + ")" + flat.rpartition(")")[2]


def _unquoted(signature: str) -> str:
    """Annotations are strings, since nothing is imported for them."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"### ingot.{name}\n\n{_words(kind)}\n"
    if dataclasses.is_dataclass(kind):
        yield from (_field(f) for f in dataclasses.fields(kind) if f.repr)
    for method, member in vars(kind).items():
        if not method.startswith("_") and (line := _member(method, member)):
            yield line
    yield ""


def _field(field: dataclasses.Field[Any]) -> str:
    plain = isinstance(field.default, (str, int, float, bool, type(None)))
    default = f" = {field.default!r}" if plain else ""
    return f"- `{field.name}: {field.type}{default}`"


def _member(name: str, member: Any) -> str | None:
    function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
    if isinstance(member, property):
        return f"- `{name}` (property): {_words(member)}" if member.__doc__ else f"- `{name}` (property)"
    if not inspect.isfunction(function):
        return None
    called = (
        _unquoted(str(inspect.signature(function)))
        .replace("(self, ", "(")
        .replace("(self)", "()")
        .replace("(cls, ", "(")
    )
    return f"- `{name}{called}`: {_words(function)}" if function.__doc__ else f"- `{name}{called}`"


def _words(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


if __name__ == "__main__":
    (Path(__file__).parent / "api.md").write_text(page())
