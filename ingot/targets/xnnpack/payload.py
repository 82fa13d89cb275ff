"""The graph inside an XNNPACK delegate, decoded from what the runtime will load."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class PayloadNode:
    """One kernel call: the ids of the values that it reads and writes."""

    kind: str  # "XNNStaticTranspose"
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    debug_handle: int


@dataclass(frozen=True)
class PayloadGraph:
    nodes: tuple[PayloadNode, ...]
    constants: Mapping[int, int]  # id of a constant -> its number of elements


NO_VALUE = 0xFFFFFFFF  # XNN_INVALID_VALUE_ID: a linear without bias


def decoded(payload: bytes) -> PayloadGraph:
    """By flatc and the schema in the executorch wheel."""
    graph = json.loads(_as_json(_flatbuffer(payload)))
    return PayloadGraph(
        tuple(map(_node, graph["xnodes"])), dict(map(_constant, filter(_is_constant, graph["xvalues"])))
    )


def _flatbuffer(payload: bytes) -> bytes:
    from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import XNNHeader

    header = XNNHeader.from_bytes(payload[: XNNHeader.EXPECTED_LENGTH])
    return payload[header.flatbuffer_offset :][: header.flatbuffer_size]


def _as_json(flatbuffer: bytes) -> str:
    from executorch.backends.xnnpack import serialization
    from executorch.exir._serialize._flatbuffer import _flatc_decompile

    schema = Path(serialization.__path__[0]) / "schema.fbs"
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "graph.bin")
        binary.write_bytes(flatbuffer)
        _flatc_decompile(folder, str(schema), str(binary), ["--raw-binary", "--defaults-json"])
        return binary.with_suffix(".json").read_text().replace(": inf", ": Infinity").replace(": -inf", ": -Infinity")


def _node(entry: dict[str, Any]) -> PayloadNode:
    """Every field of the schema that ends in `_id` names a value; those of results begin with `output`."""
    ids = {k: v for k, v in entry["xnode_union"].items() if k.endswith("_id") and v != NO_VALUE}
    writes = tuple(v for k, v in ids.items() if k.startswith("output"))
    reads = tuple(v for k, v in _read_fields(entry["xnode_union_type"], ids).items() if not k.startswith("output"))
    return PayloadNode(entry["xnode_union_type"], reads, writes, entry.get("debug_handle", 0))


def _read_fields(kind: str, ids: dict[str, int]) -> dict[str, int]:
    """A concatenation has fields for five inputs and reads as many as its name says."""
    if not kind.startswith("XNNConcatenate"):
        return ids
    count = int(kind.removeprefix("XNNConcatenate"))
    return {k: v for k, v in ids.items() if k in {f"input{i + 1}_id" for i in range(count)}}


def _tensor(value: dict[str, Any]) -> dict[str, Any]:
    inner: dict[str, Any] = value["xvalue_union"]
    return inner.get("tensor_value", inner)  # type: ignore[no-any-return]


def _is_constant(value: dict[str, Any]) -> bool:
    return _tensor(value).get("constant_buffer_idx", 0) != 0


def _constant(value: dict[str, Any]) -> tuple[int, int]:
    tensor, size = _tensor(value), 1
    for d in tensor.get("dims", ()):
        size *= d
    return tensor.get("id_out", 0), size
