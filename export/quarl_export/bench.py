"""How fast a push is beside a conversion, and an int8 action beside the runtime's bare call, each pair in one run."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quarl_device.actor.choice_bench import ROWS, ChoiceSpeed, choice_speed
from quarl_device.contract import ActionSpec, Head, HeadKind, Normalizer, ObservationSpec, PolicyContract
from quarl_device.errors import UsageError
from quarl_device.policy import Policy
from quarl_device.runtime import PolicyRuntime
from quarl_device.runtime.bench import act_latency
from quarl_device.wire.exploration import Exploration
from quarl_export.compare import difference
from quarl_export.converter import Io
from quarl_export.ir import GraphInput, ImportedPolicy, Layer, PolicyGraph
from quarl_export.ir.reference import run_graph
from quarl_export.pipeline import ExportOptions, build_file
from quarl_export.quantized import convert_quantized
from quarl_export.range_plan import QuantizationOptions, Range
from quarl_export.schemes import SchemeOptions
from quarl_export.template import Template

OBSERVATION_SIZE = 8
NUM_ACTIONS = 4
PIXELS = 84
MAX_HIDDEN_LAYERS, MAX_UNITS = 16, 8_192
_KEY, _Q = "observation", "q_values"
_EXPLORATIONS: Mapping[HeadKind, Exploration] = {
    "logits": Exploration(kind="sample", values=()),
    "gaussian": Exploration(kind="sample", values=(-0.5,) * NUM_ACTIONS),
    "action": Exploration(kind="gaussian", values=(0.1,)),
}
"""How actors choose with each head; with Q values a random action is decided upon before the policy is asked."""
_CALIBRATION_ROWS, _STACK = 64, 4


@dataclass(frozen=True, kw_only=True)
class PushSpeed:
    """What `push_speed` measured; its fields are the keys of `--format json`.

    Attributes:
        hidden: sizes of the hidden layers.
        bytes: size of the file.
        patch_ms_p50: weights and ranges to a complete file, median.
        convert_ms_p50: the same by TensorFlow's converter, median of the conversions between the patches.
        ratio: `convert_ms_p50 / patch_ms_p50`.
        identical: whether the bytes of every audited push had every tensor, scale and zero point of its conversion.
        audited: how many were compared.
        pushes: how many patches were timed.
        rss_growth_bytes: resident memory after `pushes` more patches, less that before them: nothing else is
            made in between.
    """

    hidden: tuple[int, ...]
    bytes: int
    patch_ms_p50: float
    convert_ms_p50: float
    ratio: float
    identical: bool
    audited: int
    pushes: int
    rss_growth_bytes: int


@dataclass(frozen=True, kw_only=True)
class ActSpeed:
    """What `act_speed` measured; its fields are the keys of `--format json`.

    Attributes:
        hidden: sizes of the hidden dense layers.
        head: what the network gives.
        io: what the int8 file takes and gives: with "float32" its normaliser is in the file, else on the device.
        observation: what one observation is.
        act_us_p50: raw observation in, action out, int8.
        raw_us_p50: the runtime's set, invoke and get on the same model, in alternation.
        ratio: `act_us_p50 / raw_us_p50`.
        float_us_p50: raw observation in, action out, of a float32 file of the same network.
        runtime: name and version.
        explored: an action chosen as an actor explores with this head, beside the greedy one; `None` of Q values.
    """

    hidden: tuple[int, ...]
    head: str
    io: str
    observation: str
    act_us_p50: float
    raw_us_p50: float
    ratio: float
    float_us_p50: float
    runtime: str
    explored: ChoiceSpeed | None


def dense_policy(hidden: Sequence[int], *, head: HeadKind = "q_values", seed: int = 0) -> ImportedPolicy:
    """Return a dense ReLU policy with random weights: 8 observations, normalised, to 4 numbers, Q values by default.

    Raises:
        UsageError: sizes out of range.
    """
    if not 1 <= len(hidden) <= MAX_HIDDEN_LAYERS or not all(1 <= units <= MAX_UNITS for units in hidden):
        raise UsageError(f"hidden {tuple(hidden)}: expected 1-{MAX_HIDDEN_LAYERS} layers of 1-{MAX_UNITS} units")
    rng = np.random.default_rng(seed)
    widths = (OBSERVATION_SIZE, *hidden, NUM_ACTIONS)
    layers: list[Layer] = []
    weights: dict[str, NDArray[np.float32]] = {}
    source, last = _KEY, "linear" if head == "action" else _role(head)
    for index, (inputs, units) in enumerate(itertools.pairwise(widths)):
        name = last if index == len(hidden) else f"hidden_{index}"
        layers.append(Layer(name=name, kind="dense", inputs=(source,)))
        weights |= _random_weights(rng, name, (inputs, units))
        source = name
        if index < len(hidden):
            source = f"{name}_relu"
            layers.append(Layer(name=source, kind="relu", inputs=(name,)))
    if head == "action":
        layers.append(Layer(name=_role(head), kind="tanh", inputs=(last,)))
    graph = PolicyGraph(
        inputs=(GraphInput(key=_KEY, shape=(OBSERVATION_SIZE,)),),
        layers=tuple(layers),
        outputs={_role(head): _role(head)},
        weight_shapes={name: array.shape for name, array in weights.items()},
    )
    observed = rng.uniform(-1, 1, (_CALIBRATION_ROWS, OBSERVATION_SIZE)).astype(np.float32)
    return ImportedPolicy(
        graph=graph,
        weights=weights,
        contract=_contract(head),
        golden_observations={_KEY: observed[:4]},
        ranges=_ranges(graph, run_graph(graph, weights, {_KEY: observed})),
    )


def push_speed(
    hidden: Sequence[int],
    *,
    pushes: int = 200,
    conversions: int = 5,
    options: QuantizationOptions | None = None,
    progress: Callable[[int], None] = lambda _: None,
    tell: Callable[[str], None] = lambda _: None,
) -> PushSpeed:
    """Time patches and conversions of a dense ReLU policy whose weights change every time, in alternation.

    Args:
        hidden: sizes of the hidden layers.
        pushes: patches to time.
        conversions: of these, how many are converted too, timed, and compared.
        options: of the quantization.
        progress: told how many pushes are done.
        tell: told what begins.

    Raises:
        UsageError: sizes or counts out of range.
        PatchError, ConversionError: the network cannot be patched or converted.
    """
    if not 1 <= conversions <= pushes <= 1_000_000:
        raise UsageError(f"{conversions} conversions among {pushes} pushes: expected 1 <= conversions <= pushes")
    tell("converting the network into a template")
    policy = dense_policy(hidden)
    template = Template.from_model(policy, options=options).with_contract(policy, policy.golden_observations)
    audits = set(np.linspace(0, pushes - 1, conversions).astype(int).tolist())
    patch_ms, convert_ms, differing, size = [], [], 0, 0
    tell(f"timing {pushes:,} patches and {conversions} conversions")
    moments = _moments(policy, np.random.default_rng(1))
    for number, moment in zip(range(pushes), moments, strict=False):
        started = time.perf_counter()
        pushed = template.patch_policy(moment)
        patch_ms.append((time.perf_counter() - started) * 1e3)
        size = len(pushed)
        if number in audits:
            started = time.perf_counter()
            converted = convert_quantized(moment, moment.ranges, options=template.options)
            convert_ms.append((time.perf_counter() - started) * 1e3)
            differing += bool(difference(pushed, converted))
        progress(number + 1)
    tell(f"measuring memory over {pushes:,} more patches")
    grown = _growth_bytes(lambda: template.patch_policy(moment), pushes)
    patch, convert = float(np.median(patch_ms)), float(np.median(convert_ms))
    return PushSpeed(
        hidden=tuple(hidden), bytes=size, patch_ms_p50=patch, convert_ms_p50=convert, ratio=convert / patch,
        identical=not differing, audited=conversions, pushes=pushes, rss_growth_bytes=grown,
    )  # fmt: skip


def _moments(policy: ImportedPolicy, rng: np.random.Generator) -> Iterator[ImportedPolicy]:
    """Yield `policy` with weights, ranges and a normaliser of its own every time, as a learner would push it.

    Gaussians of the size of the weights: drawn fresh, so that no kernel has the steps of the one before.
    """
    while True:
        weights = {
            name: rng.standard_normal(array.shape, np.float32) * np.float32(max(1e-3, array.std()))
            for name, array in policy.weights.items()
        }
        ranges = {
            site: (low * float(rng.uniform(0.7, 1.4)), high * float(rng.uniform(0.7, 1.4)))
            for site, (low, high) in policy.ranges.items()
        }
        normalizer = dataclasses.replace(
            policy.contract.normalizer,
            offset={_KEY: (float(rng.uniform(-0.2, 0.2)),)},
            scale={_KEY: (float(rng.uniform(0.3, 0.7)),)},
        )
        contract = dataclasses.replace(policy.contract, normalizer=normalizer)
        yield dataclasses.replace(policy, weights=weights, ranges=ranges, contract=contract)


def _growth_bytes(push: Callable[[], object], pushes: int) -> int:
    """Return by how much resident memory grows over so many pushes; the first one has made what is kept."""
    push()
    before = _resident_bytes()
    for _ in range(pushes):
        push()
    return _resident_bytes() - before


def act_speed(
    policy: ImportedPolicy,
    *,
    io: Io = "float32",
    calls: int = 20_000,
    runtime: PolicyRuntime | None = None,
) -> ActSpeed:
    """Time one action of a policy, int8 and float, beside the runtime's bare call.

    Args:
        policy: `dense_policy` or `pixel_policy`.
        io: of the int8 file.
        calls: of each kind.
        runtime: by default the first that works here.

    Raises:
        UsageError: counts out of range.
        MissingRuntime: none works here.
    """
    files = (
        build_file(policy, ExportOptions(scheme=scheme, force=True)).file
        for scheme in (SchemeOptions(scheme="int8", io=io), SchemeOptions(scheme="float32"))
    )
    int8, unquantized = (Policy.load(file, runtime=runtime) for file in files)
    latency, float_latency = (act_latency(loaded, calls) for loaded in (int8, unquantized))
    exploration = _EXPLORATIONS.get(policy.contract.head.kind)
    [spec] = policy.contract.observations
    shape = "x".join(map(str, spec.shape)) + (f", {spec.stack} stacked" if spec.stack > 1 else "")
    widths = [policy.graph.shapes[layer.name][-1] for layer in policy.graph.layers if layer.kind == "dense"]
    return ActSpeed(
        hidden=tuple(widths[:-1]), head=policy.contract.head.kind, io=io, observation=f"{spec.dtype} {shape}",
        act_us_p50=latency.act_us_p50, raw_us_p50=latency.raw_us_p50, ratio=latency.ratio,
        float_us_p50=float_latency.act_us_p50, runtime=latency.runtime,
        explored=choice_speed(int8, exploration, calls=max(calls, ROWS)) if exploration else None,
    )  # fmt: skip


def pixel_policy(*, seed: int = 0) -> ImportedPolicy:
    """Return the network of Mnih et al. 2015 with random weights: four stacked frames of 84x84 grey pixels to Q values.

    Convolutions of 32, 64 and 64 filters, 512 dense units; pixels are divided by 255 before it.
    """
    rng = np.random.default_rng(seed)
    layers: list[Layer] = []
    weights: dict[str, NDArray[np.float32]] = {}
    source, inputs = _KEY, _STACK
    for index, (filters, size, stride) in enumerate(((32, 8, 4), (64, 4, 2), (64, 3, 1))):
        name = f"convolution_{index}"
        settings = {"strides": (stride, stride), "padding": "valid"}
        layers.append(Layer(name=name, kind="conv2d", inputs=(source,), settings=settings))
        source = f"{name}_relu"
        layers.append(Layer(name=source, kind="relu", inputs=(name,)))
        weights |= _random_weights(rng, name, (size, size, inputs, filters))
        inputs = filters
    layers.append(Layer(name="flatten", kind="flatten", inputs=(source,)))
    layers.append(Layer(name="hidden", kind="dense", inputs=("flatten",)))
    layers.append(Layer(name="hidden_relu", kind="relu", inputs=("hidden",)))
    layers.append(Layer(name=_Q, kind="dense", inputs=("hidden_relu",)))
    weights |= _random_weights(rng, "hidden", (7 * 7 * 64, 512)) | _random_weights(rng, _Q, (512, NUM_ACTIONS))
    graph = PolicyGraph(
        inputs=(GraphInput(key=_KEY, shape=(PIXELS, PIXELS, _STACK)),), layers=tuple(layers),
        outputs={_Q: _Q}, weight_shapes={name: array.shape for name, array in weights.items()},
    )  # fmt: skip
    frame = ObservationSpec(
        key=_KEY, shape=(PIXELS, PIXELS, 1), dtype="uint8", low=(0.0,), high=(255.0,), stack=_STACK, tensor=_KEY
    )
    observed = rng.integers(0, 256, (8, _STACK, PIXELS, PIXELS, 1), np.uint8)
    seen = (np.concatenate([observed[:, n] for n in range(_STACK)], axis=-1) / 255).astype(np.float32)
    normalizer = Normalizer(where="graph", offset={_KEY: (0.0,)}, scale={_KEY: (1 / 255,)})
    return ImportedPolicy(
        graph=graph,
        weights=weights,
        contract=dataclasses.replace(_contract(), observations=(frame,), normalizer=normalizer),
        golden_observations={_KEY: observed[:2]},
        ranges={**_ranges(graph, run_graph(graph, weights, {_KEY: seen})), _KEY: (0.0, 1.0)},
    )


def _random_weights(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> dict[str, NDArray[np.float32]]:
    limit = float(np.sqrt(6.0 / np.prod(shape[:-1])))
    return {
        f"{name}/kernel": rng.uniform(-limit, limit, shape).astype(np.float32),
        f"{name}/bias": rng.uniform(-0.1, 0.1, shape[-1]).astype(np.float32),
    }


def _role(head: HeadKind) -> str:
    """Return the role of the one output of a head."""
    return "mean" if head == "gaussian" else head


def _contract(head: HeadKind = "q_values") -> PolicyContract:
    normalizer = Normalizer(where="graph", offset={_KEY: (0.0,)}, scale={_KEY: (0.5,)})
    discrete, ones = ActionSpec(kind="discrete", n=NUM_ACTIONS), (1.0,) * NUM_ACTIONS
    box = ActionSpec(kind="box", shape=(NUM_ACTIONS,), low=(-1.0,) * NUM_ACTIONS, high=ones)
    spread = (-0.5,) * NUM_ACTIONS if head == "gaussian" else ()
    return PolicyContract(
        env_id="", algorithm="dqn", scheme="int8",
        observations=(ObservationSpec(key=_KEY, shape=(OBSERVATION_SIZE,), tensor=_KEY),),
        head=Head(kind=head, outputs={_role(head): _role(head)}, log_std=spread),
        action=box if head in ("gaussian", "action") else discrete,
        normalizer=normalizer,
    )  # fmt: skip


def _ranges(graph: PolicyGraph, tensors: dict[str, np.ndarray]) -> dict[str, Range]:
    sites = graph.range_sites()
    return {name: (min(0.0, float(tensors[name].min())), max(0.0, float(tensors[name].max()))) for name in sites}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
