"""Real architectures, narrow and at few pixels, on Arm's targets: one delegate each, executed, faithful.

The full ones are in the bench (bench/arm.py), beside the stock flow.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import ingot
from ingot.config.recipe import Recipe
from ingot.core.fx import constant_of, is_float, output_nodes
from ingot.rewrite.apply import rewrite_for
from ingot.targets.registry import find_target
from ingot.verify.check import run_artefact, run_quantized
from ingot.verify.reference.interpreter import DoubleInterpreter
from tests.support.models import images, settled
from tests.targets.test_arm import HOW, need

pytestmark = [pytest.mark.slow, pytest.mark.parts]
ARM = ("vgf", "ethos-u55-128", "ethos-u85-256")


def conv_norm(
    a: int, b: int, size: int = 3, stride: int = 1, groups: int = 1, act: type[nn.Module] = nn.ReLU6
) -> nn.Sequential:
    conv = nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(b), act())


class Inverted(nn.Module):
    """MobileNetV2's block; with a gate and hard swish it is V3's."""

    def __init__(self, width: int, gate: bool) -> None:
        super().__init__()
        act = nn.Hardswish if gate else nn.ReLU6
        self.up, self.mid = (
            conv_norm(width, 3 * width, 1, act=act),
            conv_norm(3 * width, 3 * width, groups=3 * width, act=act),
        )
        self.down = conv_norm(3 * width, width, 1, act=nn.Identity)
        squeeze = [
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(3 * width, 8, 1),
            nn.ReLU(),
            nn.Conv2d(8, 3 * width, 1),
            nn.Hardsigmoid(),
        ]
        self.gate = nn.Sequential(*squeeze) if gate else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.mid(self.up(x))
        return x + self.down(y if self.gate is None else y * self.gate(y))


class Shuffle(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            conv_norm(half, half, 1, act=nn.ReLU), conv_norm(half, half, groups=half, act=nn.Identity)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, changed = x.chunk(2, 1)
        both = torch.cat([kept, self.branch(changed)], 1)
        n, c, h, w = both.shape
        return both.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = conv_norm(width, width, act=nn.ReLU), conv_norm(width, width, act=nn.Identity)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.two(self.one(x)))


class Classifier(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = conv_norm(3, 16, stride=2), nn.Sequential(*blocks), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = conv_norm(3, 8, act=nn.ReLU), conv_norm(8, 16, stride=2, act=nn.ReLU)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.down(x)
        return self.out(torch.cat([skip, self.up(self.deep(skip))], 1))


class Yolo(nn.Module):
    """Boxes in pixels and scores of two levels, concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = conv_norm(3, 16, stride=2, act=nn.SiLU), conv_norm(16, 16, stride=2, act=nn.SiLU)
        self.boxes, self.scores = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 6, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        levels = [self.stem(x), self.down(self.stem(x))]
        boxes = torch.cat([self.boxes(y).flatten(2) for y in levels], 2).sigmoid() * 64
        return boxes, torch.cat([self.scores(y).flatten(2) for y in levels], 2).sigmoid()


class Transformer(nn.Module):
    """A small DeiT: class token, one block, head on the token."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, width, 4, stride=4), nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 17, width) * 0.3)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 3, 2 * width, activation="gelu", batch_first=True, norm_first=True) for _ in range(1))  # fmt: skip
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1) + self.places
        for layer in self.layers:
            y = layer(y)
        return self.head(self.norm(y)[:, 0])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(8, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0])


IMAGES = [(x,) for x in images(n=6)]
SEQUENCES = [(torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(i)),) for i in range(6)]
NETS = {
    "DeiT": (Transformer, IMAGES, 20),
    "MobileNetV2": (lambda: Classifier(Inverted(16, False), Inverted(16, False)), IMAGES, 25),
    "MobileNetV3": (lambda: Classifier(Inverted(16, True), Inverted(16, True)), IMAGES, 20),
    "ShuffleNetV2": (lambda: Classifier(Shuffle(16), Shuffle(16)), IMAGES, 25),
    "ResNet": (lambda: Classifier(Residual(16), Residual(16)), IMAGES, 25),
    "U-Net": (UNet, IMAGES, 30),
    "YOLO": (Yolo, IMAGES, 25),
    "GRU": (Recurrent, SEQUENCES, 30),
}


@pytest.mark.parametrize("name", NETS)
def test_one_delegate_executed(name: str) -> None:
    """Calibrated once for all three targets."""
    build, batches, least = NETS[name]
    torch.manual_seed(0)
    targets = [need(t) for t in ARM]
    castings = ingot.cast(
        settled(build(), batches), batches[0], target=targets, calibration=batches, recipe={"verify_batches": 2}
    )
    for target, casting in castings.items():
        assert (len(casting.delegates), casting.host_ops) == (1, ()), target
        assert HOW[target] in casting.check.executed_on
        assert min(o.sqnr_db for o in casting.check.outputs) >= least, target
        assert min(o.faithful_db for o in casting.check.outputs) >= 60, target


INT16 = {"scopes": [{"op": "*", "precision": "int16"}]}


class Fed(DoubleInterpreter):
    """The quantized graph, in which each op reads what the artefact's ops before it gave; and by how much it differs."""

    def __init__(self, module: torch.fx.GraphModule, made: dict[torch.fx.Node, torch.Tensor]) -> None:
        super().__init__(module, find_target("ethos-u85-256"))
        self.made, self.steps = made, {}

    def run_node(self, n: torch.fx.Node) -> object:
        out = super().run_node(n)
        if n in self.made:
            op = str(n.args[0].target)
            self.steps[op] = max(self.steps.get(op, 0.0), float((self.made[n] - out.double()).abs().max()))
            return self.made[n].to(out.dtype)
        return out


def showing_everything(net: nn.Module, batch: tuple[torch.Tensor, ...], target: str) -> torch.fx.GraphModule:
    """The lowered program with every intermediate value as output."""
    module = rewrite_for(ingot.capture(net, batch), find_target(target), Recipe()).program.module
    values = [n for n in module.graph.nodes if n.op == "call_function" and is_float(n) and constant_of(n) is None]
    next(n for n in module.graph.nodes if n.op == "output").args = (tuple(values),)
    module.recompile()
    return module


def steps_between(casting: ingot.Casting, batch: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """By op: the largest difference between artefact and quantized graph, in int16 steps."""
    quantized, given = casting.evidence.quantized, casting.evidence.program.flatten(batch)
    made = zip(output_nodes(quantized), run_artefact(casting.pte, casting.evidence, [given])[0], strict=True)
    stored = {n.args[0]: (x.double() / n.args[1]).round() for n, x in made if "dequantize" in str(n.target)}
    fed = Fed(quantized, stored)
    fed.run(*given)
    return fed.steps


# Before they are added, numbers are rounded to a 2048th of the coarser step.
MOST_STEPS = {"aten.add.Tensor": 1, "aten.sub.Tensor": 1}


@pytest.mark.parametrize("name", ["DeiT", "MobileNetV3", "U-Net", "YOLO"])
def test_each_int16_op_agrees_with_the_quantized_graph(name: str) -> None:
    build, batches, _ = NETS[name]
    torch.manual_seed(0)
    target = need("ethos-u85-256")
    shown = showing_everything(settled(build(), batches), batches[0], target)
    casting = ingot.cast(shown, batches[0], target=target, calibration=batches, recipe=INT16, on_mismatch="keep")
    steps = steps_between(casting, batches[0])
    assert len(steps) >= 4
    assert {op: n for op, n in steps.items() if n > MOST_STEPS.get(op, 0)} == {}


# YOLO computes its stem twice: two equal convolutions, which Vela must not see as one with two results.
@pytest.mark.parametrize(("name", "on"), [*((name, "ethos-u85-256") for name in NETS), ("YOLO", "ethos-u55-128")])
def test_int16_outputs_are_within_one_step_of_the_quantized_graph(name: str, on: str) -> None:
    build, batches, _ = NETS[name]
    torch.manual_seed(0)
    casting = ingot.cast(settled(build(), batches), batches[0], target=need(on), calibration=batches, recipe=INT16)
    given = [casting.evidence.program.flatten(b) for b in batches]
    made, meant = run_artefact(casting.pte, casting.evidence, given), run_quantized(casting.evidence, given)
    for i, last in enumerate(output_nodes(casting.evidence.quantized)):
        assert max(float((a[i] - b[i]).abs().max()) for a, b in zip(made, meant, strict=True)) <= 1.01 * last.args[1]


def test_what_vela_refuses_in_int16_is_int8() -> None:
    """A transposed convolution on U55, which the partitioner takes in int16. The other ops are int16."""
    _, batches, _ = NETS["U-Net"]
    torch.manual_seed(0)
    target = need("ethos-u55-128")
    casting = ingot.cast(settled(UNet(), batches), batches[0], target=target, calibration=batches, recipe=INT16)
    assert (len(casting.delegates), casting.host_ops) == (1, ())
    dtypes = {d.op: d.qparams.dtype for d in casting.plan if d.point.operand == 0 and d.qparams}
    assert dtypes["aten.conv_transpose2d.input"] == "int8"
    assert dtypes["aten.conv2d.default"] == "int16"
    assert "Vela refuses it" in casting.plan.why("conv_transpose2d")
