"""Host memory of large models: memory-mapped weights, page eviction, heap trimming, pauses of the garbage collector.

glibc keeps freed memory for later allocations; `trim_heap` returns it to the system. Float weights of a large model are
memory-mapped from a file, so their pages can be evicted between two reads.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO
from weakref import WeakSet

import torch

from ingot.core.tensor_bytes import raw_bytes

ROWS_PER_CHUNK = 8192  # of a weight that are dequantized at a time: an LM head has one row per token of the vocabulary
GC_ALLOCATIONS = 300_000  # new objects per collection: about one FX graph of a large model
_mapped: WeakSet[mmap.mmap] = WeakSet()
LARGE_TENSOR_BYTES = 1 << 20
M_MMAP_THRESHOLD = -3  # parameter number of mallopt: blocks of at least this size are mapped separately


def trim_heap(graphs: bool = False) -> None:
    """Return free memory to the system. With `graphs`, first collect FX graphs: they contain reference cycles."""
    if graphs:
        gc.collect()
    evict_pages()
    with suppress(OSError, AttributeError):  # not glibc: no malloc_trim
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def mmap_parameters(model: torch.nn.Module) -> None:
    """Move large parameters into a memory-mapped temporary file. They stay the same objects and stay writable.

    Without disk space for the file, the parameters stay in memory.
    """
    large = [p for p in model.parameters() if p.nbytes >= LARGE_TENSOR_BYTES and p.is_contiguous()]
    with suppress(OSError), tempfile.TemporaryFile() as file:
        starts = {_address(p): _append_page_aligned(p, file) for p in {_address(p): p for p in large}.values()}
        if not starts:
            return
        file.flush()
        mapping = mmap.mmap(file.fileno(), 0)
        _mapped.add(mapping)
        for p in large:
            p.data = torch.frombuffer(mapping, dtype=p.dtype, count=p.numel(), offset=starts[_address(p)]).view(p.shape)


def _address(tensor: torch.Tensor) -> tuple[int, int]:
    """Identifies shared data: tied parameters share one region of the file."""
    return tensor.data_ptr(), tensor.nbytes


@contextmanager
def evict_after_forward(model: torch.nn.Module) -> Iterator[None]:
    """Within this context, evict a layer's weight pages after each of its forward calls."""
    large = [m for m in model.modules() if any(p.nbytes >= LARGE_TENSOR_BYTES for p in m.parameters(recurse=False))]
    hooks = [m.register_forward_hook(lambda *_: evict_pages()) for m in large]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def evict_pages() -> None:
    """Evict the pages of all memory-mapped weights. The next access reads them from the file."""
    for mapping in list(_mapped):
        with suppress(AttributeError):  # MADV_DONTNEED exists on Linux only; changes are kept in the file
            mapping.madvise(mmap.MADV_DONTNEED)


def _append_page_aligned(tensor: torch.Tensor, file: IO[bytes]) -> int:
    """Write the tensor at the next page boundary and return its offset. Kernels need less alignment than a page."""
    start = file.seek(-(-file.tell() // mmap.PAGESIZE) * mmap.PAGESIZE)
    file.write(raw_bytes(tensor).numpy().data)
    return start


def map_large_blocks() -> None:
    """Let malloc map every large tensor on its own pages. By default glibc adapts this threshold and keeps pages."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(M_MMAP_THRESHOLD, LARGE_TENSOR_BYTES)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Run the garbage collector rarely and on new objects only. Its full scans are slow with many graph nodes alive."""
    threshold = gc.get_threshold()
    gc.set_threshold(GC_ALLOCATIONS, 1, 1)
    try:
        with _older_objects_frozen():
            yield
    finally:
        gc.set_threshold(*threshold)


@contextmanager
def garbage_collected() -> Iterator[None]:
    """Free the reference cycles that the body leaves: graphs, with their tensors.

    They would wait for a collection of all objects, and keep the memory between them from being returned. What was
    there before is not scanned.
    """
    with _older_objects_frozen():
        try:
            yield
        finally:
            gc.collect()


_frozen = threading.local()


@contextmanager
def _older_objects_frozen() -> Iterator[None]:
    """Collections within the outermost context skip what was there before; not if the caller froze objects itself.

    Counting frozen objects walks all of them, so an inner context does not count.
    """
    first = not getattr(_frozen, "here", False) and not gc.get_freeze_count()
    if not first:
        yield
        return
    gc.freeze()
    _frozen.here = True
    try:
        yield
    finally:
        _frozen.here = False
        gc.unfreeze()
