"""A casting in a notebook: a table of what it knows."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ingot.core.artefact import Check, HostOp, OutputCheck
from tests.support.castings import lowered

pytestmark = pytest.mark.smoke


class Cells(HTMLParser):
    """The text of a page, and whether its tags are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.open = list[str](), list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def output(db: float, problem: str | None) -> OutputCheck:
    return OutputCheck("y", db, 0.1, db - 3, 99.0, problem)


def test_a_notebook_shows_headline_errors_and_host_ops() -> None:
    check = Check("the <runtime>", 2, (output(12.0, "a & b"),), passed=False, culprit="conv2d (net.py:3)")
    op = HostOp("atan.default", "atan", "net.py:4", "<script>alert(1)</script>", "")
    page = replace(lowered(b"1234"), check=check, host_ops=(op,))._repr_html_()
    found = Cells(page)
    assert found.open == []
    assert found.text[0] == "xnnpack: 0 delegates, 1 host op, 4 bytes: FAILED, the error starts at conv2d (net.py:3)"
    assert {"SQNR 12.0 dB", "worst channel 9.0 dB", "a & b", "net.py:4", "x float32 1×3×8×8"} <= set(found.text)
    assert "<script>" not in page


def test_long_tables_are_cut() -> None:
    ops = tuple(HostOp("atan.default", f"atan_{i}", f"net.py:{i}", "no kernel", "") for i in range(50))
    found = Cells(replace(lowered(b""), host_ops=ops)._repr_html_())
    assert "… and 38 more" in found.text
    assert "net.py:12" not in found.text


def test_printing_a_casting_shows_its_summary() -> None:
    assert str(lowered(b"")).splitlines()[0].endswith("not executed")
