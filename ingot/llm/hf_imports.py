"""Import `transformers` and torchvision, also where torchvision was built for another torch."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType

import torch

from ingot.errors import InputError

INSTALL = "pip install 'transformers>=5,<6'"


def import_transformers() -> ModuleType:
    """`transformers` imports torchvision where it is installed, so torchvision is imported first."""
    with contextlib.suppress(ImportError):
        import_torchvision()
    try:
        import transformers
    except ImportError as e:
        raise InputError("language models need transformers", why=str(e), hint=INSTALL) from e
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def import_torchvision() -> ModuleType:
    """PyPI's wheel links CUDA: with a CPU build of torch its C++ ops are missing. They are declared, never run."""
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
    _declare_ops.kept = library  # type: ignore[attr-defined]  # a Library that is freed removes its ops
    for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
        del sys.modules[name]
