"""ONNX Runtime, static int8 in QDQ form, one scale for each channel of a weight. Runs in its own environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.peers.serving import Arrays, batches, peer_main


def make(folder: Path) -> Path:
    """Weights symmetric, activations with a zero point: as its guide recommends for x86 with VNNI."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    names = [i.name for i in onnx.load(folder / "model.onnx", load_external_data=False).graph.input]

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = iter(batches(folder, "calibration"))

        def get_next(self) -> Any:
            row = next(self.rows, None)
            return None if row is None else dict(zip(names, row, strict=True))

    plain, path = folder / "model-inferred.onnx", folder / "onnxruntime.onnx"
    quant_pre_process(folder / "model.onnx", plain)
    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(plain, path, Reader(), quant_format=QuantFormat.QDQ, per_channel=True, **kinds)
    return path


def load(folder: Path, threads: int) -> Callable[[Arrays], Sequence[Any]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(folder / "onnxruntime.onnx", options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return lambda arrays: session.run(None, dict(zip(names, arrays, strict=True)))


if __name__ == "__main__":
    peer_main(make, load)
