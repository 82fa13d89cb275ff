"""Batches from a folder of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ingot.data.checks import dtype_name, plural, shape_text
from ingot.data.user_batches import Batch
from ingot.errors import InputError, first_sentence

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"}
ChannelValues = Sequence[float] | None
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class ImageFolder:
    """Images of a folder in name order, in batches of the example's N,C,H,W. Scaled to 0..1, then (x - mean) / std."""

    def __init__(self, folder: Path, example: Sequence[Any] | None, mean: ChannelValues, std: ChannelValues):
        self.example, self.open = _image_example(example, str(folder)), _pillow().open
        self.size, channels, self.height, self.width = self.example.shape
        self.mode = MODES[channels]
        self.files = _image_files(folder, self.size)
        self.mean = _channel_tensor(mean or [0.0], channels, "mean")
        self.std = _channel_tensor(std or [1.0], channels, "std")
        if not bool((self.std > 0).all()):
            raise InputError("std must be positive", why=f"it is {std}", hint="e.g. --std 0.229 0.224 0.225")

    def __len__(self) -> int:
        return len(self.files) // self.size

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self) * self.size, self.size):
            images = [self._read(p) for p in self.files[start : start + self.size]]
            yield (torch.stack(images).to(self.example.dtype),)

    def _read(self, path: Path) -> Tensor:
        try:
            with self.open(path) as image:
                pixels = np.array(image.convert(self.mode).resize((self.width, self.height)), dtype=np.float32)
        except Exception as e:
            hint = "remove or replace it"
            raise InputError(f"{path} is not a readable image", why=first_sentence(e), hint=hint) from e
        scaled = torch.from_numpy(pixels).reshape(self.height, self.width, -1).permute(2, 0, 1) / 255
        return (scaled - self.mean) / self.std


def _image_files(folder: Path, size: int) -> list[Path]:
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if len(files) < size:
        why = f"one batch of the example has {plural(size, 'image')}, the folder has {len(files)}"
        hint = f"add images ({' '.join(sorted(SUFFIXES))})"
        raise InputError("too few images" if files else "no images", where=str(folder), why=why, hint=hint)
    return files


def _image_example(example: Sequence[Any] | None, where: str) -> Tensor:
    inputs = list(example or ())
    if len(inputs) == 1 and isinstance(inputs[0], Tensor) and _is_image(inputs[0]):
        return inputs[0]
    shapes = [f"{dtype_name(x.dtype)} {shape_text(tuple(x.shape))}" for x in inputs if isinstance(x, Tensor)]
    found = f"{plural(len(inputs), 'input')} {', '.join(shapes)}"
    why = f"images need one float input N,C,H,W with C = 1, 3 or 4; the example is {found}"
    hint = "use an .npz file, or file.py:function"
    raise InputError("images do not fit this model", where=where, why=why, hint=hint)


def _is_image(x: Tensor) -> bool:
    return x.dim() == 4 and x.shape[1] in MODES and x.is_floating_point()


def _channel_tensor(values: Sequence[float], channels: int, name: str) -> Tensor:
    if len(values) not in (1, channels):
        why = f"the example has {plural(channels, 'channel')}, got {len(values)} values"
        raise InputError(f"{name} does not fit the image", why=why, hint=f"give 1 or {channels} values")
    return torch.tensor(values, dtype=torch.float32).reshape(-1, 1, 1)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as e:
        raise InputError("a folder of images needs pillow", why=str(e), hint="pip install 'pillow>=10'") from e
    return Image
