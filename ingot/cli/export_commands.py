"""The command that writes a cast in the formats of other tools: export."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from ingot import __version__
from ingot.cli.files import check_file, read_bytes
from ingot.cli.output import OK, Answer
from ingot.core.atomic_file import atomic_write
from ingot.data import load_calibration
from ingot.errors import ArtefactError, InputError
from ingot.result.casting import Casting
from ingot.result.export.c_header import c_header
from ingot.result.export.op_list import op_list_yaml
from ingot.result.report.facts import read_facts


def export(options: argparse.Namespace) -> Answer:
    """Write what was asked for; nothing is written before all of it is made."""
    asked = {name: Path(file) for name in WRITERS if (file := getattr(options, name)) is not None}
    if not asked:
        flags = ", ".join(f"--{name.replace('_', '-')} FILE" for name in WRITERS)
        raise InputError("nothing to export", why="no file was named", hint=flags)
    _refuse_unused(options, asked)
    for file in asked.values():
        check_file(file)
    casting = _loaded(options.folder)
    made = {name: WRITERS[name](casting, options) for name in asked}
    for name, file in asked.items():
        with atomic_write(file) as f:
            f.write(made[name])
    text = "\n".join(f"written to {file}" for file in asked.values())
    return OK, {"files": {name: str(file) for name, file in asked.items()}}, text


def _refuse_unused(options: argparse.Namespace, asked: dict[str, Path]) -> None:
    if options.data is not None and "bundle" not in asked:
        raise InputError("--data would be ignored", why="it gives the test vectors of --bundle", hint="leave it out")
    if options.c_prefix is not None and "c_header" not in asked:
        raise InputError("--c-prefix would be ignored", why="it names what --c-header defines", hint="leave it out")


def _loaded(folder: Path) -> Casting:
    read_bytes(folder / "model.pte")  # an error that names the folders below, where there are several
    return Casting.load(folder)


def _op_list(casting: Casting, options: argparse.Namespace) -> bytes:
    return op_list_yaml(casting.pte, [d.backend for d in casting.delegates]).encode()


def _c_header(casting: Casting, options: argparse.Namespace) -> bytes:
    title = f"Inputs and outputs of a program for {casting.target}, by ingot {__version__}."
    return c_header(casting.io, title, options.c_prefix or "model").encode()


def _bundle(casting: Casting, options: argparse.Namespace) -> bytes:
    from ingot.result.export.bundled import bundled_program

    if options.data is None:
        return bundled_program(casting)
    program = casting.needed_evidence.program
    fixed = program.dynamic_shapes is None
    return bundled_program(
        casting, load_calibration(options.data, program.example_inputs, names=program.input_names, fixed_shapes=fixed)
    )


def _etrecord(casting: Casting, options: argparse.Namespace) -> bytes:
    from ingot.result.export.etrecord import etrecord

    return etrecord(casting)


def _model_explorer(casting: Casting, options: argparse.Namespace) -> bytes:
    from ingot.result.export.etrecord import seconds_by_value
    from ingot.result.export.model_explorer import model_explorer_json

    try:
        seconds = seconds_by_value(casting)
    except ArtefactError:  # several methods, or saved without its graphs: all but the times can be shown
        seconds = {}
    return model_explorer_json(read_facts(options.folder), seconds).encode()


# By option: what makes the bytes of its file.
WRITERS: dict[str, Callable[[Casting, argparse.Namespace], bytes]] = {
    "op_list": _op_list,
    "c_header": _c_header,
    "bundle": _bundle,
    "etrecord": _etrecord,
    "model_explorer": _model_explorer,
}
