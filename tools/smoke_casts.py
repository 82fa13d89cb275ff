"""Small casts, each with its outcome in one line of JSON: what `tools.other_versions` runs in another environment."""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn


class ConvNet(nn.Module):
    """Convolutions, a join, a residual connection, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Conv2d(8, 8, 1),
        )
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        joined = torch.relu(self.norm(torch.cat([self.left(x) + x, self.right(x)], 1)))
        return self.head(joined.mean((2, 3)))


class Encoder(nn.Module):
    """A transformer block as it is usually written."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x))


def batches(*shape: int) -> list[tuple[Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(shape),) for _ in range(4)]


NETS: dict[str, tuple[Callable[[], nn.Module], list[tuple[Tensor]]]] = {
    "CNN": (ConvNet, batches(1, 3, 16, 16)),
    "transformer": (Encoder, batches(1, 12, 32)),
}
CASES = [
    ("CNN", "xnnpack", ""), ("transformer", "xnnpack", ""), ("transformer", "xnnpack", "8da4w"),
    ("CNN", "ethos-u55-128", ""), ("CNN", "ethos-u55-128", "int16"), ("transformer", "ethos-u85-256", ""),
    ("CNN", "vgf", ""), ("transformer", "vulkan", "4w"),
]  # fmt: skip


def outcome(net: str, target: str, how: str) -> dict[str, object]:
    """`ok` with SQNR, `refused` with Ingot's error, or `bare` with any other exception."""
    from ingot.errors import IngotError

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result, said = "ok", _cast(net, target, how)
        except IngotError as e:
            result, said = "refused", str(e)
        except Exception as e:
            traceback.print_exc()
            result, said = "bare", f"{type(e).__name__}: {e}"
    notes = [str(w.message) for w in caught if "Ingot" in str(w.message) or "not repaired" in str(w.message)]
    return {"net": net, "target": target, "how": how, "outcome": result, "said": said, "notes": notes}


def _cast(net: str, target: str, how: str) -> str:
    import ingot

    torch.manual_seed(0)
    make, data = NETS[net]
    given: dict[str, object] = {"weights": how} if how.endswith("w") else {}
    if how == "int16":
        given = {"recipe": {"scopes": [{"op": "*", "precision": "int16"}]}}
    casting = ingot.cast(make().eval(), data[0], target=target, calibration=data, **given)  # type: ignore[call-overload]
    with tempfile.TemporaryDirectory() as folder:
        casting.report(Path(folder) / "report.html")
    worst = min(o.sqnr_db for o in casting.check.outputs)
    return f"{worst:.0f} dB, {len(casting.delegates)} delegates, {len(casting.host_ops)} host ops"


if __name__ == "__main__":
    for case in CASES:
        print(json.dumps(outcome(*case)))
        sys.stdout.flush()
