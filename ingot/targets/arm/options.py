"""What a recipe may set for Arm's targets, each choice checked against what there is."""

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
    "system_config": "memories and clocks, by a name in Vela's configuration file",
    "memory_mode": "where weights and activations lie, by a name in Vela's configuration file",
}
GPU_OPTIONS = {
    "numbers": "the profiles of TOSA: INT+FP (default), or INT for integers alone",
    "run_on": "what checks the program: scenario-runner (default where it is installed) or reference-model",
}
FIXED = {"numbers": ("INT+FP", "INT"), "run_on": ("scenario-runner", "reference-model")}


def checked(device: Device, options: Mapping[str, Any]) -> dict[str, str]:
    """The options, or an error that names what is near."""
    for name, value in options.items():
        allowed = _choices(device, name)
        if value not in allowed:
            raise InputError(f"{device.name} has no {name} '{value}'", hint=nearest(str(value), allowed))
    return dict(options)


def _choices(device: Device, name: str) -> Sequence[str]:
    if name in FIXED:
        return FIXED[name]
    section = {"system_config": "System_Config", "memory_mode": "Memory_Mode"}[name]
    return [n for n in _vela_names(section) if section == "Memory_Mode" or _is_of(device, n)]


def _is_of(device: Device, config: str) -> bool:
    """Ethos_U55_High_End_Embedded is of ethos-u55-128."""
    return device.name.split("-")[1] in config.lower()


@cache
def _vela_names(section: str) -> tuple[str, ...]:
    spec, parser = find_spec("ethosu"), ConfigParser()
    for place in spec.submodule_search_locations or () if spec else ():
        parser.read(Path(place) / "config_files" / "Arm" / "vela.ini")
    names = (s.split(".", 1) for s in parser.sections() if "." in s)
    return tuple(name for kind, name in names if kind == section)
