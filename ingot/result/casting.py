"""What a cast returns: the program, its parts, its plan and its check."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.core.artefact import Check, Delegate, HostOp, ProgramIO
from ingot.core.atomic_file import atomic_write

if TYPE_CHECKING:
    from ingot.plan.model import Plan
    from ingot.result.details.model import Details


@dataclass(frozen=True)
class Casting:
    """A finished cast: the program, its pieces, the plan it came from and what running it showed."""

    target: str
    pte: bytes
    delegates: tuple[Delegate, ...]
    host_ops: tuple[HostOp, ...]
    io: ProgramIO
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
        with atomic_write(path) as f:
            f.write(self.pte)
        return Path(path)

    @cached_property
    def details(self) -> Details:
        """What a report shows beside this: the graph, ranges, errors, sizes and times. Found when first asked for."""
        from ingot.result.details.collect import details_of

        return details_of(self)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML page."""
        from ingot.result.report.facts import facts_of
        from ingot.result.report.html import page

        with atomic_write(path) as f:
            f.write(page(facts_of(self)).encode())
        return Path(path)

    def scenario(self, folder: str | os.PathLike[str], batches: Any = None) -> Path:
        """Write the program as a scenario that Arm's scenario-runner executes; `batches` default to the example."""
        from ingot.result.scenario import write_scenario_folder

        return write_scenario_folder(self, Path(folder), batches)

    def checked(self, check: Check, timings: dict[str, float]) -> Casting:
        """The same casting, executed."""
        return replace(self, check=check, timings={**self.timings, **timings})
