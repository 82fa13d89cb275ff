"""Load what the user names on the command line: a model, and the batches to calibrate with.

A model is `net.py:build` or `package.module:build` (a function, a class or a ready module), or a `.pt2` file.
`build()` returns `model`, `(model, example_inputs)`, `(model, example_inputs, calibration)` or, fourth, dynamic shapes.

Calibration batches come from
- `data.npz`: one array per input, named after the inputs or in their order. Axis 0 is samples: every batch is the next
  slice as long as the example's axis 0, and an incomplete last slice is left out;
- `data.npy`: the same for a model with one input; memory-mapped;
- a folder of images: read one by one, resized to the example's H and W, scaled to 0..1, then `(x - mean) / std`;
- `file.py:function` or `package.module:function`: returns an iterable of input tuples.
"""

from ingot.data.calibration import load_calibration
from ingot.data.models import LoadedModel, load_model

__all__ = ["LoadedModel", "load_calibration", "load_model"]
