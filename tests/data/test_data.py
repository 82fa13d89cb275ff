"""Models and calibration data load by name. Errors state what was expected and what was found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ingot.data import load_calibration, load_model
from ingot.errors import InputError

pytestmark = pytest.mark.smoke
X = torch.zeros(2, 3)

NET = """
import torch
from torch import nn

x = torch.zeros(2, 3)
instance = nn.Linear(3, 4)
number = 7

def build(): return nn.Linear(3, 4)
def with_inputs(): return nn.Linear(3, 4), x
def with_all(): return nn.Linear(3, 4), (x,), [(x,), (x + 1,)]
def with_shapes(): return nn.Linear(3, 4), [x], None, {"input": {0: torch.export.Dim("n")}}
def broken():
    return nn.Linear(3, 4)(torch.zeros(5))
def text(): return "a model"
def five(): return 1, 2, 3, 4, 5
def bad_inputs(): return nn.Linear(3, 4), {"x": x}
def bad_batches(): return nn.Linear(3, 4), (x,), 3
def needs(width): return nn.Linear(width, width)
class Net(nn.Module):
    def forward(self, first, second): return first + second

def batches():
    for i in range(3):
        yield (x + i,)
def labelled(): return [(x, torch.zeros(2))]
def none(): return []
def number_of(): return 3
def ragged(): return [x, x[:1]]
def fails():
    yield (x,)
    raise RuntimeError("disk on fire")
def ints(): return [(torch.ones(2, 3, dtype=torch.int64),)]
def strings(): return ["abc"]
once = iter([(x,), (x,)])
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(NET)
    return path


def refused(what: str, why: str = "", hint: str = "", where: str = "") -> pytest.RaisesExc[InputError]:
    def fits(e: InputError) -> bool:
        return all(a in (b or "") for a, b in ((what, e.what), (why, e.why), (hint, e.hint), (where, e.where)))

    return pytest.RaisesExc(InputError, check=fits)


# Models


@pytest.mark.parametrize("name", ["build", "instance", "with_inputs", "with_all", "with_shapes", "Net"])
def test_models_by_name(net: Path, name: str) -> None:
    assert isinstance(load_model(f"{net}:{name}").model, nn.Module)


def test_what_build_returns_is_kept(net: Path) -> None:
    full = load_model(f"{net}:with_all")
    assert full.example_inputs is not None
    assert full.calibration is not None
    assert [tuple(x.shape) for x in full.example_inputs] == [(2, 3)]
    assert [b[0].sum().item() for b in full.calibration] == [0, 6]
    bare = load_model(f"{net}:build")
    assert (bare.example_inputs, bare.calibration, bare.dynamic_shapes) == (None, None, None)
    assert not load_model(f"{net}:with_shapes").fixed_shapes
    assert load_model(f"{net}:Net").input_names == ("first", "second")


def test_module_path(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = net.parent / "some_models"
    package.mkdir()
    (package / "small.py").write_text(NET)
    monkeypatch.chdir(net.parent)
    assert isinstance(load_model("some_models.small:build").model, nn.Module)


def test_a_file_is_imported_once(net: Path) -> None:
    assert load_model(f"{net}:instance").model is load_model(f"{net}:instance").model


def test_siblings_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "sibling_of_net.py").write_text(NET)
    (tmp_path / "top.py").write_text("from sibling_of_net import build")
    assert isinstance(load_model(f"{tmp_path / 'top.py'}:build").model, nn.Module)


def test_exported_program(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(nn.Linear(3, 4), (X,)), path)
    loaded = load_model(str(path))
    assert isinstance(loaded.model, torch.export.ExportedProgram)
    assert loaded.example_inputs is not None
    assert loaded.example_inputs[0].shape == (2, 3)
    assert loaded.fixed_shapes
    assert loaded.input_names == ("input",)


def test_exported_program_with_dynamic_shapes(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    shapes = ({0: torch.export.Dim("n", max=64)},)
    torch.export.save(torch.export.export(nn.Linear(3, 4), (X,), dynamic_shapes=shapes), path)
    assert not load_model(str(path)).fixed_shapes


def test_missing_files(net: Path) -> None:
    with refused("no file", hint="did you mean 'net.py'?"):
        load_model(f"{net.parent / 'nett.py'}:build")
    with refused("no file", hint="the current folder is"):
        load_model("/nowhere/net.pt2")
    with refused("no module 'nowhere.at_all'", why="'nowhere'"):
        load_model("nowhere.at_all:build")
    with refused("'net' does not name an object", hint="file.py:name"):
        load_model("net")


def test_no_such_name(net: Path) -> None:
    with refused("has no 'buidl'", hint="did you mean 'build'?", where=str(net)):
        load_model(f"{net}:buidl")
    with refused("cannot be used", why="a int"):
        load_model(f"{net}:number")


@pytest.mark.parametrize(
    ("name", "what", "why"),
    [
        ("text", "did not return a model", "got a str"),
        ("five", "returned 5 values", "1 to 4"),
        ("bad_inputs", "are not a tuple", "got a dict"),
        ("bad_batches", "is not iterable", "got a int"),
        ("needs", "needs arguments", "width"),
    ],
)
def test_wrong_things_returned(net: Path, name: str, what: str, why: str) -> None:
    with refused(what, why, where=str(net)):
        load_model(f"{net}:{name}")


def test_build_raises_with_the_users_line(net: Path) -> None:
    line = next(i for i, text in enumerate(NET.splitlines(), 1) if "torch.zeros(5)" in text)
    with refused("broken failed", "RuntimeError", where=f"{net}:{line}") as caught:
        load_model(f"{net}:broken")
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def build(:", "SyntaxError"),
        ("\nimport nothing_like_it", "nothing_like_it"),
        ("raise SystemExit(3)", "SystemExit"),
    ],
)
def test_file_does_not_import(tmp_path: Path, source: str, why: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(source)
    with refused("bad.py could not be imported", why, where=f"{path}:{2 if source[0] == chr(10) else 1}"):
        load_model(f"{path}:build")


def test_broken_pt2(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    path.write_bytes(b"not a zip file")
    with refused("not a readable exported program", hint="torch.export.save"):
        load_model(str(path))


# Arrays


def npz(folder: Path, **arrays: np.ndarray) -> str:
    np.savez(folder / "data.npz", **arrays)  # type: ignore[arg-type]
    return str(folder / "data.npz")


def test_npz_is_split_into_batches_of_the_example(tmp_path: Path) -> None:
    samples = np.arange(15, dtype=np.float64).reshape(5, 3)
    batches = load_calibration(npz(tmp_path, x=samples), (X,))
    assert [b[0].tolist() for b in batches] == [samples[:2].tolist(), samples[2:4].tolist()]
    assert [b[0].dtype for b in batches] == [torch.float32] * 2  # a second pass


def test_npz_by_name_and_by_order(tmp_path: Path) -> None:
    a, b = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    path = npz(tmp_path, second=b, first=a)
    named = next(iter(load_calibration(path, (X, X), names=("first", "second"))))
    assert [t.sum().item() for t in named] == [0, 6]
    ordered = next(iter(load_calibration(path, (X, X), names=("p", "q"))))
    assert [t.sum().item() for t in ordered] == [6, 0]


def test_inputs_may_have_their_own_batch_size(tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.zeros((6, 3)), y=np.zeros((3, 5)), k=np.arange(3))
    batches = list(load_calibration(path, (X, torch.zeros(1, 5), torch.tensor(0))))
    assert [tuple(t.shape) for t in batches[2]] == [(2, 3), (1, 5), ()]
    assert [b[2].item() for b in batches] == [0, 1, 2]


def test_without_an_example_each_batch_is_one_sample(tmp_path: Path) -> None:
    batches = list(load_calibration(npz(tmp_path, x=np.zeros((4, 3))), None))
    assert [(tuple(b[0].shape), b[0].dtype) for b in batches] == [((1, 3), torch.float32)] * 4


def test_npy_is_memory_mapped(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones((4, 3), np.float32))
    batches = load_calibration(str(path), (X,))
    assert isinstance(batches.arrays["x"], np.memmap)  # type: ignore[attr-defined]
    assert len(list(batches)) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_floats_follow_the_example(tmp_path: Path, dtype: torch.dtype) -> None:
    batch = next(iter(load_calibration(npz(tmp_path, x=np.ones((2, 3))), (X.to(dtype),))))
    assert batch[0].dtype == dtype


def test_arrays_of_another_byte_order(tmp_path: Path) -> None:
    batch = next(iter(load_calibration(npz(tmp_path, x=np.ones((2, 3), ">f4")), (X,))))
    assert batch[0].sum().item() == 6


def test_arrays_of_no_numbers_without_an_example(tmp_path: Path) -> None:
    with refused("wrong dtype", "<U1", where="data.npz"):
        load_calibration(npz(tmp_path, x=np.array(["a", "b"])), None)


@pytest.mark.parametrize(
    ("arrays", "example", "what", "why"),
    [
        ({}, (X,), "empty", "0 arrays"),
        ({"x": np.zeros((0, 3))}, (X,), "too short", "has 2 samples, the array has 0"),
        ({"x": np.zeros((1, 3))}, (X,), "too short", "has 2 samples, the array has 1"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(2)}, (X,), "wrong number", "takes 1 input, the file has 2 (x, y)"),
        ({"x": np.zeros((2, 4))}, (X,), "wrong shape", "example input is 2×3, got 2×4"),
        ({"x": np.zeros((2, 3, 1))}, (X,), "wrong shape", "2×3, got 2×3×1"),
        ({"x": np.zeros(())}, (X,), "no samples", "single number"),
        ({"x": np.zeros((2, 3))}, (X.int(),), "wrong dtype", "is int32, got float64"),
        ({"x": np.zeros((2, 3), complex)}, (X,), "wrong dtype", "is float32, got complex128"),
        ({"x": np.zeros((2, 3)), "y": np.zeros((4, 3))}, (X, X), "differ", "'x' gives 1, 'y' gives 2"),
        ({"x": np.array(["a", "b"])}, (torch.zeros(2),), "wrong dtype", "<U1"),
    ],
)
def test_arrays_that_do_not_fit(
    tmp_path: Path, arrays: dict[str, np.ndarray], example: tuple, what: str, why: str
) -> None:
    with refused(what, why, where="data.npz"):
        load_calibration(npz(tmp_path, **arrays), example)


def test_shapes_may_vary_where_they_are_dynamic(tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.zeros((2, 7)))
    assert next(iter(load_calibration(path, (X,), fixed_shapes=False)))[0].shape == (2, 7)
    with refused("wrong shape"):
        load_calibration(npz(tmp_path, x=np.zeros((2, 7, 1))), (X,), fixed_shapes=False)


def test_integers_that_overflow(tmp_path: Path) -> None:
    batches = load_calibration(npz(tmp_path, x=np.full((2, 3), 2**40)), (X.int(),))
    with refused("overflows", "out of range for int32"):
        list(batches)


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 truncated"])
@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_unreadable_arrays(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(content)
    with refused(f"not a readable .{suffix} file", hint="np.save"):
        load_calibration(str(path), (X,))


def test_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with refused("not a readable .npy", "Python objects"):
        load_calibration(str(path), (X,))


def test_truncated_npz(tmp_path: Path) -> None:
    path = Path(npz(tmp_path, x=np.zeros((1000, 3))))
    path.write_bytes(path.read_bytes()[:2000])
    with refused("not a readable .npz"):
        load_calibration(str(path), (X,))


def test_unknown_sources(tmp_path: Path) -> None:
    with refused("no file", where=""):
        load_calibration(str(tmp_path / "data.npz"), (X,))
    with refused("is not calibration data", hint=".npz"):
        load_calibration(str(tmp_path / "data.csv"), (X,))
    with refused("mean and std are for a folder"):
        load_calibration("data.npz", (X,), mean=[0.5])


# Images

IMAGE = torch.zeros(2, 3, 4, 6)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from PIL import Image

    for i in range(5):
        Image.new("RGB", (10 + i, 8), (255, 0, 51)).save(tmp_path / f"{i}.png")
    (tmp_path / "readme.txt").write_text("no image")
    return tmp_path


def test_images_are_scaled_and_resized(folder: Path) -> None:
    batches = load_calibration(str(folder), (IMAGE,))
    assert [tuple(b[0].shape) for b in batches] == [(2, 3, 4, 6)] * 2
    torch.testing.assert_close(next(iter(batches))[0][0, :, 0, 0], torch.tensor([1.0, 0.0, 0.2]))


def test_images_mean_std_and_grey(folder: Path) -> None:
    normal = next(iter(load_calibration(str(folder), (IMAGE,), mean=[0.5], std=[0.5, 1, 0.1])))[0]
    torch.testing.assert_close(normal[0, :, 0, 0], torch.tensor([1.0, -0.5, -3.0]))
    grey = next(iter(load_calibration(str(folder), (torch.zeros(1, 1, 5, 5, dtype=torch.float16),))))[0]
    assert (tuple(grey.shape), grey.dtype) == ((1, 1, 5, 5), torch.float16)


def test_folders_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with refused("no images", "has 2 images, the folder has 0"):
        load_calibration(str(tmp_path / "empty"), (IMAGE,))
    with refused("too few images", "has 9 images, the folder has 5"):
        load_calibration(str(folder), (torch.zeros(9, 3, 4, 4),))
    with refused("do not fit this model", "float32 2×3"):
        load_calibration(str(folder), (X,))
    with refused("do not fit this model", "2 inputs"):
        load_calibration(str(folder), (IMAGE, IMAGE))
    with refused("mean does not fit", "3 channels, got 2 values"):
        load_calibration(str(folder), (IMAGE,), mean=[1, 2])
    with refused("std must be positive"):
        load_calibration(str(folder), (IMAGE,), std=[0])


def test_broken_image(folder: Path) -> None:
    (folder / "0.png").write_bytes(b"no png")
    batches = load_calibration(str(folder), (IMAGE,))
    with refused("0.png is not a readable image"):
        list(batches)


# Functions


@pytest.mark.parametrize("name", ["batches", "once"])
def test_functions_and_iterators_can_be_read_twice(net: Path, name: str) -> None:
    source = load_calibration(f"{net}:{name}", (X,))
    first, second = list(source), list(source)
    assert len(first) == len(second) > 1


def test_integers_become_floats(net: Path) -> None:
    batch = next(iter(load_calibration(f"{net}:ints", (X,))))
    assert (batch[0].dtype, batch[0].sum().item()) == (torch.float32, 6)


@pytest.mark.parametrize(
    ("name", "what", "why"),
    [
        ("labelled", "wrong number of inputs", "takes 1 input, the batch has 2"),
        ("none", "empty", "0 batches"),
        ("number_of", "returned no batches", "a int"),
        ("ragged", "input 0 of calibration batch 1 has the wrong shape", "2×3, got 1×3"),
        ("fails", "reading the calibration data failed", "disk on fire"),
        ("strings", "is not a tuple", "a str"),
    ],
)
def test_functions_that_do_not_fit(net: Path, name: str, what: str, why: str) -> None:
    with refused(what, why, where=str(net)):
        list(load_calibration(f"{net}:{name}", (X,)))
