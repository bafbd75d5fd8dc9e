"""Policies of our own runs: a run directory, or a policy checkpoint in it. Trained ranges and normaliser come along."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from quarl_device.contract import Head, Normalizer
from quarl_device.errors import RunNotFound
from quarl_export.checkpoint import PolicyCheckpoint, load_policy
from quarl_export.importers.options import ImportOptions
from quarl_export.ir.layers import Layer
from quarl_export.ir.policy_graph import Float32, GraphInput, ImportedPolicy, PolicyGraph
from quarl_export.networks import NetworkSpec, unit_box
from quarl_export.snapshot import PolicySnapshot, for_export

_MANIFEST = "policy.json"
_FOLDER = "policy"
_RUN = "config.json"


def policy_directory(path: Path) -> Path | None:
    """Return the directory of a policy checkpoint: `path`, its folder "policy", or that of `path`; else `None`."""
    if path.name == _MANIFEST and path.is_file():
        return path.parent
    return next((folder for folder in (path, path / _FOLDER) if (folder / _MANIFEST).is_file()), None)


def read_run(path: Path, *, options: ImportOptions) -> ImportedPolicy:
    """Return the policy at `path`.

    Args:
        path: a run directory, a policy checkpoint, or its `policy.json`.
        options: not needed: a checkpoint says all of it. Another `env_id` is ignored.

    Raises:
        RunNotFound: there is none.
        CheckpointError: it is damaged.
        NonFiniteError: NaN or Inf in it.
    """
    del options
    directory = policy_directory(path)
    if directory is None:
        hint = "train it for longer with --resume" if (path / _RUN).is_file() else "give the directory of a run"
        raise RunNotFound(f"no policy at {path}", hint=hint)
    checkpoint = load_policy(directory)
    checkpoint.snapshot.check_finite()
    return import_checkpoint(checkpoint)


def import_checkpoint(checkpoint: PolicyCheckpoint) -> ImportedPolicy:
    """Return a loaded policy checkpoint as a policy.

    Q values that the checkpoint says to centre are centred, as in the file that the run itself exports. A box action is
    scaled from the head's unit box to the bounds; what an int8 tanh needs to reach them is the export's to add. Ranges
    are there only where every one of them has seen data.
    """
    spec = checkpoint.spec
    snapshot = for_export(spec, checkpoint.snapshot)
    (observation,) = spec.observations
    layers, weights = _layers(snapshot, observation.key, spec)
    graph = PolicyGraph(
        inputs=(GraphInput(key=observation.key, shape=spec.input_shape),),
        layers=tuple(layers),
        outputs={spec.role: layers[-1].name},
        weight_shapes={name: array.shape for name, array in weights.items()},
    )
    contract = dataclasses.replace(
        checkpoint.contract,
        head=_head(checkpoint.contract.head, snapshot),
        action=unit_box(checkpoint.contract.action),
        normalizer=_normalizer(snapshot, observation.key, checkpoint.contract.normalizer.clip),
    )
    return ImportedPolicy(
        graph=graph,
        weights=weights,
        contract=contract,
        golden_observations=checkpoint.golden_observations,
        ranges=_ranges(snapshot, graph),
        provenance={**checkpoint.provenance, "source": "quarl-edge checkpoint"},
    )


def _head(head: Head, snapshot: PolicySnapshot) -> Head:
    return head if snapshot.log_std is None else dataclasses.replace(head, log_std=tuple(snapshot.log_std.tolist()))


def _layers(snapshot: PolicySnapshot, key: str, spec: NetworkSpec) -> tuple[list[Layer], dict[str, Float32]]:
    from quarl_export.qat_graph import layer_names  # with TensorFlow, which files that are refused do not need

    layers: list[Layer] = []
    weights: dict[str, Float32] = {}
    last, tensor = len(snapshot.kernels) - 1, key
    # A key may have any name, that of a layer too.
    names = [f"{name}_" if name == key else name for name in layer_names(spec)]
    for index, (name, kernel, bias) in enumerate(zip(names, snapshot.kernels, snapshot.biases, strict=True)):
        if index and index == len(spec.convolutions):
            flat = "flatten_" if key == "flatten" else "flatten"
            layers.append(Layer(name=flat, kind="flatten", inputs=(tensor,)))
            tensor = flat
        if index < len(spec.convolutions):
            stride = spec.convolutions[index][2]
            layers.append(Layer(name=name, kind="conv2d", inputs=(tensor,), settings={"strides": (stride, stride)}))
        else:
            layers.append(Layer(name=name, kind="dense", inputs=(tensor,)))
        weights.update({f"{name}/kernel": kernel, f"{name}/bias": bias})
        tensor = name
        if index < last:
            tensor = f"{name}_relu"
            layers.append(Layer(name=tensor, kind="relu", inputs=(name,)))
    if spec.head == "action":
        name = f"{spec.role}_" if spec.role == key else spec.role
        layers.append(Layer(name=name, kind="tanh", inputs=(tensor,)))
    return layers, weights


def _normalizer(snapshot: PolicySnapshot, key: str, clip: float) -> Normalizer:
    if snapshot.offset is None or snapshot.scale is None:
        return Normalizer()
    return Normalizer(
        where="graph",
        offset={key: tuple(snapshot.offset.tolist())},
        scale={key: tuple(snapshot.scale.tolist())},
        clip=clip,
    )


def _ranges(snapshot: PolicySnapshot, graph: PolicyGraph) -> dict[str, tuple[float, float]]:
    if not np.all(snapshot.range_updates > 0):
        return {}
    rows = [*snapshot.ranges.tolist(), snapshot.head_range.tolist()]
    return {site: (float(low), float(high)) for site, (low, high) in zip(graph.range_sites(), rows, strict=True)}
