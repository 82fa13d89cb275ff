"""The sweep over families: what is run again, what counts as whole, and how a row reads. No net is built here."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from bench.families.run import todo
from bench.families.sweep import forked_row, sweep_line
from bench.families.table import families_table, verdict
from bench.families.vision import clip

WHOLE = {
    "id": "timm/a",
    "flow": "ingot",
    "delegates": 1,
    "host_ops": 1,
    "host_kinds": {"embedding": 1},
    "host_integer": 1,
    "sqnr_db": 30.0,
}
SPLIT = {
    "id": "timm/a",
    "flow": "stock",
    "delegates": 7,
    "host_ops": 9,
    "host_kinds": {"expand_copy": 9},
    "sqnr_db": 30.0,
}
DEAD = {"id": "timm/b", "flow": "ingot", "error": "still running after 600 s"}


def test_gathers_do_not_split_a_net_and_other_host_ops_do() -> None:
    assert [verdict(WHOLE), verdict(SPLIT), verdict(DEAD)] == ["whole", "split", "dies"]
    assert verdict({**WHOLE, "host_ops": 2}) == "split"
    assert verdict({**WHOLE, "delegates": 2}) == "split"


def test_the_runtime_takes_the_strides_of_a_clip() -> None:
    made = clip(2, 16, seed=0)
    assert made.shape == (1, 3, 2, 16, 16)
    assert made.is_contiguous()


def test_numbers_far_off_are_wrong_though_it_is_one_delegate() -> None:
    assert verdict({**WHOLE, "sqnr_db": -3.0}) == "wrong"
    assert verdict({**WHOLE, "disagrees": True}) == "wrong"


def test_a_second_run_does_what_is_missing_and_what_is_asked_for_again(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(r) + "\n" for r in (WHOLE, SPLIT, DEAD)))
    options = Namespace(out=rows, flows="ingot,stock", again="")
    assert todo(["timm/a", "timm/b"], options) == [("timm/b", "stock")]
    options.again = "error"
    assert todo(["timm/a", "timm/b"], options) == [("timm/b", "ingot"), ("timm/b", "stock")]


def test_the_table_has_a_line_per_net_and_the_ops_that_are_left() -> None:
    text = families_table([WHOLE, SPLIT, DEAD, {"id": "timm/c", "flow": "ingot", "skipped": "no inputs"}])
    line = next(t for t in text.splitlines() if t.startswith("timm/a"))
    assert "7 / 1" in line
    assert "9 / 1" in line
    assert "ingot: 2 nets, 1 dies, 1 whole" in text
    assert "stock: 1 nets, 1 split" in text
    assert "not built: timm/c: no inputs" in text
    assert "1 embedding: timm/a" in text


def test_a_sweep_has_a_row_for_a_net_that_is_not_built() -> None:
    row = forked_row("torchaudio/no such net", Namespace(target="xnnpack", flow="probe", timeout=60.0))
    assert (row["id"], row["flow"]) == ("torchaudio/no such net", "probe")
    assert "KeyError" in row["skipped"]
    assert "not built" in sweep_line(row)


def test_a_sweep_gives_a_net_up_after_its_time() -> None:
    row = forked_row("torchaudio/conformer", Namespace(target="xnnpack", flow="ingot", timeout=0.0))
    assert row["error"] == "not done after 0 s"
    assert "1 delegates, 1 host ops" in sweep_line({**WHOLE, "process_seconds": 1.0})
