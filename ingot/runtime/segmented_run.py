"""Runs a .pte by segments: delegates of some backends on executors in Python, the rest on the ExecuTorch runtime."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ingot.errors import ArtefactError
from ingot.runtime.elided_views import elided_views
from ingot.targets.base import Executor

Values = dict[int, torch.Tensor]  # by index of the value in the program, for one batch


@dataclass(frozen=True)
class PteSegment:
    """Consecutive instructions that run in one place; `payload` is None for those of the runtime."""

    instructions: tuple[Any, ...]
    backend: str = ""
    payload: bytes | None = None


def run_segmented(
    pte: bytes,
    batches: Sequence[tuple[Any, ...]],
    executors: Mapping[str, Executor],
    timeout: float,
    method: str = "forward",
) -> list[list[torch.Tensor]]:
    return run_segmented_file(read_pte(pte, method), batches, executors, timeout)


def run_segmented_file(
    file: Any, batches: Sequence[tuple[Any, ...]], executors: Mapping[str, Executor], timeout: float
) -> list[list[torch.Tensor]]:
    """Outputs by batch. All batches pass a segment together; a program with state runs one batch after the other."""
    file, state = _extract_state(file)
    plan, segments = file.program.execution_plan[0], list(segments_of(file.program, executors))
    made = list[list[torch.Tensor]]()
    for group in [[b] for b in batches] if state else [batches]:
        values = [_initial_values(plan, batch) | state for batch in group]
        _run_all(file, segments, values, executors, timeout, state)
        made += [[_value(file.program, i, v) for i in plan.outputs] for v in values]
        state = {i: values[0][i] for i in state}
    return made


def _run_all(
    file: Any, segments: list[PteSegment], values: list[Values], executors: Mapping[str, Executor], timeout: float,
    state: Collection[int],
) -> None:  # fmt: skip
    plan = file.program.execution_plan[0]
    views = elided_views(plan)
    for i, segment in enumerate(segments):
        needed = {v for later in segments[i + 1 :] for v in _accessed_values(plan, later)} | set(plan.outputs)
        needed |= {views[v] for v in needed if v in views}
        _add_views(plan, views, values)
        if segment.payload is None:
            _run_on_runtime(file, segment, values, needed, timeout, state)
        else:
            _run_on_executor(file.program, segment, values, executors[segment.backend])
    _add_views(plan, views, values)


def _add_views(plan: Any, views: Mapping[int, int], values: list[Values]) -> None:
    for v in values:
        v |= {i: v[of].reshape(plan.values[i].val.sizes) for i, of in views.items() if of in v and i not in v}


def read_pte(pte: bytes, method: str = "forward") -> Any:
    """The deserialised file, reduced to one method."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    try:
        file = deserialize_pte_binary(pte)
    except Exception as e:
        raise ArtefactError(
            "the program does not load", why=f"{type(e).__name__}: {e}", hint="check that the file is a .pte"
        ) from e
    plans = [p for p in file.program.execution_plan if p.name == method]
    if not plans:
        raise ArtefactError(f"the program has no method '{method}'")
    _refuse_missing_values(plans[0])
    return replace(file, program=replace(file.program, execution_plan=plans))


def _refuse_missing_values(plan: Any) -> None:
    """A damaged file may name values that it does not have."""
    odd = next((i for i in (*plan.inputs, *plan.outputs) if not 0 <= i < len(plan.values)), None)
    if odd is not None:
        why = f"an input or output is value {odd}, and it has {len(plan.values)}"
        raise ArtefactError("the program is damaged", why=why, hint="write the file again")


def _extract_state(file: Any) -> tuple[Any, Values]:
    """The file with its mutable buffers as ordinary values, and their initial contents.

    Each segment is a program of its own: it takes the state as inputs and returns it as outputs.
    """
    plan, stored = file.program.execution_plan[0], file.mutable_data or []
    buffers = {i: v.val for i, v in enumerate(plan.values) if _is_state(v.val)}
    state = {i: _tensor_from_bytes(stored[val.data_buffer_idx].storage, val) for i, val in buffers.items()}
    values = [
        replace(v, val=replace(v.val, data_buffer_idx=0)) if i in buffers else v for i, v in enumerate(plan.values)
    ]
    program = replace(file.program, execution_plan=[replace(plan, values=values)])
    return replace(file, program=program, mutable_data=None), state


def _is_state(val: Any) -> bool:
    """A mutable buffer: it has planned memory, and initial data in the file."""
    return type(val).__name__ == "Tensor" and val.data_buffer_idx > 0 and val.allocation_info is not None


def _initial_values(plan: Any, batch: tuple[Any, ...]) -> Values:
    if len(batch) != len(plan.inputs):
        raise ArtefactError(f"the program takes {len(plan.inputs)} inputs and was given {len(batch)}")
    return dict(zip(plan.inputs, batch, strict=True))


def segments_of(program: Any, executors: Collection[str]) -> Iterator[PteSegment]:
    """One segment for each delegate of `executors`, and one for the instructions between two of them."""
    plan, between = program.execution_plan[0], list[Any]()
    for instruction in plan.chains[0].instructions:
        delegate = _delegate(plan, instruction)
        if delegate is None or delegate.id not in executors:
            between += [instruction] if _has_effect(instruction) else []
            continue
        yield from [PteSegment(tuple(between))] if between else []
        between = []
        yield PteSegment((instruction,), delegate.id, program.backend_delegate_data[delegate.processed.index].data)
    yield from [PteSegment(tuple(between))] if between else []


def _delegate(plan: Any, instruction: Any) -> Any:
    index = getattr(instruction.instr_args, "delegate_index", None)
    return None if index is None else plan.delegates[index]


def _has_effect(instruction: Any) -> bool:
    """A FreeCall has none: memory is not freed between segments. A jump could leave its segment: refused."""
    kind = type(instruction.instr_args).__name__
    if kind == "JumpFalseCall":
        raise ArtefactError("the program cannot be run segment by segment", why="it branches between delegates")
    return kind != "FreeCall"


def _accessed_values(plan: Any, segment: PteSegment) -> list[int]:
    """The values that a segment reads or writes, also those in lists, each once."""
    found: dict[int, None] = {}
    for instruction in segment.instructions:
        call = instruction.instr_args
        for i in call.args if hasattr(call, "args") else (call.move_from, call.move_to):
            found |= dict.fromkeys([i, *_list_items(plan.values[i].val)])
    return list(found)


def _list_items(val: Any) -> list[int]:
    """-1 in a list means no tensor."""
    return [i for i in val.items if i >= 0] if type(val).__name__ in ("TensorList", "OptionalTensorList") else []


def _is_variable(val: Any) -> bool:
    return type(val).__name__ == "Tensor" and val.data_buffer_idx == 0


# ---- on the runtime ----


def _run_on_runtime(
    file: Any, segment: PteSegment, values: list[Values], needed: set[int], timeout: float, state: Collection[int]
) -> None:
    """Run the segment as a program of its own.

    Memory is planned for the whole program, so values that are alive before or after the segment do not overlap.
    """
    from ingot.runtime.worker import run_pte

    plan = file.program.execution_plan[0]
    accessed = [i for i in _accessed_values(plan, segment) if _is_variable(plan.values[i].val)]
    inputs = [i for i in accessed if i in values[0]]
    outputs = [i for i in accessed if i in state or (i not in values[0] and i in needed)]
    batches = [tuple(v[i] for i in inputs) for v in values]
    pte = _segment_pte(file, segment, inputs, outputs)
    for v, made in zip(values, run_pte(pte, batches, timeout=timeout, method=plan.name), strict=True):
        v |= dict(zip(outputs, made, strict=True))


def _segment_pte(file: Any, segment: PteSegment, inputs: list[int], outputs: list[int]) -> bytes:
    """The segment as a .pte with the values, constants and memory plan of the whole program."""
    from executorch.exir._serialize._program import PTEFile, serialize_pte_binary

    program, plan = file.program, file.program.execution_plan[0]
    calls = [i.instr_args for i in segment.instructions]
    used = list(dict.fromkeys(c.delegate_index for c in calls if hasattr(c, "delegate_index")))
    chain = replace(plan.chains[0], inputs=inputs, outputs=outputs, stacktrace=None)
    chain.instructions = [replace(i, instr_args=_with_delegate_index(i.instr_args, used)) for i in segment.instructions]
    delegates = [plan.delegates[i] for i in used]
    part = replace(plan, inputs=inputs, outputs=outputs, chains=[chain], delegates=delegates)
    data = program.backend_delegate_data if delegates else []
    whole = replace(program, execution_plan=[part], backend_delegate_data=data)
    return bytes(serialize_pte_binary(PTEFile(whole, None, file.named_data)))


def _with_delegate_index(call: Any, used: list[int]) -> Any:
    delegate = getattr(call, "delegate_index", None)
    return call if delegate is None else replace(call, delegate_index=used.index(delegate))


# ---- on an executor ----


def _run_on_executor(program: Any, segment: PteSegment, values: list[Values], executor: Executor) -> None:
    assert segment.payload is not None
    plan = program.execution_plan[0]
    inputs, outputs = segment_io(plan, segment, values[0])
    arrays_by_batch = [
        [to_memory_order(_value(program, i, v), plan.values[i].val.dim_order) for i in inputs] for v in values
    ]
    for v, arrays in zip(values, executor(segment.payload, arrays_by_batch, len(outputs)), strict=True):
        v |= {i: _from_executor(a, plan.values[i].val, segment) for i, a in zip(outputs, arrays, strict=True)}


def _from_executor(array: Any, info: Any, segment: PteSegment) -> torch.Tensor:
    """int32 results become int64 where the program declares int64. TOSA has no uint8: the bytes are those of int8."""
    if not isinstance(array, np.ndarray):
        why, hint = "the runtime gives a delegate tensors to fill, and no numbers", "fix that size: shapes=[…]"
        raise ArtefactError(f"a delegate of {segment.backend} returns a size", why=why, hint=hint)
    x, declared = _to_tensor(array, info), torch_dtype_of(info)
    if x.dtype == torch.int8 and declared == torch.uint8:
        return x.view(torch.uint8)
    return x.long() if x.dtype == torch.int32 and declared == torch.int64 else x


def segment_io(plan: Any, segment: PteSegment, known: Collection[int]) -> tuple[list[int], list[int]]:
    """Inputs (computed before, or constant) and outputs of a delegate, in the order of its arguments."""
    tensors = [i for i in _accessed_values(plan, segment) if type(plan.values[i].val).__name__ == "Tensor"]
    reads = [i for i in tensors if i in known or not _is_variable(plan.values[i].val)]
    return reads, [i for i in tensors if i not in reads]


def to_memory_order(x: torch.Tensor, order: list[int]) -> Any:
    """The array in the order of its memory: delegates take buffers without strides."""
    return x.detach().permute(*order).contiguous().numpy() if x.dim() else x.detach().numpy()


def _to_tensor(array: Any, info: Any) -> torch.Tensor:
    order, varies = list(info.dim_order), info.shape_dynamism.name != "STATIC"
    stored = torch.from_numpy(array)
    if not stored.numel():
        return torch.empty(list(array.shape if varies else info.sizes), dtype=stored.dtype)  # numpy's strides are 0
    stored = (
        stored if varies else stored.reshape([info.sizes[i] for i in order])
    )  # a dynamic tensor declares its largest size
    return stored.permute(*[order.index(i) for i in range(len(order))]) if order else stored


def _value(program: Any, i: int, v: Values) -> torch.Tensor:
    return v[i] if i in v else constant_value(program, i)


def torch_dtype_of(info: Any) -> torch.dtype:
    from executorch.exir.tensor import scalar_type_table

    return next(d for d, s in scalar_type_table.items() if s == info.scalar_type)


def constant_value(program: Any, i: int) -> torch.Tensor:
    """A constant of the program, read from the file."""
    info = program.execution_plan[0].values[i].val
    return _tensor_from_bytes(program.constant_buffer[info.data_buffer_idx].storage, info)


def _tensor_from_bytes(storage: bytes, info: Any) -> torch.Tensor:
    stored = torch.frombuffer(bytearray(storage), dtype=torch_dtype_of(info))
    return _to_tensor(stored[: math.prod(info.sizes)].numpy(), info)  # the rest is padding
