"""The report page of a casting and the comparison of two, in a real browser, checked against report.json."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ingot.cli import main
from ingot.result.report.compare import formatted
from ingot.result.report.facts import FILE, NEEDED, read_facts
from ingot.result.report.html import document, embedded, page
from tests.support.browser import Browser, need_chromium

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(16, 4)

    def forward(self, image):
        x = torch.relu(self.first(image))
        y = torch.atan(self.second(x))
        x = torch.cat([x, y], 1).mean((2, 3), keepdim=True).flatten(1)
        x = torch.asinh(x)
        return torch.softmax(self.last(x), -1), x


def build():
    torch.manual_seed(0)
    batches = [(torch.randn(1, 3, 12, 12),) for _ in range(4)]
    return Net().eval(), batches[0], batches
"""
AS_WRITTEN = 'disabled_rewrites = ["trigonometry-as-polynomials"]\n'  # atan and asinh stay on the host
FLOAT = AS_WRITTEN + 'scopes = [{ op = "conv2d", precision = "float" }]\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One net cast twice: out/ by default, float/ with its convolutions in float."""
    home = tmp_path_factory.mktemp("report")
    (home / "net.py").write_text(NET)
    (home / "float.toml").write_text(FLOAT)
    (home / "as_written.toml").write_text(AS_WRITTEN)
    cast = ["cast", f"{home}/net.py:build", "--target", "xnnpack", "--quiet"]
    assert main([*cast, "-o", f"{home}/out", "--recipe", f"{home}/as_written.toml", "--report"]) == 0
    assert main([*cast, "-o", f"{home}/float", "--recipe", f"{home}/float.toml"]) == 0
    return home


@pytest.fixture(scope="module")
def facts(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "out/report.json").read_text())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    need_chromium()
    made = Browser()
    yield made
    made.close()


def texts(browser: Browser, selector: str) -> list[str]:
    return browser.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")


def search(browser: Browser, words: str) -> None:
    """Type into the search box and choose the first hit: the node is then in the middle of the graph."""
    browser.run("(() => { const box = document.getElementById('search'); box.focus(); box.select(); })()")
    browser.type(words)
    browser.press("Enter")
    browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def middle(browser: Browser) -> tuple[float, float]:
    """The middle of the graph, after scrolling it into view."""
    x, y, width, height = browser.run(
        "(() => { const c = document.querySelector('canvas'); c.scrollIntoView({ block: 'center' });"
        " const b = c.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
    )
    return x + width / 2, y + height / 2


# ---- the data ----


def test_every_op_has_its_place(facts: dict[str, Any]) -> None:
    places = {n["name"]: n["place"] for n in facts["nodes"] if n["op"] not in ("input", "output")}
    assert {name for name, place in places.items() if place == 0} == set(facts["hosted"].values()) == {"atan", "asinh"}
    assert {place for place in places.values() if place} == set(range(1, len(facts["delegates"]) + 1))
    assert None not in places.values()
    assert {h["name"] for h in facts["host_ops"]} == facts["hosted"].keys()


def test_a_value_has_its_range_its_error_and_its_reason(facts: dict[str, Any]) -> None:
    relu = next(n for n in facts["nodes"] if n["name"] == "relu")
    low, high = relu["spread"]["chosen"]
    assert relu["precision"] == "int8"
    assert low <= 0 <= relu["spread"]["min"] <= relu["spread"]["max"] <= high * 1.01
    assert sum(relu["spread"]["bins"]) == pytest.approx(1, abs=0.02)
    assert 20 < relu["sqnr_db"] < 60
    assert relu["source"] == "net.py:12"
    assert "relu" in relu["why"]
    assert {r["value"]: r["converts"] for n in facts["nodes"] for r in n["reads"] if n["name"] == "cat"} == {
        "relu": "",
        "atan": "quantize",
    }


def test_errors_are_those_of_the_graphs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import runpy

    import ingot
    from ingot.verify.localize.graph_errors import sqnr_by_value

    model, example, batches = runpy.run_path(str(folder / "net.py"))["build"]()
    casting = ingot.cast(model, example, target="xnnpack", calibration=batches)
    want = sqnr_by_value(casting.evidence.program, casting.evidence.quantized, batches[0])
    assert {n.name: n.sqnr_db for n in casting.details.nodes if n.sqnr_db is not None} == want
    assert len(want) >= 8


def test_time_by_op(facts: dict[str, Any]) -> None:
    """The ops of the fastest run add up to its time, within XNNPACK's microseconds; host ops have their kernel names."""
    timing = facts["timing"]
    assert "event tracer" in timing["how"]
    assert sum(p["seconds"] for p in timing["parts"]) == pytest.approx(timing["seconds"], rel=0.02, abs=5e-6)
    assert {"atan.out", "asinh.out"} <= {p["name"] for p in timing["parts"] if p["place"] == 0}
    convolutions = [p for p in timing["parts"] if p["name"].startswith("Convolution")]
    assert [p["place"] for p in convolutions] == [1, 1]


def test_sizes(facts: dict[str, Any], folder: Path) -> None:
    sizes = {w["name"]: w["bytes"] for w in facts["weights"]}
    assert (sizes["first.weight"], sizes["second.weight"], sizes["last.weight"]) == (8 * 27, 8 * 72, 64)
    assert sum(sizes.values()) < sum(d["size"] for d in facts["delegates"]) < facts["bytes"]
    assert facts["bytes"] == (folder / "out/model.pte").stat().st_size


def test_sqnr_drops_and_sums_follow_from_the_values(facts: dict[str, Any]) -> None:
    errors = {n["name"]: n["sqnr_db"] for n in facts["nodes"]}
    erf = next(f for f in facts["sqnr_drops"] if f["name"] == "conv2d_1")
    assert erf["below_db"] == pytest.approx(min(40, errors["relu"]) - errors["conv2d_1"])
    assert sum(s["bytes"] for s in facts["sizes"]) == facts["bytes"]
    assert sum(s["constants"] for s in facts["sizes"]) == sum(w["bytes"] for w in facts["weights"])
    assert sum(k["percent"] for k in facts["kinds"]) == pytest.approx(100)


def test_what_was_recorded(facts: dict[str, Any]) -> None:
    assert (facts["recorded"]["batches"], facts["recorded"]["samples"]) == (4, 4)
    assert {"ingot", "python", "torch", "torchao", "executorch"} <= facts["versions"].keys()


def test_a_constant_value_is_named() -> None:
    from ingot.calibrate.histogram import Stats
    from ingot.calibrate.statistics import Ranges
    from ingot.result.details.calibration import calibration_summary

    values = {"still": Stats(2.0, 2.0, 9, 0, 0, {1: 9}), "unseen": Stats(0.0, 0.0, 0, 0, 0, {})}
    suspect = calibration_summary(Ranges(values, 1, 1)).suspect_values
    assert suspect == {"constant": ("still",), "not observed": ("unseen",)}


# ---- the page ----


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_in_light_and_dark_mode_and_on_a_phone(browser: Browser, folder: Path, width: int, dark: bool) -> None:
    browser.open(folder / "out/report.html", width=width, dark=dark)
    assert browser.complaints() == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    papers = {False: "rgb(246, 247, 248)", True: "rgb(14, 17, 21)"}
    assert browser.run("getComputedStyle(document.body).backgroundColor") == papers[dark]


def test_searching_and_clicking_show_why(browser: Browser, folder: Path, facts: dict[str, Any]) -> None:
    browser.open(folder / "out/report.html")
    why = {n["name"]: n["why"] for n in facts["nodes"]}
    search(browser, "atan")
    assert texts(browser, ".panel h3") == ["atan"]
    search(browser, "net.py:12 relu")
    assert texts(browser, ".panel .why") == [why["relu"]]
    browser.run("document.querySelector('.panel').replaceChildren()")
    browser.click(*middle(browser))
    assert texts(browser, ".panel h3") == ["relu"]
    assert texts(browser, ".panel .why") == [why["relu"]]
    assert texts(browser, ".panel .chosen-text") != []
    assert browser.complaints() == []


def test_a_click_beside_a_node_picks_nothing(browser: Browser, folder: Path) -> None:
    browser.open(folder / "out/report.html")
    x, y = middle(browser)
    browser.click(x - 300, y)
    assert texts(browser, ".panel h3") == []


def test_the_table_of_host_ops_has_every_op(browser: Browser, folder: Path, facts: dict[str, Any]) -> None:
    browser.open(folder / "out/report.html")
    rows = browser.run(
        "[...document.querySelectorAll('#host tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    want = [[h["op"], facts["hosted"][h["name"]], h["source"], h["reason"], h["hint"]] for h in facts["host_ops"]]
    assert rows == want
    assert len(rows) == 2


def figures(browser: Browser) -> list[tuple[str, str, str]]:
    found = browser.run(
        "[...document.querySelectorAll('[data-path]')].map((e) => [e.dataset.path, e.dataset.as, e.textContent])"
    )
    return [tuple(f) for f in found]


def at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = len(data) if key == "length" else data[int(key)] if isinstance(data, list) else data[key]
    return data


def as_shown(kind: str, value: Any) -> str:
    if kind == "shape":
        return "×".join(map(str, value)) or "scalar"
    return formatted(kind, value)


def same(kind: str, text: str, value: Any) -> bool:
    """JavaScript formats small numbers differently, and rounds 20.25 up: compare numbers, with the displayed digits."""
    if kind in ("short", "ms"):
        digits = 4 if kind == "short" else 3
        return float(text.removesuffix(" ms")) == float(f"{(1e3 if kind == 'ms' else 1) * float(value):.{digits}g}")
    return text == as_shown(kind, value) or _is_tie(kind, text, value)


DIGITS = {"db": 1, "percent": 1, "seconds": 2}


def _is_tie(kind: str, text: str, value: Any) -> bool:
    """The value is exactly between two displayed numbers, and the text is one of them."""
    digits = DIGITS.get(kind)
    shown = re.fullmatch(r"(-?\d+\.(\d+)) (dB|%|s)", text)
    if digits is None or shown is None or len(shown[2]) != digits:
        return False
    return abs(Decimal(shown[1]) - Decimal(value)) == Decimal(5).scaleb(-digits - 1)


def test_every_figure_is_the_one_in_the_data(browser: Browser, folder: Path, facts: dict[str, Any]) -> None:
    browser.open(folder / "out/report.html")
    search(browser, "relu")
    found = figures(browser)
    wrong = [(path, text) for path, kind, text in found if not same(kind, text, at(facts, path))]
    assert wrong == []
    paths = {path for path, _, _ in found}
    assert {"bytes", "check.outputs.0.sqnr_db", "timing.seconds", "delegates.length", "recorded.batches"} <= paths
    assert any(path.endswith("spread.chosen.0") for path in paths)
    assert texts(browser, "#versions td code") == list(facts["versions"].values())


def test_a_wrong_figure_would_be_seen() -> None:
    assert same("count", "19,992", 19992)
    assert not same("count", "19,993", 19992)
    assert not same("db", "41.3 dB", 41.36)
    assert same("ms", "0.0610 ms", 6.1e-05)
    assert same("percent", "20.3 %", 20.25)
    assert not same("percent", "20.4 %", 20.25)
    assert not same("percent", "20.3 %", 20.2)


def many(facts: dict[str, Any], count: int) -> dict[str, Any]:
    """Blocks of ten with a skip connection each, and some skip connections over hundreds of nodes."""
    some = [n for n in facts["nodes"] if n["reads"] and n["op"] != "output"]
    nodes = [facts["nodes"][0]]
    for i in range(1, count):
        reads = {
            i - 1,
            *([i - 10] if i % 10 == 0 else []),
            *([i - 700] if i % 900 == 0 else []),
            *([i - 3] if i % 7 == 0 else []),
        }
        read = [{"value": nodes[j]["name"], "converts": ""} for j in sorted(reads)]
        nodes.append({**some[i % len(some)], "name": f"value_{i}", "reads": read})
    return {**facts, "nodes": nodes}


def test_five_thousand_nodes_open_in_seconds(browser: Browser, facts: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "big.html").write_text(page(many(facts, 5000)))
    browser.open(tmp_path / "big.html")
    assert browser.loaded < 10
    search(browser, "value_4321")
    assert texts(browser, ".panel h3") == ["value_4321"]
    browser.click(*middle(browser))
    assert texts(browser, ".panel h3") == ["value_4321"]
    assert browser.complaints() == []


HOSTILE = {
    "markup": "<img src=x onerror=alert(1)><b>bold</b>",
    "end of script": "</script><script>window.broken = 1</script><!--",
    "quotes": """"'`${window.broken = 1}\\ \u2028\u2029""",
    "right to left": "\u202eשלום עולם‏ مرحبا",
    "long": "x" * 10_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_are_text(browser: Browser, facts: dict[str, Any], tmp_path: Path, kind: str) -> None:
    bad = HOSTILE[kind]
    nodes = [
        {**n, **dict.fromkeys(("name", "op", "module", "source", "why", "stored"), bad)} if n["name"] == "relu" else n
        for n in facts["nodes"]
    ]
    nodes = [
        {**n, "reads": [{**r, "value": bad if r["value"] == "relu" else r["value"]} for r in n["reads"]]} for n in nodes
    ]
    hosts = [dict.fromkeys(("op", "name", "source", "reason", "hint"), bad), *facts["host_ops"]]
    outputs = [{**o, "name": bad, "problem": bad} for o in facts["check"]["outputs"]]
    changed = {
        "nodes": nodes,
        "host_ops": hosts,
        "notes": [bad],
        "rewrites": [bad],
        "hosted": {**facts["hosted"], bad: bad},
    }
    check = {**facts["check"], "outputs": outputs, "passed": False, "culprit": bad, "executed_on": bad}
    weights = [{**w, "name": bad, "module": bad} for w in facts["weights"]]
    file = tmp_path / "hostile.html"
    file.write_text(page({**facts, **changed, "check": check, "weights": weights, "target": bad}))
    browser.open(file, width=390)
    assert texts(browser, "#host tbody tr td:first-child")[0] == bad
    search(browser, bad[:200].replace("\n", " "))
    assert texts(browser, ".panel h3") == [bad]
    assert texts(browser, ".panel .why") == [bad]
    assert browser.complaints() == []
    assert browser.run("window.broken") is None
    assert browser.run("document.querySelectorAll('img, b:not(#size b), script').length") == 3  # our own scripts
    assert browser.run("document.documentElement.scrollWidth") <= 390


def test_no_other_script_may_run(browser: Browser, folder: Path) -> None:
    """If a text ever became markup, the page's content security policy would still block it."""
    browser.open(folder / "out/report.html")
    browser.run(
        "document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.broken = 1' }))"
    )
    assert browser.run("window.broken") is None
    assert any("Content Security Policy" in message for message in browser.complaints())


def test_a_long_title_ends_between_characters() -> None:
    """Not within an escaped one."""
    title = re.search(r"<title>(.*?)</title>", document("x" * 198 + "<<<", {}))
    assert title is not None
    assert title[1] == f"Ingot: {'x' * 198}&lt;&lt;"


def test_embedded_data_is_nothing_but_data() -> None:
    data = {"name": HOSTILE["end of script"] + HOSTILE["quotes"] + "&amp;\ud800"}
    raw = embedded(data)
    assert not re.search(r"[<>&\u2028\u2029]", raw)
    assert json.loads(raw) == data


def test_without_a_graph(browser: Browser, facts: dict[str, Any], tmp_path: Path) -> None:
    """A casting without its graphs that was never executed."""
    bare: dict[str, Any] = {
        "sqnr_drops": [],
        "kinds": [],
        "nodes": [],
        "weights": [],
        "recorded": None,
        "timing": None,
        "check": None,
    }
    (tmp_path / "bare.html").write_text(page({**facts, **bare}))
    browser.open(tmp_path / "bare.html")
    assert browser.complaints() == []
    assert "not executed" in texts(browser, "h1")[0]


# ---- from what was saved ----


PLAIN = (
    "ingot.config.validation",
    "ingot.errors",
    "ingot.core.artefact",
    "ingot.core.channel_factors",
    "ingot.core.goal_records",
    "ingot.plan.plan_data",
    "ingot.result.details.records",
)
IMPORTS = """
import importlib, pkgutil, sys
import ingot.result.report as report
for module in pkgutil.iter_modules(report.__path__):
    importlib.import_module(f"ingot.result.report.{module.name}")
print("torch" in sys.modules, *(m for m in sys.modules if m.startswith("ingot.") and hasattr(sys.modules[m], "__file__")))
"""


@pytest.mark.smoke
def test_the_report_imports_no_torch() -> None:
    """A new process: only plain-data modules besides its own, and the packages that contain them."""
    ran = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    torch, *modules = ran.stdout.split()
    packages = {name.rsplit(".", i)[0] for name in PLAIN for i in range(1, name.count("."))}
    others = {m for m in modules if not m.startswith("ingot.result.report")} - {"ingot.result"}
    assert torch == "False"
    assert others <= {*PLAIN, *packages}


@pytest.mark.smoke
def test_keys_of_version_0_9_are_read(tmp_path: Path) -> None:
    old: dict[str, Any] = {key: [] for key in NEEDED} | {"falls": [1], "recorded": {"lacking": {"never seen": ["a"]}}}
    (tmp_path / FILE).write_text(json.dumps(old))
    facts = read_facts(tmp_path)
    assert facts["sqnr_drops"] == [1]
    assert facts["recorded"]["suspect_values"] == {"never seen": ["a"]}


def test_the_page_again_from_the_folder(folder: Path, tmp_path: Path) -> None:
    assert main(["report", str(folder / "out"), "-o", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text() == (folder / "out/report.html").read_text()


def test_a_folder_without_a_report_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "name the folder that `ingot cast -o` wrote" in capsys.readouterr().err
    (tmp_path / "report.json").write_text("{}")
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 2
    assert "it has no target" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_compare_in_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (json.loads((folder / name / "report.json").read_text()) for name in ("out", "float"))
    assert main(["compare", str(folder / "out"), str(folder / "float")]) == 0
    said = capsys.readouterr().out
    rows = {re.split(r"\s{2,}", line)[0]: line for line in said.splitlines()}
    for facts in (first, second):
        assert f"{facts['bytes']:,}" in rows["bytes"]
        assert formatted("db", facts["check"]["outputs"][0]["sqnr_db"]) in rows["SQNR of softmax"]
    assert "host op in both: atan.default at net.py:13" in said
    assert re.search(r"\d+ quantization points differ", said)


def test_compare_with_itself(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(folder / "out"), str(folder / "out"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {row["change"] for row in data["rows"]} == {"same"}
    assert data["plan"] == []


def test_compare_as_a_page(browser: Browser, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", str(folder / "out"), str(folder / "float"), "--html", str(tmp_path / "both.html")]
    assert main([*asked, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    browser.open(tmp_path / "both.html", width=390, dark=True)
    assert browser.complaints() == []
    assert [(path, text) for path, kind, text in figures(browser) if not same(kind, text, at(data, path))] == []
    assert len(texts(browser, "#plan tbody tr")) == len(data["plan"]) > 5
    assert len(texts(browser, "#error polyline")) == 2
