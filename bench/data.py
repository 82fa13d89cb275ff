"""Inputs that look like what the models are for: photos, speech-like audio, sentences, slow signals; all seeded."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

BATCHES = 6
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SENTENCES = (
    "The foundry pours the metal into the mould and waits for it to cool.",
    "How do I return a parcel that arrived broken?",
    "A small neural network can run for years on one coin cell.",
    "It rained all night, and in the morning the river had left its bed and stood in the lower streets of the town.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "No.",
    "The committee will meet again on Thursday to decide whether the bridge is to be repaired or replaced.",
    "Quantization maps a range of real numbers to a few integers.",
)


@functools.cache
def photos() -> tuple[Tensor, ...]:
    """scikit-learn's two photographs, or smooth random fields where it is not installed; 3xHxW in [0, 1]."""
    try:
        from sklearn.datasets import load_sample_images
    except ImportError:
        return tuple(_random_field(3, 427, 640, seed) for seed in range(2))
    return tuple(torch.from_numpy(i.copy()).permute(2, 0, 1).float() / 255 for i in load_sample_images().images)


def images(count: int, size: int, seed: int = 0, normal: tuple = IMAGENET) -> Tensor:
    """Random crops at random scale and brightness, some mirrored, normalised as the model wants them."""
    generator = torch.Generator().manual_seed(seed)
    crops = [_crop(photos()[i % len(photos())], size, generator) for i in range(count)]
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in normal)
    return (torch.stack(crops) - mean) / std


def image_batches(size: int, count: int = BATCHES, normal: tuple = IMAGENET) -> list[tuple[Tensor, ...]]:
    return [(image.unsqueeze(0),) for image in images(count, size, seed=1, normal=normal)]


def token_batches(length: int, vocabulary: int, count: int = BATCHES) -> list[tuple[Tensor, ...]]:
    """Token ids with word-like frequencies: few common ones, many rare ones (Zipf)."""
    generator = torch.Generator().manual_seed(2)
    weights = 1.0 / torch.arange(1, vocabulary + 1)
    return [
        (torch.multinomial(weights, length, replacement=True, generator=generator).unsqueeze(0),) for _ in range(count)
    ]


def signal_batches(steps: int, features: int, count: int = BATCHES) -> list[tuple[Tensor, ...]]:
    """Slowly varying sensor-like sequences, 1 x steps x features."""
    generator = torch.Generator().manual_seed(3)
    return [(_slow_signal(steps, features, generator).unsqueeze(0),) for _ in range(count)]


def voices(count: int = BATCHES, seconds: float = 6.0, rate: int = 16000) -> list[Tensor]:
    """Speech-like audio: a gliding pitch with harmonics, syllables as loudness, some noise."""
    generator = torch.Generator().manual_seed(4)
    return [_voice(int(seconds * rate), rate, generator) for _ in range(count)]


def _crop(photo: Tensor, size: int, generator: torch.Generator) -> Tensor:
    height, width = photo.shape[1:]
    u = torch.rand(5, generator=generator).tolist()
    side = int(min(height, width) * (0.35 + 0.65 * u[0]))
    top, left = int(u[1] * (height - side)), int(u[2] * (width - side))
    crop = photo[None, :, top : top + side, left : left + side]
    crop = F.interpolate(crop, (size, size), mode="bilinear", antialias=True, align_corners=False)[0]
    crop = crop.flip(-1) if u[3] < 0.5 else crop
    return (crop * (0.6 + 0.7 * u[4])).clamp(0, 1)


def _random_field(channels: int, height: int, width: int, seed: int) -> Tensor:
    """A field whose spectrum falls as 1/f, as that of photographs does."""
    noise = torch.randn(channels, height, width, generator=torch.Generator().manual_seed(seed))
    fy, fx = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None, :]
    falling = 1.0 / (fy.square() + fx.square()).sqrt().clamp_min(1.0 / width)
    field = torch.fft.irfft2(torch.fft.rfft2(noise) * falling, s=(height, width))
    return (field / field.std() * 0.22 + 0.45).clamp(0, 1)


def _slow_signal(steps: int, features: int, generator: torch.Generator) -> Tensor:
    walk = torch.randn(steps, features, generator=generator).cumsum(0) * 0.3
    offset = torch.randn(1, features, generator=generator)
    return offset + walk - walk.mean(0, keepdim=True)


def _voice(samples: int, rate: int, generator: torch.Generator) -> Tensor:
    t = torch.arange(samples) / rate
    u = torch.rand(4, generator=generator).tolist()
    pitch = 90 + 140 * u[0] + 30 * torch.sin(2 * torch.pi * (0.3 + u[1]) * t)
    phase = 2 * torch.pi * torch.cumsum(pitch, 0) / rate
    voiced = sum(torch.sin(k * phase) / k for k in range(1, 12))
    syllables = torch.sin(2 * torch.pi * (2 + 2 * u[2]) * t).clamp_min(0)
    noise = torch.randn(samples, generator=generator) * 0.02 * (0.5 + u[3])
    return 0.2 * voiced * syllables + noise
