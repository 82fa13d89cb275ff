"""Arm VGF and Ethos-U: what they can do is asked of their partitioner, on a graph of the ops in question."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import operator
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture import first_sentence
from ingot.errors import ArtefactError
from ingot.graph import constant_of, has_symbols, is_float, source_of, value_of
from ingot.semantics import operands
from ingot.semantics.weights import weight_axis
from ingot.targets.base import Ability, Format, Prices, Requirement, Target

INT8 = Format("int8", -128, 127, symmetric=False)
INT16 = Format("int16", -32767, 32767, symmetric=True)
WEIGHT = Format("int8", -127, 127, symmetric=True)
NOWHERE: frozenset[str] = frozenset()


# ---- the backend's own objects ----


def _vgf_spec() -> Any:
    from executorch.backends.arm.vgf import VgfCompileSpec

    return VgfCompileSpec("TOSA-1.0+FP+INT+int16+int4")


def _ethos_spec(name: str) -> Any:
    from executorch.backends.arm.ethosu import EthosUCompileSpec

    return EthosUCompileSpec(name)


@cache
def _spec(name: str) -> Any:
    return _vgf_spec() if name == "vgf" else _ethos_spec(name)


def _partitioner_class(name: str) -> Any:
    if name == "vgf":
        from executorch.backends.arm.vgf import VgfPartitioner

        return VgfPartitioner
    from executorch.backends.arm.ethosu import EthosUPartitioner

    return EthosUPartitioner


# ---- which ops run on integers: the backend folds quantize and dequantize into marked ops only ----


def mark(graph: torch.fx.Graph) -> None:
    """Mark every op that reads only dequantized values and whose result is quantized, as Arm's quantizer would."""
    from executorch.backends.arm.common.annotation_meta import ArmAnnotationInfo

    for node in graph.nodes:
        if node.op == "call_function" and not _is_rounding(node) and _reads_integers(node) and _writes_integers(node):
            custom = node.meta.get("custom") or {}
            node.meta["custom"] = {**custom, ArmAnnotationInfo.CUSTOM_META_KEY: dict(ArmAnnotationInfo(quantized=True))}


def is_marked(node: Node) -> bool:
    from executorch.backends.arm.common.annotation_meta import ArmAnnotationInfo

    return ArmAnnotationInfo.CUSTOM_META_KEY in (node.meta.get("custom") or {})


def _reads_integers(node: Node) -> bool:
    read = [n for n in node.all_input_nodes if _is_tensor(n)]
    return bool(read) and all(_arrives_as_integers(n) for n in read)


def _arrives_as_integers(node: Node) -> bool:
    """Dequantized, no float at all, or handed over inside one kernel (a getitem, an activation that is fused)."""
    val = value_of(node)
    first = val[0] if isinstance(val, (tuple, list)) else val
    return _is_dequantize(node) or not first.dtype.is_floating_point or is_marked(node)


def _writes_integers(node: Node) -> bool:
    return bool(node.users) and all(_leaves_as_integers(node, user) for user in node.users)


def _leaves_as_integers(node: Node, user: Node) -> bool:
    if user.target is operator.getitem:
        return _writes_integers(user)
    return _is_quantize(user) or _runs_inside(node, user)


def _runs_inside(producer: Node, activation: Node) -> bool:
    """The activation ends the producer's kernel: asked of the pass that does it, or for ATen what we planned so."""
    from executorch.backends.arm._passes.fuse_quantized_activation_pass import FuseQuantizedActivationPass as Fuse

    if fuses(producer, activation):
        return _writes_integers(activation)
    return bool(Fuse._is_fuseable_input(producer) and Fuse._is_fuseable_quantized_activation(activation))


def _is_tensor(node: Node) -> bool:
    val = value_of(node)
    return isinstance(val, torch.Tensor) or (isinstance(val, (tuple, list)) and isinstance(val[0], torch.Tensor))


def _is_quantize(node: Node) -> bool:
    return _op_name(node).startswith("quantize_per")


def _is_dequantize(node: Node) -> bool:
    return _op_name(node).startswith("dequantize_per")


def _is_rounding(node: Node) -> bool:
    return _is_quantize(node) or _is_dequantize(node)


def _op_name(node: Node) -> str:
    """permute_copy.default, of an op of ATen or of the edge dialect."""
    name = str(getattr(node.target, "__name__", node.target))
    return name.removeprefix("aten.").removeprefix("quantized_decomposed.")


def separate(graph: torch.fx.Graph) -> None:
    """relu(conv) whose zero is not the lowest step: store what the convolution makes, so that they are two ops.

    Arm's pass drops such a relu and moves the lower limit of the quantize to zero, and then nothing reads that limit.
    """
    for node in [n for n in graph.nodes if n.op == "call_function" and n.all_input_nodes]:
        producer, after = node.all_input_nodes[0], next(iter(node.users), node)
        if fuses(producer, node) and _is_quantize(after) and after.args[2] != torch.iinfo(value_of(after).dtype).min:
            _store_between(producer, node, after)


def _store_between(producer: Node, activation: Node, after: Node) -> None:
    dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor.default
    with activation.graph.inserting_before(activation):
        stored = activation.graph.call_function(after.target, (producer, *after.args[1:]))  # type: ignore[arg-type]
        read = activation.graph.call_function(dequantize, (stored, *after.args[1:]))
    stored.meta, read.meta = dict(after.meta), dict(producer.meta)
    activation.replace_input_with(producer, read)


# ---- lowering ----


def partitioners(name: str) -> list[Any]:
    import executorch.kernels.quantized  # noqa: F401  the quantize and dequantize around a delegate, for the writer

    _find_converter()
    return [_marking(name)(_spec(name))]


@cache
def _marking(name: str) -> Any:
    base = _partitioner_class(name)

    class Marking(base):  # type: ignore[misc,valid-type]
        """Marks what runs on integers, keeps each delegate's TOSA in a folder of its own, says what it refused."""

        def transform_for_pre_decomposition(self, exported_program: Any) -> Any:
            separate(exported_program.graph)
            mark(exported_program.graph)  # what an op is taken apart into later (a reshape: clone, view) inherits it
            return super().transform_for_pre_decomposition(exported_program)

        def partition(self, exported_program: Any) -> Any:
            mark(exported_program.graph)
            result = super().partition(exported_program)
            result.partition_tags = {tag: _dumping(spec) for tag, spec in result.partition_tags.items()}
            _tell(self.reporter)
            return result

        def _create_operator_support(self, containing_program: Any, reporter: Any) -> Any:
            self.reporter = reporter
            return super()._create_operator_support(containing_program, reporter)

    return Marking


@dataclass(frozen=True)
class _Refusal:
    """A log message from which the lowering reads why an op stays on the host."""

    node: Node
    reason: str


def _tell(reporter: Any) -> None:
    import logging

    logger = logging.getLogger("executorch.backends.arm.tosa.partitioner")
    for node, reason in reporter._rejected_nodes.items():
        logger.debug(_Refusal(node, reason))


def _dumping(spec: Any) -> Any:
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from executorch.exir.backend.partitioner import DelegationSpec

    folder = tempfile.mkdtemp(prefix="ingot-tosa-")
    return DelegationSpec(spec.backend_id, [*spec.compile_specs, CompileSpec(_dump_key(), folder.encode())])


def _dump_key() -> str:
    from executorch.backends.arm.common.arm_compile_spec import ArmCompileSpec

    return ArmCompileSpec._DEBUG_ARTIFACT_KEY


_tosa: dict[str, bytes] = {}  # by the hash of the delegate's payload: what its compiler was given


def finish(graph: GraphModule) -> None:
    """Take each delegate's TOSA out of its folder, and the folder's name out of the program."""
    for node in graph.graph.nodes:
        if node.op == "get_attr" and hasattr(lowered := getattr(graph, str(node.target)), "processed_bytes"):
            _keep(lowered)


def _keep(lowered: Any) -> None:
    for spec in [s for s in lowered.compile_specs if s.key == _dump_key()]:
        folder = Path(spec.value.decode())
        _tosa[_hash(lowered.processed_bytes)] = next(folder.glob("output*.tosa")).read_bytes()
        lowered.compile_specs.remove(spec)
        shutil.rmtree(folder, ignore_errors=True)


def _hash(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


# ---- running ----


def run(pte: bytes, batches: Sequence[Any], *, timeout: float = 120, **_: Any) -> list[list[torch.Tensor]]:
    """The program step by step: delegates on the TOSA reference model, the quantize and dequantize around them here."""
    from ingot.targets.tosa_run import execute

    return execute(pte, [tuple(b) for b in batches], _tosa_of, timeout)


def _tosa_of(payload: bytes) -> bytes:
    found = _tosa.get(_hash(payload))
    if found is None:
        why = "the reference model runs the TOSA that the compiler was given, and that is kept only while lowering"
        raise ArtefactError("the TOSA of this delegate is not at hand", why=why, hint="lower it again in this process")
    return found


# ---- what an op can run in ----


_abilities: dict[tuple[str, str], Ability] = {}


def ability(target: str, node: Node) -> Ability:
    """int8 and int16 if the backend takes the op whole between a dequantize and a quantize; float if without them."""
    key = (target, _signature(node))
    if key not in _abilities:
        _learn(target, _unknown(target, node))
    return _abilities[key]


def _unknown(target: str, node: Node) -> dict[str, Node]:
    """All ops of the graph that were never asked about: one question for many takes no longer than for one."""
    asked = [n for n in node.graph.nodes if n.op == "call_function" and is_float(n)]
    by_signature = {_signature(n): n for n in [*asked, node]}
    return {s: n for s, n in by_signature.items() if (target, s) not in _abilities}


def _learn(target: str, asked: dict[str, Node]) -> None:
    """Ask about all at once; where that fails about each half, down to the op that the backend cannot even look at."""
    try:
        for signature, answer in _ask(target, asked).items():
            _abilities[(target, signature)] = answer
    except Exception as e:
        if len(asked) == 1:
            why = f"Arm's tools failed on it: {type(e).__name__}: {first_sentence(e)}"
            _abilities[(target, next(iter(asked)))] = Ability(NOWHERE, why)
            return
        items = list(asked.items())
        for half in (items[: len(items) // 2], items[len(items) // 2 :]):
            _learn(target, dict(half))


def _signature(node: Node) -> str:
    def shape(n: Node) -> Any:
        val = value_of(n)
        kind = (tuple(map(str, val.shape)), val.dtype) if isinstance(val, torch.Tensor) else _signature(n)
        return (kind, constant_of(n) is not None)

    return str((node.target, torch.fx.map_arg(node.args, shape), torch.fx.map_arg(node.kwargs, shape)))


def _ask(target: str, asked: dict[str, Node]) -> dict[str, Ability]:
    fixed = {s: n for s, n in asked.items() if not _is_dynamic(n)}
    answers = {s: Ability(NOWHERE, "dynamic shapes were not tried on this target") for s in asked if s not in fixed}
    if fixed:
        question = _Question()
        for s, n in fixed.items():
            for precision in ("int8", "float") if _spec(target).tosa_spec.support_float() else ("int8",):
                question.add(s, n, precision)
        answers |= _answers(target, question, _taken_apart(target, fixed), set(fixed))
    return answers


def _is_dynamic(node: Node) -> bool:
    vals = [value_of(n) for n in (node, *node.all_input_nodes)]
    return any(isinstance(v, torch.Tensor) and has_symbols(v.shape) for v in vals)


@dataclass
class _Question:
    """A graph in which each op stands alone, once per precision, one output each."""

    graph: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    root: torch.nn.Module = field(default_factory=torch.nn.Module)
    inputs: list[torch.Tensor] = field(default_factory=list)
    keys: list[tuple[str, str]] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)

    def add(self, signature: str, node: Node, precision: str) -> None:
        out = self._copy(node, precision)
        self.outputs.append(out if precision == "float" else self._rounded(out, precision))
        self.keys.append((signature, precision))

    def _copy(self, node: Node, precision: str) -> Node:
        """The op with operands of its own; behind a getitem the op that it takes from."""
        made = {n: self._operand(node, n, i, precision) for i, n in enumerate(operands(node))}
        args, kwargs = (torch.fx.map_arg(a, lambda n: made[n]) for a in (node.args, node.kwargs))
        return self.graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type]

    def _operand(self, node: Node, n: Node, i: int, precision: str) -> Node:
        if not isinstance(value_of(n), torch.Tensor):
            return self._copy(n, precision)
        constant = constant_of(n)
        if precision == "float" or not is_float(n):
            return self._input(n) if constant is None else self._constant(constant)
        if constant is None:
            return self._rounded(self._input(n), precision)
        if weight_axis(node) is not None and i in (1, 2):
            return self._channels(constant, "int8" if i == 1 else "int32", weight_axis(node) if i == 1 else 0)
        stored = self._constant(torch.zeros(constant.shape, dtype=getattr(torch, precision)))
        return self._dequantized(stored, precision)

    def _input(self, n: Node) -> Node:
        val = value_of(n)
        self.inputs.append(torch.zeros(tuple(val.shape), dtype=val.dtype))
        node = self.graph.create_node("placeholder", f"x{len(self.inputs)}")
        return node

    def _constant(self, tensor: torch.Tensor) -> Node:
        name = f"c{len(list(self.root.buffers()))}"
        self.root.register_buffer(name, tensor.detach().clone())
        return self.graph.get_attr(name)

    def _rounded(self, x: Node, precision: str) -> Node:
        form, q = FORMATS[precision], torch.ops.quantized_decomposed.quantize_per_tensor.default
        args = (1 / 64, 0, form.qmin, form.qmax, getattr(torch, precision))
        return self._dequantized(self.graph.call_function(q, (x, *args)), precision)

    def _dequantized(self, x: Node, precision: str) -> Node:
        form, dq = FORMATS[precision], torch.ops.quantized_decomposed.dequantize_per_tensor.default
        return self.graph.call_function(dq, (x, 1 / 64, 0, form.qmin, form.qmax, getattr(torch, precision)))

    def _channels(self, constant: torch.Tensor, dtype: str, axis: int | None) -> Node:
        kind, many = getattr(torch, dtype), constant.shape[axis or 0]
        stored = self._constant(torch.zeros(constant.shape, dtype=kind))
        scales = self._constant(torch.full((many,), 1 / 64))
        zeros = self._constant(torch.zeros(many, dtype=torch.int64))
        limits = torch.iinfo(kind)
        dq = torch.ops.quantized_decomposed.dequantize_per_channel.default
        return self.graph.call_function(dq, (stored, scales, zeros, axis or 0, limits.min + 1, limits.max, kind))

    def exported(self) -> Any:
        self.graph.output(tuple(self.outputs))
        return self._export(_placeholders_first(self.root, self.graph))

    def _export(self, module: GraphModule) -> Any:
        with torch.no_grad():
            return torch.export.export(module, tuple(self.inputs), strict=False)


FORMATS = {"int8": INT8, "int16": INT16}


def _placeholders_first(root: torch.nn.Module, graph: torch.fx.Graph) -> GraphModule:
    first = next(iter(graph.nodes))
    for node in [n for n in graph.nodes if n.op == "placeholder"]:
        if node is not first:
            first.append(node)
            first = node
    return GraphModule(root, graph)


def _answers(target: str, question: _Question, apart: dict[str, str], signatures: set[str]) -> dict[str, Ability]:
    asking, program = _partitioned(target, question.exported())
    found = _refusals(asking, program, question.keys)
    found |= _refusals(*_again_in_int16(asking, program), [(s, p.replace("int8", "int16")) for s, p in question.keys])
    runs = {s: {p for (t, p), why in found.items() if t == s and not why} for s in signatures}
    reasons = {s: [f"{p}: {why}" for (t, p), why in found.items() if t == s and why] for s in signatures}
    for s in apart:
        runs[s] &= {"float"}
    return {s: Ability(frozenset(runs[s]), _because(apart.get(s), reasons[s])) for s in signatures}


def _because(apart: str | None, reasons: list[str]) -> str:
    return apart or "; ".join(dict.fromkeys(reasons)) or "Arm's partitioner takes it"


def _refusals(asking: Any, program: Any, keys: list[tuple[str, str]]) -> dict[tuple[str, str], str | None]:
    rejected = asking.reporter._rejected_nodes
    return {k: _refusal(k, o, rejected) for k, o in zip(keys, _outputs_of(program), strict=True)}


def _again_in_int16(asking: Any, program: Any) -> tuple[Any, Any]:
    """The same graph with every int8 activation made int16: only its roundings change."""
    for node in program.graph.nodes:
        node.meta.pop("delegation_tag", None)
        if _is_rounding(node) and node.args[-1] is torch.int8 and "per_tensor" in _op_name(node):
            node.args = (*node.args[:3], INT16.qmin, INT16.qmax, torch.int16)
            stored = node if _is_quantize(node) else node.all_input_nodes[0]
            stored.meta["val"] = value_of(stored).to(torch.int16)
    with contextlib.suppress(_Asked):
        asking.partition(program)
    return asking, program


class _Asked(Exception):
    """Ends the lowering once the partitioner has answered."""


def _partitioned(target: str, exported: Any) -> tuple[Any, Any]:
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    base = _partitioner_class(target)

    class Asking(base):  # type: ignore[misc,valid-type]
        def partition(self, exported_program: Any) -> Any:
            mark(exported_program.graph)
            base.partition(self, exported_program)
            self.seen = exported_program
            raise _Asked

        def _create_operator_support(self, containing_program: Any, reporter: Any) -> Any:
            self.reporter = reporter
            return super()._create_operator_support(containing_program, reporter)

    asking = Asking(_spec(target))
    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=False)
    try:
        to_edge_transform_and_lower(exported, partitioner=[asking], compile_config=config)
    except _Asked:
        return asking, asking.seen
    raise AssertionError("the partitioner was not asked")


def _outputs_of(program: Any) -> list[Node]:
    return list(program.graph.output_node().args[0])


def _refusal(key: tuple[str, str], output: Node, rejected: dict[Node, str]) -> str | None:
    """Why the op is not taken, or not whole; None where it is."""
    for node in _behind(output):
        if "delegation_tag" not in node.meta:
            return rejected.get(node, f"{_op_name(node)} is left outside")
        if key[1] != "float" and not is_marked(node):
            return f"it becomes several ops, of which {_op_name(node)} would run in float"
    return None


def _behind(output: Node) -> Iterator[Node]:
    """The ops between an output and its inputs, roundings aside."""
    seen, todo = set(), [output]
    while todo:
        node = todo.pop()
        if node in seen or node.op != "call_function":
            continue
        seen.add(node)
        todo += node.all_input_nodes
        if not _is_rounding(node):
            yield node


def _taken_apart(target: str, fixed: dict[str, Node]) -> dict[str, str]:
    """Ops that Arm's own flow takes apart before it quantizes: whole and on integers its later passes may die."""
    question = _Question()
    for signature, node in fixed.items():
        question.add(signature, node, "float")
    module = question.exported().module(check_guards=False)
    before = [{n.target for n in _behind(o)} for o in _outputs_flat(module)]
    after = [{n.target for n in _behind(o)} for o in _outputs_flat(_decomposed(target, module))]
    parts = {s: now - was for (s, _), was, now in zip(question.keys, before, after, strict=True)}
    return {s: f"Arm's flow takes it apart first, into {_names(new)}" for s, new in parts.items() if new}


def _names(targets: Iterable[Any]) -> str:
    return ", ".join(sorted(str(t).removeprefix("aten.") for t in targets))


def _outputs_flat(module: GraphModule) -> list[Node]:
    out = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    return [n for n in torch.utils._pytree.tree_leaves(out.args[0]) if isinstance(n, Node)]


def _decomposed(target: str, module: GraphModule) -> GraphModule:
    from executorch.backends.arm._passes.arm_pass_manager import ArmPassManager

    return ArmPassManager(_spec(target)).transform_for_annotation_pipeline(module)


# ---- the rest of what a target says ----


def fuses(producer: Node, activation: Node) -> bool:
    """A relu at the end of a convolution or a linear (see `separate`); a clamp only at some scales, so never."""
    return weight_axis(producer) is not None and activation.target is torch.ops.aten.relu.default


def rescales(node: Node) -> bool:
    return False


def rules(target: str) -> Sequence[Any]:
    return (_Decompositions(target),)


@dataclass(frozen=True)
class _Decompositions:
    """Softmax, norms, means, divisions, scalars … taken apart as Arm's own flow does before it quantizes."""

    target: str
    name: str = "arm-decompositions"

    def apply(self, module: GraphModule) -> list[str]:
        before = {n.name: n for n in module.graph.nodes}
        for node in before.values():
            node.meta.setdefault("ingot_value", node.name)
        made = _decomposed(self.target, module)
        gone = [n for n in before.values() if n.op == "call_function" and not _survives(n, made)]
        _last_keeps_identity(made)
        _become(module, made)
        return [f"{n.name} ({source_of(n)})" for n in gone]


def _survives(node: Node, made: GraphModule) -> bool:
    same = [n for n in made.graph.nodes if n.meta.get("ingot_value") == node.meta["ingot_value"]]
    return len(same) == 1 and same[0].target == node.target


def _last_keeps_identity(module: GraphModule) -> None:
    """What replaces an op inherits its meta data; only the last of them holds its value."""
    seen: set[str] = set()
    for node in reversed(module.graph.nodes):
        value = node.meta.get("ingot_value")
        if value in seen:
            node.meta = {k: v for k, v in node.meta.items() if k != "ingot_value"}
        elif value is not None:
            seen.add(value)


def _become(module: GraphModule, made: GraphModule) -> None:
    if made is not module:
        for name, tensor in (*made.named_buffers(), *made.named_parameters()):
            if "." not in name and not hasattr(module, name):
                module.register_buffer(name, tensor.detach())
        module.graph = made.graph
    module.recompile()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(name: str, version: str, *, alone: bool = False) -> Requirement:
    line = f"pip install {'--no-deps ' if alone else ''}{name}=={version}"
    return Requirement(name, lambda: _version(name), line)


def _converter() -> str | None:
    try:
        from executorch.backends.arm.vgf.model_converter import find_model_converter_binary
    except ImportError:
        return None
    _find_converter()
    return find_model_converter_binary()


def _find_converter() -> None:
    """The converter is installed beside this Python, which need not be on the PATH."""
    import os
    import sys

    beside = Path(sys.executable).parent / "model-converter"
    if beside.exists():
        os.environ.setdefault("MODEL_CONVERTER_PATH", str(beside))


COMMON = (
    _package("torch", "2.13.0"),
    _package("executorch", "1.5.1"),
    _package("torchao", "0.18.0"),
    _package("tosa-tools", "2026.5.0", alone=True),  # its pins of numpy and flatbuffers are older than it needs
    _package("ml_dtypes", "0.5.1"),
)
CONVERTER = Requirement("model-converter", _converter, "pip install ai_ml_sdk_model_converter==0.11.0")
VELA = _package("ethos-u-vela", "5.1.0")


def _target(name: str, backend: str, description: str, needs: Iterable[Requirement], prices: Prices) -> Target:
    return Target(
        name=name,
        backend=backend,
        description=description,
        requirements=(*COMMON, *needs),
        formats=FORMATS,
        weight=WEIGHT,
        ability=partial(ability, name),
        fuses=fuses,
        rescales=rescales,
        float_inside=name == "vgf",
        float_bias=False,
        weight_axis=weight_axis,
        rules=partial(rules, name),
        partitioners=partial(partitioners, name),
        run=run,
        executed_on="TOSA reference model, on what the compiler was given",
        prices=prices,
        finish=finish,
    )


NPU = Prices({"int8": 1.0, "int16": 2.0, "float": 100.0})
VGF = _target("vgf", "VgfBackend", "Arm GPUs with neural accelerators, through VGF", [CONVERTER],
              Prices({"int8": 1.0, "int16": 2.0, "float": 4.0}))  # fmt: skip
ETHOS_U55 = _target("ethos-u55-128", "EthosUBackend", "Arm Ethos-U55 with 128 MACs", [VELA], NPU)
ETHOS_U85 = _target("ethos-u85-256", "EthosUBackend", "Arm Ethos-U85 with 256 MACs", [VELA], NPU)
