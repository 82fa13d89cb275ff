"""The numbers that decide an integer result: the logits of an argmax, both sides of a comparison."""

from __future__ import annotations

from torch.fx import Node

from ingot.core.fx import is_float


def deciding_values(node: Node) -> list[Node]:
    """The float operands of a node, or of the integer ops before it. Constants decide nothing."""
    found, waiting = dict[Node, None](), [node]
    seen = {node}
    while waiting:
        operands = waiting.pop().all_input_nodes
        found |= dict.fromkeys(n for n in operands if is_float(n) and n.op != "get_attr")
        more = [n for n in operands if not is_float(n) and n not in seen]
        waiting += more
        seen |= set(more)
    return list(found)
