"""From a module or an exported program to a `Program`: functional, in canonical form, with compared outputs."""

from __future__ import annotations

import hashlib
import io
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._sympy.numbers import int_oo

from ingot.capture.canonicalize import composite_ops
from ingot.capture.canonicalize.identities import views_as_reshapes
from ingot.capture.canonicalize.passes import PassRecord, canonicalize
from ingot.capture.constant_decisions import ConstantDecisions
from ingot.capture.control_flow import has_control_flow, inline_control_flow
from ingot.capture.device import on_cpu
from ingot.capture.inputs import Batch, Call, Inputs, call_of, flat_inputs, in_layout_of
from ingot.capture.kv_buffers import KVBuffers
from ingot.capture.method_for import MAIN_METHOD, method_for
from ingot.capture.op_semantics import effect_of
from ingot.capture.op_semantics.weighted_ops import is_random
from ingot.core.fx import calls, constant_of, is_state, output_nodes, source_of
from ingot.core.host_memory import evict_pages, gc_paused
from ingot.core.tensor_bytes import raw_bytes
from ingot.core.torch_modes import callers_dtype
from ingot.errors import CaptureError, InputError, first_sentence
from ingot.patches.decompose import decompose_per_op
from ingot.patches.speed_contexts import fast_export, lazy_codegen


@dataclass(frozen=True, eq=False)
class Program:
    """A model in canonical form, which all later steps read. Independent of targets."""

    module: GraphModule  # canonical form: flat inputs, flat outputs, functional but for the final buffer updates
    reference: GraphModule  # as exported, before any pass of ours: what "the float model" means
    example_inputs: tuple[torch.Tensor, ...]  # flat
    in_places: tuple[str, ...]  # where each flat input stands in the user's batch
    dynamic_shapes: tuple[Any, ...] | None  # per flat input, for exporting again
    state: dict[str, torch.Tensor] = field(default_factory=dict)  # mutable buffers and their initial values
    notes: tuple[str, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    rewritten_for: str = ""  # the target that it was rewritten for already
    exported: ExportedProgram | None = field(default=None, repr=False)  # the user's model, to be saved
    bounded_dims: Mapping[int, frozenset[int]] = field(default_factory=dict)  # inputs whose dimensions may be shorter
    kv_buffers: KVBuffers | None = None  # the file gets them as state; the captured step takes rows of them
    others: Mapping[str, Program] = field(default_factory=dict)  # the same model at other sizes: further methods

    @property
    def fingerprint(self) -> str:
        """Names the graph: records and plans made for another one are refused."""
        digest = hashlib.sha256()
        for n in self.module.graph.nodes:
            digest.update(f"{n.name} {n.target} {n.args} {n.kwargs}\n".encode())
            digest.update(_sample(constant_of(n)))
        return digest.hexdigest()[:16]

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(n.name for n in self.module.graph.nodes if n.op == "placeholder")

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(n.name for n in output_nodes(self.module))

    def flatten(self, inputs: object) -> tuple[torch.Tensor, ...]:
        """A user's batch as the flat tuple the program takes; refuses a wrong number, shape or dtype."""
        return flat_inputs(self.methods[method_for(self.methods, inputs)], inputs)

    @property
    def methods(self) -> dict[str, Program]:
        """The program of each method of the file."""
        return {MAIN_METHOD: self, **self.others}


def _sample(tensor: torch.Tensor | None) -> bytes:
    """A few thousand bytes of a constant, spread over it: another checkpoint differs in some of them."""
    if tensor is None or not tensor.numel():
        return b""
    raw = raw_bytes(tensor)
    found = bytes(raw[:: max(1, raw.numel() // 4096) | 1].tolist())
    evict_pages()  # all over it: every page was read
    return found


@gc_paused()
def capture_program(
    model: torch.nn.Module | ExportedProgram, example_inputs: Batch | None = None, *, dynamic_shapes: object = None
) -> Program:
    """Export `model` and bring it into canonical form, which is compared with it on the example inputs."""
    model, inputs, moved = on_cpu(model, _example_call(model, example_inputs))
    inputs = pytree.tree_map_only(torch.Tensor, lambda x: in_layout_of(x, x), inputs)
    exported, notes = _export(model, inputs, dynamic_shapes)
    flat = tuple(pytree.tree_leaves(exported.example_inputs or inputs))
    plain, inlined = inline_control_flow(exported) if has_control_flow(exported) else (exported, [])
    functional = _functional(plain)
    _refuse_writes(functional)
    with lazy_codegen():
        reference, module = flat_module(exported), flat_module(functional)  # with and without control flow
        _refuse_training(module)
        passes = canonicalize(module, flat)
    reference.recompile()
    module.recompile()
    state = {name: module.get_buffer(name).detach().clone() for name in _mutated(module)}
    program = Program(
        module=module,
        reference=reference,
        example_inputs=flat,
        in_places=_places(exported, inputs),
        dynamic_shapes=_dynamic_shapes(functional),
        state=state,
        notes=(*moved, *notes, *inlined),
        passes=passes,
        exported=exported,
    )
    program.flatten(Inputs(*inputs[0], **inputs[1]))  # an exported program has examples of its own: do these fit?
    return program


def _example_call(model: object, example_inputs: object) -> Call:
    if example_inputs is not None:
        return call_of(example_inputs)
    own = model.example_inputs if isinstance(model, ExportedProgram) else None
    if own is None:
        raise InputError("no example inputs", why="the model is exported on them", hint="ingot.cast(model, (x,), …)")
    return own


def _places(exported: ExportedProgram, inputs: Call) -> tuple[str, ...]:
    given: Any = exported.example_inputs or inputs
    return tuple(pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(given)[0])


def _export(model: Any, inputs: Call, dynamic_shapes: Any) -> tuple[ExportedProgram, list[str]]:
    if isinstance(model, ExportedProgram):
        return model, []
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"the model must be a torch.nn.Module or an ExportedProgram, not {type(model).__name__}")
    trains = model.training and not _from_export(model)
    notes = ["the model was in training mode; it was captured in eval mode"] if trains else []
    with _eval_mode(model), torch.no_grad(), callers_dtype():
        _try_eager(model, inputs)
        try:
            return _exported(model, inputs, dynamic_shapes), notes
        except Exception as e:
            raise CaptureError(
                "the model does not export",
                where=user_frame(e),
                why=first_sentence(e),
                hint="make that line free of data-dependent Python (if, .item(), numpy), or give dynamic_shapes",
            ) from e


def _exported(model: torch.nn.Module, inputs: Call, dynamic_shapes: Any) -> ExportedProgram:
    """By torch; where it refuses Python decisions, once more with those that depend on constants alone."""
    args, kwargs = inputs
    with redirect_stderr(io.StringIO()):  # where torch prints the graph that it could not finish
        try:
            return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
        except Exception:
            with ConstantDecisions(model) as decisions, suppress(Exception):
                again = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
                if decisions.decided and not decisions.wrote:
                    return again
            raise


def _from_export(model: torch.nn.Module) -> bool:
    """`exported.module()`: its mode was fixed when it was exported."""
    return isinstance(model, GraphModule) and "from_node" in next(iter(model.graph.nodes)).meta


def _frozen(error: Exception) -> str | None:
    """Weights that were quantized in bfloat16 and unwrapped give bfloat16 for ever, whatever the model is cast to."""
    if "dtype" not in str(error) or ("BFloat16" not in str(error) and "Half" not in str(error)):
        return None
    return (
        "is the model partly in another type? Quantized weights keep the type they were unwrapped in: "
        "call model.to(torch.float32) before unwrap_tensor_subclass, or do not unwrap them"
    )


def _try_eager(model: torch.nn.Module, inputs: Call) -> None:
    """One eager run: torch.export accepts some dtype mixes that eager refuses. State is put back."""
    before = {k: v.clone() for k, v in model.named_buffers()}
    try:
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, inputs)
        model(*args, **kwargs)
    except Exception as e:
        raise InputError(
            "the model does not run on the example inputs",
            where=user_frame(e),
            why=first_sentence(e),
            hint=_frozen(e) or "check number, shape and dtype of the example inputs",
        ) from e
    finally:
        for k, v in model.named_buffers():
            if k in before and v.shape == before[k].shape and not _is_expanded(v):
                v.copy_(before[k])


def _is_expanded(buffer: torch.Tensor) -> bool:
    """Elements share memory: torch writes to no such tensor, the model cannot have done so either."""
    return any(n > 1 and step == 0 for n, step in zip(buffer.shape, buffer.stride(), strict=True))


@contextmanager
def _eval_mode(model: torch.nn.Module) -> Iterator[None]:
    modes = {m: m.training for m in model.modules()}
    with suppress(NotImplementedError):  # the module of an exported program: its mode was fixed when it was exported
        model.eval()
    try:
        yield
    finally:
        for m, training in modes.items():
            m.training = training


def _functional(exported: ExportedProgram) -> ExportedProgram:
    """In-place code, views' aliases and no_grad regions go; conv, linear, softmax and the like stay whole."""
    try:
        with fast_export():
            hidden = composite_ops.decompositions(exported.graph)
            program, done = _decomposed(exported, hidden), set(hidden)
            while hidden := {o: how for o, how in composite_ops.decompositions(program.graph).items() if o not in done}:
                program, done = _decomposed(program, hidden), done | set(hidden)
            return program
    except Exception as e:
        raise CaptureError(
            "the exported program cannot be made functional", where=user_frame(e), why=first_sentence(e)
        ) from e


def _decomposed(exported: ExportedProgram, table: dict[Any, Any]) -> ExportedProgram:
    """Op by op where that is enough; composite ops by torch, which keeps some of their parts whole."""
    with lazy_codegen():
        alone = None if any(map(composite_ops.must_decompose, table)) else decompose_per_op(exported, table)
    return _traced(exported, table) if alone is None else alone


def _traced(exported: ExportedProgram, table: dict[Any, Any]) -> ExportedProgram:
    """A decomposition of torch may itself write in place (affine_grid); then movement keeps the form it has."""
    try:
        return exported.run_decompositions(table)
    except Exception:
        required = composite_ops.required_decompositions(exported.graph)
        if not table.keys() - required.keys():
            raise
        return exported.run_decompositions(required)


def flat_module(exported: ExportedProgram) -> GraphModule:
    """The program as a plain graph module over flat inputs and flat outputs."""
    module = exported.module(check_guards=False)
    _own_state(module)
    module.graph.set_codegen(torch.fx.graph.CodeGen())
    out = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    out.args = (tuple(pytree.tree_leaves(out.args[0])),)
    views_as_reshapes(module)  # a kernel's strides may differ from those that were traced
    return GraphModule(module, module.graph)  # anew: without the hooks that check for nested inputs


def _own_state(module: GraphModule) -> None:
    """Mutable buffers of our own: running the program must not write into the user's model."""
    written = set(_mutated(module))
    for node in module.graph.nodes:
        if node.op == "get_attr" and node.target in written:
            node.meta["ingot_state"] = True
    for name in written:
        owner, _, leaf = name.rpartition(".")
        module.get_submodule(owner).register_buffer(leaf, module.get_buffer(name).detach().clone())


def _differs(node: Node) -> bool:
    """Two runs give two results; attention and dropout in eval can draw numbers too, but do not."""
    return not node.all_input_nodes or effect_of(node).reason.startswith("random")


def _refuse_writes(functional: ExportedProgram) -> None:
    written = list(functional.graph_signature.user_inputs_to_mutate.values())
    if written:
        raise CaptureError(
            f"the model writes into its input '{written[0]}'",
            why="an artefact has inputs of its own; what is written there reaches nobody",
            hint="work on a copy: x = x.clone()",
        )


def _refuse_training(module: GraphModule) -> None:
    for node in calls(module):
        if is_random(node) and _differs(node):
            raise CaptureError(
                f"the model draws random numbers ({node.target})",
                where=source_of(node),
                why="there is no right answer to compare the artefact with",
                hint="export in eval mode, or make the noise an input",
            )
        if "batch_norm" in str(node.target) and any(n.op == "get_attr" and is_state(n) for n in node.all_input_nodes):
            raise CaptureError(
                "a batch norm is in training mode", where=source_of(node), hint="export the model in eval mode"
            )


def _mutated(module: GraphModule) -> list[str]:
    return [
        str(n.args[0].target)
        for n in module.graph.nodes
        if n.op == "call_function" and n.target is torch.ops.aten.copy_.default and n.args[0].op == "get_attr"
    ]


def _dynamic_shapes(exported: ExportedProgram) -> tuple[Any, ...] | None:
    """For exporting the quantized graph again: the same dimensions are dynamic, within the same limits."""
    names = [s for s in exported.graph_signature.user_inputs if isinstance(s, str)]
    by_name = {n.name: n.meta["val"] for n in exported.graph.nodes if n.op == "placeholder"}
    specs = [_dims(by_name[name], exported) for name in names]
    return tuple(specs) if any(specs) else None


def _dims(val: Any, exported: ExportedProgram) -> dict[int, Any] | None:
    if not isinstance(val, torch.Tensor):
        return None
    dims = {i: _dim(d, exported) for i, d in enumerate(val.shape) if isinstance(d, torch.SymInt)}
    return dims or None


def _dim(size: Any, exported: ExportedProgram) -> Any:
    limits = exported.range_constraints.get(size.node.expr)
    if limits is None:
        return Dim.DYNAMIC
    low, high = int(limits.lower), limits.upper
    return Dim.DYNAMIC(min=low) if high == int_oo else Dim.DYNAMIC(min=low, max=int(high))


def user_frame(error: BaseException) -> str | None:
    """The innermost line of the traceback that is neither torch's nor ours."""
    ours = str(Path(__file__).parents[1])
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in f.filename and ours not in f.filename and "<" not in f.filename
    ]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None


def restore_state(module: GraphModule, state: dict[str, torch.Tensor]) -> None:
    """Put mutable buffers back to their initial values."""
    with torch.no_grad():
        for name, value in state.items():
            module.get_buffer(name).copy_(value)
