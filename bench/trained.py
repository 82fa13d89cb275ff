"""Nets trained here on real MNIST in under a minute each: what quantization costs a net that has learnt something."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.entry import Entry, Inputs
from bench.mnist import mnist
from bench.nets import conv_bn
from bench.settle import settle

CALIBRATION, HELD_OUT, EXAM = 32, 64, 1000
WEIGHTS = Path(__file__).resolve().parent / "results" / "weights"

Batches = Callable[[torch.Generator], tuple[Tensor, Tensor]]  # draws inputs and what they should give
Loss = Callable[[Tensor, Tensor], Tensor]
View = Callable[[Tensor], Tensor]


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first = [conv_bn(1, 16, act=nn.ReLU), conv_bn(16, 32, act=nn.ReLU), nn.MaxPool2d(2)]
        second = [conv_bn(32, 64, act=nn.ReLU), nn.MaxPool2d(2), conv_bn(64, 64, act=nn.ReLU)]
        self.features = nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    """Pre-norm: attention, then a GELU MLP, each added to what it read."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(dim), Attention(dim, heads), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    """16 patches of 7x7 and a class token, on which the head looks."""

    def __init__(self, dim: int = 64, depth: int = 4, heads: int = 4):
        super().__init__()
        self.patches = nn.Conv2d(1, dim, 7, 7)
        self.token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.position = nn.Parameter(torch.randn(1, 17, dim) * 0.02)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class Skip(nn.Module):
    """A denoiser: pixels 0..255 in, clean pixels 0..1 out; the skips carry what the encoder saw, at last the pixels.

    Pixels up to 255 and features of a few units meet in one concatenation: one scale for both costs the features.
    """

    def __init__(self, width: int = 16):
        super().__init__()
        w = width
        self.first, self.second = conv_bn(1, w, act=nn.ReLU), conv_bn(w, 2 * w, act=nn.ReLU)
        self.bottom = conv_bn(2 * w, 4 * w, act=nn.ReLU)
        self.up1, self.merge1 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), conv_bn(4 * w, 2 * w, act=nn.ReLU)
        self.up2, self.merge2 = nn.ConvTranspose2d(2 * w, w, 2, 2), conv_bn(2 * w + 1, w, act=nn.ReLU)
        self.head = nn.Conv2d(w, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.first(x)
        coarse = self.second(F.max_pool2d(fine, 2))
        y = self.up1(self.bottom(F.max_pool2d(coarse, 2)))
        y = self.up2(self.merge1(torch.cat([coarse, y], 1)))
        return self.head(self.merge2(torch.cat([x, fine, y], 1)))


def mnist_cnn() -> Entry:
    return _classifier("mnist_cnn", Cnn(), steps=800, rate=3e-3)


def mnist_vit() -> Entry:
    return _classifier("mnist_vit", Vit(), steps=2200, rate=2e-3)


def mnist_skip() -> Entry:
    clean = mnist("train")[0]

    def batches(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = clean[torch.randint(len(clean), (32,), generator=generator)]
        return _noisy(x, generator), x

    net = _trained("mnist_skip", Skip(), batches, F.mse_loss, steps=350, rate=3e-3)
    test, generator = mnist("test")[0][:EXAM], torch.Generator().manual_seed(2)
    noisy = _noisy(test, generator)
    note = f"denoiser, PSNR {_psnr(noisy / 255, test):.1f} dB in, {_psnr(net(noisy), test):.1f} dB out on unseen"
    calibration = _each(_noisy(clean[:CALIBRATION], generator))
    return Entry(net, calibration[0], calibration, f"trained on MNIST; {note}", held_out=_each(noisy[:HELD_OUT]))


def _classifier(name: str, net: nn.Module, steps: int, rate: float, shown: View = lambda x: x) -> Entry:
    images, labels = mnist("train")

    def batches(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pick = torch.randint(len(images), (64,), generator=generator)
        return shown(images[pick]), labels[pick]

    net = _trained(name, net, batches, F.cross_entropy, steps, rate)
    test, truth = (t[:EXAM] for t in mnist("test"))
    test = shown(test)
    accuracy = (net(test).argmax(1) == truth).float().mean().item()
    calibration, note = _each(shown(images[:CALIBRATION])), f"trained on MNIST, top-1 {accuracy:.1%} on {EXAM} unseen"
    return Entry(net, calibration[0], calibration, note, held_out=_each(test[:HELD_OUT]), exam=(test, truth))


def in_colour(name: str, net: nn.Module, size: int, steps: int, rate: float = 2e-3) -> Entry:
    """A net for colour pictures with ten classes, trained on digits that were made as large and as wide as it wants."""

    def shown(x: Tensor) -> Tensor:
        return F.interpolate(x, size=(size, size), mode="bilinear").expand(-1, 3, -1, -1).contiguous()

    return _classifier(name, net, steps, rate, shown)


def _trained(name: str, net: nn.Module, batches: Batches, loss: Loss, steps: int, rate: float) -> nn.Module:
    """The net in eval mode, its weights from the last run if this file has not changed since."""
    kept = WEIGHTS / f"{name}-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]}.pt"
    if kept.exists():
        net.load_state_dict(torch.load(kept, weights_only=True))
    else:
        _train(net, batches, loss, steps, rate)
        settle(net, _drawn(batches, 16))  # some norms follow their running statistics slower than this training lasts
        kept.parent.mkdir(parents=True, exist_ok=True)
        torch.save(net.state_dict(), kept)
    return net.eval().requires_grad_(False)


def _train(net: nn.Module, batches: Batches, loss: Loss, steps: int, rate: float) -> None:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(net.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(steps):
        x, wanted = batches(generator)
        optimizer.zero_grad()
        loss(net(x), wanted).backward()
        optimizer.step()
        schedule.step()


def _drawn(batches: Batches, count: int) -> Iterator[Inputs]:
    generator = torch.Generator().manual_seed(3)
    return ((batches(generator)[0],) for _ in range(count))


def _noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    """Noise as strong as half the ink, in the 0..255 of a camera."""
    return ((x + 0.5 * torch.randn(x.shape, generator=generator)).clamp(0, 1) * 255).round()


def _psnr(got: Tensor, wanted: Tensor) -> float:
    return -10 * F.mse_loss(got, wanted).log10().item()


def _each(images: Tensor) -> list[Inputs]:
    return [(image.unsqueeze(0),) for image in images]
