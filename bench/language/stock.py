"""The stock export: the static cache of `transformers`, torchao's 8da4w, lowered to XNNPACK.

python -m bench.language.stock OUT    # takes most of an hour
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench.language.weights import CONTEXT, checkpoint


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found = checkpoint()
    start = time.perf_counter()
    pte, delegates = exported(found.model)
    seconds = time.perf_counter() - start
    (folder / "model.pte").write_bytes(pte)
    found.tokenizer.save_pretrained(folder)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    facts = {"seconds": seconds, "peak_mb": most, "delegates": delegates, "bytes": len(pte)}
    (folder / "facts.json").write_text(json.dumps(facts))
    print(facts)


def exported(model: Any) -> tuple[bytes, int]:
    import executorch.kernels.quantized  # noqa: F401
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    quantize(model)
    model.generation_config.cache_implementation = "static"
    cache: dict[str, Any] = {"batch_size": 1, "max_cache_len": CONTEXT}
    model.generation_config.cache_config = cache
    wrapped = TorchExportableModuleWithStaticCache(model, **cache).eval()
    inputs = {"input_ids": torch.zeros(1, 1, dtype=torch.long), "cache_position": torch.zeros(1, dtype=torch.long)}
    with torch.no_grad():
        program = torch.export.export(wrapped, (), kwargs=inputs, strict=True)
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    calls = [n for n in edge.exported_program().graph.nodes if "call_delegate" in str(n.target)]
    config = ExecutorchBackendConfig(do_quant_fusion_and_const_prop=True)  # without it the embedding has no kernel
    return bytes(edge.to_executorch(config).buffer), len(calls)


def quantize(model: torch.nn.Module) -> None:
    """Groups of 32; eight bits for head and embedding, the defaults of Ingot."""
    from torchao.quantization import (
        Int8DynamicActivationIntxWeightConfig,
        IntxWeightOnlyConfig,
        PerAxis,
        PerGroup,
        quantize_,
    )

    head, bulk = PerAxis(0), PerGroup(32)
    four = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=bulk)  # type: ignore[attr-defined]
    eight = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int8, weight_granularity=head)
    table = IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=head)
    model.get_input_embeddings().padding_idx = None  # with it the embedding stays float on the host, without a kernel
    model.lm_head.weight = torch.nn.Parameter(
        model.lm_head.weight.clone()
    )  # torchao cannot quantize a tied weight in two forms
    quantize_(model, four, lambda m, name: isinstance(m, torch.nn.Linear) and "lm_head" not in name)
    quantize_(model, eight, lambda m, name: "lm_head" in name)
    quantize_(model, table, lambda m, name: isinstance(m, torch.nn.Embedding))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
