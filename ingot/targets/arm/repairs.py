"""What executorch 1.5.1's Arm passes get wrong, put right while one of our programs is lowered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def repaired() -> Iterator[None]:
    """One result a convolution.

    An int16 convolution read by a sum and by another op gets two rescales of its 48-bit accumulator: Vela refuses that
    ("Non-passthrough operation (Conv2D) could not run on NPU"), and the sum reads what the plan never stored.
    """
    from executorch.backends.arm._passes.rewrite_conv_pass import RewriteConvPass

    with patch.object(RewriteConvPass, "_insert_a16w8_output_branches", lambda *args, **kwargs: None):
        yield
