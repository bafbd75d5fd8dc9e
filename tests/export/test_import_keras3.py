"""Keras 3 archives, read without Keras 3: equal to what Keras 3 itself answered, and nothing of theirs is run."""

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest

from quarl_device.environments import EnvSpec
from quarl_device.errors import ModelFileError, SourceMismatch, SpaceMismatch, UnsafeSource, UnsupportedModel
from quarl_export.importers import ImportOptions, detect, import_policy
from quarl_export.importers.functional import Place
from quarl_export.importers.keras3 import _WeightsFile
from quarl_export.importers.keras_config import LayerConfig
from quarl_export.ir import run_reference

HERE = Path(__file__).parents[1] / "data" / "keras3"
EXPECTED = dict(np.load(HERE / "expected.npz"))


def stored(name, part):
    prefix = f"{name}/{part}/"
    return {key.removeprefix(prefix): values for key, values in EXPECTED.items() if key.startswith(prefix)}


def rewritten(tmp_path, name="mlp", *, config=None, weights=None, drop=(), add=None):
    """A copy of an archive with its parts changed by functions."""
    with zipfile.ZipFile(HERE / f"{name}.keras") as archive:
        members = {member: archive.read(member) for member in archive.namelist() if member not in drop}
    if config:
        data = json.loads(members["config.json"])
        members["config.json"] = json.dumps(config(data) or data).encode()
    if weights:
        buffer = io.BytesIO(members["model.weights.h5"])
        with h5py.File(buffer, "r+") as file:
            weights(file)
        members["model.weights.h5"] = buffer.getvalue()
    path = tmp_path / "changed.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in {**members, **(add or {})}.items():
            archive.writestr(member, content)
    return path


@pytest.mark.parametrize("name", ["mlp", "dueling", "pixels", "layer_norm", "elu"])
def test_the_reference_answers_as_keras_3_did(name):
    policy = import_policy(HERE / f"{name}.keras")
    found = run_reference(policy, stored(name, "in"))
    for role, values in stored(name, "out").items():
        np.testing.assert_allclose(found[role], values, rtol=1e-4, atol=1e-5)
    assert policy.provenance["saved_by"].startswith("Keras 3.")
    assert policy.provenance["largest_difference"] <= 1e-4


def test_row_1_a_keras_3_file_is_read_by_its_weights():
    assert detect(HERE / "mlp.keras").kind == "keras archive"
    policy = import_policy(HERE / "mlp.keras", options=ImportOptions(env_id="CartPole-v1", algorithm="dqn"))
    assert [layer.kind for layer in policy.graph.layers] == ["dense", "relu", "dense"]
    assert policy.contract.env_id == "CartPole-v1"
    assert policy.contract.action.n == 2
    assert policy.contract.algorithm == "dqn"


class Parts(gymnasium.Env):
    """Observes a Dict of four numbers, or of other things."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, **sizes):
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict({key: box(-9.0, 9.0, (n,)) for key, n in sizes.items()})


gymnasium.register("QuarlParts-v0", entry_point=Parts)


@pytest.mark.parametrize(("sizes", "key"), [({"z": 1, "a": 3}, "observation"), ({"joint": 4}, "joint")])
def test_a_model_of_one_vector_sees_a_dict_flattened_and_the_file_names_no_module(sizes, key):
    options = ImportOptions(env_id=f"{__name__}:QuarlParts-v0", env_kwargs=sizes)
    contract = import_policy(HERE / "mlp.keras", options=options).contract
    assert [(spec.key, spec.shape) for spec in contract.observations] == [(key, (4,))]
    assert contract.env_id == "QuarlParts-v0"
    # What plays the file knows it by the same rule.
    assert EnvSpec.seen_as(contract.observations, contract.env_id).flat == (key == "observation")


def test_a_dict_of_another_size_is_refused():
    options = ImportOptions(env_id="QuarlParts-v0", env_kwargs={"z": 2, "a": 3})
    with pytest.raises(SpaceMismatch):
        import_policy(HERE / "mlp.keras", options=options)


def test_a_file_is_refused_before_keras_or_tensorflow_is_imported():
    script = (
        "import sys; from quarl_export.importers import import_policy\n"
        f"try: import_policy({str(HERE / 'lambda.keras')!r})\n"
        "except Exception as error: print(error.code, sorted({'keras', 'tf_keras', 'tensorflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "18 []"


def test_dict_observations_and_a_gaussian_head():
    policy = import_policy(HERE / "pixels.keras")
    assert [(spec.key, spec.dtype, spec.shape) for spec in policy.contract.observations] == [
        ("image", "uint8", (16, 16, 3)),
        ("vector", "float32", (2,)),
    ]
    assert policy.contract.head.kind == "gaussian"
    assert set(policy.contract.normalizer.scale) == {"image", "vector"}
    np.testing.assert_allclose(policy.contract.normalizer.offset["vector"], [1, -2], rtol=1e-6)


def test_a_dueling_head_and_a_layer_called_twice():
    policy = import_policy(HERE / "dueling.keras")
    names = [layer.name for layer in policy.graph.layers]
    assert {"twice", "twice_1", "body_first"} <= set(names)
    assert len(policy.contract.normalizer.offset["observation"]) == 6


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("lambda", UnsafeSource, "'double' is a Lambda"),
        ("recurrent", UnsupportedModel, r"'memory'.*stack frames"),
        ("subclass", UnsupportedModel, r"subclass.*keras\.Model"),
        ("swish", UnsupportedModel, r"silu|swish"),
    ],
)
def test_what_cannot_be_exported_is_refused_by_name(name, error, message):
    with pytest.raises(error, match=message):
        import_policy(HERE / f"{name}.keras")


def test_an_environment_that_does_not_fit_is_refused():
    with pytest.raises(SpaceMismatch, match=r"shape \(4,\).*\(6,\)"):
        import_policy(HERE / "mlp.keras", options=ImportOptions(env_id="Acrobot-v1"))


# Hostile and damaged archives


@pytest.mark.parametrize("keep", [4, 100, 1000])
def test_a_truncated_archive_is_refused(tmp_path, keep):
    path = tmp_path / "short.keras"
    path.write_bytes((HERE / "mlp.keras").read_bytes()[:keep])
    with pytest.raises(ModelFileError):
        import_policy(path)


def test_an_archive_without_weights_is_refused(tmp_path):
    with pytest.raises(ModelFileError, match=r"no model\.weights\.h5"):
        import_policy(rewritten(tmp_path, drop=("model.weights.h5",)))


def test_a_layer_without_its_weights_is_refused_by_name(tmp_path):
    def remove(file):
        del file["layers/dense_1"]

    with pytest.raises(ModelFileError, match=r"'q_values' \(Dense\) does not hold: .*0 weights"):
        import_policy(rewritten(tmp_path, weights=remove))


def test_weights_of_another_shape_are_refused_by_name(tmp_path):
    def widen(file):
        del file["layers/dense/vars/0"]
        file["layers/dense/vars/0"] = np.zeros((5, 16), np.float32)

    with pytest.raises(Exception, match=r"'hidden' \(dense\).*kernel") as caught:
        import_policy(rewritten(tmp_path, weights=widen))
    assert type(caught.value).__module__ == "quarl_device.errors"


def test_settings_that_say_more_than_the_weights_are_refused_by_name(tmp_path):
    def widen(data):
        data["config"]["layers"][1]["config"]["units"] = 2**40

    with pytest.raises(ModelFileError, match=r"'hidden' \(Dense\).*units"):
        import_policy(rewritten(tmp_path, config=widen))


def test_weights_behind_a_link_are_refused(tmp_path):
    def link(file):
        del file["layers/dense/vars/0"]
        file["layers/dense/vars/0"] = h5py.ExternalLink("/etc/shadow", "/x")

    with pytest.raises(UnsafeSource, match="link"):
        import_policy(rewritten(tmp_path, weights=link))


def test_weights_that_unfold_beyond_the_cap_are_refused(tmp_path):
    def inflate(file):
        file.create_dataset("bomb", (1 << 40,), "f4", chunks=(1 << 16,), compression="gzip")

    with pytest.raises(ModelFileError, match="over its cap"):
        import_policy(rewritten(tmp_path, weights=inflate))


def test_an_array_that_is_not_stored_is_refused(tmp_path):
    def hollow(file):
        shape = file["layers/dense/vars/0"].shape
        del file["layers/dense/vars/0"]
        file["layers/dense/vars"].create_dataset("0", shape, "f4", chunks=shape)

    with pytest.raises(ModelFileError, match="stores none"):
        import_policy(rewritten(tmp_path, weights=hollow))


def test_an_array_of_many_names_is_read_once():
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file["layers/a/vars/0"] = np.ones((3, 2), np.float32)
        file["layers/b/vars/0"] = file["layers/a/vars/0"]
        weights = _WeightsFile(file)
        first, second = (
            weights.read(
                Place(path=(name,), store=(name,)), LayerConfig(name=name, class_name="Dense", config={}, calls=())
            )
            for name in "ab"
        )
    assert first[0] is second[0]


def test_a_configuration_that_unfolds_beyond_the_cap_is_refused(tmp_path):
    with pytest.raises(ModelFileError, match=r"config\.json is over its cap"):
        import_policy(rewritten(tmp_path, drop=("config.json",), add={"config.json": b" " * (20 << 20)}))


def test_a_thousand_members_are_refused(tmp_path):
    with pytest.raises(ModelFileError, match="members"):
        import_policy(rewritten(tmp_path, add={f"junk/{n}": b"" for n in range(100)}))


@pytest.mark.parametrize(
    "config",
    [
        lambda _: [1],
        lambda _: {"class_name": "Sequential"},
        lambda _: {"class_name": "Sequential", "config": {"layers": [{}]}},
        lambda _: {"class_name": "Sequential", "config": {"name": "x", "layers": []}},
        lambda data: {**data, "config": {**data["config"], "layers": data["config"]["layers"] * 400}},
        lambda data: data["config"]["layers"][1]["config"].update(activation={"class_name": ["x"]}),
        lambda data: data["config"]["layers"][0]["config"].update(batch_shape=[None, "x"]),
        lambda data: data["config"]["layers"][0]["config"].update(batch_shape=[None, -4]),
    ],
)
def test_a_configuration_that_does_not_hold_is_an_error_of_ours(tmp_path, config):
    with pytest.raises((ModelFileError, UnsupportedModel)):
        import_policy(rewritten(tmp_path, config=config))


def test_wiring_in_a_circle_is_refused(tmp_path):
    def circle(data):
        layers = {layer["name"]: layer for layer in data["config"]["layers"]}
        first = layers["value"]["inbound_nodes"][0]["args"][0]
        first["config"]["keras_history"] = ["value", 0, 0]

    with pytest.raises(UnsupportedModel, match="circle"):
        import_policy(rewritten(tmp_path, "dueling", config=circle))


def test_wiring_to_nowhere_is_refused(tmp_path):
    def lose(data):
        data["config"]["output_layers"] = ["no_such_layer", 0, 0]

    with pytest.raises(ModelFileError, match="no_such_layer"):
        import_policy(rewritten(tmp_path, "dueling", config=lose))


def test_models_nested_without_end_are_refused(tmp_path):
    def nest(data):
        for _ in range(40):
            inner = {"class_name": "Sequential", "config": {"name": "n", "layers": [data]}}
            data = inner
        return data

    with pytest.raises(UnsupportedModel, match="nested more than"):
        import_policy(rewritten(tmp_path, config=nest))


def test_a_billion_layers_in_nested_models_are_refused(tmp_path):
    with pytest.raises(UnsupportedModel, match="more than"):
        import_policy(rewritten(tmp_path, config=doubled_at_every_level))


def doubled_at_every_level(_):
    """Every level calls the model below it twice: 2**12 dense layers of a few kilobytes."""

    def call(name, node):
        tensor = {"class_name": "__keras_tensor__", "config": {"keras_history": [name, node, 0]}}
        return {"args": [tensor], "kwargs": {}}

    entry = {"class_name": "InputLayer", "name": "x", "config": {"name": "x", "batch_shape": [None, 4]}}
    below = {"class_name": "Dense", "name": "d", "config": {"name": "d", "units": 4}, "inbound_nodes": [call("x", 0)]}
    last = ["d", 0, 0]
    for level in range(12):
        ends = {"input_layers": ["x", 0, 0], "output_layers": last}
        below = {
            "class_name": "Functional",
            "name": "m",
            "config": {"name": f"level{level}", "layers": [entry, below], **ends},
            "inbound_nodes": [call("x", 0), call("m", 1)],
        }
        last = ["m", 2, 0]
    return below


def test_a_file_whose_weights_were_swapped_is_noticed_by_the_comparison(monkeypatch):
    """The comparison is not of the reading with itself: it runs Keras's layers."""
    from quarl_export.importers import keras_layers

    monkeypatch.setattr(
        keras_layers, "_dense", lambda builder, node, tensor: builder.layer(
            "dense", node.name, [tensor], kernel=node.weights[0] * 1.01, bias=node.weights[1])
    )  # fmt: skip
    monkeypatch.setitem(keras_layers._LAYERS, "Dense", keras_layers._dense)
    with pytest.raises(SourceMismatch, match="q_values"):
        import_policy(HERE / "elu.keras")


def test_flipped_bytes_in_an_archive_are_one_clear_error(tmp_path):
    data = bytearray(rewritten(tmp_path).read_bytes())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        start = archive.getinfo("config.json").header_offset + 30 + len("config.json")
    path = tmp_path / "flipped.keras"
    for at in range(start, start + 60):
        path.write_bytes(bytes([*data[:at], data[at] ^ 0xFF, *data[at + 1 :]]))
        with pytest.raises(ModelFileError):
            import_policy(path)
