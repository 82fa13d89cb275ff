"""Vela's performance estimate of an Ethos-U delegate: cycles, bytes and layers, read from its CSV reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from ingot.errors import LowerError
from ingot.targets.arm.requirements import VELA

ACCESS = {  # memory -> column of its access cycles in per-layer.csv
    "sram": "SRAM AC",
    "dram": "DRAM AC",
    "on_chip_flash": "OnFlash AC",
    "off_chip_flash": "OffFlash AC",
}
Row = Mapping[str, str]


@dataclass(frozen=True)
class Layer:
    """One op as the accelerator runs it. An op that is fused into the one before has 0 cycles."""

    name: str  # of the TOSA tensor that it writes; tensors that Vela creates have a suffix or are #<number>
    op: str
    source_op: str  # the TOSA op that it implements, or a part of it
    cycles: int
    npu_cycles: int
    access_cycles: dict[str, int]  # by memory; accesses overlap with computation, so the slowest of all decides
    macs: int
    utilisation: float | None  # of the MAC units, 0 to 1; None: no cycles
    sram_bytes: int

    @property
    def limit(self) -> str | None:
        """The bottleneck: "npu" or the name of a memory."""
        times = {"npu": self.npu_cycles, **self.access_cycles}
        return max(times, key=times.__getitem__) if self.cycles else None


@dataclass(frozen=True)
class Memory:
    """Use of one memory by one inference."""

    name: str
    used_bytes: int  # at the peak, with weights, without the command stream
    moved_bytes: int  # read and written: feature maps, weights, scales and tables
    feature_bytes: int
    weight_bytes: int
    access_cycles: int


@dataclass(frozen=True)
class Performance:
    """One delegate, as Vela estimates it; nothing was measured."""

    compiler: str
    accelerator: str
    system_config: str
    memory_mode: str
    clock_hz: float
    cycles: int
    npu_cycles: int
    seconds: float
    macs: int  # as Vela counts them: also for pooling, reductions and some data movement
    utilisation: float | None
    weight_bytes: int  # before encoding
    encoded_weight_bytes: int  # compressed, as the accelerator reads them
    memories: tuple[Memory, ...]  # only those in use
    layers: tuple[Layer, ...]  # in execution order
    estimate: bool = True

    @property
    def inferences_per_second(self) -> float | None:
        return 1 / self.seconds if self.seconds else None

    @property
    def sram_bytes(self) -> int:
        return sum(m.used_bytes for m in self.memories if m.name == "sram")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        layers = [{**asdict(layer), "limit": layer.limit} for layer in self.layers]
        more = {"inferences_per_second": self.inferences_per_second, "sram_bytes": self.sram_bytes}
        return {**asdict(self), **more, "memories": [asdict(m) for m in self.memories], "layers": layers}


def read_performance(accelerator: str, files: Mapping[str, bytes]) -> Performance | None:
    """From the files of a delegate; None: Vela wrote no reports."""
    summary = next((name for name in files if name.startswith("summary_")), None)
    if summary is None or "per-layer.csv" not in files:
        return None
    return performance_from(accelerator, csv_rows(files[summary]), csv_rows(files["per-layer.csv"]))


def csv_rows(table: bytes) -> list[Row]:
    """Vela does not quote. A comma can only be in a layer's name, and that is the last column."""
    lines = table.decode().splitlines()
    if len(lines) < 2:
        raise _unreadable("the table is empty")
    header = lines[0].split(",")
    return [dict(zip(header, line.split(",", len(header) - 1), strict=False)) for line in lines[1:]]


def performance_from(accelerator: str, summaries: Sequence[Row], layers: Sequence[Row]) -> Performance:
    summary = summaries[0]
    width = int(accelerator.rsplit("-", 1)[-1])  # MACs a cycle, of all cores
    memories = _memories(summary)
    cycles, macs, clock = _int(summary, "cycles_total"), _int(summary, "nn_macs"), _float(summary, "core_clock")
    return Performance(
        compiler=f"vela {VELA.found()}",
        accelerator=accelerator,
        system_config=_cell(summary, "system_config"),
        memory_mode=_cell(summary, "memory_mode"),
        clock_hz=clock,
        cycles=cycles,
        npu_cycles=_int(summary, "cycles_npu"),
        seconds=cycles / clock,
        macs=macs,
        utilisation=_ratio(macs, cycles * width),
        weight_bytes=_int(summary, "total_original_weights"),
        encoded_weight_bytes=_int(summary, "total_npu_encoded_weights"),
        memories=memories,
        layers=tuple(_layer(row, width, [m.name for m in memories]) for row in layers),
    )


def _memories(summary: Row) -> tuple[Memory, ...]:
    known = [name for name in ACCESS if f"cycles_{name}_access" in summary]
    used = {name: round(_float(summary, f"{name}_memory_used") * 1024) for name in known}
    moved = {name: _int(summary, f"{name}_total_bytes") for name in known}
    if "on_chip_flash" in known and not moved["on_chip_flash"]:  # weights in SRAM, under another name
        used["sram"] = used.get("sram", 0) + used.pop("on_chip_flash")
    return tuple(_memory(summary, name, n, moved[name]) for name, n in used.items() if n or moved[name])


def _memory(summary: Row, name: str, used: int, moved: int) -> Memory:
    features, weights = (
        sum(_int(summary, f"{name}_{what}_{way}_bytes") for way in ("read", "write"))
        for what in ("feature_map", "weight")
    )
    return Memory(name, used, moved, features, weights, _int(summary, f"cycles_{name}_access"))


def _layer(row: Row, width: int, memories: Collection[str]) -> Layer:
    cycles, macs = _int(row, "Op Cycles"), _int(row, "MAC Count")
    return Layer(
        name=_cell(row, "Name"),
        op=_cell(row, "NNG Operator"),
        source_op=_cell(row, "Original Operator"),
        cycles=cycles,
        npu_cycles=_int(row, "NPU"),
        access_cycles={name: _int(row, column) for name, column in ACCESS.items() if name in memories},
        macs=macs,
        utilisation=_ratio(macs, cycles * width),
        sram_bytes=_int(row, "Staging Usage"),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _int(row: Row, column: str) -> int:
    return round(_float(row, column))


def _float(row: Row, column: str) -> float:
    try:
        return float(Fraction(_cell(row, column)))  # refuses NaN and infinity
    except ValueError as e:
        raise _unreadable(f"'{row[column]}' in the column '{column}' is not a number") from e


def _cell(row: Row, column: str) -> str:
    try:
        return row[column]
    except KeyError as e:
        raise _unreadable(f"column '{column}' is missing") from e


def _unreadable(why: str) -> LowerError:
    return LowerError("Vela's reports cannot be read", why=why, hint=f"install the tested version: {VELA.install}")
