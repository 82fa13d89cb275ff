"""Converted modules whose constant operands are Python values.

A converter reads sizes, axes and pads from tensors when the module runs. torch.export refuses that, since it knows no
values. Here each such module runs once on the example, and what it called is written down as a graph.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

# Functions that read numbers out of a tensor: of a constant they give a constant, of an activation nothing that a
# graph could hold. Everything else that returns no tensor is about shapes and dtypes.
READS_VALUES = frozenset({"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__"})


def with_static_operands(module: fx.GraphModule, example: tuple[Any, ...]) -> fx.GraphModule:
    """The same module, with a graph in place of every submodule that has a constant tensor among its operands."""
    runner = _StaticOperands(module)
    with torch.no_grad():
        runner.run(*example)
    for node, made in runner.made.items():
        made.train(module.training)
        module.set_submodule(str(node.target), made)
        node.args, node.kwargs = tuple(n for n in node.all_input_nodes if n in runner.varying), {}
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()
    return module


class _StaticOperands(fx.Interpreter):
    """Runs the graph; `varying` are the nodes that depend on an input, `made` the graphs of submodules."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.varying, self.made = set[fx.Node](), dict[fx.Node, fx.GraphModule]()

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "placeholder" or any(i in self.varying for i in n.all_input_nodes):
            self.varying.add(n)
        constant = [i for i in n.all_input_nodes if i not in self.varying]
        if n.op != "call_module" or n not in self.varying or not constant:
            return super().run_node(n)
        given = {i: self.env[i] for i in n.all_input_nodes if i in self.varying}
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        self.made[n], returned = recorded(self.fetch_attr(str(n.target)), list(given.values()), args, kwargs)
        return returned


def recorded(
    module: nn.Module, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[fx.GraphModule, Any]:
    """What the module calls for these arguments, as a graph of `inputs`, and what it returns."""
    recorder = _Recorder(inputs)
    with recorder:
        returned = module(*args, **kwargs)
    recorder.graph.output(tree_map(recorder.operand, returned))
    return fx.GraphModule(recorder.root, recorder.graph), returned


class _Recorder(TorchFunctionMode):
    """Writes down every call that has an input, or what was made of one, among its arguments."""

    def __init__(self, inputs: list[Any]) -> None:
        super().__init__()
        self.graph, self.root = fx.Graph(), nn.Module()
        self.kept = list[Any](inputs)  # as long as a tensor is alive, its id is its own
        self.nodes = {id(t): self.graph.placeholder(f"input_{i}") for i, t in enumerate(inputs)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, args = kwargs or {}, _with_tuple_index(func, args)
        made = func(*args, **kwargs)
        if any(id(t) in self.nodes for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)):
            self._write(func, args, kwargs, made)
        return made

    def _write(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        tensors = [t for t in tree_leaves(made) if isinstance(t, Tensor)]
        if not tensors:
            if func.__name__ in READS_VALUES:
                raise NotImplementedError(f"{func.__name__}() of an activation: the graph would depend on the data")
            return
        node = self.graph.call_function(func, *tree_map(self.operand, (tuple(args), dict(kwargs))))
        if isinstance(made, Tensor):
            self._keep(made, node)
        else:
            for i, t in enumerate(made):
                self._keep(t, self.graph.call_function(operator.getitem, (node, i)))

    def _keep(self, made: Any, node: fx.Node) -> None:
        self.kept.append(made)
        self.nodes[id(made)] = node

    def operand(self, value: Any) -> Any:
        """A node where the value is a tensor: of a call, or a constant of the module."""
        if isinstance(value, slice):
            return slice(*map(self.operand, (value.start, value.stop, value.step)))
        if not isinstance(value, Tensor):
            return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
        if id(value) not in self.nodes:
            name = f"constant_{len(self.kept)}"
            self.root.register_buffer(name, value.detach())
            self._keep(value, self.graph.get_attr(name))
        return self.nodes[id(value)]


def _with_tuple_index(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A list of slices is an index by axes, as older converters write it; torch is about to read it as numbers."""
    if func is Tensor.__getitem__ and isinstance(args[1], list) and any(isinstance(i, slice) for i in args[1]):
        return args[0], tuple(args[1])
    return args
