"""Memory-mapped weights; garbage of a verb."""

from __future__ import annotations

import errno
import gc
import tempfile
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ingot.core.host_memory import (
    LARGE_TENSOR_BYTES,
    evict_after_forward,
    evict_pages,
    garbage_collected,
    mmap_parameters,
    trim_heap,
)

SIDE = 1024  # a square of float32 has four times LARGE_TENSOR_BYTES


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_mapped_weights_are_the_same_values_in_the_same_parameters() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(SIDE, SIDE), nn.ReLU(), nn.Linear(SIDE, 8)), torch.randn(4, SIDE)
    large, small, wanted = net[0].weight, net[2].weight, net(x)
    where = large.data_ptr(), small.data_ptr()
    mmap_parameters(net)
    assert net[0].weight is large
    assert (large.data_ptr() != where[0], small.data_ptr() != where[1]) == (True, False)
    evict_pages()
    assert torch.equal(net(x), wanted)


def test_tied_weights_stay_tied() -> None:
    net: Any = nn.ModuleDict({"table": nn.Embedding(SIDE, SIDE), "head": nn.Linear(SIDE, SIDE, bias=False)})
    net["head"].weight = net["table"].weight
    net["other"] = nn.Linear(SIDE, SIDE, bias=False)
    net["other"].weight = nn.Parameter(net["table"].weight.data)  # another parameter, the same data
    mmap_parameters(net)
    assert len({m.weight.data_ptr() for m in net.values()}) == 1


def test_writes_to_memory_mapped_weights_are_kept() -> None:
    """Memory-mapped weights can be trained."""
    net = nn.Linear(SIDE, SIDE)
    mmap_parameters(net)
    with torch.no_grad():
        net.weight.fill_(2.0)
    trim_heap()
    assert bool((net.weight == 2.0).all())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc of Linux")
def test_evicted_weights_take_no_memory() -> None:
    net = nn.Sequential(*(nn.Linear(4 * SIDE, SIDE, bias=False) for _ in range(4)))
    mmap_parameters(net)
    bytes_ = sum(p.nbytes for p in net.parameters())
    assert all(p.nbytes >= LARGE_TENSOR_BYTES for p in net.parameters())
    total = sum(float(p.detach().sum()) for p in net.parameters())
    read = resident()
    trim_heap()
    assert read - resident() > 0.8 * bytes_
    assert sum(float(p.detach().sum()) for p in net.parameters()) == total


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc of Linux")
def test_forward_keeps_one_layer_in_memory_at_a_time() -> None:
    net = nn.Sequential(*(nn.Linear(2 * SIDE, 2 * SIDE, bias=False) for _ in range(8)))
    mmap_parameters(net)
    trim_heap()
    empty, most = resident(), list[int]()
    for layer in net:
        layer.register_forward_hook(lambda *_: most.append(resident()))
    x = torch.ones(1, 2 * SIDE)
    with torch.no_grad():
        with evict_after_forward(net):
            net(x)
        evicting = max(most) - empty
        most.clear()
        net(x)
    assert evicting < 3 * net[0].weight.nbytes
    assert max(most) - empty > 7 * net[0].weight.nbytes
    assert all(len(m._forward_hooks) == 1 for m in net)


def test_without_disk_space_parameters_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "no space left on device")

    net = nn.Linear(SIDE, SIDE)
    where = net.weight.data_ptr()
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    mmap_parameters(net)
    assert net.weight.data_ptr() == where


class Cycle:
    def __init__(self) -> None:
        self.me = self


def test_garbage_of_the_body_is_freed_at_its_end_and_nothing_stays_frozen() -> None:
    with garbage_collected():
        kept = Cycle()
        refs = weakref.ref(kept), weakref.ref(Cycle())
        assert gc.get_freeze_count()
    assert refs[0]() is kept
    assert refs[1]() is None
    assert gc.get_freeze_count() == 0


def test_what_the_caller_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        with garbage_collected():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
