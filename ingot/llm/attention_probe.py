"""What a model of `transformers` asks of its attention, found by running it on a few tokens.

Its attention and its masks are recorded while it runs: heads, windows, options, caches. What `cached_attention` does
not compute is refused here by what it is, so an architecture that is new or renamed is supported or refused likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ingot.errors import IngotError, InputError, first_sentence
from ingot.llm.attention import KNOWN_OPTIONS, PLAIN_MODEL
from ingot.llm.hf_imports import import_transformers
from ingot.llm.kv_cache import KVHeads
from ingot.llm.position_tables import PositionCall, first_position, longest_learned

PROBE = "ingot_probe"
PROBE_TOKENS = 3
CACHE_LAYERS = ("DynamicLayer", "DynamicSlidingWindowLayer")  # those that hold keys and values of tokens, and no more
ROWS_CHECKED = 512  # of a mask: the first ones, and as many spread over the context
_recording: list[_Recording] = []


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One attention layer: its shapes, its options, and the function that says which tokens a token sees."""

    layer: int
    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    from_cache: bool  # keys and values are those that the cache returned
    options: Mapping[str, Any]
    sees: Callable[..., Tensor] | None


@dataclass(frozen=True, eq=False)
class DecoderLayout:
    """What `Decoder` has to know of a model. Layers are by their index in the model."""

    heads: KVHeads
    windows: Mapping[int, int]  # by layer: how many tokens a token sees, 0 where all
    positions: tuple[PositionCall, ...]


@dataclass(eq=False)
class _Recording:
    calls: list[AttentionCall] = field(default_factory=list)
    updates: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    masks: list[tuple[Tensor, Callable[..., Tensor]]] = field(default_factory=list)
    positions: list[PositionCall] = field(default_factory=list)
    learned: list[PositionCall] = field(default_factory=list)  # by embeddings


def probe_decoder(model: Any, context: int) -> DecoderLayout:
    """Run the model on a few tokens; an InputError where it needs more than `cached_attention` computes."""
    name = type(model).__name__
    try:
        recorded = _record(model)
    except IngotError:
        raise
    except Exception as e:  # whatever the code of a model raises
        raise _unsupported(name, f"it does not run step by step: {type(e).__name__}: {first_sentence(e)}") from e
    _refuse_other_states(name, recorded)
    for call in recorded.calls:
        _refuse_options(name, call)
    _refuse_long_context(model, recorded, context)
    windows = {c.layer: _window(name, c, context) for c in recorded.calls}
    return DecoderLayout(_heads(name, recorded.calls), windows, tuple(recorded.positions))


def _unsupported(where: str, why: str, hint: str = PLAIN_MODEL) -> InputError:
    return InputError("unsupported decoder architecture", where=where, why=why, hint=hint)


# ---- recording ----


def _record(model: Any) -> _Recording:
    transformers = import_transformers()
    transformers.AttentionInterface.register(PROBE, _recorded_attention)
    transformers.AttentionMaskInterface.register(PROBE, _recorded_mask)
    recording, cache = _Recording(), transformers.DynamicCache(config=model.config)
    _refuse_cache_layers(type(model).__name__, cache.layers)
    given = {"input_ids": torch.ones(1, PROBE_TOKENS, dtype=torch.long), "past_key_values": cache, "use_cache": True}
    _recording.append(recording)
    try:
        with torch.no_grad(), _hooks(model, recording, cache), attention_implementation(model, PROBE):
            model(**given, position_ids=torch.arange(PROBE_TOKENS)[None])
    finally:
        _recording.pop()
    return recording


@contextmanager
def attention_implementation(model: nn.Module, name: str) -> Iterator[None]:
    """The model with another attention, by its name in the registry of `transformers`."""
    found: list[Any] = [getattr(m, "config", None) for m in model.modules()]
    configs = {id(c): c for c in found if hasattr(c, "_attn_implementation")}
    before = {key: c._attn_implementation for key, c in configs.items()}
    for config in configs.values():
        config._attn_implementation = name
    try:
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


@contextmanager
def _hooks(model: nn.Module, recording: _Recording, cache: Any) -> Iterator[None]:
    """Record what the cache returns, and modules and embeddings that read positions."""
    original = cache.update

    def update(key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        recording.updates[layer_idx] = made = original(key, value, layer_idx, *args, **kwargs)
        return made

    cache.update = update
    with ExitStack() as stack:
        for path, module in model.named_modules():
            hook = _position_hook(recording, path, module)
            if hook is not None:
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


def _position_hook(recording: _Recording, path: str, module: nn.Module) -> Callable[..., None] | None:
    """For modules without parameters, and for embeddings."""

    kept = recording.learned if isinstance(module, nn.Embedding) else recording.positions
    if kept is recording.positions and (not path or next(module.parameters(), None) is not None):
        return None

    def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inside = any(path.startswith(f"{c.path}.") for c in kept)
        if not inside and any(first_position(a, PROBE_TOKENS) is not None for a in (*args, *kwargs.values())):
            kept.append(PositionCall(path, args, dict(kwargs), PROBE_TOKENS))

    return record


def _recorded_mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: Callable[..., Tensor], dtype: torch.dtype, **_: Any
) -> Tensor:
    mask = torch.zeros(batch_size, 1, q_length, kv_length, dtype=dtype)
    _recording[-1].masks.append((mask, mask_function))
    return mask


def _recorded_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
) -> tuple[Tensor, None]:
    now, layer = _recording[-1], int(getattr(module, "layer_idx", -1))
    known = next((f for m, f in now.masks if isinstance(attention_mask, Tensor) and _same(m, attention_mask)), None)
    kept = now.updates.get(layer, (None, None))
    from_cache = kept[0] is key and kept[1] is value
    now.calls.append(AttentionCall(layer, query.shape, key.shape, value.shape, from_cache, options, known))
    return torch.zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1], dtype=query.dtype), None


def _same(a: Tensor, b: Tensor) -> bool:
    """The same memory, so that nothing was added to it."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and not bool(b.any())


# ---- what is refused ----


def _refuse_cache_layers(name: str, layers: list[Any]) -> None:
    for i, layer in enumerate(layers):
        kind = type(layer).__name__
        if kind not in (*CACHE_LAYERS, "DummyLayer"):
            raise _unsupported(f"{name}, layer {i}", f"its state is a {kind} of transformers, not only keys and values")


def _refuse_other_states(name: str, recorded: _Recording) -> None:
    layers = [c.layer for c in recorded.calls]
    if not layers or min(layers) < 0:
        why = "its layers do not call attention through the AttentionInterface of transformers"
        raise _unsupported(name, why)
    if len(set(layers)) < len(layers):
        twice = next(i for i in layers if layers.count(i) > 1)
        raise _unsupported(f"{name}, layer {twice}", f"it calls attention {layers.count(twice)} times")
    for call in recorded.calls:
        if not call.from_cache:
            why = "its attention reads other keys and values than those of its cache"
            raise _unsupported(f"{name}, layer {call.layer}", why)
    if {*recorded.updates} - {*layers}:
        why = "it has keys and values in the cache, and another attention reads them"
        raise _unsupported(f"{name}, layer {min({*recorded.updates} - {*layers})}", why)


def _refuse_options(name: str, call: AttentionCall) -> None:
    """Options that are off are None, False or 0. Keywords of the model's own call are passed through by some models."""
    passed_through = {"position_ids", "use_cache", "past_key_values", "cache_position", "input_ids"}
    for key, value in call.options.items():
        off = value is None or (isinstance(value, (bool, int, float)) and not value)
        if not off and key not in KNOWN_OPTIONS | passed_through:
            why = f"its attention has the option {key}, which the KV-cache attention of Ingot does not compute"
            raise _unsupported(f"{name}, layer {call.layer}", why)
    if call.options.get("dropout"):
        raise _unsupported(f"{name}, layer {call.layer}", "its attention has dropout", "model.eval()")


def _refuse_long_context(model: nn.Module, recorded: _Recording, context: int) -> None:
    for call in recorded.learned:
        if (rows := longest_learned(model, call, context)) < context:
            where = f"{type(model).__name__}, {call.path}"
            why = f"positions are learned, and the table has rows for {rows} tokens"
            raise InputError(f"unsupported context of {context}", where=where, why=why, hint=f"--context {rows}")


def _heads(name: str, calls: list[AttentionCall]) -> KVHeads:
    """The heads of the first layer, where those of all others are alike."""
    for call in calls:
        kinds = {call.query[-1], call.key[-1], call.value[-1]}
        if len(kinds) > 1 or call.key[1] != call.value[1] or call.query[1] % call.key[1]:
            shapes = f"query {list(call.query)}, key {list(call.key)}, value {list(call.value)}"
            raise _unsupported(f"{name}, layer {call.layer}", f"heads of different sizes: {shapes}")
        if (call.query, call.key) != (calls[0].query, calls[0].key):
            why = f"its heads differ from those of layer {calls[0].layer}"
            raise _unsupported(f"{name}, layer {call.layer}", why)
    many = calls[0].key[1]
    return KVHeads(many, calls[0].query[1] // many, calls[0].key[-1])


# ---- windows ----


def _window(name: str, call: AttentionCall, context: int) -> int:
    """How many tokens a token sees, itself included; 0 where it sees all tokens of every text up to the context."""
    where = f"{name}, layer {call.layer}"
    if call.sees is None:
        why = "its mask does not come from the mask functions of transformers, or something was added to it (ALiBi)"
        raise _unsupported(where, why)
    try:
        seen = int(_row(call.sees, torch.tensor([context - 1]), context).sum())
        window = 0 if seen == context else seen
        wrong = _first_row_not_in_window(call.sees, window, context)
    except (RuntimeError, IndexError, TypeError, ValueError) as e:
        raise _unsupported(where, f"its mask depends on more than positions: {first_sentence(e)}") from e
    if wrong is not None:
        raise _unsupported(where, f"token {wrong} sees other tokens than a causal sliding window has")
    return window


def _row(sees: Callable[..., Tensor], rows: Tensor, context: int) -> Tensor:
    none = torch.zeros((), dtype=torch.long)
    return sees(none, none, rows[:, None], torch.arange(context)[None]).expand(len(rows), context)


def _first_row_not_in_window(sees: Callable[..., Tensor], window: int, context: int) -> int | None:
    spread = torch.linspace(0, context - 1, ROWS_CHECKED).long()
    rows = torch.cat([torch.arange(min(context, ROWS_CHECKED)), spread]).unique()
    columns = torch.arange(context)
    for some in rows.split(64):
        wanted = columns[None] <= some[:, None]
        if window:
            wanted &= columns[None] > some[:, None] - window
        differs = (_row(sees, some, context) != wanted).any(-1)
        if differs.any():
            return int(some[differs][0])
    return None
