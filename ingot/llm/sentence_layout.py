"""The folder layout of sentence-transformers: modules.json names the modules after the encoder, each has a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ingot.errors import InputError, nearest
from ingot.llm.pooling import TOKEN_WEIGHTS, DenseLayer, Pooling, UnitLength

MODULES, CONFIG = "modules.json", "config.json"
TEXT_CONFIG, PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"
PLAIN_CAST = "cast it with ingot.cast(net, …, weights='8da8w'), where net is a torch module of your own"
PLAIN_NOTE = "no modules.json: the mean over the tokens, as sentence-transformers does for such a checkpoint"


@dataclass(frozen=True, eq=False)
class SentenceLayout:
    """What is done before and after the encoder."""

    encoder: Path  # the folder of its checkpoint
    pooling: Pooling
    stages: tuple[nn.Module, ...]  # after the pooling
    most_tokens: int | None = None  # max_seq_length
    lower_case: bool = False
    prompt: str = ""  # put before each text
    notes: tuple[str, ...] = ()


def has_sentence_layout(folder: Path) -> bool:
    return (folder / MODULES).is_file()


def plain_layout(folder: Path) -> SentenceLayout:
    return SentenceLayout(folder, Pooling(("mean",)), (), notes=(PLAIN_NOTE,))


def read_sentence_layout(folder: Path) -> SentenceLayout:
    modules = [(_kind(m, folder), folder / str(m.get("path", ""))) for m in _listed(folder)]
    if [kind for kind, _ in modules[:2]] != ["Transformer", "Pooling"]:
        why = f"its modules are {', '.join(kind for kind, _ in modules) or 'none'}"
        hint = f"a Transformer and a Pooling come first; otherwise {PLAIN_CAST}"
        raise InputError("unsupported embedding model", where=str(folder / MODULES), why=why, hint=hint)
    (_, encoder), (_, pooling), *rest = modules
    stages = tuple(_stage(kind, place) for kind, place in rest)
    text, prompt = _json_if_any(encoder / TEXT_CONFIG), _default_prompt(folder)
    asked = _json(pooling / CONFIG)
    _refuse_uncounted_prompt(pooling, asked, prompt)
    most = text.get("max_seq_length")
    return SentenceLayout(
        encoder, Pooling(_pooling_kinds(pooling / CONFIG, asked)), stages, most if isinstance(most, int) else None,
        bool(text.get("do_lower_case")), prompt,
    )  # fmt: skip


def _listed(folder: Path) -> list[dict[str, Any]]:
    found = _read(folder / MODULES)
    if not isinstance(found, list) or not all(isinstance(m, dict) for m in found):
        raise InputError(f"{folder / MODULES} is not valid", why="it is no list of modules", hint="download it again")
    return found


def _kind(module: Mapping[str, Any], folder: Path) -> str:
    """sentence_transformers.models.Pooling -> Pooling; a path outside the folder is no module of it."""
    place = (folder / str(module.get("path", ""))).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise InputError(f"{folder / MODULES} is not valid", why=f"{module.get('path')} is outside the folder")
    return str(module.get("type", "")).rpartition(".")[2]


# ---- pooling ----


def _pooling_kinds(file: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """`pooling_mode` with a name, or `pooling_mode_mean_tokens` and the like with true or false."""
    named = config.get("pooling_mode")
    given = [named] if isinstance(named, str) else named if isinstance(named, list) else None
    switches = [k for k, on in config.items() if k.startswith("pooling_mode_") and on is True]
    kinds = tuple(_short(str(k)) for k in (switches if given is None else given))
    for kind in kinds:
        if kind not in TOKEN_WEIGHTS:
            hint = f"{nearest(kind, TOKEN_WEIGHTS)}; or {PLAIN_CAST}"
            raise InputError(f"unknown pooling '{kind}'", where=str(file), why="it is none of ours", hint=hint)
    if not kinds:
        why = "no pooling_mode is on"
        raise InputError("unsupported embedding model", where=str(file), why=why, hint=nearest("", TOKEN_WEIGHTS))
    return kinds


def _short(setting: str) -> str:
    return setting.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")


def _refuse_uncounted_prompt(folder: Path, config: Mapping[str, Any], prompt: str) -> None:
    if prompt and config.get("include_prompt") is False:
        why = "include_prompt is false: the tokens of the prompt are read and not pooled"
        where = str(folder / CONFIG)
        raise InputError("unsupported pooling", where=where, why=why, hint=f"{PLAIN_CAST}")


def _default_prompt(folder: Path) -> str:
    found = _json_if_any(folder / PROMPTS)
    prompts, name = found.get("prompts"), found.get("default_prompt_name")
    return str(prompts.get(name) or "") if isinstance(prompts, dict) and name else ""


# ---- what follows it ----


def _stage(kind: str, folder: Path) -> nn.Module:
    if kind not in STAGES:
        hint = f"{nearest(kind, STAGES)}; or {PLAIN_CAST}"
        raise InputError(f"unsupported module '{kind}'", where=str(folder), why="it is none of ours", hint=hint)
    return STAGES[kind](folder)


def _dense(folder: Path) -> nn.Module:
    config = _json(folder / CONFIG)
    weights = _weights(folder)
    if not {"linear.weight"} <= weights.keys() <= {"linear.weight", "linear.bias"}:
        why = f"its weights are {', '.join(sorted(weights))}"
        raise InputError("unsupported Dense module", where=str(folder), why=why, hint=PLAIN_CAST)
    rows, width = weights["linear.weight"].shape
    linear = nn.Linear(width, rows, bias="linear.bias" in weights)
    linear.load_state_dict({k.removeprefix("linear."): v.float() for k, v in weights.items()})
    return DenseLayer(linear, _activation(config, folder))


def _weights(folder: Path) -> dict[str, Any]:
    file = folder / "model.safetensors"
    if not file.is_file():
        why = "its weights are pickled, and pickled weights are never read"
        hint = "save it again with safetensors: SentenceTransformer(…).save(…)"
        why = why if list(folder.glob("*.bin")) else "model.safetensors is missing"
        raise InputError("a Dense module cannot be read", where=str(folder), why=why, hint=hint)
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except Exception as e:  # the library raises nothing narrower
        raise InputError(f"{file} cannot be read", why=f"{type(e).__name__}: {e}", hint="download it again") from e


def _activation(config: Mapping[str, Any], folder: Path) -> nn.Module:
    """A class of torch.nn by its path; no other code is imported."""
    path = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    found = getattr(nn, path.rpartition(".")[2], None) if path.startswith("torch.nn.") else None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise InputError(f"unsupported activation '{path}'", where=str(folder), why="it is no class of torch.nn")
    try:
        return found()
    except TypeError as e:
        raise InputError(f"unsupported activation '{path}'", where=str(folder), why=str(e), hint=PLAIN_CAST) from e


STAGES: dict[str, Callable[[Path], nn.Module]] = {
    "Normalize": lambda _: UnitLength(),
    "Dense": _dense,
    "Dropout": lambda _: nn.Identity(),
}


# ---- files ----


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError) as e:
        raise InputError(f"{file} cannot be read", why=str(e), hint="check that the folder is complete") from e


def _json(file: Path) -> dict[str, Any]:
    found = _read(file)
    if not isinstance(found, dict):
        raise InputError(f"{file} is not valid", why="it is no JSON object", hint="download it again")
    return found


def _json_if_any(file: Path) -> dict[str, Any]:
    return _json(file) if file.is_file() else {}
