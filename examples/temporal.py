"""A temporal denoiser: the previous frame is sampled along motion vectors and merged with the noisy current frame.

`python examples/temporal.py out/` casts it for Arm GPUs, runs it as a scenario and draws out/temporal.png.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

SIZE, NOISE = 128, 0.25
RECIPE = Path(__file__).with_suffix(".toml")


class Temporal(nn.Module):
    """Convolutions correct the motion vectors and merge the sampled frame."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.see, self.flow = nn.Conv2d(6, width, 3, padding=1), nn.Conv2d(width, 2, 3, padding=1)
        self.merge, self.out = nn.Conv2d(6 + width, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, frame: torch.Tensor, previous: torch.Tensor, motion: torch.Tensor) -> torch.Tensor:
        seen = F.relu(self.see(torch.cat([frame, previous], 1)))
        height, width = frame.shape[2:]
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
        grid = torch.stack([xs, ys]) + motion + torch.tanh(self.flow(seen)) * 0.05
        warped = F.grid_sample(previous, grid.permute(0, 2, 3, 1), padding_mode="border", align_corners=True)
        merged = F.relu(self.merge(torch.cat([frame, warped, seen], 1)))
        return torch.tanh(self.out(merged))


# ---- frames: windows that move over a photo ----


def photo() -> torch.Tensor:
    from sklearn.datasets import load_sample_image

    pixels = np.asarray(load_sample_image("flower.jpg"), dtype=np.float32)
    return torch.from_numpy(pixels).permute(2, 0, 1)[None] / 127.5 - 1


def scene(picture: torch.Tensor, size: int, seed: int) -> tuple[torch.Tensor, ...]:
    """A noisy frame, the clean previous frame, inexact motion vectors, and the clean frame."""
    generator = torch.Generator().manual_seed(seed)
    high, wide = (int(torch.randint(8, s - size - 8, (), generator=generator)) for s in picture.shape[2:])
    dy, dx = (int(d) for d in torch.randint(-6, 7, (2,), generator=generator))
    clean = picture[..., high : high + size, wide : wide + size]
    previous = picture[..., high + dy : high + dy + size, wide + dx : wide + dx + size]
    frame = (clean + NOISE * torch.randn(clean.shape, generator=generator)).clamp(-1, 1)
    moved = torch.tensor([-dx, -dy]).view(1, 2, 1, 1) * 2 / (size - 1)
    motion = moved + 0.01 * torch.randn(1, 2, size, size, generator=generator)
    return frame, previous, motion, clean


def batches() -> list[tuple[torch.Tensor, ...]]:
    picture = photo()
    return [scene(picture, SIZE, seed)[:3] for seed in range(8)]


def build() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Trained for some seconds on small windows."""
    torch.manual_seed(0)
    net, picture = Temporal(), photo()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for step in range(200):
        parts = [scene(picture, 32, 1000 + 8 * step + i) for i in range(8)]
        *given, clean = (torch.cat(p) for p in zip(*parts, strict=True))
        optimizer.zero_grad()
        F.mse_loss(net(*given), clean).backward()
        optimizer.step()
    return net.eval(), batches()[0]


# ---- the picture ----


def paint(file: Path, panels: dict[str, torch.Tensor]) -> None:
    from PIL import Image, ImageDraw

    sheet = Image.new("RGB", (len(panels) * (SIZE * 2 + 8) - 8, SIZE * 2 + 20), "white")
    for i, (name, panel) in enumerate(panels.items()):
        pixels = ((panel[0].permute(1, 2, 0).clamp(-1, 1) + 1) * 127.5).round().byte().numpy()
        tile = Image.fromarray(pixels).resize((SIZE * 2, SIZE * 2), Image.Resampling.NEAREST)
        sheet.paste(tile, (i * (SIZE * 2 + 8), 20))
        ImageDraw.Draw(sheet).text((i * (SIZE * 2 + 8), 4), name, fill="black")
    sheet.save(file)


def psnr(clean: torch.Tensor, other: torch.Tensor) -> float:
    return float(10 * torch.log10(4 / (clean - other).square().mean()))


def main(folder: Path) -> None:
    import ingot
    from ingot.result.scenario import run_scenario_folder

    (net, example), unseen = build(), scene(photo(), SIZE, 99)
    casting = ingot.cast(net, example, target="vgf", calibration=batches(), recipe=RECIPE)
    casting.save(folder / "temporal.pte")
    casting.scenario(folder / "scenario", [unseen[:3]])
    (output,) = run_scenario_folder(folder / "scenario", keep=folder)
    made: Any = np.load(folder / "output_0_0.npy")  # N, H, W, C in steps of 1/127
    got, wanted = torch.from_numpy(made).permute(0, 3, 1, 2) / 127, net(*unseen[:3]).detach()
    paint(
        folder / "temporal.png",
        {
            f"now, noisy: {psnr(unseen[3], unseen[0]):.1f} dB": unseen[0],
            "the frame before": unseen[1],
            f"float: {psnr(unseen[3], wanted):.1f} dB": wanted,
            f"scenario: {psnr(unseen[3], got):.1f} dB": got,
            "difference, 16 times": (got - wanted) * 16,
        },
    )
    print(f"{[d.backend for d in casting.delegates]}, {casting.check.outputs[0].sqnr_db:.1f} dB to float")
    print(f"scenario off by at most {output.steps:g} steps; {folder / 'temporal.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out"))
