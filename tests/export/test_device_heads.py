"""What the converter writes today is what the device acts with: every scheme, against the network it was made of."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from quarl_device.flatbuffer import read_graph
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy, read_policy_path

DATA = Path(__file__).parent.parent / "data"
# Largest difference of the softmax output to Keras; an int8 softmax has steps of 1/256, and 8-bit weights err too.
TOLERANCE = {"float32": 1e-5, "float16": 5e-3, "dynamic": 0.02, "int8": 0.08, "int16x8": 0.05}


@pytest.fixture(scope="module")
def makers():
    """The script that makes the device's files, as a module."""
    sys.path.insert(0, str(DATA))
    try:
        yield importlib.import_module("make_heads")
    finally:
        sys.path.remove(str(DATA))


@pytest.mark.filterwarnings("ignore:Statistics for quantized inputs")
@pytest.mark.parametrize("scheme", TOLERANCE)
def test_every_scheme_acts_as_its_network(makers, scheme):
    policy = Policy.load(read_policy(makers.operators(scheme)), batch_size=64)
    samples = makers.operator_samples()
    keras = makers.every_operator(elu=scheme != "int16x8")
    wanted = keras([samples["a_image"], samples["b_vector"]]).numpy()
    found = np.concatenate(
        [
            policy.model.infer(image[None], vector[None])
            for image, vector in zip(samples["a_image"], samples["b_vector"], strict=True)
        ]
    )
    assert np.abs(found - wanted).max() < TOLERANCE[scheme]
    actions = policy.act_batch({"image": samples["a_image"], "vector": samples["b_vector"]})
    assert actions.tolist() == found.argmax(axis=1).tolist()
    assert len(set(actions.tolist())) > 1
    assert np.mean(actions == wanted.argmax(axis=1)) > 0.9


@pytest.mark.filterwarnings("ignore:Statistics for quantized inputs")
def test_integer_inputs_act_as_their_network(makers):
    """Image and vector by key, normalised and quantized on the device, uint8 in and out."""
    file = read_policy(makers.dict_logits())
    committed = read_policy_path(DATA / "dict_logits.tflite")
    assert file.contract == committed.contract
    assert [o.name for o in read_graph(file.data).operators] == [o.name for o in committed.graph.operators]
    assert Policy.load(file, golden=committed.golden)
