"""Runs as a listener sees them: what they say, and what is left of them when they are damaged."""

import pytest
from run_factory import keep_policy, make_run

from quarl_device.errors import RunNotFound
from quarl_edge import run_view
from quarl_edge.run_view import differences_from_preset, differing_settings, find_run, list_runs, look_at_run
from quarl_edge.session_log import RunState, noted_session


def test_a_run_says_what_it_is_and_did(tmp_path):
    run = make_run(tmp_path, seed=3, points=((100, 20.0), (200, 60.0), (300, 40.0)))
    keep_policy(run, 61.5)
    for steps in (150, 320):
        (run.checkpoints / f"ckpt-{steps:012d}").mkdir(parents=True)
    (run.checkpoints / "ckpt-000000000320" / "state.json").write_bytes(b"x" * 1_000)
    view = look_at_run(run.path)
    assert view.damage == ()
    assert view.config == run.config
    assert (view.best_return, view.last_return, view.env_steps) == (61.5, 40.0, 320)
    assert (view.sessions.state, view.sessions.reason) == (RunState.ENDED, "budget")
    assert [(each.env_steps, each.size_bytes) for each in view.checkpoints] == [(150, 0), (320, 1_000)]
    assert view.policy_sha256 == "b" * 64
    assert view.size_bytes == sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())


def test_without_a_kept_policy_the_best_is_the_best_judgement(tmp_path):
    view = look_at_run(make_run(tmp_path, points=((1, 5.0), (2, 9.0), (3, 7.0))).path)
    assert (view.best_return, view.policy_sha256) == (9.0, "")
    empty = look_at_run(make_run(tmp_path, name="empty", points=()).path)
    assert (empty.best_return, empty.last_return, empty.env_steps) == (None, None, 0)


def test_a_run_that_goes_on_is_running(tmp_path):
    run = make_run(tmp_path, ended="")
    assert look_at_run(run.path).sessions.state is RunState.UNKNOWN
    with noted_session(run.sessions):
        assert look_at_run(run.path).sessions.state is RunState.RUNNING


def spoil_config(run):
    (run.path / "config.json").write_text("{")


def take_config(run):
    (run.path / "config.json").unlink()


def other_version(run):
    (run.path / "config.json").write_text('{"schema": 99, "version": "9", "env_id": "X-v0", "algorithm": "dqn"}')


def huge_config(run):
    (run.path / "config.json").write_bytes(b" " * 1_000_000)


def spoil_judgements(run):
    with run.judgements.open("ab") as file:
        file.write(b"\x00\xff\n[]\n")


def judgements_are_a_directory(run):
    run.judgements.unlink()
    run.judgements.mkdir()


def sessions_are_a_directory(run):
    run.sessions.unlink()
    run.sessions.mkdir()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (spoil_config, "damaged"), (take_config, "not found"), (other_version, "schema 99"), (huge_config, "cap"),
        (spoil_judgements, "2 lines"), (judgements_are_a_directory, "directory"),
        (sessions_are_a_directory, "directory"),
    ],
)  # fmt: skip
def test_a_damaged_run_is_listed_with_what_cannot_be_read(tmp_path, spoil, says):
    good, bad = make_run(tmp_path, seed=1), make_run(tmp_path, seed=2)
    spoil(bad)
    views = {view.path: view for view in list_runs(tmp_path)}
    assert views[good.path].damage == ()
    assert says in " ".join(views[bad.path].damage)
    # What is left of it is still read.
    assert views[bad.path].size_bytes > 0
    assert views[bad.path].to_json()["run"] == str(bad.path)


@pytest.mark.parametrize("text", ["[]", '{"provenance": []}', '{"provenance": {"pushed_sha256": 7}}', "{"])
def test_a_policy_that_says_nothing_of_itself_is_no_policy(tmp_path, text):
    run = make_run(tmp_path)
    keep_policy(run, 1.0)
    (run.policy / "policy.json").write_text(text)
    view = look_at_run(run.path)
    assert (view.policy_sha256, view.best_return) == ("", 60.0)


def test_runs_are_listed_in_the_order_in_which_they_began_and_strays_are_left_out(tmp_path):
    for name in ("B-v0-dqn-20260102T000000Z-s0", "A-v0-ppo-20260103T000000Z-s1", "mine"):
        make_run(tmp_path, name=name)
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "Z-v0-dqn-20260101T000000Z-s0").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    names = [view.name for view in list_runs(tmp_path)]
    assert names == [
        "mine", "Z-v0-dqn-20260101T000000Z-s0", "B-v0-dqn-20260102T000000Z-s0", "A-v0-ppo-20260103T000000Z-s1"
    ]  # fmt: skip


def test_no_directory_of_runs_says_how_to_name_another(tmp_path):
    with pytest.raises(RunNotFound, match="--runs DIR"):
        list_runs(tmp_path / "none")


def test_too_many_runs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(run_view, "MAX_RUNS", 1)
    make_run(tmp_path, name="a")
    make_run(tmp_path, name="b")
    with pytest.raises(RunNotFound, match="2 runs"):
        list_runs(tmp_path)


def test_a_run_is_found_by_path_and_by_name(tmp_path):
    run = make_run(tmp_path, name="mine")
    assert find_run(str(run.path), tmp_path / "elsewhere") == run.path
    assert find_run("mine", tmp_path) == run.path
    with pytest.raises(RunNotFound, match="did you mean mine"):
        find_run("mien", tmp_path)
    for text in ("", "x" * 5_000, "nul\0", "../.."):
        with pytest.raises(RunNotFound):
            find_run(text, tmp_path / "none")


def test_a_link_out_of_the_run_is_not_counted(tmp_path):
    run = make_run(tmp_path / "runs")
    before = look_at_run(run.path).size_bytes
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "file").write_bytes(b"x" * 100_000)
    run.tensorboard.symlink_to(tmp_path / "big")
    assert look_at_run(run.path).size_bytes - before < 1_000


def test_what_differs_from_the_preset(tmp_path):
    config = make_run(tmp_path, hidden=(8,), seed=4).config
    changed = differences_from_preset(config)
    assert changed["hidden"][0] == (8,)
    assert changed["seed"] == (4, 0)
    assert set(changed) == {"hidden", "seed"}
    assert differences_from_preset(make_run(tmp_path).config) == {}


def test_settings_that_differ_between_runs(tmp_path):
    one = make_run(tmp_path, hidden=(8,)).config
    other = make_run(tmp_path, env="Pendulum-v1", algorithm="ddpg", hidden=(8,)).config
    differing = differing_settings([one, None, other])
    assert differing["env_id"] == ["CartPole-v1", None, "Pendulum-v1"]
    # A setting that only one of the algorithms has.
    assert differing["double_q"] == [one.double_q, None, None]
    assert "hidden" not in differing
    assert differing_settings([one, one]) == {}
    assert differing_settings([None, None]) == {}
