"""Compiles sampler.comp into the .spv files of the package: python -m ingot.backends.sampler.shaders.build."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from ingot.backends.sampler.shader import DTYPES, FOLDER, shader_file
from ingot.errors import ArtefactError
from ingot.targets.arm.vulkan_tools import RUNNER, run_tool
from ingot.targets.base import Requirement

SOURCE = FOLDER / "sampler.comp"
TYPES = {"float32": "float", "int8": "int8_t", "int16": "int16_t"}  # in GLSL
SECONDS = 60.0  # for one compilation, which takes 0.1 s on an idle machine
# Debug instructions: a driver does not need them, and they are a quarter of the file. OpSource…, OpName, OpMemberName,
# OpString, OpLine, OpNoLine, OpModuleProcessed.
DEBUG_OPCODES = {2, 3, 4, 5, 6, 7, 8, 317, 330}
HEADER = 5  # words before the first instruction


def _find_glslc() -> str | None:
    """From the package of the runner, in the same folder."""
    runner = RUNNER.found()
    beside = Path(runner).with_name("glslc") if runner else None
    return str(beside) if beside and beside.exists() else None


GLSLC = Requirement("glslc", _find_glslc, RUNNER.install)


def variants() -> Iterator[tuple[str, dict[str, str]]]:
    """The name of each file, and its macros. Only an int8 image can be a texture."""
    for image, grid, output in product(*DTYPES.values()):
        macros = {"IMAGE_TYPE": TYPES[image], "GRID_TYPE": TYPES[grid], "OUTPUT_TYPE": TYPES[output]}
        yield shader_file(image, grid, output, texture=False), macros
        if image == "int8":
            yield shader_file(image, grid, output, texture=True), macros | {"IMAGE_IS_TEXTURE": "1"}


def compile_shader(macros: dict[str, str]) -> bytes:
    """SPIR-V. Macros go into the source: the compiler's option for them does not work."""
    if GLSLC.found() is None:
        raise ArtefactError("the shader cannot be compiled", why="glslc is not found", hint=GLSLC.install)
    with tempfile.TemporaryDirectory(prefix="ingot-shader-") as folder:
        source, target = Path(folder) / SOURCE.name, Path(folder) / "shader.spv"
        source.write_text(_with_macros(SOURCE.read_text(), macros))
        done = run_tool(GLSLC, ["--input", str(source), "--output", str(target)], SECONDS)
        if not target.exists():
            raise ArtefactError(f"{SOURCE.name} does not compile", why=f"{done.stdout}{done.stderr}".strip())
        return _without_debug(target.read_bytes())


def _with_macros(source: str, macros: dict[str, str]) -> str:
    version, _, rest = source.partition("\n")
    return "\n".join([version, *(f"#define {name} {value}" for name, value in macros.items()), rest])


def _without_debug(spirv: bytes) -> bytes:
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    kept, at = list(words[:HEADER]), HEADER
    while at < len(words):
        length, code = words[at] >> 16, words[at] & 0xFFFF
        kept += () if code in DEBUG_OPCODES else words[at : at + length]
        at += length
    return struct.pack(f"<{len(kept)}I", *kept)


def main() -> None:
    for name, macros in variants():
        (FOLDER / name).write_bytes(compile_shader(macros))
        print(f"{(FOLDER / name).stat().st_size:6d}  {name}")


if __name__ == "__main__":
    main()
