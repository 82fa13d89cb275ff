"""What executorch 1.5.1's Arm passes get wrong, put right while one of our programs is lowered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from torch.fx.passes.infra.pass_base import PassResult


@contextmanager
def repaired() -> Iterator[None]:
    """One result a convolution, and a factor that stays a factor.

    An int16 convolution read by a sum and by another op gets two rescales of its 48-bit accumulator: Vela refuses that
    ("Non-passthrough operation (Conv2D) could not run on NPU"), and the sum reads what the plan never stored. A factor
    after a convolution is folded into its weights: before quantization by writing into the user's own tensors, and
    in the delegate only if they are no buffer (a batch norm folded in makes one), else it dies.
    """
    from executorch.backends.arm._passes.fold_scalar_mul_into_conv_pass import FoldScalarMulIntoConvPass
    from executorch.backends.arm._passes.rewrite_conv_pass import RewriteConvPass

    with (
        patch.object(RewriteConvPass, "_insert_a16w8_output_branches", lambda *args, **kwargs: None),
        patch.object(FoldScalarMulIntoConvPass, "call", lambda self, module: PassResult(module, False)),
    ):
        yield
