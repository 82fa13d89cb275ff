"""One self-contained HTML page: the data as a JSON block, script and style from the assets folder.

No text of a model becomes markup: the title is escaped, the script sets everything else as text, and the page's content
security policy blocks other scripts and all network access.
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
SCRIPTS = ("dom", "charts", "graph", "paint", "search", "explore", "measures", "goal", "page", "compare", "start")


def page(facts: Facts) -> str:
    """The report page of one casting."""
    check = facts["check"]
    status = "" if check is None else "passed" if check["passed"] else "failed"
    return document(text.headline(facts), facts, status)


def document(title: str, data: Facts, status: str = "") -> str:
    """A page of castings, with the graph and its layout."""
    credit = " Graph layout by dagre (MIT licence, in the source of this page)."
    layouter = f'<script type="text/plain" id="layouter">{_layouter()}</script>\n'
    return page_document(title, data, asset("style.css"), _script(), status, credit, layouter)


def page_document(
    title: str, data: Facts, style: str, code: str, status: str = "", credit: str = "", more: str = ""
) -> str:
    """One page whose `code` draws `data`; nothing else may run or be loaded."""
    script = f'"use strict";\n(() => {{\n{code}\n}})();\n'
    policy = (
        f"default-src 'none'; style-src {_hashed(style)}; script-src {_hashed(script)}; "
        "worker-src blob:; base-uri 'none'; form-action 'none'"
    )
    shown, short = escape(title), escape(title[:200])
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">{GENERATOR}
<title>Ingot: {short}</title><style>{style}</style></head>
<body><header><h1 class="{status}">{shown}</h1></header><nav aria-label="sections"></nav>
<main><noscript>This page needs JavaScript: its script draws the data that it contains.</noscript></main>
<footer>Written by Ingot.{credit}</footer>
<script type="application/json" id="data">{embedded(data)}</script>
{more}<script>{script}</script></body></html>
"""


def embedded(data: Facts) -> str:
    """JSON without characters that an HTML or JavaScript parser could treat as markup."""
    raw = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII: U+2028 and lone surrogates are escapes
    return raw.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _script() -> str:
    return "\n".join(asset(f"{name}.js") for name in SCRIPTS)


def asset(name: str) -> str:
    """A script or style that pages share."""
    return _file("assets", name)


@cache
def _layouter() -> str:
    """The worker's script: the dagre library with its licence, and our layout code."""
    library = re.sub(r"//# sourceMappingURL=\S*", "", _file("vendor", "dagre.min.js"))
    licence = _file("vendor", "dagre.LICENSE").replace("*/", "* /")
    return f"/*\n{licence}*/\n{library}\n{_file('assets', 'layout.js')}"


@cache
def _file(folder: str, name: str) -> str:
    return files("ingot.result.report").joinpath(folder, name).read_text(encoding="utf-8")


def _hashed(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
