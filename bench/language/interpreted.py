"""Generate text from a Vulkan program without a GPU: its serialised graph is interpreted op by op in torch.

python -m bench.language.interpreted out/vulkan [PROMPT]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from bench.language.weights import PROMPT
from ingot.llm.generation import DecoderSession, DecoderSpec, generate_tokens
from ingot.runtime.segmented_run import read_pte, segments_of
from ingot.targets.vulkan.graph import decode_delegate
from ingot.targets.vulkan.interpreter import check_registered, interpret
from ingot.targets.vulkan.target import BACKEND

TOKENS = 48


class InterpretedMethod:
    """A method that is one delegate, called with the inputs and outputs of the program."""

    def __init__(self, pte: bytes, name: str) -> None:
        file = read_pte(pte, name)
        plan, pieces = file.program.execution_plan[0], list(segments_of(file.program, {BACKEND}))
        assert len(pieces) == 1, "the method has host ops"
        args = pieces[0].instructions[0].instr_args.args
        self.graph = decode_delegate(pieces[0].payload or b"", file.named_data)
        check_registered(self.graph)
        many = len(self.graph.inputs)
        self.inputs = [plan.inputs.index(i) for i in args[:many]]
        self.outputs = [args[many:].index(i) for i in plan.outputs]

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            outputs = interpret(self.graph, [inputs[i] for i in self.inputs])
        return [torch.from_numpy(outputs[i]) for i in self.outputs]


class InterpretedProgram:
    def __init__(self, pte: bytes) -> None:
        self.pte = pte

    def load_method(self, name: str) -> Any:
        return InterpretedMethod(self.pte, name)


def open_session(folder: Path) -> DecoderSession:
    program = InterpretedProgram((folder / "model.pte").read_bytes())
    return DecoderSession(program.load_method("forward"), DecoderSpec.from_folder(folder), program)


def main(folder: Path, prompt: str) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made = list(generate_tokens(open_session(folder), list(tokenizer.encode(prompt).ids), TOKENS))
    print(prompt + tokenizer.decode(made))


if __name__ == "__main__":
    main(Path(sys.argv[1]), " ".join(sys.argv[2:]) or PROMPT)
