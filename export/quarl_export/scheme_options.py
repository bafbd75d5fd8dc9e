"""How a file is to be made, said without TensorFlow: which scheme, ends, bits and head, and which go together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from quarl_device.errors import UsageError
from quarl_export.checks.op_versions import RUNTIMES, Runtime
from quarl_export.networks import HEAD_OUTPUTS, HeadOutput
from quarl_export.range_plan import IoType

Scheme = Literal["float32", "float16", "dynamic", "int8", "int16x8"]
SCHEMES: tuple[Scheme, ...] = ("float32", "float16", "dynamic", "int8", "int16x8")
IO_TYPES: tuple[IoType, ...] = ("float32", "int8", "uint8")


@dataclass(frozen=True, kw_only=True)
class SchemeOptions:
    """How to make the file.

    Attributes:
        scheme: see `quarl_export.schemes`.
        io: dtype of inputs and outputs; integer ends are int8's alone.
        per_channel: dense weights get a scale for each unit; convolutions always do.
        keep_float: layers that stay in float in an int8 file.
        runtime: that the file must load in.
        weight_bits: 2-8, of an int8 file's weights; fewer than 8 are stored in int8.
        activation_bits: 2-8, of its ReLU layers; the rest keeps 8.
        head_output: of an int8 file's outputs: see `head_layers`.
        wide_outputs: layers whose outputs are int16, as `schemes.resolved` finds them.
    """

    scheme: Scheme = "int8"
    io: IoType = "float32"
    per_channel: bool = False
    keep_float: frozenset[str] = field(default_factory=frozenset)
    runtime: Runtime = "litert"
    weight_bits: int = 8
    activation_bits: int = 8
    head_output: HeadOutput = "int8"
    wide_outputs: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        for what, value, allowed in (
            ("head output", self.head_output, HEAD_OUTPUTS),
            ("scheme", self.scheme, SCHEMES),
            ("io", self.io, IO_TYPES),
            ("runtime", self.runtime, RUNTIMES),
        ):
            if value not in allowed:
                raise UsageError(f"{what} {value!r} is not one of {', '.join(allowed)}")
        self._check_bits()
        self._check_head()
        if self.io != "float32" and self.scheme != "int8":
            raise UsageError(f"scheme {self.scheme} has float32 ends, not {self.io}", hint="use --scheme int8")
        if self.scheme == "dynamic" and self.per_channel and self.runtime == "tflite-2.14":
            raise UsageError(
                "a dynamic file with per-channel dense weights needs FULLY_CONNECTED version 12, which tflite-runtime "
                "2.14 does not know",
                hint="leave out --per-channel, or use --scheme int8",
            )

    def _check_bits(self) -> None:
        bits = {"weight": self.weight_bits, "activation": self.activation_bits}
        for what, value in bits.items():
            if not 2 <= value <= 8:
                raise UsageError(f"{value} {what} bits: expected 2-8")
        if self.scheme != "int8" and min(bits.values()) < 8:
            raise UsageError(f"scheme {self.scheme} has no grid of fewer than 8 bits", hint="use --scheme int8")
        if self.activation_bits < 8 and self.runtime != "litert":
            raise UsageError(
                f"{self.activation_bits} activation bits need LiteRT with XNNPACK: the kernels of tflite-runtime 2.14 "
                "round differently, and a half step is then a whole level",
                hint="leave out --activation-bits, or use --runtime litert",
            )

    def _check_head(self) -> None:
        if self.head_output == "int8":
            return
        if self.scheme != "int8":
            raise UsageError(f"scheme {self.scheme} has no {self.head_output} head beside it", hint="use --scheme int8")
        if self.io != "float32":
            raise UsageError(
                f"a {self.head_output} head needs float32 ends, not {self.io}",
                hint="use --io float32, or --head-output int8",
            )
        if self.head_output == "int16" and self.runtime != "litert":
            raise UsageError(
                "an int16 head needs LiteRT: tflite-runtime 2.14 has no kernel that turns int8 into int16",
                hint="use --head-output float32, or --runtime litert",
            )
