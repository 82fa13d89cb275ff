"""Ingot: cast the model into a folder, with seconds, peak memory and size.

python -m bench.language.ours OUT [WEIGHTS as JSON [TARGET]]
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from bench.language.weights import CONTEXT, checkpoint, texts
from ingot.llm.generation import DECODER_FILE
from ingot.llm.pipeline import cast_decoder

# Four bits for the embedding, which is a lookup; the rest of 106 MB buys int8 for the linears where it helps most.
WEIGHTS = {"scheme": "8da4w", "embedding_bits": 4, "most_bytes": 106_300_000}


def main(folder: Path, weights: Any, target: str = "xnnpack") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found = checkpoint()
    start = time.perf_counter()
    how = {"target": target, "weights": weights, "context": CONTEXT, "texts": texts()}
    casting, spec = cast_decoder(found, **how, on_mismatch="keep")  # a failed check is reported, not raised
    seconds = time.perf_counter() - start
    casting.save(folder / "model.pte")
    (folder / DECODER_FILE).write_text(spec.to_json())
    found.tokenizer.save_pretrained(folder)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    facts: dict[str, Any] = {
        "seconds": seconds,
        "peak_mb": most,
        "delegates": len(casting.delegates),
        "bytes": len(casting.pte),
    }
    wide = sum(layer.bits == 8 for layer in casting.layers)
    facts |= {
        "layers": len(casting.layers),
        "of 8 bits": wide,
        "passed": casting.check.passed,
        "timings": casting.timings,
    }
    (folder / "facts.json").write_text(json.dumps(facts))
    print(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]) if len(sys.argv) > 2 else WEIGHTS, *sys.argv[3:])
