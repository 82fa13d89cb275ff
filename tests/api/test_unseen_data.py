"""Artefacts are judged on data that calibration has not seen, where there is any; the check says on which."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.cli import main
from ingot.result.report.text import summary


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).eval()


def batches(n: int, seed: int = 0, scale: float = 1.0) -> list[tuple[torch.Tensor, ...]]:
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(2, 64, generator=g) * scale,) for _ in range(n)]


def reusing(given: list[tuple[torch.Tensor, ...]]) -> Iterator[tuple[torch.Tensor, ...]]:
    """A loader that writes every batch into the same memory, and noise after the last."""
    buffer = torch.empty_like(given[0][0])
    for (x,) in given:
        yield (buffer.copy_(x),)
    buffer.fill_(torch.nan)


def fresh(given: list[tuple[torch.Tensor, ...]]) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same without a length, in memory of its own."""
    yield from given


def cast(calibration: Any, target: Any = "xnnpack", **how: Any) -> Any:
    return ingot.cast(net(), batches(1)[0], target=target, calibration=calibration, **how)


def judged(check: ingot.Check | None) -> tuple[str, int]:
    assert check is not None
    return check.judged_on, check.batches


SCHEMES = [None, "8da4w"]


@pytest.mark.parametrize("weights", SCHEMES)
def test_which_data_a_check_was_judged_on(weights: str | None) -> None:
    assert judged(cast(batches(16), weights=weights).check) == ("held-out", 4)
    assert judged(cast(batches(9), weights=weights).check)[0] == "calibration"
    assert judged(cast(batches(16), weights=weights, validation=batches(5, 7)).check) == ("validation", 5)
    assert judged(cast(batches(16), weights=weights, recipe={"verify_batches": 2}).check) == ("held-out", 2)


def test_without_data_the_example_is_all_there_is() -> None:
    assert judged(cast(None, weights="8da8w").check) == ("example", 1)


def test_what_is_held_out_is_not_recorded() -> None:
    """An outlier in a batch that is held out does not widen a range, and the artefact is judged by it."""
    data = batches(16)
    data[3] = (data[3][0] * 1000,)
    static = {"dynamic_activations": False}  # a scale that is chosen at run time covers the outlier
    casting = cast(data, on_mismatch="keep", recipe=static)
    ranges = casting.needed_evidence.ranges
    assert ranges.batches == 12
    assert ranges.values["input_1"].max < 100
    assert not casting.check.passed
    assert cast(batches(16), recipe=static).check.passed
    assert cast(data).check.passed


def test_several_targets_are_judged_on_the_same() -> None:
    made = cast(batches(16), target=["xnnpack", "vulkan"], recipe={"quantize": False})
    assert {judged(c.check) for c in made.values()} == {("held-out", 4)}


class Accumulator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.total: torch.Tensor
        self.register_buffer("total", torch.zeros(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.mul_(0.5).add_(self.inner(x))
        return self.total * 2


def test_a_program_with_state_skips_no_batch_and_says_so() -> None:
    casting = ingot.cast(Accumulator().eval(), batches(1)[0], target="xnnpack", calibration=batches(16))
    assert judged(casting.check) == ("calibration", 8)
    assert casting.needed_evidence.ranges is not None
    assert casting.needed_evidence.ranges.batches == 16
    assert any("none was held out" in n for n in casting.notes)
    data: Any = {"calibration": batches(16), "validation": batches(3)}
    judged_otherwise = ingot.cast(Accumulator().eval(), batches(1)[0], target="xnnpack", **data)
    assert not any("none was held out" in n for n in judged_otherwise.notes)


def test_validation_data_that_does_not_fit_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.api.record_module", pytest.fail)
    with pytest.raises(ingot.InputError, match="must have shape"):
        cast(batches(4), validation=[(torch.zeros(2, 63),)])
    with pytest.raises(ingot.InputError, match="validation data is empty"):
        cast(batches(4), validation=iter(()))


@pytest.mark.parametrize("weights", SCHEMES)
@pytest.mark.parametrize("n", [6, 20])
def test_a_loader_may_reuse_its_memory(n: int, weights: str | None) -> None:
    """For calibration and validation."""
    own = cast(fresh(batches(n)), weights=weights, validation=fresh(batches(5, 1)))
    reused = cast(reusing(batches(n)), weights=weights, validation=reusing(batches(5, 1)))
    assert own.check == reused.check
    assert own.pte == reused.pte
    assert cast(fresh(batches(n)), weights=weights).check == cast(reusing(batches(n)), weights=weights).check


def test_a_loader_may_reuse_its_memory_in_verify_and_localize() -> None:
    casting = cast(batches(6))
    assert ingot.verify(casting, fresh(batches(5, 1))) == ingot.verify(casting, reusing(batches(5, 1)))
    ours, theirs = (ingot.localize(casting, f(batches(5, 1))) for f in (fresh, reusing))
    assert ours.values == theirs.values


def test_verify_uses_all_batches_and_the_thresholds_of_the_recipe(tmp_path: Path) -> None:
    """Also after the casting was saved; a threshold that nothing meets shows that it is read."""
    recipe = {"min_sqnr_db": 5.0, "min_faithful_db": 7.0, "run_timeout": 123.0}
    folder = cast(batches(6), recipe=recipe).save_folder(tmp_path / "out")
    again = ingot.Casting.load(folder)
    kept = again.needed_evidence.recipe
    assert (kept.min_sqnr_db, kept.min_faithful_db, kept.run_timeout) == (5.0, 7.0, 123.0)
    check = ingot.verify(again, fresh(batches(20, 1)))
    assert judged(check) == ("given", 20)
    data = json.loads((folder / "casting.json").read_text())
    (folder / "casting.json").write_text(json.dumps({**data, "recipe": {"min_sqnr_db": 190.0}}))
    strict = ingot.verify(ingot.Casting.load(folder), batches(20, 1))
    assert "threshold 190 dB" in str(strict.outputs[0].problem)


@pytest.mark.parametrize(("target", "weights"), [("xnnpack", "8da4w"), ("xnnpack", "8da8w"), ("vulkan", "4w")])
def test_weight_schemes_are_verified_again_from_their_folder(target: str, weights: str, tmp_path: Path) -> None:
    casting = cast(batches(6), target=target, weights=weights)
    folder = casting.save_folder(tmp_path / "out")
    again = ingot.verify(ingot.Casting.load(folder), fresh(batches(20, 1)))
    assert again == ingot.verify(casting, fresh(batches(20, 1)))
    assert again.passed
    assert again.batches == 20


def test_text_json_and_page_say_it(tmp_path: Path) -> None:
    casting = cast(batches(16), validation=batches(3))
    assert "3 batches of validation data" in summary(casting)
    assert "that calibration has seen" in summary(cast(batches(4)))
    assert "4 batches held out of the calibration data" in summary(cast(batches(16)))
    folder = casting.save_folder(tmp_path / "out")
    assert json.loads((folder / "report.json").read_text())["check"]["judged_on"] == "validation"
    assert '"judged_on":"validation"' in casting.report(tmp_path / "page.html").read_text()
    assert main(["compare", str(folder), str(folder)]) == 0
