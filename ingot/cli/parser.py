"""The command line: verbs and options. Imports no torch, so that --help is quick."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn

from ingot import __version__
from ingot.errors import InputError

EXIT_CODES = "Exit codes: 0 done, 1 bug, 2 input does not fit, 3 artefact wrong, 4 artefact broken or not written."


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are errors of the template, so that --json holds for them too."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, hint=f"{self.prog} --help")


def make_parser() -> Parser:
    about = "Cast a PyTorch model into one quantized ExecuTorch delegate."
    parser = Parser(prog="ingot", description=about, epilog=EXIT_CODES)
    parser.add_argument("--version", action="version", version=f"ingot {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_cast, _plan, _why, _diff, _report, _compare, _verify, _localize, _run, _generate, _targets, _demo):
        add(commands)
    return parser


def _cast(commands: Any) -> None:
    parser = _command(commands, "cast", "model in, executed and explained .pte out")
    _model_arguments(parser, optional=True)
    _language_arguments(parser)
    _target_arguments(parser)
    into = "gets model.pte, plan.json, report.json"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help=into)
    parser.add_argument("--report", action="store_true", help="write report.html too")
    scenario = "write DIR/scenario too, for Arm's scenario-runner (vgf only)"
    parser.add_argument("--scenario", action="store_true", help=scenario)
    kept = "keep: write a wrong artefact all the same (still exit 3)"
    parser.add_argument("--on-mismatch", choices=("raise", "keep"), default="raise", help=kept)


def _plan(commands: Any) -> None:
    parser = _command(commands, "plan", "only decide: what each value is stored as, as JSON")
    _model_arguments(parser)
    _target_arguments(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the plan there instead of printing it")


def _why(commands: Any) -> None:
    parser = _command(commands, "why", "explain one value of a plan")
    parser.add_argument("plan", type=Path, help="a plan.json, or the folder of a cast")
    parser.add_argument("value", help="the name of the value, e.g. conv2d_3")


def _diff(commands: Any) -> None:
    parser = _command(commands, "diff", "what differs between two plans")
    parser.add_argument("first", type=Path, help="a plan.json, or the folder of a cast")
    parser.add_argument("second", type=Path, help="another one")


def _report(commands: Any) -> None:
    parser = _command(commands, "report", "the page of a cast, from what it saved")
    parser.add_argument("folder", type=Path, help="the folder of a cast")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where to (default: report.html in the folder)"
    )


def _compare(commands: Any) -> None:
    parser = _command(commands, "compare", "two castings side by side: delegates, size, error, time, plan")
    parser.add_argument("first", type=Path, help="the folder of a cast")
    parser.add_argument("second", type=Path, help="another one: another target, another recipe")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page too")


def _verify(commands: Any) -> None:
    parser = _command(commands, "verify", "run an artefact again and compare it with the model")
    parser.add_argument("artefact", type=Path, help="the folder of a cast, or the model.pte in it")
    _model_arguments(parser)


def _localize(commands: Any) -> None:
    parser = _command(commands, "localize", "where an error starts, and the smallest model that has it")
    _model_arguments(parser)
    _target_arguments(parser)
    smallest = "write the smallest model that still fails, as a file that runs by itself"
    parser.add_argument("--reduce", type=Path, metavar="REPRO.py", help=smallest)
    parser.add_argument("--budget", type=float, default=300, metavar="SECONDS", help="for --reduce (default 300)")


def _run(commands: Any) -> None:
    parser = _command(commands, "run", "execute a scenario here and compare it with what is expected")
    parser.add_argument("scenario", type=Path, help="the folder that `ingot cast --scenario` wrote")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the outputs there, as .npy files")


def _generate(commands: Any) -> None:
    parser = _command(commands, "generate", "text from the folder that `ingot cast --hf` wrote")
    parser.add_argument("folder", type=Path)
    parser.add_argument("prompt")
    parser.add_argument("--tokens", type=int, default=64, help="how many at most (default 64)")


def _targets(commands: Any) -> None:
    _command(commands, "targets", "what is known, what is installed, how to get the rest")


def _demo(commands: Any) -> None:
    _command(commands, "demo", "train a small CNN on handwritten digits, cast it, compare its accuracy")


def _command(commands: Any, name: str, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print exactly one JSON object on stdout")
    return parser


def _language_arguments(parser: argparse.ArgumentParser) -> None:
    folder = "a language model instead: a folder with config.json and safetensors, or a .gguf file"
    parser.add_argument("--hf", type=Path, metavar="DIR", help=folder)
    scheme = "8da4w (default with --hf), 8da8w, 4w on vulkan; more after commas: 8da4w,embedding_bits=4,group=64"
    parser.add_argument("--weights", metavar="SCHEME", help=scheme)
    parser.add_argument("--context", type=int, default=256, metavar="TOKENS", help="the longest text (default 256)")
    parser.add_argument("--text", type=Path, metavar="FILE", help="text by which weights are rounded best")


def _model_arguments(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    what = "net.py:build, package.module:build or exported.pt2"
    parser.add_argument("model", nargs="?" if optional else None, help=what)
    sources = "data.npz, data.npy, a folder of images, or file.py:function (default: what build() returns)"
    parser.add_argument("--calibrate", metavar="DATA", help=sources)
    mean = "subtracted from images in 0..1, one number or one per channel"
    parser.add_argument("--mean", type=float, nargs="+", help=mean)
    parser.add_argument("--std", type=float, nargs="+", help="images are divided by it after that")
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")


def _target_arguments(parser: argparse.ArgumentParser) -> None:
    several = "see `ingot targets`; may be given several times"
    parser.add_argument("--target", action="append", required=True, help=several)
    parser.add_argument("--recipe", type=Path, metavar="FILE.toml", help="demands on precision")
