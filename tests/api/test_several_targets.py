"""A cast for several targets: one that fails does not lose the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.cli import main
from ingot.result import target_cast

BATCHES = [(torch.randn(2, 8, generator=torch.Generator().manual_seed(i)),) for i in range(4)]
NAMES = ["vulkan", "xnnpack"]
FLOAT = {"quantize": False}  # both targets run it


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`fail("vulkan", error)`: what goes wrong for that target, after it was planned."""

    def fail(target: str, error: Exception) -> None:
        real = target_cast.judged

        def judged(casting: Any, *args: Any, **kwargs: Any) -> Any:
            if casting.target == target:
                raise error
            return real(casting, *args, **kwargs)

        monkeypatch.setattr(target_cast, "judged", judged)

    return fail


@pytest.mark.parametrize("error", [ingot.MismatchError("wrong"), ingot.LowerError("refused")])
def test_the_error_carries_what_is_finished(failing: Any, error: ingot.IngotError) -> None:
    failing("vulkan", error)
    with pytest.raises(type(error)) as caught:
        ingot.cast(net(), BATCHES[0], target=NAMES, calibration=BATCHES, recipe=FLOAT)
    assert list(caught.value.castings) == ["xnnpack"]
    assert caught.value.castings["xnnpack"].check.passed
    assert dict(caught.value.failures) == {"vulkan": error}


def test_keep_returns_all() -> None:
    """Calibrated on other data than it is judged on."""
    data = [(x * 1e-3,) for (x,) in BATCHES]
    how: Any = {"calibration": data, "validation": BATCHES, "on_mismatch": "keep"}
    kept = ingot.cast(net(), BATCHES[0], target=["xnnpack"], **how)
    assert [c.check.passed for c in kept.values() if c.check] == [False]


def test_one_target_alone_carries_nothing() -> None:
    with pytest.raises(ingot.TargetError) as caught:
        ingot.cast(net(), BATCHES[0], target="nowhere", calibration=BATCHES)
    assert not caught.value.castings


NET = """
import torch
def build():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
    return net, (torch.zeros(2, 8),), [(torch.randn(2, 8),) for _ in range(4)]
"""


def test_the_shell_writes_what_is_finished(failing: Any, tmp_path: Path, capsys: Any) -> None:
    check = ingot.Check("here", 1, (), passed=False)
    failing("vulkan", ingot.MismatchError("wrong", check=check))
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "r.toml").write_text("quantize = false")
    out = tmp_path / "out"
    more = ["--recipe", str(tmp_path / "r.toml"), "-o", str(out), "--json", "--quiet"]
    targets = [f"--target={n}" for n in NAMES]
    assert main(["cast", f"{tmp_path / 'net.py'}:build", *targets, *more]) == 3
    assert ingot.Casting.load(out / "xnnpack").check is not None
    assert sorted(p.name for p in out.iterdir()) == ["xnnpack"]
    said = capsys.readouterr()
    error = json.loads(said.out)["error"]
    assert error["finished"] == ["xnnpack"]
    assert list(error["failures"]) == ["vulkan"]
    assert "vulkan: wrong" in said.err
    assert "finished and written: xnnpack" in said.err
