"""`transformers`, also beside a torchvision that was built for another torch."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType

import torch

from ingot.errors import InputError

INSTALL = "pip install 'transformers>=5,<6'"


def transformers() -> ModuleType:
    """It imports torchvision where it finds one, so that must import first."""
    with contextlib.suppress(ImportError):
        torchvision()
    try:
        import transformers
    except ImportError as e:
        raise InputError("language models need transformers", why=str(e), hint=INSTALL) from e
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def torchvision() -> ModuleType:
    """PyPI's wheel links CUDA: beside a CPU build of torch its C++ ops are missing. They are declared, never run."""
    try:
        import torchvision.models
    except RuntimeError as e:
        if "torchvision::" not in str(e):
            raise
        _declare_ops()
        import torchvision.models
    return torchvision


def _declare_ops() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for op in ("nms", "qnms"):
        library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declare_ops.kept = library  # type: ignore[attr-defined]  # a dropped Library takes its ops with it
    for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
        del sys.modules[name]
