"""Commands that read saved castings: report, compare. No model is needed."""

from __future__ import annotations

import argparse
from pathlib import Path

from ingot.cli.files import check_file, read_plan
from ingot.cli.fleet_commands import compare_fleet_folders
from ingot.cli.output import OK, Answer
from ingot.core.atomic_file import atomic_write
from ingot.errors import InputError
from ingot.fleet.store import is_fleet
from ingot.result.report.compare import compare_castings, comparison_text
from ingot.result.report.facts import read_facts
from ingot.result.report.html import document, page


def report(options: argparse.Namespace) -> Answer:
    folder = options.folder if options.folder.is_dir() else options.folder.parent
    file = options.output or folder / "report.html"
    _write(file, page(read_facts(options.folder)))
    return OK, {"file": str(file)}, f"written to {file}"


def compare(options: argparse.Namespace) -> Answer:
    paths = (options.first, options.second)
    if all(map(is_fleet, paths)):
        return compare_fleet_folders(*paths, options.html)
    first, second = ((str(path), read_facts(path), read_plan(path)) for path in paths)
    try:
        made = compare_castings(first, second)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        why, hint = f"a part is missing or of the wrong kind ({e!r})", "cast again with this Ingot"
        raise InputError(f"{first[0]} and {second[0]} cannot be compared", why=why, hint=hint) from e
    if options.html:
        _write(options.html, document(f"{first[0]} against {second[0]}", made))
    told = [comparison_text(made), *([f"written to {options.html}"] if options.html else [])]
    return OK, made, "\n".join(told)


def _write(file: Path, text: str) -> None:
    check_file(file)
    with atomic_write(file) as f:
        f.write(text.encode())
