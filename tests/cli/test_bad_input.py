"""Bad input through the API: one paragraph of the template, nothing left behind. The shell's side is in test_cli.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from tests.support.castings import X, lowered, net
from tests.support.environment import on_a_full_disk, without


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder of its own, as empty after the refusal as before."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    assert list(folder.rglob("*")) == []


def refusal(**changed: Any) -> ingot.IngotError:
    """What cast says to good input of which something was changed; it must fit the template."""
    given = {"model": net(), "example_inputs": (X,), "target": "xnnpack", "calibration": [(X,)], **changed}
    with pytest.raises(ingot.IngotError) as caught:
        ingot.cast(**given)
    return checked(caught.value)


def checked(error: ingot.IngotError) -> ingot.IngotError:
    assert error.hint
    assert "\n" not in str(error)
    assert str(error).startswith(f"{error.what} · ")
    assert str(error).endswith(f" · try: {error.hint}")
    return error


@pytest.mark.parametrize(
    ("batches", "what"), [(None, "no calibration data"), ([], "no calibration batches"), (iter(()), "")]
)
def test_no_calibration_data(batches: Any, what: str) -> None:
    error = refusal(calibration=batches)
    assert isinstance(error, ingot.InputError)
    assert what in error.what


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ((), "missing 1 required positional argument"),
        ((X, X), "takes 2 positional arguments but 3"),
        ((X[:, :2],), "expected input[1, 2, 8, 8] to have 3 channels"),
        ((X.int(),), "Input type (int)"),
        ((X.double(),), "Input type (double)"),
    ],
)
def test_wrong_example_inputs(inputs: tuple[Any, ...], why: str) -> None:
    error = refusal(example_inputs=inputs)
    assert isinstance(error, ingot.InputError)
    assert "does not run on the example inputs" in error.what
    assert why in str(error.why)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (None, "no example inputs"),
        ({"y": X}, "does not run on the example inputs"),
        ("x", "must be a tuple of tensors"),
    ],
)
def test_example_inputs_that_are_no_tuple(inputs: Any, said: str) -> None:
    assert said in refusal(example_inputs=inputs).what


@pytest.mark.parametrize("inputs", [(X, X), (X[:, :2],), (X.double(),)])
def test_wrong_example_inputs_of_an_exported_program(inputs: tuple[Any, ...]) -> None:
    exported = torch.export.export(net(), (X,))
    with pytest.raises(ingot.InputError):
        ingot.capture(exported, inputs)


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        ((X, X), "takes 1 inputs, the batch has 2"),
        ((), "takes 1 inputs, the batch has 0"),
        ((X[..., :7],), "must have shape (1, 3, 8, 8), got (1, 3, 8, 7)"),
        ((X[0],), "must have shape (1, 3, 8, 8), got (3, 8, 8)"),
        ((X.double(),), "must be torch.float32, got torch.float64"),
        ((X.int(),), "must be torch.float32, got torch.int32"),
        ({"y": X}, "has no input at [0][0]"),
    ],
)
def test_wrong_calibration_batches(batch: Any, what: str) -> None:
    error = refusal(calibration=[(X,), batch])
    assert isinstance(error, ingot.InputError)
    assert what in error.what


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("two\nlines")


def first_line(model: type[nn.Module]) -> str:
    return f"test_bad_input.py:{model.forward.__code__.co_firstlineno + 1}"


def test_a_model_that_does_not_export() -> None:
    error = refusal(model=Branches())
    assert isinstance(error, ingot.CaptureError)
    assert (error.what, error.where) == ("the model does not export", first_line(Branches))
    assert "data-dependent" in str(error.why)


def test_the_paragraph_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    refusal(model=Branches())
    assert capsys.readouterr().err == ""


def test_a_model_that_does_not_run() -> None:
    error = refusal(model=Raises())
    assert (error.where, error.why) == (first_line(Raises), "two lines")
    assert isinstance(error.__cause__, ValueError)


@pytest.mark.parametrize(
    ("target", "hint"),
    [("xnpack", "did you mean 'xnnpack'?"), (["xnnpack", "XNNPAC"], "xnnpack"), ("zzz", "one of: "), ([], "target=")],
)
def test_unknown_target(target: Any, hint: str) -> None:
    assert hint in str(refusal(target=target).hint)


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "executorch")
    error = refusal()
    assert isinstance(error, ingot.TargetError)
    assert "needs executorch" in error.what
    assert str(error.hint).startswith("pip install executorch==")
    assert [t.installed for t in ingot.targets() if t.name == "xnnpack"] == [False]


# Artefacts and files


@pytest.mark.parametrize(
    "pte", [b"", b"no program" * 20, bytes(4) + b"ET12" + bytes(100)], ids=["empty", "garbage", "header"]
)
def test_corrupted_artefact(pte: bytes) -> None:
    with pytest.raises(ingot.ArtefactError) as caught:
        ingot.verify(lowered(pte), [(X,)])
    checked(caught.value)


@pytest.mark.parametrize("path", ["/proc/ingot/model.pte", "/dev/null/model.pte"])
def test_unwritable_folder(path: str) -> None:
    with pytest.raises(ingot.ArtefactError, match="could not write /") as caught:
        lowered(b"PTE").save(path)
    checked(caught.value)


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda casting, ranges: casting.save("model.pte"), id="save"),
        pytest.param(lambda casting, ranges: casting.save("new/model.pte"), id="new folder"),
        pytest.param(lambda casting, ranges: casting.report("report.html"), id="report"),
        pytest.param(lambda casting, ranges: ranges.save("ranges.json"), id="ranges"),
        pytest.param(lambda casting, ranges: ingot.verify(casting, [(X,)]), id="verify"),
    ],
)
def test_full_disk(here: Path, work: Callable[..., Any]) -> None:
    casting = lowered(bytes(100_000))
    ranges = ingot.record(casting.evidence.program, [(X,)])
    error = on_a_full_disk(lambda: work(casting, ranges))
    assert isinstance(error, ingot.ArtefactError), error
    assert "File too large" in str(checked(error).why)
    assert list(here.rglob("*")) == []
