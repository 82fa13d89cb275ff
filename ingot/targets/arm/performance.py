"""What Vela, the compiler of Ethos-U delegates, expects one to cost: cycles, bytes and layers, as data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from ingot.errors import LowerError
from ingot.targets.arm.requirements import VELA

ACCESS = {  # memory -> its column in Vela's table of layers
    "sram": "SRAM AC",
    "dram": "DRAM AC",
    "on_chip_flash": "OnFlash AC",
    "off_chip_flash": "OffFlash AC",
}
Row = Mapping[str, str]


@dataclass(frozen=True)
class Layer:
    """One op as the accelerator runs it; one that is fused into the op before it takes no cycles of its own."""

    name: str  # of the TOSA tensor that it writes; one that Vela made has a suffix, or is a number behind #
    op: str
    source_op: str  # the TOSA op that it is, or is a part of
    cycles: int
    npu_cycles: int
    access_cycles: dict[str, int]  # by memory; they run beside the accelerator: the slowest of all decides
    macs: int
    utilisation: float | None  # 0 to 1; None where there are no cycles
    sram_bytes: int

    @property
    def limit(self) -> str | None:
        """What decides how long it takes: npu, or the name of a memory."""
        times = {"npu": self.npu_cycles, **self.access_cycles}
        return max(times, key=times.__getitem__) if self.cycles else None


@dataclass(frozen=True)
class Memory:
    """What one inference asks of one memory."""

    name: str
    used_bytes: int  # at the peak, with the weights that lie there and without the commands
    moved_bytes: int  # read and written: the two below, and scales and tables
    feature_bytes: int
    weight_bytes: int
    access_cycles: int


@dataclass(frozen=True)
class Performance:
    """One delegate, by the estimate of its compiler; nothing was measured."""

    compiler: str
    accelerator: str
    system_config: str
    memory_mode: str
    clock_hz: float
    cycles: int
    npu_cycles: int
    seconds: float
    macs: int  # as Vela counts: pooling, reductions and some moves have theirs
    utilisation: float | None
    weight_bytes: int  # as in the model
    encoded_weight_bytes: int  # as the accelerator reads them
    memories: tuple[Memory, ...]  # those that are used
    layers: tuple[Layer, ...]  # in the order of execution
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


def read(accelerator: str, files: Mapping[str, bytes]) -> Performance | None:
    """What Vela left beside the program; None where it left nothing."""
    summary = next((name for name in files if name.startswith("summary_")), None)
    if summary is None or "per-layer.csv" not in files:
        return None
    return performance(accelerator, rows(files[summary]), rows(files["per-layer.csv"]))


def rows(table: bytes) -> list[Row]:
    """Vela quotes nothing; a comma can only be in the name of a layer, and names come last."""
    lines = table.decode().splitlines()
    if len(lines) < 2:
        raise _unreadable("a table is empty")
    header = lines[0].split(",")
    return [dict(zip(header, line.split(",", len(header) - 1), strict=False)) for line in lines[1:]]


def performance(accelerator: str, summaries: Sequence[Row], rows: Sequence[Row]) -> Performance:
    summary = summaries[0]
    width = int(accelerator.rsplit("-", 1)[-1])  # the multiplications in a cycle, over all cores
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
        layers=tuple(_layer(row, width, [m.name for m in memories]) for row in rows),
    )


def _memories(summary: Row) -> tuple[Memory, ...]:
    known = [name for name in ACCESS if f"cycles_{name}_access" in summary]
    used = {name: round(_float(summary, f"{name}_memory_used") * 1024) for name in known}
    moved = {name: _int(summary, f"{name}_total_bytes") for name in known}
    if "on_chip_flash" in known and not moved["on_chip_flash"]:  # so Vela calls the part of the SRAM with the weights
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
        return float(Fraction(_cell(row, column)))  # which takes neither NaN nor infinity
    except ValueError as e:
        raise _unreadable(f"'{row[column]}' in the column '{column}' is no number") from e


def _cell(row: Row, column: str) -> str:
    try:
        return row[column]
    except KeyError as e:
        raise _unreadable(f"there is no column '{column}'") from e


def _unreadable(why: str) -> LowerError:
    return LowerError(
        "Vela's tables cannot be read", why=why, hint=f"the version that they are known of: {VELA.install}"
    )
