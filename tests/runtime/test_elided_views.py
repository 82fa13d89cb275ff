"""Reshapes that have no instruction: executors in Python see their values."""

from __future__ import annotations

from types import SimpleNamespace as Of
from typing import Any

from ingot.runtime.elided_views import elided_views


class Tensor:
    def __init__(self, sizes: list[int], at: int):
        self.sizes, self.scalar_type, self.data_buffer_idx = sizes, 6, 0
        self.allocation_info = Of(memory_id=1, memory_offset_high=0, memory_offset_low=at)


def _plan(tensors: list[Tensor], calls: list[Any], inputs: list[int], outputs: list[int]) -> Any:
    chain = Of(instructions=[Of(instr_args=c) for c in calls])
    return Of(values=[Of(val=t) for t in tensors], chains=[chain], inputs=inputs, outputs=outputs)


def _kernel(*args: int) -> Any:
    return Of(op_index=0, args=[*args, args[-1]])


def _delegate(*args: int) -> Any:
    return Of(delegate_index=0, args=list(args))


INPUT, VIEW, OTHER = Tensor([2, 8], 0), Tensor([16], 0), Tensor([16], 64)


def test_a_kernel_reads_a_view_of_an_input() -> None:
    assert elided_views(_plan([INPUT, VIEW, OTHER], [_kernel(1, 2)], [0], [2])) == {1: 0}


def test_a_delegate_reads_a_view_of_an_input() -> None:
    assert elided_views(_plan([INPUT, VIEW, OTHER], [_delegate(1, 2)], [0], [2])) == {1: 0}


def test_a_view_is_returned() -> None:
    assert elided_views(_plan([INPUT, OTHER, Tensor([4, 4], 64)], [_kernel(0, 1)], [0], [2])) == {2: 1}


def test_memory_that_is_written_again_is_no_view() -> None:
    """The second kernel and the delegate write where the input was."""
    kernels = [_kernel(0, 1), _kernel(1, 2)]
    assert elided_views(_plan([INPUT, OTHER, VIEW], kernels, [0], [2])) == {}
    assert elided_views(_plan([INPUT, OTHER, VIEW], [_kernel(0, 1), _delegate(1, 2)], [0], [2])) == {}
