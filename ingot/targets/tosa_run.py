"""Run a .pte whose delegates are TOSA: the program's own instructions, delegates on the reference model in a child."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Values = dict[int, Any]  # what each value of the program holds, for one batch
HERE = {"quantized_decomposed::quantize_per_tensor", "quantized_decomposed::dequantize_per_tensor"}


def execute(
    pte: bytes, batches: Sequence[tuple[Any, ...]], tosa_of: Callable[[bytes], bytes], timeout: float
) -> list[list[torch.Tensor]]:
    program = _read(pte)
    plan = program.execution_plan[0]
    values = [_start(plan, batch) for batch in batches]
    for instruction in plan.chains[0].instructions:
        _step(instruction.instr_args, program, plan, values, tosa_of, timeout * max(1, len(batches)))
    return [[v[i] for i in plan.outputs] for v in values]


def _read(pte: bytes) -> Any:
    from executorch.exir._serialize._program import deserialize_pte_binary

    from ingot.errors import ArtefactError

    try:
        return deserialize_pte_binary(pte).program
    except Exception as e:
        raise ArtefactError("the program does not load", why=f"{type(e).__name__}: {e}", hint="is it a .pte?") from e


def _start(plan: Any, batch: tuple[Any, ...]) -> Values:
    from ingot.errors import ArtefactError

    if len(batch) != len(plan.inputs):
        raise ArtefactError(f"the program takes {len(plan.inputs)} inputs and was given {len(batch)}")
    return dict(zip(plan.inputs, batch, strict=True))


def _step(call: Any, program: Any, plan: Any, values: list[Values], tosa_of: Any, seconds: float) -> None:
    from ingot.errors import ArtefactError

    kind = type(call).__name__
    if kind == "FreeCall":
        return
    if kind == "DelegateCall":
        return _delegate(call, program, plan, values, tosa_of, seconds)
    name = plan.operators[call.op_index].name if kind == "KernelCall" else kind
    if name not in HERE:
        why = "only what is inside delegates, and quantize and dequantize around them, can be run here"
        raise ArtefactError(f"nothing here runs {name}", why=why, hint="keep the op inside the delegate")
    for v in values:
        _round(name.split("::")[1], call.args, plan, v)


def _round(name: str, args: list[int], plan: Any, v: Values) -> None:
    """(x, scale, zero, low, high, dtype[, out_dtype], out): the one op of the quantized family, per tensor."""
    import torch

    op = getattr(torch.ops.quantized_decomposed, name).default
    x, scale, zero, low, high = (_value(i, plan, v) for i in args[:5])
    out = args[-1]
    dtype = _dtype(plan.values[out].val.scalar_type) if name.startswith("quantize") else x.dtype
    v[out] = op(x, scale, zero, low, high, dtype)


def _value(i: int, plan: Any, v: Values) -> Any:
    return v[i] if i in v else next(iter(vars(plan.values[i].val).values()))


def _dtype(scalar_type: Any) -> torch.dtype:
    from executorch.exir.tensor import scalar_type_table

    return next(d for d, s in scalar_type_table.items() if s == scalar_type)


def _delegate(call: Any, program: Any, plan: Any, values: list[Values], tosa_of: Any, seconds: float) -> None:
    delegate = plan.delegates[call.delegate_index]
    tosa = tosa_of(program.backend_delegate_data[delegate.processed.index].data)
    inputs = [i for i in call.args if i in values[0]]
    outputs = [i for i in call.args if i not in values[0]]
    given = [[_array(v[i], plan.values[i].val.dim_order) for i in inputs] for v in values]
    for v, arrays in zip(values, _in_child(tosa, given, len(outputs), seconds), strict=True):
        v |= {i: _tensor(a, plan.values[i].val) for i, a in zip(outputs, arrays, strict=True)}


def _array(x: torch.Tensor, order: list[int]) -> Any:
    return x.detach().permute(*order).contiguous().numpy() if x.dim() else x.detach().numpy()


def _tensor(array: Any, info: Any) -> torch.Tensor:
    import torch

    order = list(info.dim_order)
    stored = torch.from_numpy(array).reshape([info.sizes[i] for i in order])
    return stored.permute(*[order.index(i) for i in range(len(order))]) if order else stored


def _in_child(tosa: bytes, given: list[list[Any]], outputs: int, seconds: float) -> list[list[Any]]:
    """A native crash, or a hang, becomes a sentence."""
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="ingot-tosa-run-") as name:
        folder = Path(name)
        (folder / "graph.tosa").write_bytes(tosa)
        np.savez(folder / "in.npz", **{f"{b}_{i}": a for b, arrays in enumerate(given) for i, a in enumerate(arrays)})
        _launch(folder, len(given), seconds)
        with np.load(folder / "out.npz") as out:
            return [[out[f"{b}_{i}"] for i in range(outputs)] for b in range(len(given))]


def _launch(folder: Path, batches: int, seconds: float) -> None:
    from ingot.errors import ArtefactError

    command = [sys.executable, "-P", __file__, str(folder), str(batches)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as e:
        raise ArtefactError("the TOSA reference model did not end", why=f"it took more than {seconds:g} s") from e
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
        raise ArtefactError("the TOSA reference model failed", why=" | ".join(last) or f"exit code {done.returncode}")


# ---- from here on: inside the child ----


def main(folder: Path, batches: int) -> None:
    import numpy as np
    import tosa_reference_model as model

    graph = (folder / "graph.tosa").read_bytes()
    out: dict[str, Any] = {}
    with np.load(folder / "in.npz") as given:
        for b in range(batches):
            names = sorted((k for k in given if k.startswith(f"{b}_")), key=lambda k: int(k.split("_")[1]))
            arrays = [given[k] for k in names]
            results, status = model.run(graph, arrays, verbosity="LOW", initialize_variable_tensor_from_numpy=True)
            if status != model.GraphStatus.TOSA_VALID:
                raise SystemExit(f"the graph is not valid TOSA: {status}")
            out |= {f"{b}_{i}": a for i, a in enumerate(results)}
    np.savez(folder / "out.npz", **out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
