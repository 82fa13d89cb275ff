"""Files that the shell reads, and places that it writes to: refused before minutes of work."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from ingot.core.atomic_file import nearest_folder, writing
from ingot.errors import IngotError, InputError, nearest
from ingot.plan.plan_data import Plan


def check_folder(output: Path) -> None:
    """Refuse before minutes of work, not after."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file", why="the output is a folder", hint="name another one with -o")
    with writing([output]), tempfile.TemporaryDirectory(dir=nearest_folder(output)):
        pass


def check_file(output: Path) -> None:
    """A device or a folder must not be replaced by a file."""
    if output.exists() and not output.is_file():
        raise InputError(f"{output} is no file", why="the output replaces a file", hint="name another one with -o")


def read_plan(path: Path, target: str | None = None) -> Plan:
    """The plan in a file, or in the folder of a cast; of one target where several are there."""
    file = _plan_file(path, target)
    try:
        data = json.loads(read_bytes(file))
        chosen = _chosen(data, target, file)
        return Plan.from_json(json.dumps(chosen))
    except IngotError:
        raise
    except Exception as e:
        hint = "plans are written by `ingot cast` and `ingot plan`"
        raise InputError(f"{file} is no plan", why=f"{type(e).__name__}: {e}", hint=hint) from e


def _plan_file(path: Path, target: str | None) -> Path:
    if not path.is_dir():
        return path
    below = path / target / "plan.json" if target else path / "plan.json"
    return below if below.exists() else path / "plan.json"


def _chosen(data: Any, target: str | None, file: Path) -> Any:
    """`ingot plan` with several targets writes one plan each, by target."""
    if not isinstance(data, dict) or "decisions" in data:
        found = data.get("target") if isinstance(data, dict) else None
        if target is not None and found not in (None, target):
            raise InputError(f"{file} is a plan for {found}", hint=f"leave --target {target} out")
        return data
    if target is None:
        raise InputError(f"{file} holds several plans", hint=f"--target {' or '.join(data)}")
    if target not in data:
        raise InputError(f"{file} holds no plan for {target}", hint=nearest(target, data))
    return data[target]


def read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as e:
        below = [str(p.parent) for p in file.parent.glob(f"*/{file.name}")]
        hint = nearest(str(file.parent), below) if below else "name the folder that a cast wrote, or a file in it"
        raise InputError(f"cannot read {file}", why=e.strerror, hint=hint) from e
