"""The models of the Arm bench: those of the zoo at sizes that Arm's reference model runs in seconds, and two more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from bench import data, nets, trained, zoo
from bench.entry import Entry, Inputs
from bench.packages import torchvision_models
from bench.settle import settle, spread

MODELS: dict[str, Callable[[], Entry]] = {}
JUDGED = 24  # batches at most: the reference model takes up to a few seconds for one


def model(build: Callable[[], Entry]) -> Callable[[], Entry]:
    MODELS[build.__name__] = build
    return build


def build(name: str) -> Entry:
    """Build one model, always the same one, with no more data than is judged on."""
    torch.manual_seed(0)
    entry = MODELS[name]()
    seen, held_out = _copied(entry.calibration), _copied((entry.held_out or [])[:JUDGED])
    return replace(entry, example_inputs=seen[0], calibration=seen, held_out=held_out, exam=None)


def _copied(batches: list[Inputs]) -> list[Inputs]:
    """A view of MNIST would be saved with all of MNIST."""
    return [tuple(x.clone() for x in batch) for batch in batches]


class Deit(nn.Module):
    """DeiT-tiny's blocks over fewer patches, its attention written as timm writes it."""

    def __init__(self, size: int = 96, patch: int = 16, dim: int = 192, depth: int = 12, heads: int = 3):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, dim) * 0.5)
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, dim) * 0.3)
        self.blocks = nn.Sequential(*(trained.Block(dim, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 1000)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


Move = Callable[[Tensor], Tensor]
TO_LAST: tuple[tuple[Move, Move], ...] = (  # the same two moves, channels to the end and back, in three spellings
    (lambda x: torch.moveaxis(x, 1, -1), lambda x: torch.movedim(x, -1, 1)),
    (lambda x: x.swapaxes(1, 2).swapaxes(2, 3), lambda x: x.swapaxes(2, 3).swapaxes(1, 2)),
    (lambda x: torch.einsum("bchw->bhwc", x), lambda x: torch.einsum("bhwc->bchw", x)),
)


class Moves(nn.Module):
    """One ConvNeXt block; `spelling` says how its layout changes are written."""

    def __init__(self, dim: int, spelling: int):
        super().__init__()
        self.spelling = spelling
        self.depthwise, self.norm = nn.Conv2d(dim, dim, 7, padding=3, groups=dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.scale = nn.Parameter(torch.empty(dim).uniform_(0.1, 0.6))

    def forward(self, x: Tensor) -> Tensor:
        to_last, back = TO_LAST[self.spelling]
        return x + back(self.scale * self.mlp(self.norm(to_last(self.depthwise(x)))))


class ConvNextMoves(nn.Module):
    def __init__(self, dim: int = 48, classes: int = 100):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 4, 4)
        self.blocks = nn.Sequential(*(Moves(dim, i) for i in range(len(TO_LAST))))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(x)).mean((2, 3))))


@model
def deit_tiny() -> Entry:
    net = Deit()
    return zoo.classifier(net, net.head, "DeiT-tiny's 12 blocks on 36 patches of 96x96, random weights", 96)


@model
def mobilenet_v2() -> Entry:
    return trained.in_colour("mobilenet_v2", torchvision_models().mobilenet_v2(num_classes=10), size=64, steps=250)


@model
def mobilenet_v3_small() -> Entry:
    net = torchvision_models().mobilenet_v3_small(num_classes=10)
    return trained.in_colour("mobilenet_v3_small", net, size=64, steps=400)


@model
def shufflenet_v2() -> Entry:
    return trained.in_colour(
        "shufflenet_v2", torchvision_models().shufflenet_v2_x1_0(num_classes=10), size=64, steps=300
    )


@model
def resnet18() -> Entry:
    return trained.in_colour("resnet18", torchvision_models().resnet18(num_classes=10), size=64, steps=120)


@model
def unet() -> Entry:
    net = settle(spread(nets.UNet()), zoo.image_chunks(64))
    batches = data.image_batches(64)
    return Entry(net, batches[0], batches, "4 levels, skips by concatenation, transposed convolutions, 64x64")


@model
def yolo() -> Entry:
    net = settle(spread(nets.Yolo()), zoo.image_chunks(96))
    batches = data.image_batches(96)
    note = "CSP backbone, top-down pyramid, 3 heads, 96x96; SQNR is the worse of boxes and scores"
    return Entry(net, batches[0], batches, note, judge=nets.boxes_and_scores)


@model
def gru() -> Entry:
    batches = data.signal_batches(steps=8, features=40)
    net = spread(nets.Recurrent(nn.GRU, hidden=64)).eval()
    return Entry(net, batches[0], batches, "2 layers of 64, 8 steps, a linear head on each")


@model
def convnext_moves() -> Entry:
    """Three ConvNeXt blocks: moveaxis and movedim, swapaxes, einsum."""
    return trained.in_colour("convnext_moves", ConvNextMoves(classes=10), size=64, steps=300)


for _build in (trained.mnist_cnn, trained.mnist_vit, trained.mnist_skip, zoo.digits_cnn):
    model(_build)
