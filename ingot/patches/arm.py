"""Arm: repairs of passes in ExecuTorch's Arm backend. The table says what each pass does wrong."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch.fx.passes.infra.pass_base import PassResult

from ingot.core.forked import CAN_FORK, run_forked
from ingot.patches.version_gate import patched


def arm_pass_fixes() -> AbstractContextManager[None]:
    return patched("arm")


def no_output_branches(_original: Any, _session: Any) -> Callable[..., None]:
    """One rescale for each int16 convolution.

    With two consumers, ExecuTorch rescales the 48-bit accumulator twice. Vela refuses that ("Non-passthrough operation
    (Conv2D) could not run on NPU"), and one consumer reads a value at a scale that is not in the plan.
    """
    return lambda *args, **kwargs: None


def unchanged(_original: Any, _session: Any) -> Callable[..., Any]:
    """Do not fold a scalar multiplication into the weights of the convolution before it.

    Before quantization ExecuTorch writes into the user's own tensors. In the delegate it fails if the weight is a
    buffer, as it is after batch norm folding.
    """
    return lambda _, module: PassResult(module, False)


def rounded_between_ops(_original: Any, _session: Any) -> Callable[..., Any]:
    """Keep the rescales to int8 and back to int32 between two ops: all readers of a value read the same integers.

    In a softmax ExecuTorch subtracts the maximum of rounded scores from scores that are not rounded. The largest may
    then be a step below 0, and its exp 0.97. Without the rescales a value is not saturated either.
    """
    return lambda _, module: PassResult(module, False)


def signature_except_int48(original: Any, _session: Any) -> Callable[..., Any]:
    """Do not merge equal convolutions that give 48-bit accumulators: their rescales differ."""
    from executorch.backends.arm.tosa.mapping import TosaSpecialDtype

    def signature(self: Any, node: Any) -> Any:
        is_int48 = node.meta.get(TosaSpecialDtype.meta_key()) == TosaSpecialDtype.INT48
        return None if is_int48 else original(self, node)

    return signature


def with_constant_permutes(original: Any, _session: Any) -> Callable[..., None]:
    """Permute constants at compile time, after the last pass that moves permutes."""
    from executorch.backends.arm._passes.fuse_constant_ops_pass import FuseConstantArgsPass
    from executorch.backends.arm._passes.fuse_equal_placeholders_pass import FuseEqualPlaceholdersPass

    class PermuteConstants(FuseConstantArgsPass):  # type: ignore[misc]
        def _fuse_nodes(self, node: Any) -> bool:
            return "permute_copy" in str(node.target) and bool(super()._fuse_nodes(node))

    def configure(self: Any, exported_program: Any) -> None:
        original(self, exported_program)
        self.insert_passes_before(FuseEqualPlaceholdersPass, [PermuteConstants(exported_program)])

    return configure


def above_permuted_operand(original: Any, _session: Any) -> Callable[..., None]:
    """permute(f(one, x)) -> f(one, permute(x)): ExecuTorch permutes the first operand, and loses the permute.

    An operand whose sizes are all 1 has no order; the pass moves a permute above an op with one other operand.
    """
    from executorch.backends.transforms.fuse_identical_input_transforms_pass import FuseIdenticalInputTransformsPass

    def move(self: Any, node: Any, frontier: Any, previous_frontier: Any) -> None:
        read = frontier.all_input_nodes
        rank = len(getattr(frontier.meta.get("val"), "shape", ()))
        ordered = [n for n in read if not FuseIdenticalInputTransformsPass.is_layout_invariant(n, rank)]
        if len(read) > 1 and len(ordered) == 1:
            _move_between(node, ordered[0], frontier)
        else:
            original(self, node, frontier, previous_frontier)

    return move


def _move_between(node: Any, producer: Any, reader: Any) -> None:
    read = node.all_input_nodes[0]
    node.replace_all_uses_with(read)
    node.replace_input_with(read, producer)
    reader.replace_input_with(producer, node)
    reader.prepend(node)


VELA_SECONDS = 900.0  # a hang; the largest nets take a few minutes


def vela_in_child(original: Any, _session: Any) -> Callable[..., Any]:
    """Vela writes files, and reports an error by what it prints and returns."""
    return lambda *args: run_forked(partial(original, *args), VELA_SECONDS, "Vela") if CAN_FORK else original(*args)
