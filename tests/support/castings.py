"""A casting made of given bytes: it can be verified and saved, and nothing is lowered."""

from __future__ import annotations

import torch
from torch import nn

import ingot
from ingot.config.recipe import Recipe
from ingot.core.artefact import ProgramIO, TensorInfo
from ingot.result.casting import Casting
from ingot.targets.registry import find_target
from ingot.verify.check import Evidence

X = torch.zeros(1, 3, 8, 8)


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()


def lowered(pte: bytes) -> Casting:
    """A casting of these bytes, without the seconds that lowering takes."""
    program = ingot.capture(net(), (X,))
    io = ProgramIO((TensorInfo("x", "float32", tuple(X.shape)),), (TensorInfo("y", "float32", ()),))
    evidence = Evidence(program, program.module, find_target("xnnpack"), Recipe(), io)
    return Casting("xnnpack", pte, (), (), io, ingot.Plan("xnnpack", "f00", ()), evidence=evidence)
