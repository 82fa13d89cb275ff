"""The fuzzer finds what is wrong: broken on purpose, each kind of finding is seen."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import ingot
from fuzz import judge as judging
from fuzz.damage import _outcome
from fuzz.generate import draw_program
from fuzz.judge import eager_outputs, judge
from fuzz.kills import _problems, is_whole
from fuzz.mutate import damaged
from fuzz.pool import run_all
from fuzz.program import FuzzProgram, Input, Step, program_from
from fuzz.shrink import shrink_program
from fuzz.soak import Usage, _verdict
from ingot.errors import InputError

SMALL = FuzzProgram(
    0, "xnnpack", {"i0": Input((1, 8))}, (Step("s0", "linear", ("i0",), {"out": 4, "bias": True}),), ("s0",)
)
WORKER = """
import json, os, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    seed = json.loads(line)["seed"]
    if seed == 1: os.kill(os.getpid(), 11)
    if seed == 2: time.sleep(600)
    print(json.dumps({"seed": seed, "kind": "ok"}), flush=True)
"""


@pytest.mark.parametrize("seed", range(40))
def test_a_seed_gives_one_program_that_runs(seed: int) -> None:
    drawn = draw_program(seed)
    assert draw_program(seed) == drawn
    assert program_from(json.loads(drawn.to_json())).to_json() == drawn.to_json()
    assert len(eager_outputs(drawn)) == drawn.batches


def test_a_step_that_divides_by_a_size_of_zero_is_left_out() -> None:
    assert draw_program(200489).steps == draw_program(200489).steps


def test_a_worker_that_dies_or_hangs_is_replaced() -> None:
    """The seed is known, and the run goes on."""
    requests = ({"seed": s, "target": "x"} for s in range(5))
    found = {r["seed"]: a["kind"] for r, a in run_all(requests, 2, 1.0, (sys.executable, "-c", WORKER))}
    assert found == {0: "ok", 1: "died", 2: "hang", 3: "ok", 4: "ok"}


def test_the_judge_sees_wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ingot's own check passes here, so only the judge can tell."""
    assert judge(SMALL).kind == "ok"
    run = judging.run_by_itself
    monkeypatch.setattr(judging, "run_by_itself", lambda *a: [[-t for t in b] for b in run(*a)])
    assert judge(SMALL).signature == "wrong: passed the check, far from the model"


def test_the_plain_program_has_the_qparams_that_the_user_gives() -> None:
    """An input of 0 … 1 loses negative numbers in any program; measured qparams lose none."""
    program = FuzzProgram(0, "xnnpack", {"i0": Input((4, 8))}, (Step("s0", "relu", ("i0",)),), ("i0", "s0"))
    expected = eager_outputs(program)
    assert judging.plain_quantization_db(program, expected) > 30
    assert judging.plain_quantization_db(replace(program, recipe={"inputs": ["int8"]}), expected) > 30
    assert judging.plain_quantization_db(replace(program, recipe={"inputs": ["unorm8"]}), expected) < 9


def test_the_deviation_of_equal_numbers_is_rounding_noise() -> None:
    """Zero in one order of summation, 1e-8 in another; anything that rounding does not explain is wrong."""
    steps = (Step("s0", "std", ("i0",), {"dim": [-1], "keepdim": True}),)
    program = FuzzProgram(0, "xnnpack", {"i0": Input((2, 32), values="constant")}, steps, ("s0",))
    expected = eager_outputs(program)
    for error, excused in ((1e-8, True), (1e-3, False)):
        assert judging.is_rounding_noise(program, expected, [[t + error for t in b] for b in expected]) is excused
    assert not judging.is_rounding_noise(SMALL, eager_outputs(SMALL), [[-t for t in b] for b in eager_outputs(SMALL)])


def test_the_judge_sees_another_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    run = judging.run_by_itself
    monkeypatch.setattr(judging, "run_by_itself", lambda *a: [[t.double() for t in b] for b in run(*a)])
    assert judge(SMALL).kind == "wrong"


def test_the_judge_sees_a_bare_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(program: FuzzProgram) -> Any:
        raise KeyError("x")

    monkeypatch.setattr(judging, "cast_program", broken)
    assert judge(SMALL).kind == "crashed"


def test_a_program_is_shrunk_to_what_fails() -> None:
    steps = [Step("s1", "relu", ("s0",)), Step("s2", "softmax", ("s1",), {"dim": -1}), Step("s3", "abs", ("s2",))]
    large = replace(SMALL, steps=(*SMALL.steps, *steps), outputs=("s3", "s1"), recipe={"range": "mse"}, returns="dict")
    small = shrink_program(large, lambda p: any(s.op == "softmax" for s in p.steps), 30)
    assert [s.op for s in small.steps] == ["softmax"]
    assert (small.recipe, small.batches, len(small.outputs)) == ({}, 1, 1)


def test_damage_is_damage() -> None:
    data = json.dumps({"a": [1, 2, {"b": "text"}], "c": 0.5}).encode()
    made = [damaged(Random(i), data, [b"other"]) for i in range(200)]
    assert sum(m != data for m in made) > 190
    assert len(set(made)) > 150


@pytest.mark.parametrize(
    ("error", "kind"), [(InputError("no"), "refused"), (KeyError("x"), "crashed"), (SystemExit(1), "crashed")]
)
def test_only_our_errors_are_refusals(error: BaseException, kind: str) -> None:
    def read(folder: Path) -> None:
        raise error

    assert _outcome(read, Path())["kind"] == kind


def test_what_a_kill_can_damage_is_seen(tmp_path: Path) -> None:
    net, x = torch.nn.Sequential(torch.nn.Linear(8, 4)).eval(), torch.linspace(-1, 1, 8).reshape(1, 8)
    one, other = (ingot.cast(net, (x,), target="xnnpack", calibration=[(x * s,)]) for s in (1.0, 3.0))
    folder = one.save_folder(tmp_path / "saved" / "folder")
    one.report(tmp_path / "saved" / "report.html")
    assert not list(_problems(tmp_path))
    other.save(folder / "model.pte")
    assert not list(_problems(tmp_path)), "a mixture of two castings is refused in words that name it"
    for file in (p for p in (tmp_path / "saved").rglob("*") if p.suffix in (".pte", ".json", ".pt2", ".html")):
        data = file.read_bytes()
        for length in (0, 1, len(data) // 2, len(data) - 8):
            file.write_bytes(data[:length])
            assert not is_whole(file), (file.name, length)
    assert any("model.pte is cut" in p for p in _problems(tmp_path))


GOOD = Usage(50, 1000.0, 10, 10, 20, 1, 3)


@pytest.mark.parametrize(
    "change", [{"megabytes": 1100.0}, {"descriptors": 30}, {"children": 3}, {"temporary_files": 90}]
)
def test_growth_is_seen(change: dict[str, Any]) -> None:
    assert _verdict(GOOD, replace(GOOD, casts=500), []) == 0
    assert _verdict(GOOD, replace(GOOD, **change), []) == 1
    assert _verdict(GOOD, GOOD, ["a file"]) == 1


def test_float_artefacts_are_held_to_a_higher_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    program = replace(SMALL, recipe={"quantize": False})
    run = judging.run_by_itself
    monkeypatch.setattr(
        judging, "run_by_itself", lambda *a: [[t + 0.02 * torch.ones_like(t) for t in b] for b in run(*a)]
    )
    assert judge(program).signature == "wrong: float artefact far from the model"
