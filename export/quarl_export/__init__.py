"""Policy in, verified edge file out: QAT networks, conversion, template and patch."""

import os

# tfmot needs Keras 2; whoever touches tf.keras first decides, so decide before TensorFlow is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__version__ = "0.1.0"
