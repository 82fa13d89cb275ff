"""What each op forces: which ops run on integers, which pairs run as one, which slots must hold the same scale."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import GraphModule, Node

from ingot.graph import calls, constant_of, is_float
from ingot.semantics import Effect, Kind, effect_of, operands
from ingot.semantics.weights import weight_axis
from ingot.targets.base import Target

# No experiment is needed to know this, and it would be the dearest of all.
WEIGHTED = Effect(Kind.COMPUTES, (), (), False, "it multiplies by a weight")


@dataclass
class Relations:
    """Facts about one program on one target, in graph order. Filled here, read by the solver."""

    effects: dict[Node, Effect] = field(default_factory=dict)
    integer: dict[Node, str] = field(default_factory=dict)  # op -> why it runs on integers
    floating: dict[Node, str] = field(default_factory=dict)  # op -> why it stays float
    fused: dict[Node, Node] = field(default_factory=dict)  # producer -> the op that runs in its kernel
    carried: dict[Node, tuple[int, ...]] = field(default_factory=dict)  # op -> operands stored exactly as its output


def relate(module: GraphModule, target: Target) -> Relations:
    found = Relations()
    for node in calls(module):
        if is_float(node):
            found.effects[node] = WEIGHTED if weight_axis(node) is not None else effect_of(node, constant_of)
            _label(node, found, target)
            _fuse(node, found, target)
            if node in found.integer and node not in found.fused.values() and not target.rescales(node):
                found.carried[node] = found.effects[node].carriers
    return found


def _label(node: Node, found: Relations, target: Target) -> None:
    """Integers where the target has a kernel, unless all the op reads was just computed in float."""
    reason = _why_float(node, found)
    if reason is None:
        able = target.ability(node)
        reason = None if able.int8 else able.because
        because = able.because
    if reason is None:
        found.integer[node] = because
    else:
        found.floating[node] = reason


def _why_float(node: Node, found: Relations) -> str | None:
    if found.effects[node].kind is Kind.CREATES:
        return "it creates a value: whoever reads it decides the scale"
    if node.meta.get("ingot_float"):
        return str(node.meta["ingot_float"])
    if not _only_float32(node):
        return "it reads or writes numbers other than float32"
    if weight_axis(node) is not None:
        return None if _static_weight(node) else "its weight is computed at run time"
    return _surrounded_by_float(node, found)


def _only_float32(node: Node) -> bool:
    vals = [n.meta.get("val") for n in (*operands(node), node)]
    return all(str(getattr(v, "dtype", "")) == "torch.float32" for v in vals)


def _static_weight(node: Node) -> bool:
    return all(constant_of(a) is not None for a in node.args[1:3] if isinstance(a, Node))


def _surrounded_by_float(node: Node, found: Relations) -> str | None:
    """Quantizing only to compute one cheap op between float ops costs two conversions and a rounding."""
    made = [n for n in operands(node) if n.op == "call_function"]
    if any(n in found.integer for n in made):
        return None
    source = next((n for n in made if n in found.floating), None)
    return None if source is None else f"what it reads is computed in float ({source.name})"


def _fuse(node: Node, found: Relations, target: Target) -> None:
    """act(f(x)) runs as one kernel if f has no other reader: no number is stored between them."""
    before = operands(node)[0] if operands(node) else None
    if before is None or before not in found.integer or node not in found.integer or len(before.users) != 1:
        return
    if target.fuses(before, node):
        found.fused[before] = node
