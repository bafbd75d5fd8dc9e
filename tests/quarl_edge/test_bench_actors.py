"""`quarl-edge bench actors`: its rows, those that say why there is nothing to measure, and its exit code."""

import json

import pytest

from quarl_device.environments import EnvSpec
from quarl_device.errors import MissingExtra, UnknownEnvironment
from quarl_device.policy import Policy
from quarl_edge.bench import actors as actor_bench
from quarl_edge.bench.actors import ActorBench, random_policy
from quarl_edge.cli import app

QUICK = ["--hidden", "8", "--seconds", "0.1"]


def run(capfd, *words):
    code = app.run(["bench", "actors", *words])
    out, err = capfd.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("env_id", "head"), [("CartPole-v1", "q_values"), ("Pendulum-v1", "action"), ("MountainCarContinuous-v0", "action")]
)
def test_a_policy_is_made_for_an_environment_and_passes_its_self_test(env_id, head):
    file = random_policy(env_id, hidden=(8,))
    assert (file.contract.env_id, file.contract.head.kind, file.contract.scheme) == (env_id, head, "int8")
    Policy.load(file)


def test_every_environment_has_a_row_for_each_number_of_environments(capfd):
    code, out, _ = run(capfd, "CartPole-v1", "Nope-v1", "--envs", "1,3,1", *QUICK, "--format", "json")
    assert code == 0
    said = json.loads(out.splitlines()[-1])
    assert {"machine", "load_average", "versions", "rows"} == set(said)
    assert [(row["env"], row["envs"], "error" in row) for row in said["rows"]] == [
        ("CartPole-v1", 1, False), ("CartPole-v1", 3, False), ("Nope-v1", 1, True), ("Nope-v1", 3, True),
    ]  # fmt: skip
    for row in said["rows"][:2]:
        assert row["exploration"] == "epsilon 0.05"
        assert row["hidden"] == [8]
        assert row["steps_per_s"] > 0
        assert set(row["split"]) == {"env_us", "inference_us", "record_us", "encode_us"}
        assert sum(row["split"].values()) * row["steps_per_cpu_s"] == pytest.approx(1e6, rel=1e-3)
    assert said["rows"][2]["code"] == UnknownEnvironment.code
    assert "Nope-v1" in said["rows"][2]["error"]


def test_a_missing_extra_is_a_row_with_the_command_that_adds_it(capfd, monkeypatch):
    real = actor_bench.make_single

    def make(spec: EnvSpec):
        if spec.env_id == "HalfCheetah-v5":
            raise MissingExtra("environment 'HalfCheetah-v5' needs a package: mujoco", hint="pip install mujoco-thing")
        return real(spec)

    monkeypatch.setattr(actor_bench, "make_single", make)
    code, out, _ = run(capfd, "HalfCheetah-v5", "Pendulum-v1", "--envs", "2", *QUICK)
    assert code == 0
    cheetah, pendulum, where = out.splitlines()
    assert cheetah == (
        "HalfCheetah-v5 x 2: not measured: environment 'HalfCheetah-v5' needs a package: mujoco "
        "(pip install mujoco-thing)"
    )
    assert "gaussian 0.1" in pendulum
    assert "load average" in where


def test_where_nothing_was_measured_the_first_reason_is_the_exit_code(capfd):
    found, out, err = run(capfd, "Nope-v1", "--envs", "1", *QUICK)
    assert found == UnknownEnvironment.code
    assert out.startswith("Nope-v1 x 1: not measured: ")
    assert "Traceback" not in err


def test_an_environment_that_fails_while_it_is_stepped_is_a_row(monkeypatch):
    def fails(*_, **__):
        raise UnknownEnvironment("gone")

    monkeypatch.setattr(actor_bench, "actor_speed", fails)
    bench = ActorBench(hidden=(8,), duration_s=0.1)
    [row] = bench.rows("CartPole-v1", [1])
    assert row == {"env": "CartPole-v1", "envs": 1, "error": "gone", "code": UnknownEnvironment.code, "hint": ""}
    assert [fault.message for fault in bench.faults] == ["gone"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--envs", "1,"], "numbers with commas"),
        (["--envs", "0"], "1..4,096"),
        (["--envs", "4097"], "1..4,096"),
        (["--hidden", "a"], "sizes with commas"),
        (["--seconds", "0"], "seconds"),
    ],
)
def test_what_cannot_be_measured_is_one_line(capfd, words, says):
    code, _, err = run(capfd, "CartPole-v1", *words)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1
