"""The shell: exit codes, one JSON object, nothing half-written. Where the road is not the subject, it is replaced."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot import api
from ingot.cli import demo, main
from ingot.core.artefact import Check, Delegate, HostOp, OutputCheck, ProgramIO, TensorInfo
from ingot.core.progress import STEPS, Progress, Silent
from ingot.errors import ArtefactError, LowerError, MismatchError, TargetError
from ingot.plan.plan_data import Decision, Plan, QParams, QuantizationPoint
from ingot.result.casting import Casting
from tests.support.castings import lowered
from tests.support.environment import on_a_full_disk, without

NET = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    print("a noisy build")
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    return net, (torch.zeros(1, 3, 8, 8),)
"""
X = TensorInfo("x", "float32", (1, 3, 8, 8))
FINE = OutputCheck("linear", 41.5, 0.01, 39.0, 60.0)
BAD = OutputCheck("linear", float("-inf"), float("inf"), float("nan"), 3.0, "dead <output>")


def plan(scale: float = 0.5) -> Plan:
    made = Decision(
        QuantizationPoint("conv2d"),
        QParams("int8", scale, 0, -128, 127),
        "measured",
        ("range -1..1",),
        source="net.py:8",
    )
    return Plan("xnnpack", "f00", (made,))


def casting(target: str = "xnnpack", passed: bool = True) -> Casting:
    check = Check("the host", 2, (FINE if passed else BAD,), passed, None if passed else "conv2d")
    host = HostOp("aten.roll", "roll", "net.py:9", "no kernel for <roll>", "use slices & cat")
    pieces = (Delegate("XnnpackBackend", 4, (X,), (X,)),)
    return Casting(target, b"PTE", pieces, (host,), ProgramIO((X,), (X,)), plan(), check, {"lower": 1.5}, ("a note",))


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "net.py").write_text(NET)
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).normal(size=(8, 3, 8, 8)))
    data, out = str(tmp_path / "data.npz"), str(tmp_path / "out")
    return ["cast", f"{tmp_path / 'net.py'}:build", "--target", "xnnpack", "--calibrate", data, "-o", out]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A cast that takes no time; what it was asked is kept."""
    seen: dict[str, Any] = {}

    def fake(model: Any, example_inputs: Any, **options: Any) -> Any:
        seen.update(options, example_inputs=example_inputs, batches=list(options["calibration"]))
        names = options["target"]
        return casting(names) if isinstance(names, str) else {n: casting(n) for n in names}

    monkeypatch.setattr(api, "cast", fake)
    return seen


def raising(error: BaseException) -> Any:
    def fake(*args: Any, **options: Any) -> Any:
        raise error

    return fake


def left(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {"net.py", "data.npz", "__pycache__"}


# The command line itself


@pytest.mark.smoke
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_no_torch(option: str) -> None:
    script = f"import sys, ingot.cli; code = ingot.cli.main(['{option}']); sys.exit(code or 'torch' in sys.modules)"
    start = time.perf_counter()
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0
    assert time.perf_counter() - start < 5  # well under a second on an idle machine


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("args", "what"),
    [
        ([], "COMMAND"),
        (["cats"], "'cats'"),
        (["cast", "net.py:build"], "--target"),
        (["cast", "net.py:build", "--target", "xnnpack"], "-o"),
        (["cast", "m", "--target", "x", "-o", "o", "--on-mismatch", "weep"], "weep"),
    ],
)
def test_usage_errors(args: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    assert what in capsys.readouterr().err
    assert main([*args, "--json"]) == 2
    assert what in json.loads(capsys.readouterr().out)["error"]["what"]


# cast


def test_cast_writes_the_folder(command: list[str], asked: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    assert main(command) == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"model.pte", "plan.json", "casting.json", "report.json"}
    assert (tmp_path / "out" / "model.pte").read_bytes() == b"PTE"
    facts = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {"delegates", "host_ops", "io", "check", "timings", "notes"} <= facts.keys()
    assert Plan.from_json((tmp_path / "out" / "plan.json").read_text()) == plan()
    out = capsys.readouterr().out
    assert all(text in out for text in ("1 delegate, 1 host op", "passed", "net.py:9", "41.5 dB", "a note"))
    assert left(tmp_path) == {"out"}


def test_cast_hands_everything_on(command: list[str], asked: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("verify_batches = 3")
    assert main([*command, "--on-mismatch", "keep", "--recipe", str(tmp_path / "r.toml"), "--quiet"]) == 0
    assert (asked["target"], asked["on_mismatch"]) == (["xnnpack"], "keep")
    assert asked["recipe"].verify_batches == 3
    assert [tuple(b[0].shape) for b in asked["batches"]] == [(1, 3, 8, 8)] * 8


def test_json_is_the_only_thing_on_stdout(command: list[str], asked: dict[str, Any], capsys: Any) -> None:
    assert main([*command, "--json"]) == 0
    shown = capsys.readouterr()
    facts = json.loads(shown.out)
    assert (facts["target"], facts["bytes"], facts["check"]["passed"]) == ("xnnpack", 3, True)
    assert "a noisy build" in shown.err


def test_quiet_says_nothing(command: list[str], asked: dict[str, Any], capsys: Any) -> None:
    assert main([*command, "--quiet"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "a noisy build\n")


def test_several_targets(command: list[str], asked: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    assert main([*command, "--target", "vgf", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"xnnpack", "vgf"}
    assert (tmp_path / "out" / "vgf" / "model.pte").is_file()
    assert (tmp_path / "out" / "xnnpack" / "model.pte").is_file()


def test_report_is_escaped_and_self_contained(command: list[str], asked: dict[str, Any], tmp_path: Path) -> None:
    assert main([*command, "--report"]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "no kernel for \\u003croll\\u003e" in page
    assert "<roll>" not in page
    assert not any(outside in page for outside in ("https:", "src=", "@import", "url("))
    facts = json.loads((tmp_path / "out" / "report.json").read_text())
    assert json.loads(page.split('id="data">')[1].split("</script>")[0]) == facts


def test_an_earlier_cast_is_replaced_and_foreign_files_stay(
    command: list[str], asked: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main([*command, "--report"]) == 0
    (out / "mine.txt").write_text("keep me")
    (out / "model.pte").write_bytes(b"old")
    assert main(command) == 0
    assert (out / "model.pte").read_bytes() == b"PTE"
    assert {p.name for p in out.iterdir()} == {"model.pte", "plan.json", "casting.json", "report.json", "mine.txt"}
    (out / "report.html").write_text("<p>not ours</p>")
    assert main(command) == 0
    assert (out / "report.html").read_text() == "<p>not ours</p>"


def test_output_that_is_a_file_is_refused_before_any_work(
    command: list[str], asked: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file")
    assert main(command) == 2
    assert asked == {}
    assert (tmp_path / "out").read_text() == "a file"


CHECK = Check("the host", 1, (BAD,), False, "conv2d")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TargetError("no such target", hint="did you mean 'xnnpack'?"), 2),
        (LowerError("refused"), 2),
        (MismatchError("wrong", check=CHECK), 3),
        (ArtefactError("broken"), 4),
        (TypeError("oops"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes_and_error_objects(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any, error: BaseException, code: int
) -> None:
    monkeypatch.setattr(api, "cast", raising(error))
    assert main(command) == code
    assert "Traceback" not in capsys.readouterr().err
    assert main([*command, "--json"]) == code
    told = json.loads(capsys.readouterr().out)["error"]
    assert told["exit"] == code
    assert left(tmp_path) == set()


def test_mismatch_tells_the_check_as_valid_json(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(api, "cast", raising(MismatchError("wrong", check=CHECK, where="conv2d")))
    assert main([*command, "--json"]) == 3
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["error"]
    assert {k: told[k] for k in ("type", "what", "where", "why", "hint")} == {
        "type": "MismatchError",
        "what": "wrong",
        "where": "conv2d",
        "why": None,
        "hint": None,
    }
    assert told["check"]["outputs"][0]["sqnr_db"] == "-inf"


def test_a_kept_mismatch_is_written_and_still_told(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setattr(api, "cast", lambda *a, **k: {"xnnpack": casting(passed=False)})
    assert main([*command, "--on-mismatch", "keep"]) == 3
    assert "FAILED, the error starts at conv2d" in capsys.readouterr().out
    assert (tmp_path / "out" / "model.pte").is_file()


def test_bug_shows_a_traceback_only_when_asked(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(api, "cast", raising(TypeError("oops")))
    monkeypatch.setenv("INGOT_DEBUG", "1")
    assert main(command) == 1
    assert "Traceback" in capsys.readouterr().err


# Bad input

BAD_NET = """
import torch
from torch import nn

class Branches(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

net, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.zeros(1, 3, 8, 8)
def build(): return net, (x,)
def two_inputs(): return net, (x, x), [(x, x)]
def two_channels(): return net, (x[:, :2],), [(x[:, :2],)]
def integers(): return net, (x.int(),), [(x.int(),)]
def no_batches(): return net, (x,), []
def more_inputs(): return net, (x,), [(x, x)]
def other_shape(): return net, (x,), [(x,), (x[..., :7],)]
def other_dtype(): return net, (x,), [(x.to(torch.complex64),)]
def branches(): return Branches(), (x,), [(x,)]
def raises(): return 1 / 0
"""
FUNCTIONS = {
    "build": ("no calibration data", "never guessed"),
    "two_inputs": ("does not run on the example inputs", "takes 2 positional arguments but 3"),
    "two_channels": ("does not run on the example inputs", "to have 3 channels"),
    "integers": ("does not run on the example inputs", "Input type (int)"),
    "no_batches": ("the calibration data is empty", "0 batches"),
    "more_inputs": ("batch 0 has the wrong number of inputs", "takes 1 input, the batch has 2"),
    "other_shape": ("batch 1 has the wrong shape", "1×3×8×8, got 1×3×8×7"),
    "other_dtype": ("batch 0 has the wrong dtype", "float32, got complex64"),
    "branches": ("the model does not export", "data-dependent"),
    "raises": ("raises failed", "ZeroDivisionError"),
}
SAMPLES = np.zeros((8, 3, 8, 8), np.float32)
ARRAYS: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "no arrays": ({}, "the calibration file is empty"),
    "no samples": ({"x": SAMPLES[:0]}, "too short"),
    "two arrays": ({"x": SAMPLES, "y": SAMPLES}, "wrong number of arrays"),
    "other shape": ({"x": SAMPLES[:, :2]}, "wrong shape"),
    "other dtype": ({"x": SAMPLES.astype(complex)}, "wrong dtype"),
}


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*") if "__pycache__" not in str(p)}


def refused(args: list[str], code: int, folder: Path, capsys: Any) -> dict[str, Any]:
    """The error object of a command that must fail, say why in one line, and leave the folder as it was."""
    before = snapshot(folder)
    capsys.readouterr()
    assert main([*args, "--json"]) == code
    shown = capsys.readouterr()
    told = json.loads(shown.out)["error"]
    assert told["hint"]
    line = shown.err.splitlines()[-1]
    assert line.startswith(f"ingot: {told['what']}")
    assert line.endswith(f"try: {told['hint']}")
    assert sum(text.startswith("ingot: ") for text in shown.err.splitlines()) == 1
    assert snapshot(folder) == before
    return told


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bad_models_and_batches(tmp_path: Path, capsys: Any, name: str) -> None:
    (tmp_path / "bad.py").write_text(BAD_NET)
    args = ["cast", f"{tmp_path / 'bad.py'}:{name}", "--target", "xnnpack", "-o", str(tmp_path / "out")]
    told = refused(args, 2, tmp_path, capsys)
    what, why = FUNCTIONS[name]
    assert what in told["what"]
    assert why in told["why"]
    mark = {"branches": "x.sum()", "raises": "1 / 0"}.get(name)
    if mark:
        line = next(i for i, text in enumerate(BAD_NET.splitlines(), 1) if mark in text)
        assert told["where"].endswith(f"bad.py:{line}")


@pytest.mark.parametrize("name", ARRAYS)
def test_bad_arrays(command: list[str], tmp_path: Path, capsys: Any, name: str) -> None:
    arrays, what = ARRAYS[name]
    np.savez(tmp_path / "data.npz", **arrays)  # type: ignore[arg-type]
    told = refused(command, 2, tmp_path, capsys)
    assert what in told["what"]
    assert told["where"] == command[5]


def test_empty_npz_file(command: list[str], tmp_path: Path, capsys: Any) -> None:
    Path(command[5]).write_bytes(b"")
    assert "not a readable .npz" in refused(command, 2, tmp_path, capsys)["what"]


@pytest.mark.parametrize(
    ("change", "what", "hint"),
    [
        ({1: "nowhere.py:build"}, "no file nowhere.py", "check the path"),
        ({5: "nothing.npz"}, "no file nothing.npz", "check the path"),
        ({3: "xnpack"}, "unknown target 'xnpack'", "did you mean 'xnnpack'?"),
    ],
)
def test_unknown_names(
    command: list[str], tmp_path: Path, capsys: Any, change: dict[int, str], what: str, hint: str
) -> None:
    told = refused([change.get(i, a) for i, a in enumerate(command)], 2, tmp_path, capsys)
    assert what in told["what"]
    assert hint in told["hint"]


def test_missing_package(command: list[str], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "executorch")
    told = refused(command, 2, tmp_path, capsys)
    assert (told["type"], told["what"]) == ("TargetError", "target 'xnnpack' needs executorch")
    assert told["hint"].startswith("pip install executorch==")
    assert main(["targets"]) == 0
    assert f"executorch is missing: {told['hint']}" in capsys.readouterr().out


@pytest.mark.parametrize("pte", [b"", b"no program" * 20], ids=["empty", "garbage"])
def test_corrupted_artefact(
    command: list[str], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, pte: bytes
) -> None:
    monkeypatch.setattr(api, "lower", lambda program, plan, **how: lowered(pte))
    (tmp_path / "plan.json").write_text(plan().to_json())
    (tmp_path / "model.pte").write_bytes(pte)
    args = ["verify", str(tmp_path), command[1], "--data", command[5]]
    assert refused(args, 4, tmp_path, capsys)["type"] == "ArtefactError"


@pytest.mark.parametrize("output", ["/proc/ingot/out", "/proc"])
def test_unwritable_folder_is_refused_before_any_work(
    command: list[str], asked: dict[str, Any], tmp_path: Path, capsys: Any, output: str
) -> None:
    told = refused([*command[:-1], output], 4, tmp_path, capsys)
    assert told["what"] == f"could not write {output}"
    assert asked == {}


@pytest.mark.parametrize("more", [[], ["--target", "vgf"]])
def test_full_disk(
    command: list[str], asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    out, before = io.StringIO(), snapshot(tmp_path)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys, "stdout", out)
    code, shown = on_a_full_disk(lambda: (main([*command, *more, "--json"]), out.getvalue()))
    told = json.loads(shown)["error"]
    assert (code, told["type"], told["why"]) == (4, "ArtefactError", "File too large")
    assert told["hint"]
    assert snapshot(tmp_path) == before


def test_full_stdout(plans: tuple[str, str]) -> None:
    start = "import sys; from ingot.cli import main; sys.exit(main())"
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", start, "diff", *plans]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith("ingot: could not write the answer to stdout · why: No space left on device · try: ")
    assert done.stderr.count("\n") == 1


# why, diff, targets


@pytest.fixture
def plans(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "a.json").write_text(plan(0.5).to_json())
    (tmp_path / "plan.json").write_text(plan(0.25).to_json())
    return str(tmp_path / "a.json"), str(tmp_path)


def test_plan_is_printed_even_when_quiet_and_replaces_no_device(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name, made in (("capture", None), ("record", None), ("plan", plan())):
        monkeypatch.setattr(api, name, lambda *a, made=made, **k: made)
    args = ["plan", *command[1:6], "--quiet"]
    assert main(args) == 0
    assert Plan.from_json(capsys.readouterr().out) == plan()
    os.mkfifo(tmp_path / "pipe")
    assert main([*args, "-o", str(tmp_path / "pipe")]) == 2
    assert (tmp_path / "pipe").is_fifo()


def test_why(plans: tuple[str, str], capsys: Any) -> None:
    assert main(["why", plans[1], "conv2d"]) == 0
    assert "scale 0.25" in capsys.readouterr().out
    assert main(["why", plans[0], "conv2e", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["hint"] == "did you mean 'conv2d'?"


def test_diff(plans: tuple[str, str], capsys: Any) -> None:
    assert main(["diff", *plans, "--json"]) == 0
    assert "conv2d" in json.loads(capsys.readouterr().out)["diff"]
    assert main(["diff", plans[0], plans[0]]) == 0
    assert capsys.readouterr().out == "no difference\n"


@pytest.mark.parametrize("content", [None, "", "[]", "{}", "\udcff"])
def test_no_plan(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "p.json"
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))
    assert main(["why", str(path), "x"]) == 2


def test_targets(capsys: Any) -> None:
    assert main(["targets"]) == 0
    assert "xnnpack" in capsys.readouterr().out
    assert main(["targets", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)["targets"]
    assert "xnnpack" in {t["name"] for t in known}


# progress, demo


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.smoke
@pytest.mark.parametrize("terminal", [True, False])
def test_progress(terminal: bool) -> None:
    stream = Terminal() if terminal else io.StringIO()
    progress = Progress(stream=stream)
    with progress.step("lower"), progress.step("quantize") as tick:
        tick(1, 3)
        progress.advance(2, None)
    with pytest.raises(ValueError, match="oops"), progress.step("verify"):
        raise ValueError("oops")
    shown = stream.getvalue()
    assert all(name in shown for name in ("lower", "quantize", "verify"))
    assert terminal or [line.rsplit(" ", 2)[0] for line in shown.splitlines()] == [
        "quantize …",
        "lower …",
        "verify … failed after",
    ]


@pytest.mark.smoke
def test_quiet_progress_is_silent() -> None:
    stream = Terminal()
    with Progress(quiet=True, stream=stream).step("lower") as tick, Silent().step("plan") as silent:
        tick(1, 2)
        silent(1, None)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("artefact", "code"), [(0.985, 0), (0.97, 3)])
def test_demo(monkeypatch: pytest.MonkeyPatch, capsys: Any, artefact: float, code: int) -> None:
    monkeypatch.setattr(demo, "demonstrate", lambda progress: demo.Outcome(casting(), 599, 0.99, artefact, 1000))
    assert main(["demo"]) == code
    assert f"{artefact:.2%}" in capsys.readouterr().out
    assert main(["demo", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["top1_artefact"] == artefact
    assert demo.run_demo() == code


def test_demo_without_scikit_learn(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert main(["demo"]) == 2
    assert "pip install 'scikit-learn" in capsys.readouterr().err


def test_demo_trains_quickly_and_well() -> None:
    digits = demo.load_digits()
    net = demo.trained(digits, lambda done, total: None)
    assert not net.training
    assert demo._top1_float(net, digits) > 0.97


# The whole road


def test_cast_plan_and_verify_for_real(command: list[str], tmp_path: Path, capsys: Any) -> None:
    out, model, data = tmp_path / "out", command[1], command[5]
    assert main([*command, "--json", "--report"]) == 0
    shown = capsys.readouterr()
    facts = json.loads(shown.out)
    assert [line.split()[0] for line in shown.err.splitlines() if " … " in line] == list(STEPS)
    assert list(facts["timings"]) == list(STEPS)
    assert (len(facts["delegates"]), facts["host_ops"], facts["check"]["passed"]) == (1, [], True)
    assert main(["plan", model, "--target", "xnnpack", "--calibrate", data, "-o", str(tmp_path / "p.json")]) == 0
    capsys.readouterr()
    assert main(["diff", str(out), str(tmp_path / "p.json")]) == 0
    assert capsys.readouterr().out == "no difference\n"
    assert main(["verify", str(out), model, "--data", data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
    pte = (out / "model.pte").read_bytes()
    (out / "model.pte").write_bytes(pte[: len(pte) // 2])
    assert main(["verify", str(out / "model.pte"), model, "--data", data]) == 4
