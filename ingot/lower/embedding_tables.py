"""embedding(dequantize_per_channel(codes, scales), i) -> embedding_byte(codes, scales, i)

The runtime would dequantize the whole table at every run; its own kernel reads the rows that are looked up.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics.weighted_ops import is_embedding
from ingot.core.fx import calls, is_call


def fuse_embedding_tables(module: GraphModule) -> None:
    for node in calls(module):
        table = node.args[0] if is_embedding(node) else None
        if isinstance(table, Node) and is_call(table, "dequantize_per_channel"):
            _fuse(node, table)
    module.graph.eliminate_dead_code()
    module.recompile()


def _fuse(node: Node, table: Node) -> None:
    """The new node has the name of the old one: reports know values by it."""
    import executorch.exir.passes._quant_patterns_and_replacements  # noqa: F401  registers the op

    codes, scales, _zeros, _axis, low, high = table.args[:6]
    op, name = torch.ops.quantized_decomposed.embedding_byte.default, node.name
    with node.graph.inserting_before(node):
        made = node.graph.call_function(op, (codes, scales, None, low, high, node.args[1]))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
    made._rename(name)
