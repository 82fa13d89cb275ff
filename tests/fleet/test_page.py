"""The page of 2 000 cells in Chromium: it opens in seconds and filters at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingot.fleet.page import fleet_page
from tests.support.browser import Browser, need_chromium

MODELS, TARGETS, RECIPES = 100, ("xnnpack", "ethos-u55-128", "vgf", "vulkan"), ("a", "b", "c", "d", "e")
VERDICTS = ("passed", "passed", "passed", "refused", "timed out", "wrong", "goal not met")


def row(number: int, model: int, target: str, recipe: str) -> dict[str, Any]:
    verdict = VERDICTS[number % len(VERDICTS)]
    named = {"model": f"net_{model}", "target": target, "recipe": recipe, "verdict": verdict}
    if verdict in ("refused", "timed out"):
        return {**named, "error": {"text": f"cell {number} <b>failed</b>"}}
    figures = {"sqnr_db": 20 + number % 30, "bytes": 10_000 + 37 * number, "delegates": 1, "host_ops": number % 3}
    return {**named, **figures, "measured_seconds": 1e-3 * (1 + number % 50), "versions": {"torch": "2.14.0"}}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    need_chromium()
    cells = [(m, t, r) for m in range(MODELS) for t in TARGETS for r in RECIPES]
    rows = [row(i, *cell) for i, cell in enumerate(cells)]
    history = [{"started": f"2026-0{i}-01T00:00:00Z", "rows": rows[: 400 * i]} for i in range(1, 6)]
    history[-1]["rows"] = [{**r, "sqnr_db": 60.0} for r in rows if r["model"] == "net_7"] + rows[:10]
    page = tmp_path_factory.mktemp("page") / "index.html"
    page.write_text(fleet_page(rows, history))
    made = Browser()
    made.open(page, until="shown")
    yield made
    made.close()


def chosen(browser: Browser, field: str, value: str) -> float:
    """Choose in a filter; milliseconds until the page shows it."""
    code = f"""(() => {{ const s = document.getElementById('filter-{field}'); s.value = {json.dumps(value)};
        const t = performance.now(); s.dispatchEvent(new Event('change')); document.body.offsetHeight;
        return performance.now() - t; }})()"""
    return float(browser.run(code))


def count(browser: Browser) -> str:
    return str(browser.run("document.getElementById('count').textContent"))


def test_it_opens_with_every_cell(browser: Browser) -> None:
    assert browser.loaded < 3
    assert browser.complaints() == []
    assert count(browser).startswith("2,000 of 2,000 cells")
    assert browser.run("document.querySelectorAll('#matrix .badge').length") == 2000
    assert browser.run("document.querySelectorAll('#matrix b').length") == 0  # an error's text is text


def test_filters(browser: Browser) -> None:
    try:
        assert chosen(browser, "verdict", "refused") < 500
        refused = sum(i % len(VERDICTS) == VERDICTS.index("refused") for i in range(2000))
        assert count(browser) == f"{refused} of 2,000 cells: {refused} refused"
        assert browser.run("document.querySelectorAll('#matrix .badge').length") == refused
        chosen(browser, "verdict", "")
        assert chosen(browser, "model", "net_7") < 500
        assert count(browser).startswith("20 of 2,000 cells")
    finally:
        for field in ("verdict", "model"):
            chosen(browser, field, "")


def test_a_cell_links_to_its_report(browser: Browser) -> None:
    link = browser.run("document.querySelector('#matrix .badge[href]').getAttribute('href')")
    assert link == str(Path("cells/net_0/xnnpack/a/report.html"))


def test_marks_of_a_recipe_are_at_one_spot(browser: Browser) -> None:
    """In every place the same number of marks; a cell that is not there leaves its spot empty."""
    counts = browser.run("[...new Set([...document.querySelectorAll('.marks')].map((m) => m.children.length))]")
    assert counts == [len(RECIPES)]
    try:
        chosen(browser, "verdict", "refused")
        assert browser.run("document.querySelectorAll('#matrix .marks .none').length") > 0
    finally:
        chosen(browser, "verdict", "")


def test_only_cells_that_passed_are_on_a_front(browser: Browser) -> None:
    try:
        chosen(browser, "verdict", "wrong")
        drawn = browser.run("[...document.querySelectorAll('#fronts circle')].map((c) => c.getAttribute('class'))")
        lines = browser.run("[...document.querySelectorAll('#fronts .best')].map((c) => c.getAttribute('points'))")
        assert set(drawn) == {"fill-e1"}
        assert set(lines) == {""}
        chosen(browser, "verdict", "passed")
        assert all(browser.run("[...document.querySelectorAll('#fronts .best')].map((c) => c.getAttribute('points'))"))
    finally:
        chosen(browser, "verdict", "")


def test_trends_follow_the_model(browser: Browser) -> None:
    """Of all cells, and of one model over the sweeps that had it."""
    text = "document.querySelector('#trends tbody tr').textContent"
    assert browser.run("document.querySelectorAll('#trends figure').length") == 4
    try:
        chosen(browser, "model", "net_7")
        assert "60.0 dB" in browser.run(text)  # the last sweep comes first
        assert browser.run("document.querySelectorAll('#trends tbody tr').length") == 5
        chosen(browser, "model", "net_99")
        assert browser.run("document.querySelectorAll('#trends tbody tr').length") == 0
    finally:
        chosen(browser, "model", "")
