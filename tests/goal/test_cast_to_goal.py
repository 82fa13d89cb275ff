"""Casts with goals: the artefact is measured with the user's metric."""

from __future__ import annotations

import pytest
import torch

import ingot
from ingot.cli import main


class Net(torch.nn.Module):
    """A net whose second layer needs more than 8 bits: one channel is a thousand times larger than the others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)
        with torch.no_grad():
            self.first.weight[0] *= 1000
            self.second.weight[:, 0] *= 1e-3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def batches(n: int, first: int = 0) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(4, 16, generator=torch.Generator().manual_seed(first + i)),) for i in range(n)]


def test_a_goal_takes_the_quickest_plan_that_meets_it() -> None:
    goal = ingot.Goal("cosine", batches(8, 100), bar=0.999)
    off = {"equalize_channels": False, "smooth_inputs": False}
    made = ingot.cast(Net(), batches(1)[0], target="xnnpack", calibration=batches(8), goal=goal, recipe=off)
    assert made.goal is not None
    assert made.goal.met
    assert made.goal.values[0].value >= 0.999
    quicker = [s for s in made.goal.steps if s.estimated_time < made.goal.steps[-1].estimated_time]
    assert quicker
    assert not any(s.met for s in quicker[:1])


def test_with_corrections_the_quickest_plan_of_all_meets_it() -> None:
    goal = ingot.Goal("cosine", batches(8, 100), bar=0.999)
    made = ingot.cast(Net(), batches(1)[0], target="xnnpack", calibration=batches(8), goal=goal)
    assert made.goal is not None
    assert made.goal.ended == "the quickest plan meets the goal"
    assert made.plan.channel_factors


def test_an_unreachable_goal_names_the_nearest_plan() -> None:
    goal = ingot.Goal("sqnr", batches(4, 100), bar=90.0)
    with pytest.raises(ingot.GoalError, match="the goal is not met") as refused:
        ingot.cast(Net(), batches(1)[0], target="ethos-u55-128", calibration=batches(8), goal=goal)
    nearest = refused.value.casting
    assert isinstance(nearest, ingot.Casting)
    assert nearest.goal is not None
    assert nearest.goal.limits


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (lambda pairs: 1 / 0, "fails"),
        (lambda pairs: float("nan"), "returns nan"),
        (lambda pairs: torch.tensor(1.0), "returns a Tensor"),
    ],
)
def test_a_metric_that_is_broken_is_named(metric, words) -> None:  # type: ignore[no-untyped-def]
    goal = ingot.Goal(metric, [(b[0], 0) for b in batches(2)], drop=0.1)
    with pytest.raises(ingot.InputError, match=words):
        ingot.cast(Net(), batches(1)[0], target="xnnpack", calibration=batches(8), goal=goal)


CODE = """
import torch
from tests.goal.test_cast_to_goal import Net, batches

def build():
    return Net().eval(), batches(1)[0], batches(8)

def pairs():
    net = Net().eval()
    return [(b, net(*b).argmax(-1)) for b in batches(8, 100)]

def errors(pairs):
    return sum(float((o.argmax(-1) != l).float().mean()) for o, l in pairs) / 8
"""


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (["--goal", "top1", "--goal-data", "net.py:pairs", "--drop", "0.02"], 0),
        (["--goal", "net.py:errors", "--goal-data", "net.py:pairs", "--drop", "0", "--lower-is-better"], 0),
        (["--goal", "top2", "--goal-data", "net.py:pairs", "--drop", "0"], 2),
        (["--goal", "top1", "--drop", "0.02"], 2),
        (["--drop", "0.02"], 2),
    ],
)
def test_the_shell_takes_a_goal(asked, code, tmp_path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(CODE)
    assert main(["cast", "net.py:build", "--target", "xnnpack", "-o", "out", *asked]) == code
    if code == 0:
        assert "goal met" in capsys.readouterr().out
        loaded = ingot.Casting.load(tmp_path / "out")
        assert loaded.goal is not None
        assert loaded.goal.met
