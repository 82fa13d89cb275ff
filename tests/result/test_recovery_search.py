"""The search for the ops on which a backend fails, on backends that fail by a rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.core.deadline import Deadline
from ingot.errors import ArtefactError, LowerError, NoKernelError
from ingot.result.recovery.failure import BackendFailure, Candidate, backend_failure, named_groups
from ingot.result.recovery.search import Culprits, CulpritSearch

KINDS = ("conv2d.default", "relu.default", "squeeze.dims", "add.Tensor", "mul.Tensor", "permute.default")


def ops(count: int) -> list[Candidate]:
    return [Candidate(f"op_{i}", KINDS[i * 7 % len(KINDS)], f"net.py:{i}") for i in range(count)]


def failure(words: str = "the backend died", stage: str = "lower", missing: tuple[str, ...] = ()) -> BackendFailure:
    return BackendFailure(stage, words, words, missing)


class Backend:
    """Fails while one of `groups` is delegated whole: a group of one op is an op on which it always fails."""

    def __init__(self, groups: Collection[Collection[str]], words: Callable[[int], str] = lambda _: "it died") -> None:
        self.groups, self.words, self.calls = [frozenset(g) for g in groups], words, list[frozenset[str]]()

    def __call__(self, barred: frozenset[str]) -> BackendFailure | None:
        self.calls.append(barred)
        bad = next((i for i, group in enumerate(self.groups) if not group & barred), None)
        return None if bad is None else failure(self.words(bad))


def search(backend: Backend, candidates: list[Candidate], seconds: float = 1e6) -> Culprits | None:
    first = backend(frozenset())
    assert first is not None
    backend.calls.clear()
    return CulpritSearch(candidates, backend, Deadline(seconds)).find(first)


ONE_VOICE: Callable[[int], str] = lambda _: "it died"
OWN_WORDS: Callable[[int], str] = lambda i: f"it died of {'abcdefgh'[i % 8] * 3}"


@given(st.data(), st.integers(1, 60), st.sampled_from((ONE_VOICE, OWN_WORDS)))
def test_exactly_the_ops_on_which_the_backend_fails_are_barred(
    data: st.DataObject, count: int, words: Callable[[int], str]
) -> None:
    names = [c.name for c in ops(count)]
    culprits = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=4))
    found = search(Backend([{c} for c in culprits], words), ops(count))
    assert found is not None
    assert found.minimal
    assert found.words.keys() == culprits


@given(st.data(), st.integers(2, 40), st.sampled_from((ONE_VOICE, OWN_WORDS)))
def test_no_op_is_barred_in_vain(data: st.DataObject, count: int, words: Callable[[int], str]) -> None:
    """Where several ops fail only together, one of each group is enough, and none of those found can be left out."""
    names = [c.name for c in ops(count)]
    group = st.sets(st.sampled_from(names), min_size=1, max_size=3)
    groups = data.draw(st.lists(group, min_size=1, max_size=3))
    backend = Backend(groups, words)
    found = search(backend, ops(count))
    assert found is not None
    barred = frozenset(found.words)
    assert backend(barred) is None
    assert all(backend(barred - {name}) is not None for name in barred)


@pytest.mark.parametrize("place", [0, 150, 299])
def test_one_op_of_many_is_found_in_logarithmic_time(place: int) -> None:
    backend = Backend([{f"op_{place}"}])
    assert search(backend, ops(300)) is not None
    assert len(backend.calls) <= 4 * math.log2(300)
    assert len(set(backend.calls)) == len(backend.calls), "each set is tried once"


def test_an_op_that_the_words_name_is_tried_first() -> None:
    backend = Backend([{"op_7"}], lambda _: "RuntimeError: While executing %aten_squeeze_copy_dims: op_7 is not NHWC")
    found = search(backend, ops(300))
    assert found is not None
    assert len(backend.calls) == 1
    assert found.words == {"op_7": "RuntimeError: While executing %aten_squeeze_copy_dims: op_7 is not NHWC"}


def test_the_words_may_name_a_kind_or_a_line() -> None:
    candidates = [Candidate("a", "squeeze.dims", "net.py:3"), Candidate("b", "relu.default", "net.py:31")]
    by_kind = named_groups(failure("[XNNCompiler.cpp:1] Failed to create squeeze node"), candidates)
    assert list(by_kind) == [[candidates[0]]]
    by_line = named_groups(failure('File "/home/u/net.py", line 31, in forward'), candidates)
    assert list(by_line) == [[candidates[1]]]
    assert not list(named_groups(failure("squeezed to death at net.py"), candidates))


def test_nothing_is_found_where_the_backend_fails_anyway() -> None:
    backend = Backend([frozenset()])
    backend.groups = [frozenset({"not an op"})]
    assert search(backend, ops(20)) is None
    assert len(backend.calls) <= 2


def test_when_the_time_is_up_the_smallest_set_that_is_known_is_taken() -> None:
    squeezes = {c.name for c in ops(40) if c.kind.startswith("squeeze")}
    culprit = sorted(squeezes)[2]
    backend = Backend([{culprit}], lambda _: "Failed to create squeeze node")
    found = search(backend, ops(40), seconds=0.0)
    assert found is not None
    assert not found.minimal
    assert len(backend.calls) == 1
    assert found.words.keys() == squeezes


def test_when_the_time_is_up_a_program_without_delegates_is_no_answer() -> None:
    backend = Backend([{"op_9"}])
    assert search(backend, ops(40), seconds=0.0) is None
    assert backend.calls == [frozenset(c.name for c in ops(40))]


def test_when_the_time_is_up_and_nothing_is_known_there_is_no_answer() -> None:
    backend = Backend([{"op_1"}], lambda _: "op_3 died")  # the words point elsewhere
    assert search(backend, ops(40), seconds=0.0) is None


def test_an_op_without_a_host_kernel_stays_with_the_backend() -> None:
    lacking = frozenset({"op_2", "op_5"})

    def trial(barred: frozenset[str]) -> BackendFailure | None:
        if absent := barred & lacking:
            return failure("nothing can run it", "load", tuple(absent))
        return None if "op_4" in barred else failure()

    found = CulpritSearch(ops(12), trial, Deadline(1e6)).find(failure())
    assert found is not None
    assert found.words.keys() == {"op_4"}


def test_a_failure_at_an_earlier_stage_does_not_count_as_a_cure() -> None:
    def trial(barred: frozenset[str]) -> BackendFailure | None:
        if "op_1" in barred and "op_2" not in barred:
            return failure("the compiler dies of the new boundary", "lower")
        return None if "op_2" in barred else failure("signal SIGSEGV", "run")

    found = CulpritSearch(ops(8), trial, Deadline(1e6)).find(failure("signal SIGSEGV", "run"))
    assert found is not None
    assert found.words.keys() == {"op_2"}


def test_failures_keep_stage_and_words() -> None:
    lowering = backend_failure(LowerError("x refused the program at 'partition'", why="ValueError: Shift out of range"))
    assert (lowering.stage, lowering.words) == ("lower", "ValueError: Shift out of range")
    loading = backend_failure(ArtefactError("the program does not load", why="RuntimeError: error 0x1"))
    assert (loading.stage, loading.words) == ("load", "the program does not load: RuntimeError: error 0x1")
    assert backend_failure(ArtefactError("the program did not finish batch 0", why="signal SIGSEGV")).stage == "run"
    assert backend_failure(NoKernelError("nothing can run sort", values=("sort",))).missing == ("sort",)
