"""The smallest net of each of timm's modules, found by building all on the meta device: minutes.

The names that were found are kept in timm_nets.json: `python -m bench.families.timm_nets` renews it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from bench.packages import timm_library

FOUND = Path(__file__).with_name("timm_nets.json")
# Names of sizes that are never a family's smallest: not built where the family has other nets.
LARGE = re.compile(
    r"large|huge|giant|gigantic|xlarge|xxl|so\d+m|_base|_[lhg]\d*_|_7b|_[3-9]b\b|101|152|200|269|350|420"
)


def smallest_nets() -> dict[str, str]:
    """Family, the module's name, -> the net with the fewest parameters."""
    return json.loads(FOUND.read_text())


def search() -> dict[str, str]:
    timm = timm_library()
    return {module: _smallest(timm, timm.list_models(module=module)) for module in timm.list_modules()}


def _smallest(timm: Any, names: list[str]) -> str:
    return min([n for n in names if not LARGE.search(n)] or names, key=lambda name: _parameters(timm, name))


def _parameters(timm: Any, name: str) -> float:
    """Infinite for a net that does not build without a device."""
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in timm.create_model(name).parameters())
    except Exception:
        return float("inf")


if __name__ == "__main__":
    FOUND.write_text(json.dumps(search(), indent=0) + "\n")
