"""What every importer reads a model into before the contract is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_export.ir.draft import Draft

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceNetwork:
    """A network with the names of its source.

    Attributes:
        kind: "keras", "savedmodel", "keras3", "tflite", ...: for messages and provenance.
        draft: the network; inputs and outputs by the source's own names.
        dtypes: numpy dtype name that the source's inputs have.
        run: the source itself: arrays ``[batch, *shape]`` by input name to arrays by output name.
        provenance: JSON values: path, versions.
    """

    kind: str
    draft: Draft
    dtypes: Mapping[str, str]
    run: Callable[[Arrays], Mapping[str, NDArray[np.float32]]]
    provenance: Mapping[str, Any] = field(default_factory=dict)
