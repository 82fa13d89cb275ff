"""What the zoo hands to the bench."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

Inputs = tuple[Tensor, ...]


@dataclass
class Entry:
    """One bench model, ready to cast. `judge` splits its outputs into what is compared apart.

    `held_out` are inputs no flow has seen, on which it is judged instead of on the calibration data; `exam` are images
    and labels to count top-1 on.
    """

    model: nn.Module
    example_inputs: Inputs
    calibration: list[Inputs]
    note: str
    judge: Callable[[list[Tensor]], list[Tensor]] | None = None
    held_out: list[Inputs] | None = None
    exam: tuple[Tensor, Tensor] | None = None


class Unavailable(Exception):
    """A model whose package is not installed; the text is the line that installs it."""
