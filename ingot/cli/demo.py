"""`ingot demo`: train a small CNN on handwritten digits, cast it, and count what the artefact gets right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ingot.core.progress import Progress, Tick
from ingot.errors import InputError
from ingot.result.casting import Casting
from ingot.result.report import text as report

EPOCHS, CALIBRATION = 12, 100


@dataclass(frozen=True)
class Digits:
    """8×8 grey images in 0..1 and what they show; a third of them is never trained on."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


class Net(nn.Module):
    """A bit of everything: conv-bn-relu, a residual add, a skip cat, both kinds of pooling, a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = _conv(1, 16), _conv(16, 16)
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
        self.branch, self.merge = _conv(16, 32), _conv(48, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        x = F.relu(x + self.second(self.first(x)))
        x = F.max_pool2d(x, 2)
        x = self.merge(torch.cat([x, self.branch(x)], dim=1))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def _conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


def load_digits() -> Digits:
    """The handwritten digits that come with scikit-learn."""
    try:
        from sklearn import datasets, model_selection
    except ImportError as e:
        raise InputError("the demo needs scikit-learn", why=str(e), hint="pip install 'scikit-learn>=1.4'") from e
    raw: Any = datasets.load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(raw.target)
    split = model_selection.train_test_split
    train, test = split(range(len(labels)), test_size=1 / 3, random_state=0, stratify=raw.target)
    return Digits(images[train], labels[train], images[test], labels[test])


def trained(digits: Digits, tick: Tick) -> nn.Module:
    """A few seconds of Adam, the same every time."""
    with torch.random.fork_rng(), _one_thread():
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        for epoch in range(EPOCHS):
            _epoch(net, optimizer, digits)
            tick(epoch + 1, EPOCHS)
    return net.eval()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Images this small are trained faster without the cost of sharing the work out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _epoch(net: nn.Module, optimizer: torch.optim.Optimizer, digits: Digits) -> None:
    for chosen in torch.randperm(len(digits.train)).split(64):
        optimizer.zero_grad()
        F.cross_entropy(net(digits.train[chosen]), digits.train_labels[chosen]).backward()
        optimizer.step()


@dataclass(frozen=True)
class Outcome:
    """What the demo showed: shares of the test images named rightly, and bytes of weights and of the artefact."""

    casting: Casting
    images: int
    top1_float: float
    top1_artefact: float
    bytes_float: int

    @property
    def good(self) -> bool:
        """The artefact may lose one point, no more."""
        return self.top1_artefact >= self.top1_float - 0.01


def run_demo() -> int:
    """Train, cast, run, and print the table; 3 if the artefact lost accuracy."""
    outcome = demonstrate(Progress())
    print(text(outcome), flush=True)
    return 0 if outcome.good else 3


def demonstrate(progress: Progress) -> Outcome:
    """Train, cast, and count on images that nobody has seen before."""
    digits = load_digits()
    with progress.step("train") as tick:
        net = trained(digits, tick)
    casting = _cast(net, digits, progress)
    with progress.step("test"):
        shares = _top1_float(net, digits), _top1_artefact(casting, digits)
    float_bytes = sum(t.numel() * t.element_size() for t in net.state_dict().values())
    return Outcome(casting, len(digits.test), *shares, float_bytes)


def as_data(outcome: Outcome) -> dict[str, Any]:
    """The same for JSON."""
    keys = ("images", "top1_float", "top1_artefact", "bytes_float")
    return {**{k: getattr(outcome, k) for k in keys}, "casting": report.summary_facts(outcome.casting)}


def text(outcome: Outcome) -> str:
    """The verdict, and what it costs and gets right, float beside artefact."""
    casting = outcome.casting
    sqnr = casting.check.outputs[0].sqnr_db if casting.check else float("nan")
    rows = [
        ("", "float", "artefact"),
        ("delegates", "", str(len(casting.delegates))),
        ("host ops", "", str(len(casting.host_ops))),
        ("bytes", f"{outcome.bytes_float:,}", f"{len(casting.pte):,}"),
        ("SQNR", "", report.decibel(sqnr)),
        (f"top-1 of {outcome.images}", f"{outcome.top1_float:.2%}", f"{outcome.top1_artefact:.2%}"),
    ]
    table = "\n".join(f"{name:<14}{a:>12}{b:>12}" for name, a, b in rows)
    return f"{report.summary(casting)}\n\n{table}"


def _cast(net: nn.Module, digits: Digits, progress: Progress) -> Casting:
    from ingot import api

    batches = [(image,) for image in digits.train[:CALIBRATION].split(1)]
    casting: Casting = api.cast(net, batches[0], target="xnnpack", calibration=batches, progress=progress)
    return casting


def _top1_float(net: nn.Module, digits: Digits) -> float:
    with torch.no_grad():
        return _right(net(digits.test), digits)


def _top1_artefact(casting: Casting, digits: Digits) -> float:
    from ingot.runtime.worker import run_pte

    outputs = run_pte(casting.pte, [(image,) for image in digits.test.split(1)], fresh=False)
    return _right(torch.cat([o[0] for o in outputs]), digits)


def _right(logits: Tensor, digits: Digits) -> float:
    return (logits.argmax(1) == digits.test_labels).float().mean().item()
