"""A casting that was saved is the same casting: reported, compared, verified and localized again, without the model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.cli import main

BATCHES = [(torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)),) for i in range(6)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


def cast(**how: Any) -> ingot.Casting:
    torch.manual_seed(0)
    return ingot.cast(Net().eval(), BATCHES[0], target="xnnpack", **{"calibration": BATCHES, **how})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[ingot.Casting, Path]:
    casting = cast(recipe={"inputs": ["snorm8"], "scopes": [{"path": "b", "precision": "float"}], "min_sqnr_db": 5.0})
    return casting, casting.save_folder(tmp_path_factory.mktemp("saved") / "out")


def test_the_same_casting(saved: tuple[ingot.Casting, Path]) -> None:
    casting, folder = saved
    again = ingot.Casting.load(folder)
    for name in ("target", "pte", "delegates", "host_ops", "io", "check", "timings", "notes", "hosted"):
        assert getattr(again, name) == getattr(casting, name), name
    assert not casting.plan.diff(again.plan)
    assert again.needed_evidence.recipe == casting.needed_evidence.recipe


def test_it_is_verified_and_localized_again(saved: tuple[ingot.Casting, Path]) -> None:
    casting, folder = saved
    again = ingot.Casting.load(folder)
    assert ingot.verify(again, BATCHES).outputs == ingot.verify(casting, BATCHES).outputs
    ours, theirs = (ingot.localize(c, BATCHES[:1]) for c in (again, casting))
    assert ours.values == theirs.values
    assert ours.verdict == theirs.verdict


def test_it_is_reported_and_compared_again(saved: tuple[ingot.Casting, Path], tmp_path: Path) -> None:
    _, folder = saved
    again = ingot.Casting.load(folder)
    page = again.report(tmp_path / "report.html").read_text()
    assert "xnnpack" in page
    assert again.details.recorded is not None  # what was recorded came along
    again.save_folder(tmp_path / "twice")
    assert main(["compare", str(folder), str(tmp_path / "twice")]) == 0


def test_another_program_in_its_place_is_found_out(saved: tuple[ingot.Casting, Path]) -> None:
    """The float and the quantized program are what a file is judged by, not what it says of itself."""
    _, folder = saved
    torch.manual_seed(1)
    recipe = {"inputs": ["snorm8"]}
    other = ingot.cast(
        Net().eval(), BATCHES[0], target="xnnpack", calibration=BATCHES, recipe=recipe, on_mismatch="keep"
    )
    assert not ingot.verify(replace(ingot.Casting.load(folder), pte=other.pte), BATCHES).passed


def test_a_folder_without_evidence_can_be_reported_only(tmp_path: Path) -> None:
    folder = cast().save_folder(tmp_path / "slim", evidence=False)
    assert not list(folder.glob("*.pt2"))
    again = ingot.Casting.load(folder)
    assert again.check is not None
    with pytest.raises(ingot.ArtefactError, match="nothing to compare with"):
        ingot.verify(again, BATCHES)


@pytest.fixture
def umask() -> Iterator[int]:
    before = os.umask(0o027)
    yield 0o640
    os.umask(before)


@pytest.mark.parametrize("kind", ["program", "folder", "page", "ranges"])
def test_files_have_the_permissions_of_new_files_and_keep_those_they_had(
    saved: tuple[ingot.Casting, Path], tmp_path: Path, kind: str, umask: int
) -> None:
    casting, file = saved[0], tmp_path / "file"
    ranges = casting.needed_evidence.ranges
    assert ranges is not None
    write: dict[str, Any] = {
        "program": lambda: casting.save(file),
        "folder": lambda: casting.save_folder(tmp_path / "out"),
        "page": lambda: casting.report(file),
        "ranges": lambda: ranges.save(file),
    }
    write[kind]()
    made = [p for p in (*tmp_path.iterdir(), *tmp_path.glob("out/*")) if p.is_file()]
    assert made
    assert {p.stat().st_mode & 0o777 for p in made} == {umask}
    for path in made:
        path.chmod(0o604)
    write[kind]()
    assert {p.stat().st_mode & 0o777 for p in made} == {0o604}


def test_rounded_weights_come_back_from_the_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)).eval()
    batches = [(torch.randn(4, 64),) for _ in range(4)]
    casting = ingot.cast(net, batches[0], target="xnnpack", weights="8da4w", calibration=batches)
    again = ingot.Casting.load(casting.save_folder(tmp_path / "out"))
    assert ingot.verify(again, batches).outputs == ingot.verify(casting, batches).outputs


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("casting.json", "{}", "casting.json.*Field required"),
        ("casting.json", None, "cannot read"),
        ("casting.json", "[" * 100_000, "casting.json is not valid"),
        ("float.pt2", "nothing", r"float\.pt2 is not the file that was saved"),
        ("plan.json", '{"version": 99}', r"plan\.json is not the file that was saved"),
        ("model.pte", "nothing", r"model\.pte is not the file that was saved"),
        ("ranges.json", None, "cannot read"),
    ],
)
def test_folders_that_do_not_load(
    saved: tuple[ingot.Casting, Path], tmp_path: Path, file: str, content: str | None, said: str
) -> None:
    for path in saved[1].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_text(content)
    with pytest.raises(ingot.InputError, match=said):
        ingot.Casting.load(tmp_path)


def changed_records(saved: Path, folder: Path, **changed: Any) -> Path:
    """A copy of the folder whose casting.json was edited."""
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    records = json.loads((folder / "casting.json").read_text())
    (folder / "casting.json").write_text(json.dumps({**records, **changed}))
    return folder


@pytest.mark.parametrize("files", [[], [["a"], ["b"]], [["../../secret"]], [["a\0"]]])
def test_names_of_files_that_do_not_fit(saved: tuple[ingot.Casting, Path], tmp_path: Path, files: Any) -> None:
    """One list of names for each delegate, of files in the folder itself."""
    folder = changed_records(saved[1], tmp_path, files=files)
    if not files:
        assert ingot.Casting.load(folder).delegates  # a folder without such files
    else:
        with pytest.raises(ingot.InputError, match=r"casting\.json is damaged"):
            ingot.Casting.load(folder)


def test_a_plan_with_impossible_numbers_is_refused(saved: tuple[ingot.Casting, Path], tmp_path: Path) -> None:
    """Also where its digest fits: it is validated before it is replayed."""
    folder = changed_records(saved[1], tmp_path, digests={})
    plan = json.loads((folder / "plan.json").read_text())
    next(d for d in plan["decisions"] if d["qparams"])["qparams"]["qmax"] = 1 << 20
    (folder / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ingot.PlanError, match="cannot be quantized as"):
        ingot.Casting.load(folder)


def test_files_of_two_castings_are_not_mixed(saved: tuple[ingot.Casting, Path], tmp_path: Path) -> None:
    """As a save leaves them that was killed between two files."""
    other = cast(recipe={"scopes": [{"path": "a", "precision": "float"}]}).save_folder(tmp_path / "other")
    (other / "model.pte").write_bytes((saved[1] / "model.pte").read_bytes())
    with pytest.raises(ingot.InputError, match=r"model\.pte is not the file that was saved"):
        ingot.Casting.load(other)


def test_a_float_program_of_another_model_is_refused(saved: tuple[ingot.Casting, Path], tmp_path: Path) -> None:
    torch.manual_seed(5)
    other = ingot.cast(Net().eval(), BATCHES[0], target="xnnpack", calibration=BATCHES).save_folder(tmp_path / "other")
    for path in saved[1].iterdir():
        if path.name != "float.pt2":
            (other / path.name).write_bytes(path.read_bytes())
    changed_records(other, other, digests={})
    with pytest.raises(ingot.InputError, match="does not fit together"):
        ingot.Casting.load(other)


def test_exported_and_edge_program(saved: tuple[ingot.Casting, Path]) -> None:
    casting, _ = saved
    ops = [str(n.target) for n in casting.exported_program.graph.nodes]
    assert any("dequantize_per_channel" in op for op in ops)
    edge = [str(n.target) for n in casting.edge_program.graph.nodes]
    assert any("call_delegate" in op for op in edge)


def test_a_shell_cast_can_be_loaded(tmp_path: Path) -> None:
    net = tmp_path / "net.py"
    net.write_text(
        "import torch\ndef build():\n    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 4)).eval(), (torch.randn(1, 8),), [(torch.randn(1, 8),)] * 3\n"
    )
    assert main(["cast", f"{net}:build", "--target", "xnnpack", "-o", str(tmp_path / "out"), "--quiet"]) == 0
    assert json.loads((tmp_path / "out" / "casting.json").read_text())["target"] == "xnnpack"
    assert ingot.Casting.load(tmp_path / "out").evidence is not None
