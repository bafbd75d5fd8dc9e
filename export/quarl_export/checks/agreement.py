"""Checks of what the file computes: Q09 parity with its reference, Q10 actions and Q11 regret against float."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quarl_export.acting import MAX_ACTION_ERROR, action_errors, greedy_actions
from quarl_export.checks.report import CheckResult, finer
from quarl_export.checks.subject import Float32, Subject
from quarl_export.ir import PolicyGraph

# Returns were the same at 82 % (TD3 on Pendulum, a steep tanh) and lower at 48 % (DQN on CartPole, Q values near 100).
MIN_AGREEMENT = 0.75
MAX_REGRET = 0.05
# Mean error in the mean distance of outputs from their average: what all observations have in common tells nothing of a
# policy, and would hide any error below it. int16x8 and dynamic lose their bits in int8 weights.
MAX_FLOAT_ERROR: Mapping[str, float] = {"float32": 1e-4, "float16": 1e-2, "dynamic": 0.1, "int16x8": 0.1}
# Mean error in the mean output that the arithmetic itself has: 24 and 11 bits, over a few layers.
_ROUNDING: Mapping[str, float] = {"float32": 1e-6, "float16": 2**-11, "dynamic": 1e-6, "int16x8": 2**-15}
_PLAY_IT = "where its returns can be told apart from the float policy's they decide: --env ID, more --episodes"
_PRICED = ("dynamic", "int16x8")
# Sums of floats in another order put one value in ten thousand on the other side of a rounding edge: so many outputs of
# networks with layers in float, or in int16, may be so much further off than the architecture says. No others.
_TIES, _TIE_LSB = 0.01, 2
_ROUNDS_ONCE = frozenset({
    "dense", "relu", "relu6", "tanh", "flatten", "concatenate", "max_pool2d", "elu", "layer_norm",
})  # fmt: skip
_ROUNDS_MEANS = frozenset({"mean", "global_average_pool2d"})


def parity_limit_lsb(graph: PolicyGraph) -> int:
    """Return how many LSB a right int8 file of `graph` may be off its reference in LiteRT with XNNPACK.

    Dense networks repeat it exactly. Convolutions, pooled averages, sums of tensors and softmax round in fixed point:
    one step; a mean on the way (dueling heads): two. Builtin kernels round the requantization multiplier twice and are
    2-3 LSB off on dense networks already: see `golden_tolerance_lsb`.
    """
    kinds = {layer.kind for layer in graph.layers}
    return 2 if kinds & _ROUNDS_MEANS else 0 if kinds <= _ROUNDS_ONCE else 1


def golden_tolerance_lsb(graph: PolicyGraph) -> int:
    """Return what any runtime's answers may be off the golden ones: a hidden tanh makes one step five."""
    hidden = {layer.kind for layer in graph.layers if layer.name not in graph.outputs.values()}
    return 8 if hidden & {"tanh", "sigmoid"} else 3


def check_parity(subject: Subject, *, decided: bool = False) -> CheckResult:
    """Q09: the file against the fake-quantized network, or against the float one where nothing has a range.

    Args:
        subject: with its model.
        decided: whether returns have judged the file. Of dynamic and int16x8 files there is no exact reference: what
            they are off the float network is the price of their weights, and returns say whether it matters.
    """
    if subject.network is None:
        return _float_parity(subject, advisory=decided and subject.options.scheme in _PRICED)
    reference = subject.network.run(subject.network.normalized(subject.observations))
    # Float layers are summed in float32 by the file, in another order; the multiplier of an int16 kernel has 16 bits.
    plan = subject.network.plan
    has_ties = bool(plan.floats or plan.options.wide_outputs)
    limit = max(parity_limit_lsb(subject.policy.graph), int(has_ties))
    tie = _TIE_LSB * 2 ** (8 - plan.options.activation_bits)
    worst, off, beyond, ties = 0.0, 0.0, 0.0, 0.0
    for role, values in subject.file_outputs.items():
        step = subject.steps[role] or 1e-4 * max(1.0, float(np.abs(reference[role]).max()))
        errors = np.rint(np.abs(values.astype(np.float64) - reference[role].reshape(values.shape)) / step)
        # A step of the layers before is one of an int8 output, and many of a finer one.
        finer = max(1.0, float(np.abs(reference[role]).max()) / (255 * step))
        worst, off = max(worst, float(errors.max())), max(off, float((errors > 0).mean()))
        beyond = max(beyond, float((errors > limit).mean()))
        ties = max(ties, float(errors.max()) / (limit + tie * finer))
    rare = has_ties and ties <= 1.0 and beyond <= _TIES
    further = f", further off in {_TIES:.0%}: it has layers in float or int16" if has_ties else ""
    return CheckResult(
        code="Q09",
        passed=worst <= limit or rare,
        value=worst,
        limit=float(limit),
        message=f"at most {worst:.0f} LSB off the fake-quantized network ({limit} allowed{further}), {off:.2%} of "
        f"outputs, {subject.judged_on}",
    )


def _float_parity(subject: Subject, *, advisory: bool) -> CheckResult:
    limit = MAX_FLOAT_ERROR[subject.options.scheme]
    worst, largest = 0.0, 0.0
    for role, values in subject.file_outputs.items():
        reference = subject.float_outputs[role].reshape(subject.count, -1).astype(np.float64)
        errors = np.abs(values.reshape(reference.shape) - reference)
        spread = float(np.abs(reference - reference.mean(axis=0)).mean())
        rounding = _ROUNDING[subject.options.scheme] * max(1e-6, float(np.abs(reference).mean()))
        worst = max(worst, float(errors.mean()) / max(spread, rounding / limit))
        largest = max(largest, float(errors.max()))
    return CheckResult(
        code="Q09",
        passed=worst <= limit or advisory,
        value=round(worst, 7),
        limit=limit,
        advisory=advisory,
        message=f"{worst:.2e} of the outputs' mean spread off the float network, {largest:.3g} at most, "
        f"{subject.judged_on}",
    )


def check_actions(subject: Subject, *, decided: bool = False) -> tuple[CheckResult, CheckResult]:
    """Q10 and Q11: what quantization does to the greedy action, on held-out observations.

    Drawn observations lie where no episode comes by: on them both are told, but neither fails.

    Args:
        subject: with its model.
        decided: whether returns have judged the file; both are then told as well, and neither fails.
    """
    binding = subject.binding and not decided
    ours = greedy_actions(subject.contract, subject.file_outputs)
    theirs = greedy_actions(subject.contract, subject.float_outputs)
    if subject.contract.action.kind == "discrete":
        agree = ours == theirs
        what = "greedy actions are the float policy's"
        limit = MAX_REGRET
        mean, told = _regret(subject, ours)
    else:
        errors = action_errors(subject.contract, theirs, ours)
        agree = (errors <= MAX_ACTION_ERROR).all(axis=1)
        what, limit = (
            f"actions are within {MAX_ACTION_ERROR:.0%} of their range of the float policy's",
            MAX_ACTION_ERROR,
        )
        mean = float(errors.mean())
        told = f"actions are {mean:.2%} of their range off on average, {errors.max():.2%} at most"
    share = float(agree.mean())
    coarse = (share < MIN_AGREEMENT or mean > limit) and binding
    hint = f"; {finer(subject.contract.head.kind, subject.options.scheme)}; {_PLAY_IT}" if coarse else ""
    return (
        CheckResult(
            code="Q10",
            passed=share >= MIN_AGREEMENT or not binding,
            value=round(share, 5),
            limit=MIN_AGREEMENT,
            advisory=not binding,
            message=f"{what} in {share:.1%}, {subject.judged_on}" + hint,
        ),
        CheckResult(
            code="Q11",
            passed=mean <= limit or not binding,
            value=round(mean, 6),
            limit=limit,
            advisory=not binding,
            message=f"{told}, {subject.judged_on}" + hint,
        ),
    )


def _regret(subject: Subject, chosen: NDArray[np.int64]) -> tuple[float, str]:
    """Return what the file's actions cost by the float network's own values, in its mean spread between actions."""
    role = subject.contract.head.kind
    values: Float32 = subject.float_outputs[role].reshape(subject.count, -1)
    gaps = values.max(axis=1) - values[np.arange(len(values)), chosen]
    spread = float((values.max(axis=1) - values.min(axis=1)).mean())
    regret = float(gaps.mean()) / spread if spread > 0.0 else 0.0
    return regret, f"other actions cost {regret:.2%} of the mean {role} gap on average, {float(gaps.max()):.3g} at most"
