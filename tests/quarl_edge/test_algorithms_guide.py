"""docs/guides/algorithms.md: its tables are those of the dataclasses, and its example is an algorithm that learns.

After a change of a setting, `python tests/quarl_edge/test_algorithms_guide.py` prints the tables as they must be.
"""

import dataclasses
import importlib.util
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from continuous_factory import DISCRETE, policy, rollout, without_xla

import quarl_edge.algorithms
from quarl_edge import configure
from quarl_edge.algorithms import ALGORITHMS
from quarl_edge.config import ReplayConfig, RolloutConfig, TrainConfig

__all__ = ["without_xla"]
GUIDE = Path(__file__).parents[2] / "docs/guides/algorithms.md"
RUN_ONLY = {"env_id", "algorithm"}
PRESETS = Path(quarl_edge.__file__).parent / "presets"


def meanings(cls):
    """Return what the docstrings of a configuration and its bases say of each field."""
    said = {}
    for base in cls.__mro__:
        lines = re.findall(r"^        (\w+): (.*(?:\n            .*)*)", base.__doc__ or "", re.MULTILINE)
        said = {name: " ".join(text.split()) for name, text in lines} | said
    return said


def shown(value):
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ",".join(map(shown, value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def allowed(field):
    """Return the values that a field takes, as a cell."""
    metadata = field.metadata
    if "allowed" in metadata:
        return ", ".join(metadata["allowed"])
    if "low" not in metadata:
        return {"bool": "true, false", "tuple[int, ...]": "sizes"}.get(field.type, "any")
    low, high = metadata["low"], metadata["high"]
    more = "> " if metadata["above"] else "≥ "
    if math.isinf(high):
        return f"{more}{shown(low)}"
    return f"> {shown(low)}, ≤ {shown(high)}" if metadata["above"] else f"{shown(low)}–{shown(high)}"


def family(base):
    return [info for info in ALGORITHMS.values() if issubclass(info.config, base)]


def fields_of(infos):
    found = {}
    for info in infos:
        found |= {field.name: field for field in dataclasses.fields(info.config) if field.name not in found}
    return found


def preset_fields(infos):
    return {name for info in infos for name in configure.read_preset("default", info.name)}


def table(infos):
    """Return the table of what a family has beside what every run has, or sets otherwise in its default presets."""
    common = {field.name for field in dataclasses.fields(TrainConfig)} - preset_fields(infos)
    names = [info.name for info in infos]
    lines = [f"| setting | {' | '.join(names)} | values | what it is |", f"|---|{'---|' * len(names)}---|---|"]
    for name, field in fields_of(infos).items():
        if name in common | RUN_ONLY:
            continue
        values = [
            shown(getattr(configure.make_config("any", algorithm=info.name), name))
            if name in fields_of([info])
            else "–"
            for info in infos
        ]
        meaning = next(said[name] for info in infos if name in (said := meanings(info.config)))
        lines.append(f"| `{name}` | {' | '.join(values)} | {allowed(field)} | {meaning} |")
    return lines


def common_table():
    """Return the table of what every run has and no default preset sets."""
    taken = preset_fields(ALGORITHMS.values()) | RUN_ONLY
    lines = ["| setting | default | values | what it is |", "|---|---|---|---|"]
    for field in dataclasses.fields(TrainConfig):
        if field.name not in taken:
            meaning = meanings(TrainConfig)[field.name]
            lines.append(f"| `{field.name}` | {shown(field.default)} | {allowed(field)} | {meaning} |")
    return lines


def tables():
    return {
        "replay": table(family(ReplayConfig)),
        "rounds": table(family(RolloutConfig)),
        "every run": common_table(),
    }


@pytest.mark.parametrize("which", ["replay", "rounds", "every run"])
def test_the_tables_are_those_of_the_dataclasses(which):
    found, wanted = GUIDE.read_text("utf-8"), tables()[which]
    missing = [line for line in wanted if line not in found]
    assert not missing, "run this file for the tables as they must be"
    assert "\n".join(wanted) in found


def test_the_tables_name_no_setting_that_is_gone():
    rows = set(re.findall(r"^\| `(\w+)` \|", GUIDE.read_text("utf-8"), re.MULTILINE)) - set(ALGORITHMS)
    assert rows == set().union(*(fields_of([info]) for info in ALGORITHMS.values())) - RUN_ONLY


def test_every_algorithm_and_every_preset_is_named():
    said = GUIDE.read_text("utf-8")
    for name in ALGORITHMS:
        assert f"| `{name}` | " in said
        presets = ", ".join(preset for preset in configure.preset_names(name) if preset != "default")
        assert presets in said, (name, presets)


# -- the example -------------------------------------------------------------------------------------------------------


def listing(path):
    """Return the code block that the guide names `path`."""
    [found] = re.findall(
        rf"^`{re.escape(path)}`:\n\n```\w+\n(.*?)```$", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return found


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Put the guide's files where it says, and its lines into the registry, for one test."""
    package, presets = tmp_path / "algorithms" / "awr", tmp_path / "presets" / "awr"
    for folder in (package, presets):
        folder.mkdir(parents=True)
    (package / "__init__.py").write_text(listing("quarl_edge/algorithms/awr/__init__.py"))
    (package / "learner.py").write_text(listing("quarl_edge/algorithms/awr/learner.py"))
    (presets / "default.toml").write_text(listing("quarl_edge/presets/awr/default.toml"))
    found = configure._presets
    monkeypatch.setattr(configure, "_presets", lambda name: presets if name == "awr" else found(name))
    monkeypatch.setattr(
        quarl_edge.algorithms, "__path__", [*quarl_edge.algorithms.__path__, str(tmp_path / "algorithms")]
    )
    importlib.invalidate_caches()
    lines, entry = listing("quarl_edge/algorithms/__init__.py"), listing("ALGORITHMS")
    # As in that module, which has these names already.
    head = "from __future__ import annotations\nfrom quarl_edge.algorithms import AlgorithmInfo\n"
    registration = tmp_path / "awr_registration.py"
    registration.write_text(f"{head}{lines}\nINFO = {entry.strip().rstrip(',')}\n")
    spec = importlib.util.spec_from_file_location("awr_registration", registration)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(ALGORITHMS, "awr", module.INFO)
    yield ALGORITHMS["awr"]
    for name in [name for name in sys.modules if name.startswith("quarl_edge.algorithms.awr")]:
        del sys.modules[name]
    vars(quarl_edge.algorithms).pop("awr", None)


@pytest.mark.usefixtures("without_xla")
def test_the_example_learns_which_action_pays(example):
    """Episodes of one step of uniformly random actions: action 1 where the first value is positive, else action 2."""
    config = configure.make_config(
        "any", algorithm="awr", asked={"hidden": (16,), "value_hidden": (16,), "learning_rate": 1e-2}
    )
    algorithm = example.build(config, policy("logits", action=DISCRETE))

    def act(seen, rng):
        action = rng.integers(0, 3, seen.shape[:2]).astype(np.uint8)
        return action, {"log_prob": np.full(action.shape, -math.log(3), np.float32)}

    def reward(seen, action):
        return (action == np.where(seen[..., 0] > 0, 1, 2)).astype(np.float32)

    for seed in range(100):
        algorithm.update(rollout(act, reward, envs=16, seed=seed))
    seen = np.random.default_rng(999).uniform(-1, 1, (300, 3)).astype(np.float32)
    chosen = algorithm.policy.model(seen, training=False).numpy().argmax(-1)
    assert (chosen == np.where(seen[:, 0] > 0, 1, 2)).mean() > 0.9


@pytest.mark.usefixtures("example")
def test_the_example_is_an_algorithm_like_any_other():
    assert configure.algorithm_info("awr").heads == {"discrete": "logits", "box": "gaussian"}
    config = configure.make_config("any", settings=["temperature=0.5"], algorithm="awr")
    assert config.temperature == 0.5
    assert config.minibatches == 4
    assert set(meanings(type(config))) >= {field.name for field in dataclasses.fields(config)}


if __name__ == "__main__":
    for title, lines in tables().items():
        sys.stdout.write("\n".join(["", title, "", *lines, ""]))
