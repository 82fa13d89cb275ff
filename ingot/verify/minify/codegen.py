"""A case as Python that a person could have written."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import get_attribute
from ingot.verify.minify.case import INPUTS, Case

FEW = 16  # numbers that are written out
DATA = "DATA"  # the tensors beside the file


def code_of(case: Case) -> str:
    """The model and its batches. It reads what is in `DATA`, where that is not empty."""
    return "\n".join([*_net(case), "", "", "torch.manual_seed(0)", "net = Net().eval()", _batches(case), ""])


def data_of(case: Case) -> dict[str, Any]:
    """What is neither drawn nor written out."""
    kept: dict[str, Any] = {n: t for n, t in constants(case).items() if n not in case.drawn and t.numel() > FEW}
    return kept if INPUTS in case.drawn else {**kept, INPUTS: list(case.batches)}


def constants(case: Case) -> dict[str, torch.Tensor]:
    nodes = [n for n in case.module.graph.nodes if n.op == "get_attr"]
    return {str(n.target): get_attribute(case.module, str(n.target)).detach() for n in nodes}


def file_of(case: Case, title: str, setup: str, told: str) -> str:
    """The whole file: it ends with the failure and exit code 1, or with 0 where that is gone."""
    recipe = f", recipe={_literal(dict(case.recipe))}" if case.recipe else ""
    names = [n for n in ("Scope", "Spec") if f"{n}(" in recipe]
    beside = bool(data_of(case))
    parts = [
        f'"""{title}\n\n{told}\n"""\n',
        "import sys" + ("\nfrom pathlib import Path" if beside else "") + "\n",
        "import torch\n",
        "import ingot" + (f"\nfrom ingot import {', '.join(names)}" if names else ""),
        *([f"\n{setup}"] if setup else []),
        *([f'\n{DATA} = torch.load(Path(__file__).with_suffix(".pt"))'] if beside else []),
        f"\n\n{code_of(case)}",
        "try:",
        f'    ingot.cast(net, batches[0], target="{case.target}", calibration=batches{recipe})',
        "except Exception as e:",
        '    sys.exit(f"{type(e).__name__}: {e}")',
        'print("it is cast without an error")',
    ]
    return "\n".join(parts) + "\n"


def _net(case: Case) -> Iterator[str]:
    yield "class Net(torch.nn.Module):"
    if constants(case):
        yield "    def __init__(self):"
        yield "        super().__init__()"
        for name, value in constants(case).items():
            yield f'        self.register_buffer("{_plain(name)}", {_constant(case, name, value)})'
        yield ""
    places = [n.name for n in case.module.graph.nodes if n.op == "placeholder"]
    yield f"    def forward(self, {', '.join(places)}):"
    for node in case.module.graph.nodes:
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
        return f"self.{_plain(str(value.target))}" if value.op == "get_attr" else value.name
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_literal, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return f'torch.device("{value}")' if isinstance(value, torch.device) else repr(value)


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _constant(case: Case, name: str, value: torch.Tensor) -> str:
    if name in case.drawn:
        return drawn([value], case.standard)
    if value.numel() <= FEW:
        return f"torch.tensor({_literal(value.tolist())}, dtype={value.dtype})"
    return f'{DATA}["{name}"]'


def _batches(case: Case) -> str:
    if INPUTS not in case.drawn:
        return f'batches = {DATA}["{INPUTS}"]'
    each = [drawn([b[i] for b in case.batches], case.standard) for i in range(len(case.batches[0]))]
    count = len(case.batches)
    return f"batches = [({', '.join(each)},){f' for _ in range({count})' if count > 1 else ''}]"


def drawn(values: list[torch.Tensor], standard: bool) -> str:
    """Numbers of the same shape, and of the same mean and spread unless standard ones will do."""
    flat = torch.cat([v.double().reshape(-1) for v in values])
    mean, spread = float(flat.mean()), float(flat.std(unbiased=False))
    shape = ", ".join(map(str, values[0].shape)) or "()"
    if spread == 0:
        return f"torch.full(({shape},), {mean:.3g})" if mean else f"torch.zeros({shape})"
    if standard:
        return f"torch.randn({shape})"
    return f"torch.randn({shape}) * {spread:.2g}" + ("" if abs(mean) < 0.1 * spread else f" {mean:+.2g}")
