"""Write a variant as readable Python."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import get_attribute
from ingot.verify.minify.variant import INPUTS, Variant

MAX_LITERALS = 16  # larger tensors are saved beside the file
DATA = "DATA"  # the name of these tensors in the file


def model_source(variant: Variant) -> str:
    """The model and its batches. The code reads tensors from `DATA` if there are any."""
    return "\n".join([*_net(variant), "", "", "torch.manual_seed(0)", "net = Net().eval()", _batches(variant), ""])


def saved_tensors(variant: Variant) -> dict[str, Any]:
    """The tensors that are neither random nor literals."""
    kept: dict[str, Any] = {
        n: t for n, t in constants(variant).items() if n not in variant.random and t.numel() > MAX_LITERALS
    }
    return kept if INPUTS in variant.random else {**kept, INPUTS: list(variant.batches)}


def constants(variant: Variant) -> dict[str, torch.Tensor]:
    nodes = [n for n in variant.module.graph.nodes if n.op == "get_attr"]
    return {str(n.target): get_attribute(variant.module, str(n.target)).detach() for n in nodes}


def reproducer_source(variant: Variant, title: str, setup: str, failure: str) -> str:
    """The whole file. Run, it prints the failure and exits with 1; with 0 if the failure is gone."""
    # The failure is what it shows: an op that is run elsewhere would hide it.
    recipe = f", recipe={_literal({**variant.recipe, 'recover': False})}"
    names = [n for n in ("Scope", "Spec") if f"{n}(" in recipe]
    has_data = bool(saved_tensors(variant))
    parts = [
        f'"""{title}\n\n{failure}\n"""\n',
        "import sys" + ("\nfrom pathlib import Path" if has_data else "") + "\n",
        "import torch\n",
        "import ingot" + (f"\nfrom ingot import {', '.join(names)}" if names else ""),
        *([f"\n{setup}"] if setup else []),
        *([f'\n{DATA} = torch.load(Path(__file__).with_suffix(".pt"))'] if has_data else []),
        f"\n\n{model_source(variant)}",
        "try:",
        f'    ingot.cast(net, batches[0], target="{variant.target}", calibration=batches{recipe})',
        "except Exception as e:",
        '    sys.exit(f"{type(e).__name__}: {e}")',
        'print("cast without an error")',
    ]
    return "\n".join(parts) + "\n"


def _net(variant: Variant) -> Iterator[str]:
    yield "class Net(torch.nn.Module):"
    if constants(variant):
        yield "    def __init__(self):"
        yield "        super().__init__()"
        for name, value in constants(variant).items():
            yield f'        self.register_buffer("{_identifier(name)}", {_constant(variant, name, value)})'
        yield ""
    places = [n.name for n in variant.module.graph.nodes if n.op == "placeholder"]
    yield f"    def forward(self, {', '.join(places)}):"
    for node in variant.module.graph.nodes:
        yield from _line(node)


def _line(node: Node) -> Iterator[str]:
    if node.op == "call_function":
        yield f"        {node.name} = {_call(node)}"
    elif node.op == "output":
        returned: Any = node.args[0]
        yield f"        return {', '.join(map(_literal, returned))}"


def _call(node: Node) -> str:
    if getattr(node.target, "__name__", "") == "getitem":
        return f"{_literal(node.args[0])}[{_literal(node.args[1])}]"
    args = [_literal(a) for a in node.args] + [f"{k}={_literal(v)}" for k, v in node.kwargs.items()]
    return f"torch.ops.{node.target}({', '.join(args)})"


def _literal(value: Any) -> str:
    if isinstance(value, Node):
        return f"self.{_identifier(str(value.target))}" if value.op == "get_attr" else value.name
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_literal, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return f'torch.device("{value}")' if isinstance(value, torch.device) else repr(value)


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _constant(variant: Variant, name: str, value: torch.Tensor) -> str:
    if name in variant.random:
        return _random_source([value], variant.standard)
    if value.numel() <= MAX_LITERALS:
        return f"torch.tensor({_literal(value.tolist())}, dtype={value.dtype})"
    return f'{DATA}["{name}"]'


def _batches(variant: Variant) -> str:
    if INPUTS not in variant.random:
        return f'batches = {DATA}["{INPUTS}"]'
    each = [_random_source([b[i] for b in variant.batches], variant.standard) for i in range(len(variant.batches[0]))]
    count = len(variant.batches)
    return f"batches = [({', '.join(each)},){f' for _ in range({count})' if count > 1 else ''}]"


def _random_source(values: list[torch.Tensor], standard: bool) -> str:
    """Random numbers of the same shape; with the same mean and standard deviation unless `standard`."""
    flat = torch.cat([v.double().reshape(-1) for v in values])
    mean, deviation = float(flat.mean()), float(flat.std(unbiased=False))
    shape = ", ".join(map(str, values[0].shape)) or "()"
    if deviation == 0:
        like = f"{tuple(values[0].shape)}, {mean:.3g}, dtype={values[0].dtype}"  # 3 alone would make integers
        return f"torch.full({like})" if mean else f"torch.zeros({shape})"
    if standard:
        return f"torch.randn({shape})"
    return f"torch.randn({shape}) * {deviation:.2g}" + ("" if abs(mean) < 0.1 * deviation else f" {mean:+.2g}")
