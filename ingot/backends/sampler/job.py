"""One grid_sample as bytes: what is sampled, how, and how each tensor is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ingot.errors import ArtefactError

MODES = ("bilinear", "nearest", "bicubic")  # by torch's numbers
PADDINGS = ("zeros", "border", "reflection")
DTYPES = ("float32", "int8", "int16")
LAYOUTS = ("contiguous", "channels_last")
SIDES = ("image", "grid", "output")
MAGIC, VERSION = b"INGS", 1
TINY = 1e-37  # a scale or its inverse beyond this is no float32


@dataclass(frozen=True)
class Side:
    """One tensor of the job, as it is stored."""

    dtype: str
    shape: tuple[int, ...]  # logical: image and output N,C,H,W; grid N,H,W,2
    layout: str = "contiguous"
    scale: float | None = None
    zero_point: int = 0
    qmin: int | None = None
    qmax: int | None = None

    @property
    def quantized(self) -> bool:
        return self.dtype != "float32"

    @property
    def stored(self) -> tuple[int, ...]:
        """The sizes as they lie in memory."""
        n, c, h, w = self.shape
        return (n, h, w, c) if self.layout == "channels_last" else self.shape

    @property
    def limits(self) -> tuple[int, int]:
        """The lowest and the highest integer; the whole type where nothing narrower is given."""
        info = np.iinfo(self.dtype)
        low, high = int(info.min), int(info.max)
        return (low if self.qmin is None else self.qmin), (high if self.qmax is None else self.qmax)


@dataclass(frozen=True)
class Job:
    """grid_sample from one stored tensor to another. One that makes no sense is never made."""

    mode: str
    padding: str
    align_corners: bool
    image: Side
    grid: Side
    output: Side
    grid_first: bool = False  # among the delegate's arguments

    def __post_init__(self) -> None:
        if why := next(_complaints(self), None):
            raise ArtefactError("this is no job for the sampler", why=why)

    def to_bytes(self) -> bytes:
        return MAGIC + bytes([VERSION]) + json.dumps(asdict(self), separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(payload: bytes) -> Job:
        return Job(**_read(bytes(payload)))

    def ordered(self, arguments: Sequence[Any]) -> list[Any]:
        """Image and grid, from what the delegate is called with."""
        return list(reversed(arguments)) if self.grid_first else list(arguments)

    def check(self, arrays: Sequence[np.ndarray]) -> None:
        """Are these an image and a grid as the job says they are stored?"""
        if len(arrays) != 2:
            raise ArtefactError(f"the sampler takes an image and a grid, and was given {len(arrays)} arrays")
        for name, side, array in zip(SIDES, (self.image, self.grid), arrays, strict=False):
            if (str(array.dtype), array.shape) != (side.dtype, side.stored):
                what = f"the {name} of the sampler is {side.dtype} of {list(side.stored)}"
                raise ArtefactError(f"{what}, and {array.dtype} of {list(array.shape)} was given")


def read(payload: bytes, batches: Sequence[Sequence[np.ndarray]], outputs: int) -> Job:
    """The job of a delegate, once what it is given and what is expected of it fit."""
    job = Job.from_bytes(payload)
    if outputs != 1:
        raise ArtefactError(f"the sampler gives one output, and {outputs} are expected", hint="lower the model again")
    for arrays in batches:
        job.check(job.ordered(arrays))
    return job


# ---- reading ----


def _read(payload: bytes) -> dict[str, Any]:
    if payload[: len(MAGIC)] != MAGIC or len(payload) <= len(MAGIC):
        why = f"it does not begin with {MAGIC.decode()} and a version"
        raise ArtefactError("this is no job for the sampler", why=why, hint="lower the model again")
    if (version := payload[len(MAGIC)]) != VERSION:
        why = f"it is of version {version}, and this Ingot reads version {VERSION}"
        raise ArtefactError("a job for the sampler cannot be read", why=why, hint="lower the model again")
    try:
        return _fields(json.loads(payload[len(MAGIC) + 1 :]))
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        why = f"cut off or damaged: {type(e).__name__}: {e}"
        raise ArtefactError("a job for the sampler cannot be read", why=why, hint="lower the model again") from e


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    sides = {name: Side(**{**row[name], "shape": tuple(row[name]["shape"])}) for name in SIDES}
    rest = {k: row[k] for k in ("mode", "padding", "align_corners", "grid_first")}
    return {**rest, **sides}


# ---- what makes no sense ----


def _complaints(job: Job) -> Iterator[str]:
    if job.mode not in MODES:
        yield f"unknown mode {job.mode!r}"
    if job.padding not in PADDINGS:
        yield f"unknown padding {job.padding!r}"
    if not isinstance(job.align_corners, bool):
        yield f"align_corners is {job.align_corners!r}"
    for name in SIDES:
        yield from (f"the {name}'s {why}" for why in _side_complaints(getattr(job, name)))
    yield from _size_complaints(job)


def _side_complaints(side: Side) -> Iterator[str]:
    if side.dtype not in DTYPES:
        yield f"type is {side.dtype!r}"
    if side.layout not in LAYOUTS:
        yield f"layout is {side.layout!r}"
    if len(side.shape) != 4 or not all(_whole(n) and n > 0 for n in side.shape):
        yield f"shape is {list(side.shape)}"
    if side.quantized:
        yield from _encoding_complaints(side)
    elif side.scale is not None:
        yield f"scale is {side.scale}, and float32 has none"


def _encoding_complaints(side: Side) -> Iterator[str]:
    low, high = side.limits
    if not isinstance(side.scale, float | int) or not TINY < side.scale < 1 / TINY:
        yield f"scale is {side.scale}"
    if not all(_whole(n) for n in (side.zero_point, low, high)):
        yield f"zero point and limits are {side.zero_point}, {low}, {high}"
    info = np.iinfo(side.dtype)
    if not (info.min <= low <= high <= info.max and info.min <= side.zero_point <= info.max):
        yield f"zero point {side.zero_point} and limits {low}..{high} do not fit {side.dtype}"


def _whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _size_complaints(job: Job) -> Iterator[str]:
    (n, c, _, _), (gn, gh, gw, two) = job.image.shape, job.grid.shape
    if (gn, two) != (n, 2) or job.grid.layout != "contiguous":
        yield f"a grid of {list(job.grid.shape)}, {job.grid.layout}, does not fit an image of {list(job.image.shape)}"
    if job.output.shape != (n, c, gh, gw):
        yield f"it would give {[n, c, gh, gw]}, and the output is {list(job.output.shape)}"
