"""The worker process: right numbers, and an ArtefactError for crashes, hangs, damaged files and full disks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from ingot.errors import ArtefactError, NoRuntimeError
from ingot.runtime import worker
from ingot.runtime.worker import run_pte

X = torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8)


def lowered(net: nn.Module, *inputs: torch.Tensor, delegate: bool = False) -> bytes:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    exported = torch.export.export(net.eval(), inputs)
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()] if delegate else None)
    return edge.to_executorch().buffer


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv2d(3, 4, 3).eval()


@pytest.fixture(scope="module")
def pte(net: nn.Module) -> Iterator[bytes]:
    yield lowered(net, X, delegate=True)
    worker.stop_worker()


def worker_pid() -> int:
    assert worker._current is not None
    return worker._current.process.pid


def test_outputs_equal_eager_and_one_worker_serves_all(net: nn.Module, pte: bytes) -> None:
    first = run_pte(pte, [(X,), (X + 1,)])
    pid = worker_pid()
    second = run_pte(pte, [(X * 2,)])
    assert worker_pid() == pid
    for (got,), x in zip(first + second, (X, X + 1, X * 2), strict=True):
        torch.testing.assert_close(got, net(x), atol=1e-5, rtol=1e-5)


def test_a_cleaned_temporary_folder_starts_another_worker(net: nn.Module, pte: bytes) -> None:
    run_pte(pte, [(X,)])
    pid = worker_pid()
    assert worker._current is not None
    shutil.rmtree(worker._current.folder)
    torch.testing.assert_close(run_pte(pte, [(X,)])[0][0], net(X), atol=1e-5, rtol=1e-5)
    assert worker_pid() != pid


def test_a_worker_that_does_not_start_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.stop_worker()
    monkeypatch.setattr(worker.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(worker.sys, "executable", str(tmp_path / "no python"))
    with pytest.raises(NoRuntimeError, match="did not start"):
        run_pte(b"", [(X,)])
    assert not list(tmp_path.iterdir())


def test_a_worker_that_was_started_before_is_used(net: nn.Module, pte: bytes) -> None:
    worker.stop_worker()
    worker.start_worker()
    pid = worker_pid()
    worker.start_worker()
    ((got,),) = run_pte(pte, [(X,)])
    assert worker_pid() == pid
    torch.testing.assert_close(got, net(X), atol=1e-5, rtol=1e-5)


def test_a_worker_that_died_while_it_started_is_replaced(pte: bytes) -> None:
    worker.stop_worker()
    worker.start_worker()
    os.kill(worker_pid(), signal.SIGKILL)
    os.waitid(os.P_PID, worker_pid(), os.WEXITED | os.WNOWAIT)
    assert len(run_pte(pte, [(X,)])) == 1


def test_a_full_disk_is_reported_by_the_run(pte: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    worker.stop_worker()
    monkeypatch.setattr("ingot.runtime.worker.tempfile.mkdtemp", full)
    worker.start_worker()
    with pytest.raises(ArtefactError, match=r"did not start.*No space left"):
        run_pte(pte, [(X,)])


def test_strides_arrive_as_they_were(pte: bytes) -> None:
    x = X.to(memory_format=torch.channels_last)
    assert worker._portable(x).stride() == x.stride()
    net = nn.Conv2d(3, 4, 3)
    (out,) = run_pte(lowered(net, x, delegate=True), [(x,)])[0]
    torch.testing.assert_close(out, net(x), atol=1e-5, rtol=1e-5)


def test_a_slice_is_sent_without_the_rest_of_its_storage() -> None:
    assert worker._portable(torch.zeros(1000, 4)[:1]).untyped_storage().nbytes() == 16


@pytest.mark.parametrize("damage", ["empty", "half", "noise"])
def test_a_damaged_program_is_an_artefact_error(pte: bytes, damage: str) -> None:
    damaged = {"empty": b"", "half": pte[: len(pte) // 2], "noise": b"\xff" * len(pte)}[damage]
    with pytest.raises(ArtefactError, match="the program d") as e:
        run_pte(damaged, [(X,)])
    assert e.value.why
    assert e.value.hint
    assert len(run_pte(pte, [(X,)])) == 1


@pytest.mark.parametrize("inputs", [(), (X, X), (X.double(),), (X[..., :5],)], ids=["none", "two", "dtype", "shape"])
def test_wrong_inputs(pte: bytes, inputs: tuple[torch.Tensor, ...]) -> None:
    with pytest.raises(ArtefactError, match="does not run on batch 1") as e:
        run_pte(pte, [(X,), inputs])
    assert "its last lines" in str(e.value.why)


def test_an_unknown_method(pte: bytes) -> None:
    with pytest.raises(ArtefactError, match="nope"):
        run_pte(pte, [(X,)], method="nope")


def test_a_crash_names_the_signal_and_the_next_call_works(pte: bytes) -> None:
    run_pte(pte, [(X,)])
    pid = worker_pid()
    os.kill(pid, signal.SIGSTOP)  # so that the crash happens during the request

    def crash() -> None:
        os.kill(pid, signal.SIGSEGV)
        os.kill(pid, signal.SIGCONT)

    threading.Timer(0.3, crash).start()
    with pytest.raises(ArtefactError, match="SIGSEGV"):
        run_pte(pte, [(X,)])
    assert len(run_pte(pte, [(X,)])) == 1
    assert worker_pid() != pid


def test_a_worker_that_died_between_calls_is_replaced(pte: bytes) -> None:
    run_pte(pte, [(X,)])
    os.kill(worker_pid(), signal.SIGKILL)
    time.sleep(0.2)
    assert len(run_pte(pte, [(X,)])) == 1


def test_a_hang_names_the_limit_and_the_next_call_works(pte: bytes) -> None:
    run_pte(pte, [(X,)])
    os.kill(worker_pid(), signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(ArtefactError, match=r"more than 0\.5 seconds"):
        run_pte(pte, [(X,)], timeout=0.5)
    assert time.monotonic() - start < 10
    assert len(run_pte(pte, [(X,)])) == 1


class Sum(nn.Module):
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total + 0


def test_fresh_forgets_and_otherwise_state_is_kept() -> None:
    program, batches = lowered(Sum(), torch.ones(2)), [(torch.ones(2),)] * 3
    assert [float(out[0][0]) for out in run_pte(program, batches)] == [1, 1, 1]
    assert [float(out[0][0]) for out in run_pte(program, batches, fresh=False)] == [1, 2, 3]


class RoundTrip(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.1, 0, -128, 127, torch.int8)
        return torch.ops.quantized_decomposed.dequantize_per_tensor(q, 0.1, 0, -128, 127, torch.int8)


def test_the_quantized_kernels_are_there() -> None:
    import executorch.kernels.quantized  # noqa: F401
    from torch.ao.quantization.fx import _decomposed  # noqa: F401

    net = RoundTrip()
    (out,) = run_pte(lowered(net, X), [(X,)])[0]
    torch.testing.assert_close(out, net(X))


ORPHAN = """
import os, signal, sys
from ingot.runtime import worker
worker._ready_worker()
print(worker._current.process.pid, worker._current.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_worker_ends_with_its_parent_and_leaves_no_files() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, env=env, timeout=120).stdout
    _, folder = out.split()
    deadline = time.monotonic() + 20
    while Path(folder).exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(folder).exists()
