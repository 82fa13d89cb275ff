"""How the numbers that a layer reads vary together: the mean of x x^T over what it was run on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node

from ingot.graph import module_path
from ingot.weights.scheme import Layer


@dataclass
class Moments:
    """Sums by name, and how many rows went into each."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def see(self, name: str, x: Tensor) -> None:
        rows = x.detach().reshape(-1, x.shape[-1]).float()
        self.sums[name] = self.sums.get(name, 0) + rows.T @ rows
        self.counts[name] = self.counts.get(name, 0) + len(rows)

    def of(self, name: str) -> Tensor | None:
        return self.sums[name] / self.counts[name] if name in self.sums else None


@contextmanager
def watching(model: nn.Module) -> Iterator[Moments]:
    """Of every linear of a model, by its path, while it is run in eager torch."""
    found, hooks = Moments(), []
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            hooks.append(module.register_forward_pre_hook(lambda _, given, path=path: found.see(path, given[0])))  # type: ignore[misc]
    try:
        with torch.no_grad():
            yield found
    finally:
        for hook in hooks:
            hook.remove()


def by_layer(module: GraphModule, layers: Iterable[Layer], seen: Moments) -> dict[str, Tensor]:
    """Moments of a model's modules for the layers of its program."""
    paths = {n.name: module_path(n) for n in module.graph.nodes}
    found = {layer.name: seen.of(paths[layer.name]) for layer in layers if layer.kind == "linear"}
    return {name: m for name, m in found.items() if m is not None}


def moments_of(
    module: GraphModule, layers: Iterable[Layer], batches: Iterable[tuple[Any, ...]]
) -> Mapping[str, Tensor]:
    """By running the program itself; what several layers read is looked at once."""
    wanted = {layer.name for layer in layers if layer.kind == "linear"}
    watch = _Watch(module, {n: str(n.args[0]) for n in module.graph.nodes if n.name in wanted})
    with torch.no_grad():
        for batch in batches:
            watch.run(*batch)
    found = {node.name: watch.seen.of(read) for node, read in watch.reads.items()}
    return {name: m for name, m in found.items() if m is not None}


class _Watch(Interpreter):
    def __init__(self, module: GraphModule, reads: dict[Node, str]) -> None:
        super().__init__(module)
        self.reads, self.seen = reads, Moments()
        self.first = {read: node for node, read in reversed(list(reads.items()))}

    def run_node(self, n: Node) -> Any:
        if n in self.reads and self.first[self.reads[n]] is n:
            self.seen.see(self.reads[n], self.fetch_args_kwargs_from_env(n)[0][0])
        return super().run_node(n)
