"""The payload of a sampler delegate: one grid_sample with the type, shape and qparams of each tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ingot.errors import ArtefactError

MODES = ("bilinear", "nearest", "bicubic")  # the index is torch's enum value
PADDINGS = ("zeros", "border", "reflection")
DTYPES = ("float32", "int8", "int16")
LAYOUTS = ("contiguous", "channels_last")
TENSORS = ("image", "grid", "output")
MAGIC, VERSION = b"INGS", 1
TINY = 1e-37  # a smaller scale, or inverse of a scale, is no normal float32


@dataclass(frozen=True)
class TensorSpec:
    """Type, shape, memory layout and qparams of one tensor."""

    dtype: str
    shape: tuple[int, ...]  # image and output N,C,H,W; grid N,H,W,2; whatever the memory layout
    layout: str = "contiguous"
    scale: float | None = None
    zero_point: int = 0
    qmin: int | None = None
    qmax: int | None = None

    @property
    def quantized(self) -> bool:
        return self.dtype != "float32"

    @property
    def memory_shape(self) -> tuple[int, ...]:
        """The shape in the order of the memory layout."""
        n, c, h, w = self.shape
        return (n, h, w, c) if self.layout == "channels_last" else self.shape

    @property
    def qrange(self) -> tuple[int, int]:
        """(qmin, qmax), by default of the type."""
        integers = np.iinfo(self.dtype)
        low, high = int(integers.min), int(integers.max)
        return (low if self.qmin is None else self.qmin), (high if self.qmax is None else self.qmax)


@dataclass(frozen=True)
class SampleJob:
    """One grid_sample. An inconsistent one raises ArtefactError when it is created."""

    mode: str
    padding: str
    align_corners: bool
    image: TensorSpec
    grid: TensorSpec
    output: TensorSpec
    grid_first: bool = False  # among the delegate's arguments

    def __post_init__(self) -> None:
        if why := next(_problems(self), None):
            raise ArtefactError("invalid sampler delegate", why=why)

    def to_bytes(self) -> bytes:
        return MAGIC + bytes([VERSION]) + json.dumps(asdict(self), separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(payload: bytes) -> SampleJob:
        return SampleJob(**_read(bytes(payload)))

    def ordered(self, arguments: Sequence[Any]) -> list[Any]:
        """Image and grid, from the delegate's arguments."""
        return list(reversed(arguments)) if self.grid_first else list(arguments)

    def check(self, arrays: Sequence[np.ndarray]) -> None:
        """Raise ArtefactError unless these are an image and a grid of the declared types and shapes."""
        if len(arrays) != 2:
            raise ArtefactError(f"the sampler takes an image and a grid, got {len(arrays)} arrays")
        for name, tensor, array in zip(TENSORS, (self.image, self.grid), arrays, strict=False):
            if (str(array.dtype), array.shape) != (tensor.dtype, tensor.memory_shape):
                what = f"the {name} of the sampler is {tensor.dtype} of {list(tensor.memory_shape)}"
                raise ArtefactError(f"{what}, got {array.dtype} of {list(array.shape)}")


def checked_job(payload: bytes, batches: Sequence[Sequence[np.ndarray]], outputs: int) -> SampleJob:
    """The decoded payload, checked against the inputs and the number of outputs."""
    job = SampleJob.from_bytes(payload)
    if outputs != 1:
        raise ArtefactError(f"the sampler has one output, the program expects {outputs}", hint="lower the model again")
    for arrays in batches:
        job.check(job.ordered(arrays))
    return job


# ---- decoding ----


def _read(payload: bytes) -> dict[str, Any]:
    if payload[: len(MAGIC)] != MAGIC or len(payload) <= len(MAGIC):
        why = f"it does not begin with {MAGIC.decode()} and a version"
        raise ArtefactError("invalid sampler delegate", why=why, hint="lower the model again")
    if (version := payload[len(MAGIC)]) != VERSION:
        why = f"it has version {version}, this Ingot reads version {VERSION}"
        raise ArtefactError("unsupported sampler delegate", why=why, hint="lower the model again")
    try:
        return _fields(json.loads(payload[len(MAGIC) + 1 :]))
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        why = f"truncated or damaged: {type(e).__name__}: {e}"
        raise ArtefactError("invalid sampler delegate", why=why, hint="lower the model again") from e


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    tensors = {name: TensorSpec(**{**row[name], "shape": tuple(row[name]["shape"])}) for name in TENSORS}
    rest = {k: row[k] for k in ("mode", "padding", "align_corners", "grid_first")}
    return {**rest, **tensors}


# ---- validation ----


def _problems(job: SampleJob) -> Iterator[str]:
    if job.mode not in MODES:
        yield f"unknown mode {job.mode!r}"
    if job.padding not in PADDINGS:
        yield f"unknown padding {job.padding!r}"
    if not isinstance(job.align_corners, bool):
        yield f"align_corners is {job.align_corners!r}"
    for name in TENSORS:
        yield from (f"the {name}'s {why}" for why in _tensor_problems(getattr(job, name)))
    yield from _shape_problems(job)


def _tensor_problems(tensor: TensorSpec) -> Iterator[str]:
    if tensor.dtype not in DTYPES:
        yield f"type is {tensor.dtype!r}"
    if tensor.layout not in LAYOUTS:
        yield f"layout is {tensor.layout!r}"
    if len(tensor.shape) != 4 or not all(_is_int(n) and n > 0 for n in tensor.shape):
        yield f"shape is {list(tensor.shape)}"
    if tensor.quantized:
        yield from _qparam_problems(tensor)
    elif tensor.scale is not None:
        yield f"scale is {tensor.scale}, and float32 has none"


def _qparam_problems(tensor: TensorSpec) -> Iterator[str]:
    low, high = tensor.qrange
    if not isinstance(tensor.scale, float | int) or not TINY < tensor.scale < 1 / TINY:
        yield f"scale is {tensor.scale}"
    if not all(_is_int(n) for n in (tensor.zero_point, low, high)):
        yield f"zero point and limits are {tensor.zero_point}, {low}, {high}"
    integers = np.iinfo(tensor.dtype)
    if not (integers.min <= low <= high <= integers.max and integers.min <= tensor.zero_point <= integers.max):
        yield f"zero point {tensor.zero_point} and limits {low}..{high} do not fit {tensor.dtype}"


def _is_int(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _shape_problems(job: SampleJob) -> Iterator[str]:
    (n, c, _, _), (gn, gh, gw, two) = job.image.shape, job.grid.shape
    if (gn, two) != (n, 2) or job.grid.layout != "contiguous":
        yield f"a grid of {list(job.grid.shape)}, {job.grid.layout}, does not fit an image of {list(job.image.shape)}"
    if job.output.shape != (n, c, gh, gw):
        yield f"it would give {[n, c, gh, gw]}, and the output is {list(job.output.shape)}"
