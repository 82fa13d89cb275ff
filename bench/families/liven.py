"""Random weights that behave like trained ones, for a net of which nothing is known."""

from __future__ import annotations

import torch
from torch import nn

from bench.entry import Inputs
from bench.settle import settle, spread

SWITCHED_OFF = 1e-2  # layer scales start at 1e-6, tokens and position tables at zero: trained ones do not


def liven(net: nn.Module, batches: list[Inputs]) -> nn.Module:
    """Kaiming weights, parameters that start at zero drawn anew, batch norms settled on `batches`."""
    spread(net)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.is_floating_point() and parameter.abs().max() < SWITCHED_OFF:
                parameter.uniform_(-0.4, 0.6, generator=generator)
    return settle(net, batches)
