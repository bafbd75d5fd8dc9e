"""Which Keras classes are read, which of their settings, and what to do instead of the others.

Nothing of a model file is looked up by name anywhere else than in these tables: no module that a file names is
imported, no class or function that it names is called.
"""

from __future__ import annotations

from collections.abc import Mapping

MODELS = frozenset({"Functional", "Model", "Sequential"})

_CONV = ("strides", "padding", "data_format", "dilation_rate", "activation", "use_bias")
LAYERS: Mapping[str, tuple[str, ...]] = {
    "InputLayer": ("batch_input_shape", "batch_shape", "dtype"),
    "Dense": ("units", "activation", "use_bias"),
    "Conv2D": ("filters", "kernel_size", "groups", *_CONV),
    "DepthwiseConv2D": ("kernel_size", "depth_multiplier", *_CONV),
    "SeparableConv2D": ("filters", "kernel_size", "depth_multiplier", *_CONV),
    "MaxPooling2D": ("pool_size", "strides", "padding", "data_format"),
    "AveragePooling2D": ("pool_size", "strides", "padding", "data_format"),
    "GlobalAveragePooling2D": ("data_format", "keepdims"),
    "Flatten": ("data_format",),
    "Reshape": ("target_shape",),
    "Add": (),
    "Subtract": (),
    "Multiply": (),
    "Concatenate": ("axis",),
    "ReLU": ("max_value", "negative_slope", "threshold"),
    "ELU": ("alpha",),
    "Softmax": ("axis",),
    "Activation": ("activation",),
    "BatchNormalization": ("axis", "epsilon", "center", "scale"),
    "LayerNormalization": ("axis", "epsilon", "center", "scale", "rms_scaling"),
    "Normalization": ("axis", "mean", "variance", "invert"),
    "Rescaling": ("scale", "offset"),
    "Dropout": ("rate",),
    "SpatialDropout2D": ("rate", "data_format"),
    "GaussianNoise": ("stddev",),
    "GaussianDropout": ("rate",),
    "AlphaDropout": ("rate",),
    "ActivityRegularization": (),
}
"""Class to the settings that are read; what else a file says of a layer is not looked at."""

DROPPED = frozenset(
    {"Dropout", "SpatialDropout2D", "GaussianNoise", "GaussianDropout", "AlphaDropout", "ActivityRegularization"}
)
"""Layers that do nothing when a policy acts."""

KERAS2_OPERATIONS: Mapping[str, str] = {
    "math.add": "add",
    "__operators__.add": "add",
    "math.subtract": "subtract",
    "__operators__.sub": "subtract",
    "math.multiply": "multiply",
    "__operators__.mul": "multiply",
    "math.truediv": "divide",
    "math.divide": "divide",
    "__operators__.truediv": "divide",
    "math.reduce_mean": "mean",
    "nn.relu": "relu",
    "nn.relu6": "relu6",
    "nn.tanh": "tanh",
    "math.tanh": "tanh",
    "nn.sigmoid": "sigmoid",
    "math.sigmoid": "sigmoid",
    "nn.softmax": "softmax",
    "concat": "concatenate",
    "reshape": "reshape",
    "cast": "identity",
    "identity": "identity",
}
"""Functions of TFOpLambda layers that are read; Keras writes such a layer for arithmetic on its tensors."""

KERAS3_OPERATIONS: Mapping[str, str] = {
    "Add": "add",
    "Subtract": "subtract",
    "Multiply": "multiply",
    "TrueDivide": "divide",
    "Divide": "divide",
    "Mean": "mean",
    "Relu": "relu",
    "Relu6": "relu6",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "Concatenate": "concatenate",
    "Reshape": "reshape",
    "Cast": "identity",
}

_RECURRENT = (
    "a policy file has no memory between calls: stack frames (--stack K) or add past actions to the observation, and "
    "train a feed-forward network"
)
_ALTERNATIVES: Mapping[str, str] = {
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN", "RNN", "ConvLSTM2D", "Bidirectional", "TimeDistributed"), _RECURRENT),
    **dict.fromkeys(("LSTMCell", "GRUCell", "SimpleRNNCell", "StackedRNNCells"), _RECURRENT),
    "Lambda": "write it with Add, Subtract, Multiply, Concatenate, Rescaling or arithmetic on Keras tensors",
    **dict.fromkeys(("PReLU", "LeakyReLU", "ThresholdedReLU"), "train with ReLU"),
    **dict.fromkeys(("GlobalMaxPooling2D", "GlobalMaxPool2D"), "use GlobalAveragePooling2D or Flatten"),
    **dict.fromkeys(("Conv1D", "SeparableConv1D", "MaxPooling1D"), "use Conv2D with a height of 1"),
    "ZeroPadding2D": "use padding='same', or pad in the environment",
    "Permute": "let the environment give height, width, channels",
    "GroupNormalization": "use BatchNormalization, which folds into the layer beside it",
    "UnitNormalization": "normalise in the environment",
    **dict.fromkeys(("MultiHeadAttention", "Attention", "AdditiveAttention"), "use dense and convolution layers"),
    "Embedding": "give one-hot observations to a Dense layer",
    **dict.fromkeys(
        ("QuantizeLayer", "QuantizeWrapper", "QuantizeWrapperV2", "QuantizeAnnotate"),
        "tfmot's quantization-aware models do not reload; export the float model, or train with quarl-edge, whose "
        "checkpoints keep the trained ranges",
    ),
    "PruneLowMagnitude": "call tfmot.sparsity.keras.strip_pruning before saving",
    "SlicingOpLambda": "give the part of the observation a key of its own, or use two Dense layers",
    "GetItem": "give the part of the observation a key of its own, or use two Dense layers",
    "TFSMLayer": "import the SavedModel itself",
}


def alternative(class_name: str) -> str:
    """Return what to do instead of a class that is not read."""
    known = "Dense, Conv2D, pooling, Flatten, Add, Subtract, Multiply, Concatenate, BatchNormalization and ReLU"
    return _ALTERNATIVES.get(class_name, f"build the policy of {known}")


ALIASES: Mapping[str, str] = {
    "MaxPool2D": "MaxPooling2D",
    "AvgPool2D": "AveragePooling2D",
    "GlobalAvgPool2D": "GlobalAveragePooling2D",
    "Convolution2D": "Conv2D",
    "DepthwiseConvolution2D": "DepthwiseConv2D",
    "SeparableConvolution2D": "SeparableConv2D",
    "BatchNormalizationV1": "BatchNormalization",
    "BatchNormalizationV2": "BatchNormalization",
    "SyncBatchNormalization": "BatchNormalization",
}
