"""A .vgf on the emulation layers: equal to the reference model, in a movable folder, an error with a hint for each failure."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
from ingot.errors import ArtefactError
from ingot.targets.arm import scenario_runner as scenario
from ingot.targets.arm import vulkan_tools as vulkan
from ingot.targets.arm.scenario_runner import execute_scenario, run_vgf, write_vgf_scenario
from ingot.targets.base import Requirement
from tests.support.models import images
from tests.support.requirements import need, need_scenario_runner

SECONDS = 120.0
Arrays = list[list[np.ndarray]]


def need_vgf_runner() -> None:
    need("vgf")
    need_scenario_runner()


class Two(nn.Module):
    """Two inputs and two outputs, all different: a wrong order does not pass."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([self.a(x).relu(), y * 8], 1), self.b(y).flatten(1)


class Kinds(nn.Module):
    """bool, int32 and float inputs and outputs; a scalar output."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(10, 8)

    def forward(self, mask: torch.Tensor, index: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.where(mask, self.rows(index), x), index + 1, x > 0.1, x.sum()


def kinds(seed: int) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    x, index = torch.randn(1, 5, 8, generator=g), torch.randint(0, 10, (1, 5), generator=g, dtype=torch.int32)
    return torch.randn(1, 5, 8, generator=g) > 0, index, x


PAIRS = [(x, x.flip(-1) * 2) for x in images(size=8)]
CASES: dict[str, tuple[Any, ...]] = {  # net, batches, recipe, by how much an output may differ: absolute, relative
    "int8": (Two, PAIRS, {"inputs": ["int8"] * 2, "outputs": ["int8"] * 2}, (0, 0)),
    "int8 inside": (Two, PAIRS, {}, (0, 0)),
    "int16": (Two, PAIRS, {"inputs": ["int16"] * 2, "outputs": ["int16"] * 2}, (1, 0)),
    "float": (Two, PAIRS, {}, (1e-6, 1e-5)),
    "kinds": (Kinds, [kinds(i) for i in range(4)], {}, (1e-6, 1e-5)),
}


@cache
def casting(case: str) -> ingot.Casting:
    need_vgf_runner()
    net, batches, more, _ = CASES[case]
    torch.manual_seed(0)
    precision = {"kinds": "float"}.get(case, case.split()[0])
    recipe = more | {"scopes": [{"op": "*", "precision": precision}]}
    return ingot.cast(net().eval(), batches[0], target="vgf", calibration=batches, recipe=recipe)


@dataclass(frozen=True)
class Call:
    """The one delegate: its payload, the program inputs that it reads in order, the shapes of its outputs."""

    vgf: bytes
    takes: list[int]
    gives: list[tuple[int, ...]]


@cache
def call(case: str) -> Call:
    from executorch.exir._serialize._program import deserialize_pte_binary

    program = deserialize_pte_binary(casting(case).pte).program
    plan = program.execution_plan[0]
    (args,) = (i.instr_args.args for i in plan.chains[0].instructions if hasattr(i.instr_args, "delegate_index"))
    gives = [tuple(plan.values[i].val.sizes) for i in args if i not in plan.inputs]
    takes = [plan.inputs.index(i) for i in args if i in plan.inputs]
    return Call(bytes(program.backend_delegate_data[0].data), takes, gives)


def payload(case: str) -> bytes:
    return call(case).vgf


@cache
def two_batches(case: str) -> Arrays:
    """The inputs of the delegate: integers where the file has integers."""
    rng = np.random.default_rng(0)
    return [[stored(rng, batch[i], case) for i in call(case).takes] for batch in CASES[case][1][:2]]


def stored(rng: np.random.Generator, x: torch.Tensor, case: str) -> np.ndarray:
    if case not in ("int8", "int16"):
        return x.numpy()
    limits = np.iinfo(case)
    return rng.integers(limits.min + 1, limits.max, x.shape, dtype=case)


def reference(case: str) -> Arrays:
    from ingot.targets.arm.tosa_reference import run_tosa

    files = casting(case).delegates[0].files
    tosa = next(content for name, content in files.items() if name.endswith(".tosa"))
    return run_tosa(tosa, two_batches(case), len(call(case).gives), SECONDS)


def assert_same(got: Arrays, expected: Arrays, absolute: float = 0, relative: float = 0) -> None:
    for a, b in zip(chain(*got), chain(*expected), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        exact = a.dtype in (np.bool_, np.int32)
        wide = [x.astype(np.float64) for x in (a, b)]
        np.testing.assert_allclose(wide[0], wide[1], atol=0 if exact else absolute, rtol=0 if exact else relative)


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_those_of_the_reference_model(case: str) -> None:
    got = run_vgf(payload(case), two_batches(case), len(call(case).gives), SECONDS)
    assert [[a.shape for a in arrays] for arrays in got] == [call(case).gives] * 2
    assert any((a != b).any() for a, b in zip(*got, strict=True))  # the batches differ
    assert_same(got, reference(case), *CASES[case][3])


class Sampled(nn.Module):
    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x * 2, grid, align_corners=False) + 1


def test_a_shader_between_graphs() -> None:
    """Arm's own flow lowers grid_sample to a shader, right for four channels; the reference model does not run it."""
    need_vgf_runner()
    x, grid = torch.randn(1, 4, 8, 8), torch.rand(1, 8, 8, 2) * 2 - 1
    ((got,),) = run_vgf(stock_vgf(Sampled(), x, grid), [[x.numpy(), grid.numpy()]], 1, SECONDS)
    np.testing.assert_allclose(got, Sampled()(x, grid).numpy(), rtol=1e-5, atol=1e-5)


def stock_vgf(net: nn.Module, *inputs: torch.Tensor) -> bytes:
    from executorch.backends.arm.vgf import VgfCompileSpec, VgfPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.exir._serialize._program import deserialize_pte_binary

    partitioner = VgfPartitioner(VgfCompileSpec("TOSA-1.0+FP"))
    edge = to_edge_transform_and_lower(torch.export.export(net, inputs), partitioner=[partitioner])
    return bytes(deserialize_pte_binary(edge.to_executorch().buffer).program.backend_delegate_data[0].data)


def test_a_written_scenario_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vgf, batches = payload("int8"), two_batches("int8")
    file = write_vgf_scenario(tmp_path / "here", vgf, batches)
    assert str(tmp_path) not in file.read_text()
    moved = (tmp_path / "here").rename(tmp_path / "there")
    before = sorted(moved.iterdir())
    monkeypatch.chdir("/")
    made = execute_scenario(moved / file.name, SECONDS)
    assert sorted(moved.iterdir()) == before
    named = [[made[f"output_{b}_{i}.npy"] for i in range(2)] for b in range(2)]
    assert_same(named, reference("int8"))


def test_a_crash_at_exit_after_the_results_is_no_failure(fake: Callable[[str], None]) -> None:
    vgf, real = payload("int8"), vulkan.RUNNER.found()
    fake(f'"{real}" "$@"; kill -SEGV $$')
    assert_same(run_vgf(vgf, two_batches("int8"), 2, SECONDS), reference("int8"))


def test_no_batches_no_run() -> None:
    assert run_vgf(b"", [], 1, SECONDS) == []


# ---- failures: what is given ----


def refused(batches: Arrays, vgf: bytes | None = None, outputs: int = 2, seconds: float = SECONDS) -> str:
    vgf = payload("float") if vgf is None else vgf
    with pytest.raises(ArtefactError) as e:
        run_vgf(vgf, batches, outputs, seconds)
    return str(e.value)


def test_inputs_that_do_not_fit_are_refused() -> None:
    right = two_batches("float")
    assert "takes 2 inputs and was given 1" in refused([batch[:1] for batch in right])
    assert "float32 of [1, 3, 8, 8], and int32 of" in refused([[x.astype(np.int32) for x in b] for b in right])
    assert "and float32 of [1, 2, 8, 8] was given" in refused([[x[:, :2] for x in b] for b in right])
    assert "expects 3, the .vgf has 2" in refused(right, outputs=3)


def test_bytes_that_are_no_vgf() -> None:
    said = refused(two_batches("float"), payload("float")[:300])
    assert "vgf_dump failed" in said
    assert "may be damaged or made for another version" in said


def test_no_time_to_run() -> None:
    said = refused(two_batches("float"), seconds=0.01)
    assert "scenario-runner timed out · why: it took more than 0.01 s · try: a larger run_timeout" in said


# ---- failures: what is installed ----


@pytest.mark.smoke
def test_missing_components_are_named_with_what_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "files", none)
    monkeypatch.setattr(vulkan.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    monkeypatch.setattr(vulkan, "SEARCH_VARIABLES", {})
    monkeypatch.setattr(vulkan, "SYSTEM_FOLDERS", ())
    for variable in (*vulkan.DRIVER_VARIABLES, "PATH"):
        monkeypatch.delenv(variable, raising=False)
    said = refused([[]], b"")
    for r in vulkan.REQUIREMENTS:
        assert r.name in said
        assert r.install in said


@pytest.mark.smoke
@pytest.mark.parametrize("variable", vulkan.DRIVER_VARIABLES)
def test_a_driver_chosen_that_is_not_there(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in vulkan.DRIVER_VARIABLES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, "/nowhere/icd.json")
    assert vulkan.DRIVER.found() is None
    said = refused([[]], b"")
    assert "Vulkan driver" in said
    assert f"unset {variable}" in said


def test_a_loader_without_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_vgf_runner()
    manifest = {"file_format_version": "1.0.0", "ICD": {"library_path": "/nowhere.so", "api_version": "1.3.0"}}
    (tmp_path / "icd.json").write_text(json.dumps(manifest))
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path / "icd.json"))
    said = refused(two_batches("float"))
    assert "no Vulkan driver offers a device" in said
    assert "unset VK_DRIVER_FILES" in said
    monkeypatch.setattr(vulkan, "DRIVER_VARIABLES", ())  # the same, found by search
    assert vulkan.DEBIAN in refused(two_batches("float"))


def test_layers_that_do_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_vgf_runner()
    broken = tmp_path / "layer.so"
    broken.write_text("no library")
    stack = vulkan.emulation_layers()
    for left in ([], stack[:1], stack[1:], [(manifest, broken) for manifest, _ in stack]):
        monkeypatch.setattr(scenario, "emulation_layers", lambda left=left: left)
        monkeypatch.setattr(scenario, "RUNNING", (vulkan.RUNNER,))
        monkeypatch.setattr(scenario, "REQUIREMENTS", (vulkan.RUNNER,))
        said = refused(two_batches("float"))
        assert "the emulation layers did not load" in said
        assert vulkan.LAYERS.install in said


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A fake runner; $4 is the output folder."""

    def put(script: str, start: str = "#!/bin/sh\n") -> None:
        file = tmp_path / "runner"
        file.write_text(start + script)
        file.chmod(0o755)
        runner = Requirement("scenario-runner", lambda: str(file), vulkan.RUNNER.install)
        monkeypatch.setattr(scenario, "RUNNER", runner)
        monkeypatch.setattr(scenario, "RUNNING", (runner,))

    return put


def fails(tmp_path: Path, seconds: float = SECONDS) -> ArtefactError:
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps({"commands": [], "resources": [{"tensor": {"dst": "output_0_0.npy"}}]}))
    with pytest.raises(ArtefactError) as e:
        execute_scenario(file, seconds)
    assert e.value.__cause__ is not None
    return e.value


@pytest.mark.smoke
def test_a_runner_built_for_another_system(tmp_path: Path, fake: Callable[..., None]) -> None:
    fake('echo "runner: libc.so.6: version \\`GLIBC_2.38\' not found (required by runner)" >&2; exit 1')
    e = fails(tmp_path)
    assert "built for another system" in str(e.why)
    assert "GLIBC_2.38" in str(e.why)
    assert e.hint == vulkan.RUNNER.install
    fake("", start="\x7fELF of no machine")
    e = fails(tmp_path)
    assert e.what == "scenario-runner does not start"
    assert e.hint == vulkan.RUNNER.install


@pytest.mark.smoke
def test_a_runner_that_hangs_is_ended(tmp_path: Path, fake: Callable[..., None]) -> None:
    fake("exec sleep 60")
    assert fails(tmp_path, seconds=0.2).what == "scenario-runner timed out"


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("kill -SEGV $$", "killed by SIGSEGV"),
        ("true", "exit code 0, no results"),
        ("printf '\\223NUMPY' > $4/output_0_0.npy; kill -ABRT $$", "killed by SIGABRT"),
        ("echo 'ERROR: such and such' >&2; exit 255", "such and such"),
    ],
)
def test_no_results_or_half_of_them(script: str, why: str, tmp_path: Path, fake: Callable[..., None]) -> None:
    fake(script)
    e = fails(tmp_path)
    assert why in str(e.why)
    assert e.hint


@pytest.mark.smoke
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArtefactError, match="cannot be written"):
        write_vgf_scenario(tmp_path / "file", b"", [])
    with pytest.raises(ArtefactError, match="is not a scenario"):
        run_scenario_without_needs(tmp_path / "absent.json")


def run_scenario_without_needs(file: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenario, "RUNNING", ())
        execute_scenario(file, SECONDS)
