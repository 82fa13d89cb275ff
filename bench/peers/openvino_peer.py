"""OpenVINO, quantized by NNCF. Runs in its own environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.peers.serving import Arrays, batches, peer_main


def make(folder: Path) -> Path:
    import nncf
    import openvino

    model = openvino.convert_model(folder / "model.onnx")
    quantized = nncf.quantize(model, nncf.Dataset(batches(folder, "calibration")))
    openvino.save_model(quantized, folder / "openvino.xml", compress_to_fp16=False)
    return folder / "openvino.bin"


def load(folder: Path, threads: int) -> Callable[[Arrays], Sequence[Any]]:
    """Float ops in float32: on some CPUs the default is bfloat16."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(folder / "openvino.xml", "CPU", settings)
    return lambda arrays: list(compiled(arrays).values())


if __name__ == "__main__":
    peer_main(make, load)
