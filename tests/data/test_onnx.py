"""ONNX files: converted at the shapes of the data, equal to ONNX Runtime, or refused with the node's name."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ingot
from ingot.cli import main
from ingot.data import onnx_model
from ingot.data.onnx_file import OnnxFile
from ingot.data.onnx_model import converted, from_onnx
from ingot.data.static_modules import recorded
from tests.support.requirements import need_module, skip_without

INSTALL = "pip install onnx onnxruntime onnx2torch"
rng = np.random.default_rng(0)


@pytest.fixture(scope="module")
def onnx() -> Any:
    skip_without("onnx2torch", [] if find_spec("onnx2torch") else [INSTALL])  # it may not import without our help
    need_module("onnxruntime", INSTALL)
    return need_module("onnx", INSTALL)


def written(
    onnx: Any, path: Path, nodes: list[Any], shape: list[Any], weights: dict[str, np.ndarray], **how: Any
) -> Path:
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), *how.get("domains", [])])
    model.ir_version = 8
    path.write_bytes(model.SerializeToString())
    return path


def float32(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.fixture
def net(onnx: Any, tmp_path: Path) -> Path:
    """Convolution, a reshape that reads a size from the graph, a linear layer; the batch is open."""
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "conv_1", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "relu_1"),
        node("Shape", ["r"], ["s"], "shape_1"),
        node("Gather", ["s", "zero"], ["n"], "gather_1", axis=0),
        node("Concat", ["n", "rest"], ["sizes"], "concat_1", axis=0),
        node("Reshape", ["r", "sizes"], ["f"], "reshape_1"),
        node("Gemm", ["f", "v", "d"], ["y"], "gemm_1"),
    ]
    weights = {
        "w": float32(4, 3, 3, 3), "b": float32(4), "v": float32(4 * 64, 10), "d": float32(10),
        "zero": np.array([0]), "rest": np.array([-1]),
    }  # fmt: skip
    return written(onnx, tmp_path / "net.onnx", nodes, ["batch", 3, 8, 8], weights)


def test_the_numbers_are_those_of_onnx_runtime(net: Path) -> None:
    x = torch.from_numpy(float32(2, 3, 8, 8))
    (want,) = OnnxFile(net).session().run(None, {"x": x.numpy()})
    assert torch.allclose(from_onnx(net, x)(x), torch.from_numpy(want), atol=1e-5)


def test_an_onnx_file_is_cast_as_one_delegate(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "data.npz", x=float32(8, 3, 8, 8))
    data, out = str(tmp_path / "data.npz"), str(tmp_path / "out")
    assert main(["cast", str(net), "--target", "xnnpack", "--calibrate", data, "-o", out, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(ingot.Casting.load(tmp_path / "out").delegates) == 1
    assert said


def test_nodes_without_a_converter_are_named(onnx: Any, tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [
        node("Relu", ["x"], ["a"], "fine"),
        node("Hardmax", ["a"], ["b"], "hard_1"),
        node("Det", ["b"], ["c"], "det_1"),
        node("Hardmax", ["b"], ["y"], "hard_2"),
    ]
    file = written(onnx, tmp_path / "odd.onnx", nodes, [1, 3, 3], {})
    with pytest.raises(ingot.InputError, match="cannot be converted: Det, Hardmax") as error:
        from_onnx(file)
    assert "hard_1" in str(error.value)
    assert "hard_2" in str(error.value)
    assert "fine" not in str(error.value)


def test_a_conversion_that_is_wrong_is_refused(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime is asked, whatever the converter made."""
    real = onnx_model._converter()

    class Wrong:
        @staticmethod
        def convert(proto: Any) -> Any:
            made = real.convert(proto)
            with torch.no_grad():
                next(made.parameters()).mul_(1.01)
            return made

    monkeypatch.setattr(onnx_model, "_converter", lambda: Wrong)
    with pytest.raises(ingot.InputError, match="gives other numbers") as error:
        from_onnx(net, torch.from_numpy(float32(1, 3, 8, 8)))
    assert "output 'y'" in str(error.value)
    assert "threshold 60" in str(error.value)


def test_open_shapes_need_an_example(net: Path) -> None:
    with pytest.raises(ingot.InputError, match="no example inputs"):
        from_onnx(net)


def test_a_batch_of_other_inputs_is_refused(net: Path) -> None:
    x = torch.from_numpy(float32(1, 3, 8, 8))
    with pytest.raises(ingot.InputError, match="wrong number of inputs"):
        converted(OnnxFile(net), (x, x), [(x, x)])


def test_what_is_not_onnx_is_refused(onnx: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    assert main(["cast", str(tmp_path / "bad.onnx"), "--target", "xnnpack", "-o", str(tmp_path / "o")]) == 2
    assert main(["cast", str(tmp_path / "none.onnx"), "--target", "xnnpack", "-o", str(tmp_path / "o")]) == 2


def test_dynamic_shapes_are_refused(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    varying = ["--dynamic-shapes", "x.0=batch:1:8"]
    assert main(["cast", str(net), "--target", "xnnpack", *varying, "-o", str(tmp_path / "o")]) == 2
    assert "converted at one shape" in capsys.readouterr().err


def test_a_split_a_slice_and_a_resize_become_static(onnx: Any, tmp_path: Path) -> None:
    """Their sizes are tensors in ONNX, which torch.export does not read."""
    node = onnx.helper.make_node
    nodes = [
        node("Split", ["x", "halves"], ["a", "b"], "split_1", axis=1),
        node("Slice", ["a", "from", "to", "axes", "steps"], ["c"], "slice_1"),
        node("Resize", ["c", "", "scales"], ["d"], "resize_1", mode="nearest"),
        node("Resize", ["b", "", "scales"], ["e"], "resize_2", mode="nearest"),
        node("Concat", ["d", "e"], ["y"], "concat_1", axis=1),
    ]
    weights = {
        "halves": np.array([2, 2]), "from": np.array([1]), "to": np.array([2]), "axes": np.array([1]),
        "steps": np.array([1]), "scales": np.array([1, 1, 2, 2], np.float32),
    }  # fmt: skip
    file = written(onnx, tmp_path / "sizes.onnx", nodes, [1, 4, 3, 3], weights)
    net = from_onnx(file)
    x = torch.from_numpy(float32(1, 4, 3, 3))
    exported = torch.export.export(net, (x,)).module()
    (want,) = OnnxFile(file).session().run(None, {"x": x.numpy()})
    assert torch.equal(exported(x), torch.from_numpy(want))


def test_numbers_read_from_an_activation_are_refused() -> None:
    """They would be constants of the example."""

    class Reads(torch.nn.Module):
        def forward(self, x: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum().item() > limit.item() else x

    x = torch.ones(3)
    with pytest.raises(NotImplementedError, match="of an activation"):
        recorded(Reads(), [x], (x, torch.zeros(1)), {})
