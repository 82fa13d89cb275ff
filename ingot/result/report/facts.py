"""All data of a report page as one JSON object: the content of `report.json`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.errors import InputError
from ingot.result.report.summary_figures import derived
from ingot.result.report.text import Facts, json_ready, summary_facts

if TYPE_CHECKING:
    from ingot.result.casting import Casting

FILE = "report.json"
NEEDED = ("target", "bytes", "delegates", "host_ops", "io", "check", "nodes", "weights", "sizes")


def facts_of(casting: Casting) -> Facts:
    """The summary, and the details of every value."""
    facts, details = summary_facts(casting), json_ready(asdict(casting.details))
    notes = [*facts["notes"], *details["notes"]]
    full = {**facts, "hosted": dict(casting.hosted), **details, "notes": notes}
    return {**full, **derived(full)}


def to_json(facts: Facts) -> str:
    """One line per value, so that two files can be compared with diff."""
    rows = {k: f"[\n{_rows(facts[k])}\n]" for k in ("nodes", "weights") if facts[k]}
    parts = [f"{json.dumps(k)}: {rows.get(k) or json.dumps(v, allow_nan=False)}" for k, v in facts.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rows(things: list[Any]) -> str:
    return ",\n".join(json.dumps(t, allow_nan=False) for t in things)


def read_facts(path: Path) -> Facts:
    """Read `report.json`, from the folder of a cast or from the file itself."""
    file = path / FILE if path.is_dir() else path
    try:
        facts = json.loads(file.read_bytes())
    except (OSError, ValueError) as e:
        hint = "name the folder that `ingot cast -o` wrote"
        raise InputError(f"{file} cannot be read as a report", why=str(e), hint=hint) from e
    missing = [k for k in NEEDED if k not in facts] if isinstance(facts, dict) else list(NEEDED)
    if missing:
        why, hint = f"it has no {', '.join(missing)}", "cast again with this version: earlier ones wrote less"
        raise InputError(f"{file} is not a report of this version of Ingot", why=why, hint=hint)
    return _with_new_keys(facts)


def _with_new_keys(facts: Facts) -> Facts:
    """Rename the keys that version 0.9 wrote."""
    facts.setdefault("sqnr_drops", facts.pop("falls", []))
    recorded = facts.get("recorded")
    if isinstance(recorded, dict):
        recorded.setdefault("suspect_values", recorded.pop("lacking", {}))
    return facts
