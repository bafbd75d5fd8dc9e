"""One place where TensorFlow, tf_keras and tfmot are imported, in the one order that works and in silence.

Other modules write ``from quarl_export.keras2 import keras, tf, tfmot``.
"""

from __future__ import annotations

import warnings

from quarl_device.errors import MissingExtra
from quarl_export.silence import without_tensorflow_noise

with warnings.catch_warnings(), without_tensorflow_noise():
    # tfmot 0.8.1 compares versions with distutils' classes at import; nothing we could do about it.
    warnings.filterwarnings("ignore", message="distutils Version classes", category=DeprecationWarning)
    try:
        import tensorflow as tf
        import tensorflow_model_optimization as tfmot
        import tf_keras as keras
    except ImportError as cause:
        raise MissingExtra(
            f"TensorFlow is not installed completely: {cause}",
            hint="in a clone: make install; elsewhere: pip install 'quarl-edge[learner]'",
        ) from cause

tf.get_logger().setLevel("ERROR")

__all__ = ["keras", "tf", "tfmot"]
