"""Text from a Vulkan program, of which no runtime here runs a shader: its serialised graph, op by op in torch.

python -m bench.language.interpreted out/vulkan [PROMPT]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from bench.language.weights import PROMPT
from ingot.llm import generation as text
from ingot.runtime.segments import read_pte, segments_of
from ingot.targets.vulkan.graph import decoded
from ingot.targets.vulkan.interpreter import interpreted, refuse_unknown
from ingot.targets.vulkan.target import BACKEND

TOKENS = 48


class Method:
    """Of a program that is one delegate, in the order of its inputs and outputs."""

    def __init__(self, pte: bytes, name: str) -> None:
        file = read_pte(pte, name)
        plan, pieces = file.program.execution_plan[0], list(segments_of(file.program, {BACKEND}))
        assert len(pieces) == 1, "something is left to the host"
        args = pieces[0].instructions[0].instr_args.args
        self.graph = decoded(pieces[0].payload or b"", file.named_data)
        refuse_unknown(self.graph)
        many = len(self.graph.inputs)
        self.takes = [plan.inputs.index(i) for i in args[:many]]
        self.gives = [args[many:].index(i) for i in plan.outputs]

    def __call__(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            made = interpreted(self.graph, [given[i] for i in self.takes])
        return [torch.from_numpy(made[i]) for i in self.gives]


class Program:
    def __init__(self, pte: bytes) -> None:
        self.pte = pte

    def load_method(self, name: str) -> Any:
        return Method(self.pte, name)


def open_session(folder: Path) -> text.Session:
    program = Program((folder / "model.pte").read_bytes())
    return text.Session(program.load_method("forward"), text.Shape.of(folder), program)


def main(folder: Path, prompt: str) -> None:
    from tokenizers import Tokenizer

    letters = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made = list(text.generate(open_session(folder), list(letters.encode(prompt).ids), TOKENS))
    print(prompt + letters.decode(made))


if __name__ == "__main__":
    main(Path(sys.argv[1]), " ".join(sys.argv[2:]) or PROMPT)
