"""The search for a goal on the page of a casting: every plan is a point and a row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import ingot
from tests.support.browser import Browser, need_chromium


@pytest.fixture(scope="module")
def casting() -> ingot.Casting:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh())]
    net, batches = nn.Sequential(*layers, nn.Linear(32, 8)).eval(), [(3 * torch.randn(4, 32),) for _ in range(8)]
    goals = [ingot.Goal("cosine", batches, bar=0.99999), ingot.Goal("sqnr", batches, bar=55.0)]
    recipe = {"dynamic_activations": False}
    return ingot.cast(net, batches[0], target="xnnpack", calibration=batches, goal=goals, recipe=recipe)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    need_chromium()
    made = Browser()
    yield made
    made.close()


def test_the_page_has_each_plan_of_the_search(browser: Browser, casting: ingot.Casting, tmp_path: Path) -> None:
    assert casting.goal is not None
    steps = casting.goal.steps
    assert len(steps) >= 2
    casting.report(tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    assert browser.complaints() == []
    points = "document.querySelectorAll('#goal .front .dot-{}').length"
    assert browser.run(points.format("met")) == 2 * sum(s.met for s in steps)
    assert browser.run(points.format("missed")) == 2 * sum(not s.met for s in steps)
    assert browser.run("document.querySelectorAll('#goal table:not(.narrow) tbody tr').length") == len(steps)
    shown = browser.run("document.querySelector('#goal').textContent")
    assert "The artefact meets the goal." in shown
    assert casting.goal.ended in shown
    assert "0.99999" in shown


def test_a_casting_without_a_goal_has_no_such_section(browser: Browser, tmp_path: Path) -> None:
    net, batches = nn.Linear(4, 2).eval(), [(torch.randn(2, 4),) for _ in range(4)]
    ingot.cast(net, batches[0], target="xnnpack", calibration=batches).report(tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    assert browser.run("document.querySelector('#goal')") is None
