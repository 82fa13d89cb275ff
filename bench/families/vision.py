"""Nets of timm and torchvision, with images as small as each takes them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from bench import data
from bench.entry import Entry, Inputs
from bench.families.liven import liven
from bench.families.timm_nets import smallest_nets
from bench.packages import timm_library, torchvision_models

SIZES = (96, 128, 160, 192, 224, 240, 256, 320)
BATCHES = 4
# What has no family of its own in the registry, and another forward than the smallest net of its module.
TIMM_MORE = {"mobilenetv4_hybrid": "mobilenetv4_hybrid_medium", "mobilenetv4": "mobilenetv4_conv_small_035"}


def timm_families() -> dict[str, str]:
    return smallest_nets() | TIMM_MORE


# Fewer blocks of each kind, where the constructor takes one of these: the ops are the same. Odd blocks may differ.
SHALLOW: tuple[dict[str, Any], ...] = (
    {"depth": 2},
    *({"depths": (2, 1, 2, 1)[:n]} for n in (4, 3)),
    *({"layers": (1,) * n} for n in (4, 3)),
    {},
)


def timm_entry(net: str) -> Entry:
    """At the least size that both the constructor and a forward pass take."""
    create = timm_library().create_model
    options = next(o for o in SHALLOW if _constructs(net, o))
    if _constructs(net, {**options, "img_size": SIZES[1]}):
        made = ((_tried(lambda s=size: create(net, img_size=s, **options).eval(), size), size) for size in SIZES)
    else:
        model = create(net, **options).eval()
        made = ((_tried(lambda: model, size), size) for size in SIZES)
    found, size = next((m, s) for m, s in made if m is not None)
    return _of_images(found, size, f"{options or ''} {size} x {size}".strip())


def _constructs(net: str, options: dict[str, Any]) -> bool:
    try:
        with torch.device("meta"):
            timm_library().create_model(net, **options)
    except Exception as e:  # nets do not say which options they take
        return "meta tensor" in str(e)
    return True


def _tried(build: Any, size: int) -> nn.Module | None:
    try:
        model: nn.Module = build()
        with torch.no_grad():
            model(torch.randn(1, 3, size, size))
    except Exception:  # asked by trying: nets do not say which sizes they take
        return None
    return model


def _of_images(model: nn.Module, size: int, note: str) -> Entry:
    liven(model, [(data.images(8, size, seed=100),)])
    batches = data.image_batches(size, BATCHES)
    return Entry(model, batches[0], batches, note)


def torchvision_families() -> dict[str, str]:
    """The module that defines it -> the net with the fewest parameters, as its weights' metadata say."""
    models, found = torchvision_models(), dict[str, tuple[int, str]]()
    for name in models.list_models():
        family = models.get_model_builder(name).__module__.removeprefix("torchvision.models.")
        weights = [w.meta["num_params"] for w in models.get_model_weights(name)]
        if weights and not family.startswith("quantization"):
            found[family] = min(found.get(family, (min(weights), name)), (min(weights), name))
    return {family: name for family, (_, name) in found.items()}


def torchvision_entry(net: str) -> Entry:
    family = torchvision_models().get_model_builder(net).__module__.split(".")[2]
    return _BY_KIND.get(family, _image_net)(net)


def _built(net: str, **options: Any) -> nn.Module:
    return torchvision_models().get_model(net, weights=None, weights_backbone=None, **options).eval()


def _image_net(net: str) -> Entry:
    model = torchvision_models().get_model(net, weights=None).eval()
    size = next(s for s in SIZES if _tried(lambda: model, s) is not None)
    return _of_images(model, size, f"{size} x {size}")


class First(nn.Module):
    """One tensor of a dict, or the last of a list."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, *x: Tensor) -> Tensor:
        out = self.net(*x)
        return out["out"] if isinstance(out, dict) else out[-1] if isinstance(out, list) else out


class Detector(nn.Module):
    """Backbone and heads, with what they decode where the net has one stage; NMS is another program's."""

    def __init__(self, net: Any):
        super().__init__()
        self.backbone, self.head = net.backbone, net.head if hasattr(net, "head") else net.rpn.head

    def forward(self, x: Tensor) -> Any:
        found = self.backbone(x)
        return self.head(list(found.values()) if isinstance(found, OrderedDict | dict) else [found])


def _segmentation(net: str) -> Entry:
    return _of_images(First(_built(net, aux_loss=False) if "lraspp" not in net else _built(net)), 64, "64 x 64")


def _detection(net: str) -> Entry:
    size = 320 if "ssd" in net else 128
    return _of_images(Detector(_built(net)), size, f"{size} x {size}, without NMS")


def _video(net: str) -> Entry:
    model = torchvision_models().get_model(net, weights=None).eval()
    frames, size = (16, 224) if "mvit" in net else (16, 224) if net == "s3d" else (8, 64)
    batches: list[Inputs] = [(clip(frames, size, seed=i),) for i in range(BATCHES)]
    return Entry(liven(model, batches[:1]), batches[0], batches, f"{frames} frames, {size} x {size}")


def clip(frames: int, size: int, seed: int) -> Tensor:
    """Contiguous: the runtime refuses other strides."""
    return data.images(frames, size, seed=seed).transpose(0, 1)[None].contiguous()


def _flow(net: str) -> Entry:
    model = First(_built_flow(net))
    pairs: list[Inputs] = [tuple(data.images(2, 128, seed=i)[:, None]) for i in range(BATCHES)]
    return Entry(liven(model, pairs[:1]), pairs[0], pairs, "two images of 128 x 128, 2 updates")


def _built_flow(net: str) -> nn.Module:
    model: Any = torchvision_models().get_model(net, weights=None).eval()
    forward = model.forward
    model.forward = lambda a, b: forward(a, b, num_flow_updates=2)
    return model


_BY_KIND = {"segmentation": _segmentation, "detection": _detection, "video": _video, "optical_flow": _flow}
