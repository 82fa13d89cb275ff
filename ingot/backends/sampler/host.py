"""grid_sample in numpy: the numbers of torch's CPU kernel, for tensors as they are stored."""

from __future__ import annotations

import numpy as np

from ingot.backends.sampler.job import Job, Side, read

CUBIC = np.float32(-0.75)  # how sharp torch's bicubic kernel is
Taps = list[tuple[np.ndarray, np.ndarray]]  # pixels along one axis: where (not always inside), and their weights


def run(payload: bytes, batches: list[list[np.ndarray]], outputs: int) -> list[list[np.ndarray]]:
    """The output for each batch of image and grid; arrays come and go as they lie in memory."""
    job = read(payload, batches, outputs)
    return [[_sample(job, *job.ordered(arrays))] for arrays in batches]


def _sample(job: Job, image: np.ndarray, grid: np.ndarray) -> np.ndarray:
    pixels = _real(image, job.image)
    pixels = pixels if job.image.layout == "channels_last" else pixels.transpose(0, 2, 3, 1)
    with np.errstate(invalid="ignore", over="ignore"):  # a grid may hold NaN and infinity, as torch's may
        made = _stored(_interpolate(job, pixels, _real(grid, job.grid)), job.output)
    return np.ascontiguousarray(made if job.output.layout == "channels_last" else made.transpose(0, 3, 1, 2))


def _interpolate(job: Job, pixels: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The output as N,H,W,C: rows of taps are summed along x, then along y."""
    height, width = pixels.shape[1:3]
    across, down = _taps(job, grid[..., 0], width), _taps(job, grid[..., 1], height)
    rows = (wy * sum(wx * _fetch(pixels, y, x) for x, wx in across) for y, wy in down)
    return np.asarray(sum(rows), np.float32)


def _fetch(pixels: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Pixels by position; zero outside, and where the position is no number."""
    height, width = pixels.shape[1:3]
    inside = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
    column, row = (np.where(inside, at, 0).astype(np.intp) for at in (x, y))
    batch = np.arange(len(pixels))[:, None, None]
    return np.where(inside[..., None], pixels[batch, row, column], np.float32(0))


# ---- one axis: from a coordinate of -1..1 to pixels and weights ----


def _taps(job: Job, coordinate: np.ndarray, size: int) -> Taps:
    at = _position(job, coordinate, size)
    if job.mode == "bicubic":
        return [(_padded(job, where, size), weight) for where, weight in _cubic(at)]
    at = _padded(job, at, size)
    return [(np.rint(at), np.ones(1, np.float32))] if job.mode == "nearest" else _linear(at)


def _position(job: Job, coordinate: np.ndarray, size: int) -> np.ndarray:
    """In pixels: with align_corners -1 and 1 are the centres of the outermost pixels, without it their outer edges."""
    if job.align_corners:
        return (coordinate + np.float32(1)) * np.float32((size - 1) / 2)
    return (coordinate + np.float32(1)) * np.float32(size / 2) - np.float32(0.5)


def _padded(job: Job, at: np.ndarray, size: int) -> np.ndarray:
    if job.padding == "zeros":
        return at
    at = _reflected(job, at, size) if job.padding == "reflection" else at
    return np.minimum(np.fmax(at, np.float32(0)), np.float32(size - 1))  # fmax: what is no number becomes 0


def _reflected(job: Job, at: np.ndarray, size: int) -> np.ndarray:
    """Mirrors stand where -1 and 1 are; between two of them there may be nothing."""
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
    """The cubic kernel up to one pixel away."""
    return ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1


def _far(d: np.ndarray) -> np.ndarray:
    """The cubic kernel from one to two pixels away."""
    return ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC


def _for_channels(weight: np.ndarray) -> np.ndarray:
    return weight[..., None]


# ---- integers and reals ----


def _real(array: np.ndarray, side: Side) -> np.ndarray:
    if side.scale is None:
        return array
    return (array.astype(np.float32) - np.float32(side.zero_point)) * np.float32(side.scale)


def _stored(real: np.ndarray, side: Side) -> np.ndarray:
    """Rounded half to even, as torch does; what is no number is stored as zero."""
    if side.scale is None:
        return real
    steps = np.rint(real * np.float32(1 / side.scale)) + np.float32(side.zero_point)
    steps = np.where(np.isnan(steps), np.float32(side.zero_point), steps)
    return np.clip(steps, *side.limits).astype(side.dtype)
