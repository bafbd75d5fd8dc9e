"""Training episodes: the same returns, however the rows were cut into blocks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.actor.episodes import EpisodeStatistics


def by_hand(reward, valid, start, ended):
    """Finished episodes as (row, env, return), one row after the other."""
    rows, envs = reward.shape
    total, done = np.zeros(envs), []
    for t in range(rows):
        for n in range(envs):
            if start[t, n]:
                total[n] = 0.0
            if valid[t, n]:
                total[n] += reward[t, n]
                if ended[t, n]:
                    done.append((t, n, total[n]))
                    total[n] = 0.0
    return done


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_the_cut_into_blocks_does_not_matter(seed, envs, cuts):
    rng = np.random.default_rng(seed)
    rows = sum(cuts)
    reward = rng.integers(-3, 4, (rows, envs)).astype(np.float32)
    ended = rng.random((rows, envs)) < 0.3
    valid = np.ones((rows, envs), np.bool_)
    start = np.zeros((rows + 1, envs), np.bool_)
    start[0] = True
    start[1:] = ended
    if rng.random() < 0.5:
        # NEXT_STEP: the row after an end is a dummy, and the one after that begins.
        for n in range(envs):
            for t in range(rows):
                if t and valid[t - 1, n] and ended[t - 1, n]:
                    valid[t, n], ended[t, n] = False, False
                    start[t + 1, n], start[t, n] = True, False
                elif t and not valid[t - 1, n]:
                    start[t, n] = True
                else:
                    start[t, n] = t == 0
    statistics, row = EpisodeStatistics(envs), 0
    for cut in cuts:
        part = slice(row, row + cut)
        statistics.add(reward[part], valid[part], start[:-1][part], ended[part] & valid[part])
        row += cut
    wanted = by_hand(reward, valid, start[:-1], ended)
    assert statistics.steps == int(valid.sum())
    assert statistics.episodes == len(wanted)
    if wanted:
        assert np.isclose(statistics.return_mean, np.mean([one[2] for one in wanted[-100:]]))
    else:
        assert statistics.return_mean == 0.0


def rows(count, *, ended=(), start=()):
    flags = [np.zeros((count, 1), np.bool_) for _ in range(2)]
    flags[0][list(start)] = True
    flags[1][list(ended)] = True
    return np.ones((count, 1), np.float32), np.ones((count, 1), np.bool_), flags[0], flags[1]


def test_a_reset_from_outside_forgets_the_torn_episode():
    statistics = EpisodeStatistics(1)
    statistics.add(*rows(5, start=[0]))
    statistics.add(*rows(3, start=[0], ended=[2]))
    assert (statistics.episodes, statistics.return_mean, statistics.steps) == (1, 3.0, 8)


def test_only_the_last_hundred_count():
    statistics = EpisodeStatistics(1)
    statistics.add(*rows(10, start=[0], ended=[9]))
    statistics.add(*rows(100, start=range(100), ended=range(100)))
    assert statistics.episodes == 101
    assert statistics.return_mean == 1.0
