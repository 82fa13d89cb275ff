"""Run a .pte piece by piece: some backends' delegates by executors of ours, all between on the ExecuTorch runtime."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ingot.errors import ArtefactError
from ingot.targets.base import Executor

Values = dict[int, torch.Tensor]  # what each value of the program holds, for one batch


@dataclass(frozen=True)
class Segment:
    """Instructions that run together; `payload` is None for those of the runtime."""

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
    return run_segments(read_pte(pte, method), batches, executors, timeout)


def run_segments(
    file: Any, batches: Sequence[tuple[Any, ...]], executors: Mapping[str, Executor], timeout: float
) -> list[list[torch.Tensor]]:
    """The outputs for each batch; together they go through the pieces, one after the other where there is state."""
    file, state = extract_state(file)
    plan, pieces = file.program.execution_plan[0], list(segments_of(file.program, executors))
    made = list[list[torch.Tensor]]()
    for some in [[b] for b in batches] if state else [batches]:
        values = [_initial_values(plan, batch) | state for batch in some]
        _run_all(file, pieces, values, executors, timeout, state)
        made += [[_value(file.program, i, v) for i in plan.outputs] for v in values]
        state = {i: values[0][i] for i in state}
    return made


def _run_all(
    file: Any, pieces: list[Segment], values: list[Values], executors: Mapping[str, Executor], timeout: float,
    state: Collection[int],
) -> None:  # fmt: skip
    plan = file.program.execution_plan[0]
    for i, piece in enumerate(pieces):
        needed = {v for later in pieces[i + 1 :] for v in _accessed_values(plan, later)} | set(plan.outputs)
        if piece.payload is None:
            _run_on_runtime(file, piece, values, needed, timeout, state)
        else:
            _run_on_executor(file.program, piece, values, executors[piece.backend])


def read_pte(pte: bytes, method: str = "forward") -> Any:
    """The file, with that method as its only one."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    try:
        file = deserialize_pte_binary(pte)
    except Exception as e:
        raise ArtefactError("the program does not load", why=f"{type(e).__name__}: {e}", hint="is it a .pte?") from e
    plans = [p for p in file.program.execution_plan if p.name == method]
    if not plans:
        raise ArtefactError(f"the program has no method '{method}'")
    return replace(file, program=replace(file.program, execution_plan=plans))


def extract_state(file: Any) -> tuple[Any, Values]:
    """The file with its state as values like others, and what those hold before the first call.

    A piece that kept state itself would keep its own: each is given the state, and gives it back.
    """
    plan, stored = file.program.execution_plan[0], file.mutable_data or []
    kept = {i: v.val for i, v in enumerate(plan.values) if _is_state(v.val)}
    state = {i: _tensor_from_bytes(stored[val.data_buffer_idx].storage, val) for i, val in kept.items()}
    values = [replace(v, val=replace(v.val, data_buffer_idx=0)) if i in kept else v for i, v in enumerate(plan.values)]
    program = replace(file.program, execution_plan=[replace(plan, values=values)])
    return replace(file, program=program, mutable_data=None), state


def _is_state(val: Any) -> bool:
    """With a place in memory and with numbers in the file: it starts with these, and is written."""
    return type(val).__name__ == "Tensor" and val.data_buffer_idx > 0 and val.allocation_info is not None


def _initial_values(plan: Any, batch: tuple[Any, ...]) -> Values:
    if len(batch) != len(plan.inputs):
        raise ArtefactError(f"the program takes {len(plan.inputs)} inputs and was given {len(batch)}")
    return dict(zip(plan.inputs, batch, strict=True))


def segments_of(program: Any, executors: Collection[str]) -> Iterator[Segment]:
    """Delegates of these backends, each alone, and what is between them."""
    plan, between = program.execution_plan[0], list[Any]()
    for instruction in plan.chains[0].instructions:
        delegate = _delegate(plan, instruction)
        if delegate is None or delegate.id not in executors:
            between += [instruction] if _has_effect(instruction) else []
            continue
        yield from [Segment(tuple(between))] if between else []
        between = []
        yield Segment((instruction,), delegate.id, program.backend_delegate_data[delegate.processed.index].data)
    yield from [Segment(tuple(between))] if between else []


def _delegate(plan: Any, instruction: Any) -> Any:
    index = getattr(instruction.instr_args, "delegate_index", None)
    return None if index is None else plan.delegates[index]


def _has_effect(instruction: Any) -> bool:
    """Memory is not freed between pieces; jumps would leave theirs."""
    kind = type(instruction.instr_args).__name__
    if kind == "JumpFalseCall":
        raise ArtefactError("nothing here runs this program whole", why="it branches between delegates")
    return kind != "FreeCall"


def _accessed_values(plan: Any, piece: Segment) -> list[int]:
    """The values a piece reads or writes, those inside lists too, each once."""
    found: dict[int, None] = {}
    for instruction in piece.instructions:
        call = instruction.instr_args
        for i in call.args if hasattr(call, "args") else (call.move_from, call.move_to):
            found |= dict.fromkeys([i, *_list_items(plan.values[i].val)])
    return list(found)


def _list_items(val: Any) -> list[int]:
    """-1 in a list stands for no tensor."""
    return [i for i in val.items if i >= 0] if type(val).__name__ in ("TensorList", "OptionalTensorList") else []


def _is_variable(val: Any) -> bool:
    return type(val).__name__ == "Tensor" and val.data_buffer_idx == 0


# ---- on the runtime ----


def _run_on_runtime(
    file: Any, piece: Segment, values: list[Values], needed: set[int], timeout: float, state: Collection[int]
) -> None:
    """Memory was planned for the whole program, so whatever is alive before or after a piece has a place of its own."""
    from ingot.runtime.worker import run_pte

    plan = file.program.execution_plan[0]
    touched = [i for i in _accessed_values(plan, piece) if _is_variable(plan.values[i].val)]
    inputs = [i for i in touched if i in values[0]]
    outputs = [i for i in touched if i in state or (i not in values[0] and i in needed)]
    given = [tuple(v[i] for i in inputs) for v in values]
    for v, made in zip(
        values, run_pte(_segment_pte(file, piece, inputs, outputs), given, timeout=timeout), strict=True
    ):
        v |= dict(zip(outputs, made, strict=True))


def _segment_pte(file: Any, piece: Segment, inputs: list[int], outputs: list[int]) -> bytes:
    """The piece as a program of its own, with the values, constants and memory plan of the whole."""
    from executorch.exir._serialize._program import PTEFile, serialize_pte_binary

    program, plan = file.program, file.program.execution_plan[0]
    calls = [i.instr_args for i in piece.instructions]
    used = list(dict.fromkeys(c.delegate_index for c in calls if hasattr(c, "delegate_index")))
    chain = replace(plan.chains[0], inputs=inputs, outputs=outputs, stacktrace=None)
    chain.instructions = [replace(i, instr_args=_with_delegate_index(i.instr_args, used)) for i in piece.instructions]
    kept = [plan.delegates[i] for i in used]
    part = replace(plan, inputs=inputs, outputs=outputs, chains=[chain], delegates=kept)
    data = program.backend_delegate_data if kept else []
    whole = replace(program, execution_plan=[part], backend_delegate_data=data)
    return bytes(serialize_pte_binary(PTEFile(whole, None, file.named_data)))


def _with_delegate_index(call: Any, used: list[int]) -> Any:
    delegate = getattr(call, "delegate_index", None)
    return call if delegate is None else replace(call, delegate_index=used.index(delegate))


# ---- by an executor ----


def _run_on_executor(program: Any, piece: Segment, values: list[Values], executor: Executor) -> None:
    assert piece.payload is not None
    plan = program.execution_plan[0]
    inputs, outputs = segment_io(plan, piece, values[0])
    given = [[to_memory_order(_value(program, i, v), plan.values[i].val.dim_order) for i in inputs] for v in values]
    for v, arrays in zip(values, executor(piece.payload, given, len(outputs)), strict=True):
        v |= {i: _from_executor(a, plan.values[i].val) for i, a in zip(outputs, arrays, strict=True)}


def _from_executor(array: Any, info: Any) -> torch.Tensor:
    """A backend that counts in 32 bits gives the 64 that its program declares."""
    x = _to_tensor(array, info)
    return x.long() if x.dtype == torch.int32 and torch_dtype_of(info) == torch.int64 else x


def segment_io(plan: Any, piece: Segment, known: Collection[int]) -> tuple[list[int], list[int]]:
    """What a delegate reads (computed before it, or constant) and what it writes, in the order of its arguments."""
    tensors = [i for i in _accessed_values(plan, piece) if type(plan.values[i].val).__name__ == "Tensor"]
    reads = [i for i in tensors if i in known or not _is_variable(plan.values[i].val)]
    return reads, [i for i in tensors if i not in reads]


def to_memory_order(x: torch.Tensor, order: list[int]) -> Any:
    """As it lies in memory: delegates are handed memory, not shapes."""
    return x.detach().permute(*order).contiguous().numpy() if x.dim() else x.detach().numpy()


def _to_tensor(array: Any, info: Any) -> torch.Tensor:
    order, varies = list(info.dim_order), info.shape_dynamism.name != "STATIC"
    stored = torch.from_numpy(array)
    stored = stored if varies else stored.reshape([info.sizes[i] for i in order])  # sizes are the largest otherwise
    return stored.permute(*[order.index(i) for i in range(len(order))]) if order else stored


def _value(program: Any, i: int, v: Values) -> torch.Tensor:
    return v[i] if i in v else constant_value(program, i)


def torch_dtype_of(info: Any) -> torch.dtype:
    from executorch.exir.tensor import scalar_type_table

    return next(d for d, s in scalar_type_table.items() if s == info.scalar_type)


def constant_value(program: Any, i: int) -> torch.Tensor:
    """A value that nothing computes is in the file."""
    info = program.execution_plan[0].values[i].val
    return _tensor_from_bytes(program.constant_buffer[info.data_buffer_idx].storage, info)


def _tensor_from_bytes(storage: bytes, info: Any) -> torch.Tensor:
    stored = torch.frombuffer(bytearray(storage), dtype=torch_dtype_of(info))
    return _to_tensor(stored[: math.prod(info.sizes)].numpy(), info)  # the rest fills up to the alignment
