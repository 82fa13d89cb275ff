"""Package versions: tested and installed."""

from __future__ import annotations

import importlib.metadata

# The only version table in the code. A test compares it with pyproject.toml.
TESTED = {
    "torch": "2.13.0",
    "executorch": "1.5.1",
    "torchao": "0.18.0",
    "ethos-u-vela": "5.1.0",
    "tosa-tools": "2026.5.0",
    "ml_dtypes": "0.5.1",
    # ExecuTorch's vgf extra pins 0.10.0, which needs a newer glibc than that of Debian 12.
    "ai_ml_sdk_model_converter": "0.11.0",
    "ai_ml_emulation_layer_for_vulkan": "0.11.0",
    "ai_ml_sdk_scenario_runner": "0.11.0",
    "ai_ml_sdk_vgf_library": "0.11.0",
}


def installed(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def install_line(package: str, *, no_deps: bool = False) -> str:
    """The pip command that installs the tested version."""
    return f"pip install {'--no-deps ' if no_deps else ''}{package}=={TESTED[package]}"
