"""`quarl-edge bench learn`: that it times what it says, of every algorithm, and what it refuses before any work."""

import json

import numpy as np
import pytest
from continuous_factory import BOX, DISCRETE, OBSERVATION, without_xla

from quarl_device.contract import ObservationSpec
from quarl_edge.algorithms import ALGORITHMS
from quarl_edge.bench import learn as learn_bench
from quarl_edge.bench.float_policy import FloatPolicy
from quarl_edge.bench.learn import ACTIONS, bench_config, made_up, update_speed
from quarl_edge.cli import app
from quarl_export.networks import NetworkSpec
from quarl_export.qat import QatPolicy

__all__ = ["without_xla"]
HEADS = [("q_values", DISCRETE), ("logits", DISCRETE), ("action", BOX), ("gaussian", BOX)]


def network(info, hidden=(8,)):
    kind = next(kind for kind in ACTIONS if kind in info.heads)
    return NetworkSpec(observations=(OBSERVATION,), action=ACTIONS[kind], hidden=hidden, head=info.heads[kind])


def by_hand(policy, observations):
    """What a dense ReLU network gives, in numpy."""
    *weights, offset, scale = [variable.numpy() for variable in policy.variables if "log_std" not in variable.name]
    values = (observations - offset) * scale
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        values = np.maximum(values @ kernel + bias, 0)
    values = values @ weights[-2] + weights[-1]
    return np.tanh(values) if policy.spec.head == "action" else values


@pytest.mark.parametrize(("head", "action"), HEADS)
def test_the_float_policy_is_the_same_network_without_quantization(head, action):
    spec = NetworkSpec(observations=(OBSERVATION,), action=action, hidden=(16, 8), head=head)
    policy, quantized = FloatPolicy(spec), QatPolicy(spec, normalize=True)
    policy.set_normalizer([0.5, -1.0, 0.0], [2.0, 0.5, 1.0])
    seen = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_allclose(policy.model(seen, training=True).numpy(), by_hand(policy, seen), rtol=1e-5, atol=1e-6)
    shapes, theirs = ([tuple(v.shape) for v in each.trainable_variables] for each in (policy, quantized))
    assert shapes == theirs


def test_a_clone_of_the_float_policy_has_variables_of_its_own():
    policy = FloatPolicy(NetworkSpec(observations=(OBSERVATION,), action=DISCRETE, hidden=(4,)))
    policy.set_normalizer([0.5, -1.0, 0.0], [2.0, 0.5, 1.0])
    copy = policy.clone()
    for mine, theirs in zip(policy.variables, copy.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
        assert mine is not theirs


@pytest.mark.parametrize(("qat", "steps"), [(True, 4), (False, 1)])
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.usefixtures("without_xla")
def test_a_call_is_as_many_gradient_steps_as_it_says_and_changes_the_policy(name, qat, steps):
    info = ALGORITHMS[name]
    spec = network(info)
    policy = QatPolicy(spec, normalize=True) if qat else FloatPolicy(spec)
    config = bench_config(info, hidden=spec.hidden, batch=6, steps=steps)
    algorithm = info.build(config, policy)
    before = [variable.numpy() for variable in policy.trainable_variables]
    learned = algorithm.update(made_up(config, spec, batch=6, steps=steps))
    assert learned.steps == steps
    assert all(np.isfinite(value) for value in learned.metrics.values())
    changed = [not np.array_equal(a, b.numpy()) for a, b in zip(before, policy.trainable_variables, strict=True)]
    assert all(changed)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_network_has_the_sizes(name):
    config = bench_config(ALGORITHMS[name], hidden=(24, 7), batch=6, steps=4)
    sizes = {field: value for field, value in vars(config).items() if field.endswith("hidden")}
    assert "hidden" in sizes
    assert set(sizes.values()) == {(24, 7)}


@pytest.mark.usefixtures("without_xla")
def test_rows_come_with_and_without_qat_from_rounds_in_turns(monkeypatch):
    monkeypatch.setattr(learn_bench, "FUSED_UPDATES", 4)
    calls, real = [], learn_bench._ready

    def ready(info, spec, *, qat, steps, batch):
        run = real(info, spec, qat=qat, steps=steps, batch=batch)
        return lambda: (calls.append((qat, steps)), run())[1]

    monkeypatch.setattr(learn_bench, "_ready", ready)
    told = []
    rows = update_speed("dqn", hidden=(8,), batch=6, rounds=2, progress=told.append)
    assert calls == [(True, 4), (True, 1), (False, 4), (False, 1)] * 2
    assert told == [1, 2]
    assert [(row.algorithm, row.qat, row.head, row.batch, row.hidden) for row in rows] == [
        ("dqn", True, "q_values", 6, (8,)), ("dqn", False, "q_values", 6, (8,)),
    ]  # fmt: skip
    assert rows[0].qat_ratio == rows[1].qat_ratio > 0
    assert all(row.ms_per_update > 0 and row.ms_per_update_unfused > 0 and row.unfused_ratio > 0 for row in rows)


@pytest.mark.parametrize("name", [name for name, info in ALGORITHMS.items() if info.images])
def test_pixels_are_seen_through_convolutions(monkeypatch, name):
    monkeypatch.setattr(learn_bench, "FUSED_UPDATES", 2)
    monkeypatch.setattr(learn_bench, "PIXELS", ObservationSpec(key="observation", shape=(8, 8), dtype="uint8", stack=2))
    monkeypatch.setattr(learn_bench, "NATURE", ((4, 4, 2),))
    rows = update_speed(name, hidden=(8,), batch=2, rounds=1, pixels=True)
    assert [row.convolutions for row in rows] == [((4, 4, 2),)] * 2
    assert all(row.cpu_ms_per_update > 0 for row in rows)


def test_who_sees_no_images_is_not_timed_with_them(capfd):
    assert app.run(["bench", "learn", "--pixels", "--algorithm", "d4pg"]) == 2
    assert "d4pg sees no images" in capfd.readouterr().err


def test_ratios_are_of_what_was_measured_side_by_side():
    took = [[learn_bench._Took(wall_ms=1.0, cpu_ms=ms) for ms in each] for each in ((2.0, 30.0, 9.0), (1.0, 10.0, 2.0))]
    assert learn_bench._ratio(*took) == 3.0


@pytest.mark.usefixtures("without_xla")
def test_bench_learn_says_what_it_measured(capfd):
    words = ["bench", "learn", "--algorithm", "a2c", "--hidden", "8", "--batch", "4", "--rounds", "1"]
    assert app.run([*words, "--format", "json"]) == 0
    said = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert {"machine", "load_average", "versions", "rounds", "rows"} == set(said)
    assert said["versions"]["tensorflow"]
    wanted = {"algorithm", "ms_per_update", "ms_per_update_unfused", "batch", "hidden", "qat"}
    assert [(set(row) >= wanted, row["qat"], row["batch"], row["hidden"]) for row in said["rows"]] == [
        (True, True, 4, [8]), (True, False, 4, [8]),
    ]  # fmt: skip
    assert app.run(words) == 0
    out = capfd.readouterr().out.splitlines()
    assert [line.split(",")[:2] for line in out[:2]] == [["a2c", " QAT"], ["a2c", " float"]]
    assert "load average" in out[2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--algorithm", "dqm"], "dqn"),
        (["--hidden", "64,"], "sizes with commas"),
        (["--hidden", "0"], "1..16,384"),
        (["--batch", "0"], "batch"),
        (["--batch", "5000"], "batch"),
        (["--rounds", "0"], "rounds"),
    ],
)
def test_what_cannot_be_timed_is_one_line(capfd, words, says):
    assert app.run(["bench", "learn", *words]) == 2
    err = capfd.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_the_help_has_examples(capfd):
    for command in ("learn", "actors"):
        assert app.run(["bench", command, "--help"]) == 0
        assert f"quarl-edge bench {command} --" in " ".join(capfd.readouterr().out.split()).replace(
            f"bench {command} CartPole-v1 Pendulum-v1 --", f"bench {command} --"
        )
