"""Run all contenders in turn, round by round, so that noise of the machine affects all alike.

python -m bench.language.ours out/ours          # minutes
python -m bench.language.stock out/stock        # half an hour
python -m bench.language.run --ours out/ours --stock out/stock --rounds 5
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.language.contender import KINDS
from bench.language.weights import PROMPT

Runs = dict[str, list[dict[str, Any]]]
STOCK = ("stock", "stock-light")  # one program, with the exporter imported and without


def main() -> None:
    options = _options()
    prompt = _tokens(options.ours)
    folders = {"ingot": options.ours, **dict.fromkeys(STOCK, options.stock or options.ours)}
    kinds = [k for k in KINDS if k not in options.without and (k not in STOCK or options.stock)]
    runs: Runs = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind in kinds:
            made = _measured(kind, folders.get(kind, options.ours), prompt)
            runs[kind] += [made] if made else []
    _print_table({k: r for k, r in runs.items() if r}, folders)
    if options.json:
        options.json.write_text(json.dumps(runs))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ours", type=Path, required=True)
    parser.add_argument("--stock", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", nargs="*", default=[], choices=list(KINDS))
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _tokens(folder: Path) -> list[int]:
    from tokenizers import Tokenizer

    return list(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(PROMPT).ids)


def _measured(kind: str, folder: Path, prompt: list[int]) -> dict[str, Any] | None:
    command = [sys.executable, "-W", "ignore", "-m", "bench.language.contender", kind, str(folder)]
    done = subprocess.run([*command, ",".join(map(str, prompt))], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{kind} did not run: {(done.stderr.strip().splitlines() or ['?'])[-1]}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _print_table(runs: Runs, folders: dict[str, Path]) -> None:
    """Tokens per second (median and range), the median ratio of Ingot to each contender, and memory."""
    titles = ("", "tokens/s, median (least, most)", "Ingot's ratio to it", "MB held", "most", "export s", "delegates")
    print(f"| {' | '.join(titles)} | MB of file |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for kind, each in runs.items():
        speeds = [r["tokens_per_second"] for r in each]
        ratio = statistics.median(a["tokens_per_second"] / b for a, b in zip(runs["ingot"], speeds, strict=False))
        spread = f"{statistics.median(speeds):.1f} ({min(speeds):.1f}, {max(speeds):.1f})"
        held, most = (max(r[k] for r in each) for k in ("held_mb", "peak_mb"))
        print(f"| {kind} | {spread} | {ratio:.2f} | {held:.0f} | {most:.0f} | {_export(folders.get(kind))} |")


def _export(folder: Path | None) -> str:
    if folder is None or not (folder / "facts.json").is_file():
        return "| |"
    facts = json.loads((folder / "facts.json").read_text())
    return f"{facts['seconds']:.0f} | {facts['delegates']} | {facts['bytes'] / 1e6:.1f}"


if __name__ == "__main__":
    main()
