"""Nets of transformers and torchaudio, made small from their configurations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bench import data
from bench.entry import Entry, Inputs, Unavailable
from bench.families.liven import liven
from bench.packages import transformers

BATCHES = 4
LENGTH, VOCABULARY, SAMPLES = 32, 500, 4000
# Tasks whose registries hold encoders, vision, audio and time series; what generates text has a bench of its own.
TASKS = {
    "masked_lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "image_classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "object_detection": "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "semantic_segmentation": "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "depth": "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    "super_resolution": "MODEL_FOR_IMAGE_TO_IMAGE_MAPPING_NAMES",
    "audio": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "speech": "MODEL_FOR_CTC_MAPPING_NAMES",
    "video": "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES",
    "time_series": "MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES",
    "keypoints": "MODEL_FOR_KEYPOINT_DETECTION_MAPPING_NAMES",
}
# The size of whatever a configuration has under one of these names.
SMALL = {
    "hidden_size": 64, "d_model": 64, "dim": 64, "embed_dim": 32, "embedding_size": 64, "num_hidden_layers": 2,
    "encoder_layers": 2, "decoder_layers": 2, "n_layers": 2, "num_layers": 2, "num_attention_heads": 4, "n_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128,
    "hidden_dim": 128, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "ffn_dim": 128, "vocab_size": VOCABULARY,
    "num_queries": 20, "image_size": 64, "num_labels": 10, "max_position_embeddings": 64, "num_frames": 4,
    "context_length": 32, "prediction_length": 8, "num_input_channels": 3, "conv_dim": (32,) * 7, "head_dim": 16,
}  # fmt: skip


def transformers_families() -> dict[str, str]:
    """task/type -> the same: the first task that lists a type has it."""
    auto, seen, found = _auto(), set[str](), dict[str, str]()
    for task, registry in TASKS.items():
        for kind in getattr(auto, registry, {}):
            if kind not in seen:
                seen.add(kind)
                found[f"{task}/{kind}"] = f"{task}/{kind}"
    return found


def _auto() -> Any:
    transformers()
    from transformers.models.auto import modeling_auto

    return modeling_auto


# Sizes that depend on others in some configurations: tried without them, then with the number of layers alone.
LAYERS = {k: v for k, v in SMALL.items() if "layers" in k}
COUNTS = {k: v for k, v in SMALL.items() if "dim" not in k and "size" not in k} | {"vocab_size": VOCABULARY}


def _attempts() -> Iterator[dict[str, Any]]:
    """All sizes, then without one of them; the same without the number of layers, and with counts alone."""
    for sizes in (SMALL, _without(SMALL, LAYERS), COUNTS):
        yield sizes
        for left_out in sizes:
            yield _without(sizes, (left_out,))
    yield LAYERS


def _without(sizes: dict[str, Any], left_out: Collection[str]) -> dict[str, Any]:
    return {k: v for k, v in sizes.items() if k not in left_out}


def transformers_entry(net: str) -> Entry:
    """As small as runs."""
    task, kind = net.split("/")
    names = getattr(_auto(), TASKS[task])[kind]
    failures, tried = list[Exception](), set[str]()
    for sizes in _attempts():
        config = small(transformers().AutoConfig.for_model(kind), sizes)
        if str(config) in tried:
            continue
        tried.add(str(config))
        try:
            return _small_entry(names if isinstance(names, str) else names[0], config)
        except (ImportError, Unavailable):
            raise
        except Exception as e:  # configurations do not say which sizes fit together
            failures.append(e)
    raise failures[0]


def _small_entry(name: str, config: Any) -> Entry:
    model = getattr(transformers(), name)(config).eval()
    batches = inputs_for(model, config)
    net = Named(model, list(batches[0]))
    made: list[Inputs] = [tuple(b.values()) for b in batches]
    with torch.no_grad():
        net(*made[0])
    return Entry(liven(net, made[:1]), made[0], made, name)


def small(config: Any, sizes: dict[str, Any]) -> Any:
    for name, value in sizes.items():
        if isinstance(getattr(config, name, None), int | list | tuple):
            _set(config, name, value)
    for name in getattr(config, "sub_configs", {}):
        if getattr(config, name, None) is not None:
            small(getattr(config, name), sizes)
    config.use_cache = False
    _fill_in(config)
    if getattr(config, "use_timm_backbone", False):
        config.use_pretrained_backbone = False
    return config


def _fill_in(config: Any) -> None:
    """Shallow stages, and what a checkpoint's configuration says: its tokens and one of its languages."""
    if isinstance(getattr(config, "depths", None), list | tuple):
        config.depths = type(config.depths)(min(d, 2) for d in config.depths)
    if getattr(config, "vocab_size", 0) is None:
        config.vocab_size, config.pad_token_id, config.mask_token_id = VOCABULARY, 1, 4
    size = getattr(config, "vocab_size", None) or VOCABULARY
    for name, token in list(vars(config).items()):
        if name.endswith("_token_id") and isinstance(token, int) and token >= size:
            setattr(config, name, 1)
    if getattr(config, "default_language", "") is None:
        config.default_language = config.languages[0]


def _set(config: Any, name: str, value: Any) -> None:
    """As the configuration writes it: a list keeps its length."""
    now = getattr(config, name)
    if isinstance(now, list | tuple) and not isinstance(value, tuple):
        return
    try:
        setattr(config, name, value)
    except Exception:  # computed from others
        return


class Named(nn.Module):
    """Inputs by name; all tensors at the top level of the output."""

    def __init__(self, net: nn.Module, names: list[str]):
        super().__init__()
        self.net, self.names = net, names

    def forward(self, *x: Tensor) -> Any:
        out = self.net(**dict(zip(self.names, x, strict=True)))
        values = list(out.values()) if hasattr(out, "values") else list(out) if isinstance(out, tuple) else [out]
        return tuple(v for v in values if isinstance(v, Tensor))


def inputs_for(model: Any, config: Any) -> list[dict[str, Tensor]]:
    """By the model's main input; sentences come with their padding mask."""
    kind = model.main_input_name
    makers: dict[str, Callable[[], list[dict[str, Tensor]]]] = {
        "input_ids": _sentences,
        "inputs": lambda: [{kind: b["input_ids"], "attention_mask": b["attention_mask"]} for b in _sentences()],
        "pixel_values": lambda: _pictures(model, config),
        "pixel_values_videos": lambda: [{kind: v[None]} for v in _frames(config)],
        "input_values": lambda: [{kind: v} for v in _sound(config)],
        "input_features": lambda: [{kind: torch.randn(1, *_features(config))} for _ in range(BATCHES)],
        "past_values": lambda: [{kind: b[0]} for b in data.signal_batches(32, _channels(config), BATCHES)],
    }
    if kind not in makers:
        raise Unavailable(f"no inputs of the kind {kind}")
    return makers[kind]()


def _sentences() -> list[dict[str, Tensor]]:
    made = []
    for i, (ids,) in enumerate(data.token_batches(LENGTH, VOCABULARY - 10, BATCHES)):
        mask = (torch.arange(LENGTH) < LENGTH - 5 * i)[None].long()
        made.append({"input_ids": (ids + 5) * mask, "attention_mask": mask})
    return made


def _pictures(model: Any, config: Any) -> list[dict[str, Tensor]]:
    if "Video" in type(model).__name__ or hasattr(config, "tubelet_size") or hasattr(config, "num_frames"):
        return [{"pixel_values": v[None]} for v in _frames(config)]
    size = _side(config)
    channels = getattr(config, "num_channels", 3)
    return [{"pixel_values": b[0][:, :channels]} for b in data.image_batches(size, BATCHES)]


def _side(config: Any) -> int:
    size = getattr(config, "image_size", None)
    return size[0] if isinstance(size, list | tuple) else size if isinstance(size, int) else 64


def _frames(config: Any) -> list[Tensor]:
    size, frames = _side(config), getattr(config, "num_frames", 4)
    return [data.images(frames, size, seed=i) for i in range(BATCHES)]


def _sound(config: Any) -> list[Tensor]:
    if hasattr(config, "num_mel_bins"):
        return [torch.randn(1, config.max_length, config.num_mel_bins) for _ in range(BATCHES)]
    return [v[None, :SAMPLES] for v in data.voices(BATCHES, 1.0)]


def _features(config: Any) -> tuple[int, ...]:
    bins = getattr(config, "num_mel_bins", None) or getattr(config, "feature_projection_input_dim", 80)
    whisper = hasattr(config, "max_source_positions") and not hasattr(config, "conv_kernel_sizes")
    return (bins, 2 * config.max_source_positions) if whisper else (64, bins)


def _channels(config: Any) -> int:
    return getattr(config, "num_input_channels", None) or 1


def torchaudio_families() -> dict[str, str]:
    return {name: name for name in SOUND}


def torchaudio_entry(net: str) -> Entry:
    try:
        import torchaudio
    except (ImportError, OSError) as e:
        raise Unavailable("pip install --no-deps torchaudio") from e
    model, batches = SOUND[net](torchaudio)
    return Entry(liven(model.eval(), batches[:1]), batches[0], batches, "torchaudio")


class Layers(nn.Module):
    """All layers in turn, for inputs of one length: lengths as tensors make shapes depend on data."""

    def __init__(self, layers: nn.ModuleList):
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        for layer in self.layers:
            x = layer(x, None)
        return x.transpose(0, 1)


class Leading(nn.Module):
    """The first output, for lengths that are fixed."""

    def __init__(self, net: nn.Module, *rest: Tensor):
        super().__init__()
        self.net, self.rest = net, rest

    def forward(self, x: Tensor) -> Tensor:
        out = self.net(x, *self.rest)
        return out[0] if isinstance(out, tuple) else out


def _waves(samples: int, channels: bool = False) -> list[Inputs]:
    return [(v[None, None, :samples] if channels else v[None, :samples],) for v in data.voices(BATCHES, 1.0)]


def _slow(steps: int, features: int) -> list[Inputs]:
    return data.signal_batches(steps, features, BATCHES)


def _log_mel(ta: Any) -> nn.Module:
    mel = ta.transforms.MelSpectrogram(16000, n_fft=400, hop_length=160, n_mels=40)

    class LogMel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mel, self.conv = mel, nn.Conv1d(40, 32, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv((self.mel(x) + 1e-6).log()).relu()

    return LogMel()


SOUND: dict[str, Callable[[Any], tuple[nn.Module, list[Inputs]]]] = {
    "conformer": lambda ta: (Layers(ta.models.Conformer(32, 4, 64, 2, 15).conformer_layers), _slow(40, 32)),
    "conv_tasnet": lambda ta: (
        ta.models.ConvTasNet(
            2, enc_kernel_size=16, enc_num_feats=64, msk_num_feats=32, msk_num_hidden_feats=64, msk_num_layers=3,
            msk_num_stacks=2,
        ), _waves(4000, True),
    ),
    "deepspeech": lambda ta: (ta.models.DeepSpeech(40, 64, 30), [(b[0][:, None],) for b in _slow(20, 40)]),
    "wav2letter": lambda ta: (ta.models.Wav2Letter(30, "mfcc", 40), [(b[0].mT.contiguous(),) for b in _slow(64, 40)]),
    "wav2vec2": lambda ta: (
        Leading(ta.models.wav2vec2_model(
            "group_norm", [(32, 10, 5), (32, 3, 2), (32, 3, 2)], False, 64, 0.0, 16, 4, 2, 4, 0.0, 128, 0.0, 0.0,
            False, 0.0, 30,
        )), _waves(4000),
    ),
    "wavlm": lambda ta: (
        Leading(ta.models.wavlm_model(
            "group_norm", [(32, 10, 5), (32, 3, 2), (32, 3, 2)], False, 64, 0.0, 16, 4, 2, 4, 32, 80, 0.0, 128,
            0.0, 0.0, False, 0.0, 30,
        )), _waves(4000),
    ),
    "squim_objective": lambda ta: (Leading(ta.models.squim_objective_base()), _waves(8000)),
    "log_mel": lambda ta: (_log_mel(ta), _waves(8000)),
}  # fmt: skip
