"""What executorch 1.5.1's Arm passes get wrong or leave undone, put right while one of our programs is lowered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch.fx.passes.infra.pass_base import PassResult


@contextmanager
def repaired() -> Iterator[None]:
    """One result a convolution, a factor that stays a factor, constants that lie as they are read.

    An int16 convolution read by a sum and by another op gets two rescales of its 48-bit accumulator: Vela refuses that
    ("Non-passthrough operation (Conv2D) could not run on NPU"), and the sum reads what the plan never stored. Two equal
    convolutions are made one, and their rescales are not: the same. A factor after a convolution is folded into its
    weights: before quantization by writing into the user's own tensors, and in the delegate only if they are no buffer
    (a batch norm folded in makes one), else it dies. A constant beside channels-last numbers is turned by an op of its
    own at every run.
    """
    from executorch.backends.arm._passes.arm_pass_manager import ArmPassManager
    from executorch.backends.arm._passes.fold_scalar_mul_into_conv_pass import FoldScalarMulIntoConvPass
    from executorch.backends.arm._passes.fuse_duplicate_users_pass import FuseDuplicateUsersPass
    from executorch.backends.arm._passes.rewrite_conv_pass import RewriteConvPass

    signature = _signature(FuseDuplicateUsersPass._build_user_signature)
    turning = _turning(ArmPassManager._configure_pass_insertions)
    with (
        patch.object(RewriteConvPass, "_insert_a16w8_output_branches", lambda *args, **kwargs: None),
        patch.object(FoldScalarMulIntoConvPass, "call", lambda self, module: PassResult(module, False)),
        patch.object(FuseDuplicateUsersPass, "_build_user_signature", signature),
        patch.object(ArmPassManager, "_configure_pass_insertions", turning),
    ):
        yield


def _turning(configure: Any) -> Any:
    """Constants are turned once, after the last pass that moves permutes about."""
    from executorch.backends.arm._passes.fuse_constant_ops_pass import FuseConstantArgsPass
    from executorch.backends.arm._passes.fuse_equal_placeholders_pass import FuseEqualPlaceholdersPass

    class TurnConstants(FuseConstantArgsPass):  # type: ignore[misc]
        def _fuse_nodes(self, node: Any) -> bool:
            return "permute_copy" in str(node.target) and bool(super()._fuse_nodes(node))

    def with_constants(self: Any, exported_program: Any) -> None:
        configure(self, exported_program)
        self.insert_passes_before(FuseEqualPlaceholdersPass, [TurnConstants(exported_program)])

    return with_constants


def _signature(of: Any) -> Any:
    """By which equal ops are found; None for those that are left alone."""
    from executorch.backends.arm.tosa.mapping import TosaSpecialDtype

    def unless_wide(self: Any, node: Any) -> Any:
        wide = node.meta.get(TosaSpecialDtype.meta_key()) == TosaSpecialDtype.INT48
        return None if wide else of(self, node)

    return unless_wide
