"""ExecuTorch's Inspector reads our ETRecord with an ETDump of ours, and finds the user's line of every op."""

from __future__ import annotations

import inspect
import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.cli import main
from ingot.quantize.integer_io import quantize_inputs
from ingot.result.export.etrecord import seconds_by_value
from ingot.targets.xnnpack.profile_events import XnnNode, align
from tests.support.requirements import need_module

BATCHES = [(torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(i)),) for i in range(4)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.head = nn.Linear(8 * 64 * 64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.conv(x))  # conv
        z = self.deep(y)  # depthwise
        z = z + y  # add
        z = torch.sigmoid(z)  # sigmoid
        z = torch.cat([z, y], 1)  # cat
        z = z[:, :8]  # slice
        z = self.head(z.flatten(1))  # linear
        return z.softmax(-1)  # softmax


# By how the profiler calls it: what the line of its op says.
LINES = {
    "Convolution (NHWC, QC8) IGEMM": "conv",
    "Convolution (NHWC, QC8) DWConv": "depthwise",
    "Add": "add",
    "Invalid Unary Op": "sigmoid",
    "Copy": "cat",
    "Slice": "slice",
    "Fully Connected": "linear",
    "Softmax": "softmax",
}


def line_of(comment: str) -> int:
    source, start = inspect.getsourcelines(Net)
    return start + next(i for i, line in enumerate(source) if line.rstrip().endswith(f"# {comment}"))


@pytest.fixture(scope="module")
def casting() -> ingot.Casting:
    torch.manual_seed(0)
    return ingot.cast(Net().eval(), BATCHES[0], target="xnnpack", calibration=BATCHES)


@pytest.fixture(scope="module")
def events(casting: ingot.Casting, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The delegated events of a traced run, as Inspector shows them."""
    need_module("pandas", "pip install pandas tabulate")
    from executorch.devtools import Inspector

    folder = tmp_path_factory.mktemp("record")
    evidence = casting.needed_evidence
    trace = evidence.target.runner.trace(casting.pte, quantize_inputs(BATCHES[0], casting.io.inputs), 3)
    assert trace is not None
    (folder / "trace.etdp").write_bytes(trace)
    record = casting.etrecord(folder / "record.bin")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inspector = Inspector(etdump_path=str(folder / "trace.etdp"), etrecord=str(record))
    return [e for b in inspector.event_blocks for e in b.events if e.delegate_debug_identifier is not None]


def test_every_delegated_event_has_a_line_of_the_user(events: list[Any]) -> None:
    assert len(events) >= len(LINES)
    for event in events:
        traces = [t for t in event.stack_traces.values() if t]
        assert any(Path(__file__).name in t for t in traces), event.name


@pytest.mark.parametrize("name", LINES)
def test_the_line_is_that_of_the_op(events: list[Any], name: str) -> None:
    found = [e for e in events if e.name.startswith(name)]
    assert found, [e.name for e in events]
    lines = {int(n) for e in found for t in e.stack_traces.values() if t for n in re.findall(r'py", line (\d+)', t)}
    assert line_of(LINES[name]) in lines
    others = {line_of(c) for n, c in LINES.items() if n != name}
    assert not lines & others


def test_every_kernel_has_a_time_at_its_value(casting: ingot.Casting) -> None:
    seconds = seconds_by_value(casting)
    assert {"conv2d", "conv2d_1", "add", "sigmoid", "cat", "linear", "softmax"} <= set(seconds)
    assert all(s >= 0 for s in seconds.values())
    assert sum(seconds.values()) > 0


def test_model_explorer_gets_every_value_and_edge(casting: ingot.Casting, tmp_path: Path) -> None:
    folder, file = casting.save_folder(tmp_path / "out"), tmp_path / "graph.json"
    assert main(["export", str(folder), "--model-explorer", str(file)]) == 0
    (graph,) = json.loads(file.read_text())["graphs"]
    nodes = {n["id"]: {**n, **{a["key"]: a["value"] for a in n["attrs"]}} for n in graph["nodes"]}
    assert set(nodes) == {n.name for n in casting.details.nodes}
    assert {e["sourceNodeId"] for e in nodes["cat"]["incomingEdges"]} == {"sigmoid", "relu"}
    assert nodes["conv2d"]["precision"] == "int8"
    assert nodes["conv2d_1"]["stored as"] == str(casting.plan.qparams("conv2d_1"))
    assert float(nodes["conv2d_1"]["SQNR, dB"]) > 20
    assert float(nodes["linear"]["time, µs"]) >= 0
    assert nodes["linear"]["source"] == f"test_etrecord.py:{line_of('linear')}"


def test_a_record_of_another_file_is_refused(casting: ingot.Casting, tmp_path: Path) -> None:
    with pytest.raises(ingot.ArtefactError, match="no record of this program"):
        replace(casting, pte=casting.pte + b"\0").etrecord(tmp_path / "record.bin")
    assert not (tmp_path / "record.bin").exists()


# ---- alignment ----


def nodes(*kinds: str) -> list[XnnNode]:
    unary = {"XNNSigmoid", "XNNConvert", "XNNTanh"}
    return [XnnNode(k, i, (i,), i + 1, k in unary) for i, k in enumerate(kinds)]


def test_nodes_that_were_fused_are_passed_over() -> None:
    graph = nodes("XNNConv2d", "XNNClamp", "XNNConv2d", "XNNClamp", "XNNMaxPooling2d", "XNNFullyConnected")
    assert align(["convolution", "convolution", "maxpooling", "fullyconnected"], graph) == [0, 2, 4, 5]


def test_a_lookup_table_is_the_function_between_its_conversions() -> None:
    graph = nodes("XNNAdd", "XNNConvert", "XNNSigmoid", "XNNConvert", "XNNAdd")
    assert align(["add", "invalidunaryop", "add"], graph) == [0, 2, 4]


def test_all_copies_of_a_concatenation_are_one_node() -> None:
    graph = nodes("XNNAdd", "XNNConcatenate3", "XNNAdd")
    assert align(["add", "copy", "copy", "copy", "add"], graph) == [0, 1, 1, 1, 2]


def test_an_unknown_event_has_no_node() -> None:
    assert align(["add", "quux", "add"], nodes("XNNAdd", "XNNSquare", "XNNAdd")) == [0, None, 2]
