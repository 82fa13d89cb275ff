"""The peers and the environments in which they run, made on first use."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Peer:
    name: str
    module: str
    arguments: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()  # of an environment of its own; none: the environment of this process

    @property
    def needs_onnx(self) -> bool:
        return bool(self.packages)

    def command(self, *arguments: str) -> list[str]:
        return [str(_python(self)), "-m", f"bench.peers.{self.module}", *self.arguments, *arguments]


# Versions that were measured together. LiteRT's converter brings jax and TensorFlow's runtime: a row says it is absent.
PEERS = (
    Peer("ingot", "executorch_peer", ("ingot",)),
    Peer("stock", "executorch_peer", ("stock",)),
    Peer("onnxruntime", "onnxruntime_peer", packages=("onnxruntime==1.31.1", "onnx", "sympy")),
    Peer("openvino", "openvino_peer", packages=("openvino==2026.4.1", "nncf==3.4.0", "onnx")),
    Peer("eager", "torch_peer", ("eager",)),
    Peer("compiled", "torch_peer", ("compiled",)),
)
ABSENT = ("litert",)


def _python(peer: Peer) -> Path:
    return _folder(peer) / "bin" / "python" if peer.packages else Path(sys.executable)


def _folder(peer: Peer) -> Path:
    return ROOT / f".venv-peers-{peer.name}"


def prepare(peer: Peer) -> str | None:
    """Make the environment; why there is none, if pip fails."""
    ready = _folder(peer) / ".ready"
    if not peer.packages or (ready.exists() and ready.read_text() == " ".join(peer.packages)):
        return None
    venv.create(_folder(peer), with_pip=True, symlinks=True, clear=True)  # anew: an earlier call may have stopped
    done = subprocess.run([_python(peer), "-m", "pip", "install", "-q", *peer.packages], capture_output=True, text=True)
    if done.returncode:
        return f"not installed: {done.stderr.strip().splitlines()[-1]}"
    ready.write_text(" ".join(peer.packages))
    return None


def environment(threads: int) -> dict[str, str]:
    """The same threads for every runtime; each one reads its own variable."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads)), "PYTHONPATH": str(ROOT)}
