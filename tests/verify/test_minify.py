"""Models that really fail are reduced to a self-contained file that fails alike."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.cli import main
from ingot.verify.minify.codegen import _random_source
from ingot.verify.minify.ddmin import ddmin
from tests.support.wrong_kernels import FILE, IMAGES, Net, sharpened, sigmoid_for_tanh


def reduce(middle: Any, path: Path, **options: Any) -> ingot.Reduction:
    return ingot.reduce(Net(middle, depth=2).eval(), IMAGES[0], path, target="xnnpack", calibration=IMAGES, **options)


def folded(x: torch.Tensor) -> torch.Tensor:
    """Lowering fails in a pass of XNNPACK if a convolution comes right before, and the celu is not rewritten."""
    return nn.functional.celu(nn.functional.conv2d(x, torch.full((8, 8, 1, 1), 0.2)), 0.5)


WRONG_TANH = "from tests.support.wrong_kernels import sigmoid_for_tanh\n\nwrong = sigmoid_for_tanh()\nwrong.__enter__()"


@pytest.mark.parametrize(
    ("middle", "error", "op", "most", "setup", "recipe"),
    [
        (torch.tanh, "MismatchError", "tanh", 1, WRONG_TANH, None),
        (
            folded,
            "LowerError",
            "celu",
            2,
            "",
            {"disabled_rewrites": ["activations-as-arithmetic", "composites-by-parts"]},
        ),
    ],
    ids=["wrong numbers", "does not lower"],
)
def test_a_failure_of_the_backend(
    middle: Any, error: str, op: str, most: int, setup: str, recipe: Any, tmp_path: Path
) -> None:
    with sigmoid_for_tanh():
        done = reduce(middle, tmp_path / "repro.py", budget=240, setup=setup, recipe=recipe)
    assert done.reproduces
    assert done.finished
    assert done.ops <= most < done.ops_before
    text = done.path.read_text()
    assert f"torch.ops.aten.{op}" in text
    assert len(text.splitlines()) < 40
    assert [p.name for p in tmp_path.iterdir()] == ["repro.py"], "random constants are enough, so no tensors are saved"
    assert error in done.output


def test_backends_of_ones_own(wrong_backend: str, tmp_path: Path) -> None:
    """The code that registers them is at the top of the file; recipe keys that the failure does not need are removed."""
    recipe = {"extra_backends": [wrong_backend], "correct_biases": False}
    setup = "from tests.support.wrong_kernels import register\n\nregister()"
    done = reduce(sharpened, tmp_path / "repro.py", recipe=recipe, setup=setup)
    assert done.reproduces
    assert done.ops == 1
    assert "recipe={'extra_backends': ['doubling'], 'recover': False}" in done.path.read_text()


def test_without_time_the_whole_model_is_written(tmp_path: Path) -> None:
    with sigmoid_for_tanh():
        done = reduce(torch.tanh, tmp_path / "repro.py", budget=1, setup=WRONG_TANH)
    assert not done.finished
    assert done.reproduces
    assert (tmp_path / "repro.pt").exists()


def test_a_model_that_is_fine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ingot.InputError, match="cast without an error"):
        reduce(torch.relu, tmp_path / "repro.py")
    assert not list(tmp_path.iterdir())


def test_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(FILE.format(middle="lambda x: torch.erfinv(torch.tanh(x))"))
    command = ["localize", "net.py:build", "--target", "xnnpack", "--json"]
    assert main(command) == 4
    assert "nothing can run erfinv" in capsys.readouterr().err
    assert main([*command, "--reduce", "repro.py"]) == 4
    done = json.loads(capsys.readouterr().out)["reduction"]
    assert done["reproduces"]
    assert done["ops"] == 1
    mended = Path("repro.py").read_text().replace("torch.ops.aten.erfinv.default(x)", "x * 2")
    Path("repro.py").write_text(mended)
    ran = subprocess.run([sys.executable, "repro.py"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "cast without an error\n"), "when the failure is gone, the file says so"


def test_delta_debugging() -> None:
    tried = []

    def fails(part: Any) -> bool:
        tried.append(part)
        return {3, 17, 18} <= set(part)

    assert list(ddmin(range(40), fails)) == [3, 17, 18]
    assert len(tried) < 80
    assert list(ddmin(range(40), lambda part: 25 in part)) == [25]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("number", [0.0, 3.0, 0.5])
def test_a_constant_input_is_written_as_it_is(shape: tuple[int, ...], number: float) -> None:
    """Without dimensions too, and as a float: torch.full((2,), 3) would be integers."""
    wanted = torch.full(shape, number)
    made = eval(_random_source([wanted], standard=True), {"torch": torch})
    assert made.dtype == wanted.dtype
    assert torch.equal(made, wanted)
