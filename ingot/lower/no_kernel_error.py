"""Ops that nothing can run: the backend refused them, and the host kernel is missing or fails."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ingot.core.artefact import HostOp
from ingot.errors import NoKernelError

_MISSING_OPERATOR = re.compile(r"Missing operator: \[\d+\] \w+::(\w+)")  # the runtime, when it loads a program
_OUT_VARIANTS = re.compile(r"Missing out variants: \{([^}]*)\}")  # ExecuTorch, when it writes one
_FAILED = re.compile(r"KernelCall failed at instruction \S+ in operator \w+::(\w+)")  # a host kernel, in a run
_OP = re.compile(r"\w+::(\w+)")
HINT = "write it with other ops, or give the runtime a kernel for it and verify there"


def no_kernel_error(said: str, host_ops: Sequence[HostOp], values: Mapping[str, str]) -> NoKernelError | None:
    """The op that the message is about, with the user's line; None: it is about something else.

    `values`: by name of a host op, the value that it computes.
    """
    lacking = [o for o in host_ops if o.op.split(".")[-2:][0] in _missing(said)]
    if not lacking:
        return None
    op, fails = lacking[0], _FAILED.search(said)
    why = f"{op.reason}, and the runtime here has no host kernel for it either"
    if fails:
        why = f"{op.reason}, and the host kernel fails: {said}"
    named = tuple(values[o.name] for o in lacking if o.name in values)
    return NoKernelError(f"nothing can run {op.op}", where=f"{op.name} ({op.source})", why=why, hint=HINT, values=named)


def _missing(said: str) -> set[str]:
    lists = " ".join(_OUT_VARIANTS.findall(said))
    return {*_MISSING_OPERATOR.findall(said), *_OP.findall(lists), *_FAILED.findall(said)}
