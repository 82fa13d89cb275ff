"""grid_sample in numpy, on quantized or float tensors; same results as torch's CPU kernel."""

from __future__ import annotations

import numpy as np

from ingot.backends.sampler.payload import SampleJob, TensorSpec, checked_job

CUBIC = np.float32(-0.75)  # parameter of torch's bicubic kernel
# Along one axis: pixel positions, which may be outside the image, and their weights.
Taps = list[tuple[np.ndarray, np.ndarray]]


def sample_on_host(payload: bytes, batches: list[list[np.ndarray]], outputs: int) -> list[list[np.ndarray]]:
    """An Executor: the output for each image and grid, arrays in the shape of their memory layout."""
    job = checked_job(payload, batches, outputs)
    return [[_sample(job, *job.ordered(arrays))] for arrays in batches]


def _sample(job: SampleJob, image: np.ndarray, grid: np.ndarray) -> np.ndarray:
    pixels = _dequantized(image, job.image)
    pixels = pixels if job.image.layout == "channels_last" else pixels.transpose(0, 2, 3, 1)
    with np.errstate(invalid="ignore", over="ignore"):  # a grid may contain NaN and infinity
        made = _quantized(_interpolate(job, pixels, _dequantized(grid, job.grid)), job.output)
    return np.ascontiguousarray(made if job.output.layout == "channels_last" else made.transpose(0, 3, 1, 2))


def _interpolate(job: SampleJob, pixels: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The output as N,H,W,C: taps are summed along x, then along y."""
    height, width = pixels.shape[1:3]
    across, down = _taps(job, grid[..., 0], width), _taps(job, grid[..., 1], height)
    rows = (wy * sum(wx * _fetch(pixels, y, x) for x, wx in across) for y, wy in down)
    return np.asarray(sum(rows), np.float32)


def _fetch(pixels: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Pixels by position; zero outside the image and for NaN."""
    height, width = pixels.shape[1:3]
    inside = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
    column, row = (np.where(inside, at, 0).astype(np.intp) for at in (x, y))
    batch = np.arange(len(pixels))[:, None, None]
    return np.where(inside[..., None], pixels[batch, row, column], np.float32(0))


# ---- one axis: from coordinates in -1..1 to pixels and weights ----


def _taps(job: SampleJob, coordinate: np.ndarray, size: int) -> Taps:
    at = _position(job, coordinate, size)
    if job.mode == "bicubic":
        return [(_padded(job, where, size), weight) for where, weight in _cubic(at)]
    at = _padded(job, at, size)
    return [(np.rint(at), np.ones(1, np.float32))] if job.mode == "nearest" else _linear(at)


def _position(job: SampleJob, coordinate: np.ndarray, size: int) -> np.ndarray:
    """In pixels. -1 and 1 are the centres of the outermost pixels with align_corners, else their outer edges."""
    if job.align_corners:
        return (coordinate + np.float32(1)) * np.float32((size - 1) / 2)
    return (coordinate + np.float32(1)) * np.float32(size / 2) - np.float32(0.5)


def _padded(job: SampleJob, at: np.ndarray, size: int) -> np.ndarray:
    if job.padding == "zeros":
        return at
    at = _reflected(job, at, size) if job.padding == "reflection" else at
    return np.minimum(np.fmax(at, np.float32(0)), np.float32(size - 1))  # fmax: NaN becomes 0


def _reflected(job: SampleJob, at: np.ndarray, size: int) -> np.ndarray:
    """Reflected at the positions of -1 and 1, which may coincide."""
    low, span = (0.0, size - 1) if job.align_corners else (-0.5, size)
    if span == 0:
        return np.zeros_like(at)
    distance, period = np.abs(at - np.float32(low)), np.float32(2 * span)
    rest = distance - np.trunc(distance / period) * period
    return np.minimum(rest, period - rest) + np.float32(low)


def _linear(at: np.ndarray) -> Taps:
    first = np.floor(at)
    part = at - first
    return [(first, _for_channels(1 - part)), (first + 1, _for_channels(part))]


def _cubic(at: np.ndarray) -> Taps:
    first = np.floor(at)
    part = at - first
    weights = (_far(part + 1), _near(part), _near(1 - part), _far(2 - part))
    return [(first + (i - 1), _for_channels(weight)) for i, weight in enumerate(weights)]


def _near(d: np.ndarray) -> np.ndarray:
    """The cubic kernel for distances up to 1."""
    return ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1


def _far(d: np.ndarray) -> np.ndarray:
    """The cubic kernel for distances from 1 to 2."""
    return ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC


def _for_channels(weight: np.ndarray) -> np.ndarray:
    return weight[..., None]


# ---- quantize and dequantize ----


def _dequantized(array: np.ndarray, info: TensorSpec) -> np.ndarray:
    if info.scale is None:
        return array
    return (array.astype(np.float32) - np.float32(info.zero_point)) * np.float32(info.scale)


def _quantized(real: np.ndarray, info: TensorSpec) -> np.ndarray:
    """Rounds half to even, as torch does; NaN becomes the zero point."""
    if info.scale is None:
        return real
    steps = np.rint(real * np.float32(1 / info.scale)) + np.float32(info.zero_point)
    steps = np.where(np.isnan(steps), np.float32(info.zero_point), steps)
    return np.clip(steps, *info.qrange).astype(info.dtype)
