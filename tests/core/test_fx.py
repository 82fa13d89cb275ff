"""The source location of a node: the user's line, else the module path, else a line of torch; operands of a trace."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node

import ingot
from ingot.core.fx import calls, distinct_values, module_path, nearest_source, source_of

pytestmark = pytest.mark.smoke
X = torch.zeros(1, 3, 8, 8)
TORCH = '  File "/v/site-packages/torch/nn/modules/conv.py", line 565, in forward\n'
LIBRARY = '  File "/v/site-packages/torchvision/models/resnet.py", line 92, in forward\n'
USER = '  File "/home/me/torch/net.py", line 41, in forward\n'
GENERATED = '  File "<eval_with_key>.1", line 7, in forward\n'


def node(*frames: str, path: str | None = None) -> Node:
    created = Graph().placeholder("x")
    created.meta["stack_trace"] = "".join(frames)
    if path is not None:
        created.meta["nn_module_stack"] = {"": ("", "Net"), path: (path, "Conv2d")}
    return created


@pytest.mark.parametrize(
    ("frames", "path", "source"),
    [
        ((USER, TORCH), "layers.0", "net.py:41"),
        ((LIBRARY, TORCH, LIBRARY, TORCH), "layer1.0.conv1", "resnet.py:92"),
        ((USER, LIBRARY, TORCH), "backbone.conv1", "resnet.py:92"),
        ((TORCH, USER, GENERATED), "0", "net.py:41"),
        ((TORCH,), "layers.0.conv", "layers.0.conv"),
        ((), "layers.0.conv", "layers.0.conv"),
        ((TORCH,), "", "conv.py:565"),
        ((TORCH,), None, "conv.py:565"),
        ((), None, "?"),
    ],
)
def test_source(frames: tuple[str, ...], path: str | None, source: str) -> None:
    assert source_of(node(*frames, path=path)) == source


def sources(model: nn.Module) -> list[str]:
    return [source_of(n) for n in calls(ingot.capture(model.eval(), (X,)).module)]


def test_layers_of_a_sequential_have_their_path() -> None:
    inner = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())
    assert sources(nn.Sequential(nn.Conv2d(3, 4, 1), inner)) == ["0", "1.0", "1.1"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.ReLU())])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](x) + 1


def test_users_code_has_its_line() -> None:
    line = Net.forward.__code__.co_firstlineno + 1
    assert sources(Net()) == [f"test_fx.py:{line}"] * 2


def test_module_path() -> None:
    program = ingot.capture(Net().eval(), (X,))
    assert [module_path(n) for n in calls(program.module)] == ["layers.0.0", ""]
    assert module_path(node()) == ""


def test_a_librarys_model_has_the_librarys_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    source = "from torch import nn\nclass Net(nn.Sequential):\n    def forward(self, x):\n        return self[0](x)\n"
    (site / "some_library.py").write_text(source)
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "some_library", raising=False)
    assert sources(import_module("some_library").Net(nn.ReLU())) == ["some_library.py:4"]


def test_an_op_that_a_pass_inserted_has_the_line_of_the_op_that_it_feeds() -> None:
    graph = Graph()
    before = graph.placeholder("x")
    inserted = graph.call_function(torch.neg, (before,))
    inserted.meta["stack_trace"] = TORCH
    reader = graph.call_function(torch.relu, (graph.call_function(torch.abs, (inserted,)),))
    assert nearest_source(inserted) == "conv.py:565"  # nobody has a line of the user
    reader.meta["stack_trace"] = USER
    assert nearest_source(inserted) == "net.py:41"


def test_operands_that_share_a_fake_value_are_traced_as_two() -> None:
    """Passes reuse the fake value of an equal op: two reshapes of alike tensors have one between them."""
    with FakeTensorMode():
        shared = torch.empty(2, 3)
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(name) for name in ("x", "y")]
    for node in nodes:
        node.meta["val"] = shared
    x, y = distinct_values(nodes)
    assert x is not y
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
