"""Recipe options of Arm's targets, checked against what Vela and the backend know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from configparser import ConfigParser
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ingot.errors import InputError, nearest
from ingot.targets.arm.device import Device

NPU_OPTIONS = {
    "system_config": "memory bandwidths and clock, by a name in Vela's configuration file",
    "memory_mode": "memories of weights and activations, by a name in Vela's configuration file",
}
GPU_OPTIONS = {
    "numbers": "TOSA profiles: INT+FP (default), or INT for integers only",
    "run_on": "executor for verification: scenario-runner (default where installed) or reference-model",
}
FIXED = {"numbers": ("INT+FP", "INT"), "run_on": ("scenario-runner", "reference-model")}


def checked_options(device: Device, options: Mapping[str, Any]) -> dict[str, str]:
    """The options, or an InputError with the nearest valid value."""
    for name, value in options.items():
        allowed = _choices(device, name)
        if value not in allowed:
            raise InputError(f"{device.name} has no {name} '{value}'", hint=nearest(str(value), allowed))
    return dict(options)


def _choices(device: Device, name: str) -> Sequence[str]:
    if name in FIXED:
        return FIXED[name]
    section = {"system_config": "System_Config", "memory_mode": "Memory_Mode"}[name]
    return [n for n in _vela_names(section) if section == "Memory_Mode" or _is_for(device, n)]


def _is_for(device: Device, config: str) -> bool:
    """Ethos_U55_High_End_Embedded is for ethos-u55-128."""
    return device.name.split("-")[1] in config.lower()


@cache
def _vela_names(section: str) -> tuple[str, ...]:
    spec, parser = find_spec("ethosu"), ConfigParser()
    for place in spec.submodule_search_locations or () if spec else ():
        parser.read(Path(place) / "config_files" / "Arm" / "vela.ini")
    names = (s.split(".", 1) for s in parser.sections() if "." in s)
    return tuple(name for kind, name in names if kind == section)
