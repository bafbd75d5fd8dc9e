from __future__ import annotations

import numpy as np
import pytest
from export_factory import make_contract, make_spec, observations, random_snapshot

from quarl_device.errors import ModelFileError, NonFiniteError, UsageError
from quarl_export.golden import GOLDEN_COUNT, TOLERANCE_LSB, by_key, golden_observations, input_samples, run_goldens


def test_recorded_observations_come_first_and_are_distinct():
    spec = make_spec()
    recent = np.repeat(observations(5), 20, axis=0)
    chosen = golden_observations(spec, random_snapshot(spec, seed=1), recent=recent)["observation"]
    assert chosen.shape == (GOLDEN_COUNT, 4)
    assert len(np.unique(chosen, axis=0)) == GOLDEN_COUNT
    assert {tuple(row) for row in observations(5)} <= {tuple(row) for row in chosen}


def test_many_recorded_observations_are_spread():
    spec = make_spec()
    recent = observations(500)
    chosen = golden_observations(spec, random_snapshot(spec, seed=1), recent=recent)["observation"]
    assert {tuple(row) for row in chosen} <= {tuple(row) for row in recent}
    assert chosen[0, 0] == recent[:, 0].min()
    assert chosen[-1, 0] == recent[:, 0].max()


def test_nan_observations_are_not_taken():
    spec = make_spec()
    recent = np.full((9, 4), np.nan, np.float32)
    chosen = golden_observations(spec, random_snapshot(spec, seed=1), recent=recent)["observation"]
    assert np.isfinite(chosen).all()


def test_without_recordings_they_fill_the_input_range():
    spec = make_spec()
    snapshot = random_snapshot(spec, seed=1, normalized=True)
    drawn = input_samples(spec, snapshot, count=1000, seed=0)
    normalized = (drawn - snapshot.offset) * snapshot.scale
    low, high = snapshot.ranges[0]
    assert normalized.min() >= low - 1e-4
    assert normalized.max() <= high + 1e-4
    assert normalized.max() - normalized.min() > 0.9 * (high - low)


def test_goldens_repeat_exactly_and_know_their_step(template, policy):
    model = template.patch(policy.snapshot())
    golden = run_goldens(model, template.contract, template.golden_observations)
    again = run_goldens(model, template.contract, observations(8))
    assert np.array_equal(golden.outputs["q_values"], again.outputs["q_values"])
    assert golden.outputs["q_values"].shape == (8, 2)
    low, high = policy.head_range
    assert golden.lsb["q_values"] == pytest.approx((high - low) / 255, rel=1e-6)
    assert golden.tolerance_lsb == TOLERANCE_LSB


def test_observations_are_checked_against_the_contract():
    contract = make_contract(make_spec())
    assert by_key(contract, observations(2))["observation"].dtype == np.float32
    for wrong in ({"other": observations(2)}, observations(2, inputs=5), observations(0), {}):
        with pytest.raises(UsageError):
            by_key(contract, wrong)


def test_a_file_that_is_none_is_a_model_file_error(template):
    with pytest.raises(ModelFileError):
        run_goldens(b"no model", template.contract, template.golden_observations)


def test_nan_outputs_are_refused(template, policy):
    class Broken:
        name, version = "broken", "0"

        def load(self, model, **options):
            return self

        def run(self, inputs):
            return {"q_values": np.full((1, 2), np.nan, np.float32)}

    with pytest.raises(NonFiniteError, match="q_values"):
        run_goldens(template.data, template.contract, template.golden_observations, runtime=Broken())
