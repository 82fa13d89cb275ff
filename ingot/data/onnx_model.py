"""ONNX to torch by onnx2torch, compared with ONNX Runtime before anything is cast."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ingot.data.onnx_file import INSTALL, OnnxFile, converter_version
from ingot.data.static_modules import with_static_operands
from ingot.errors import InputError, first_sentence

MIN_DB = 60.0  # SQNR of float against float: other orders of summation cost far less
COMPARED_BATCHES = 4
NAMED_NODES = 5  # in an error


def from_onnx(path: str | os.PathLike[str], example_inputs: Tensor | Sequence[Any] | None = None) -> nn.Module:
    """An ONNX file as a torch module at the shapes of the example, equal to ONNX Runtime's float numbers on it.

    `example_inputs` may be left out where the file fixes all shapes; it is then compared on random numbers.
    """
    file = OnnxFile(Path(path))
    example = (example_inputs,) if isinstance(example_inputs, Tensor) else example_inputs
    given = tuple(example) if example is not None else file.example_inputs
    if given is None:
        open_shapes = ", ".join(i.name for i in file.inputs if None in i.shape)
        hint = "from_onnx(path, example_inputs)"
        raise InputError("no example inputs", where=str(path), why=f"open dimensions in {open_shapes}", hint=hint)
    return converted(file, given, [given] if example is not None else [_random(given)])


def _random(example: Sequence[Tensor]) -> tuple[Tensor, ...]:
    made = torch.Generator().manual_seed(0)
    return tuple(torch.randn(x.shape, generator=made).to(x.dtype) if x.is_floating_point() else x for x in example)


def converted(file: OnnxFile, example: Sequence[Any], batches: Iterable[Sequence[Any]]) -> nn.Module:
    """The torch module; an error with the node's name where an op has no converter, or the numbers differ."""
    proto = file.folded(example)
    _refuse_unsupported(file, proto)
    try:
        made = _converter().convert(proto).eval()
        module = with_static_operands(made, tuple(torch.from_numpy(np.array(a)) for a in file.feeds(example).values()))
    except Exception as e:  # whatever a converter raises
        why = f"{converter_version()}: {first_sentence(e)}"
        raise InputError(f"{file.path} cannot be converted", why=why, hint=_HINT) from e
    _compare(file, module, islice(batches, COMPARED_BATCHES))
    return module


_HINT = "cast the torch model that it was exported from, or export it with other ops"


def _converter() -> Any:
    try:
        with _importable_torchvision():
            import onnx2torch
    except ImportError as e:
        raise InputError("converting ONNX files needs more packages", why=str(e), hint=INSTALL) from e
    return onnx2torch


@contextmanager
def _importable_torchvision() -> Iterator[None]:
    """onnx2torch imports it for NonMaxSuppression and RoiAlign alone: without one that fits torch, these two fail."""
    try:
        import torchvision  # noqa: F401
    except Exception:  # missing, or built for another torch: an operator that does not exist is a RuntimeError
        missing = {name: _Missing(name) for name in ("torchvision", "torchvision.ops")}
        sys.modules.update(missing)
        try:
            yield
        finally:
            for name in missing:
                del sys.modules[name]
    else:
        yield


class _Missing(ModuleType):
    """A module whose functions do not run."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(f"{self.__name__}.{name} needs a torchvision that fits torch")

        return missing


def _refuse_unsupported(file: OnnxFile, proto: Any) -> None:
    """All nodes without a converter, by name: the user sees at once how far away the model is."""
    found = list(_unsupported(proto))
    if found:
        named = "; ".join(f"{name} ({why})" for name, _, why in found[:NAMED_NODES])
        more = f"; and {len(found) - NAMED_NODES} more" if len(found) > NAMED_NODES else ""
        kinds = ", ".join(sorted({op for _, op, _ in found}))
        what = f"{file.path}: ONNX ops that cannot be converted: {kinds}"
        raise InputError(what, where=named + more, why=f"{converter_version()} has no converter", hint=_HINT)


def _unsupported(proto: Any) -> Iterator[tuple[str, str, str]]:
    """Name, op and reason of each such node. Asks the converter itself, node by node."""
    _converter()
    from onnx2torch.node_converters import get_converter
    from onnx2torch.onnx_graph import OnnxGraph

    graph, versions = OnnxGraph(proto.graph), {o.domain: o.version for o in proto.opset_import}
    for name, node in graph.nodes.items():
        try:
            convert = get_converter(node.operation_type, versions.get(node.domain, 1), node.domain)
            convert(node, graph)
        except Exception as e:
            missing = f"{node.domain + '::' if node.domain else ''}{node.operation_type}"
            known = not isinstance(e, NotImplementedError)
            yield name, missing, f"{missing}: {first_sentence(e, 80)}" if known else missing


def _compare(file: OnnxFile, module: nn.Module, batches: Iterable[Sequence[Any]]) -> None:
    session, names = file.session(), [o.name for o in file.proto.graph.output]
    for batch in batches:
        wanted = session.run(None, file.feeds(batch))
        made = _outputs(file, module, batch)
        if len(made) != len(wanted):
            why = f"the converted model returns {len(made)} tensors, the file {len(wanted)}"
            raise InputError(f"{file.path} is not converted as a whole", why=why, hint=_HINT)
        for name, want, got in zip(names, wanted, made, strict=True):
            _refuse_difference(file, name, want, got)


def _outputs(file: OnnxFile, module: nn.Module, batch: Sequence[Any]) -> list[Tensor]:
    given = tuple(torch.from_numpy(np.array(a)) for a in file.feeds(batch).values())
    try:
        with torch.no_grad():
            made = module(*given)
    except Exception as e:  # whatever an op raises
        why = f"{converter_version()}: {first_sentence(e)}"
        raise InputError(f"{file.path}, converted, does not run", why=why, hint=_HINT) from e
    return [t for t in torch.utils._pytree.tree_leaves(made) if isinstance(t, Tensor)]


def _refuse_difference(file: OnnxFile, name: str, want: np.ndarray, got: Tensor) -> None:
    made = got.detach().numpy()
    if made.shape != want.shape:
        why, sqnr = f"shape {list(made.shape)} instead of {list(want.shape)}", -math.inf
    else:
        sqnr = _sqnr_db(want, made)
        why = f"SQNR {sqnr:.1f} dB to ONNX Runtime, threshold {MIN_DB:g}"
    if sqnr < MIN_DB:
        what = f"{file.path}, converted, gives other numbers"
        raise InputError(what, where=f"output '{name}'", why=f"{why}; {converter_version()}", hint=_HINT)


def _sqnr_db(want: np.ndarray, got: np.ndarray) -> float:
    exact, noise = want.astype(np.float64), want.astype(np.float64) - got.astype(np.float64)
    same = (exact == got) | (np.isnan(exact) & np.isnan(got))
    power = float(np.square(np.where(same, 0.0, noise)).sum())
    if not math.isfinite(power):
        return -math.inf
    signal = float(np.square(np.where(np.isfinite(exact), exact, 0.0)).sum())
    return math.inf if power == 0 else 10 * math.log10(signal / power) if signal else -math.inf
