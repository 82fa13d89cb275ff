"""One way to generate text, in its own process: tokens per second and memory.

python -m bench.language.contender ingot|stock|stock-light|eager32|eager16|llama FOLDER
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKENS = 64
Next = Callable[[int, int], int]  # a token and its position -> the most likely next token


def ingot(folder: Path) -> Next:
    from ingot.llm.generation import open_session

    _one_torch_thread()
    session = open_session(folder)
    return lambda token, position: int(session.decode(token).argmax())


def _one_torch_thread() -> None:
    """ExecuTorch has its own thread pool; torch's threads would compete with it for the cores."""
    import torch

    torch.set_num_threads(1)


def stock(folder: Path) -> Next:
    """By ExecuTorch's documented Python API, which also imports the exporter."""
    import executorch.kernels.quantized  # noqa: F401
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(folder / "model.pte")
    return _stock(program, program.load_method("forward").execute)


def stock_light(folder: Path) -> Next:
    """Without the exporter, by the bindings that Ingot uses."""
    from ingot.runtime.bindings import load_method

    return _stock(*load_method(folder / "model.pte", "forward"))


def _stock(program: Any, method: Any) -> Next:
    import torch

    _one_torch_thread()

    def next_token(token: int, position: int, _keep: Any = program) -> int:
        return int(method([torch.tensor([[token]]), torch.tensor([position])])[0][0, -1].argmax())

    return next_token


def eager(dtype: str) -> Next:
    import torch

    from bench.language.weights import checkpoint

    model: Any = checkpoint().model.to(getattr(torch, dtype))
    past: list[Any] = [None]

    def next_token(token: int, position: int) -> int:
        with torch.no_grad():
            made = model(torch.tensor([[token]]), past_key_values=past[0], use_cache=True)
        past[0] = made.past_key_values
        return int(made.logits[0, -1].argmax())

    return next_token


def llama() -> Next:
    import numpy as np
    from llama_cpp import Llama

    from bench.language.weights import CONTEXT, gguf

    model = Llama(str(gguf()), n_ctx=CONTEXT, n_threads=os.cpu_count(), logits_all=False, verbose=False)

    def next_token(token: int, position: int) -> int:
        model.eval([token])
        return int(np.argmax(model._scores[-1]))

    return next_token


KINDS: dict[str, Callable[[Path], Next]] = {
    "ingot": ingot,
    "stock": stock,
    "stock-light": stock_light,
    "eager32": lambda _: eager("float32"),
    "eager16": lambda _: eager("bfloat16"),
    "llama": lambda _: llama(),
}


def main(kind: str, folder: Path, prompt: list[int]) -> None:
    step = KINDS[kind](folder)
    token, made = 0, list[int]()
    for position, given in enumerate(prompt):
        token = step(given, position)
    start = time.perf_counter()
    for position in range(len(prompt), len(prompt) + TOKENS):
        made.append(token)
        token = step(token, position)
    seconds = time.perf_counter() - start
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    facts = {"tokens_per_second": TOKENS / seconds, "held_mb": resident_mb(), "peak_mb": most, "tokens": made}
    print(json.dumps(facts))


def resident_mb() -> float:
    """Resident memory now, while text is generated: the peak is reached while loading."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [int(t) for t in sys.argv[3].split(",")])
