"""From the quantized graph to a program whose delegates' TOSA is at hand, and running it."""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.errors import ArtefactError
from ingot.targets.arm.backend import compile_spec, partitioner_class
from ingot.targets.arm.marking import mark, separate
from ingot.targets.arm.requirements import find_converter


def partitioners(target: str) -> list[Any]:
    import executorch.kernels.quantized  # noqa: F401  the quantize and dequantize around a delegate, for the writer

    find_converter()
    return [_marking(target)(compile_spec(target))]


@cache
def _marking(target: str) -> Any:
    base = partitioner_class(target)

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
            _tell(self.refused)
            return result

    return Marking


@dataclass(frozen=True)
class Refusal:
    """A log message from which the lowering reads why an op stays on the host."""

    node: Node
    reason: str


def _tell(refused: dict[Node, str]) -> None:
    logger = logging.getLogger("executorch.backends.arm.tosa.partitioner")
    for node, reason in refused.items():
        logger.debug(Refusal(node, reason))


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
