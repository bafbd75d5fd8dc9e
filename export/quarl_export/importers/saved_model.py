"""SavedModel directories: by Keras's own description where there is one, else by the one function that acts."""

from __future__ import annotations

from pathlib import Path

from quarl_export.importers.options import ImportOptions
from quarl_export.ir.policy_graph import ImportedPolicy


def read_saved_model(path: Path, *, options: ImportOptions) -> ImportedPolicy:
    """Return the policy in a SavedModel directory.

    Raises:
        QuarlError: see `read_keras_saved_model` and `read_signature`.
    """
    from quarl_export.importers.tf_keras_models import is_keras_saved_model, read_keras_saved_model

    # Who names a signature wants that function, not the model that Keras described beside it.
    if not options.signature and is_keras_saved_model(path):
        return read_keras_saved_model(path, options=options)
    from quarl_export.importers.signatures import read_signature

    return read_signature(path, options=options)
