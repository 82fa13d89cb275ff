"""Views that rewrites insert into a program for any number of tokens."""

from __future__ import annotations

import random

import torch
from torch.fx import Graph, GraphModule

from ingot.capture.varying_size import VARYING, infer_inserted_sizes

TOKENS = 40


def random_view(choose: random.Random) -> tuple[list[int | None], list[int | None]]:
    """Two shapes of the same numbers; None is the number of tokens, or a product with it in the second."""
    sizes = [choose.choice([1, 2, 3, 8, 16]) for _ in range(choose.randint(1, 4))]
    at = choose.randint(0, len(sizes))
    given: list[int | None] = [*sizes[:at], None, *sizes[at:]]
    made = list[int | None]()
    for size in given:
        if size in (8, 16) and choose.random() < 0.4:
            made += [size // 2, 2]
        elif made and choose.random() < 0.3 and None not in (made[-1], size):
            made[-1] *= size  # type: ignore[operator]
        else:
            made.append(size)
    return given, made


def module_of(given: list[int | None], made: list[int | None]) -> GraphModule:
    graph = Graph()
    x = graph.placeholder("x")
    shapes = [tuple(TOKENS if d is None else d for d in s) for s in (given, made)]
    values = [torch.empty(s, device="meta") for s in shapes]
    x.meta["val"] = values[0]
    moved = graph.call_function(torch.ops.aten.neg.default, (x,))
    moved.meta = {"val": values[0], "custom": {VARYING: (shapes[0], given.index(None))}}
    view = graph.call_function(torch.ops.aten.view.default, (moved, list(shapes[1])))
    view.meta = {"val": values[1]}
    cut = graph.call_function(torch.ops.aten.slice.Tensor, (view, 0, 0, shapes[1][0]))
    cut.meta = {"val": values[1]}
    back = graph.call_function(torch.ops.aten.view.default, (cut, list(shapes[0])))
    back.meta = {"val": values[0]}
    graph.output((view, back))
    return GraphModule(torch.nn.Module(), graph)


def test_sizes_are_inferred_for_any_number_of_tokens() -> None:
    """Dimensions that are split, merged and kept; the slice is of the whole dimension, unless tokens are first."""
    choose, many = random.Random(0), 0
    for _ in range(300):
        given, made = random_view(choose)
        if made[0] is None:
            continue  # a slice of all tokens has their number as its end
        many += 1
        module = module_of(given, made)
        infer_inserted_sizes(module)
        for tokens in (1, 7, TOKENS):
            want = [[tokens if d is None else d for d in s] for s in (made, given)]
            x = torch.randn([tokens if d is None else d for d in given])
            view, back = module(x)
            assert [list(view.shape), list(back.shape)] == want, (given, made)
            assert torch.equal(back, -x)
    assert many > 100
