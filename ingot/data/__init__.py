"""Load models and calibration batches that are named on the command line.

A model is `net.py:build` or `package.module:build` (a function, a class or a module instance), or a `.pt2` file.
`build()` returns `model`, `(model, example_inputs)`, `(model, example_inputs, calibration)` or
`(model, example_inputs, calibration, dynamic_shapes)`.

Calibration batches come from
- `data.npz`: one array per input, matched by name or by order. Axis 0 is samples: each batch is the next slice with the
  length of the example's axis 0, and an incomplete last slice is dropped;
- `data.npy`: the same for a model with one input; memory-mapped;
- a folder of images: read one by one, resized to the example's H and W, scaled to 0..1, then `(x - mean) / std`;
- `file.py:function` or `package.module:function`: returns an iterable of input tuples.
"""

from ingot.data.calibration import load_calibration
from ingot.data.models import LoadedModel, load_model

__all__ = ["LoadedModel", "load_calibration", "load_model"]
