"""Compiles sampler.comp into all the .spv that are shipped: python -m ingot.backends.sampler.shaders.build."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from ingot.backends.sampler.shader import FOLDER, STORED, file_name
from ingot.errors import ArtefactError
from ingot.targets.arm.vulkan_tools import RUNNER, call
from ingot.targets.base import Requirement

SOURCE = FOLDER / "sampler.comp"
TYPES = {"float32": "float", "int8": "int8_t", "int16": "int16_t"}  # GLSL's words
SECONDS = 60.0  # for a compilation: a tenth of one, unless the machine is overwhelmed
# Names, lines and notes of the compiler: a driver needs none of them, and they are a fourth of the file.
REMARKS = {2, 3, 4, 5, 6, 7, 8, 317, 330}  # OpSource..., OpName, OpMemberName, OpString, OpLine, OpNoLine, OpModule...
HEADER = 5  # words before the first instruction


def _find_glslc() -> str | None:
    """It comes with the runner, and lies beside it."""
    runner = RUNNER.found()
    beside = Path(runner).with_name("glslc") if runner else None
    return str(beside) if beside and beside.exists() else None


GLSLC = Requirement("glslc", _find_glslc, RUNNER.install)


def variants() -> Iterator[tuple[str, dict[str, str]]]:
    """The name of each file, and the macros it is compiled with; a texture holds int8."""
    for image, grid, output in product(*STORED.values()):
        macros = {"IMAGE_TYPE": TYPES[image], "GRID_TYPE": TYPES[grid], "OUTPUT_TYPE": TYPES[output]}
        yield file_name(image, grid, output, texture=False), macros
        if image == "int8":
            yield file_name(image, grid, output, texture=True), macros | {"IMAGE_IS_TEXTURE": "1"}


def compiled(macros: dict[str, str]) -> bytes:
    """As SPIR-V. The compiler's option for macros wants a dash and takes none: they go into the source."""
    if GLSLC.found() is None:
        raise ArtefactError("the shader cannot be compiled", why="glslc is not found", hint=GLSLC.install)
    with tempfile.TemporaryDirectory(prefix="ingot-shader-") as folder:
        source, target = Path(folder) / SOURCE.name, Path(folder) / "shader.spv"
        source.write_text(_with_macros(SOURCE.read_text(), macros))
        done = call(GLSLC, ["--input", str(source), "--output", str(target)], SECONDS)
        if not target.exists():
            raise ArtefactError(f"{SOURCE.name} does not compile", why=f"{done.stdout}{done.stderr}".strip())
        return _without_remarks(target.read_bytes())


def _with_macros(source: str, macros: dict[str, str]) -> str:
    version, _, rest = source.partition("\n")
    return "\n".join([version, *(f"#define {name} {value}" for name, value in macros.items()), rest])


def _without_remarks(spirv: bytes) -> bytes:
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    kept, at = list(words[:HEADER]), HEADER
    while at < len(words):
        length, code = words[at] >> 16, words[at] & 0xFFFF
        kept += () if code in REMARKS else words[at : at + length]
        at += length
    return struct.pack(f"<{len(kept)}I", *kept)


def main() -> None:
    for name, macros in variants():
        (FOLDER / name).write_bytes(compiled(macros))
        print(f"{(FOLDER / name).stat().st_size:6d}  {name}")


if __name__ == "__main__":
    main()
