"""The version gate: on untested versions no speed patch, one warning, the same file; a missing name is skipped."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.fx.passes.infra.pass_base import PassResult

import ingot
from ingot.core.versions import TESTED
from ingot.patches import version_gate as gate
from ingot.patches.speed_contexts import fast_lowering
from ingot.patches.table import PATCHES, SPEED

BATCHES = [(torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8) * (i + 1),) for i in range(2)]


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()


@pytest.fixture(scope="module")
def planned() -> tuple[ingot.Program, ingot.Plan]:
    program = ingot.capture(conv_net(), BATCHES[0])
    return program, ingot.plan(program, ingot.record(program, BATCHES), "xnnpack")


@pytest.fixture
def untested(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gate, "_installed", lambda package: {**TESTED, "executorch": "1.6.0"}[package])
    gate._warn_once.cache_clear()
    yield
    gate._warn_once.cache_clear()


@pytest.fixture
def _one_debug_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debug handles number the ops as they were traced: the only difference between the files."""
    from executorch.exir.passes.debug_handle_generator_pass import DebugHandleGeneratorPass

    def call(_: object, module: torch.fx.GraphModule) -> PassResult:
        for node in module.graph.nodes:
            node.meta["debug_handle"] = 7
        return PassResult(module, True)

    monkeypatch.setattr(DebugHandleGeneratorPass, "call", call)


def test_the_installed_versions_are_the_tested_ones() -> None:
    assert gate.untested_versions() == {}
    assert gate.speed_patches_apply()


def test_a_local_version_label_is_the_same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_installed", lambda package: TESTED[package] + "+cpu")
    assert gate.speed_patches_apply()


def test_a_package_that_is_not_installed_is_not_untested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_installed", lambda _: None)
    assert gate.speed_patches_apply()


@pytest.mark.parametrize("group", PATCHES)
def test_on_tested_versions_every_patched_name_exists(group: str) -> None:
    if group in ("arm", "vulkan"):
        pytest.importorskip(f"executorch.backends.{group}", reason="pip install executorch==1.5.1")
    for entry in PATCHES[group]:
        assert gate.patch_if_present(entry, {}) is not None, entry


@pytest.mark.parametrize("group", PATCHES)
def test_each_replacement_is_in_force_and_then_gone(group: str) -> None:
    def now() -> list[object]:
        return [vars(gate._resolve(e.owner)).get(e.attribute) for e in PATCHES[group]]

    before = now()
    with gate.patched(group):
        assert all(a is not b for a, b in zip(now(), before, strict=True))
    assert now() == before


@pytest.mark.usefixtures("untested", "_one_debug_handle")
def test_on_an_untested_version_the_file_is_the_same_and_one_warning_says_why(
    planned: tuple[ingot.Program, ingot.Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        slow = [ingot.lower(*planned).pte for _ in range(2)]
    (note,) = [str(w.message) for w in caught if "Ingot" in str(w.message)]
    assert f"torch {TESTED['torch']}, executorch {TESTED['executorch']}; installed: executorch 1.6.0." in note
    assert "patches that speed up lowering are off" in note
    monkeypatch.setattr(gate, "_installed", TESTED.get)
    assert slow == [ingot.lower(*planned).pte] * 2


@pytest.mark.usefixtures("_one_debug_handle")
@pytest.mark.filterwarnings("ignore:Ingot is tested with")  # once a process: this test or another gets it
def test_the_same_file_with_and_without_speed_patches(
    planned: tuple[ingot.Program, ingot.Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fast = ingot.lower(*planned).pte
    monkeypatch.setattr(gate, "_installed", lambda package: {**TESTED, "torch": "2.14.0"}[package])
    assert ingot.lower(*planned).pte == fast


@pytest.mark.usefixtures("untested")
def test_on_an_untested_version_repairs_apply_and_speed_patches_do_not() -> None:
    from executorch.backends.xnnpack._passes.convert_to_sdpa import ConvertToSDPAPass

    call, recompile = ConvertToSDPAPass.call, torch.fx.GraphModule.recompile
    with fast_lowering(), gate.patched("xnnpack"):
        assert ConvertToSDPAPass.call is call
        assert torch.fx.GraphModule.recompile is recompile
    assert not {"arm", "vulkan"} & SPEED


@pytest.mark.usefixtures("untested")
def test_capture_without_speed_patches_gives_the_same_graph(planned: tuple[ingot.Program, ingot.Plan]) -> None:
    assert ingot.capture(conv_net(), BATCHES[0]).fingerprint == planned[0].fingerprint


REMOVED = [
    ("executorch.backends.xnnpack._passes.convert_to_sdpa", "ConvertToSDPAPass"),
    ("executorch.exir.backend.canonical_partitioners.group_partitioner", "GroupBasedPartitioner"),
    ("executorch.exir.pass_base:_ExportPassBase.ExportInterpreter", "run_node"),
]


@pytest.mark.parametrize(("owner", "name"), REMOVED)
def test_lowering_works_without_a_patched_name(
    owner: str, name: str, planned: tuple[ingot.Program, ingot.Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that ExecuTorch itself does not look up again: all others it needs for lowering."""
    assert any(name in (*e.owner.split(":"), e.attribute) for group in PATCHES.values() for e in group)
    fast = ingot.lower(*planned).pte
    monkeypatch.delattr(gate._resolve(owner), name)
    assert ingot.lower(*planned).pte == fast


@pytest.mark.usefixtures("_one_debug_handle")
def test_lowering_works_where_every_patched_name_was_renamed(
    planned: tuple[ingot.Program, ingot.Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = ingot.lower(*planned).pte
    for group, entries in PATCHES.items():
        monkeypatch.setitem(PATCHES, group, tuple(replace(e, attribute=f"{e.attribute}_renamed") for e in entries))
    assert ingot.lower(*planned).pte == fast


def test_a_missing_module_or_a_missing_replacement_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = tuple(
        gate.Patch(owner, "call", "xnnpack:only_with_index", "not there")
        for owner in ("executorch.no_such_module:Pass", "executorch.exir.pass_base:NoSuchPass")
    )
    monkeypatch.setitem(PATCHES, "xnnpack", entries)
    with gate.patched("xnnpack"):
        pass
