"""Cast small nets for a target, execute them, and say what is wrong: numerics, fusions, moves, joins, I/O, refusals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ingot import api
from ingot.api import OnMismatch
from ingot.core.artefact import HostOp
from ingot.errors import ArtefactError, IngotError, InputError, nearest
from ingot.result.casting import Casting
from ingot.targets.base import Batch, Target
from ingot.targets.forwarding import ForwardingRunner
from ingot.targets.registry import find_target
from ingot.testing.nets import CASES, FUSIONS, JOINS, MOVES, NUMERICS, ROWS, ConformanceCase, Mixed, SmallOutput
from ingot.testing.outcomes import CaseOutcome, ConformanceReport, Verdict

BATCHES = 6
IO, REFUSALS, VERIFICATION = "I/O types", "refusals", "verification"
# A kernel that is wrong shows as an error. Recovery would move the op to the host and hide it.
STRICT = {"recover": False}
CATEGORIES = (NUMERICS, FUSIONS, MOVES, JOINS, IO, REFUSALS, VERIFICATION)
Said = tuple[Verdict, str]


def conformance(
    target: str,
    *,
    quick: bool = False,
    categories: Collection[str] = CATEGORIES,
    on_case: Callable[[CaseOutcome], None] | None = None,
) -> ConformanceReport:
    """Run the cases of these categories for `target`; `quick` runs the most telling ones.

    Nothing is raised for a case that fails: the report has its error.
    """
    if unknown := sorted(set(categories) - set(CATEGORIES)):
        raise InputError(f"no category '{unknown[0]}'", hint=nearest(unknown[0], CATEGORIES))
    found, outcomes = find_target(target), list[CaseOutcome]()
    for outcome in _outcomes(found, quick, categories):
        outcomes.append(outcome)
        if on_case is not None:
            on_case(outcome)
    return ConformanceReport(target, found.runner.executed_on(), tuple(outcomes))


def _outcomes(target: Target, quick: bool, categories: Collection[str]) -> Iterator[CaseOutcome]:
    numerics = []
    for case in (c for c in CASES if (c.quick or not quick) and c.category in categories):
        outcome = _outcome(case.category, case.name, partial(_cast_and_check, target, case))
        numerics += [outcome.verdict] if case.category == NUMERICS else []
        yield outcome
    if numerics and set(numerics) == {"not applicable"}:
        yield CaseOutcome(NUMERICS, "any delegate", "failed", "none of these nets has a delegate")
    yield from (_outcome(c, name, partial(check, target)) for c, name, check in _OTHER_CASES if c in categories)


def _outcome(category: str, name: str, check: Callable[[], Said]) -> CaseOutcome:
    try:
        return CaseOutcome(category, name, *check())
    except IngotError as e:
        return CaseOutcome(category, name, "failed", str(e))
    except Exception as e:  # whatever a backend in development raises is its outcome
        return CaseOutcome(category, name, "failed", f"{type(e).__name__}: {e}")


def _cast(
    target: Target, net: nn.Module, shape: tuple[int, ...], on_mismatch: OnMismatch = "raise", **recipe: Any
) -> tuple[Casting, list[Batch]]:
    made = torch.Generator().manual_seed(0)
    batches: list[Batch] = [(torch.rand(shape, generator=made) * 2 - 1,) for _ in range(BATCHES)]
    casting = api.cast(
        net.eval(), batches[0], target=target.name, calibration=batches, recipe={**STRICT, **recipe},
        on_mismatch=on_mismatch,
    )  # fmt: skip
    return casting, batches


def _seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def _cast_and_check(target: Target, case: ConformanceCase) -> Said:
    """A cast raises where the artefact is not what its graph computes."""
    casting, _ = _cast(target, _seeded(case.build), case.shape)
    if not casting.delegates:
        return "not applicable", "; ".join(dict.fromkeys(h.reason for h in casting.host_ops))
    return "passed", ""


# ---- I/O types ----


def _integer_io(target: Target) -> Said:
    """The caller hands over int8 and gets int8: the runner must take and return these dtypes."""
    if not target.numerics.formats:
        return "not applicable", "no integer activations"
    casting, _ = _cast(target, _seeded(SmallOutput), ROWS, inputs=["snorm8"], outputs=["snorm8"])
    dtypes = [t.dtype for t in (*casting.io.inputs, *casting.io.outputs)]
    return ("passed", "") if dtypes == ["int8", "int8"] else ("failed", f"dtypes {dtypes} instead of int8")


# ---- refusals ----


def _refusals(target: Target) -> Said:
    """Every host op has a reason, and none is an op that `kernels.ability` promised to run as it was planned."""
    casting, _ = _cast(target, _seeded(Mixed), ROWS)
    wrong = [said for op in casting.host_ops if (said := _broken_promise(casting, op)) is not None]
    if wrong:
        return "failed", "; ".join(wrong)
    return ("passed", "") if casting.host_ops else ("not applicable", "it runs every op of the net")


def _broken_promise(casting: Casting, op: HostOp) -> str | None:
    if not op.reason:
        return f"{op.op} at {op.source} is on the host without a reason: call report_host_op in the partitioner"
    evidence, value = casting.needed_evidence, casting.hosted.get(op.name)
    node = next((n for n in evidence.program.module.graph.nodes if n.name == value), None)
    if node is None:
        return None
    qparams, ability = casting.plan.qparams(node.name), evidence.target.kernels.ability(node)
    planned = "float" if qparams is None else qparams.dtype
    if planned not in ability.runs:
        return None
    return (
        f"kernels.ability says that {op.op} runs in {planned}, and the partitioner leaves it on the host: {op.reason}"
    )


# ---- verification ----


def _other_program(target: Target) -> Said:
    """A program with other weights, judged as if it were this one: a runner that does not run the file passes it."""
    ours, batches = _cast(target, _seeded(SmallOutput, 0), ROWS)
    theirs, _ = _cast(target, _seeded(SmallOutput, 1), ROWS, on_mismatch="keep")
    if not ours.delegates:
        return "not applicable", "the net has no delegate"
    return _caught(replace(ours, pte=theirs.pte), batches, "a program with other weights passes: is the file executed?")


def _wrong_kernel(target: Target) -> Said:
    """One channel of the output is wrong by its own size."""
    casting, batches = _cast(target, _seeded(SmallOutput), ROWS)
    evidence = casting.needed_evidence
    damaged = replace(evidence.target, runner=_DamagingRunner(evidence.target.runner))
    wrong = replace(casting, evidence=replace(evidence, target=damaged))
    return _caught(wrong, batches, "an output with one wrong channel passes: are the thresholds of numerics right?")


def _caught(casting: Casting, batches: Sequence[Batch], missed: str) -> Said:
    try:
        check = api.verify(casting, batches)
    except ArtefactError:  # it does not run at all: nobody takes it for right
        return "passed", ""
    return ("failed", missed) if check.passed else ("passed", "")


@dataclass(frozen=True)
class _DamagingRunner(ForwardingRunner):
    """The first channel is doubled."""

    def run(self, pte: bytes, batches: Sequence[Batch], **how: Any) -> list[list[torch.Tensor]]:
        made = [[t.clone() for t in outputs] for outputs in self.main.run(pte, batches, **how)]
        for outputs in made:
            first = outputs[0][..., 0]
            first.copy_(torch.where(first == 0, torch.ones_like(first), first * 2))
        return made


_OTHER_CASES = (
    (IO, "int8 inputs and outputs", _integer_io),
    (REFUSALS, "ability and partitioner", _refusals),
    (VERIFICATION, "another program", _other_program),
    (VERIFICATION, "a wrong kernel", _wrong_kernel),
)
