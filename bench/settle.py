"""Make a randomly initialised net behave like a trained one: live activations, right statistics, centred outputs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from bench.entry import Entry, Inputs


def spread(model: nn.Module, seed: int = 0) -> nn.Module:
    """Kaiming weights, and norms and biases that differ from channel to channel as training leaves them."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            _kaiming(module, generator)
        elif isinstance(module, _BatchNorm | nn.LayerNorm | nn.GroupNorm) and module.weight is not None:
            module.weight.data.uniform_(0.6, 1.4, generator=generator)
            if module.bias is not None:
                module.bias.data.normal_(0, 0.2, generator=generator)
        elif isinstance(module, nn.MultiheadAttention):
            module.in_proj_weight.data.normal_(0, 1 / math.sqrt(module.embed_dim), generator=generator)
        elif isinstance(module, nn.RNNBase):
            _orthogonal(module)
    for gate in (m for m in model.modules() if type(m).__name__ == "SqueezeExcitation"):
        gate.fc2.weight.data.mul_(0.3)  # a gate that follows its input too eagerly squares an outlier at every block
    return model


@torch.no_grad()
def settle(model: nn.Module, batches: Iterable[Inputs]) -> nn.Module:
    """Fill the running statistics of every batch norm with the plain average over `batches`; nothing else trains."""
    norms = [m for m in model.eval().modules() if isinstance(m, _BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    if norms:
        for batch in batches:
            model(*batch)
    for norm in norms:
        norm.momentum = 0.1
    return model.eval()


@torch.no_grad()
def center(model: nn.Module, head: nn.Linear, batches: list[Inputs], std: float = 2.0) -> nn.Module:
    """Give the logits mean 0 and the spread of a trained classifier's, so that SQNR measures what depends on the input.

    Without it a random net's output is nearly one constant vector, and any artefact scores well.
    """
    out = torch.cat([model(*b) for b in batches])
    varying = (out - out.mean(0)).std().clamp_min(1e-6)
    head.weight.mul_(std / varying)
    head.bias.copy_((head.bias - out.mean(0)) * (std / varying))
    return model


@torch.no_grad()
def liveliness(entry: Entry) -> tuple[float, float]:
    """(std of the outputs, share of it that differs from input to input); the lowest over the outputs."""
    runs = [outputs_of(entry, b) for b in entry.calibration]
    stds, shares = [], []
    for outputs in zip(*runs, strict=True):
        stacked = torch.stack([o.float() for o in outputs])
        stds.append(stacked.std().item())
        shares.append(((stacked - stacked.mean(0)).std() / stacked.std()).item())
    return min(stds), min(shares)


def outputs_of(entry: Entry, batch: Inputs) -> list[Tensor]:
    """The float model's outputs, flat, split as its judge wants them."""
    outputs = tree_leaves(entry.model(*batch))
    return entry.judge(outputs) if entry.judge else outputs


def _kaiming(module: Any, generator: torch.Generator) -> None:
    fan_in = module.weight[0].numel()
    if isinstance(module, nn.ConvTranspose2d):
        fan_in = module.weight.shape[0] // module.groups * module.weight[0, 0].numel() // math.prod(module.stride)
    gain = 1.0 if isinstance(module, nn.Linear) else math.sqrt(2.0)
    module.weight.data.normal_(0, gain / math.sqrt(fan_in), generator=generator)
    if module.bias is not None:
        module.bias.data.normal_(0, 0.05, generator=generator)


def _orthogonal(module: nn.RNNBase) -> None:
    for name, parameter in module.named_parameters():
        if name.startswith("weight_hh"):
            for gate in parameter.data.split(module.hidden_size):
                nn.init.orthogonal_(gate)
        elif name.startswith("weight_ih"):
            nn.init.xavier_uniform_(parameter.data, gain=1.5)
