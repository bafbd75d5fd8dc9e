"""What a source cannot say, said on the command line: real files, exported by command, act as their networks do."""

import json

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.errors import UsageError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy_path
from quarl_edge.cli import main
from quarl_edge.cli.source_options import SourceWishes, read_pairs, read_stack, read_stack_fill

ROWS = 24


class TwoEyes(gymnasium.Env):
    """A dict of a camera and a vector, three actions; rewards nothing."""

    observation_space = gymnasium.spaces.Dict(
        {
            "image": gymnasium.spaces.Box(-1.0, 1.0, (6, 6, 1), np.float32),
            "state": gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32),
        }
    )
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        return self._seen(), 0.0, bool(self.np_random.random() < 0.2), False, {}

    def _seen(self):
        return {
            "image": self.np_random.uniform(-1, 1, (6, 6, 1)).astype(np.float32),
            "state": self.np_random.uniform(-1, 1, 3).astype(np.float32),
        }


@pytest.fixture(scope="module", autouse=True)
def environment():
    gymnasium.register("OptionsEyes-v0", TwoEyes)
    yield
    del gymnasium.registry["OptionsEyes-v0"]


def run(capsys, *words):
    """Return exit code and the last JSON object on stdout."""
    code = main([*map(str, words), "--format", "json"])
    return code, json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def refused(capsys, *words):
    """Return exit code, message and hint."""
    code, told = run(capsys, *words)
    return code, told["error"]["message"], told["error"]["hint"]


def layers():
    from quarl_export.keras2 import keras

    keras.utils.set_random_seed(5)
    return keras


@pytest.fixture(scope="module")
def eyes():
    """A tf_keras model over two inputs and two outputs, none of which is named as the environment's keys."""
    keras = layers()
    camera, joints = keras.Input((6, 6, 1), name="camera"), keras.Input((3,), name="joints")
    flat = keras.layers.Flatten()(keras.layers.Conv2D(2, 3, activation="relu")(camera))
    body = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()([flat, joints]))
    outputs = [keras.layers.Dense(3, name="first")(body), keras.layers.Dense(1, name="second")(body)]
    return keras.Model([camera, joints], outputs)


@pytest.fixture(scope="module")
def eyes_files(eyes, tmp_path_factory):
    """The same network as a file of every kind that is read by names."""
    from quarl_export.keras2 import tf
    from quarl_export.silence import without_tensorflow_noise

    folder = tmp_path_factory.mktemp("eyes")
    files = {"h5": folder / "eyes.h5", "savedmodel": folder / "eyes", "tflite": folder / "eyes.tflite"}
    with without_tensorflow_noise():
        with pytest.warns(UserWarning, match="HDF5"):
            eyes.save(files["h5"])
        eyes.save(files["savedmodel"], save_format="tf")
        files["tflite"].write_bytes(tf.lite.TFLiteConverter.from_keras_model(eyes).convert())
    return files


NAMED = ("--input", "camera=image", "--input", "joints=state", "--env", "OptionsEyes-v0", "--episodes", 0)


@pytest.mark.parametrize("kind", ["h5", "savedmodel", "tflite"])
def test_inputs_and_outputs_with_names_of_their_own(capsys, tmp_path, eyes, eyes_files, kind):
    model = tmp_path / "m.tflite"
    words = ("export", model, "--from", eyes_files[kind], *NAMED, "--scheme", "float32", "--steps", 64)
    code, told = run(capsys, *words, "--output", "q_values=first")
    assert code == 0, told
    policy = Policy.load(read_policy_path(model))
    rng = np.random.default_rng(1)
    image, state = rng.uniform(-1, 1, (ROWS, 6, 6, 1)), rng.uniform(-1, 1, (ROWS, 3))
    wanted = eyes([image.astype(np.float32), state.astype(np.float32)])[0].numpy().argmax(axis=1)
    found = [
        policy.act({"image": a.astype(np.float32), "state": b.astype(np.float32)})
        for a, b in zip(image, state, strict=True)
    ]
    np.testing.assert_array_equal(found, wanted)
    assert len(set(found)) > 1


def test_names_that_are_not_there_are_refused_with_those_that_are(capsys, tmp_path, eyes_files):
    words = ("export", tmp_path / "m.tflite", "--from", eyes_files["h5"], *NAMED)
    acts = ("--output", "q_values=first")
    code, message, hint = refused(capsys, *words, *acts, "--input", "lidar=x")
    assert (code, "['lidar']" in message, "['camera', 'joints']" in message) == (2, True, True)
    assert "--input NAME=KEY" in hint
    code, message, hint = refused(capsys, *words, "--output", "q_values=third")
    assert (code, "['third']" in message, "['first', 'second']" in message) == (2, True, True)
    code, message, hint = refused(capsys, *words)
    assert (code, "['first', 'second']" in message, "--output q_values=NAME" in hint) == (2, True, True)
    code, message, hint = refused(capsys, *words, "--output", "values=first")
    assert (code, "q_values" in message) == (2, True)
    code, message, _ = refused(capsys, *words, *acts, "--stack", "lidar=2")
    assert (code, "['lidar']" in message, "['image', 'state']" in message) == (2, True, True)
    code, message, hint = refused(
        capsys, "export", tmp_path / "m.tflite", "--from", eyes_files["h5"], "--env", "OptionsEyes-v0",
        "--output", "q_values=first",
    )  # fmt: skip
    assert (code, "--input NAME=KEY" in hint) == (22, True)
    assert not list(tmp_path.iterdir())


def stacked_model(shape):
    keras = layers()
    frames = keras.Input(shape, name="frames")
    flat = keras.layers.Flatten()(frames) if len(shape) > 1 else frames
    return keras.Model(frames, keras.layers.Dense(2)(keras.layers.Dense(16, activation="tanh")(flat)))


@pytest.mark.parametrize(
    ("shape", "axis", "fill"), [((12,), 0, "zeros"), ((3, 4), 0, "first"), ((4, 3), 1, "0.25"), ((12,), 0, "")]
)
def test_stacked_frames_are_stacked_as_the_network_saw_them(capsys, tmp_path, shape, axis, fill):
    network, source, model = stacked_model(shape), tmp_path / "frames.h5", tmp_path / "m.tflite"
    with pytest.warns(UserWarning, match="HDF5"):
        network.save(source)
    extra = ("--stack-fill", fill) if fill else ()
    words = ("--from", source, "--env", "CartPole-v1", "--stack", 3, *extra, "--episodes", 0, "--steps", 64)
    code, told = run(capsys, "export", model, *words, "--scheme", "float32")
    assert code == 0, told
    policy = Policy.load(read_policy_path(model))
    spec = policy.contract.observations[0]
    fills = {"zeros": (0.0,), "0.25": (0.25,)}
    assert (spec.shape, spec.stack, spec.stack_fill) == ((4,), 3, fills.get(fill))
    rng = np.random.default_rng(2)
    frames = rng.normal(size=(ROWS, 4)).astype(np.float32) * 2
    before = frames[0] if fill in ("", "first") else np.full(4, fills[fill][0], np.float32)
    history = [before, before, *frames]
    policy.begin_episode()
    for step, frame in enumerate(frames):
        stack = np.stack(history[step : step + 3], axis=axis).reshape(1, *shape)
        assert policy.act(frame) == network(stack).numpy().argmax(), step


def test_a_stack_is_also_judged_by_playing_in_int8(capsys, tmp_path):
    source, model = tmp_path / "frames.h5", tmp_path / "m.tflite"
    with pytest.warns(UserWarning, match="HDF5"):
        stacked_model((3, 4)).save(source)
    words = ("--from", source, "--env", "CartPole-v1", "--stack", "observation=3", "--episodes", 10, "--steps", 400)
    code, told = run(capsys, "export", model, *words, "--force")
    assert code == 0, told
    assert {check["code"]: check["passed"] for check in told["checks"]}["Q09"]
    assert "verdict" in next(check for check in told["checks"] if check["code"] == "Q13")["detail"]


@pytest.mark.parametrize(
    ("shape", "words", "code", "says"),
    [
        ((12,), (), 22, "--stack observation=3"),
        ((12,), ("--stack", 5), 22, "--stack observation=3"),
        ((16,), ("--stack", "state=4"), 2, "--stack KEY=K"),
        ((4, 4), ("--stack", 4), 22, "frame behind frame"),
        ((12,), ("--stack", 17), 2, ""),
        ((12,), ("--stack-fill", "zeros"), 2, "--stack K"),
        ((12,), ("--stack", 3, "--signature", "act"), 2, "leave --signature out"),
    ],
)
def test_stacks_that_do_not_fit_say_what_would(capsys, tmp_path, shape, words, code, says):
    source = tmp_path / "frames.h5"
    with pytest.warns(UserWarning, match="HDF5"):
        stacked_model(shape).save(source)
    found, message, hint = refused(
        capsys, "export", tmp_path / "m.tflite", "--from", source, "--env", "CartPole-v1", *words
    )
    assert found == code, message
    assert says in (hint or "")
    assert not (tmp_path / "m.tflite").exists()


def test_one_of_several_signatures(capsys, tmp_path):
    from quarl_export.keras2 import tf
    from quarl_export.silence import without_tensorflow_noise

    class Agent(tf.Module):
        def __init__(self):
            super().__init__()
            self.kernel = tf.Variable(np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32))

        @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="seen")])
        def act(self, seen):
            return {"q": tf.matmul(seen, self.kernel), "v": tf.matmul(seen, self.kernel[:, :1])}

        @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="seen")])
        def learn(self, seen):
            return {"loss": tf.reduce_sum(seen, axis=1, keepdims=True)}

    agent, source, model = Agent(), tmp_path / "agent", tmp_path / "m.tflite"
    with without_tensorflow_noise():
        tf.saved_model.save(agent, str(source), signatures={"act": agent.act, "learn": agent.learn})
    code, message, hint = refused(capsys, "export", model, "--from", source)
    assert (code, "['act', 'learn']" in message, hint) == (2, True, "say which one acts: --signature NAME")
    code, message, _ = refused(capsys, "export", model, "--from", source, "--signature", "play")
    assert (code, "['act', 'learn']" in message) == (2, True)
    words = ("--from", source, "--signature", "act", "--output", "q_values=q", "--scheme", "float32")
    code, told = run(capsys, "export", model, *words)
    assert code == 0, told
    policy, rows = Policy.load(read_policy_path(model)), np.random.default_rng(1).normal(size=(ROWS, 4))
    wanted = (rows @ agent.kernel.numpy()).argmax(axis=1)
    np.testing.assert_array_equal([policy.act(row.astype(np.float32)) for row in rows], wanted)


def test_inspect_takes_the_same_words(capsys, eyes_files):
    words = ("--input", "camera=image", "--input", "joints=state", "--output", "logits=first", "--stack", "joints=1")
    code, message, _ = refused(capsys, "inspect", eyes_files["h5"], *words)
    assert (code, "['joints']" in message) == (2, True)
    code, told = run(capsys, "inspect", eyes_files["h5"], *words[:-1], "state=3")
    assert code == 0
    assert (told["head"], told["actions"]) == ("logits", 3)
    assert {spec["key"]: (spec["shape"], spec["stack"]) for spec in told["observations"]} == {
        "image": ([6, 6, 1], 1),
        "state": ([1], 3),
    }


def test_action_units_and_squash_reach_the_contract(capsys, tmp_path):
    keras = layers()
    observation = keras.Input((3,), name="observation")
    body = keras.layers.Dense(8, activation="relu")(observation)
    source, model = tmp_path / "actor.h5", tmp_path / "m.tflite"
    with pytest.warns(UserWarning, match="HDF5"):
        keras.Model(observation, keras.layers.Dense(1, activation="tanh")(body)).save(source)
    for units, scale in (("unit", 2.0), ("environment", 1.0)):
        words = ("--from", source, "--env", "Pendulum-v1", "--action-units", units, "--scheme", "float32")
        assert run(capsys, "export", model, *words, "--episodes", 0, "--steps", 32)[0] == 0
        assert read_policy_path(model).contract.action.scale == (scale,)
    heads = [keras.layers.Dense(1, name=name)(body) for name in ("mu", "spread")]
    with pytest.warns(UserWarning, match="HDF5"):
        keras.Model(observation, heads).save(source)
    words = ("--output", "mean=mu", "--output", "log_std=spread", "--squash", "tanh", "--scheme", "float32")
    code, told = run(capsys, "export", model, "--from", source, "--env", "Pendulum-v1", *words, "--episodes", 0)
    assert code == 0, told
    contract = read_policy_path(model).contract
    assert (contract.head.kind, contract.head.squash, contract.action.scale) == ("gaussian", "tanh", (2.0,))


def test_options_that_a_source_has_no_use_for_are_refused_not_ignored(capsys, tmp_path):
    from pathlib import Path

    data, out = Path(__file__).parents[1] / "data", tmp_path / "m.tflite"
    agent = data / "sb3" / "dqn_cartpole.zip"
    for words in (("--head", "q_values"), ("--input", "a=b"), ("--action-units", "unit"), ("--signature", "x")):
        code, message, hint = refused(capsys, "export", out, "--from", agent, *words)
        assert (code, words[0] in message, hint) == (2, True, f"leave {words[0]} out")
    code, message, hint = refused(capsys, "export", out, "--from", agent, "--env", "CartPole-v1", "--stack", 2)
    assert (code, "stacks of 1 of" in message, "leave --stack out" in hint) == (2, True, True)
    code, message, hint = refused(capsys, "inspect", data / "cartpole.tflite", "--stack", 2)
    assert (code, "--layers" in hint) == (2, True)


def test_words_are_read_or_refused():
    assert read_pairs("--input", ["a=b", "c=d=e"], "NAME=KEY") == {"a": "b", "c": "d=e"}
    assert read_pairs("--input", None, "NAME=KEY") == {}
    assert (read_stack(None), read_stack(["4"]), read_stack(["a=2", "b=3"])) == (1, 4, {"a": 2, "b": 3})
    assert [read_stack_fill(word) for word in ("", "first", "zeros", "-1.5")] == [None, "first", 0.0, -1.5]
    for bad in (["a"], ["=b"], ["a="], ["a=b", "a=c"]):
        with pytest.raises(UsageError, match="--input"):
            read_pairs("--input", bad, "NAME=KEY")
    for bad in (["four"], ["2", "a=3"], ["a=x"], ["2", "3"]):
        with pytest.raises(UsageError, match="--stack"):
            read_stack(bad)
    for bad in ("nan", "inf", "-1e999"):
        with pytest.raises(UsageError, match="not a finite number"):
            SourceWishes(stack=2, stack_fill=read_stack_fill(bad)).options()


def readable(read, *words):
    try:
        read(*words)
    except UsageError:
        return False
    return True


@given(st.lists(st.text(max_size=8), max_size=4), st.text(max_size=8))
def test_any_words_are_read_or_a_usage_error(words, fill):
    pairs = [word.partition("=") for word in words]
    well = all(name and value for name, _, value in pairs) and len({name for name, _, _ in pairs}) == len(pairs)
    assert readable(read_pairs, "--output", words, "ROLE=NAME") == well
    readable(read_stack, words)
    readable(read_stack_fill, fill)
