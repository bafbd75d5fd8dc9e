"""From a state dict to a policy graph: which tensors act, in which order, with which activations between them.

Modules (stable_baselines3/common/policies.py, torch_layers.py, dqn/, sac/, td3/policies.py):

=============  ==========================  =========================  ==================================
family         features extractor          perceptron                 head
=============  ==========================  =========================  ==================================
dqn            q_net.features_extractor    q_net.q_net                its last layer
actor_critic   pi_features_extractor       mlp_extractor.policy_net   action_net; log_std is a parameter
sac            actor.features_extractor    actor.latent_pi            actor.mu, actor.log_std
td3            actor.features_extractor    actor.mu                   its last layer, tanh
=============  ==========================  =========================  ==================================

Critics, value networks and targets stay behind. A tensor of an acting module that nothing here uses is an error, so
that no layer is ever left out in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import Head, HeadKind
from quarl_device.errors import ModelFileError, UnsupportedModel, UnsupportedSpace
from quarl_export.importers.sb3.agent import Agent, Family
from quarl_export.importers.sb3.network import Features, NetworkBuilder
from quarl_export.importers.sb3.observations import Seen
from quarl_export.importers.sb3.spaces import Box, Discrete
from quarl_export.ir import GraphInput, PolicyGraph

Float32 = NDArray[np.float32]
Tensors = Mapping[str, NDArray[np.generic]]

_CONVOLUTIONS = ((0, 4), (2, 2), (4, 1))
"""Of NatureCNN: place in its Sequential and stride. Kernel sizes and widths are in the weights."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ActingNetwork:
    """What acts.

    Attributes:
        graph: the network.
        weights: of the graph.
        head: what its outputs mean.
        unit_actions: a box action leaves it in [-1, 1]; false: in the environment's units.
    """

    graph: PolicyGraph
    weights: Mapping[str, Float32]
    head: Head
    unit_actions: bool


def acting_tensors(family: Family, names: frozenset[str]) -> Callable[[str], bool]:
    """Return what tells whether a tensor of the state dict acts.

    Args:
        family: of the policy.
        names: all of the state dict.
    """
    if family == "dqn":
        return lambda name: name.startswith("q_net.")
    if family != "actor_critic":
        return lambda name: name.startswith("actor.")
    left = ["value_net.", "mlp_extractor.value_net.", "vf_features_extractor."]
    if any(name.startswith("pi_features_extractor.") for name in names):
        left.append("features_extractor.")
    return lambda name: not name.startswith(tuple(left))


def extractor_prefix(family: Family, names: frozenset[str]) -> str:
    """Return where the acting features extractor lies."""
    if family == "actor_critic":
        # Before version 1.7 there was one for actor and critic.
        split = any(name.startswith("pi_features_extractor.") for name in names)
        return "pi_features_extractor." if split else "features_extractor."
    return "q_net.features_extractor." if family == "dqn" else "actor.features_extractor."


def convolved_keys(agent: Agent, names: frozenset[str], boxes: Mapping[str, Box]) -> frozenset[str]:
    """Return the observation keys that go through convolutions."""
    prefix = extractor_prefix(agent.family, names)
    if agent.extractor == "nature":
        return frozenset(boxes)
    return frozenset(key for key in boxes if f"{prefix}extractors.{key}.cnn.0.weight" in names)


def build_network(
    agent: Agent, tensors: Tensors, seen: tuple[Seen, ...], action: Box | Discrete, *, names: frozenset[str], what: str
) -> ActingNetwork:
    """Return the acting network.

    Args:
        agent: how the policy is built.
        tensors: those that act.
        seen: observations.
        action: the action space.
        names: of all tensors of the state dict.
        what: for messages.

    Raises:
        ModelFileError: a tensor is missing or of another shape.
        UnsupportedModel: a layer that is not exported, by its name.
        UnsupportedSpace: an action space that the algorithm does not have.
        NonFiniteError: NaN or Inf in the weights.
    """
    builder = NetworkBuilder(tensors, what=what, keys=[each.spec.key for each in seen])
    features = _features(builder, agent, seen, extractor_prefix(agent.family, names))
    outputs, head, unit_actions = _HEADS[agent.family](builder, agent, features, action)
    builder.check_all_used()
    for role, name in outputs.items():
        width, expected = builder.widths[name], action.n if isinstance(action, Discrete) else action.low.size
        if width != expected:
            raise ModelFileError(f"{what}: output {role!r} has {width} elements for {expected} of the action space")
    graph = PolicyGraph(
        inputs=tuple(GraphInput(key=each.spec.key, shape=each.shape) for each in seen),
        layers=tuple(builder.layers),
        outputs=outputs,
        weight_shapes={name: array.shape for name, array in builder.weights.items()},
    )
    return ActingNetwork(graph=graph, weights=builder.weights, head=head, unit_actions=unit_actions)


def _features(builder: NetworkBuilder, agent: Agent, seen: tuple[Seen, ...], prefix: str) -> Features:
    if agent.extractor != "combined":
        if len(seen) != 1:
            raise UnsupportedModel(f"{builder.what}: several observations without a CombinedExtractor")
        return _one_extractor(builder, seen[0], prefix, convolved=agent.extractor == "nature")
    parts = []
    for each in seen:
        own = f"{prefix}extractors.{each.spec.key}."
        parts.append(_one_extractor(builder, each, own, convolved=builder.has(f"{own}cnn.0.weight")))
    return builder.concatenate(f"{prefix}concatenate", parts)


def _one_extractor(builder: NetworkBuilder, seen: Seen, prefix: str, *, convolved: bool) -> Features:
    key = seen.spec.key
    if not convolved:
        whole = Features(name=key, shape=seen.shape)
        return builder.flatten(f"{prefix}flatten", whole) if seen.is_image else whole
    image = Features(name=key, shape=seen.shape)
    for place, stride in _CONVOLUTIONS:
        image = builder.convolution(f"{prefix}cnn.{place}", image, stride=stride)
        image = builder.activation(f"{prefix}cnn.{place + 1}", image, "relu")
    flat = builder.flatten(f"{prefix}cnn.6", image)
    return builder.activation(f"{prefix}linear.1", builder.dense(f"{prefix}linear.0", flat), "relu")


def _perceptron(builder: NetworkBuilder, prefix: str, features: Features, agent: Agent, *, plain_end: bool) -> Features:
    """Follow a Sequential of Linear layers, each with the activation behind it; with `plain_end`, not the last one."""
    places = builder.places(prefix)
    if plain_end and not places:
        raise ModelFileError(f"{builder.what}: the policy has no layers {prefix}*")
    for number, place in enumerate(places):
        # Without an activation module in between, Identity takes its place in the Sequential too.
        if place != 2 * number:
            raise UnsupportedModel(
                f"{builder.what}: layer {prefix}{place} is not where a perceptron has its Linear layers",
                hint="LayerNorm, BatchNorm and Dropout inside the policy are not exported; train without them",
            )
        features = builder.dense(f"{prefix}{place}", features)
        if agent.activation is not None and not (plain_end and place == places[-1]):
            features = builder.activation(f"{prefix}{place + 1}", features, agent.activation)
    return features


_Outcome = tuple[Mapping[str, str], Head, bool]


def _role(head: HeadKind, features: Features, *, unit_actions: bool = False) -> _Outcome:
    return {head: features.name}, Head(kind=head, outputs={head: ""}), unit_actions


def _dqn(builder: NetworkBuilder, agent: Agent, features: Features, action: Box | Discrete) -> _Outcome:
    if not isinstance(action, Discrete):
        raise UnsupportedSpace(f"{builder.what}: DQN acts in Discrete spaces, this one is a Box")
    return _role("q_values", _perceptron(builder, "q_net.q_net.", features, agent, plain_end=True))


def _actor_critic(builder: NetworkBuilder, agent: Agent, features: Features, action: Box | Discrete) -> _Outcome:
    latent = _perceptron(builder, "mlp_extractor.policy_net.", features, agent, plain_end=False)
    mean = builder.dense("action_net", latent)
    if isinstance(action, Discrete):
        return _role("logits", mean)
    if agent.state_dependent_noise:
        # Its standard deviation is a matrix product with the latent features; only the mean is exported.
        builder.skip("log_std")
        end = builder.activation("action_net.tanh", mean, "tanh") if agent.squashes else mean
        return _role("action", end, unit_actions=agent.squashes)
    log_std = tuple(builder.take("log_std", axes=1).tolist())
    head = Head(kind="gaussian", outputs={"mean": ""}, log_std=log_std)
    return {"mean": mean.name}, head, False


def _sac(builder: NetworkBuilder, agent: Agent, features: Features, action: Box | Discrete) -> _Outcome:
    _require_box(builder, agent, action)
    latent = _perceptron(builder, "actor.latent_pi.", features, agent, plain_end=False)
    if agent.state_dependent_noise:
        builder.skip("actor.log_std")
        mean = _clipped_mean(builder, latent, agent.clip_mean) if agent.clip_mean else builder.dense("actor.mu", latent)
        return _role("action", builder.activation("actor.mu.tanh", mean, "tanh"), unit_actions=True)
    mean, log_std = builder.dense("actor.mu", latent), builder.dense("actor.log_std", latent)
    # Stable-Baselines3 clips log_std to -20..2 where it samples; acting greedily does not need it.
    head = Head(kind="gaussian", outputs={"mean": "", "log_std": ""}, squash="tanh")
    return {"mean": mean.name, "log_std": log_std.name}, head, True


def _clipped_mean(builder: NetworkBuilder, latent: Features, clip: float) -> Features:
    """Add Linear and Hardtanh: ``clip(x, -c, c) = relu6((x + c) * 3 / c) * c / 3 - c``."""
    scaled = builder.dense("actor.mu.0", latent, scale=3 / clip, shift=3.0)
    cut = builder.activation("actor.mu.1", scaled, "relu6")
    size = cut.shape[0]
    return builder.affine(
        "actor.mu.1.unscale",
        cut,
        np.eye(size, dtype=np.float32) * np.float32(clip / 3),
        np.full(size, -clip, np.float32),
    )


def _td3(builder: NetworkBuilder, agent: Agent, features: Features, action: Box | Discrete) -> _Outcome:
    _require_box(builder, agent, action)
    mean = _perceptron(builder, "actor.mu.", features, agent, plain_end=True)
    return _role("action", builder.activation("actor.mu.tanh", mean, "tanh"), unit_actions=True)


def _require_box(builder: NetworkBuilder, agent: Agent, action: Box | Discrete) -> None:
    if not isinstance(action, Box):
        raise UnsupportedSpace(f"{builder.what}: {agent.algorithm} acts in Box spaces, this one is Discrete")


_HEADS: Mapping[Family, Callable[[NetworkBuilder, Agent, Features, Box | Discrete], _Outcome]] = {
    "dqn": _dqn,
    "actor_critic": _actor_critic,
    "sac": _sac,
    "td3": _td3,
}
