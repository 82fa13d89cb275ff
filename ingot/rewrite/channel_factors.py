"""A program with factors on its channels: constants that write or read a channel take them up, results stay equal.

`factors` are by the op that writes the channels: its result is divided by them. `products` are by value: each weight
that reads it reads value * (1 / factors) instead, which is a new op. Both are numbers of the plan: it can be replayed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.capture.export import Program
from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import add_constant, call, constant_of, copy_graph_module, fresh_name, value_name, value_of
from ingot.errors import PlanError, nearest
from ingot.rewrite.scalable_channels import (
    ScalableChannels,
    by_column,
    has_own_constants,
    input_width,
    scalable_channels,
)

Factors = Mapping[str, tuple[float, ...]]
LARGEST = 2.0**20  # a factor, or its inverse, beyond this would leave nothing of float32


def with_channel_factors(program: Program, factors: Factors, products: Factors) -> Program:
    """The same program where there are none."""
    if not factors and not products:
        return program
    return replace(program, module=scaled_module(program.module, factors, products))


def scaled_module(module: GraphModule, factors: Factors, products: Factors) -> GraphModule:
    made = copy_graph_module(module)
    if factors:
        _scale(made, scalable_channels(made), factors)
    for name, given in products.items():
        _multiply(made, name, given)
    made.recompile()
    return made


def _scale(module: GraphModule, found: ScalableChannels, factors: Factors) -> None:
    each = _by_channel(found, factors)
    for constant in found.constants:
        scaled = each[constant.channels] ** constant.power
        if bool((scaled != 1).any()):
            _replace_constant(module, constant.node, constant.operand, scaled)
    for node, channels in found.values.items():
        if bool((each[channels] != 1).any()):
            node.meta["ingot_value"] = f"{value_name(node)} / {_digest(each[channels])}"


def _by_channel(found: ScalableChannels, factors: Factors) -> Tensor:
    """The factor of each channel; 1 where the plan says none."""
    roots, free = found.roots()
    each, said = torch.ones(len(roots), dtype=torch.float64), torch.zeros(len(roots), dtype=torch.bool)
    by_name = {n.name: n for n in found.writers}
    for name, given in factors.items():
        if name not in by_name:
            raise PlanError(f"'{name}' writes no channels that could be scaled", hint=nearest(name, by_name))
        channels, numbers = found.writers[by_name[name]], checked_factors(name, given, len(found.writers[by_name[name]]))
        own = roots[channels]
        _refuse_unequal(name, numbers, own, each, said)
        if bool((~free[channels] & (numbers != 1)).any()):
            why = "an op reads them that no factor passes, or they are an output"
            raise PlanError(f"channels of '{name}' cannot be scaled", why=why)
        each[own], said[own] = numbers, torch.ones(len(own), dtype=torch.bool)
    return each[roots]


def checked_factors(name: str, given: tuple[float, ...], count: int) -> Tensor:
    numbers = torch.tensor(given, dtype=torch.float64)
    good = (numbers > 1 / LARGEST) & (numbers < LARGEST)
    if len(numbers) != count or not bool(good.all()):
        raise PlanError(f"the plan has {len(numbers)} channel factors for '{name}'", why=f"it needs {count} above zero")
    return numbers


def _refuse_unequal(name: str, numbers: Tensor, roots: Tensor, each: Tensor, said: Tensor) -> None:
    known = said[roots]
    if bool((known & (each[roots] != numbers)).any()):
        what = f"the channels of '{name}' and those of another op must have the same factors"
        raise PlanError(what, why="they meet in one value", hint="edit both alike")


def _replace_constant(module: GraphModule, node: Node, operand: int, factor: Tensor) -> None:
    source = operands(node)[operand]
    constant = constant_of(source)
    assert constant is not None  # only constants are listed
    made = (constant.detach().double() * factor).to(constant.dtype)
    if made.shape != constant.shape or len(source.users) > 1:
        node.replace_input_with(source, add_constant(module, made, f"{source.name}_scaled", node))
        return
    name = fresh_name(module, f"{source.name}_scaled")
    module.register_buffer(name, made)
    source.target = name


def _multiply(module: GraphModule, name: str, given: tuple[float, ...]) -> None:
    """One product for all weights that read the value."""
    value = next((n for n in module.graph.nodes if n.name == name), None)
    readers = product_readers(value) if value is not None else []
    if value is None or not readers:
        raise PlanError(f"no weight reads '{name}', whose channels the plan scales")
    factors = checked_factors(name, given, input_width(readers[0]))
    inverse = (1 / factors).float().reshape([-1, *[1] * (_weight_rank(readers[0]) - 2)])
    constant = add_constant(module, inverse, f"{name}_factors", readers[0])
    product = call(readers[0], torch.ops.aten.mul.Tensor, value, constant)
    product.meta["ingot_value"] = f"{value_name(value)} / {_digest(factors)}"
    for node in readers:
        node.update_arg(0, product)
        _replace_constant(module, node, 1, by_column(node, factors))


def product_readers(value: Node) -> list[Node]:
    """Ops that read the channels of the value with a weight of their own, in graph order; all along one dimension."""
    users = [n for n in value.users if n.op == "call_function" and _reads(n, value)]
    return users if len({_weight_rank(n) for n in users}) == 1 else []


def _reads(node: Node, value: Node) -> bool:
    if weight_axis(node) is None or operands(node)[0] is not value or operands(node).count(value) > 1:
        return False
    return has_own_constants(node)


def _weight_rank(node: Node) -> int:
    return len(value_of(operands(node)[1]).shape)


def _digest(factors: Tensor) -> str:
    return hashlib.blake2b(factors.contiguous().numpy().tobytes(), digest_size=6).hexdigest()
