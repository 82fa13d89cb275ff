"""What became of one program, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

FINDINGS = ("wrong", "unfaithful", "poor", "does not run", "crashed", "died", "hang")


@dataclass(frozen=True)
class Outcome:
    """`kind`: ok, refused, ill-conditioned, invalid, or one of FINDINGS; `reason` without numbers and names."""

    seed: int
    target: str
    kind: str
    reason: str = ""
    text: str = ""
    steps: int = 0
    delegates: int = 0
    host_ops: int = 0
    worst_db: float | None = None
    plain_db: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def signature(self) -> str:
        return f"{self.kind}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
