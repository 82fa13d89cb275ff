"""Masks that vary at run time: rows that are masked entirely give what eager gives, whatever the example was."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.config.recipe import Recipe
from ingot.rewrite.apply import rewrite_for
from ingot.targets.registry import find_target

LOWEST = torch.finfo(torch.float32).min
FILLS = {"lowest": LOWEST, "-1e9": -1e9, "-1e4": -1e4, "-inf": -torch.inf}
Q = torch.randn(2, 2, 4, 8, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.v = nn.Linear(8, 8)

    def forward(self, q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q + 1, self.v(q), mask)


def masks(fill: float) -> dict[str, torch.Tensor]:
    """By what they mask: some keys, rows of one example entirely, left padding with a causal mask, everything."""
    some = torch.zeros(2, 1, 4, 4)
    some[:, :, :, 2:] = fill
    rows = some.clone()
    rows[0, :, 1:3] = fill
    padded = torch.full((2, 1, 4, 4), fill).triu(1)
    padded[1, :, :, :2] = fill  # rows 0 and 1 of the second example have no key left
    return {"some": some, "rows": rows, "left padding": padded, "all": torch.full((2, 1, 4, 4), fill)}


@pytest.mark.parametrize("example", ["some", "rows"])
@pytest.mark.parametrize("fill", FILLS)
def test_the_rewrite_is_exact_for_every_mask(fill: str, example: str) -> None:
    given = masks(FILLS[fill])
    program = ingot.capture(Attention().eval(), (Q, given[example]))
    legal = rewrite_for(program, find_target("xnnpack"), Recipe())
    assert any(r.startswith("attention-decomposed") for r in legal.rewrites)
    for name, mask in given.items():
        got, want = legal.program.module(Q, mask)[0], program.reference(Q, mask)[0]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, msg=name)


def test_eager_gives_the_mean_of_finite_rows_and_zero_of_infinite_ones() -> None:
    """What the rewrite is written for: should torch change it, this says so first."""
    net = Attention().eval()
    mean = net.v(Q).mean(2, keepdim=True).expand(Q.shape)
    torch.testing.assert_close(net(Q, masks(LOWEST)["all"]), mean)
    assert not net(Q, masks(-torch.inf)["all"]).any()
    assert not net(Q, torch.zeros(2, 1, 4, 4, dtype=torch.bool)).any()


@pytest.mark.parametrize("fill", ["lowest", "-1e9", "-inf"])
def test_an_artefact_agrees_on_rows_that_calibration_never_masked(fill: str) -> None:
    """Calibrated with some keys masked, verified with whole rows masked."""
    given = masks(FILLS[fill])
    batches = [(torch.randn_like(Q), given["some"]) for _ in range(4)]
    casting = ingot.cast(Attention().eval(), batches[0], target="xnnpack", calibration=batches)
    for name in ("rows", "left padding"):
        check = ingot.verify(casting, [(torch.randn_like(Q), given[name])])
        assert check.outputs[0].sqnr_db > 25, (name, check)
