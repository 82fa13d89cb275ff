"""bench.vela: Vela's estimates equal those of the lowering and add up; graphs do not mix; errors are explained."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn as nn

from bench import vela
from bench.vela import measure
from ingot.errors import LowerError, TargetError
from ingot.targets.arm.performance import Performance
from ingot.targets.base import Requirement
from tests.support.requirements import need

U55, U65, U85 = "ethos-u55-128", "ethos-u65-256", "ethos-u85-256"
FAMILIES = {
    U55: ("ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256"),
    U65: ("ethos-u65-256", "ethos-u65-512"),
    U85: ("ethos-u85-128", "ethos-u85-256", "ethos-u85-512", "ethos-u85-1024", "ethos-u85-2048"),
}


class Net(nn.Module):
    """Two convolutions, a pool and a linear: 216 + 1152 + 640 weights, 16 * 16 * (216 + 1152) + 64 * 640 products."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.pool, self.linear = nn.MaxPool2d(2), nn.Linear(16, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.conv2(self.conv1(x).relu()))
        return self.linear(x.permute(0, 2, 3, 1)).sigmoid()


WEIGHTS, PRODUCTS = 216 + 1152 + 640, 16 * 16 * (216 + 1152) + 64 * 640


class Compare(nn.Module):
    """Runs on an Ethos-U85 only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0.3, x, x * 0.5)


@dataclass(frozen=True)
class Lowered:
    """The TOSA graph that the stock lowering gave to Vela, and Vela's summary."""

    tosa: bytes
    summary: dict[str, str]


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Lowered]:
    need(U55)
    return cache(lambda model, target: lower(model(), target, tmp_path_factory.mktemp("lowered")))


@torch.no_grad()
def lower(model: nn.Module, target: str, folder: Path) -> Lowered:
    from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
    from executorch.backends.arm.quantizer import EthosUQuantizer, get_symmetric_quantization_config
    from executorch.exir import to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    inputs, spec = (torch.randn(1, 3, 16, 16),), EthosUCompileSpec(target)
    quantizer = EthosUQuantizer(spec)
    quantizer.set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model.eval(), inputs).module(check_guards=False), quantizer)
    prepared(*inputs)
    spec.dump_intermediate_artifacts_to(str(folder))
    program = torch.export.export(convert_pt2e(prepared), inputs)
    to_edge_transform_and_lower(program, partitioner=[EthosUPartitioner(spec)])
    return found(folder)


def found(folder: Path) -> Lowered:
    (summary,) = folder.glob("output/out_summary_*.csv")
    return Lowered((folder / "out.tosa").read_bytes(), next(csv.DictReader(summary.read_text().splitlines())))


@pytest.mark.parametrize("target", FAMILIES)
def test_the_estimate_is_that_of_the_lowering(lowered: Callable[..., Lowered], target: str) -> None:
    made = lowered(Net, target)
    p, said = measure(made.tosa, target), made.summary
    assert (p.system_config, p.memory_mode) == (said["system_config"], said["memory_mode"])
    assert (p.cycles, p.npu_cycles, p.macs) == tuple(int(said[k]) for k in ("cycles_total", "cycles_npu", "nn_macs"))
    assert p.seconds == pytest.approx(float(said["inference_time"]))
    assert p.inferences_per_second == pytest.approx(float(said["inferences_per_second"]))
    assert {m.name: m.moved_bytes for m in p.memories} == moved(said)
    assert sum(m.used_bytes for m in p.memories) == 1024 * sum(float(v) for k, v in said.items() if k.endswith("_used"))


def moved(said: dict[str, str]) -> dict[str, int]:
    return {k.removesuffix("_total_bytes"): int(v) for k, v in said.items() if k.endswith("_total_bytes") and int(v)}


@pytest.mark.parametrize("target", FAMILIES)
def test_layers_add_up_to_the_whole(lowered: Callable[..., Lowered], target: str) -> None:
    p = measure(lowered(Net, target).tosa, target)
    assert p.compiler.startswith("vela ")
    assert p.estimate
    assert_sums(p)
    for layer in p.layers:
        assert layer.cycles == max(layer.npu_cycles, *layer.access_cycles.values())
        assert (layer.limit is None) == (layer.utilisation is None) == (layer.cycles == 0)
        assert layer.sram_bytes <= p.sram_bytes


def assert_sums(p: Performance) -> None:
    assert p.cycles == sum(layer.cycles for layer in p.layers) > 0
    assert p.npu_cycles == sum(layer.npu_cycles for layer in p.layers)
    assert p.macs == sum(layer.macs for layer in p.layers)
    assert sum(layer.macs for layer in p.layers if layer.source_op == "Conv2D") == PRODUCTS
    for memory in p.memories:
        assert memory.access_cycles == sum(layer.access_cycles[memory.name] for layer in p.layers)
        assert memory.feature_bytes + memory.weight_bytes <= memory.moved_bytes


@pytest.mark.parametrize("target", FAMILIES)
def test_layers_are_named_after_tensors_of_the_graph(lowered: Callable[..., Lowered], target: str) -> None:
    tosa = lowered(Net, target).tosa
    layers = measure(tosa, target).layers
    assert all(layer.name.startswith("#") or layer.name.encode() in tosa for layer in layers)
    assert [layer.op for layer in layers if layer.macs and layer.op != "Transpose"] == [
        *["Conv2D"] * 2,
        "MaxPool",
        "Conv2D",
    ]
    assert (layers[-1].op, layers[-1].source_op, layers[-1].cycles) == ("LUT", "Table", 0)  # fused into the linear


@pytest.mark.parametrize(("target", "home"), [(U55, "off_chip_flash"), (U65, "dram"), (U85, "sram")])
def test_bytes_fit_the_weights(lowered: Callable[..., Lowered], target: str, home: str) -> None:
    """Random weights hardly compress; SRAM also has the feature maps, and on an Ethos-U85 everything."""
    p = measure(lowered(Net, target).tosa, target)
    used = {m.name: m.used_bytes for m in p.memories}
    assert WEIGHTS <= p.weight_bytes <= 1.1 * WEIGHTS
    assert 0.8 * WEIGHTS <= p.encoded_weight_bytes <= used[home] <= 4 * WEIGHTS + 16 * 16 * (8 + 16) * (home == "sram")
    assert p.sram_bytes == used["sram"] >= 16 * 16 * 8


@pytest.mark.parametrize(("family", "accelerator"), [(f, a) for f, names in FAMILIES.items() for a in names])
def test_every_accelerator(lowered: Callable[..., Lowered], family: str, accelerator: str) -> None:
    p = measure(lowered(Net, family).tosa, accelerator)
    assert p.accelerator == accelerator
    assert p.utilisation is not None
    assert 0 < p.utilisation < 1
    assert json.loads(json.dumps(p.to_dict(), allow_nan=False))["cycles"] == p.cycles


def test_configurations_and_flags_matter(lowered: Callable[..., Lowered]) -> None:
    tosa = lowered(Net, U85).tosa
    flash = measure(tosa, U85, "Ethos_U85_SYS_Flash_High", "Shared_Sram")
    assert {m.name for m in flash.memories} == {"sram", "off_chip_flash"}
    assert flash.clock_hz < measure(tosa, U85).clock_hz
    tosa = lowered(Net, U55).tosa
    assert measure(tosa, U55, extra=["--optimise Size"]).sram_bytes < measure(tosa, U55).sram_bytes


def test_graphs_measured_at_once_do_not_mix(lowered: Callable[..., Lowered]) -> None:
    jobs = [(lowered(model, U85).tosa, U85) for model in (Net, Compare)] * 2
    alone = [measure(*job) for job in jobs[:2]]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda job: measure(*job), jobs)) == alone * 2
    assert alone[0] != alone[1]


def test_an_op_that_the_accelerator_lacks_is_named(lowered: Callable[..., Lowered]) -> None:
    with pytest.raises(LowerError, match=r"Greater.*could not run on NPU") as caught:
        measure(lowered(Compare, U85).tosa, U55)
    assert "Traceback" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_graph_cut_short(lowered: Callable[..., Lowered]) -> None:
    with pytest.raises(LowerError, match="Failed to load TOSA model"):
        measure(lowered(Net, U55).tosa[:2000], U55)


def test_too_slow(lowered: Callable[..., Lowered]) -> None:
    with pytest.raises(LowerError, match=r"more than 0\.01 s"):
        measure(lowered(Net, U55).tosa, U55, seconds=0.01)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (("ethos-u55-129", None, None), LowerError, "invalid choice: 'ethos-u55-129'"),
        (("u55", None, None), TargetError, "unknown accelerator 'u55'"),
        ((U55, "Nowhere", None), LowerError, "System_Config.Nowhere not found"),
        ((U55, None, "Dedicated_Sram"), LowerError, "must be Sram or Dram"),
    ],
)
def test_unknown_configurations(
    lowered: Callable[..., Lowered], given: tuple[str, str | None, str | None], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        measure(lowered(Net, U55).tosa, *given)


@pytest.mark.parametrize("garbage", [b"", b"hello", bytes(range(256)) * 16])
def test_garbage(monkeypatch: pytest.MonkeyPatch, garbage: bytes) -> None:
    monkeypatch.setattr(vela, "VELA", Requirement("ethos-u-vela", lambda: "5.1.0", ""))
    with pytest.raises(LowerError, match="no TOSA"):
        measure(garbage, U55)


def test_without_vela(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vela, "VELA", Requirement("ethos-u-vela", lambda: None, "pip install ethos-u-vela"))
    with pytest.raises(TargetError, match=r"not installed.*pip install ethos-u-vela"):
        measure(b"", U55)
