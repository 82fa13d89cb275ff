"""Load what the user names on the command line: a model, and the batches to calibrate with.

A model is `net.py:build` or `package.module:build` (a function, a class or a ready module), or a `.pt2` file.
`build()` returns `model`, `(model, example_inputs)`, `(model, example_inputs, calibration)` or, fourth, dynamic shapes.

Calibration batches come from
- `data.npz`: one array per input, named after the inputs or in their order. Axis 0 is samples: every batch is the next
  slice as long as the example's axis 0, and an incomplete last slice is left out;
- `data.npy`: the same for a model with one input; memory-mapped;
- a folder of images: read one by one, resized to the example's H and W, scaled to 0..1, then `(x - mean) / std`;
- `file.py:function` or `package.module:function`: returns an iterable of input tuples.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ingot.errors import IngotError, InputError, nearest

Batch = tuple[Tensor, ...]
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"}
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
FORMS = "a .npz or .npy file, a folder of images, file.py:function or package.module:function"


@dataclass(frozen=True)
class LoadedModel:
    """What a model spec stands for; whatever the user did not hand over is None."""

    model: Any
    example_inputs: tuple[Any, ...] | None = None
    calibration: Iterable[Batch] | None = None
    dynamic_shapes: Any = None

    @property
    def input_names(self) -> tuple[str, ...]:
        """The parameters of forward, so that arrays in an .npz can be named after them."""
        if isinstance(self.model, ExportedProgram):
            return tuple(str(name) for name in self.model.graph_signature.user_inputs)
        return tuple(inspect.signature(self.model.forward).parameters)

    @property
    def fixed_shapes(self) -> bool:
        """Whether every batch must have exactly the example's shape."""
        exported = isinstance(self.model, ExportedProgram)
        return self.dynamic_shapes is None and not (exported and self.model.range_constraints)


# Models


def load_model(spec: str) -> LoadedModel:
    """The model that `net.py:build`, `package.module:build` or `file.pt2` names."""
    if spec.endswith(".pt2"):
        return _load_pt2(Path(spec))
    thing, where = _resolve(spec, _is_buildable)
    if not isinstance(thing, (nn.Module, ExportedProgram)):
        thing = _call(thing, spec, where)
    parts = thing if isinstance(thing, tuple) else (thing,)
    return _loaded(parts, spec, where)


def _loaded(parts: tuple[Any, ...], spec: str, where: str) -> LoadedModel:
    hint = "return model, (model, example_inputs) or (model, example_inputs, calibration)"
    if not 1 <= len(parts) <= 4:
        raise InputError(f"{spec} returned {len(parts)} things", where=where, why="1 to 4 are understood", hint=hint)
    model, example, calibration, dynamic = parts + (None,) * (4 - len(parts))
    if not isinstance(model, (nn.Module, ExportedProgram)):
        why = f"a torch.nn.Module was expected, this is {_kind(model)}"
        raise InputError(f"{spec} did not return a model", where=where, why=why, hint=hint)
    if isinstance(model, ExportedProgram) and example is None:
        example = _exported_inputs(model, where)
    if calibration is not None and not isinstance(calibration, Iterable):
        why = f"an iterable of input tuples was expected, this is {_kind(calibration)}"
        raise InputError(f"the calibration of {spec} cannot be iterated", where=where, why=why, hint=hint)
    example = _example(example, spec, where)
    if calibration is not None:
        calibration = Batches(calibration, example, where, dynamic is None)
    return LoadedModel(model, example, calibration, dynamic)


def _example(example: Any, spec: str, where: str) -> tuple[Any, ...] | None:
    if example is None or isinstance(example, tuple):
        return example
    if isinstance(example, Tensor):
        return (example,)
    if isinstance(example, list):
        return tuple(example)
    why = f"a tuple of tensors was expected, this is {_kind(example)}"
    raise InputError(f"the example inputs of {spec} are no tuple", where=where, why=why, hint="return model, (x,)")


def _load_pt2(path: Path) -> LoadedModel:
    _must_exist(path)
    try:
        program = torch.export.load(path)
    except Exception as e:
        hint = "write it again with torch.export.save, with the torch version that is installed here"
        raise InputError(f"{path} is not a readable exported program", why=_oneline(e), hint=hint) from e
    return LoadedModel(program, _exported_inputs(program, str(path)))


def _exported_inputs(program: ExportedProgram, where: str) -> tuple[Any, ...] | None:
    if program.example_inputs is None:
        return None
    args, kwargs = program.example_inputs
    if kwargs:
        why = f"inputs are positional here, and it was exported with keyword inputs {', '.join(kwargs)}"
        raise InputError(
            "the exported program takes keyword inputs", where=where, why=why, hint="export with args only"
        )
    return tuple(args)


# Names in the user's own files


def _resolve(spec: str, wanted: Callable[[Any], bool]) -> tuple[Any, str]:
    """The object a `file.py:name` or `package.module:name` stands for, and where it was found."""
    source, colon, name = spec.rpartition(":")
    if not colon or not source or not name:
        hint = "write file.py:name, package.module:name or file.pt2"
        raise InputError(f"'{spec}' names no object", why="the name after the colon is missing", hint=hint)
    module = _load_file(Path(source)) if source.endswith(".py") else _load_module(source)
    if not hasattr(module, name):
        known = _names(module, wanted)
        hint = nearest(name, known) if known else "define it there"
        raise InputError(f"{source} has no '{name}'", where=_file(module, source), hint=hint)
    thing = getattr(module, name)
    if not wanted(thing):
        why = f"it is {_kind(thing)}"
        raise InputError(f"{spec} cannot be used here", where=_file(module, source), why=why, hint="name a function")
    return thing, _place(thing, module, source)


def _is_buildable(thing: Any) -> bool:
    return callable(thing) or isinstance(thing, ExportedProgram)


def _is_source(thing: Any) -> bool:
    return callable(thing) or isinstance(thing, Iterable)


def _names(module: ModuleType, wanted: Callable[[Any], bool]) -> list[str]:
    """What the user may have meant: first what the file itself defines, else anything that would do."""
    public = {n: v for n, v in vars(module).items() if not n.startswith("_") and wanted(v)}
    own = [n for n, v in public.items() if getattr(v, "__module__", None) == module.__name__]
    return own or list(public)


def _load_file(path: Path) -> ModuleType:
    """Import a file once, with its own folder importable as if it were run as a script."""
    _must_exist(path)
    path = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    _importable(path.parent)
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        del sys.modules[name]
        raise _user_error(f"{path.name} could not be imported", e, str(path)) from e
    return module


def _load_module(name: str) -> ModuleType:
    _importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as e:
        if isinstance(e, ModuleNotFoundError) and (name == e.name or name.startswith(f"{e.name}.")):
            why = f"'{e.name}' is neither installed nor in {Path.cwd()}"
            raise InputError(f"no module '{name}'", why=why, hint="name a file instead: path/to/net.py:build") from e
        raise _user_error(f"{name} could not be imported", e, name) from e


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _call(function: Callable[[], Any], spec: str, where: str) -> Any:
    """Call the user's function; what it raises is told with the user's own line."""
    try:
        inspect.signature(function).bind()
    except TypeError as e:
        raise InputError(f"{spec} needs arguments", where=where, why=str(e), hint="give each one a default") from e
    except ValueError:
        pass  # builtins have no signature: just call them
    try:
        return function()
    except IngotError:
        raise
    except (Exception, SystemExit) as e:
        raise _user_error(f"{spec} failed", e, where) from e


def _user_error(what: str, error: BaseException, default: str) -> InputError:
    hint = "it fails without Ingot too: run it alone"
    return InputError(
        what, where=_user_line(error) or default, why=f"{type(error).__name__}: {_oneline(error)}", hint=hint
    )


def _user_line(error: BaseException) -> str | None:
    """The deepest line of the traceback that the user wrote (no installed package, no Python, not us)."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    foreign = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(Path(__file__).parent), "<")
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(foreign)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None


def _place(thing: Any, module: ModuleType, source: str) -> str:
    try:
        return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]}"
    except (TypeError, OSError):
        return _file(module, source)


def _file(module: ModuleType, source: str) -> str:
    return getattr(module, "__file__", None) or source


def _must_exist(path: Path) -> None:
    if path.is_file():
        return
    near = [p.name for p in path.parent.glob(f"*{path.suffix}")] if path.parent.is_dir() else []
    hint = nearest(path.name, near) if near else f"is the path right? it was looked for from {Path.cwd()}"
    raise InputError(f"no file {path}", hint=hint)


# Calibration


def load_calibration(
    spec: str,
    example_inputs: Sequence[Any] | None,
    *,
    names: Sequence[str] = (),
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    fixed_shapes: bool = True,
) -> Iterable[Batch]:
    """Batches that can be iterated more than once; without an example each is one sample."""
    path = Path(spec)
    if path.is_dir():
        return ImageFolder(path, example_inputs, mean, std)
    if mean is not None or std is not None:
        raise InputError("mean and std are for a folder of images", why=f"{spec} is none", hint="normalise the arrays")
    if path.suffix == ".npz":
        return ArrayBatches(path, _ordered(_read_npz(path), names), example_inputs, fixed_shapes)
    if path.suffix == ".npy":
        return ArrayBatches(path, {path.stem: _read_npy(path)}, example_inputs, fixed_shapes)
    if ":" not in spec:
        raise InputError(
            f"'{spec}' is no calibration data", why="no such folder, and no kind of file known", hint=FORMS
        )
    source, where = _resolve(spec, _is_source)
    return Batches(_checked_source(source, spec, where), example_inputs, where, fixed_shapes)


def _checked_source(source: Any, spec: str, where: str) -> Any:
    if isinstance(source, Iterable):
        return source

    def again() -> Any:
        made = _call(source, spec, where)
        if not isinstance(made, Iterable):
            why = f"an iterable of input tuples was expected, this is {_kind(made)}"
            raise InputError(
                f"{spec} returned no batches", where=where, why=why, hint="yield one tuple of inputs per batch"
            )
        return made

    return again


class Batches:
    """The user's own batches, each checked against the example; a function is called again for every pass.

    A one-shot iterator (a generator object) is kept as it is read, so that a second pass sees the same batches.
    """

    def __init__(self, source: Any, example: Sequence[Any] | None, where: str, fixed_shapes: bool = True):
        self.source, self.example, self.where, self.fixed = source, example, where, fixed_shapes

    def __iter__(self) -> Iterator[Batch]:
        index = -1
        for index, batch in enumerate(self._raw()):
            yield self._checked(batch, index)
        if index < 0:
            raise InputError(
                "the calibration data is empty", where=self.where, why="0 batches came", hint="yield at least 1"
            )

    def _raw(self) -> Iterator[Any]:
        if not isinstance(self.source, Iterable):
            source = self.source()
        elif isinstance(self.source, Iterator):
            source = self.source = _Kept(self.source)
        else:
            source = self.source
        iterator = iter(source)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            except IngotError:
                raise
            except Exception as e:
                raise _user_error("reading the calibration data failed", e, self.where) from e
            yield batch

    def _checked(self, batch: Any, index: int) -> Batch:
        what = f"calibration batch {index}"
        if isinstance(batch, (Tensor, np.ndarray)):
            batch = (batch,)
        if not isinstance(batch, (tuple, list)):
            why = f"a tuple of tensors was expected, this is {_kind(batch)}"
            raise InputError(f"{what} is no tuple", where=self.where, why=why, hint="yield (x,)")
        if self.example is None:
            return tuple(_natural(x) for x in batch)
        if len(batch) != len(self.example):
            why = f"the model takes {_count(len(self.example), 'input')}, the batch has {len(batch)}"
            hint = "leave labels out: yield (x,), not (x, y)"
            raise InputError(f"{what} has the wrong number of inputs", where=self.where, why=why, hint=hint)
        pairs = zip(batch, self.example, strict=True)
        return tuple(self._fitted(x, e, f"input {i} of {what}") for i, (x, e) in enumerate(pairs))

    def _fitted(self, x: Any, example: Any, what: str) -> Any:
        if not isinstance(example, Tensor):
            return x
        if not isinstance(x, (Tensor, np.ndarray)):
            why = f"a tensor was expected, this is {_kind(x)}"
            raise InputError(f"{what} is no tensor", where=self.where, why=why, hint="yield tensors")
        _check_shape(tuple(x.shape), tuple(example.shape), what, self.where, self.fixed)
        return _converted(x, example.dtype, what, self.where)


class _Kept:
    """Remembers what a one-shot iterator gave, lazily."""

    def __init__(self, source: Iterator[Any]):
        self.source, self.seen = source, []  # type: tuple[Iterator[Any], list[Any]]

    def __iter__(self) -> Iterator[Any]:
        index = 0
        while index < len(self.seen) or self._more():
            yield self.seen[index]
            index += 1

    def _more(self) -> bool:
        for item in self.source:
            self.seen.append(item)
            return True
        return False


class ArrayBatches:
    """One array per input, cut along axis 0 into pieces as long as the example's axis 0."""

    def __init__(
        self, path: Path, arrays: dict[str, np.ndarray], example: Sequence[Any] | None, fixed_shapes: bool = True
    ):
        self.where, self.arrays = str(path), arrays
        self._check_count(example)
        self.example = [_natural(a[:1]) for a in arrays.values()] if example is None else list(example)
        for (name, array), wanted in zip(arrays.items(), self.example, strict=True):
            _check_samples(name, array, wanted, self.where, fixed_shapes)
            _check_dtype(array.dtype, wanted.dtype, f"array '{name}'", self.where)
        self.length = self._batches()

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Batch]:
        for index in range(self.length):
            named = zip(self.arrays.items(), self.example, strict=True)
            yield tuple(self._piece(name, a, wanted, index) for (name, a), wanted in named)

    def _piece(self, name: str, array: np.ndarray, wanted: Tensor, index: int) -> Tensor:
        step = _step(wanted)
        piece = np.array(array[index * step : (index + 1) * step])  # a copy: the file may be read-only memory
        piece = piece if wanted.dim() else piece.reshape(())
        return _converted(piece, wanted.dtype, f"array '{name}'", self.where)

    def _check_count(self, example: Sequence[Any] | None) -> None:
        if not self.arrays:
            why = "it holds 0 arrays"
            raise InputError(
                "the calibration file is empty", where=self.where, why=why, hint="np.savez(path, x=samples)"
            )
        if example is not None and len(example) != len(self.arrays):
            held = f"{len(self.arrays)} ({', '.join(self.arrays)})"
            why = f"the model takes {_count(len(example), 'input')}, the file holds {held}"
            raise InputError("wrong number of arrays", where=self.where, why=why, hint="save one array per input")

    def _batches(self) -> int:
        counts = {n: len(a) // _step(w) for (n, a), w in zip(self.arrays.items(), self.example, strict=True)}
        if len(set(counts.values())) > 1:
            why = ", ".join(f"'{n}' makes {c}" for n, c in counts.items())
            raise InputError(
                "the arrays make different numbers of batches", where=self.where, why=why, hint="equal lengths"
            )
        return next(iter(counts.values()))


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    _must_exist(path)
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as e:
        raise InputError(
            f"{path} is not a readable .npz file", why=_oneline(e), hint="np.savez(path, x=samples)"
        ) from e


def _read_npy(path: Path) -> np.ndarray:
    _must_exist(path)
    try:
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:
            array = np.load(path, allow_pickle=False)  # an array of no elements cannot be mapped
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an .npz archive")
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as e:
        raise InputError(f"{path} is not a readable .npy file", why=_oneline(e), hint="np.save(path, samples)") from e
    return array


def _ordered(arrays: dict[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays named exactly as the inputs go by name; otherwise the order in the file counts."""
    return {n: arrays[n] for n in names} if set(names) == set(arrays) else arrays


class ImageFolder:
    """The images below a folder, by name, as batches of the example's N,C,H,W; 0..1, then (x - mean) / std."""

    def __init__(
        self,
        folder: Path,
        example: Sequence[Any] | None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ):
        self.example = _image_example(example, str(folder))
        self.where, self.size = str(folder), len(self.example)
        self.files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGES and p.is_file())
        if len(self.files) < self.size:
            why = f"one batch of the example takes {_count(self.size, 'image')}, the folder holds {len(self.files)}"
            hint = f"add images ({' '.join(sorted(IMAGES))})"
            raise InputError("too few images" if self.files else "no images", where=self.where, why=why, hint=hint)
        self.mean = _per_channel(mean, 0.0, self.example.shape[1], "mean")
        self.std = _per_channel(std, 1.0, self.example.shape[1], "std")
        if not bool((self.std > 0).all()):
            raise InputError(
                "std must be positive", why=f"it is {list(std or ())}", hint="e.g. --std 0.229 0.224 0.225"
            )
        _pillow()

    def __len__(self) -> int:
        return len(self.files) // self.size

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self) * self.size, self.size):
            images = [self._read(p) for p in self.files[start : start + self.size]]
            yield (torch.stack(images).to(self.example.dtype),)

    def _read(self, path: Path) -> Tensor:
        _, channels, height, width = self.example.shape
        try:
            with _pillow().open(path) as image:
                pixels = np.array(image.convert(MODES[channels]).resize((width, height)), dtype=np.float32)
        except Exception as e:
            raise InputError(f"{path} is not a readable image", why=_oneline(e), hint="remove or replace it") from e
        planes = torch.from_numpy(pixels.reshape(height, width, channels)).permute(2, 0, 1) / 255
        return (planes - self.mean) / self.std


def _image_example(example: Sequence[Any] | None, where: str) -> Tensor:
    hint = "use an .npz file, or file.py:function"
    if example is None or len(example) != 1 or not isinstance(example[0], Tensor):
        count = "no example inputs" if example is None else f"{_count(len(example), 'input')}"
        why = f"images need 1 example tensor of shape N,C,H,W; there is {count}"
        raise InputError("images do not fit this model", where=where, why=why, hint=hint)
    only = example[0]
    if only.dim() != 4 or only.shape[1] not in MODES or not only.is_floating_point():
        got = f"{_dtype(only.dtype)} {_shape(tuple(only.shape))}"
        why = f"images are float N,C,H,W with C of 1, 3 or 4; the example is {got}"
        raise InputError("images do not fit this model", where=where, why=why, hint=hint)
    return only


def _per_channel(values: Sequence[float] | None, default: float, channels: int, name: str) -> Tensor:
    values = [default] if values is None else list(values)
    if len(values) not in (1, channels):
        why = f"the example has {_count(channels, 'channel')}, {len(values)} values came"
        raise InputError(f"{name} does not fit the image", why=why, hint=f"give 1 or {channels} values")
    return torch.tensor(values, dtype=torch.float32).reshape(-1, 1, 1)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as e:
        raise InputError("a folder of images needs pillow", why=str(e), hint="pip install 'pillow>=10'") from e
    return Image


# Do the data fit the example?


def _check_samples(name: str, array: np.ndarray, wanted: Any, where: str, fixed: bool) -> None:
    """Enough samples for one batch, each of the example's shape."""
    what = f"array '{name}'"
    if not isinstance(wanted, Tensor):
        why = f"the example input is {_kind(wanted)}"
        raise InputError(f"{what} feeds no tensor", where=where, why=why, hint="use file.py:function")
    if array.ndim == 0:
        why = "axis 0 must be samples, the array is a single number"
        raise InputError(f"{what} has no samples", where=where, why=why, hint="stack the samples along axis 0")
    shape, step = tuple(wanted.shape), _step(wanted)
    _check_shape((step, *array.shape[1:]) if shape else array.shape[1:], shape, f"one batch of {what}", where, fixed)
    if len(array) < step or step == 0:
        why = f"one batch of the example takes {_count(step, 'sample')}, the array holds {len(array)}"
        raise InputError(f"{what} is too short", where=where, why=why, hint="save more samples, or a smaller example")


def _check_shape(got: tuple[int, ...], wanted: tuple[int, ...], what: str, where: str, fixed: bool) -> None:
    if got == wanted or (not fixed and len(got) == len(wanted)):
        return
    hint = "drop an incomplete last batch" if got[1:] == wanted[1:] else "axis 0 is samples, the rest must match"
    why = f"the example input is {_shape(wanted)}, this is {_shape(got)}"
    raise InputError(f"{what} has the wrong shape", where=where, why=why, hint=hint)


def _check_dtype(got: np.dtype[Any], wanted: torch.dtype, what: str, where: str) -> None:
    """Widening and float to float are fine; what would lose the meaning (float to int, signed to unsigned) is not."""
    if not np.can_cast(got, _numpy_dtype(wanted), casting="same_kind"):
        why = f"the example input is {_dtype(wanted)}, this is {got}"
        raise InputError(
            f"{what} has the wrong dtype", where=where, why=why, hint=f"convert it to {_dtype(wanted)} yourself"
        )


def _converted(x: Tensor | np.ndarray, wanted: torch.dtype, what: str, where: str) -> Tensor:
    if isinstance(x, Tensor) and x.dtype == wanted:
        return x
    sample = _numpy_dtype(x.dtype) if isinstance(x, Tensor) else x.dtype
    _check_dtype(sample, wanted, what, where)
    tensor = x if isinstance(x, Tensor) else torch.from_numpy(np.ascontiguousarray(x).reshape(x.shape))
    made = tensor.to(wanted)
    if not wanted.is_floating_point and not torch.equal(made.to(tensor.dtype), tensor):
        why = f"values from {tensor.min().item()} to {tensor.max().item()} do not fit {_dtype(wanted)}"
        raise InputError(f"{what} overflows", where=where, why=why, hint="check the values")
    return made


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    small = dtype.is_floating_point and dtype not in (torch.float32, torch.float64)
    return np.dtype(np.float32) if small else torch.empty(0, dtype=dtype).numpy().dtype


def _natural(x: Any) -> Any:
    """A tensor of what the model would most likely take: floats as float32, the rest as it is."""
    tensor = torch.from_numpy(np.array(x)) if isinstance(x, np.ndarray) else x
    double = isinstance(tensor, Tensor) and tensor.dtype == torch.float64
    return tensor.to(torch.float32) if double else tensor


def _step(wanted: Tensor) -> int:
    return wanted.shape[0] if wanted.dim() else 1


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(str(d) for d in shape) or "a single number"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _kind(thing: Any) -> str:
    return (
        "None" if thing is None else f"a {type(thing).__module__}.{type(thing).__qualname__}".replace("builtins.", "")
    )


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _oneline(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
