"""Float transforms of a weight before rounding: rotation of the residual stream and SmoothQuant scales.

They are computed on demand: a program with all weights transformed would double the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ingot.weight_only.hessian import InputStatistics
from ingot.weight_only.scheme import WeightLayer


@dataclass(frozen=True, eq=False)
class WeightTransform:
    """A linear reads input_rotation @ (x / input_scales) for x, and gives output_scales * (output_rotation @ y)."""

    input_rotation: Tensor | None = None
    input_scales: Tensor | None = None
    output_rotation: Tensor | None = None
    output_scales: Tensor | None = None

    def weight(self, weight: Tensor, rows: slice = slice(None)) -> Tensor:
        """Some rows of the transformed weight."""
        made = self._rotated_rows(weight.detach(), rows)
        made = made if self.input_scales is None else made * self.input_scales
        made = made if self.input_rotation is None else made @ self.input_rotation.T
        return made if self.output_scales is None else made * self.output_scales[rows, None]

    def _rotated_rows(self, weight: Tensor, rows: slice) -> Tensor:
        return weight[rows].float() if self.output_rotation is None else self.output_rotation[rows] @ weight.float()

    def bias(self, bias: Tensor) -> Tensor:
        made = bias.detach().float()
        made = made if self.output_rotation is None else self.output_rotation @ made
        return made if self.output_scales is None else made * self.output_scales

    def statistics(self, statistics: InputStatistics) -> InputStatistics:
        """Of the transformed input."""
        if self.input_scales is None and self.input_rotation is None:
            return statistics
        return statistics.transformed(self.input_scales, self.input_rotation)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal transforms: a shared weight with one transform is stored once."""
        vectors = (None if t is None else t.float().numpy().tobytes() for t in (self.input_scales, self.output_scales))
        return id(self.input_rotation), id(self.output_rotation), *vectors


NO_TRANSFORM = WeightTransform()


def untie_transformed(
    layers: Sequence[WeightLayer], transforms: Mapping[str, WeightTransform]
) -> tuple[WeightLayer, ...]:
    """A shared weight whose layers have different transforms is stored once per transform."""

    def same(layer: WeightLayer) -> bool:
        return transforms.get(layer.name, NO_TRANSFORM).key == transforms.get(layer.same_as, NO_TRANSFORM).key

    return tuple(layer if not layer.same_as or same(layer) else replace(layer, same_as="") for layer in layers)
