"""The worker process itself: reads requests from standard input, runs programs, writes answers.

`worker.py` starts it and describes the protocol.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

from ingot.runtime.bindings import load_method, runtime_bindings

TRACE_FILE = "trace.etdp"


def worker_main(folder: str) -> None:
    # Native code prints to standard output: it goes to the log, and answers use a copy of the descriptor.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(BrokenPipeError):  # nobody reads the answer: the parent was killed
        _answer_requests(Path(folder), answers)
    shutil.rmtree(folder, ignore_errors=True)  # the parent may have been killed before it could


def _answer_requests(folder: Path, answers: IO[bytes]) -> None:
    runtime_bindings()  # its imports
    write_message(answers, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        (_trace if "trace" in request else _serve)(folder, request, answers)


def _serve(folder: Path, request: dict[str, Any], answers: IO[bytes]) -> None:
    """Run the batches up to the first that fails; one answer for each."""
    loaded = None
    for i in range(request["batches"]):
        _alarm(request["seconds"])
        stage = "load"
        try:
            if loaded is None or request["fresh"]:
                loaded = load_method(folder / "program.pte", request["method"])
            stage = "run"
            inputs = load_tensors(folder / f"in{i}.pt")
            torch.save(list(loaded[1](inputs)), folder / f"out{i}.pt")
        except Exception as e:
            _alarm(0)
            return write_message(answers, {"stage": stage, "error": f"{type(e).__name__}: {e}"})
        _alarm(0)
        write_message(answers, {"batch": i})


def _trace(folder: Path, request: dict[str, Any], answers: IO[bytes]) -> None:
    _alarm(request["seconds"])
    try:
        program = runtime_bindings()._load_program(str(folder / "program.pte"), enable_etdump=True)
        method, inputs = program.load_method("forward"), load_tensors(folder / "in0.pt")
        for _ in range(request["trace"]):
            method(inputs)
        program.write_etdump_result_to_file(str(folder / TRACE_FILE), str(folder / "unused"))
        traced = (folder / TRACE_FILE).exists()
        write_message(
            answers, {"traced": True} if traced else {"error": "this build of the runtime has no event tracer"}
        )
    except Exception as e:
        write_message(answers, {"error": f"{type(e).__name__}: {e}"})
    _alarm(0)


def _alarm(seconds: int) -> None:
    """End this process after `seconds`, even in native code: the parent, which has the timer, may be gone."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def load_tensors(path: Path) -> list[Any]:
    tensors = torch.load(path, weights_only=True)
    path.unlink()
    return tensors


def write_message(stream: IO[bytes] | None, message: dict[str, Any]) -> None:
    assert stream is not None
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()
