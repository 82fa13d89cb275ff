"""Casting is deterministic, and its numbers do not change unnoticed: the hashes are those of hashes.json."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tests.golden.cases import CASES, cpu, hashes, made, numbers, versions
from tests.golden.renew import changes, in_fresh_process, reproducible, stored
from tests.support.requirements import need

RENEW = "python -m tests.golden.renew"


@cache
def computed(name: str) -> dict[str, str]:
    return hashes(CASES[name])


def test_every_case_is_stored() -> None:
    assert all(cases.keys() == CASES.keys() for cases in stored()["by_cpu"].values()), f"if that is on purpose: {RENEW}"


@pytest.mark.parametrize("name", CASES)
def test_hashes_are_the_stored_ones(name: str) -> None:
    need(CASES[name].target)
    if stored()["versions"] != versions() or cpu() not in stored()["by_cpu"]:
        pytest.skip(f"no hashes for {cpu()} and {versions()}: {RENEW}")
    golden = stored()["by_cpu"][cpu()][name]
    assert {kind: computed(name)[kind] for kind in golden} == golden, f"if that is on purpose: {RENEW}"


def test_a_fresh_process_gives_the_same_bytes() -> None:
    """With another PYTHONHASHSEED; the plan with all its reasons, and the .pte."""
    name = "xnnpack, float region"
    assert in_fresh_process([name], seed=77)[name] == computed(name)


def test_the_hash_is_of_numbers_and_not_of_reasons() -> None:
    plan, _ = made(CASES["xnnpack, conv used twice"])
    first, *rest = plan
    reworded = replace(first, rule="another rule", because=("another reason",), source="elsewhere.py:1")
    assert numbers(replace(plan, decisions=(reworded, *rest), notes=("a note",))) == numbers(plan)
    (changed, *_) = (i for i, d in enumerate(plan) if d.qparams)
    decisions = list(plan)
    decisions[changed] = replace(decisions[changed], qparams=None)
    assert numbers(replace(plan, decisions=tuple(decisions))) != numbers(plan)
    corrected = {**plan.bias_corrections, "conv2d": (0.5,)}
    assert numbers(replace(plan, bias_corrections=corrected)) != numbers(plan)


def test_the_cases_are_what_their_names_say() -> None:
    recipe = {"xnnpack, float region": "float", "vgf, int16 region": "int16"}
    for name, precision in recipe.items():
        need(CASES[name].target)
        plan, _ = made(CASES[name])
        held = {d.qparams.dtype if d.qparams else "float" for d in plan if d.point.operand is None and d.op}
        assert {"int8", precision} <= held


@pytest.mark.smoke
def test_renewing_tells_what_changed() -> None:
    before = {"kept": {"plan": "a", "pte": "b"}, "gone": {"plan": "c"}}
    after = {"kept": {"plan": "a", "pte": "d"}, "new": {"plan": "e"}}
    assert list(changes(before, after)) == [
        "gone: plan c -> absent",
        "kept: pte b -> d",
        "new: plan absent -> e",
    ]


@pytest.mark.smoke
def test_what_is_not_reproducible_is_not_stored() -> None:
    same = {"plan": "a", "plan_json": "b"}
    assert reproducible([{"case": {**same, "pte": "c"}}, {"case": {**same, "pte": "d"}}]) == {"case": {"plan": "a"}}
    with pytest.raises(SystemExit, match="case: the plan is not the same in each process"):
        reproducible([{"case": {**same, "pte": "c"}}, {"case": {"plan": "x", "plan_json": "b", "pte": "c"}}])
