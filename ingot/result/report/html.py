"""Facts as one self-contained page: the data in a block of JSON, the script and the style from files beside this one.

No text of a model is ever markup: what stands in the page itself is escaped, everything else is set as text by the
script, and a policy in the page lets no other script run and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from html import escape
from importlib.resources import files

from ingot.result.report import text
from ingot.result.report.text import Facts

GENERATOR = '<meta name="generator" content="ingot">'
SCRIPTS = ("dom", "charts", "graph", "paint", "search", "explore", "measures", "page", "compare", "start")


def page(facts: Facts) -> str:
    """The page of one casting."""
    check = facts["check"]
    mood = "" if check is None else "passed" if check["passed"] else "failed"
    return document(text.verdict(facts), facts, mood)


def document(title: str, data: Facts, mood: str = "") -> str:
    style, script = _file("assets", "style.css"), _script()
    policy = (
        f"default-src 'none'; style-src {_hashed(style)}; script-src {_hashed(script)}; "
        "worker-src blob:; base-uri 'none'; form-action 'none'"
    )
    shown = escape(title)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">{GENERATOR}
<title>Ingot: {shown[:200]}</title><style>{style}</style></head>
<body><header><h1 class="{mood}">{shown}</h1></header><nav aria-label="sections"></nav>
<main><noscript>The page draws itself from the data in it, with a script of its own.</noscript></main>
<footer>Written by Ingot. Layout of the graph by dagre (MIT licence, in the source of this page).</footer>
<script type="application/json" id="data">{embedded(data)}</script>
<script type="text/plain" id="layouter">{_layouter()}</script>
<script>{script}</script></body></html>
"""


def embedded(data: Facts) -> str:
    """JSON that no HTML parser and no JavaScript parser can take for anything else."""
    raw = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII: U+2028 and lone surrogates are escapes
    return raw.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _script() -> str:
    return '"use strict";\n(() => {\n' + "\n".join(_file("assets", f"{name}.js") for name in SCRIPTS) + "\n})();\n"


@cache
def _layouter() -> str:
    """What the worker runs: the library under its licence, and what we do with it."""
    library = re.sub(r"//# sourceMappingURL=\S*", "", _file("vendor", "dagre.min.js"))
    licence = _file("vendor", "dagre.LICENSE").replace("*/", "* /")
    return f"/*\n{licence}*/\n{library}\n{_file('assets', 'layout.js')}"


@cache
def _file(folder: str, name: str) -> str:
    return files("ingot.result.report").joinpath(folder, name).read_text(encoding="utf-8")


def _hashed(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
