"""Which ops the events of an XNNPACK profile stand for.

XNNPACK names its events by kernel ("Convolution (NHWC, QC8) IGEMM #1") and tells nothing about the graph. Events and
nodes of the serialized graph have the same order. XNNPACK drops nodes that it fuses, so both sequences are aligned.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

NO_HANDLE = 65535  # what the serializer writes for nodes that a pass of its own made
NOT_JSON = re.compile(r"(?<=[:,\[] )[-+]?(inf|nan)\b")  # flatc writes limits of outputs so
MOST_HANDLES = 4  # in each direction: enough to get past conversions and transposes
MAY_MATCH = 0.05  # of an event whose name says nothing: better than none, worse than any name that fits
# Events that do not name their node. An int8 elementwise function runs as a lookup table under the first name; a
# concatenation copies its operands.
NAMELESS = {"invalidunaryop": "unary", "lookuptable": "unary", "copy": "concatenate"}


@dataclass(frozen=True)
class XnnNode:
    """One node of the serialized graph."""

    kind: str  # "XNNConv2d"
    handle: int
    reads: tuple[int, ...]
    writes: int | None
    unary: bool = False


def event_handles(payload: bytes, events: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """By event: the debug handle of its node, then those of the nodes around it, nearest first."""
    nodes = graph_nodes(payload)
    matched = align([_event_word(e) for e in events], nodes)
    return {e: _handles(nodes, i) for e, i in zip(events, matched, strict=True) if i is not None}


def graph_nodes(payload: bytes) -> list[XnnNode]:
    """The nodes in the payload of a delegate, in the order in which XNNPACK gets them."""
    from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import XNNHeader

    header = XNNHeader.from_bytes(payload[: XNNHeader.EXPECTED_LENGTH])
    data = _decoded(payload[header.flatbuffer_offset : header.flatbuffer_offset + header.flatbuffer_size])
    return [_node(n) for n in data["xnodes"]]


def _decoded(flatbuffer: bytes) -> Any:
    from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import _get_schema_bytes
    from executorch.exir._serialize._flatbuffer import _flatc_decompile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "schema.fbs").write_bytes(_get_schema_bytes())
        (folder / "graph.bin").write_bytes(flatbuffer)
        _flatc_decompile(name, str(folder / "schema.fbs"), str(folder / "graph.bin"), ["--raw-binary"])
        return json.loads(NOT_JSON.sub("null", (folder / "graph.json").read_text()))


def _node(data: Mapping[str, Any]) -> XnnNode:
    kind, fields = data["xnode_union_type"].removeprefix("_"), data["xnode_union"]
    ids = {k: v for k, v in fields.items() if k.endswith("_id") or re.fullmatch(r"input\d?_id", k)}
    reads = tuple(v for k, v in ids.items() if not k.startswith("output"))
    unary = set(fields) - {"input_id", "output_id", "flags"} <= {"alpha", "negative_slope"}
    return XnnNode(kind, data["debug_handle"], reads, ids.get("output_id"), unary)


# ---- alignment ----


def align(words: Sequence[str], nodes: Sequence[XnnNode]) -> list[int | None]:
    """By event the index of its node: both in order, similar names, as many as possible.

    best[i][j] is the score of the first i events with the first j nodes. Neighbouring events may have one node: a
    concatenation copies several times.
    """
    best = [[0.0] * (len(nodes) + 1) for _ in range(len(words) + 1)]
    for i, word in enumerate(words, 1):
        for j, node in enumerate(nodes, 1):
            best[i][j] = max(best[i][j - 1], best[i - 1][j], _paired(best, i, j, _likeness(word, node)))
    return _traced(best, words, nodes)


def _paired(best: list[list[float]], i: int, j: int, likeness: float) -> float:
    return best[i - 1][j - 1] + likeness if likeness else 0.0


def _traced(best: list[list[float]], words: Sequence[str], nodes: Sequence[XnnNode]) -> list[int | None]:
    """Back from the end; an event without a node of its own gets that of the event beside it if the names fit."""
    found: list[int | None] = [None] * len(words)
    i, j = len(words), len(nodes)
    while i and j:
        likeness = _likeness(words[i - 1], nodes[j - 1])
        if likeness and best[i][j] == _paired(best, i, j, likeness):
            found[i - 1], i, j = j - 1, i - 1, j - 1
        elif best[i][j] == best[i][j - 1]:
            j -= 1
        else:
            i -= 1
    for k in (*range(len(words)), *reversed(range(len(words)))):
        beside = [found[n] for n in (k - 1, k + 1) if 0 <= n < len(words)]
        fits = (n for n in beside if n is not None and _likeness(words[k], nodes[n]))
        found[k] = next(fits, None) if found[k] is None else found[k]
    return found


def _event_word(event: str) -> str:
    """ "Fully Connected (NC, QS8, QC8W) GEMM #1" -> "fullyconnected"."""
    return re.sub(r"[^a-z]", "", re.sub(r"\(.*|#.*", "", event).lower())


def _node_word(kind: str) -> str:
    """ "XNNStaticResizeBilinear2D" -> "resizebilinear"."""
    return re.sub(r"[^a-z]", "", re.sub(r"^XNN(Static)?|\d[Dd]?$", "", kind).lower())


def _likeness(word: str, node: XnnNode) -> float:
    return _name_likeness(word, _node_word(node.kind), node.unary)


@cache
def _name_likeness(word: str, named: str, unary: bool) -> float:
    """1 for the same name, less for a common part of at least three letters, 0 where they have nothing in common."""
    if (meaning := NAMELESS.get(word)) is not None:
        fits = unary if meaning == "unary" else named.startswith(meaning)
        return MAY_MATCH * (1 if named == "convert" else 2) if fits else float(named == word)
    plain = word.removeprefix("static")
    if plain == named:
        return 1.0
    common = _common_part(plain, named)
    return common / max(len(plain), len(named)) if common >= 3 else 0.0


def _common_part(a: str, b: str) -> int:
    """The length of the longest common substring."""
    return max((n for n in range(len(a), 0, -1) for k in range(len(a) - n + 1) if a[k : k + n] in b), default=0)


# ---- handles ----


def _handles(nodes: Sequence[XnnNode], index: int) -> tuple[int, ...]:
    """Its own; then those of readers, then of producers: a conversion that a pass made has no line of the user's."""
    found = [nodes[index].handle, *_along(nodes, index, forward=True), *_along(nodes, index, forward=False)]
    return tuple(dict.fromkeys(h for h in found if h != NO_HANDLE))


def _along(nodes: Sequence[XnnNode], index: int, forward: bool) -> list[int]:
    """The nearest handles in one direction. Nodes are in order, so readers come later and producers earlier."""
    after = nodes[index + 1 :] if forward else nodes[:index][::-1]
    start = nodes[index]
    wave = {start.writes} if forward else set(start.reads)
    found: list[int] = []
    for node in after:
        if len(found) == MOST_HANDLES:
            break
        if wave & (set(node.reads) if forward else {node.writes}):
            wave |= {node.writes} if forward else set(node.reads)
            found.append(node.handle)
    return found
