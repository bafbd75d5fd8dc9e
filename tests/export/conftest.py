"""One TensorFlow thread, and the few conversions that many tests share."""

from __future__ import annotations

import numpy as np
import pytest
from export_factory import make_contract, make_spec, observations

from quarl_export.keras2 import tf
from quarl_export.networks import NetworkSpec
from quarl_export.patcher import Patcher
from quarl_export.qat import QatPolicy
from quarl_export.qat_template import QatTemplate

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


@pytest.fixture(scope="session")
def spec() -> NetworkSpec:
    return make_spec(hidden=(16, 12))


@pytest.fixture(scope="session")
def patcher(spec: NetworkSpec) -> Patcher:
    return Patcher.build(spec)


@pytest.fixture
def policy(spec: NetworkSpec) -> QatPolicy:
    """A calibrated policy with a normaliser; each test may change its own."""
    policy = QatPolicy(spec, seed=5, normalize=True)
    policy.set_normalizer(np.linspace(-0.4, 0.4, 4), np.linspace(0.5, 2.0, 4))
    policy.calibrate(observations(64))
    return policy


@pytest.fixture(scope="session")
def template(spec: NetworkSpec) -> QatTemplate:
    policy = QatPolicy(spec, seed=5, normalize=True)
    policy.calibrate(observations(64))
    return QatTemplate.from_model(policy, make_contract(spec), observations(8))
