"""A user's script that uses every public verb: `mypy --strict` passes, and so does running it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import ingot


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 4, 1)

    def forward(self, image: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        made: torch.Tensor = self.head(self.conv(image).relu())
        return made if scale is None else made * scale


def batches() -> Iterator[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        yield (torch.randn(1, 3, 8, 8, generator=generator),)


def main(folder: Path) -> None:
    net, example = Net().eval(), next(batches())
    recipe = ingot.Recipe(scopes=(ingot.Scope(path="head", precision="float"),), noise_vs_latency=0.1)
    casting: ingot.Casting = ingot.cast(net, example, target="xnnpack", calibration=batches(), recipe=recipe)
    both: dict[str, ingot.Casting] = ingot.cast(net, example, target=["xnnpack"], calibration=list(batches()))
    print(len(both["xnnpack"].pte), casting.save(folder / "model.pte"))
    tell(casting)
    step_by_step(net, example, folder)
    keyword_arguments(net, folder)


def tell(casting: ingot.Casting) -> None:
    delegate: ingot.Delegate = casting.delegates[0]
    host_ops: tuple[ingot.HostOp, ...] = casting.host_ops
    inputs: tuple[ingot.TensorInfo, ...] = casting.io.inputs
    check: ingot.Check | None = casting.check
    assert check is not None
    worst: float = min(output.sqnr_db for output in check.outputs)
    reasons: str = casting.plan.why("conv2d")
    print(delegate.backend, len(host_ops), inputs[0].dtype, worst, reasons, casting.timings["lower"])
    details: ingot.Details = casting.details
    quantized: torch.export.ExportedProgram = casting.exported_program
    print(len(details.nodes), len(list(quantized.graph.nodes)), len(list(casting.edge_program.graph.nodes)))


def step_by_step(net: torch.nn.Module, example: tuple[torch.Tensor, ...], folder: Path) -> None:
    program: ingot.Program = ingot.capture(net, example)
    ranges: ingot.Ranges = ingot.record(program, batches(), on_batch=print)
    plan: ingot.Plan = ingot.plan(program, ranges, "xnnpack", recipe={"range": "minmax"})
    decision: ingot.Decision = plan.decisions[0]
    point: ingot.QuantizationPoint = decision.point
    qparams: ingot.QParams | None = decision.qparams
    print(point, qparams, plan.diff(ingot.Plan.from_json(plan.to_json())))
    casting = ingot.lower(program, plan)
    check: ingot.Check = ingot.verify(casting, batches())
    finding: ingot.Finding = ingot.localize(casting, batches())
    print(check.passed, finding.verdict, casting.report(folder / "report.html"))
    again = ingot.Casting.load(casting.checked(check, {}).save_folder(folder / "saved"))
    print(ingot.verify(again, batches()).passed)
    train(program, plan, example)


def train(program: ingot.Program, plan: ingot.Plan, example: tuple[torch.Tensor, ...]) -> None:
    training: ingot.Training = ingot.train(program, plan)
    training.train()
    optimizer = torch.optim.SGD(training.parameters(), lr=1e-3)
    output = training(*example)
    output.square().mean().backward()
    optimizer.step()
    print(len(training.state_dict()), len(ingot.lower(*training.finish()).pte))


def _inputs(batch: dict[str, torch.Tensor]) -> ingot.Inputs:
    return ingot.Inputs(batch["image"], scale=batch["scale"])


def keyword_arguments(net: torch.nn.Module, folder: Path) -> None:
    samples = [{"image": x[0], "scale": torch.ones(1)} for (x,) in batches()]
    loader: DataLoader[dict[str, torch.Tensor]] = DataLoader(samples)  # type: ignore[arg-type]
    example = ingot.Inputs(samples[0]["image"][None], scale=torch.ones(1, 1))
    weights = ingot.Weights("8da8w")
    by_keyword = ingot.cast(net, example, target="xnnpack", calibration=(_inputs(b) for b in loader))
    print(by_keyword.notes)
    linear, rows = torch.nn.Sequential(torch.nn.Linear(64, 32)), torch.randn(4, 64)
    print(ingot.cast(linear, rows, target="xnnpack", weights=weights, on_mismatch="keep").layers)
    target: ingot.Availability = ingot.targets()[0]
    print(target.name, target.installed)
    try:
        reduction: ingot.Reduction = ingot.reduce(
            net, next(batches()), folder / "repro.py", target="xnnpack", calibration=batches(), budget=1
        )
        print(reduction.path)
    except ingot.InputError as error:
        print(error.what, error.where, error.why, error.hint)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
