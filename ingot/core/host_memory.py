"""Memory that nobody needs, given back.

What was freed: glibc keeps it for the next allocation, and a large model has few more to come. And the float weights of
a large model, which lie in a file: between the times that they are read its pages need not be in memory.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO
from weakref import WeakSet

import torch

ROWS = 8192  # of a weight that are float at a time: a head has as many as there are words
SOME = 300_000  # objects: a graph of a large model, as one of many passes leaves it behind
_mapped: WeakSet[mmap.mmap] = WeakSet()
LARGE, THRESHOLD = 1 << 20, -3  # bytes; glibc's number for the size from which a block is mapped on its own


def trim_heap(graphs: bool = False) -> None:
    """Also graphs that nobody has: they refer to themselves, and are searched for among all that there is."""
    if graphs:
        gc.collect()
    evict_pages()
    with suppress(OSError, AttributeError):  # other libraries have no such call, and no such habit
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def mmap_parameters(model: torch.nn.Module) -> None:
    """Large parameters in a file that is gone with them; they are the same objects, and may be written to.

    Where there is no room for a file they stay where they are.
    """
    large = [p for p in model.parameters() if p.nbytes >= LARGE and p.is_contiguous()]
    with suppress(OSError), tempfile.TemporaryFile() as file:
        starts = {_place(p): _written(p, file) for p in {_place(p): p for p in large}.values()}
        if not starts:
            return
        file.flush()
        shelf = mmap.mmap(file.fileno(), 0)
        _mapped.add(shelf)
        for p in large:
            p.data = torch.frombuffer(shelf, dtype=p.dtype, count=p.numel(), offset=starts[_place(p)]).view(p.shape)


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    """The same for parameters that share their numbers: they go on sharing them."""
    return tensor.data_ptr(), tensor.nbytes


@contextmanager
def evict_after_forward(model: torch.nn.Module) -> Iterator[None]:
    """While this lasts, a layer's weights are left on the shelf as soon as it has been computed."""
    large = [m for m in model.modules() if any(p.nbytes >= LARGE for p in m.parameters(recurse=False))]
    hooks = [m.register_forward_hook(lambda *_: evict_pages()) for m in large]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def evict_pages() -> None:
    """What was read of it, until it is read again."""
    for shelf in list(_mapped):
        with suppress(AttributeError):  # of Linux; written or not, its pages are in the file
            shelf.madvise(mmap.MADV_DONTNEED)


def _written(tensor: torch.Tensor, file: IO[bytes]) -> int:
    """Where it starts: at a page, which is more than any kernel asks for."""
    start = file.seek(-(-file.tell() // mmap.PAGESIZE) * mmap.PAGESIZE)
    file.write(tensor.detach().flatten().view(torch.uint8).numpy().data)
    return start


def map_large_blocks() -> None:
    """Each large tensor on its own pages, which go back when it does: else glibc learns to keep them for others."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(THRESHOLD, LARGE)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Python looks for cycles among all objects whenever there are some more; here among new ones, and seldom."""
    often, first = gc.get_threshold(), not gc.get_freeze_count()
    gc.set_threshold(SOME, 1, 1)
    if first:
        gc.freeze()
    try:
        yield
    finally:
        gc.set_threshold(*often)
        if first:
            gc.unfreeze()
