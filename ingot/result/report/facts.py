"""All that a page shows, as one object of plain data: what `report.json` holds."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.errors import InputError
from ingot.result.report.derived import derived
from ingot.result.report.text import Facts, as_data, plain

if TYPE_CHECKING:
    from ingot.result.casting import Casting

FILE = "report.json"
NEEDED = ("target", "bytes", "delegates", "host_ops", "io", "check", "nodes", "weights", "sizes")


def facts_of(casting: Casting) -> Facts:
    """The facts of the terminal, and the details of every value."""
    facts, details = as_data(casting), plain(asdict(casting.details))
    notes = [*facts["notes"], *details["notes"]]
    whole = {**facts, "hosted": dict(casting.hosted), **details, "notes": notes}
    return {**whole, **derived(whole)}


def to_json(facts: Facts) -> str:
    """One line a value, so that two files can be compared by eye and by diff."""
    rows = {k: f"[\n{_rows(facts[k])}\n]" for k in ("nodes", "weights") if facts[k]}
    parts = [f"{json.dumps(k)}: {rows.get(k) or json.dumps(v, allow_nan=False)}" for k, v in facts.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rows(things: list[Any]) -> str:
    return ",\n".join(json.dumps(t, allow_nan=False) for t in things)


def read_facts(path: Path) -> Facts:
    """What a cast wrote, from its folder or from the file itself."""
    file = path / FILE if path.is_dir() else path
    try:
        facts = json.loads(file.read_bytes())
    except (OSError, ValueError) as e:
        hint = "name the folder that `ingot cast -o` wrote"
        raise InputError(f"{file} cannot be read as a report", why=str(e), hint=hint) from e
    missing = [k for k in NEEDED if k not in facts] if isinstance(facts, dict) else list(NEEDED)
    if missing:
        why, hint = f"it has no {', '.join(missing)}", "cast again: earlier versions wrote less"
        raise InputError(f"{file} is no report of this Ingot", why=why, hint=hint)
    return dict(facts)
