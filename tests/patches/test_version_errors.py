"""Errors of other versions are words: what is installed, what Ingot is made for, how to install it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest

import ingot
from ingot.cli import main
from ingot.core.versions import TESTED
from ingot.patches import version_gate as gate
from ingot.patches.table import PATCHES
from ingot.patches.version_errors import explains_version_errors, version_error

INSTALLED = {**TESTED, "executorch": "1.6.0"}
IMPORTS = "torch.utils._sympy.numbers int_oo"


@pytest.fixture
def untested(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gate, "_installed", INSTALLED.get)
    yield
    gate._warn_not_repaired.cache_clear()


def raised(name: str, code: str) -> Exception:
    """The exception of some code in a module of this name."""
    try:
        exec(compile(code, f"{name}.py", "exec"), {"__name__": name})
    except Exception as e:
        e.__traceback__ = e.__traceback__.tb_next
        return e
    raise AssertionError(code)


MISSING = "from torch.fx import no_such_name"


@pytest.mark.parametrize("code", [MISSING, "import executorch.no_such_module", "from torchao import no_such_name"])
def test_a_missing_name_is_named_with_the_versions_that_have_it(code: str) -> None:
    error = version_error(raised("ingot.lower.edge", code))
    assert isinstance(error, ingot.IngotError)
    assert "no_such" in error.why
    assert all(f"{p} {TESTED[p]}" in error.why for p in ("torch", "executorch", "torchao"))
    assert f"pip install executorch=={TESTED['executorch']}" in error.hint


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("users_model", MISSING),  # the user's own import
        ("ingot.lower.edge", "import no_such_package"),  # not one of ours
        ("ingot.lower.edge", "import torchvision_of_another"),  # its name only starts alike
        ("ingot.lower.edge", "None.no_such_attribute"),  # a bug of ours, on tested versions
    ],
)
def test_other_errors_stay_what_they_are(module: str, code: str) -> None:
    assert version_error(raised(module, code)) is None


@pytest.mark.usefixtures("untested")
@pytest.mark.parametrize("code", ["import torch; torch.no_such_attribute", "sorted([], no_such_argument=1)"])
def test_on_untested_versions_any_error_inside_names_them(code: str) -> None:
    error = version_error(raised("ingot.quantize.pt2e", code))
    assert error is not None
    assert error.what == "Ingot does not work with executorch 1.6.0"
    assert error.hint == f"pip install executorch=={TESTED['executorch']}"
    assert version_error(raised("users_model", code)) is None


@pytest.mark.usefixtures("untested")
def test_a_verb_raises_it_with_the_original_chained() -> None:
    @explains_version_errors
    def verb() -> None:
        raise raised("ingot.api", MISSING)

    with pytest.raises(ingot.TargetError, match="made for torch") as caught:
        verb()
    assert isinstance(caught.value.__cause__, ImportError)


@pytest.mark.usefixtures("untested")
def test_a_failure_on_untested_versions_mentions_them_once() -> None:
    @explains_version_errors
    def inner() -> None:
        raise ingot.MismatchError("far from the float model", hint="keep it in float")

    with pytest.raises(ingot.MismatchError) as caught:
        explains_version_errors(inner)()
    made_for = f"executorch 1.6.0 is not what Ingot is made for: pip install executorch=={TESTED['executorch']}"
    assert str(caught.value) == f"far from the float model · try: keep it in float; {made_for}"


@pytest.mark.parametrize(
    "verb", ["cast", "capture", "record", "plan", "lower", "train", "verify", "localize", "reduce"]
)
def test_every_verb_speaks(verb: str) -> None:
    function, wrappers = getattr(ingot, verb), []
    while function is not None:
        wrappers.append(function.__code__)
        function = getattr(function, "__wrapped__", None)
    assert explains_version_errors(lambda: None).__code__ in wrappers


WITHOUT_NAME = """
import sys, importlib, torch
delattr(importlib.import_module(sys.argv[1]), sys.argv[2])
import ingot
try:
    ingot.cast
except ingot.IngotError as e:
    print(e)
"""


def test_a_name_that_is_missing_when_ingot_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_NAME, *IMPORTS.split()], capture_output=True, text=True)
    assert "cannot import name 'int_oo'" in done.stdout, done.stderr
    assert "where: ingot/capture/export.py:" in done.stdout


def test_the_shell_refuses_instead_of_reporting_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def targets(_: object) -> None:
        raise raised("ingot.targets.registry", MISSING)

    monkeypatch.setattr("ingot.cli.info_commands.targets", targets)
    assert main(["targets"]) == 2
    assert "made for torch" in capsys.readouterr().err


# ---- repairs whose name is missing ----


def renamed(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = tuple(replace(e, attribute=f"{e.attribute}_renamed") for e in PATCHES[group] if not e.needed)
    monkeypatch.setitem(PATCHES, group, entries)


@pytest.mark.usefixtures("untested")
@pytest.mark.parametrize("group", ["arm", "vulkan"])
def test_a_missing_repair_is_left_out_with_one_warning(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed(group, monkeypatch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            with gate.patched(group):
                pass
    said = [str(w.message) for w in caught if "not repaired" in str(w.message)]
    assert len(said) == len(PATCHES[group])
    assert all(
        "executorch 1.6.0: executorch.backends" in s and e.why in s for s, e in zip(said, PATCHES[group], strict=True)
    )


def test_a_repair_that_verification_cannot_replace_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = (e for e in PATCHES["arm"] if e.needed)
    monkeypatch.setitem(PATCHES, "arm", (replace(entry, attribute="renamed"),))
    with pytest.raises(ingot.LowerError, match="weights of the user's model"), gate.patched("arm"):
        pass
    monkeypatch.setitem(PATCHES, "arm", (replace(entry, owner="executorch.backends.arm._passes.no_such:Pass"),))
    gate._warn_not_repaired.cache_clear()
    with pytest.warns(UserWarning, match="not repaired"), gate.patched("arm"):
        pass
