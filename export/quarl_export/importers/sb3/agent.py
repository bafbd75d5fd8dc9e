"""What an agent's `data` says of its policy: algorithm, kind of network, activation, switches.

The policy class and its keyword arguments are pickles. They are read with every global allowed as a name, since naming
executes nothing, so that what is not supported can be refused by its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quarl_device.errors import ModelFileError, UnsupportedModel
from quarl_export.importers.sb3.spaces import decode_field
from quarl_export.importers.sb3.unpickle import Global, Record, Vocabulary, read_pickle, shown
from quarl_export.ir.layers import Kind

Family = Literal["dqn", "actor_critic", "sac", "td3"]
Extractor = Literal["flatten", "nature", "combined"]

_ANY = Vocabulary(names=("",))
_LAYERS = "stable_baselines3.common.torch_layers."
_EXTRACTORS: Mapping[str, Extractor] = {
    f"{_LAYERS}FlattenExtractor": "flatten",
    f"{_LAYERS}NatureCNN": "nature",
    f"{_LAYERS}CombinedExtractor": "combined",
}
_MODULES: Mapping[str, tuple[Family, str]] = {
    "stable_baselines3.common.policies": ("actor_critic", "ActorCritic"),
    "stable_baselines3.dqn.policies": ("dqn", "DQN"),
    "stable_baselines3.sac.policies": ("sac", "SAC"),
    "stable_baselines3.td3.policies": ("td3", "TD3"),
}
_ACTIVATIONS: Mapping[str, Kind | None] = {
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.ReLU6": "relu6",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.ELU": "elu",
    "torch.nn.modules.linear.Identity": None,
}


@dataclass(frozen=True, kw_only=True)
class Agent:
    """How a policy is built.

    Attributes:
        algorithm: "dqn", "a2c", "ppo", "trpo", "ddpg", "td3" or "sac".
        family: which networks its state dict has.
        policy_class: dotted name.
        extractor: of features.
        activation: between the layers of its perceptrons; `None` for none.
        divides_images: images are divided by 255.
        state_dependent_noise: generalised state-dependent exploration (gSDE).
        squashes: gSDE of A2C and PPO: the mean goes through tanh.
        clip_mean: gSDE of SAC: the mean is clipped to ±this; 0 for never.
        behind_vecnormalize: it was certainly trained behind a `VecNormalize`; A2C and PPO tell.
    """

    algorithm: str
    family: Family
    policy_class: str
    extractor: Extractor
    activation: Kind | None
    divides_images: bool
    state_dependent_noise: bool
    squashes: bool
    clip_mean: float
    behind_vecnormalize: bool


def read_agent(settings: Mapping[str, Any], *, what: str) -> Agent:
    """Return how the policy of a decoded `data` is built.

    Raises:
        ModelFileError: missing or damaged fields.
        UnsupportedModel: a policy, extractor or activation that is not exported, by its name.
    """
    name = _name(_field(settings, "policy_class", what))
    family, extractor = _policy(name, what)
    arguments = _field(settings, "policy_kwargs", what)
    if not isinstance(arguments, dict):
        raise ModelFileError(f"{what}: policy_kwargs are {type(arguments).__name__}, expected a dict")
    return Agent(
        algorithm=_algorithm(family, settings, arguments),
        family=family,
        policy_class=name,
        extractor=_extractor(arguments, extractor, what),
        activation=_activation(arguments, "tanh" if family == "actor_critic" else "relu", what),
        divides_images=_flag(arguments, "normalize_images", default=True, what=what),
        state_dependent_noise=_flag(settings, "use_sde", default=False, what=what)
        or _flag(arguments, "use_sde", default=False, what=what),
        squashes=_flag(arguments, "squash_output", default=False, what=what),
        clip_mean=_number(arguments, "clip_mean", default=2.0, what=what),
        # DQN and the like keep the last original observation without a VecNormalize too: of them it is not known.
        behind_vecnormalize=family == "actor_critic" and settings.get("_last_original_obs") is not None,
    )


def _field(settings: Mapping[str, Any], name: str, what: str) -> Any:
    data = decode_field(settings, name, what=what)
    if data is not None:
        return read_pickle(data, _ANY, what=f"{what}: {name}")
    if name not in settings:
        raise ModelFileError(f"{what}: {name} is missing", hint="save the agent again with model.save()")
    return settings[name] or {}


def _name(value: Any) -> str:
    """Return the name of what a pickle gives; classes that travel by value carry theirs as an argument."""
    if not isinstance(value, Record):
        return shown(value)
    if value.name.endswith("._make_skeleton_class") and len(value.arguments) > 1:
        name = value.arguments[1]
        return name[:80] if isinstance(name, str) else shown(name)
    return value.name[:120]


def _policy(name: str, what: str) -> tuple[Family, Extractor]:
    module, _, short = name.rpartition(".")
    family, prefix = _MODULES.get(module, (None, ""))
    plain, cnn, multi = (
        (f"{prefix}Policy", f"{prefix}CnnPolicy", f"MultiInput{prefix}Policy")
        if family == "actor_critic"
        else (f"{prefix}Policy", "CnnPolicy", "MultiInputPolicy")
    )
    extractors: Mapping[str, Extractor] = {plain: "flatten", cnn: "nature", multi: "combined"}
    if family is not None and short in extractors:
        return family, extractors[short]
    if "recurrent" in name.lower() or "lstm" in name.lower():
        raise UnsupportedModel(
            f"{what}: policy {name} is recurrent: it carries a state from step to step, which no export has",
            hint="train PPO without memory on stacked frames (VecFrameStack) instead",
        )
    raise UnsupportedModel(
        f"{what}: policy {name} is none that can be exported",
        hint="MlpPolicy, CnnPolicy and MultiInputPolicy of DQN, A2C, PPO, DDPG, TD3 and SAC can; for a class of your "
        "own, rebuild its network in Keras, copy the weights, and export that",
    )


def _algorithm(family: Family, settings: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Tell apart algorithms that share a policy class, by the settings that only one of them has."""
    if family == "actor_critic":
        return "ppo" if "clip_range" in settings else "trpo" if "cg_max_steps" in settings else "a2c"
    if family == "td3":
        # DDPG is TD3 with one critic and without its other tricks.
        return "ddpg" if arguments.get("n_critics") == 1 and settings.get("policy_delay") == 1 else "td3"
    return family


def _extractor(arguments: Mapping[str, Any], default: Extractor, what: str) -> Extractor:
    given = arguments.get("features_extractor_class")
    if given is None:
        return default
    name = _name(given)
    if not isinstance(given, Global) or name not in _EXTRACTORS:
        raise UnsupportedModel(
            f"{what}: features extractor {name} is none that can be exported",
            hint="FlattenExtractor, NatureCNN and CombinedExtractor can; for one of your own, rebuild the network in "
            "Keras, copy the weights, and export that",
        )
    return _EXTRACTORS[name]


def _activation(arguments: Mapping[str, Any], default: Kind, what: str) -> Kind | None:
    given = arguments.get("activation_fn")
    if given is None:
        return default
    name = _name(given)
    if not isinstance(given, Global) or name not in _ACTIVATIONS:
        known = ", ".join(each.rsplit(".", 1)[-1] for each in _ACTIVATIONS)
        raise UnsupportedModel(
            f"{what}: activation {name.rsplit('.', 1)[-1]} cannot be exported; expected one of {known}",
            hint="train with policy_kwargs=dict(activation_fn=torch.nn.ReLU), which also quantizes best",
        )
    return _ACTIVATIONS[name]


def _flag(values: Mapping[str, Any], name: str, *, default: bool, what: str) -> bool:
    value = values.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ModelFileError(f"{what}: {name} is {shown(value)}, expected true or false")
    return value


def _number(values: Mapping[str, Any], name: str, *, default: float, what: str) -> float:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e6 < value < 1e6:
        raise ModelFileError(f"{what}: {name} is {shown(value)}, expected a number")
    return max(0.0, float(value))
