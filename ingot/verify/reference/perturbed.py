"""Run a graph with rounding noise added to every computed value: which results depend on how a tie was rounded?"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from ingot.capture.op_semantics import Kind, effect_of
from ingot.core.fx import constant_of, copy_graph_module, evaluate_fake, fake_like
from ingot.targets.base import Target
from ingot.verify.reference.interpreter import DoubleInterpreter, narrow

ROUNDING = 2.0**-18  # of a float32 sum of some thousand terms, or of an approximated exp; a float32 itself has 2^-24
OPERAND_ROUNDING = 2.0**-22  # XNNPACK's log is wrong by 2^-23 next to 1, where it is as small
EXACT = (Kind.MOVES, Kind.SELECTS, Kind.CREATES)


def run_perturbed(
    module: GraphModule, batches: Sequence[tuple[Any, ...]], target: Target | None, seed: int, inputs: bool = False
) -> list[Any]:
    """The outputs of each batch; in double precision if a target is given.

    With `inputs` these have noise, too: an op that is computed in several steps, such as a deviation, rounds at the
    size of what it reads, also where equal numbers are read.
    """
    interpreter = _perturbing(DoubleInterpreter(module, target) if target else Interpreter(module), seed, inputs)
    with torch.no_grad():
        results = [interpreter.run(*batch) for batch in batches]
    return [torch.utils._pytree.tree_map_only(Tensor, narrow, r) for r in results]


def _perturbing(interpreter: Interpreter, seed: int, inputs: bool) -> Interpreter:
    plain, generator = interpreter.run_node, torch.Generator().manual_seed(seed)
    computed = _computing_nodes(interpreter.module)

    def run_node(n: Node) -> Any:
        made = plain(n)
        noisy = n.name in computed or (inputs and n.op == "placeholder")
        if not isinstance(made, Tensor) or not made.dtype.is_floating_point or not noisy:
            return made
        finite = made.nan_to_num(0.0, 0.0, 0.0)
        size = finite.abs() + finite.square().mean().sqrt()
        made = made + ROUNDING * size * torch.randn(made.shape, generator=generator, dtype=made.dtype)
        return made + _operand_error(n, finite) if _is_function_of_computed(n, computed) else made

    def _operand_error(n: Node, result: Tensor) -> Tensor:
        """What a kernel's rounding of its operand changes: compensated sums cancel the operand's own noise."""
        (source,) = n.all_input_nodes
        exact = interpreter.env[source]
        noise = torch.randn(exact.shape, generator=generator, dtype=exact.dtype)
        interpreter.env[source] = exact * (1 + OPERAND_ROUNDING * noise)
        changed = plain(n).nan_to_num(0.0, 0.0, 0.0)
        interpreter.env[source] = exact
        return changed - result

    interpreter.run_node = run_node  # type: ignore[method-assign]
    return interpreter


def _is_function_of_computed(node: Node, computed: Collection[str]) -> bool:
    """A pointwise function of one computed number. On a dequantized one a kernel rounds nothing."""
    target: Any = node.target
    pointwise = torch.Tag.pointwise in getattr(target, "tags", ()) and not target._schema.is_mutable
    return pointwise and node.name in computed and [n.name in computed for n in node.all_input_nodes] == [True]


_known: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()


def _computing_nodes(module: Any) -> frozenset[str]:
    """Names of the ops whose results are rounded. Found once for each graph, on a copy whose values are all known."""
    if module not in _known:
        copy = copy_graph_module(module)
        for node in copy.graph.nodes:
            _complete_value(copy, node)
        _known[module] = frozenset(n.name for n in copy.graph.nodes if _computes(n))
    return _known[module]


def _complete_value(module: GraphModule, node: Node) -> None:
    """Quantize and dequantize ops have no fake value, and what their readers do is found by the values they read."""
    if "val" in node.meta or not all("val" in n.meta for n in node.all_input_nodes):
        return
    if node.op == "get_attr":
        node.meta["val"] = fake_like(node, getattr(module, str(node.target)))  # no weight is dequantized for this
    elif node.op == "call_function":
        with contextlib.suppress(Exception):  # what a fake kernel lacks: the op counts as one that computes
            node.meta["val"] = evaluate_fake(node)


def _computes(node: Node) -> bool:
    """Numbers that are only moved stay equal to one another; a dequantized value is on its grid."""
    if node.op != "call_function" or "quantize" in str(node.target):
        return False
    known = all("val" in n.meta for n in (node, *node.all_input_nodes))
    return not known or effect_of(node, constant_of).kind not in EXACT
