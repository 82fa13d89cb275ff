"""Several dynamic dimensions at once: one delegate, and right at sizes that no batch had."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import ingot
from ingot.core.fx import copy_graph_module
from ingot.core.symbolic_sizes import symbolic_count
from ingot.rewrite import slice_as_linear, split_dims
from ingot.verify import check as check_module

N, L = Dim("n", min=1, max=4), Dim("l", min=3, max=24)


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Hardswish(), nn.Conv2d(8, 16, 1))
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.body(self.stem(x)).mean((2, 3)))
        return y


def _encoder(layers: int = 2) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


def test_an_encoder_of_any_batch_and_length_is_one_delegate() -> None:
    batches = [(torch.randn(2, 4 + i, 16),) for i in range(4)]  # 4 = 2 heads * batch 2: sizes equal by accident
    casting = ingot.cast(_encoder(), batches[0], target="xnnpack", calibration=batches, dynamic_shapes=({0: N, 1: L},))
    assert (len(casting.delegates), len(casting.host_ops)) == (1, 0), [h.op for h in casting.host_ops]
    assert casting.check is not None
    assert any("(1, 3, 16)" in note and "(4, 24, 16)" in note for note in casting.check.notes)
    for n, length in ((1, 3), (3, 7), (2, 12), (4, 5), (4, 24)):
        check = ingot.verify(casting, [(torch.randn(n, length, 16),)])
        assert check.passed, (n, length, check.outputs)


@pytest.mark.parametrize("dynamic", [{0: N}, {1: L}], ids=["batch", "length"])
def test_one_dynamic_dimension_keeps_attention_whole(dynamic: Any) -> None:
    sizes = [(2 + i if 0 in dynamic else 2, 6 + i if 1 in dynamic else 6) for i in range(2)]
    batches = [(torch.randn(*s, 16),) for s in sizes]
    casting = ingot.cast(_encoder(1), batches[0], target="xnnpack", calibration=batches, dynamic_shapes=(dynamic,))
    assert (len(casting.delegates), len(casting.host_ops)) == (1, 0), [h.op for h in casting.host_ops]


def test_a_cnn_of_any_batch_height_and_width_is_one_delegate() -> None:
    torch.manual_seed(0)
    h, w = Dim("h", min=16, max=48), Dim("w", min=16, max=48)
    batches = [(torch.randn(2, 3, 16 + 4 * i, 24),) for i in range(1, 4)]
    casting = ingot.cast(
        Cnn().eval(), batches[0], target="xnnpack", calibration=batches, dynamic_shapes=({0: N, 2: h, 3: w},)
    )
    assert (len(casting.delegates), len(casting.host_ops)) == (1, 0), [h.op for h in casting.host_ops]
    for shape in ((1, 3, 16, 16), (4, 3, 48, 48), (3, 3, 17, 31)):
        assert ingot.verify(casting, [(torch.randn(*shape),)]).passed, shape


def test_sizes_that_are_equal_by_accident_stay_apart() -> None:
    program = ingot.capture(_encoder(1), (torch.randn(2, 4, 16),), dynamic_shapes=({0: N, 1: L},))
    (x,) = [n.meta["val"] for n in program.module.graph.nodes if n.op == "placeholder"]
    assert len({str(s) for s in x.shape[:2]}) == 2
    module: Any = program.module
    for n, length in ((1, 3), (3, 11)):
        x = torch.randn(n, length, 16)
        torch.testing.assert_close(module(x)[0], program.reference(x)[0], rtol=1e-4, atol=1e-5)


class Heads(nn.Module):
    """Random splits, permutations and joins of a value with two dynamic sizes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.linear, self.table = seed, nn.Linear(24, 24), nn.Parameter(torch.randn(4, 1, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        y = self.linear(x).view(b, n, 4, 6).transpose(1, 2)
        if self.seed & 1:
            y = y + self.table
        if self.seed & 2:
            y = torch.cat([-y[..., 3:], y[..., :3]], -1)
        if self.seed & 4:
            y = (y @ y.transpose(-2, -1)).softmax(-1) @ y
        if self.seed & 8:
            q = x.reshape(b, n, 2, 12).permute(2, 0, 1, 3)[1]
            y = y + q.reshape(b, n, 4, 3).transpose(1, 2).repeat(1, 1, 1, 2)
        z: torch.Tensor = y.transpose(1, 2).reshape(b, n, 24) + x
        return z.reshape(-1, 24).tanh().view(b, n, 24)


@pytest.mark.parametrize("seed", range(16))
def test_parts_compute_the_same_at_every_size(seed: int) -> None:
    torch.manual_seed(seed)
    program = ingot.capture(Heads(seed).eval(), (torch.randn(2, 8, 24),), dynamic_shapes=({0: N, 1: L},))
    module = copy_graph_module(program.module)
    assert split_dims.RULE.apply(module)
    module.graph.eliminate_dead_code()
    slice_as_linear.RULE.apply(module)
    module.recompile()
    if not seed & 8:  # there a repeat has no rule, and the value is whole before it
        assert not [n for n in module.graph.nodes if n.target is torch.ops.aten.reshape.default and _unknown(n) > 1]
    for shape in ((2, 8, 24), (1, 3, 24), (3, 5, 24)):
        x = torch.randn(shape)
        torch.testing.assert_close(module(x)[0], program.reference(x)[0], rtol=1e-4, atol=1e-5)


def _unknown(node: torch.fx.Node) -> int:
    return symbolic_count(node.meta["val"].shape)


def test_a_wrong_result_at_the_largest_size_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The artefact is right on all batches, and wrong where the length is 24."""
    honest = check_module.run_undecoded

    def wrong(pte: bytes, evidence: Any, batches: Any) -> Any:
        made = honest(pte, evidence, batches)
        return [[y.flip(0, 1) * 3 for y in o] if b[0].shape[1] == 24 else o for o, b in zip(made, batches, strict=True)]

    monkeypatch.setattr(check_module, "run_undecoded", wrong)
    net, batches = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).eval(), [(torch.randn(2, 6, 16),)]
    casting = ingot.cast(
        net, batches[0], target="xnnpack", calibration=batches, dynamic_shapes=({0: N, 1: L},), on_mismatch="keep"
    )
    assert casting.check is not None
    assert not casting.check.passed
    assert "at sizes (4, 24, 16)" in str(casting.check.outputs[0].problem)
