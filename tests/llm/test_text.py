"""Sampling, streaming, stop strings and chat templates, on logits and tokenizers that are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.llm.chat import ChatTemplate
from ingot.llm.generation import DecoderSession, DecoderSpec
from ingot.llm.kv_cache import KVHeads
from ingot.llm.sampling import Sampling, TokenSampler
from ingot.llm.text_generation import Chat, TextRequest, generate_text
from ingot.llm.text_stream import TextStream

CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class BytesTokenizer:
    """One token per byte."""

    def encode(self, text: str, add_special_tokens: bool = True) -> Any:
        return type("Encoding", (), {"ids": list(text.encode())})

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class Echo(DecoderSession):
    """A decoder that says a text, whatever the prompt is."""

    def __init__(self, says: str, context: int = 200, stops: tuple[int, ...] = ()) -> None:
        self.spec, self.position = DecoderSpec(context, 1, KVHeads(1, 1, 1), stops), 0
        self.says, self.at, self.prompts = says.encode(), 0, list[list[int]]()

    def prefill(self, prompt: list[int]) -> Tensor:
        self.prompts.append(prompt)
        self.position += len(prompt)
        self.at = 0
        return self._logits()

    def decode(self, token: int) -> Tensor:
        self.position += 1
        return self._logits()

    def _logits(self) -> Tensor:
        self.at += 1
        return torch.nn.functional.one_hot(torch.tensor(self.says[(self.at - 1) % len(self.says)]), 256).float()


def said(session: Echo, most: int = 30, stops: tuple[str, ...] = ()) -> tuple[str, str, list[str]]:
    shown = list[str]()
    made = generate_text(session, BytesTokenizer(), [65], TextRequest(most, stops=stops), shown.append)
    return made.text, made.ended, [s for s in shown if s]


# ---- sampling ----

LOGITS = torch.tensor([0.0, 3.0, 2.0, -1.0, 2.9])


def drawn(many: int = 400, **how: Any) -> set[int]:
    sampler = TokenSampler(Sampling(seed=1, **how), [])
    return {sampler(LOGITS) for _ in range(many)}


def test_without_a_temperature_the_most_likely_token() -> None:
    assert drawn() == {1}
    assert drawn(top_p=0.1) == {1}


def test_top_p_and_min_p_drop_unlikely_tokens() -> None:
    likely = torch.softmax(LOGITS, -1)
    assert drawn(temperature=1.0) == {0, 1, 2, 3, 4}
    assert drawn(temperature=1.0, top_p=float(likely[1]) + 0.01) == {1, 4}
    assert drawn(temperature=1.0, top_p=1e-6) == {1}
    assert drawn(temperature=1.0, min_p=float(likely[2] / likely[1]) - 0.01) == {1, 2, 4}


def test_frequencies_are_those_of_the_softmax() -> None:
    sampler = TokenSampler(Sampling(temperature=2.0, seed=3), [])
    counts = torch.bincount(torch.tensor([sampler(LOGITS) for _ in range(4000)]), minlength=5) / 4000
    torch.testing.assert_close(counts, torch.softmax(LOGITS / 2, -1), rtol=0, atol=0.03)


def test_a_repetition_penalty_counts_tokens_of_the_prompt_and_of_the_text() -> None:
    sampler = TokenSampler(Sampling(repetition_penalty=2.0), [1])
    assert [sampler(LOGITS) for _ in range(3)] == [4, 2, 1]  # 1.5, 1.45 and 1 are left of the logits
    assert TokenSampler(Sampling(repetition_penalty=2.0), [0])(torch.tensor([-1.0, -1.5])) == 1


def test_a_seed_repeats_a_text() -> None:
    texts = [[TokenSampler(Sampling(temperature=1.0, seed=s), [])(LOGITS) for _ in range(20)] for s in (5, 5)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"min_p": 2.0}, {"repetition_penalty": 0.0}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ingot.InputError, match="invalid"):
        Sampling(**wrong)  # type: ignore[arg-type]


# ---- streaming ----


def test_half_a_character_waits_for_its_other_half() -> None:
    stream = TextStream(BytesTokenizer())
    assert [stream.push(t) for t in "aü€b".encode()] == ["a", "", "ü", "", "", "€", "b"]
    assert stream.push("€".encode()[0]) == ""
    assert stream.rest() == "\ufffd"


def test_a_stop_string_ends_the_text_and_never_shows() -> None:
    assert said(Echo("one END two"), stops=("END",)) == ("one ", "stop string", ["o", "n", "e", " "])
    text, ended, shown = said(Echo("EN and ENDE"), stops=("END",))
    assert (text, ended, "".join(shown)) == ("EN and ", "stop string", "EN and ")
    text, ended, shown = said(Echo("abcE"), most=4, stops=("END",))
    assert (text, ended, "".join(shown)) == ("abcE", "length", "abcE")  # kept back, and given at the end


def test_why_a_text_ended() -> None:
    assert said(Echo("abc", stops=(ord("c"),)))[:2] == ("ab", "stop token")
    assert said(Echo("abc", context=4))[:2] == ("abc", "context")
    assert said(Echo("abc"), most=2)[:2] == ("ab", "length")


def test_an_interrupt_keeps_what_there_is() -> None:
    def interrupted(text: str) -> None:
        if text == "c":
            raise KeyboardInterrupt

    made = generate_text(Echo("abcdef"), BytesTokenizer(), [65], TextRequest(6), interrupted)
    assert (made.text, made.ended) == ("abc", "interrupt")


# ---- chat ----


def with_template(folder: Path, template: str | None = CHAT) -> Path:
    config = {"eos_token": {"content": "|"}, **({"chat_template": template} if template else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_a_conversation_computes_only_what_is_new(tmp_path: Path) -> None:
    session = Echo("yes|", stops=(ord("|"),))
    chat = Chat(session, BytesTokenizer(), with_template(tmp_path), system="be brief")
    assert chat.answer("hi", TextRequest()).text == "yes"
    assert chat.answer("and now?", TextRequest()).text == "yes"
    first, second = (bytes(p).decode() for p in session.prompts)
    assert first == "<system>be brief|<user>hi|<assistant>"
    assert second == "yes|<user>and now?|<assistant>"


def test_old_messages_are_dropped_and_long_ones_refused(tmp_path: Path) -> None:
    chat = Chat(Echo("yes|", 80, (ord("|"),)), BytesTokenizer(), with_template(tmp_path), system="S")
    for text in ("one", "two", "three"):
        chat.answer(text, TextRequest())
    assert chat.forgotten > 0
    assert chat.messages[0] == {"role": "system", "content": "S"}
    with pytest.raises(ingot.InputError, match=r"the message is longer than the context .*the context is 80"):
        chat.answer("x" * 90, TextRequest())
    assert chat.answer("on", TextRequest()).text == "yes"


def test_templates_are_found_and_fail_in_words(tmp_path: Path) -> None:
    with pytest.raises(ingot.InputError, match=r"has no chat template .*is it a base model"):
        ChatTemplate.from_folder(with_template(tmp_path, None))
    wrong = ChatTemplate.from_folder(with_template(tmp_path, "{{ raise_exception('system first') }}"))
    with pytest.raises(ingot.InputError, match=r"the chat template fails .*messages of user .*system first"):
        wrong.render([{"role": "user", "content": "hi"}])
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert ChatTemplate.from_folder(tmp_path).render([{"role": "user", "content": "hi"}]) == "hi"
    (tmp_path / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(ingot.InputError, match="the chat template fails"):
        ChatTemplate.from_folder(tmp_path).render([{"role": "user", "content": "hi"}])
