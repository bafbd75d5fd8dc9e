"""Float TFLite files and signatures of SavedModels, read back into a graph and compared with the runtime's outputs."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from policy_factory import mlp
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.trackable.resource import TrackableResource

from quarl_device.contract import ActionSpec, Head, Normalizer, ObservationSpec, PolicyContract
from quarl_device.errors import ModelFileError, UnsafeSource, UnsupportedModel, UsageError
from quarl_device.flatbuffer import read_graph
from quarl_device.policy_file import METADATA_NAME, GoldenVectors, encode_metadata
from quarl_device.runtime import find_runtime
from quarl_export.importers import ImportOptions, import_policy
from quarl_export.importers.builder import Builder
from quarl_export.importers.saved_graph import check_saved_graph
from quarl_export.importers.tflite_float import import_tflite
from quarl_export.importers.tflite_operators import lower_operators
from quarl_export.ir import run_reference
from quarl_export.keras2 import keras, tf
from quarl_export.pipeline import ExportOptions, build_file
from quarl_export.schemes import SchemeOptions
from quarl_export.silence import without_tensorflow_noise

layers = keras.layers
DATA = Path(__file__).parents[1] / "data"


def converted(model):
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    with without_tensorflow_noise():
        return converter.convert()


def randomized(model, seed=0):
    rng = np.random.default_rng(seed)
    model.set_weights([
        rng.uniform(0.3, 2, w.shape) if "variance" in v.name else rng.normal(0, 0.4, w.shape)
        for v, w in zip(model.weights, model.get_weights(), strict=True)
    ])  # fmt: skip
    return model


def kinds(policy):
    return [layer.kind for layer in policy.graph.layers]


@pytest.fixture(scope="module")
def everything():
    """Every operator that is read, in one file, and the model it was made of."""
    image, vector = layers.Input((12, 12, 2), name="image"), layers.Input((3,), name="vector")
    x = layers.Rescaling(1 / 255)(image)
    x = layers.Conv2D(4, 3, strides=(2, 1), padding="same", activation="relu")(x)
    x = layers.BatchNormalization()(x)
    x = layers.DepthwiseConv2D(3, depth_multiplier=2, activation="relu6")(x)
    x = layers.AveragePooling2D(2, strides=1, padding="same")(layers.MaxPooling2D(2)(x))
    flat, pooled = layers.Flatten()(x), layers.GlobalAveragePooling2D()(x)
    y = layers.Normalization(mean=[1.0, 20.0, -3.0], variance=[4.0, 9.0, 0.01])(vector)
    y = layers.Dense(8, activation="tanh")(y)
    joint = layers.Concatenate()([flat, layers.Multiply()([pooled, y])])
    body = layers.Activation("sigmoid")(layers.Dense(6)(joint))
    advantage, value = layers.Dense(3)(body), layers.Dense(1)(body)
    q = layers.Add(name="q_values")(
        [layers.Subtract()([advantage, tf.reduce_mean(advantage, 1, keepdims=True)]), value]
    )
    model = randomized(keras.Model([image, vector], [q, layers.Dense(1, name="other")(joint)]))
    return model, converted(model)


def test_every_operator_is_read_and_equals_the_model(everything, tmp_path):
    model, data = everything
    path = tmp_path / "policy.bin"
    path.write_bytes(data)
    policy = import_policy(path)
    rng = np.random.default_rng(1)
    rows = {
        "image": rng.uniform(0, 255, (5, 12, 12, 2)).astype(np.float32),
        "vector": rng.normal([1, 20, -3], 2, (5, 3)).astype(np.float32),
    }
    expected = model([rows["image"], rows["vector"]])[0].numpy()
    np.testing.assert_allclose(run_reference(policy, rows)["q_values"], expected, rtol=1e-4, atol=1e-4)
    pools = {"max_pool2d", "average_pool2d", "global_average_pool2d", "mean"}
    merges = {"add", "subtract", "multiply", "concatenate", "flatten"}
    activations = {"relu", "relu6", "tanh", "sigmoid"}
    assert {"conv2d", "depthwise_conv2d", "dense"} | pools | merges | activations <= set(kinds(policy))
    assert policy.contract.head.kind == "q_values"


def test_leading_constants_become_a_normaliser_for_their_key(everything):
    policy = import_tflite(everything[1], options=ImportOptions())
    normalizer = policy.contract.normalizer
    # The converter has multiplied the image's 1/255 into the convolution behind it.
    assert set(normalizer.scale) == {"vector"}
    np.testing.assert_allclose(normalizer.offset["vector"], [1, 20, -3], rtol=1e-5)
    np.testing.assert_allclose(normalizer.scale["vector"], [0.5, 1 / 3, 10], rtol=1e-5)


def test_inputs_have_the_names_of_the_signature(everything):
    policy = import_tflite(everything[1], options=ImportOptions())
    assert [item.key for item in policy.graph.inputs] == ["image", "vector"]


def test_a_last_softmax_is_left_to_the_device():
    model = randomized(keras.Sequential([layers.Input((3,)), layers.Dense(4), layers.Softmax()]))
    policy = import_tflite(converted(model), options=ImportOptions())
    assert policy.contract.head.kind == "logits"
    assert kinds(policy) == ["dense"]


def test_a_quantized_file_is_refused():
    with pytest.raises(UnsupportedModel, match="quantized"):
        import_policy(DATA / "cartpole.tflite")


@pytest.mark.parametrize("scheme", ["float32", "float16"])
@pytest.mark.parametrize("clip", [1.0, 0.75])
def test_our_own_file_comes_back_with_its_clip(scheme, clip):
    offset, scale = {"observation": (0.5, -1.0, 2.0, 0.0)}, {"observation": (2.0, 0.25, 1.0, 0.5)}
    policy = mlp(normalizer=Normalizer(where="graph", offset=offset, scale=scale, clip=clip))
    file = build_file(policy, ExportOptions(scheme=SchemeOptions(scheme=scheme))).file
    back = import_tflite(file.data, options=ImportOptions())
    assert back.contract.normalizer.clip == clip
    far = {"observation": np.random.default_rng(0).normal(0, 8, (64, 4)).astype(np.float32)}
    tolerance = {"float32": 1e-5, "float16": 0.02}[scheme]
    for role, expected in run_reference(policy, far).items():
        np.testing.assert_allclose(run_reference(back, far)[role], expected, atol=tolerance)
        free = dataclasses.replace(back.contract, normalizer=dataclasses.replace(back.contract.normalizer, clip=0.0))
        assert np.abs(run_reference(dataclasses.replace(back, contract=free), far)[role] - expected).max() > 0.1


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: tf.minimum(tf.maximum(x, -1.0), 2.0),
        lambda x: tf.maximum(x, -1.0),
        lambda x: tf.concat([x, tf.minimum(tf.maximum(x, -2.0), 2.0)], -1),
        lambda x: tf.minimum(tf.maximum(tf.tanh(x), -0.5), 0.5),
        lambda x: tf.minimum(tf.maximum(x, [-1.0, -2.0, -1.0]), 2.0),
    ],
    ids=["uneven", "one side", "read uncut", "not an input", "per element"],
)
def test_clipping_that_no_normaliser_does_is_refused(cut):
    kernel = tf.constant(np.random.default_rng(0).normal(size=(3, 2)), tf.float32)

    @tf.function(input_signature=[tf.TensorSpec((1, 3), tf.float32)])
    def network(x):
        cut_rows = cut((x - 1.0) * 0.5)
        wide = kernel if cut_rows.shape[1] == 3 else tf.concat([kernel, kernel], 0)
        return {"out": tf.tanh(tf.matmul(cut_rows, wide))}

    converter = tf.lite.TFLiteConverter.from_concrete_functions([network.get_concrete_function()])
    with without_tensorflow_noise():
        data = converter.convert()
    with pytest.raises(UnsupportedModel, match=r"not read here|no normaliser"):
        import_tflite(data, options=ImportOptions(head="action"))


def test_a_scaling_behind_a_clip_is_refused():
    builder = Builder({"x": (3,)})
    cut = builder.affine("n", "x", 2.0, 1.0)
    assert builder.cut(cut, low=-1.0, high=1.0)
    assert builder.draft({"out": cut}).clips == {"x": 1.0}
    with pytest.raises(UnsupportedModel, match="no normaliser"):
        builder.draft({"out": builder.affine("again", cut, 3.0, 0.0)})
    assert not builder.cut(builder.activation("t", cut, "tanh"), low=-1.0)


def test_an_operator_that_is_not_read_is_named():
    model = keras.Sequential([layers.Input((3,)), layers.Dense(4), layers.LeakyReLU()])
    with pytest.raises(UnsupportedModel, match="LEAKY_RELU"):
        import_tflite(converted(model), options=ImportOptions())


def test_a_recurrent_file_is_refused_with_what_to_do(everything):
    graph = read_graph(everything[1])
    first, *others = graph.operators
    memory = dataclasses.replace(first, name="UNIDIRECTIONAL_SEQUENCE_LSTM")
    inputs = {graph.tensors[index].name: graph.tensors[index] for index in graph.inputs}
    with pytest.raises(UnsupportedModel, match=r"LSTM.*stack frames"):
        lower_operators(dataclasses.replace(graph, operators=(memory, *others)), inputs=inputs, outputs={})


@pytest.mark.parametrize("keep", [0, 8, 64, 700, -4])
def test_a_damaged_file_is_refused(everything, tmp_path, keep):
    path = tmp_path / "short.tflite"
    path.write_bytes(everything[1][:keep])
    with pytest.raises(ModelFileError):
        import_policy(path)


def test_flipped_bytes_are_an_error_of_ours_or_another_policy(everything):
    """Nothing of a foreign file reaches the interpreter before it was checked."""
    from quarl_device.errors import QuarlError

    data = everything[1]
    rng = np.random.default_rng(2)
    structure = len(data) - 2000
    for position in rng.integers(structure, len(data), 40):
        changed = bytearray(data)
        changed[position] ^= 1 << rng.integers(8)
        try:
            import_tflite(bytes(changed), options=ImportOptions(head="q_values"))
        except QuarlError:
            continue


def test_a_policy_file_of_ours_brings_its_contract_along():
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    normalization = layers.Normalization(mean=[1.0] * 4, variance=[0.25] * 4)
    model = randomized(keras.Sequential([layers.Input((4,)), normalization, layers.Dense(2)]))
    data = converted(model)
    graph = read_graph(data)
    names = [graph.tensors[indices[0]].name for indices in (graph.inputs, graph.outputs)]
    contract = PolicyContract(
        env_id="CartPole-v1", algorithm="dqn", scheme="float32",
        observations=(ObservationSpec(key="state", shape=(4,), tensor=names[0]),),
        head=Head(kind="q_values", outputs={"q_values": names[1]}), action=ActionSpec(kind="discrete", n=2, start=3),
        normalizer=Normalizer(where="graph", offset={"state": (1.0,) * 4}, scale={"state": (2.0,) * 4}),
    )  # fmt: skip
    golden = GoldenVectors(observations={"state": np.zeros((1, 4), np.float32)})
    unpacked = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(data, 0))
    entry, buffer = schema.MetadataT(), schema.BufferT()
    entry.name, entry.buffer = METADATA_NAME, len(unpacked.buffers)
    buffer.data = list(encode_metadata(contract, golden, {}))
    unpacked.buffers.append(buffer)
    unpacked.metadata = [*(unpacked.metadata or []), entry]
    builder = flatbuffers.Builder(0)
    builder.Finish(unpacked.Pack(builder), b"TFL3")
    policy = import_tflite(bytes(builder.Output()), options=ImportOptions())
    assert [spec.key for spec in policy.contract.observations] == ["state"]
    assert (policy.contract.env_id, policy.contract.action.start) == ("CartPole-v1", 3)
    assert policy.contract.normalizer == contract.normalizer


# Signatures


class Agent(tf.Module):
    """As TF-Agents' PolicySaver writes it: one function acts, others do other things."""

    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))
        self.steps = tf.Variable(3, dtype=tf.int64)

    def act(self, observation):
        return {"logits": tf.nn.relu(observation) @ self.kernel}


def saved(path, *, names=("action", "get_initial_state", "get_train_step"), act=None):
    agent = Agent()

    def initial(batch):
        return {"state": tf.zeros((batch, 2))}

    functions = {
        "action": (act or agent.act, [tf.TensorSpec((1, 4), tf.float32, name="observation")]),
        "get_initial_state": (initial, [tf.TensorSpec((), tf.int32, name="batch")]),
        "get_train_step": (lambda: {"step": agent.steps + 1}, []),
        "about": (lambda: {"step": agent.steps + 2}, []),
    }
    agent.functions = [tf.function(functions[name][0], input_signature=functions[name][1]) for name in names]
    with without_tensorflow_noise():
        tf.saved_model.save(agent, str(path), signatures=dict(zip(names, agent.functions, strict=True)))
    return path, agent


def test_row_19_of_several_functions_the_acting_one_is_exported(tmp_path):
    path, agent = saved(tmp_path / "agent", names=("about", "action", "get_train_step"))
    policy = import_policy(path)
    rows = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    expected = np.maximum(rows, 0) @ agent.kernel.numpy()
    np.testing.assert_allclose(run_reference(policy, {"observation": rows})["logits"], expected, rtol=1e-5, atol=1e-5)
    assert policy.provenance["source"] == "SavedModel signature action"


def test_a_signature_that_is_not_there_is_refused(tmp_path):
    path, _ = saved(tmp_path / "agent")
    with pytest.raises(UsageError, match=r"no signature 'play'.*get_train_step"):
        import_policy(path, options=ImportOptions(signature="play"))


def test_several_signatures_without_a_usual_name_must_be_chosen_from(tmp_path):
    path, _ = saved(tmp_path / "agent", names=("get_initial_state", "get_train_step"))
    with pytest.raises(UsageError, match="say which one acts"):
        import_policy(path)


def test_a_signature_that_reads_a_file_is_refused_before_it_is_loaded(tmp_path):
    def act(observation):
        text = tf.io.read_file("/etc/hostname")
        return {"logits": observation + tf.cast(tf.strings.length(text), tf.float32)}

    path, _ = saved(tmp_path / "agent", names=("action",), act=act)
    with pytest.raises(UnsafeSource, match="ReadFile"):
        import_policy(path)


class Resource(TrackableResource):
    """Writes a file when a loader initializes it; no signature reaches it."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def _create_resource(self):
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(), shared_name="harm", container="")

    def _initialize(self):
        tf.io.write_file(self.path, "harm")

    def _destroy_resource(self):
        pass


def edited(path, change):
    """Change the meta graph of a SavedModel."""
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((path / "saved_model.pb").read_bytes())
    change(model.meta_graphs[0])
    (path / "saved_model.pb").write_bytes(model.SerializeToString())


def test_an_initializer_that_no_signature_reaches_is_refused_and_does_not_run(tmp_path):
    harm = tmp_path / "harm"
    agent = Agent()
    agent.table = Resource(str(harm))
    agent.action = tf.function(agent.act, input_signature=[tf.TensorSpec((1, 4), tf.float32, name="observation")])
    with without_tensorflow_noise():
        tf.saved_model.save(agent, str(tmp_path / "agent"), signatures={"action": agent.action})
    harm.unlink(missing_ok=True)
    with pytest.raises(UnsafeSource) as caught:
        import_policy(tmp_path / "agent")
    assert caught.value.code == 18
    assert not harm.exists()


def as_plain_object(graph):
    for node in graph.object_graph_def.nodes:
        if node.WhichOneof("kind") == "resource":
            node.user_object.identifier = "_generic_user_object"


def without_initializers(graph):
    as_plain_object(graph)
    graph.collection_def.clear()
    del graph.signature_def["__saved_model_init_op"]
    for node in graph.object_graph_def.nodes:
        for child in node.children:
            child.local_name = child.local_name.strip("_")


@pytest.mark.parametrize(
    ("change", "said"), [(as_plain_object, "_initialize|_create"), (without_initializers, "operator WriteFile")]
)
def test_the_initializer_is_refused_under_any_name(tmp_path, change, said):
    agent = Agent()
    agent.table = Resource(str(tmp_path / "harm"))
    agent.action = tf.function(agent.act, input_signature=[tf.TensorSpec((1, 4), tf.float32, name="observation")])
    with without_tensorflow_noise():
        tf.saved_model.save(agent, str(tmp_path / "agent"), signatures={"action": agent.action})
    edited(tmp_path / "agent", change)
    with pytest.raises(UnsafeSource, match=said):
        import_policy(tmp_path / "agent")


def an_init_operator(graph):
    graph.collection_def["saved_model_main_op"].node_list.value[:] = [graph.saver_def.save_tensor_name.split(":")[0]]


def a_legacy_init_operator(graph):
    graph.collection_def["legacy_init_op"].node_list.value.append(graph.saver_def.restore_op_name)


def an_asset(graph):
    graph.asset_file_def.add().filename = "words.txt"


def a_node_that_writes(graph):
    graph.graph_def.node.add(name="x", op="WriteFile")


def a_restore_that_saves(graph):
    graph.saver_def.restore_op_name = graph.saver_def.save_tensor_name.split(":")[0]


def a_restore_of_another_file(graph):
    for function in graph.graph_def.library.function:
        for node in function.node_def:
            if node.op == "RestoreV2":
                node.input[0] = "elsewhere:output:0"


def a_function_that_restores(graph):
    function = next(f for f in graph.graph_def.library.function if "signature_wrapper" in f.signature.name)
    function.node_def.add(name="x", op="RestoreV2")


def a_call_of_the_saver(graph):
    function = next(f for f in graph.graph_def.library.function if "signature_wrapper" in f.signature.name)
    saver = next(f for f in graph.graph_def.library.function if "traced_save" in f.signature.name)
    function.node_def.add(name="x", op="PartitionedCall").attr["f"].func.name = saver.signature.name


def an_operator_called_as_a_function(graph):
    graph.graph_def.node.add(name="x", op="PartitionedCall").attr["f"].func.name = "WriteFile"


def a_function_with_an_operators_name(graph):
    graph.graph_def.library.function.add().signature.name = "WriteFile"
    graph.graph_def.node.add(name="x", op="WriteFile")


def an_object_that_restores_itself(graph):
    graph.object_graph_def.nodes[0].saveable_objects["x"].restore_function = 1


@pytest.mark.parametrize(
    "change",
    [
        an_init_operator,
        a_legacy_init_operator,
        an_asset,
        a_node_that_writes,
        a_restore_that_saves,
        a_restore_of_another_file,
        a_function_that_restores,
        a_call_of_the_saver,
        an_operator_called_as_a_function,
        a_function_with_an_operators_name,
        an_object_that_restores_itself,
    ],
)
def test_what_the_loader_would_run_is_refused(tmp_path, change):
    path, _ = saved(tmp_path / "agent", names=("action",))
    edited(path, change)
    with pytest.raises(UnsafeSource):
        import_policy(path)


def test_a_model_without_objects_is_refused(tmp_path):
    path, _ = saved(tmp_path / "agent", names=("action",))
    edited(path, lambda graph: graph.ClearField("object_graph_def"))
    with pytest.raises(UnsupportedModel, match="TensorFlow 1"):
        import_policy(path)


def test_the_function_that_saves_is_not_handed_to_the_loader(tmp_path):
    path, _ = saved(tmp_path / "agent", names=("action",))

    def check(graph):
        check_saved_graph(graph, what="it")
        library = {function.signature.name for function in graph.graph_def.library.function}
        assert not any("traced_save" in name for name in library)
        assert any("traced_restore" in name for name in library)

    edited(path, check)


def test_a_keras_model_inside_a_module_passes(tmp_path):
    """As Keras's `export` and TF-Agents write them: its layers' own functions, for training too, come along."""
    model = keras.Sequential([
        layers.Input((6, 6, 1)), layers.Conv2D(2, 3), layers.BatchNormalization(), layers.ReLU(), layers.Flatten(),
        layers.Dropout(0.1), layers.Dense(3),
    ])  # fmt: skip
    module = tf.Module()
    module.model = randomized(model)
    signature = [tf.TensorSpec((1, 6, 6, 1), tf.float32, name="observation")]
    module.act = tf.function(lambda observation: {"logits": model(observation, training=False)}, signature)
    with without_tensorflow_noise():
        tf.saved_model.save(module, str(tmp_path / "agent"), signatures={"action": module.act})
    assert import_policy(tmp_path / "agent").contract.head.kind == "logits"


def test_a_damaged_saved_model_is_refused(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"\xff" * 30)
    with pytest.raises(ModelFileError, match="damaged"):
        import_policy(tmp_path)


def test_the_runtime_was_there():
    """All of the above compares with it; a machine without one must not look as if it had."""
    assert find_runtime().name
