"""A program with factors on its channels, so that they are more alike: results stay equal.

In constants: what writes a channel divides it, the weights that read it multiply it. Where no constant can, a product
of its own does: before the weights that read a value, or after the op that writes it.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.capture.export import Program
from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.channel_factors import ChannelFactors, Factors
from ingot.core.fx import add_constant, call, constant_of, copy_graph_module, fresh_name, value_name, value_of
from ingot.errors import PlanError, nearest
from ingot.rewrite.scalable_channels import (
    ScalableChannels,
    by_column,
    by_row,
    has_own_constants,
    input_width,
    output_width,
    scalable_channels,
)

LARGEST = 2.0**20  # a factor, or its inverse, beyond this would leave nothing of float32


def with_channel_factors(program: Program, factors: ChannelFactors) -> Program:
    """The same program where there are none."""
    return replace(program, module=scaled_module(program.module, factors)) if factors else program


def scaled_module(module: GraphModule, factors: ChannelFactors) -> GraphModule:
    made = copy_graph_module(module)
    if factors.constants:
        _scale(made, scalable_channels(made), factors.constants)
    for name, given in factors.inputs.items():
        _multiply_input(made, name, given)
    for name, given in factors.results.items():
        _multiply_result(made, name, given)
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
        channels, numbers = (
            found.writers[by_name[name]],
            checked_factors(name, given, len(found.writers[by_name[name]])),
        )
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


def _multiply_input(module: GraphModule, name: str, given: tuple[float, ...]) -> None:
    """One product for all weights that read the value."""
    value = next((n for n in module.graph.nodes if n.name == name), None)
    readers = product_readers(value) if value is not None else []
    if value is None or not readers:
        raise PlanError(f"no weight reads '{name}', whose channels the plan scales")
    factors = checked_factors(name, given, input_width(readers[0]))
    product = _product(value, 1 / factors, readers[0], "scaled")
    product.meta["ingot_value"] = f"{value_name(value)} / {_digest(factors)}"
    for node in readers:
        node.update_arg(0, product)
        _replace_constant(module, node, 1, by_column(node, factors))


def _multiply_result(module: GraphModule, name: str, given: tuple[float, ...]) -> None:
    """The product has the value that the op had."""
    node = next((n for n in module.graph.nodes if n.name == name), None)
    if node is None or not writes_channels(node):
        raise PlanError(f"'{name}' writes no channels that could be scaled")
    factors, before = checked_factors(name, given, output_width(node)), value_name(node)
    for operand, shaped in ((1, by_row(node, factors)), (2, factors))[: len(operands(node)) - 1]:
        _replace_constant(module, node, operand, 1 / shaped)
    product = _product(node, factors, node.next, "unscaled")
    node.replace_all_uses_with(product, delete_user_cb=lambda user: user is not product)
    node.meta["ingot_value"] = f"{before} / {_digest(factors)}"
    product.meta["ingot_value"] = before


def _product(value: Node, factors: Tensor, before: Node, name: str) -> Node:
    """value * factors, along the axis of its channels. Its name does not depend on which other products there are."""
    module, weighted = value.graph.owning_module, before if name == "scaled" else value
    assert module is not None
    shaped = factors.float().reshape([-1, *[1] * (_weight_rank(weighted) - 2)])
    constant = add_constant(module, shaped, f"{value.name}_{name}_factors", before)
    made = call(before, torch.ops.aten.mul.Tensor, value, constant, like=value)
    made._rename(f"{value.name}_{name}")
    return made


def product_readers(value: Node) -> list[Node]:
    """Ops that read the channels of the value with a weight of their own, in graph order; all along one dimension."""
    users = [n for n in value.users if n.op == "call_function" and _reads(n, value)]
    return users if len({_weight_rank(n) for n in users}) == 1 else []


def writes_channels(node: Node) -> bool:
    """An op with a weight and a bias of its own."""
    return node.op == "call_function" and weight_axis(node) is not None and has_own_constants(node)


def _reads(node: Node, value: Node) -> bool:
    return writes_channels(node) and operands(node)[0] is value


def _weight_rank(node: Node) -> int:
    return len(value_of(operands(node)[1]).shape)


def _digest(factors: Tensor) -> str:
    return hashlib.blake2b(factors.contiguous().numpy().tobytes(), digest_size=6).hexdigest()
