"""Context managers that make capture and lowering fast. They change nothing in the result.

With torch or ExecuTorch of an untested version they do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ingot.patches.program_caches import release_programs
from ingot.patches.version_gate import patched


@contextmanager
def fast_lowering() -> Iterator[None]:
    """Lower without repeating work: see the groups "export" and "lowering" of the table."""
    with patched("export"), patched("lowering"):
        try:
            yield
        finally:
            release_programs()  # before the file is written, which needs memory itself


def fast_export() -> AbstractContextManager[None]:
    """For torch.export, which needs the generated code of modules: it reads the names of inputs from it."""
    return patched("export")


def lazy_codegen() -> AbstractContextManager[None]:
    """For passes of our own: edited graphs get no code. The caller recompiles the result outside."""
    return patched("codegen")


def fast_convert() -> AbstractContextManager[None]:
    """For torchao's convert: see the group "convert" of the table."""
    return patched("convert")
