"""A C header with the inputs and outputs of a program: types, shapes, layouts, scales, zero points."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from ingot.core.artefact import ProgramIO, TensorInfo
from ingot.errors import InputError


class CType(NamedTuple):
    """How C names a dtype, and its size."""

    name: str
    bytes: int


# C has no names for these that follow from torch's: float32 is `float`, half floats are carried as their bits.
C_TYPES = {
    "float64": CType("double", 8),
    "float32": CType("float", 4),
    "float16": CType("uint16_t", 2),
    "bfloat16": CType("uint16_t", 2),
    "bool": CType("uint8_t", 1),
    **{f"{sign}int{bits}": CType(f"{sign}int{bits}_t", bits // 8) for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
NOT_IN_A_STRING = re.compile(r'[^ -~]|["\\]')  # quotes, backslashes, and what is not printable ASCII
CHANNELS_LAST = (0, 2, 3, 1)  # the order of N, C, H, W in memory


def c_header(io: ProgramIO, title: str, prefix: str = "model") -> str:
    """A header that compiles as C99 and C++: constants for each tensor, and functions that convert its numbers."""
    if not re.fullmatch(r"[A-Za-z_]\w*", prefix, re.ASCII):
        raise InputError(f"'{prefix}' is no name in C", hint="--c-prefix my_model")
    guard = f"{prefix.upper()}_IO_H"
    sides = (("input", io.inputs), ("output", io.outputs))
    counts = [f"#define {prefix.upper()}_{side.upper()}S {len(tensors)}" for side, tensors in sides]
    parts = [
        line for side, tensors in sides for i, t in enumerate(tensors) for line in _tensor(t, f"{prefix}_{side}_{i}")
    ]
    return "\n".join([*_top(title, guard), *counts, *parts, *_bottom(guard)])


def _top(title: str, guard: str) -> Iterator[str]:
    yield f"/* {_comment(title)} Generated: do not edit. */"
    yield from (f"#ifndef {guard}", f"#define {guard}", "")
    yield from ("#include <math.h>", "#include <stdint.h>", "", "#ifdef __cplusplus", 'extern "C" {', "#endif", "")


def _bottom(guard: str) -> Iterator[str]:
    yield from ("#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {guard} */", "")


def _tensor(info: TensorInfo, name: str) -> Iterator[str]:
    yield from ("", f"/* {name}: {_comment(info.name)}, {_comment(_shape_text(info))}, {info.layout} */")
    if info.dtype not in C_TYPES:  # a number that is passed through, not a tensor
        yield f"/* of type {_comment(info.dtype)}: no tensor */"
        return
    yield f"typedef {C_TYPES[info.dtype].name} {name}_t;"
    yield from (f"#define {name.upper()}_{key} {value}" for key, value in _constants(info))
    if info.scale is not None:
        yield from _conversions(name)


def _constants(info: TensorInfo) -> Iterator[tuple[str, str]]:
    yield "NAME", '"' + NOT_IN_A_STRING.sub("_", info.name) + '"'
    yield "DTYPE", f'"{info.dtype}"'
    yield "RANK", str(len(info.shape))
    if info.shape:
        yield "SHAPE", _list(d if isinstance(d, int) else 0 for d in info.shape)
        yield "DIM_ORDER", _list(CHANNELS_LAST if info.layout == "channels_last" else range(len(info.shape)))
    yield "CHANNELS_LAST", str(int(info.layout == "channels_last"))
    if all(isinstance(d, int) for d in info.shape):  # else: the caller knows the size when it calls
        count = prod(int(d) for d in info.shape)
        yield from (("ELEMENTS", str(count)), ("BYTES", str(count * C_TYPES[info.dtype].bytes)))
    yield "QUANTIZED", str(int(info.scale is not None))
    if info.scale is not None:
        yield from (("SCALE", f"{info.scale!r}"), ("ZERO_POINT", f"({info.zero_point})"))
        yield from (("QMIN", f"({info.qmin})"), ("QMAX", f"({info.qmax})"))


def _conversions(name: str) -> Iterator[str]:
    """Half-way cases go to the even number, as in the runtime: `rintf` in the default rounding mode."""
    top = name.upper()
    yield ""
    yield f"static inline {name}_t {name}_quantize(float real) {{"
    yield f"    float steps = rintf(real / (float){top}_SCALE) + (float){top}_ZERO_POINT;"
    yield f"    if (!(steps > (float){top}_QMIN)) return ({name}_t){top}_QMIN;"
    yield f"    return ({name}_t)(steps < (float){top}_QMAX ? steps : (float){top}_QMAX);"
    yield "}"
    yield ""
    yield f"static inline float {name}_dequantize({name}_t stored) {{"
    yield f"    return ((float)stored - (float){top}_ZERO_POINT) * (float){top}_SCALE;"
    yield "}"


def _shape_text(info: TensorInfo) -> str:
    return f"{info.dtype}[{', '.join(map(str, info.shape))}]"


def _list(numbers: object) -> str:
    return "{" + ", ".join(map(str, numbers)) + "}"  # type: ignore[call-overload]


def _comment(text: str) -> str:
    """Nothing that would end the comment, or is not ASCII."""
    return text.replace("*/", "* /").replace("/*", "/ *").encode("ascii", "replace").decode()
