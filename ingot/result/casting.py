"""What a cast returns: the program, its delegates and host ops, its plan and its check."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from ingot.capture.inputs import Batch
from ingot.capture.method_for import MAIN_METHOD
from ingot.core.artefact import Check, Delegate, HostOp, ProgramIO
from ingot.core.atomic_file import atomic_write, write_folders
from ingot.core.goal_records import GoalResult
from ingot.errors import ArtefactError
from ingot.lower.edge import edge_program
from ingot.plan.plan_data import Plan
from ingot.quantize.exported import as_exported
from ingot.result.details.collect import details_of
from ingot.result.details.records import Details
from ingot.result.report.facts import facts_of, to_json
from ingot.result.report.html import page
from ingot.result.report.notebook import notebook_html
from ingot.result.report.text import summary
from ingot.result.saved import Loaded, load_folder, saved_files
from ingot.targets.base import Estimate
from ingot.verify.check import Evidence


@dataclass(frozen=True)
class Casting:
    """A finished cast. `check` is None until it was executed."""

    target: str
    pte: bytes = field(repr=False)
    delegates: tuple[Delegate, ...]
    host_ops: tuple[HostOp, ...]
    io: ProgramIO
    plan: Plan = field(repr=False)
    check: Check | None = None
    timings: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    goal: GoalResult | None = None  # None: none was asked for
    # What the target's compiler estimates, one for each delegate; empty where it says nothing.
    performance: tuple[Estimate, ...] = ()
    # Of a weight-only scheme: each weight, its bits, group and bytes.
    layers: tuple[Any, ...] = ()
    # By the name of a host op, the value of the program that it computes.
    hosted: Mapping[str, str] = field(default_factory=dict, repr=False)
    # The float reference and the quantized graph, for verify() and localize().
    evidence: Evidence | None = field(default=None, repr=False, compare=False)
    method: str = MAIN_METHOD
    others: Mapping[str, Casting] = field(default_factory=dict, repr=False)  # further methods of the same program

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the program (.pte); the file appears whole or not at all."""
        with atomic_write(path) as f:
            f.write(self.pte)
        return Path(path)

    def save_folder(self, folder: str | os.PathLike[str], *, evidence: bool = True) -> Path:
        """Write everything that `Casting.load` reads: program, plan, records, report.json.

        With `evidence` also the float and the quantized program (.pt2), to verify and localize with later.
        """
        write_folders({
            place: {**saved_files(c, evidence=evidence), "report.json": to_json(facts_of(c)).encode()}
            for place, c in self.folders(Path(folder)).items()
        })  # fmt: skip
        return Path(folder)

    def folders(self, folder: Path) -> dict[Path, Casting]:
        """Where it is saved: of several sizes, each further method has a folder in that of the first."""
        return {folder: self, **{folder / name: self.others[name] for name in self.plan.methods}}

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Casting:
        """A casting that `save_folder` or `ingot cast -o` wrote, to report, compare, verify or localize again."""
        main = cls._of(load_folder(Path(folder)))
        methods = {name: cls._of(load_folder(Path(folder) / name, main.pte)) for name in main.plan.methods}
        return replace(main, others={name: replace(c, method=name) for name, c in methods.items()})

    @classmethod
    def _of(cls, found: Loaded) -> Casting:
        r = found.records
        return cls(
            r.target, found.pte, r.delegates, r.host_ops, r.io, found.plan, r.check, r.timings, r.notes,
            r.goal, found.performance, hosted=r.hosted, evidence=found.evidence,
        )  # fmt: skip

    @property
    def methods(self) -> dict[str, Casting]:
        """Each method of the program by its name, with delegates, host ops, inputs, plan and check of its own."""
        return {self.method: self, **self.others}

    @cached_property
    def exported_program(self) -> ExportedProgram:
        """The quantized program with its Q/DQ ops, before lowering."""
        evidence = self.needed_evidence
        return as_exported(evidence.quantized, evidence.program)

    @cached_property
    def edge_program(self) -> ExportedProgram:
        """The edge program with its delegates, before serialisation. Lowers again when first asked for."""
        evidence = self.needed_evidence
        return edge_program(evidence.program, evidence.quantized, self.plan, evidence.target)

    @property
    def needed_evidence(self) -> Evidence:
        """The float reference and the quantized graph; an error where the casting was loaded without them."""
        if self.evidence is None:
            why = "this casting has neither its float program nor its quantized graph"
            raise ArtefactError("nothing to compare with", why=why, hint="load a folder that was saved with evidence")
        return self.evidence

    @cached_property
    def details(self) -> Details:
        """Graph, ranges, errors, sizes and times, as a report shows them. Computed when first asked for."""
        return details_of(self)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML page."""
        with atomic_write(path) as f:
            f.write(page(facts_of(self)).encode())
        return Path(path)

    def __str__(self) -> str:
        """What the shell prints after a cast."""
        return summary(self, verbose=False)

    def _repr_html_(self) -> str:
        """What a notebook shows: the headline, inputs and outputs, errors, host ops."""
        return notebook_html(self)

    def scenario(self, folder: str | os.PathLike[str], batches: Iterable[Batch] | None = None) -> Path:
        """Write the program as a scenario that Arm's scenario-runner executes; `batches` default to the example."""
        from ingot.result.scenario import write_scenario_folder

        return write_scenario_folder(self, Path(folder), batches)

    def etrecord(self, path: str | os.PathLike[str]) -> Path:
        """Write an ETRecord: ExecuTorch's Inspector maps an ETDump of this program to your lines. Lowers once more."""
        from ingot.result.export.etrecord import etrecord

        made = etrecord(self)
        with atomic_write(path) as f:
            f.write(made)
        return Path(path)

    def bundle(self, path: str | os.PathLike[str], batches: Iterable[Batch] | None = None) -> Path:
        """Write the program with test vectors (.bpte) that a device checks itself; default: one batch of the check."""
        from ingot.result.export.bundled import bundled_program

        made = bundled_program(self, batches)
        with atomic_write(path) as f:
            f.write(made)
        return Path(path)

    def checked(self, check: Check, timings: dict[str, float]) -> Casting:
        """The same casting, executed."""
        return replace(self, check=check, timings={**self.timings, **timings})
