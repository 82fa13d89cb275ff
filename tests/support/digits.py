"""A small net with cats and a residual, fitted to scikit-learn's digits."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


class Skip(nn.Module):
    """Concatenation, data movement and a residual: all that shares a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(7, 6, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(6), nn.Linear(6 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        y = y + torch.relu(self.norm(self.second(torch.cat([y, x * 4], 1))))
        return self.head(nn.functional.max_pool2d(y, 2).moveaxis(1, -1).flatten(1))


def digits() -> tuple[Tensor, Tensor]:
    x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    return (x.float() / 16).view(-1, 1, 8, 8), y


def fitted(x: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(0)
    net = Skip()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for i in range(60):
        pick = torch.arange(i * 64, i * 64 + 64) % 1500
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()
