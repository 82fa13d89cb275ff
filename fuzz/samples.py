"""One good file of each kind that Ingot reads, and how Ingot reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import ingot

HAS_GGUF = find_spec("gguf") is not None
RUN_SECONDS = 5.0  # the sample runs in milliseconds, so a run that takes longer hangs
X = torch.linspace(-1, 1, 1 * 3 * 6 * 6).reshape(1, 3, 6, 6)
RECIPE = """range = "percentile:99.9"
verify_batches = 2
inputs = ["int8"]
scopes = [{ op = "conv*", precision = "int8" }, { op = "add*", range = "minmax" }]
[options]
"""


@dataclass(frozen=True)
class FileKind:
    """`file` of the sample folder is damaged; `read` gets the folder."""

    folder: str
    file: str
    read: Callable[[Path], Any]
    signed: bool = False  # its digest in casting.json is that of the damaged file: the reader behind it is tested


def sample_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)).eval()


def make_samples(root: Path) -> None:
    """Every folder, once; the readers must take them as they are."""
    from PIL import Image

    program = ingot.capture(sample_net(), (X,))
    ranges = ingot.record(program, [(X,), (X * 0.5,)])
    data, images = root / "data", root / "images"
    for folder in (data, images):
        folder.mkdir(parents=True)
    (data / "recipe.toml").write_text(RECIPE)
    ranges.save(data / "ranges.json")
    np.savez(data / "x.npz", x=X.repeat(3, 1, 1, 1).numpy())
    np.savez_compressed(data / "packed.npz", x=X.repeat(3, 1, 1, 1).numpy())
    np.save(data / "x.npy", X.repeat(3, 1, 1, 1).numpy())
    torch.export.save(torch.export.export(sample_net(), (X,)), data / "net.pt2")
    casting = ingot.cast(sample_net(), (X,), target="xnnpack", calibration=[(X,), (X * 0.5,)])
    casting.save_folder(root / "casting")
    (data / "plan.json").write_text(casting.plan.to_json())
    (data / "model.pte").write_bytes(casting.pte)
    pixels = np.arange(12 * 12 * 3, dtype=np.uint8).reshape(12, 12, 3)
    for suffix in ("png", "jpg", "bmp", "gif", "webp", "tif"):
        folder = images / suffix
        folder.mkdir()
        Image.fromarray(pixels).save(folder / f"a.{suffix}")
    _make_decoder(casting.save_folder(root / "decoder", evidence=False))
    _make_checkpoint(root / "checkpoint")
    if HAS_GGUF:
        _make_gguf(root / "gguf" / "net.gguf")


def _make_checkpoint(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    from ingot.llm.hf_imports import import_transformers

    transformers = import_transformers()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=32, num_key_value_heads=1, max_position_embeddings=32, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    made = Tokenizer(models.WordLevel({chr(97 + i): i for i in range(26)} | {"<unk>": 26}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>").save_pretrained(folder)


def _make_gguf(file: Path) -> None:
    """The smallest Llama, with its tokenizer."""
    import gguf

    file.parent.mkdir(parents=True)
    out = gguf.GGUFWriter(str(file), "llama")
    out.add_block_count(1)
    out.add_context_length(32)
    out.add_embedding_length(16)
    out.add_feed_forward_length(32)
    out.add_head_count(2)
    out.add_head_count_kv(1)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(8)
    out.add_vocab_size(32)
    _add_gguf_tokenizer(out)
    for name, shape in GGUF_TENSORS.items():
        out.add_tensor(f"{name}.weight", np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _add_gguf_tokenizer(out: Any) -> None:
    out.add_tokenizer_model("gpt2")
    out.add_token_list([*(chr(97 + i) for i in range(26)), "ab", "<s>", "</s>", "<unk>", "x1", "x2"])
    out.add_token_types([1] * 32)
    out.add_token_merges(["a b"])
    out.add_bos_token_id(27)
    out.add_eos_token_id(28)


GGUF_TENSORS = {
    "token_embd": (32, 16), "output": (32, 16), "output_norm": (16,), "blk.0.attn_norm": (16,), "blk.0.ffn_norm": (16,),
    "blk.0.attn_q": (16, 16), "blk.0.attn_k": (8, 16), "blk.0.attn_v": (8, 16), "blk.0.attn_output": (16, 16),
    "blk.0.ffn_gate": (32, 16), "blk.0.ffn_up": (32, 16), "blk.0.ffn_down": (16, 32),
}  # fmt: skip


def _make_decoder(folder: Path) -> None:
    """A folder as `ingot generate` opens it."""
    from ingot.llm.generation import DecoderSpec
    from ingot.llm.kv_cache import KVHeads

    (folder / "decoder.json").write_text(DecoderSpec(16, 2, KVHeads(2, 1, 4), (1,)).to_json())


# ---- readers ----


@cache
def _program() -> Any:
    return ingot.capture(sample_net(), (X,))


def _ranges(folder: Path) -> None:
    ranges = ingot.Ranges.load(folder / "ranges.json")
    ingot.plan(_program(), ranges, "xnnpack", recipe={"range": "minmax"})
    ranges.merge(ranges).to_json()


def _plan(folder: Path) -> None:
    from ingot.cli.files import read_plan
    from ingot.config.recipe import Recipe
    from ingot.plan.validate import validate
    from ingot.rewrite.apply import rewrite_for
    from ingot.targets.registry import find_target

    for plan in (ingot.Plan.from_json((folder / "plan.json").read_bytes()), read_plan(folder / "plan.json")):
        plan.diff(plan)
        validate(plan, rewrite_for(_program(), find_target("xnnpack"), Recipe()).program.module, find_target("xnnpack"))


def _batches(name: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        from ingot.data import load_calibration

        path = folder / name if name else folder
        list(load_calibration(str(path), (X,), names=["x"]))
        if name:
            list(load_calibration(str(path), None))

    return read


def _recipe(folder: Path) -> None:
    from ingot.config.recipe import recipe_from

    recipe_from(folder / "recipe.toml")


def _exported(folder: Path) -> None:
    from ingot.data import load_model

    loaded = load_model(str(folder / "net.pt2"))
    ingot.capture(loaded.model, loaded.example_inputs)


def _runs(folder: Path) -> None:
    from ingot.runtime.segmented_run import run_segmented
    from ingot.runtime.worker import run_pte

    pte = (folder / "model.pte").read_bytes()
    try:
        run_pte(pte, [(X,)], timeout=RUN_SECONDS)
    finally:
        run_segmented(pte, [(X,)], {}, RUN_SECONDS)


def _casting(folder: Path) -> None:
    casting = ingot.Casting.load(folder)
    if casting.evidence is not None:
        ingot.verify(casting, [(X,)])


def _session(folder: Path) -> None:
    from ingot.llm.generation import open_session

    open_session(folder)


def _checkpoint(folder: Path) -> None:
    from ingot.llm.checkpoint import load_checkpoint
    from ingot.llm.decoder import Decoder
    from ingot.llm.pipeline import tokenize

    found = load_checkpoint(folder)
    tokenize(found, "a b c")
    Decoder(found.model, 8)


def _gguf(folder: Path) -> None:
    _checkpoint(folder / "net.gguf")


def _tokenizer(folder: Path) -> None:
    from ingot.llm.tokenizer_files import read_tokenizer

    assert read_tokenizer(folder).encode("a b").ids is not None


SIGNED = ("plan.json", "ranges.json", "model.pte", "float.pt2")
KINDS: dict[str, FileKind] = {
    "recipe": FileKind("data", "recipe.toml", _recipe),
    "plan": FileKind("data", "plan.json", _plan),
    "ranges": FileKind("data", "ranges.json", _ranges),
    "npz": FileKind("data", "x.npz", _batches("x.npz")),
    "npz-compressed": FileKind("data", "packed.npz", _batches("packed.npz")),
    "npy": FileKind("data", "x.npy", _batches("x.npy")),
    "pt2": FileKind("data", "net.pt2", _exported),
    "pte": FileKind("data", "model.pte", _runs),
    **{
        f"image-{s}": FileKind(f"images/{s}", f"a.{s}", _batches(""))
        for s in ("png", "jpg", "bmp", "gif", "webp", "tif")
    },
    "casting.json": FileKind("casting", "casting.json", _casting),
    "casting-plan": FileKind("casting", "plan.json", _casting),
    "casting-ranges": FileKind("casting", "ranges.json", _casting),
    "casting-pte": FileKind("casting", "model.pte", _casting),
    "casting-float": FileKind("casting", "float.pt2", _casting),
    **{f"signed-{f}": FileKind("casting", f, _casting, signed=True) for f in SIGNED},
    "decoder.json": FileKind("decoder", "decoder.json", _session),
    "decoder-pte": FileKind("decoder", "model.pte", _session),
    "safetensors": FileKind("checkpoint", "model.safetensors", _checkpoint),
    "config.json": FileKind("checkpoint", "config.json", _checkpoint),
    "tokenizer.json": FileKind("checkpoint", "tokenizer.json", _checkpoint),
    "tokenizer": FileKind("checkpoint", "tokenizer.json", _tokenizer),
    **({"gguf": FileKind("gguf", "net.gguf", _gguf)} if HAS_GGUF else {}),
}


def missing_kinds() -> dict[str, str]:
    """Kinds that are left out here, and what to install."""
    return {} if HAS_GGUF else {"gguf": "pip install 'gguf>=0.17' 'accelerate>=1'"}
