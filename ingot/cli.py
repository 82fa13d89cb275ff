"""The verbs of Ingot for the shell.

Exit codes: 0 done · 1 a bug in Ingot · 2 the command, the data, the model or the target does not fit ·
3 the artefact ran and is wrong · 4 an artefact could not be loaded, run or written · 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ingot.errors import ArtefactError, IngotError, InputError, MismatchError, nearest

if TYPE_CHECKING:  # torch takes seconds to import: only the commands that need it do
    from ingot.casting import Casting, Check
    from ingot.data import LoadedModel
    from ingot.plan.model import Plan
    from ingot.recipe import Recipe
    from ingot.targets import Availability

OK, BUG, REFUSED, WRONG, BROKEN, INTERRUPTED = 0, 1, 2, 3, 4, 130
SAME_WEIGHTS = (
    "try: is it the model that was cast? build() must give the same weights every time (seed it, or load them)"
)
Answer = tuple[int, dict[str, Any], str]  # exit code, what --json prints, what people read


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; never raises, never leaves half a file."""
    args = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in args
    try:
        options = _parser().parse_args(args)
        with _clean_stdout(), _calm():
            code, data, text = options.run(options)
    except SystemExit as e:  # --help and --version
        return int(e.code or 0)
    except KeyboardInterrupt:
        return _fail(INTERRUPTED, {"what": "interrupted"}, "interrupted", as_json)
    except IngotError as e:
        return _fail(_code(e), _error_data(e), str(e), as_json)
    except Exception as e:
        return _bug(e, as_json)
    return _say(code, data, text, as_json)


def _say(code: int, data: dict[str, Any], text: str, as_json: bool) -> int:
    if as_json:
        print(json.dumps(data, indent=2, allow_nan=False))
    elif text:
        print(text)
    return code


def _code(error: IngotError) -> int:
    return WRONG if isinstance(error, MismatchError) else BROKEN if isinstance(error, ArtefactError) else REFUSED


def _fail(code: int, data: dict[str, Any], text: str, as_json: bool) -> int:
    print(f"ingot: {text}", file=sys.stderr)
    return _say(code, {"error": {**data, "exit": code}}, "", as_json)


def _bug(error: Exception, as_json: bool) -> int:
    if os.environ.get("INGOT_DEBUG"):
        traceback.print_exception(error)
    what = "this is a bug in Ingot, not in your model"
    why = f"{type(error).__name__}: {error}"
    hint = "run it again with INGOT_DEBUG=1 and report what it prints"
    bug = IngotError(what, why=why, hint=hint)
    return _fail(BUG, {**_error_data(bug), "type": type(error).__name__}, str(bug), as_json)


def _error_data(error: IngotError) -> dict[str, Any]:
    keys = ("what", "where", "why", "hint")
    data = {"type": type(error).__name__, **{k: getattr(error, k) for k in keys}}
    if getattr(error, "check", None) is not None:
        data["check"] = _plain_check(error.check)  # type: ignore[attr-defined]
    return data


def _plain_check(check: Check) -> dict[str, Any]:
    from ingot.report.text import check_data

    return check_data(check)


@contextmanager
def _clean_stdout() -> Iterator[None]:
    """Stdout is for the answer: what prints there while a command runs (build(), native code) goes to stderr."""
    sys.stdout.flush()
    with redirect_stdout(sys.stderr), ExitStack() as undo:
        with suppress(OSError):  # a closed stdout or stderr needs no care
            saved = os.dup(1)
            undo.callback(os.close, saved)
            undo.callback(os.dup2, saved, 1)
            os.dup2(2, 1)
        yield


@contextmanager
def _calm() -> Iterator[None]:
    """Other packages' warnings are for their developers; INGOT_DEBUG shows them."""
    if os.environ.get("INGOT_DEBUG"):
        yield
        return
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


# The command line


class _Parser(argparse.ArgumentParser):
    """A parser whose refusals are errors of the template, so that --json holds for them too."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, hint=f"{self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ingot", description="Cast a PyTorch model into one quantized ExecuTorch delegate.")
    parser.add_argument("--version", action="version", version=f"ingot {_version()}")
    parser.epilog = (
        "Exit codes: 0 done, 1 bug, 2 input does not fit, 3 artefact wrong, 4 artefact broken or not written."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_add_cast, _add_plan, _add_why, _add_diff, _add_verify, _add_targets, _add_demo):
        add(commands)
    return parser


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ingot")
    except PackageNotFoundError:
        return "(not installed)"


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], Answer], help: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print exactly one JSON object on stdout")
    parser.set_defaults(run=run)
    return parser


def _add_cast(commands: Any) -> None:
    parser = _command(commands, "cast", _cast, "model in, executed and explained .pte out")
    _model_arguments(parser)
    _target_arguments(parser)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="gets model.pte, plan.json, report.json"
    )
    parser.add_argument("--report", action="store_true", help="write report.html too")
    parser.add_argument(
        "--on-mismatch",
        choices=("raise", "keep"),
        default="raise",
        help="keep: write a wrong artefact all the same (still exit 3)",
    )


def _add_plan(commands: Any) -> None:
    parser = _command(commands, "plan", _plan, "only decide: what each value is stored as, as JSON")
    _model_arguments(parser)
    _target_arguments(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the plan there instead of printing it")


def _add_why(commands: Any) -> None:
    parser = _command(commands, "why", _why, "explain one value of a plan")
    parser.add_argument("plan", type=Path, help="a plan.json, or the folder of a cast")
    parser.add_argument("value", help="the name of the value, e.g. conv2d_3")


def _add_diff(commands: Any) -> None:
    parser = _command(commands, "diff", _diff, "what differs between two plans")
    parser.add_argument("first", type=Path, help="a plan.json, or the folder of a cast")
    parser.add_argument("second", type=Path, help="another one")


def _add_verify(commands: Any) -> None:
    parser = _command(commands, "verify", _verify, "run an artefact again and compare it with the model")
    parser.add_argument("artefact", type=Path, help="the folder of a cast, or the model.pte in it")
    _model_arguments(parser)


def _add_targets(commands: Any) -> None:
    _command(commands, "targets", _targets, "what is known, what is installed, how to get the rest")


def _add_demo(commands: Any) -> None:
    _command(commands, "demo", _demo, "train a small CNN on handwritten digits, cast it, compare its accuracy")


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="net.py:build, package.module:build or exported.pt2")
    sources = "data.npz, data.npy, a folder of images, or file.py:function"
    parser.add_argument("--calibrate", metavar="DATA", help=f"{sources} (default: what build() returns)")
    parser.add_argument(
        "--mean", type=float, nargs="+", help="subtracted from images in 0..1, one number or one per channel"
    )
    parser.add_argument("--std", type=float, nargs="+", help="images are divided by it after that")
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")


def _target_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", action="append", required=True, help="see `ingot targets`; may be given several times"
    )
    parser.add_argument("--recipe", type=Path, metavar="FILE.toml", help="demands on precision")


# cast


def _cast(options: argparse.Namespace) -> Answer:
    _check_folder(options.output)
    recipe = _recipe(options.recipe)
    loaded, example, batches = _inputs(options)
    from ingot import api

    targets = list(dict.fromkeys(options.target))
    castings = api.cast(
        loaded.model,
        example,
        target=targets if len(targets) > 1 else targets[0],
        calibration=batches,
        recipe=recipe,
        dynamic_shapes=loaded.dynamic_shapes,
        on_mismatch=options.on_mismatch,
        progress=_progress(options),
    )
    code, data, text = _cast_answer(castings, options.output, options.report)
    return code, data, "" if options.quiet else text


def _cast_answer(castings: Casting | Mapping[str, Casting], output: Path, report: bool) -> Answer:
    """One target fills the folder, several fill one folder each below it."""
    from ingot.report.text import as_data, summary

    several = isinstance(castings, Mapping)
    each = {output / t: c for t, c in castings.items()} if isinstance(castings, Mapping) else {output: castings}
    write_folders({folder: _files(c, report) for folder, c in each.items()})
    facts = {c.target: {**as_data(c), "folder": str(folder)} for folder, c in each.items()}
    code = OK if all(c.check is None or c.check.passed for c in each.values()) else WRONG
    text = "\n\n".join(f"{summary(c)}\nwritten to {folder}" for folder, c in each.items())
    return code, facts if several else next(iter(facts.values())), text


def _files(casting: Casting, report: bool) -> dict[str, bytes]:
    from ingot.report.html import page
    from ingot.report.text import as_data

    facts = json.dumps(as_data(casting), indent=2, allow_nan=False) + "\n"
    files = {"model.pte": casting.pte, "plan.json": casting.plan.to_json().encode(), "report.json": facts.encode()}
    return {**files, "report.html": page(casting).encode()} if report else files


def _check_folder(output: Path) -> None:
    """Refuse before minutes of work, not after."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file", why="the output is a folder", hint="name another one with -o")


def write_folders(folders: Mapping[Path, Mapping[str, bytes]]) -> None:
    """Write everything aside first; only when all of it is on disk does any of it appear."""
    with ExitStack() as undo:
        try:
            staged = {folder: _stage(folder, files, undo) for folder, files in folders.items()}
            for folder, temp in staged.items():
                _move(temp, folder)
        except OSError as e:
            names = ", ".join(str(f) for f in folders)
            hint = "free some space or choose another folder"
            raise ArtefactError(f"could not write {names}", why=str(e), hint=hint) from e


def _stage(folder: Path, files: Mapping[str, bytes], undo: ExitStack) -> Path:
    there = next(p for p in folder.absolute().parents if p.is_dir())  # the same disk, and no folder is made for nothing
    temp = Path(tempfile.mkdtemp(dir=there, prefix=f".{folder.name}."))
    undo.callback(shutil.rmtree, temp, ignore_errors=True)
    for name, content in files.items():
        (temp / name).write_bytes(content)
    return temp


def _move(temp: Path, folder: Path) -> None:
    """File by file into a folder that may hold other people's files; our own stale page goes."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(p.name for p in temp.iterdir())
    for name in names:
        os.replace(temp / name, folder / name)
    page = folder / "report.html"
    if "report.html" not in names and page.is_file() and b'content="ingot"' in page.read_bytes()[:1000]:
        page.unlink()


# plan, why, diff


def _plan(options: argparse.Namespace) -> Answer:
    recipe = _recipe(options.recipe)
    loaded, example, batches = _inputs(options)
    from ingot import api

    progress = _progress(options)
    with progress.step("capture"):
        program = api.capture(loaded.model, example, dynamic_shapes=loaded.dynamic_shapes)
    with progress.step("record") as tick:
        ranges = api.record(program, batches, on_batch=lambda n: tick(n, None))
    with progress.step("plan"):
        plans = {t: api.plan(program, ranges, t, recipe=recipe) for t in dict.fromkeys(options.target)}
    return _plan_answer(plans, options.output, options.quiet)


def _plan_answer(plans: dict[str, Plan], output: Path | None, quiet: bool) -> Answer:
    data = {target: json.loads(plan.to_json()) for target, plan in plans.items()}
    shown = next(iter(data.values())) if len(data) == 1 else data
    text = json.dumps(shown, indent=2)
    if output is None:
        return OK, shown, text
    from ingot.casting import whole_file

    with whole_file(output) as f:
        f.write(text.encode() + b"\n")
    return OK, {"file": str(output)}, "" if quiet else f"written to {output}"


def _why(options: argparse.Namespace) -> Answer:
    text = str(_read_plan(options.plan).why(options.value))
    return OK, {"value": options.value, "why": text}, text


def _diff(options: argparse.Namespace) -> Answer:
    text = str(_read_plan(options.first).diff(_read_plan(options.second)))
    return OK, {"diff": text}, text or "no difference"


def _read_plan(path: Path) -> Plan:
    """The plan in a file, or in the folder of a cast."""
    file = path / "plan.json" if path.is_dir() else path
    text = _read(file)
    from ingot.plan.model import Plan

    try:
        return Plan.from_json(text.decode())
    except IngotError:
        raise
    except Exception as e:
        hint = "plans are written by `ingot cast` and `ingot plan`"
        raise InputError(f"{file} is no plan", why=f"{type(e).__name__}: {e}", hint=hint) from e


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as e:
        below = sorted(str(p.parent) for p in file.parent.glob(f"*/{file.name}")) if file.parent.is_dir() else []
        hint = nearest(str(file.parent), below) if below else "name the folder that a cast wrote, or a file in it"
        raise InputError(f"cannot read {file}", why=e.strerror, hint=hint) from e


# verify, targets, demo


def _verify(options: argparse.Namespace) -> Answer:
    """Capture and replay the plan again for the reference; the program that runs is the one in the file."""
    folder = options.artefact if options.artefact.is_dir() else options.artefact.parent
    pte = _read(folder / "model.pte" if options.artefact.is_dir() else options.artefact)
    plan = _read_plan(folder)
    loaded, example, batches = _inputs(options)
    from ingot import api

    progress = _progress(options)
    with progress.step("capture"):
        program = api.capture(loaded.model, example, dynamic_shapes=loaded.dynamic_shapes)
    with progress.step("lower"):
        casting = replace(api.lower(program, plan), pte=pte)
    with progress.step("verify"):
        check = api.verify(casting, batches)
    return _verify_answer(casting.checked(check, {}), options.quiet)


def _verify_answer(casting: Casting, quiet: bool) -> Answer:
    from ingot.report.text import as_data, outputs, verdict

    assert casting.check is not None
    facts = as_data(casting)
    text = "\n".join([verdict(facts), *outputs(facts), *([] if casting.check.passed else [SAME_WEIGHTS])])
    return OK if casting.check.passed else WRONG, facts["check"], "" if quiet else text


def _targets(options: argparse.Namespace) -> Answer:
    from ingot import api

    known = api.targets()
    return OK, {"targets": [asdict(t) for t in known]}, "\n".join(line for t in known for line in _target_lines(t))


def _target_lines(target: Availability) -> Iterator[str]:
    yield f"{target.name:<16}{'installed' if target.installed else 'missing':<11}{target.description}"
    yield from (f"  {name} {version}" for name, version in target.found.items())
    yield from (f"  {name} is missing: {install}" for name, install in target.missing.items())


def _demo(options: argparse.Namespace) -> Answer:
    from ingot import demo
    from ingot.progress import Progress

    outcome = demo.demonstrate(Progress())
    return OK if outcome.good else WRONG, demo.as_data(outcome), demo.text(outcome)


# What the commands share


def _inputs(options: argparse.Namespace) -> tuple[LoadedModel, tuple[Any, ...], Any]:
    """The model, one example of its inputs, and the batches."""
    from ingot.data import load_calibration, load_model

    loaded = load_model(options.model)
    example, batches = loaded.example_inputs, loaded.calibration
    if options.calibrate:
        how = {"mean": options.mean, "std": options.std, "fixed_shapes": loaded.fixed_shapes}
        batches = load_calibration(options.calibrate, example, names=loaded.input_names, **how)
    if batches is None:
        hint = "--calibrate data.npz, or let build() return (model, example_inputs, calibration)"
        raise InputError("no calibration data", why="ranges are measured, never guessed", hint=hint)
    return loaded, next(iter(batches)) if example is None else example, batches


def _recipe(path: Path | None) -> Recipe:
    from ingot.recipe import recipe_from

    return recipe_from(path)


def _progress(options: argparse.Namespace) -> Any:
    from ingot.progress import Progress

    return Progress(quiet=options.quiet)


if __name__ == "__main__":
    sys.exit(main())
