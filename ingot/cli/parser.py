"""The command line: commands and options. Imports no torch, so that --help is quick."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ingot import __version__
from ingot.errors import InputError

EXIT_CODES = (
    "Exit codes: 0 done · 1 a bug in Ingot · 2 the command, the data, the model or the target does not fit · "
    "3 the artefact ran and its numbers are wrong · 4 an artefact could not be loaded, run or written · "
    "5 no plan meets the goal · 130 interrupted."
)


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are errors of ours, so that --json holds for them too."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, hint=f"{self.prog} --help")


def make_parser() -> Parser:
    about = "Cast a PyTorch model into one quantized ExecuTorch delegate."
    parser = Parser(prog="ingot", description=about, epilog=EXIT_CODES)
    parser.add_argument("--version", action="version", version=f"ingot {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in VERBS:
        add(commands)
    return parser


def _cast(commands: Any) -> None:
    parser = _command(commands, "cast", "quantize, lower, execute and compare a model: a folder with model.pte")
    _model_arguments(parser, optional=True)
    _validation_argument(parser)
    _language_arguments(parser)
    _target_arguments(parser)
    _output_arguments(parser)
    _localize_seconds_argument(parser)
    _goal_arguments(parser)
    scenario = "write DIR/scenario too, for Arm's scenario-runner (vgf only)"
    parser.add_argument("--scenario", action="store_true", help=scenario)


def _record(commands: Any) -> None:
    parser = _command(commands, "record", "calibrate only: statistics of every value, for all targets")
    _model_arguments(parser)
    shards = "data in several parts, each as --calibrate takes it; the result is that of one pass"
    parser.add_argument("--data", nargs="+", metavar="SHARD", help=shards)
    parser.add_argument("--ray", metavar="ADDRESS", help="record shards on a Ray cluster: auto, or ray://host:port")
    parser.add_argument("--processes", type=int, metavar="N", help="record so many shards at a time (default 1)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the ranges, as JSON")


def _plan(commands: Any) -> None:
    parser = _command(commands, "plan", "solve for the quantization of every value; the plan as JSON")
    _model_arguments(parser)
    _target_arguments(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the plan there instead of printing it")


def _lower(commands: Any) -> None:
    parser = _command(commands, "lower", "lower a plan that was written, or edited; execute and compare it")
    parser.add_argument("plan", type=Path, help="a plan.json, or the folder of a cast")
    _model_arguments(parser)
    _validation_argument(parser)
    parser.add_argument("--target", metavar="NAME", help="which plan, where the file holds several")
    parser.add_argument("--recipe", type=Path, metavar="FILE.toml", help="thresholds of the check")
    _output_arguments(parser)


def _why(commands: Any) -> None:
    parser = _command(commands, "why", "explain one value of a plan")
    _plan_argument(parser, "plan")
    parser.add_argument("value", help="the name of the value, e.g. conv2d_3")
    parser.add_argument("--target", metavar="NAME", help="which plan, where the file holds several")


def _diff(commands: Any) -> None:
    parser = _command(commands, "diff", "what differs between two plans")
    _plan_argument(parser, "first")
    parser.add_argument("second", type=Path, nargs="?", help="another one; or two --target of the first")
    several = "which plan of each file that holds several; given twice: of the first, of the second"
    parser.add_argument("--target", metavar="NAME", action="append", default=[], help=several)


def _report(commands: Any) -> None:
    parser = _command(commands, "report", "the HTML page of a cast, from its folder")
    parser.add_argument("folder", type=Path, help="the folder of a cast")
    where = "default: report.html in the folder"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=where)


def _export(commands: Any) -> None:
    parser = _command(commands, "export", "a cast in the formats of other tools, from its folder")
    parser.add_argument("folder", type=Path, help="the folder of a cast")
    ops = "the kernels of the host, as YAML for ExecuTorch's selective build"
    parser.add_argument("--op-list", metavar="FILE.yaml", help=ops)
    parser.add_argument("--c-header", metavar="FILE.h", help="inputs and outputs for firmware: types, shapes, scales")
    parser.add_argument("--c-prefix", metavar="NAME", help="of everything that --c-header defines (default: model)")
    parser.add_argument("--bundle", metavar="FILE.bpte", help="the program with test vectors that a device checks")
    record = "what ExecuTorch's Inspector needs to map an ETDump of the program to your lines"
    parser.add_argument("--etrecord", metavar="FILE", help=record)
    graph = "the graph with precisions, scales, errors and times, for Model Explorer"
    parser.add_argument("--model-explorer", metavar="FILE.json", help=graph)
    vectors = "inputs of --bundle: data.npz, data.npy, images or file.py:function (default: one batch of the check)"
    parser.add_argument("--data", metavar="DATA", help=vectors)


def _compare(commands: Any) -> None:
    parser = _command(commands, "compare", "two castings, or two fleets: delegates, size, error, time")
    parser.add_argument("first", type=Path, help="the folder of a cast, or of a sweep")
    parser.add_argument("second", type=Path, help="another one: another target, another recipe, other versions")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page too")


def _sweep(commands: Any) -> None:
    parser = _command(commands, "sweep", "cast every model × target × recipe of a fleet file; what is done is kept")
    parser.add_argument("fleet", type=Path, help="fleet.toml: models with their data, targets, recipes")
    into = "a folder for each cell with its row.json, and index.html"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help=into)
    cluster = "run on a Ray cluster: auto, or ray://host:port (default: this machine)"
    parser.add_argument("--ray", metavar="ADDRESS", help=cluster)
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="on this machine (default 1)")
    again = "run cells with these verdicts again, with commas: crashed,timed out"
    parser.add_argument("--again", default="", metavar="VERDICTS", help=again)
    against = "another fleet: compare with it when the sweep is done, exit 1 on a regression"
    parser.add_argument("--against", type=Path, metavar="DIR", help=against)
    parser.add_argument("--mlflow", metavar="URI", help="log each new row as a run of MLflow: http://host:5000")
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def _verify(commands: Any) -> None:
    parser = _command(commands, "verify", "execute an artefact again and compare it, on all the data that is given")
    parser.add_argument("artefact", type=Path, help="the folder of a cast, or the model.pte in it")
    _model_arguments(parser, optional=True, data_option="--data")
    _verbose_argument(parser)


def _localize(commands: Any) -> None:
    parser = _command(commands, "localize", "where an error starts, and the smallest model that has it")
    parser.add_argument("model", help="net.py:build, exported.pt2, or the folder of a cast (then without --target)")
    _data_arguments(parser)
    parser.add_argument("--target", action="append", metavar="NAME", help="see `ingot targets`")
    parser.add_argument("--recipe", type=Path, metavar="FILE.toml", help="demands on precision")
    smallest = "write the smallest model that still fails, as a file that runs by itself"
    parser.add_argument("--reduce", type=Path, metavar="REPRO.py", help=smallest)
    _localize_seconds_argument(parser)
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="for --reduce (default 300)")


def _run(commands: Any) -> None:
    parser = _command(commands, "run", "execute a scenario here and compare it with what is expected")
    parser.add_argument("scenario", type=Path, help="the folder that `ingot cast --scenario` wrote")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the outputs there, as .npy files")


def _generate(commands: Any) -> None:
    parser = _command(commands, "generate", "text from the folder that `ingot cast --hf` wrote")
    parser.add_argument("folder", type=Path)
    parser.add_argument("prompt", nargs="?")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="several prompts instead, one per line")
    _text_arguments(parser, 64)


def _chat(commands: Any) -> None:
    parser = _command(commands, "chat", "talk to a language model that `ingot cast --hf` wrote, by its chat template")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--system", default="", metavar="TEXT", help="the system message")
    parser.add_argument("--message", action="append", metavar="TEXT", help="instead of stdin; several are allowed")
    _text_arguments(parser, 256)


def _embed(commands: Any) -> None:
    parser = _command(commands, "embed", "embeddings of texts, by a model that `ingot cast --hf` wrote")
    parser.add_argument("folder", type=Path)
    parser.add_argument("text", nargs="*", help="with two or more: a table of cosine similarities too")
    parser.add_argument("--file", type=Path, metavar="FILE", help="further texts, one per line")


def _text_arguments(parser: argparse.ArgumentParser, most: int) -> None:
    many = f"how many tokens at most (default {most})"
    parser.add_argument("--max-tokens", "--tokens", dest="tokens", type=int, default=most, metavar="N", help=many)
    chosen = "0: always the most likely token (default); 0.7: random, likely ones more often"
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help=chosen)
    fewest = "with a temperature: the fewest tokens whose probabilities add up to P"
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help=fewest)
    relative = "with a temperature: tokens at least P times as likely as the most likely one"
    parser.add_argument("--min-p", type=float, default=0.0, metavar="P", help=relative)
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help="1 has no effect; 1.1")
    parser.add_argument("--seed", type=int, metavar="N", help="of the random choice; the same text again")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="ends the text; several are allowed"
    )


def _targets(commands: Any) -> None:
    _command(commands, "targets", "every target: what is installed, what is missing, how to install it")


def _conformance(commands: Any) -> None:
    parser = _command(commands, "conformance", "small nets that show what is wrong with a target, for its author")
    parser.add_argument("target", help="its name, see `ingot targets`")
    parser.add_argument("--quick", action="store_true", help="the most telling cases only")
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def _schema(commands: Any) -> None:
    parser = _command(commands, "schema", "the JSON schema of recipes, or of fleet files, for editors")
    parser.add_argument("of", nargs="?", choices=("recipe", "fleet"), default="recipe", help="default: recipe")


def _demo(commands: Any) -> None:
    _command(commands, "demo", "train a small CNN on handwritten digits, cast it, compare its accuracy")


Verb = Callable[[Any], None]
VERBS: tuple[Verb, ...] = (
    _cast, _record, _plan, _lower, _why, _diff, _report, _export, _compare, _sweep, _verify, _localize, _run,
    _generate, _chat, _embed, _targets, _conformance, _schema, _demo,
)  # fmt: skip


def _command(commands: Any, name: str, help: str) -> argparse.ArgumentParser:
    about = help[0].upper() + help[1:] + "."
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help, description=about, epilog=EXIT_CODES, allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="print exactly one JSON object on stdout")
    return parser


def _plan_argument(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument(name, type=Path, help="a plan.json, or the folder of a cast")


def _language_arguments(parser: argparse.ArgumentParser) -> None:
    folder = "a language or embedding model instead: a folder with config.json and safetensors, or a .gguf file"
    parser.add_argument("--hf", type=Path, metavar="DIR", help=folder)
    scheme = "8da4w (default of --hf), 8da8w (of embedding models), 4w; more after commas: 8da4w,group=64"
    parser.add_argument("--weights", metavar="SCHEME", help=scheme)
    longest = "with --hf: the longest text (default: what the model was trained on, at most 512)"
    parser.add_argument("--context", type=int, metavar="TOKENS", help=longest)
    parser.add_argument(
        "--kv-cache",
        choices=("caller", "program"),
        help="with --hf: who owns it; ExecuTorch's own runners load a program that does (default on xnnpack)",
    )
    text = "with --hf: representative text, to calibrate on (for an embedding model: a text per line)"
    parser.add_argument("--text", type=Path, metavar="FILE", help=text)


def _model_arguments(parser: argparse.ArgumentParser, optional: bool = False, data_option: str = "--calibrate") -> None:
    what = "net.py:build, package.module:build, exported.pt2 or model.onnx"
    parser.add_argument("model", nargs="?" if optional else None, help=what)
    _data_arguments(parser, data_option)


def _data_arguments(parser: argparse.ArgumentParser, data_option: str = "--calibrate") -> None:
    """`data_option` reads batches: those that calibrate, or those that an artefact is verified on."""
    sources = "data.npz, data.npy, a folder of images, or file.py:function (default: what build() returns)"
    parser.add_argument(data_option, dest="calibrate", metavar="DATA", help=sources)
    parser.set_defaults(data_option=data_option)
    mean = "subtracted from images in 0..1: one number, or one per channel with commas"
    parser.add_argument("--mean", type=_numbers, metavar="M[,M,M]", help=mean)
    parser.add_argument("--std", type=_numbers, metavar="S[,S,S]", help="images are divided by it after that")
    varies = "a dimension that varies: x.0=batch:1:8 (input x, dimension 0, named batch, 1 to 8); several are allowed"
    parser.add_argument("--dynamic-shapes", metavar="DIM", action="append", default=[], help=varies)
    sizes = "a size of the inputs, several are allowed: each gets a method of the file (1x3x64x64, ids=1x16,mask=1x16)"
    parser.add_argument("--shapes", metavar="SIZE", action="append", default=[], help=sizes)
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _validation_argument(parser: argparse.ArgumentParser) -> None:
    held = "a quarter of 16 or more calibration batches, which is then not recorded; of fewer the first, which are"
    data = f"data to verify on, all of it, as --calibrate takes it (default: {held})"
    parser.add_argument("--validation", metavar="DATA", help=data)


def _goal_arguments(parser: argparse.ArgumentParser) -> None:
    metric = "top1, top5, perplexity, mean_iou, cosine, sqnr, kl, or file.py:function of pairs (outputs, label)"
    parser.add_argument("--goal", metavar="METRIC", help=f"search the quickest plan that keeps it: {metric}")
    pairs = "data of the goal: file.py:function that returns [(inputs, label), …]; without labels as --calibrate"
    parser.add_argument("--goal-data", metavar="DATA", help=pairs)
    parser.add_argument("--drop", type=float, metavar="D", help="how much worse than the float model it may be")
    parser.add_argument("--bar", type=float, metavar="B", help="the value that it has to reach")
    saved = "what the plan saves: time (default), bytes of the file, or energy"
    parser.add_argument("--prefer", choices=("time", "bytes", "energy"), help=saved)
    lower = "of a metric of your own: less is better, as of an error rate"
    parser.add_argument("--lower-is-better", action="store_true", help=lower)


def _target_arguments(parser: argparse.ArgumentParser) -> None:
    several = "see `ingot targets`; may be given several times"
    parser.add_argument("--target", action="append", required=True, metavar="NAME", help=several)
    parser.add_argument("--recipe", type=Path, metavar="FILE.toml", help="demands on precision")


def _output_arguments(parser: argparse.ArgumentParser) -> None:
    into = "gets model.pte, plan.json, report.json, and what `ingot verify` needs"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help=into)
    parser.add_argument("--report", action="store_true", help="write report.html too")
    slim = "leave out float.pt2 and quantized.pt2, which `ingot verify` and `ingot localize` read"
    parser.add_argument("--slim", action="store_true", help=slim)
    kept = "keep: write a wrong artefact all the same (still exit 3)"
    parser.add_argument("--on-mismatch", choices=("raise", "keep"), default="raise", help=kept)
    _verbose_argument(parser)


def _localize_seconds_argument(parser: argparse.ArgumentParser) -> None:
    longest = "the longest search for the op on which a backend fails or is wrong (default 60)"
    parser.add_argument("--localize-seconds", type=float, metavar="SECONDS", help=longest)


def _verbose_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verbose", action="store_true", help="every tensor, host op and output, not a summary")
