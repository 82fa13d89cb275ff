"""The graph of a cast as JSON for Model Explorer: precision, scales, errors and times are attributes of its nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ingot.result.report.text import Facts

GRAPH = "main"
# Background by precision, so that islands of another one are seen before anything is clicked.
COLORS = {"int8": "#d7e8fa", "uint8": "#d7e8fa", "int16": "#fdeccd", "int4": "#dff3df"}
HOST = "#f6d5d5"  # border and text stay; ops on the host are what one looks for first


def model_explorer_json(facts: Facts, seconds: Mapping[str, float] | None = None) -> str:
    """What `report.json` says about every value; `seconds` by value, where they are known."""
    known = {n["name"] for n in facts["nodes"]}
    nodes = [_node(n, known, seconds or {}) for n in facts["nodes"]]
    graph = {"id": GRAPH, "nodes": nodes, "groupNodeAttributes": {"": dict(_summary(facts))}}
    return json.dumps({"label": f"{facts['target']} by ingot", "graphs": [graph]}, indent=1) + "\n"


def _node(node: Mapping[str, Any], known: set[str], seconds: Mapping[str, float]) -> dict[str, Any]:
    reads = [r for r in node["reads"] if r["value"] in known]
    made = {
        "id": node["name"],
        "label": node["op"],
        "namespace": str(node["module"]).replace(".", "/"),
        "attrs": _pairs(_attributes(node, seconds)),
        "incomingEdges": [{"sourceNodeId": r["value"], "targetNodeInputId": str(i)} for i, r in enumerate(reads)],
        "inputsMetadata": [{"id": str(i), "attrs": _pairs(_operand(r))} for i, r in enumerate(reads)],
        "outputsMetadata": [{"id": "0", "attrs": _pairs(_tensor(node))}],
    }
    color = HOST if node["place"] == 0 else COLORS.get(node["precision"])
    return {**made, "style": {"backgroundColor": color}} if color else made


def _attributes(node: Mapping[str, Any], seconds: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    yield "source", node["source"]
    yield "runs on", {None: "fused into a neighbour", 0: "host"}.get(node["place"], f"delegate {node['place']}")
    yield "precision", node["precision"]
    yield "stored as", node["stored"]
    if node["sqnr_db"] is not None:
        yield "SQNR, dB", f"{node['sqnr_db']:.1f}"
    if node["name"] in seconds:
        yield "time, µs", f"{seconds[node['name']] * 1e6:.1f}"
    if node["constants"]:
        yield "constants", ", ".join(node["constants"])
    if node["spread"] is not None:
        yield "recorded range", f"{node['spread']['min']:.6g} … {node['spread']['max']:.6g}"
    yield "why", node["why"]


def _operand(read: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "__tensor_tag", read["value"]
    yield "conversion", read["converts"]


def _tensor(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "tensor_name", node["name"]
    yield "tensor_shape", f"{node['dtype']}[{','.join(map(str, node['shape']))}]"


def _summary(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "target", facts["target"]
    yield "delegates", str(len(facts["delegates"]))
    yield "host ops", str(len(facts["host_ops"]))
    yield "bytes", f"{facts['bytes']:,}"
    check = facts["check"] or {}
    for output in check.get("outputs", ()):
        yield f"SQNR of {output['name']}, dB", f"{float(output['sqnr_db']):.1f}"
    timing = facts.get("timing") or {}
    if timing.get("seconds") is not None:
        yield "time, ms", f"{timing['seconds'] * 1e3:.3f} ({timing['how']})"


def _pairs(attributes: Iterator[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in attributes if value]
