"""Chat templates: messages to the text that the model was trained on, by the template of its tokenizer.

Templates are Jinja, as `transformers` saves them; they run in Jinja's sandbox, without importing `transformers`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ingot.errors import InputError, first_sentence

TEMPLATE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
Message = Mapping[str, str]  # role and content
PLAIN = "ingot generate, with a prompt in the form that the model knows"


@dataclass(frozen=True)
class ChatTemplate:
    source: str
    special: Mapping[str, str]  # bos_token, eos_token and the like

    @staticmethod
    def from_folder(folder: Path) -> ChatTemplate:
        config = _config(folder)
        file, inside = folder / TEMPLATE, config.get("chat_template")
        source = file.read_text() if file.is_file() else _default_of(inside)
        if not source:
            why = f"neither {TEMPLATE} nor {CONFIG} has one: is it a base model?"
            raise InputError(f"{folder} has no chat template", why=why, hint=PLAIN)
        special = {k: _content(v) for k, v in config.items() if k.endswith("_token") and v}
        return ChatTemplate(source, special)

    def render(self, messages: Sequence[Message]) -> str:
        """The text up to where the answer of the model begins."""
        from jinja2 import TemplateError

        try:
            template = _environment().from_string(self.source)
            return template.render(messages=[*messages], add_generation_prompt=True, tools=None, **self.special)
        except (TemplateError, TypeError, ValueError, LookupError) as e:
            roles = ", ".join(m["role"] for m in messages)
            why = f"{type(e).__name__}: {first_sentence(e)}"
            raise InputError("the chat template fails", where=f"messages of {roles}", why=why, hint=PLAIN) from e


def _config(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / CONFIG).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise InputError(f"{folder / CONFIG} cannot be read", why=str(e), hint="cast it again") from e
    return found if isinstance(found, dict) else {}


def _default_of(template: Any) -> str:
    """One template, or several with names."""
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        return str(named.get("default") or "")
    return template if isinstance(template, str) else ""


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _environment() -> Any:
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    made.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, **how)
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return made
