"""What a cast hands over: plain data, no torch graph in it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ingot.errors import ArtefactError

if TYPE_CHECKING:
    from ingot.details.model import Details
    from ingot.plan.model import Plan


@dataclass(frozen=True)
class TensorInfo:
    """One tensor at the boundary of a delegate or of the program; scale and friends are None where it is float."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    layout: str = "contiguous"
    scale: float | None = None
    zero_point: int | None = None
    qmin: int | None = None
    qmax: int | None = None


@dataclass(frozen=True)
class Boundary:
    """The inputs and the outputs of the program, in calling order."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    def to_json(self) -> str:
        """For the application: how to store what it gives, and how to read what it gets."""
        return json.dumps(asdict(self), indent=1)


@dataclass(frozen=True)
class Delegate:
    """One piece of the program that a backend runs whole."""

    backend: str
    ops: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    kinds: tuple[str, ...] = ()
    digest: str = ""  # of what the backend will load
    size: int = 0  # bytes of that, with the constants that it names
    values: tuple[str, ...] = ()  # of the program, those that are computed in it
    # What its compiler was given, and what it left beside the program.
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class HostOp:
    """One op that stayed outside every delegate, and why."""

    op: str
    name: str
    source: str
    reason: str
    hint: str


@dataclass(frozen=True)
class OutputCheck:
    """How one output of the artefact compares with the float model and with its own quantized graph."""

    name: str
    sqnr_db: float
    max_abs_error: float
    worst_channel_db: float
    faithful_db: float
    problem: str | None = None


@dataclass(frozen=True)
class Check:
    """What running the artefact showed."""

    executed_on: str
    batches: int
    outputs: tuple[OutputCheck, ...]
    passed: bool
    culprit: str | None = None

    @property
    def max_abs_error(self) -> float:
        return max((o.max_abs_error for o in self.outputs), default=0.0)


@dataclass(frozen=True)
class Casting:
    """A finished cast: the program, its pieces, the plan it came from and what running it showed."""

    target: str
    pte: bytes
    delegates: tuple[Delegate, ...]
    host_ops: tuple[HostOp, ...]
    io: Boundary
    plan: Plan
    check: Check | None = None
    timings: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # What the target's compiler estimates, one for each delegate; empty where it says nothing.
    performance: tuple[Any, ...] = ()
    # Where a weight scheme was asked for: each weight, its bits, group and bytes.
    layers: tuple[Any, ...] = ()
    # By the name of a host op, the value of the program that it computes.
    hosted: Mapping[str, str] = field(default_factory=dict)
    # What verify() needs and the user need not see: the float reference and the quantized graph.
    evidence: Any = field(default=None, repr=False, compare=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the program; the file appears whole or not at all."""
        with whole_file(path) as f:
            f.write(self.pte)
        return Path(path)

    @cached_property
    def details(self) -> Details:
        """What a report shows beside this: the graph, ranges, errors, sizes and times. Found when first asked for."""
        from ingot.details import details_of

        return details_of(self)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML page."""
        from ingot.report.facts import facts_of
        from ingot.report.html import page

        with whole_file(path) as f:
            f.write(page(facts_of(self)).encode())
        return Path(path)

    def scenario(self, folder: str | os.PathLike[str], batches: Any = None) -> Path:
        """Write the program as a scenario that Arm's scenario-runner executes; `batches` default to the example."""
        from ingot.scenario import write

        return write(self, Path(folder), batches)

    def checked(self, check: Check, timings: dict[str, float]) -> Casting:
        """The same casting, executed."""
        return replace(self, check=check, timings={**self.timings, **timings})


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file that replaces `path` only when everything was written."""
    target = Path(path)
    if target.exists() and not target.is_file():
        raise ArtefactError(f"could not write {target}", why="a file would replace what is there", hint="name a file")
    temp, made = None, [p for p in target.parents if not p.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as f:
            temp = Path(f.name)
            yield f  # type: ignore[misc]
        os.replace(temp, target)
    except OSError as e:
        raise ArtefactError(
            f"could not write {target}", why=str(e), hint="free some space or choose another folder"
        ) from e
    finally:
        if temp is not None:
            temp.unlink(missing_ok=True)
        for folder in made:
            with suppress(OSError):  # not empty: it was needed
                folder.rmdir()
