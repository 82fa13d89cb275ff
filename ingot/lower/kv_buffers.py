"""The KV cache as state of a lowered program: buffers that host ops write after the delegate.

The delegate reads rows of the cache where they lie: an input of it is the memory of one head, with as many rows as are
in use. `aten::empty.out` sets that number and touches no memory, so nothing is copied and nothing is transposed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ingot.capture.kv_buffers import COLUMNS, FIRST_ROWS, POSITIONS, KVBuffers
from ingot.core.fx import value_of
from ingot.errors import LowerError

HEAD, COLUMN = "ingot_kv_head", "ingot_kv_columns"  # in node metadata


def add_kv_buffers(program: ExportedProgram, kv: KVBuffers) -> set[str]:
    """Edge program, after partitioning: rows become slices of buffers, new keys and values are written to them.

    Returns the names of the slices: they share memory with their buffers and compute nothing.
    """
    from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument

    graph, signature = program.graph, program.graph_signature
    inputs = {n.name: n for n in graph.nodes if n.op == "placeholder"}
    user = [inputs[name] for name in signature.user_inputs]
    _refuse_other_readers(user[COLUMNS:])
    first = next(n for n in graph.nodes if n.op == "placeholder")
    with graph.inserting_before(first):
        columns = _placeholder(program, "c_kv_columns", "kv_columns", kv.columns(kv.rows))
        buffers = [_placeholder(program, f"b_{n}", n, value) for n, value in kv.state.items()]
    for node in buffers:
        node.meta["et_init_buffer"] = True  # without, rows that were never written are undefined memory
    body = next(n for n in graph.nodes if n.op != "placeholder")
    with graph.inserting_before(body):
        _replace(user[COLUMNS], _slice(columns, 2, 0, kv.rows, {COLUMN: True}))
        for i, node in enumerate(user[FIRST_ROWS:]):
            head = i % kv.heads
            _replace(node, _slice(buffers[i // kv.heads], 0, head, head + 1, {HEAD: head}))
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    logits, *new = output.args[0]
    with graph.inserting_before(output):
        written = [_write(b, user[POSITIONS], made) for b, made in zip(buffers, new, strict=True)]
    output.args = ((*written, logits),)
    removed = {n.name for n in user[COLUMNS:]}
    kept = [s for s in signature.input_specs if s.arg.name not in removed]
    constant = InputSpec(InputKind.BUFFER, TensorArgument(columns.name), "kv_columns", persistent=True)
    state = [
        InputSpec(InputKind.BUFFER, TensorArgument(n.name), t, persistent=True)
        for n, t in zip(buffers, kv.names, strict=True)
    ]
    signature.input_specs[:] = [constant, *state, *kept]
    for node in user[COLUMNS:]:
        graph.erase_node(node)
    mutations = [
        OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(n.name), t)
        for n, t in zip(written, kv.names, strict=True)
    ]
    signature.output_specs[:] = [*mutations, signature.output_specs[0]]
    program.graph_module.recompile()
    return {n.name for n in graph.nodes if HEAD in n.meta}


def _refuse_other_readers(nodes: list[Node]) -> None:
    for node in nodes:
        other = [u for u in node.users if "call_delegate" not in str(u.target)]
        if other:
            why = f"the host op {other[0].target} reads {node.name}, whose length varies"
            raise LowerError("the KV cache is read outside the delegate", why=why, hint="kv_cache='caller'")


def _placeholder(program: ExportedProgram, name: str, target: str, value: torch.Tensor) -> Node:
    node = program.graph.placeholder(name)
    fake = next(value_of(n) for n in program.graph.nodes if n.op == "placeholder" and n.meta.get("val") is not None)
    node.meta["val"] = fake.fake_mode.from_tensor(value, static_shapes=True)
    program.state_dict[target] = value
    return node


def _slice(of: Node, dim: int, start: int, end: int, meta: dict[str, Any]) -> Node:
    from executorch.exir.dialects._ops import ops

    node = of.graph.call_function(ops.edge.aten.slice_copy.Tensor, (of, dim, start, end))
    node.meta = {"val": value_of(of).narrow(dim, start, end - start).clone(), "custom": {}, **meta}
    return node


def _write(buffer: Node, positions: Node, made: Node) -> Node:
    from executorch.exir.dialects._ops import ops

    node = buffer.graph.call_function(ops.edge.aten.index_put.default, (buffer, [None, positions], made))
    node.meta = {"val": value_of(buffer)}
    return node


def _replace(node: Node, by: Node) -> None:
    node.replace_all_uses_with(by)


# ---- memory ----


def kv_planning_pass(kv: KVBuffers) -> Any:
    from executorch.exir.passes import MemoryPlanningPass

    class KVPlanning(MemoryPlanningPass):  # type: ignore[misc]
        """Rows of a head are the memory of its buffer; every other value may be shorter than planned."""

        def run(self, graph_module: GraphModule, graph_signature: Any = None) -> Any:
            heads = [n for n in graph_module.graph.nodes if HEAD in n.meta and "slice_copy" in str(n.target)]
            columns = [n for n in graph_module.graph.nodes if COLUMN in n.meta and "slice_copy" in str(n.target)]
            _mark_varying(graph_module)
            for node in heads:
                node.meta["spec"].const = True  # not planned
            made = super().run(graph_module, graph_signature)
            rows = _rows_in_use(graph_module, graph_signature, kv)
            for node in columns:
                node.args = (*node.args[:3], rows, *node.args[4:])
            for node in heads:
                _alias(node, rows, kv)
            graph_module.recompile()
            return made

    return KVPlanning()


def _mark_varying(module: GraphModule) -> None:
    from executorch.exir.schema import TensorShapeDynamism
    from executorch.exir.tensor import TensorSpec

    for node in module.graph.nodes:
        spec = node.meta.get("spec")
        for each in spec if isinstance(spec, (list, tuple)) else [spec]:
            if isinstance(each, TensorSpec) and not each.const and not _is_state(node):
                each.shape_dynamism = TensorShapeDynamism.DYNAMIC_BOUND


def _is_state(node: Node) -> bool:
    return node.op == "placeholder" and node.name.startswith(("b_", "c_", "p_"))


def _alias(node: Node, rows: Node, kv: KVBuffers) -> None:
    """Rows of one head, in the memory of its buffer."""
    buffer, spec = node.args[0].meta["spec"], node.meta["spec"]  # type: ignore[union-attr]
    spec.const, head = False, node.meta[HEAD]
    spec.mem_id, spec.mem_offset = buffer.mem_id, buffer.mem_offset + 4 * head * kv.rows * kv.size
    node.target, node.args = torch.ops.aten.empty.out, ([1, rows, kv.size],)


def _rows_in_use(module: GraphModule, signature: Any, kv: KVBuffers) -> Node:
    """(first position + number of tokens + step - 1) // step * step"""
    from executorch.exir.dialects._ops import ops

    prim = ops.backend.executorch_prim
    positions = next(n for n in module.graph.nodes if n.name == signature.user_inputs[POSITIONS])
    body = next(n for n in module.graph.nodes if n.op != "placeholder")
    with module.graph.inserting_before(body):
        first = module.graph.call_function(torch.ops.aten._local_scalar_dense.default, (positions,))
        many = module.graph.call_function(torch.ops.aten.sym_size.int, (positions, 0))
        end = module.graph.call_function(prim.add.Scalar, (first, many))
        above = module.graph.call_function(prim.add.Scalar, (end, kv.step - 1))
        steps = module.graph.call_function(prim.floordiv.Scalar, (above, kv.step))
        rows = module.graph.call_function(prim.mul.Scalar, (steps, kv.step))
    for node in (first, many, end, above, steps, rows):
        node.meta["spec"] = node.meta["val"] = kv.rows
    return rows
