"""The folder of a fleet: prepared models, a folder for each cell, the history of sweeps. Files appear whole or not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ingot.core.atomic_file import atomic_write, write_folders
from ingot.errors import InputError
from ingot.fleet.jobs import ROW
from ingot.fleet.opened_files import all_unchanged
from ingot.fleet.rows import AGAIN, Cell, Row, cell_path, full_row
from ingot.result.report.text import json_ready

FLEET, HISTORY = "fleet.json", "history"
FACTS = "prepared.json"


@dataclass(frozen=True)
class FleetStore:
    root: Path

    def cell_folder(self, cell: Cell) -> Path:
        return self.root / cell.path

    def model_folder(self, name: str) -> Path:
        return self.root / "models" / name

    def row(self, cell: Cell) -> Row | None:
        """The row of this very cell: made from the same model, data, recipe and versions."""
        found = read_json(self.cell_folder(cell) / ROW)
        return found if found and found.get("key") == cell.key and found.get("verdict") not in AGAIN else None

    def write_cell(self, cell: Cell, row: Row, files: Mapping[str, bytes], log: bytes) -> Row:
        """The row is written last: a cell without one is not done."""
        folder, full = self.cell_folder(cell), full_row(cell, row, {})
        shutil.rmtree(folder, ignore_errors=True)
        kept = {n: d for n, d in files.items() if n != ROW} | ({"log.txt": log} if log else {})
        if kept:
            write_folders({folder: kept})
        with atomic_write(folder / ROW) as f:
            f.write(json.dumps(json_ready(full), indent=1, allow_nan=False).encode())
        return full

    def prepared(self, name: str, asked: str, base: Path) -> dict[str, Any] | None:
        """Facts of a prepared model that is still the one that the fleet file asks for."""
        facts = read_json(self.model_folder(name) / FACTS)
        if facts is None or facts.get("asked") != asked or not all_unchanged(facts.get("read", {}), base):
            return None
        return facts

    def write_prepared(self, name: str, files: Mapping[str, bytes], asked: str) -> dict[str, Any]:
        facts = {**json.loads(files[FACTS]), "asked": asked}
        folder = self.model_folder(name)
        shutil.rmtree(folder, ignore_errors=True)
        write_folders({folder: {n: d for n, d in files.items() if n != FACTS}})
        with atomic_write(folder / FACTS) as f:
            f.write(json.dumps(facts, indent=1).encode())
        return facts

    def rows(self) -> list[Row]:
        """Of all cells that the folder holds."""
        found = (read_json(p) for p in sorted(self.root.glob(f"cells/*/*/*/{ROW}")))
        return [r for r in found if r]

    def last_rows(self) -> list[Row]:
        """Of the cells of the last sweep that ended: a model that was taken out of the fleet file has none."""
        swept = {cell_path(c) for c in (read_json(self.root / FLEET) or {}).get("cells", ())}
        return [r for r in self.rows() if cell_path(r) in swept]

    def end_sweep(self, rows: list[Row], cells: list[Cell], started: str) -> None:
        """What this sweep showed, for the trends over sweeps."""
        with atomic_write(self.root / FLEET) as f:
            f.write(json.dumps({"cells": [asdict(c) for c in cells], "started": started}, indent=1).encode())
        with atomic_write(self.root / HISTORY / f"{started.replace(':', '')}.json") as f:
            f.write(json.dumps({"started": started, "rows": [_kept(r) for r in rows]}).encode())

    def history(self) -> Iterator[dict[str, Any]]:
        """From the first sweep to the last."""
        yield from filter(None, (read_json(p) for p in sorted((self.root / HISTORY).glob("*.json"))))


HISTORY_KEYS = ("model", "target", "recipe", "verdict", "sqnr_db", "bytes", "measured_seconds", "cycles", "versions")


def _kept(row: Row) -> Row:
    return {k: row[k] for k in HISTORY_KEYS if row.get(k) is not None}


def is_fleet(folder: Path) -> bool:
    return (folder / FLEET).is_file()


def read_json(path: Path) -> dict[str, Any] | None:
    """None where there is no file. A damaged one is refused: it would be taken for a cell that is not done."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as e:
        raise InputError(f"cannot read {path}", why=str(e), hint="remove it: the sweep makes it again") from e
    if not isinstance(found, dict):
        raise InputError(f"{path} is not a record of a fleet", hint="remove it: the sweep makes it again")
    return found
