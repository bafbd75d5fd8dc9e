"""The range of the last layer's int8 output, which no fake quant follows in training: set anew for every push."""

from __future__ import annotations

from quarl_edge.replay.experience import Experience
from quarl_export.qat import QatPolicy

OBSERVATIONS = 256
IMAGES = 64
"""Convolutions take a hundred times as long for each."""


def fit_head_range(policy: QatPolicy, experience: Experience, *, in_rounds: bool) -> None:
    """Fit the head's range of `policy` to what it gives on observations that came in.

    An action that a range clips is another action, and a second of upright pendulum says nothing of the torque that
    swings it up: ranges of boxes come from many episodes. So do those of logits, which are probabilities: clipped ones
    are sampled otherwise. Of Q values the largest counts, and it stays the largest where it is clipped: their range
    fits what the policy meets now, in finer steps.

    Args:
        policy: in training.
        experience: gives the observations; with too few of them the range stays as it is.
        in_rounds: a short round is all that there is, where a replay soon holds more.
    """
    count = IMAGES if policy.spec.sees_images else OBSERVATIONS
    if len(experience) < (1 if in_rounds else count):
        return
    largest_counts = policy.spec.head == "q_values"
    observations = experience.recent_observations if largest_counts else experience.spread_observations
    policy.head_range_from(observations(count))
