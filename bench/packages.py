"""Packages that the zoo's nets come from; what is missing is named with the line that installs it."""

from __future__ import annotations

from types import ModuleType

import torch

from bench.entry import Unavailable
from ingot.errors import InputError
from ingot.llm import hf_imports


def torchvision_models() -> ModuleType:
    try:
        return hf_imports.import_torchvision().models
    except ImportError as e:
        raise Unavailable("pip install --no-deps torchvision==0.28.0; pip install pillow") from e


def timm_library() -> ModuleType:
    torchvision_models()  # timm imports it
    try:
        import timm
    except ImportError as e:
        raise Unavailable("pip install --no-deps timm; pip install pyyaml huggingface-hub safetensors") from e
    return timm


def timm_model(name: str) -> torch.nn.Module:
    return timm_library().create_model(name, pretrained=False).eval()


def transformers() -> ModuleType:
    try:
        return hf_imports.import_transformers()
    except InputError as e:
        raise Unavailable(hf_imports.INSTALL) from e
