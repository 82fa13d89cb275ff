"""The checks of XNNPACK's partitioner on one op, asked before anything is lowered.

A config checks an edge op of a lowered program. Here it gets a copy of the op, alone in a graph, under the edge name.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node, map_arg

from ingot.core.fx import value_of

# What they check are strides, and those of a captured value are not those of the lowered one.
_LAYOUT_COPIES = ("clone.default", "_clone_dim_order.default", "_to_dim_order_copy.default")


class _EdgeOp:
    """Stands for an edge op: configs read its name only."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("an op that is only asked about")


def partitioner_refusal(config: Any, name: str, node: Node) -> str | None:
    """Why the partitioner leaves the op on the host, in its words; None if it takes it.

    Configs of weighted ops also look up weights in the program: they are not asked.
    """
    from executorch.backends.xnnpack.partition.config.generic_node_configs import GenericNodePartitionerConfig

    if not isinstance(config, GenericNodePartitionerConfig) or name in _LAYOUT_COPIES:
        return None
    asked = _alone(name, node)
    return None if config.check_constraints(asked, None) else _reason(asked)


def _alone(name: str, node: Node) -> Node:
    graph = Graph()
    known = {n: _placeholder(graph, n) for n in node.all_input_nodes}
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    asked = graph.call_function(_EdgeOp(name), args, kwargs)
    asked.meta["val"] = value_of(node)
    return asked


def _placeholder(graph: Graph, node: Node) -> Node:
    new = graph.placeholder(node.name)
    new.meta["val"] = value_of(node)
    return new


def _reason(asked: Node) -> str:
    """Each module of configs keeps the last reason that it logged."""
    from executorch.backends.xnnpack.partition.config import generic_node_configs, xnnpack_config

    said = [why.reason for why in (generic_node_configs.why, xnnpack_config.why) if why.node is asked]
    return f"XNNPACK's partitioner refuses it: {said[0]}" if said else "XNNPACK's partitioner refuses it"
