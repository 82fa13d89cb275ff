"""The compiler: a delegate's graph -> instructions -> bytes.

An instruction is everything between some dequantizes and one quantize. The MAC unit runs linear. The ALU runs the rest:
it adds its operands, each times a fixed-point multiplier, and clamps the sum.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from torch.export import ExportedProgram
from torch.fx import Node

from ingot_tinynpu.executor import FRACTION_BITS
from ingot_tinynpu.ops import fuses, op_name, operands, refusal


@dataclass(frozen=True)
class Match:
    """dequantize, … -> op (-> relu) -> quantize: one instruction."""

    reads: tuple[Node, ...]  # dequantizes
    ops: tuple[Node, ...]  # none where a value is only requantized
    quantize: Node


def match(node: Node) -> Match | None:
    """The instruction that ends in `node`; None: it ends none."""
    if op_name(node) != "quantize_per_tensor":
        return None
    ops, before = [], operands(node)[0]
    while _is_taken(before) and (not ops or fuses(before, ops[0])):
        ops, before = [before, *ops], operands(before)[0]
    reads = tuple(operands(ops[0] if ops else node))
    return Match(reads, tuple(ops), node) if all("dequantize" in op_name(n) for n in reads) else None


def _is_taken(node: Node) -> bool:
    return node.op == "call_function" and refusal(node) is None and len(node.users) == 1


class TinyNpuBackend(BackendDetails):
    """ExecuTorch finds the backend of a delegate by the name of this class."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: Any) -> PreprocessResult:
        constants = _constants(edge_program)
        matches = [m for node in edge_program.graph.nodes if (m := match(node)) is not None]
        program = {
            "inputs": edge_program.graph_signature.user_inputs,
            "outputs": edge_program.graph_signature.user_outputs,
            "instructions": [_instruction(m, constants) for m in matches],
        }
        payload = io.BytesIO()
        np.savez(payload, program=json.dumps(program), **constants)
        return PreprocessResult(processed_bytes=payload.getvalue())


def _instruction(m: Match, constants: dict[str, np.ndarray]) -> dict[str, Any]:
    _, scale, zero_point, qmin, qmax, _ = m.quantize.args
    names = [op_name(n) for n in m.ops]
    row = {
        "writes": m.quantize.name,
        "shape": list(m.quantize.meta["val"].shape),
        "zero_point": zero_point,
        "clamp": [max(qmin, zero_point) if "relu" in names else qmin, qmax],
        "reads": [n.args[0].name for n in m.reads],
    }
    if "linear" not in names:
        zero_points, ratios = [n.args[2] for n in m.reads], [n.args[1] / scale for n in m.reads]
        return {"unit": "alu", **row, "zero_points": zero_points, "multipliers": _fixed_point(ratios)}
    x, weight = m.reads[:2]
    by_channel = constants[weight.args[1].name].astype(np.float64) * x.args[1] / scale
    return {"unit": "mac", **row, "zero_points": [x.args[2]], "multipliers": [_fixed_point(by_channel)]}


def _fixed_point(ratios: Any) -> list[int]:
    return [round(float(r) * 2**FRACTION_BITS) for r in ratios]


def _constants(program: ExportedProgram) -> dict[str, np.ndarray]:
    """Weights, biases and their scales, by the name of the placeholder in the graph."""
    signature, tensors = program.graph_signature, {**program.state_dict, **program.constants}
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    names |= signature.inputs_to_lifted_tensor_constants
    return {placeholder: tensors[name].detach().numpy() for placeholder, name in names.items()}
