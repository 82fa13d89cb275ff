"""The nets of this bench: some of the zoo, and a decoder of Whisper-tiny's dimensions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import zoo
from bench.entry import Entry, Inputs

NAMES = ("digits_cnn", "efficientnet_lite0", "mobilenet_v2", "minilm", "lstm", "whisper_decoder")
WIDTH, HEADS, WORDS, LAYERS, FRAMES, TOKENS = 384, 6, 51864, 4, 300, 4


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, memory: Tensor, causal: bool) -> Tensor:
        q, k, v = self._heads(self.query(x)), self._heads(self.key(memory)), self._heads(self.value(memory))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = _Attention(), _Attention()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, audio: Tensor) -> Tensor:
        normed = self.norms[0](x)
        x = x + self.own(normed, normed, True)
        x = x + self.cross(self.norms[1](x), audio, False)
        return x + self.narrow(F.gelu(self.wide(self.norms[2](x))))


class WhisperDecoder(nn.Module):
    """The output projection is the embedding table."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(448, WIDTH) * 0.1)
        nn.init.normal_(self.words.weight, std=0.1)
        self.layers, self.norm = nn.ModuleList(_Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor, audio: Tensor) -> Tensor:
        x = self.words(tokens) + self.places[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, audio)
        return self.norm(x) @ self.words.weight.T


def _whisper_decoder() -> Entry:
    torch.manual_seed(0)
    data: list[Inputs] = [(torch.randint(0, WORDS, (1, TOKENS)), torch.randn(1, FRAMES, WIDTH)) for _ in range(16)]
    return Entry(WhisperDecoder().eval(), data[0], data, "Whisper-tiny's decoder, random weights")


def build(name: str) -> Entry:
    return _whisper_decoder() if name == "whisper_decoder" else zoo.build(name)
