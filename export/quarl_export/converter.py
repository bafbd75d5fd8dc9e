"""The only module that calls TensorFlow's TFLite converter.

The converter may leave TensorFlow one day; then this file changes and nothing else.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ConversionError
from quarl_export.graph import has_signature, with_fixed_batch
from quarl_export.keras2 import keras, tf
from quarl_export.networks import NetworkSpec
from quarl_export.qat import QatPolicy
from quarl_export.qat_graph import layer_names, snapshot_values, spec_plan
from quarl_export.silence import without_tensorflow_noise
from quarl_export.snapshot import PolicySnapshot
from quarl_export.wide import widened

Io = Literal["float32", "int8", "uint8"]
_ROOM_BYTES = 1 << 20


def convert(policy: QatPolicy) -> bytes:
    """Convert `policy` as it is: int8 inside by its own ranges, float32 at both ends.

    Neither biases that are all zero nor equal constants are safe here; `template` knows how to avoid them.

    Raises:
        ConversionError: TensorFlow could not convert it.
    """
    if policy.spec.dueling or policy.spec.convolutions:
        return convert_snapshot(policy.spec, policy.snapshot())
    model = _run(policy.export_model, ConverterSettings())
    return widened(model) if policy.spec.quantization.head_output == "int16" else model


def convert_model(model: Any, *, io: Io = "float32") -> bytes:
    """Convert a tf_keras model that has fake quants where it is to be int8.

    Args:
        model: the model.
        io: "float32", "int8" or "uint8", type of the file's inputs and outputs.

    Raises:
        ConversionError: TensorFlow could not convert it.
    """
    return _run(model, ConverterSettings(io=io))


def convert_snapshot(spec: NetworkSpec, snapshot: PolicySnapshot) -> bytes:
    """Convert `snapshot` through a policy of its own; `snapshot` is taken as it is, not centred.

    Convolutions go as those of any other network do: the converter has to scale their kernels itself, per filter, and
    the fake quants of training would hide from it what those are.

    Raises:
        ConversionError: TensorFlow could not convert it.
        PatchError: `snapshot` is not of `spec`.
    """
    if spec.convolutions:
        from quarl_export.quantized import convert_planned  # which builds on this module

        return convert_planned(spec_plan(spec), snapshot_values(spec, snapshot))
    policy = QatPolicy(spec.in_file, normalize=snapshot.normalized)
    policy.restore(snapshot)
    return convert(policy)


def convert_float(spec: NetworkSpec, snapshot: PolicySnapshot) -> bytes:
    """Convert the learned weights to a float32 file that quantizes nothing; the normaliser is in the graph too.

    Raises:
        ConversionError: TensorFlow could not convert it.
    """
    observation = keras.Input(spec.input_shape, name="observation")
    tensor = observation
    if snapshot.offset is not None and snapshot.scale is not None:
        tensor = (tensor - snapshot.offset) * snapshot.scale
    names = layer_names(spec)
    for index, (name, kernel, bias) in enumerate(zip(names, snapshot.kernels, snapshot.biases, strict=True)):
        settings = {
            "activation": None if name == names[-1] else "relu",
            "kernel_initializer": keras.initializers.Constant(kernel),
            "bias_initializer": keras.initializers.Constant(bias),
            "name": name,
        }
        if kernel.ndim == 4:
            size, stride = kernel.shape[0], spec.convolutions[index][2]
            tensor = keras.layers.Conv2D(kernel.shape[-1], size, strides=stride, **settings)(tensor)
            continue
        if index and index == len(spec.convolutions):
            tensor = keras.layers.Flatten()(tensor)
        tensor = keras.layers.Dense(kernel.shape[-1], **settings)(tensor)
    if spec.head == "action":
        tensor = keras.layers.Activation("tanh", name=spec.role)(tensor)
    return _run(keras.Model(observation, tensor, name="policy_float"), ConverterSettings(weights="float32"))


@dataclass(frozen=True, kw_only=True)
class ConverterSettings:
    """What the converter is told beside the model.

    Attributes:
        weights: "float32": nothing is quantized; "float16": stored as such; "int8": where the converter sees fit (with
            fake quants in the model, everything that they cover; without, a dynamic-range file).
        activations_int16: int16 activations by the extremes of `representative`, int8 weights.
        float_fallback: with `activations_int16`, an operator without an int16 kernel may stay in float.
        per_channel_dense: dense weights get a scale for each unit.
        representative: yields one batch-1 input at a time, by the model's input names.
        io: dtype of both ends; int8 and uint8 need fake quants at both.
    """

    weights: Literal["float32", "float16", "int8"] = "int8"
    activations_int16: bool = False
    float_fallback: bool = False
    per_channel_dense: bool = True
    representative: Callable[[], Iterator[dict[str, NDArray[np.float32]]]] | None = None
    io: Io = "float32"


def convert_with(model: Any, settings: ConverterSettings) -> bytes:
    """Convert a tf_keras functional `model` as `settings` say.

    Raises:
        ConversionError: TensorFlow could not convert it.
    """
    return _run(model, settings)


def _run(model: Any, settings: ConverterSettings) -> bytes:
    try:
        with (
            warnings.catch_warnings(),
            without_tensorflow_noise(),
            tempfile.TemporaryDirectory(prefix="quarl-convert-") as folder,
        ):
            # The fake quants say all that these statistics could.
            warnings.filterwarnings("ignore", message="Statistics for quantized inputs")
            # The converter's own calibration still goes through the interpreter that it warns of.
            warnings.filterwarnings("ignore", message=r"\s*Warning: tf.lite.Interpreter is deprecated")
            _save(model, folder)
            data = bytes(_converter(folder, settings).convert())
            if not has_signature(data):
                raise ConversionError("the file's ends have no names")
            return with_fixed_batch(data)
    except Exception as cause:  # the converter raises its own, ValueError, RuntimeError and more
        first_line = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        raise ConversionError(
            f"TensorFlow could not convert the policy: {first_line[:300]}",
            hint=f"it works in {tempfile.gettempdir()}: is there room?" if _is_full() else "",
        ) from cause


def _save(model: Any, folder: str) -> None:
    """Write what `model` computes as a SavedModel, its ends by their names in Keras.

    The file that comes of it is that of `from_keras_model`, byte for byte, but Keras would also save each layer as a
    function of its own, which takes most of a conversion's time.
    """
    ends = [
        tf.TensorSpec(tensor.shape, tensor.dtype, name=name)
        for name, tensor in zip(model.input_names, model.inputs, strict=True)
    ]

    def serve(*inputs: Any) -> dict[str, Any]:
        outputs = tf.nest.flatten(model(inputs[0] if len(inputs) == 1 else list(inputs), training=False))
        return dict(zip(model.output_names, outputs, strict=True))

    plain = tf.autograph.experimental.do_not_convert(serve)
    served = tf.function(plain, input_signature=ends, autograph=False).get_concrete_function()
    module = tf.Module()
    module.kept = list(model.variables)  # what a SavedModel does not hold of itself it does not save
    tf.saved_model.save(module, folder, signatures=served)


def _is_full() -> bool:
    """Whether TensorFlow has no room for its own files. It goes on without them, and does not say so."""
    try:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(_ROOM_BYTES))
            file.flush()
    except OSError:
        return True
    return False


def _converter(folder: str, settings: ConverterSettings) -> Any:
    converter = tf.lite.TFLiteConverter.from_saved_model(folder)
    # Its record of converter flags differs between versions and says nothing that a device needs.
    converter.exclude_conversion_metadata = True
    if settings.weights != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if settings.weights == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if not settings.per_channel_dense:
        converter._experimental_disable_per_channel_quantization_for_dense_layers = True
    if settings.io != "float32":
        # Never with the int8 operator set: it demands a data set, even where fake quants say everything.
        converter.inference_input_type = converter.inference_output_type = getattr(tf, settings.io)
    if settings.activations_int16:
        operators = [tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8]
        converter.target_spec.supported_ops = operators + [tf.lite.OpsSet.TFLITE_BUILTINS] * settings.float_fallback
        converter.representative_dataset = settings.representative
    return converter
