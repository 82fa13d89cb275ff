"""A casting in the formats of other tools: what they read is what was cast."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

import ingot
from ingot.cli import main
from ingot.core.artefact import ProgramIO, TensorInfo
from ingot.quantize.integer_io import dequantize_outputs, quantize_inputs
from ingot.result.export.bundled import bundle_of, bundled_program
from ingot.result.export.c_header import c_header
from ingot.result.export.op_list import op_list_yaml
from ingot.runtime.bindings import runtime_bindings
from ingot.verify.check import run_undecoded
from tests.support.requirements import MISSING_TOOL

BATCHES = [(torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)),) for i in range(4)]
IO = ProgramIO(
    (
        TensorInfo("x", "int8", (1, 3, 8, 8), "channels_last", 0.0173, -3, -128, 127),
        TensorInfo("mask", "bool", (1, 8)),
        TensorInfo("tokens", "int64", (1, "s0")),
    ),
    (
        TensorInfo("y*/", "uint16", (1, 10), scale=1e-4, zero_point=32768, qmin=0, qmax=65535),
        TensorInfo("n", "int", ()),
    ),
)


class Net(nn.Module):
    """Convolutions on the delegate; the norm stays on the host where a recipe says so."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(self.conv(x))
        return self.head(y.flatten(1))


def cast(seed: int) -> ingot.Casting:
    torch.manual_seed(seed)
    recipe = {"inputs": ["snorm8"], "host_ops": {"sigmoid": "for the test"}}
    return ingot.cast(Net().eval(), BATCHES[0], target="xnnpack", calibration=BATCHES, recipe=recipe)


@pytest.fixture(scope="module")
def casting() -> ingot.Casting:
    return cast(seed=0)


@pytest.fixture(scope="module")
def folder(casting: ingot.Casting, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return casting.save_folder(tmp_path_factory.mktemp("export") / "out")


# ---- op list ----


def test_the_op_list_has_every_kernel_of_the_program(casting: ingot.Casting, folder: Path, tmp_path: Path) -> None:
    from executorch.exir._serialize._program import deserialize_pte_binary

    file = tmp_path / "ops.yaml"
    assert main(["export", str(folder), "--op-list", str(file)]) == 0
    plans = deserialize_pte_binary(casting.pte).program.execution_plan
    wanted = {f"{op.name}.{op.overload}" if op.overload else op.name for plan in plans for op in plan.operators}
    read = yaml.safe_load(file.read_text())
    assert casting.host_ops
    assert set(read["operators"]) == wanted
    assert set(read["et_kernel_metadata"]) == wanted
    assert not read["include_all_operators"]
    assert "XnnpackBackend" in file.read_text()


def test_the_ops_of_a_damaged_program_are_refused(casting: ingot.Casting) -> None:
    with pytest.raises(ingot.ArtefactError, match="ops of the program"):
        op_list_yaml(casting.pte[:64], [])


# ---- C header ----

PROGRAM = r"""
#include <stdio.h>
#include "io.h"
static const int shape[] = MODEL_INPUT_0_SHAPE, order[] = MODEL_INPUT_0_DIM_ORDER;
int main(void) {
    float x;
    printf("%d %d %d %d %d %s\n", MODEL_INPUTS, shape[1], order[1], MODEL_INPUT_0_BYTES,
           (int)sizeof(model_output_0_t), MODEL_INPUT_0_NAME);
    while (scanf("%f", &x) == 1) {
        model_input_0_t q = model_input_0_quantize(x);
        printf("%d %d %.9g\n", q, model_output_0_quantize(x), model_input_0_dequantize(q));
    }
    return 0;
}
"""


def compiled(tmp_path: Path, header: str, compiler: str, *flags: str) -> Path:
    if shutil.which(compiler) is None:
        pytest.skip(f"{MISSING_TOOL} {compiler}: apt install g++")
    name = "main.cpp" if compiler == "g++" else "main.c"
    (tmp_path / "io.h").write_text(header)
    (tmp_path / name).write_text(PROGRAM)
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", *flags]
    subprocess.run([compiler, *strict, str(tmp_path / name), "-o", str(tmp_path / "main"), "-lm"], check=True)
    return tmp_path / "main"


@pytest.mark.parametrize(("compiler", "standard"), [("gcc", "-std=c99"), ("g++", "-std=c++11")])
def test_the_header_compiles_and_converts_as_the_program_does(tmp_path: Path, compiler: str, standard: str) -> None:
    """Ties, the ends of the range and beyond."""
    ties = [(i + 0.5) * 0.0173 for i in range(-140, 140)]
    given = torch.tensor([*ties, *torch.randn(500).mul(3).tolist(), 1e9, -1e9])
    program = compiled(tmp_path, c_header(IO, "A net */ of the tests."), compiler, standard)
    text = "\n".join(f"{x:.9g}" for x in given.tolist())
    lines = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0] == "3 3 2 192 2 x"
    q, out, back = zip(*(line.split() for line in lines[1:]), strict=True)
    (wanted,), (wanted_out,) = quantize_inputs([given], IO.inputs[:1]), quantize_inputs([given], IO.outputs[:1])
    assert [int(n) for n in q] == wanted.tolist()
    assert [int(n) for n in out] == wanted_out.tolist()
    assert torch.equal(torch.tensor([float(n) for n in back]), dequantize_outputs([wanted], IO.inputs[:1])[0])


def test_a_size_that_varies_has_no_byte_count() -> None:
    text = c_header(IO, "")
    assert "#define MODEL_INPUT_2_SHAPE {1, 0}" in text
    assert "MODEL_INPUT_2_BYTES" not in text


def test_the_header_of_a_folder(casting: ingot.Casting, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "net.h"
    assert main(["export", str(folder), "--c-header", str(file), "--c-prefix", "net"]) == 0
    assert f"#define NET_INPUT_0_SCALE {casting.io.inputs[0].scale!r}" in file.read_text()


def test_a_prefix_that_c_does_not_take_is_refused() -> None:
    with pytest.raises(ingot.InputError, match="no name in C"):
        c_header(IO, "", "9 lives")


# ---- bundled program ----


def passes(bundled: bytes, vector: int) -> bool:
    """ExecuTorch's own comparison of its outputs with the bundled ones."""
    bundle = runtime_bindings()._load_bundled_program_from_buffer(bundled)
    try:
        bundle.verify_result_with_bundled_expected_output("forward", vector)
    except RuntimeError:
        return False
    return True


def test_the_runtime_checks_every_bundled_vector(casting: ingot.Casting, tmp_path: Path) -> None:
    made = casting.bundle(tmp_path / "net.bpte", BATCHES).read_bytes()
    assert all(passes(made, i) for i in range(len(BATCHES)))


def test_a_program_with_other_weights_fails_the_bundled_vectors(casting: ingot.Casting) -> None:
    other = cast(seed=1)
    given = [quantize_inputs(b, casting.io.inputs) for b in BATCHES[:1]]
    expected = run_undecoded(casting.pte, casting.needed_evidence, BATCHES[:1])
    vectors = list(zip(given, expected, strict=True))
    assert passes(bundle_of(casting.pte, vectors), 0)
    assert not passes(bundle_of(other.pte, vectors), 0)


def test_a_casting_that_failed_its_check_is_not_bundled(casting: ingot.Casting) -> None:
    failed = replace(casting, check=replace(casting.check, passed=False))
    with pytest.raises(ingot.ArtefactError, match="no expected outputs"):
        bundled_program(failed)


# ---- the command ----


def test_an_export_without_a_file_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(folder)]) == 2
    assert "--op-list FILE" in capsys.readouterr().err


def test_an_option_of_another_export_is_refused(folder: Path, tmp_path: Path) -> None:
    assert main(["export", str(folder), "--op-list", str(tmp_path / "o"), "--c-prefix", "net"]) == 2
    assert not (tmp_path / "o").exists()
