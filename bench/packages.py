"""Packages that need care when imported beside a CPU torch."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType

import torch

from bench.entry import Unavailable


def torchvision_models() -> ModuleType:
    """torchvision.models, also where the wheel was built for another torch: its C++ ops are declared, never run."""
    try:
        import torchvision.models
    except ModuleNotFoundError as e:
        raise Unavailable("pip install --no-deps torchvision==0.28.0; pip install pillow") from e
    except RuntimeError as e:
        if "torchvision::" not in str(e):
            raise
        _declare_torchvision_ops()
        import torchvision.models
    return torchvision.models


def _declare_torchvision_ops() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for op in ("nms", "qnms"):
        library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declare_torchvision_ops.kept = library  # type: ignore[attr-defined]  # a dropped Library takes its ops with it
    for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
        del sys.modules[name]


def timm_model(name: str) -> torch.nn.Module:
    torchvision_models()  # timm imports it
    try:
        import timm
    except ImportError as e:
        raise Unavailable("pip install --no-deps timm; pip install pyyaml huggingface-hub safetensors") from e
    return timm.create_model(name, pretrained=False).eval()


def transformers() -> ModuleType:
    """transformers, which imports torchvision where it finds one: so that must import first."""
    with contextlib.suppress(Unavailable):
        torchvision_models()
    try:
        import transformers
    except ImportError as e:
        raise Unavailable("pip install 'transformers>=4.50,<6'") from e
    transformers.utils.logging.disable_progress_bar()
    return transformers
