"""Cast although a backend fails: the ops on which it fails run in another precision or on the host, and a note says so.

The search lowers the same quantized graph without some ops; nothing is planned again. The ops that it finds are then
barred from the target, and the program is planned, lowered and checked as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from ingot.capture.inputs import Batch
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.config.recipe import Recipe
from ingot.core.artefact import Check
from ingot.core.deadline import Deadline
from ingot.core.fx import calls, source_of, untransformed_name
from ingot.core.progress import Silent, Steps
from ingot.errors import ArtefactError, IngotError, LowerError, NoRuntimeError, PlanError
from ingot.result.casting import Casting
from ingot.result.lower_and_verify import (
    QuantizedProgram,
    check_and_finding,
    failed_check,
    lowered,
    run_first_batch,
)
from ingot.result.recovery.failure import BackendFailure, Candidate, backend_failure, named_groups
from ingot.result.recovery.missing_kernels import about_barred_ops
from ingot.result.recovery.narrow import PartSearch, quiet_logs
from ingot.result.recovery.search import Culprits, CulpritSearch, Names
from ingot.targets.barred import Bar, with_bars
from ingot.targets.base import DYNAMIC
from ingot.verify.localize.finding import Finding

# Plans and quantizes with these ops barred.
Make = Callable[[Recipe, tuple[Bar, ...]], QuantizedProgram]
Checked = tuple[Casting, Check]

MOST_NOTES = 5
ROUNDS = 4  # a program that is planned otherwise may fail elsewhere
SHORTEST_TIMEOUT, TRIALS_IN_TIME = 10.0, 6  # a trial that hangs may take this part of the time
SHARE_FOR_PARTS = 0.5  # of the time; the rest is for the whole program
REDUCE = "ingot.reduce(…) or `ingot localize … --reduce repro.py` gives the smallest model that fails, to report"


def lowered_and_checked(
    make: Make, recipe: Recipe, batches: Sequence[Batch], steps: Steps, on_mismatch: str = "raise"
) -> Checked:
    """Lower, execute and compare; where the backend fails on some ops, or computes them wrongly, without these."""
    recovery = _Recovery(make, recipe, batches, steps)
    first = recovery.attempted({})
    try:
        best = recovery.recovered(first) if recipe.recover and first.recoverable else first
        if best.error is not None:
            raise best.error
    except (LowerError, ArtefactError, PlanError) as refused:
        if first.check is not None:  # it ran, and is wrong
            return first.checked
        if first.casting is None or on_mismatch == "raise":
            raise
        return first.casting, failed_check(first.casting, refused)
    return best.checked


@dataclass(frozen=True)
class _Attempt:
    """One cast: what was lowered, and how it ended."""

    work: QuantizedProgram
    casting: Casting | None = None  # None: it was not even lowered
    check: Check | None = None  # None: it did not run
    finding: Finding | None = None  # where it disagrees with its graph
    error: IngotError | None = None

    @property
    def passed(self) -> bool:
        return self.check is not None and self.check.passed

    @property
    def checked(self) -> Checked:
        assert self.casting is not None
        assert self.check is not None
        return self.casting, self.check

    @property
    def recoverable(self) -> bool:
        return (self.error is not None and not isinstance(self.error, NoRuntimeError)) or self.wrong is not None

    @property
    def wrong(self) -> str | None:
        """The op whose kernel is wrong. An input that is returned may be wrong too, and no op can be moved then."""
        found = self.finding.mismatch if self.finding is not None else None
        return found if found in {n.name for n in calls(self.work.form.module)} else None

    @property
    def failure(self) -> BackendFailure:
        if self.error is not None:
            return backend_failure(self.error)
        assert self.finding is not None
        return BackendFailure("run", self.finding.verdict, self.finding.verdict)


@dataclass(frozen=True)
class _Recovery:
    make: Make
    recipe: Recipe
    batches: Sequence[Batch]
    steps: Steps

    def attempted(self, bars: Mapping[str, Bar], deadline: Deadline | None = None) -> _Attempt:
        """`deadline`: of the search for where it is wrong, if it is."""
        seconds = None if deadline is None else lambda: max(deadline.left, 0.0)
        on_host = tuple((b.name, b.reason) for b in bars.values() if not b.leaves)
        recipe = replace(self.recipe, host_ops=(*self.recipe.host_ops, *on_host))
        work, casting = self.make(recipe, tuple(b for b in bars.values() if b.leaves)), None
        try:
            casting = lowered(work, self.steps)
            with self.steps("verify"):
                return _Attempt(work, casting, *check_and_finding(casting, self.batches, self.steps, seconds))
        except (LowerError, ArtefactError) as e:
            return _Attempt(work, casting, error=e)

    def recovered(self, first: _Attempt) -> _Attempt:
        """The attempt that passes; else the last, or the first where that ran at all."""
        attempt, bars, notes = first, dict[str, Bar](), list[str]()
        deadline = Deadline(self.recipe.localize_seconds)
        for _ in range(ROUNDS):
            found = self._culprits(attempt, deadline)
            before, attempt = attempt, self._planned_otherwise(attempt, found, bars, deadline)
            notes += _notes(before, found, bars, deadline.seconds)
            if attempt.passed or not attempt.recoverable or deadline.passed:
                break
        if first.check is not None and not attempt.passed:
            return first
        if attempt.casting is None:
            return attempt
        return replace(attempt, casting=replace(attempt.casting, notes=(*attempt.casting.notes, *notes)))

    def _planned_otherwise(
        self, attempt: _Attempt, found: Culprits, bars: dict[str, Bar], deadline: Deadline
    ) -> _Attempt:
        """The first alternative that passes, else the last; `bars` gets what it bars."""
        *first, last = _alternatives(attempt, found)
        for chosen in first:
            with suppress(PlanError):  # the recipe may ask for the precision in which the backend fails
                after = self.attempted({**bars, **chosen}, Deadline(0.0))  # where it is wrong is not asked
                if after.passed:
                    bars |= chosen
                    return after
        bars |= last
        return self.attempted(bars, deadline)

    def _culprits(self, attempt: _Attempt, deadline: Deadline) -> Culprits:
        if attempt.wrong is not None and attempt.finding is not None:
            return Culprits({attempt.wrong: attempt.finding.verdict}, minimal=True, trials=attempt.finding.lowerings)
        candidates, error = list(_candidates(attempt)), attempt.error
        assert error is not None
        if attempt.failure.missing:  # the host has no kernel: no op is gained by leaving the backend
            raise error
        with self.steps("recover") as tick:
            parts = self._parts(attempt, deadline)
            count: Callable[[], None] = lambda: tick(search.trials + parts.trials, None)  # noqa: E731
            search = CulpritSearch(candidates, self._trial(attempt), deadline, parts.narrow, count)
            parts.on_trial = count
            found = search.find(attempt.failure)
        if found is None and search.without_kernel and not _only_weights(attempt):
            # Only the backend can run these, perhaps in another precision.
            words = dict.fromkeys(sorted(search.without_kernel), attempt.failure.words)
            return Culprits(words, minimal=False, trials=search.trials + parts.trials)
        if found is None:
            raise _refused(error, attempt, candidates, deadline.seconds if search.out_of_time else None) from error
        return replace(found, trials=found.trials + parts.trials)

    def _parts(self, attempt: _Attempt, deadline: Deadline) -> PartSearch:
        batch = attempt.work.form.flatten(self.batches[0])
        short = replace(attempt.work, recipe=replace(attempt.work.recipe, run_timeout=self._timeout))
        return PartSearch(short, batch, deadline.left * SHARE_FOR_PARTS)

    @property
    def _timeout(self) -> float:
        return min(self.recipe.run_timeout, max(SHORTEST_TIMEOUT, self.recipe.localize_seconds / TRIALS_IN_TIME))

    def _trial(self, attempt: _Attempt) -> Callable[[Names], BackendFailure | None]:
        short, runs = replace(attempt.work.recipe, run_timeout=self._timeout), attempt.failure.stage != "lower"

        def trial(names: Names) -> BackendFailure | None:
            target = with_bars(attempt.work.target, [Bar(n, "left out on trial") for n in sorted(names)])
            try:
                with quiet_logs():
                    casting = lowered(replace(attempt.work, target=target, recipe=short), Steps(Silent()))
                if runs:
                    run_first_batch(casting, self.batches)
            except (LowerError, ArtefactError) as e:
                return about_barred_ops(backend_failure(e), attempt.work.quantized, names)
            return None

        return trial


def _candidates(attempt: _Attempt) -> Iterator[Candidate]:
    """The ops that the backend was given, in graph order. An op that writes into a buffer cannot be moved alone."""
    delegated = (
        None
        if attempt.casting is None
        else {untransformed_name(v) for d in attempt.casting.delegates for v in d.values}
    )
    for node in calls(attempt.work.form.module):
        op = node.target
        functional = isinstance(op, torch._ops.OpOverload) and not op._schema.is_mutable
        if functional and (delegated is None or node.name in delegated):
            heavy = weight_axis(node) is not None
            yield Candidate(node.name, str(op).removeprefix("aten."), source_of(node), heavy)


def _alternatives(attempt: _Attempt, found: Culprits) -> list[dict[str, Bar]]:
    """In another precision inside the delegate, where the backend offers one; then on the host."""
    nodes = {n.name: n for n in attempt.work.form.module.graph.nodes}
    on_host = {n: Bar(n, _reason(attempt, words)) for n, words in found.words.items()}
    others = {n: replace(b, leaves=_other_precisions(nodes[n], attempt)) for n, b in on_host.items()}
    chosen = not _only_weights(attempt) and any(b.leaves for b in others.values())
    return [others, on_host] if chosen else [on_host]


def _only_weights(attempt: _Attempt) -> bool:
    """There are no precisions of activations to choose from."""
    return "weights" in attempt.work.plan.settings


def _other_precisions(node: Node, attempt: _Attempt) -> frozenset[str]:
    qparams = attempt.work.plan.qparams(node.name)
    dynamic = node.name in attempt.work.plan.dynamic
    now = DYNAMIC if dynamic else "float" if qparams is None else qparams.dtype
    return attempt.work.target.kernels.ability(node).runs - {now}


def _reason(attempt: _Attempt, words: str) -> str:
    return words if attempt.wrong else f"{attempt.work.target.name} fails on it: {words}"


# ---- what is said ----


def _notes(attempt: _Attempt, found: Culprits, bars: Mapping[str, Bar], seconds: float) -> Iterator[str]:
    """One line for each op, then how it was found."""
    nodes = {n.name: n for n in attempt.work.form.module.graph.nodes}
    for name, words in list(found.words.items())[:MOST_NOTES]:
        leaves = bars[name].leaves
        where = f"inside the delegate, in {' or '.join(sorted(leaves))}" if leaves else "on the host"
        fails = "is wrong at" if attempt.wrong else "fails on"
        yield f"{attempt.work.target.name} {fails} {_place(nodes[name])}: {words}; it runs {where} instead"
    if (rest := len(found.words) - MOST_NOTES) > 0:
        yield f"and {rest} more ops like these"
    if not found.minimal:
        yield f"the search ended after localize_seconds = {seconds:g}: it may be fewer ops"
    hosted = [f'"{n}"' for n in found.words if not bars[n].leaves]
    skip = f"; host_ops = [{', '.join(hosted)}] in a recipe makes the search unnecessary" if hosted else ""
    yield f"lowered {found.trials} times to find {'it' if len(found.words) == 1 else 'them'}{skip}"


def _refused(
    error: IngotError, attempt: _Attempt, candidates: Sequence[Candidate], seconds: float | None
) -> IngotError:
    """The error of the backend, with the op that its words point to. `seconds`: the time was up."""
    named = next(iter(named_groups(attempt.failure, candidates)), [])
    where = f"{named[0].name} ({named[0].source})" if named and error.where is None else error.where
    tried = (
        "the program fails without any one op or kind of op too"
        if seconds is None
        else f"localize_seconds = {seconds:g} was too short to find the op on which it fails"
    )
    why, hint = ("; ".join(filter(None, parts)) for parts in ((error.why, tried), (error.hint, REDUCE)))
    return type(error)(error.what, where=where, why=why, hint=hint)


def _place(node: Node) -> str:
    return f"{node.name} ({source_of(node)})"
