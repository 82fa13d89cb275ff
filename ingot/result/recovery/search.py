"""The smallest set of ops without which the backend does not fail: guesses from its words, then delta debugging."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ingot.core.deadline import Deadline, OutOfTime
from ingot.result.recovery.failure import BackendFailure, Candidate, named_groups
from ingot.verify.minify.ddmin import ddmin

Names = frozenset[str]
# What happens with these ops barred; None: the backend does not fail.
Trial = Callable[[Names], BackendFailure | None]
Narrow = Callable[[Sequence[Candidate], BackendFailure], Sequence[Candidate]]


MOST_OF_A_PROGRAM = 0.5  # a program with fewer ops than that inside delegates is not what was asked for


@dataclass(frozen=True)
class Culprits:
    """Ops to bar, each with the backend's words."""

    words: dict[str, str]
    minimal: bool  # False: the time was up; fewer may do
    trials: int


@dataclass
class CulpritSearch:
    """`trial` is costly: each set is tried once. Where several sets would do, heavy ops stay with the backend."""

    candidates: Sequence[Candidate]
    trial: Trial
    deadline: Deadline
    narrow: Narrow | None = None  # a cheaper way to some of the candidates, not always right
    on_trial: Callable[[], None] = lambda: None
    tried: dict[Names, BackendFailure | None] = field(default_factory=dict)
    without_kernel: set[str] = field(default_factory=set)  # nothing but the backend can run these
    seconds: float = 0.0  # of the trial before
    out_of_time: bool = False

    def find(self, first: BackendFailure) -> Culprits | None:
        """None: there is no such set, or the time was up before a small one was known."""
        self.tried[frozenset()] = first
        try:
            words = self._all_failures(first)
        except OutOfTime:
            self.out_of_time = True
            return self._smallest_known(first)
        return None if words is None else Culprits(words, minimal=True, trials=self.trials)

    @property
    def trials(self) -> int:
        return len(self.tried) - 1

    def _all_failures(self, first: BackendFailure) -> dict[str, str] | None:
        """One failure after the other: behind the first there may be others."""
        words: dict[str, str] = {}
        failure: BackendFailure | None = first
        while failure is not None:
            found = self._one_failure(failure, frozenset(words))
            if not found:
                return None
            words |= dict.fromkeys(found, failure.words)
            failure = self._try(frozenset(words))
        if len(words) > 1:
            words = {n: words[n] for n in ddmin(list(words), lambda some: self._try(frozenset(some)) is None)}
        return words

    def _one_failure(self, failure: BackendFailure, barred: Names) -> Sequence[str]:
        """A minimal set of further ops that ends this failure; empty: there is none."""
        cures = partial(self._cures, failure, barred)
        for group in self._guesses(failure, barred):
            if cures(group):
                return ddmin(self._of_few_kinds(group, cures), cures)
        return ()

    def _cures(self, failure: BackendFailure, barred: Names, names: Sequence[str]) -> bool:
        after = self._try(barred | frozenset(names))
        return after is None or (not after.missing and after.comes_after(failure))

    def _guesses(self, failure: BackendFailure, barred: Names) -> Iterator[list[str]]:
        left = [c for c in sorted(self.candidates, key=lambda c: c.heavy) if c.name not in barred]
        yield from ([c.name for c in group] for group in named_groups(failure, left))
        if self.narrow is not None and (few := self.narrow(left, failure)):
            yield [c.name for c in few]
        yield [c.name for c in left]

    def _of_few_kinds(self, names: list[str], cures: Callable[[Sequence[str]], bool]) -> list[str]:
        """A backend that fails on one op usually fails on its siblings: kinds first."""
        kind_of = {c.name: c.kind for c in self.candidates}
        kinds = list(dict.fromkeys(kind_of[n] for n in names))

        def of(some: Collection[str]) -> list[str]:
            return [n for n in names if kind_of[n] in some]

        return of(ddmin(kinds, lambda some: cures(of(some)))) if len(kinds) > 1 else names

    def _try(self, names: Iterable[str]) -> BackendFailure | None:
        """Ops that the host has no kernel for are left out, as they become known."""
        barred = frozenset(names) - self.without_kernel
        if barred not in self.tried:
            if self.trials:  # one is always made
                self.deadline.need(self.seconds)
            start = time.monotonic()
            self.tried[barred] = self.trial(barred)
            self.seconds = time.monotonic() - start
            self.on_trial()
        failure = self.tried[barred]
        known = barred & set(failure.missing) if failure else frozenset()
        if not known:
            return failure
        self.without_kernel |= known
        return self._try(barred)

    def _smallest_known(self, first: BackendFailure) -> Culprits | None:
        good = [names for names, failure in self.tried.items() if failure is None]
        best = min(good, key=len, default=frozenset())
        if not best or len(best) > MOST_OF_A_PROGRAM * len(self.candidates):
            return None
        return Culprits({c.name: first.words for c in self.candidates if c.name in best}, False, self.trials)
