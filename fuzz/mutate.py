"""Damage to files: bytes flipped, cut, inserted, swapped, zeroed; JSON with wrong types, huge numbers, deep nesting."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 31, 1 << 63, 10**400, 1e308, -1e308, float("nan"), float("inf"), 0.5, "", "x" * 5000,
    "\x00", "../../etc", "ü€😀", [], {}, [[]], {"": 0}, [None] * 100,
)  # fmt: skip
DEPTH = 100_000


def damaged(random: Random, data: bytes, others: list[bytes]) -> bytes:
    """`data` with random damage; `others` are files of other kinds."""
    ways: list[Callable[[Random, bytes], bytes]] = [flip, flip, truncate, insert, swap, zero, repeat, cut, replace_byte]
    if data[:1] in (b"{", b"["):
        ways += [odd_json] * 8 + [nested_json]
    if random.random() < 0.02:
        return random.choice([b"", b"\x00" * 64, b"\xff" * 64, b"[" * DEPTH, b"null", *others])
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        data = random.choice(ways)(random, data) if data else data
    return data


def _span(random: Random, data: bytes, most: int = 64) -> tuple[int, int]:
    start = random.randrange(len(data))
    return start, min(len(data), start + random.randint(1, most))


def flip(random: Random, data: bytes) -> bytes:
    """One bit; near the start more often, where headers are."""
    at = random.randrange(len(data) if random.random() < 0.5 else min(len(data), 256))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def replace_byte(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + bytes([random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])]) + data[at + 1 :]


def truncate(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data))]


def insert(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.randint(1, 32)) + data[at:]


def swap(random: Random, data: bytes) -> bytes:
    (a, b), (c, d) = sorted([_span(random, data), _span(random, data)])
    return data if b > c else data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def zero(random: Random, data: bytes) -> bytes:
    a, b = _span(random, data)
    return data[:a] + bytes([random.choice([0, 0xFF])]) * (b - a) + data[b:]


def repeat(random: Random, data: bytes) -> bytes:
    a, b = _span(random, data, 256)
    return data[:b] + data[a:b] * random.randint(1, 3) + data[b:]


def cut(random: Random, data: bytes) -> bytes:
    a, b = _span(random, data, 256)
    return data[:a] + data[b:]


def odd_json(random: Random, data: bytes) -> bytes:
    """One value replaced, one key left out or renamed."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return data
    places = list(_places(tree))
    if not places:
        return data
    holder, key = random.choice(places)
    if random.random() < 0.2 and isinstance(holder, dict):
        value = holder.pop(key)
        if random.random() < 0.5:
            holder[f"{key}_"] = value
    else:
        holder[key] = random.choice([*ODD_VALUES, _other_type(holder[key])])
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def _other_type(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return random_number(value)
    return list(value) if isinstance(value, str) else str(value)


def random_number(value: float) -> Any:
    return str(value) if value else -7


def _places(tree: Any) -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key
        yield from _places(value)


def nested_json(random: Random, data: bytes) -> bytes:
    """A value replaced by lists in lists, deeper than any parser's stack."""
    at = data.find(b":", random.randrange(len(data)))
    return data[: at + 1] + b"[" * DEPTH + b"]" * DEPTH + data[at + 1 :] if at > 0 else data
