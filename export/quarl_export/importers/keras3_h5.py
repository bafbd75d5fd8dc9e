"""Legacy `.h5` files that Keras 3 saved: its own configuration, and the weights by layer as Keras 2 laid them out.

Read as a `.keras` archive is: nothing is rebuilt by Keras, arrays are taken as they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError
from quarl_export.importers.assemble import assemble
from quarl_export.importers.functional import Place, flatten_model
from quarl_export.importers.hdf5 import read_array
from quarl_export.importers.keras_config import LayerConfig, parse_model
from quarl_export.importers.keras_layers import lower
from quarl_export.importers.options import ImportOptions
from quarl_export.importers.source import SourceNetwork
from quarl_export.ir.policy_graph import ImportedPolicy

_HINT = "load it in Keras 3, save it with model.save('policy.keras'), and import that file"


def read_keras3_h5(file: h5py.File, config: Any, *, path: Path, version: str, options: ImportOptions) -> ImportedPolicy:
    """Return the policy in an open `.h5` file of Keras 3, compared with the same layers run in TensorFlow.

    Args:
        file: checked by `open_hdf5`.
        config: its `model_config`, decoded.
        path: of the file, for its name.
        version: of Keras, for provenance.
        options: see `ImportOptions`.

    Raises:
        ModelFileError: damaged, or weights that cannot be told apart.
        UnsupportedModel, UnsafeSource: what is in it is not read; names the layer.
        QuarlError: see `assemble`.
    """
    from quarl_export.importers.eager import run_layers

    flat = flatten_model(parse_model(config), _LegacyWeights(file).read)
    source = SourceNetwork(
        kind="keras h5",
        draft=lower(flat),
        dtypes=flat.dtypes,
        run=lambda inputs: run_layers(flat, inputs),
        provenance={"path": path.name, "saved_by": f"Keras {version}"},
    )
    return assemble(source, options)


class _LegacyWeights:
    """Gives layers their arrays: a group for each layer of the model, in which nested models have all of theirs."""

    def __init__(self, file: h5py.File) -> None:
        self._groups = file.get("model_weights", file)

    def read(self, place: Place, layer: LayerConfig) -> Sequence[NDArray[Any]]:
        """Return a layer's arrays in Keras's order; none for a layer that has none."""
        group = self._groups.get(place.path[0])
        if not isinstance(group, h5py.Group):
            return ()
        names = [_text(name) for name in np.ravel(group.attrs.get("weight_names", ()))]
        own = names if len(place.path) == 1 else _of_nested(names, place.path)
        if len({name.rsplit("/", 1)[-1] for name in own}) != len(own):
            raise ModelFileError(f"layer {layer.name!r}: the arrays of several layers have its name", hint=_HINT)
        return [read_array(group, name) for name in own]


def _of_nested(names: Sequence[str], path: tuple[str, ...]) -> list[str]:
    """Return the names of a nested layer's arrays: those that end in as much of its path as any do."""
    for start in range(len(path)):
        tail = path[start:]
        own = [name for name in names if tuple(name.split("/")[:-1])[-len(tail) :] == tail]
        if own:
            return own
    return []


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
