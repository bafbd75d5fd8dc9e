"""From the environment's observations to what the network sees: layout, stacking, normaliser.

Stable-Baselines3 trains on images with channels first: where the environment gives rows, columns, channels, its
`VecTransposeImage` turns them round. The graph has channels last, so an image of the environment goes in as it is and
the weights are turned round instead. Frames that `VecFrameStack` stacks lie in the last axis, the newest last; before
an episode's first frame it has zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import Normalizer, ObservationSpec
from quarl_device.errors import SpaceMismatch, UnsupportedModel, UnsupportedSpace, UsageError
from quarl_export.importers.observations import check_stacked_keys
from quarl_export.importers.options import ImportOptions
from quarl_export.importers.sb3.arrays import as_floats
from quarl_export.importers.sb3.spaces import SINGLE, Box
from quarl_export.importers.sb3.unpickle import shown
from quarl_export.importers.sb3.vecnormalize import Statistics, VecNormalize

Shape = tuple[int, ...]

MAX_FLOAT32_SHARE = 0.01
"""A step of float32 may be so much of a standard deviation: a quarter of an int8 step over ±6 deviations is 0.012."""
_FINER_THAN_FLOAT32 = ("float64", "int32", "int64")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One observation key.

    Attributes:
        box: as the policy saw it, images channels first.
        spec: as the environment gives it.
        shape: of the graph's input, images channels last; everything else flat.
        is_image: has three axes that were turned round.
    """

    box: Box
    spec: ObservationSpec
    shape: Shape
    is_image: bool


def observe(
    boxes: Mapping[str, Box],
    *,
    convolved: frozenset[str],
    environment: tuple[ObservationSpec, ...] | None,
    options: ImportOptions,
    what: str,
) -> tuple[Seen, ...]:
    """Return the observation keys, in the policy's order.

    Args:
        boxes: the agent's observation space.
        convolved: keys that go through convolutions; they are images even where they do not look like one.
        environment: what the environment gives; `None` where it is not known. uint8 images are then taken to be
            rows, columns, channels there.
        options: `stack` says what is stacked where the environment is not known.
        what: for messages.

    Raises:
        SpaceMismatch: the environment gives something else.
        UnsupportedSpace: what is convolved is no image, or has as many channels as rows and columns.
        UsageError: the stack does not divide the observation, or is of one that is not there.
    """
    given = {spec.key: spec for spec in environment} if environment is not None else None
    if given is not None and set(given) != set(boxes):
        raise SpaceMismatch(
            f"{what} observes {sorted(boxes)}, the environment gives {sorted(given)}",
            hint="name the environment that it was trained on, with its wrappers, or leave --env out",
        )
    check_stacked_keys(options, boxes, f"{what} observes")
    seen = []
    for key, box in boxes.items():
        is_image = key in convolved or box.is_image
        if is_image and len(box.shape) != 3:
            raise UnsupportedSpace(
                f"{what}: convolutions on observation {key!r} of shape {box.shape}, which is no image"
            )
        if is_image and len(set(box.shape)) == 1:
            raise UnsupportedSpace(f"{what}: the axes of image {key!r} of shape {box.shape} cannot be told apart")
        stack = options.frames(key)
        spec = _assumed(key, box, is_image, stack, what) if given is None else _matched(box, is_image, given[key], what)
        if stack not in (1, spec.stack):
            raise UsageError(
                f"{what} saw stacks of {spec.stack} of what the environment gives for {key!r}, not of {stack}",
                hint="leave --stack out: the environment tells",
            )
        if is_image and len(spec.shape) == 3 and len(set(spec.shape)) == 1:
            raise UnsupportedSpace(f"{what}: the axes of a frame of {key!r} of shape {spec.shape} cannot be told apart")
        shape = _channels_last(box.shape) if is_image else (int(np.prod(box.shape, dtype=np.int64)),)
        seen.append(Seen(box=box, spec=spec, shape=shape, is_image=is_image))
    return tuple(seen)


def _channels_last(shape: Shape) -> Shape:
    return (*shape[1:], shape[0])


def _assumed(key: str, box: Box, is_image: bool, stack: int, what: str) -> ObservationSpec:
    """Return what an unknown environment gives: what the policy saw, but uint8 images turned back."""
    # Stable-Baselines3 turns round nothing but uint8 images; others have channels first in the environment itself.
    turned = is_image and box.is_image
    shape = _channels_last(box.shape) if turned else box.shape
    low, high = (_bounds(bound, turned) for bound in (box.low, box.high))
    if not is_image and _stacked_bounds(box):
        low = high = None
    spec = ObservationSpec(key=key, shape=shape, dtype=box.dtype, low=low, high=high)
    if stack == 1:
        return spec
    axis = 0 if is_image and not turned else -1
    if not shape or shape[axis] % stack:
        raise UsageError(f"{what}: {stack} frames do not divide observation {key!r} of shape {shape}")
    if low is None or high is None or len(low) != 1 or len(high) != 1:
        low = high = None
    frame = list(shape)
    frame[axis] //= stack
    return _stacked(replace(spec, shape=tuple(frame), low=low, high=high), stack)


def _matched(box: Box, is_image: bool, given: ObservationSpec, what: str) -> ObservationSpec:
    """Return the environment's spec with the number of frames that make what the policy saw of it."""
    wanted = _channels_last(box.shape) if is_image else box.shape
    shape = given.shape
    if shape == wanted:
        return given
    # The environment has channels first itself; the device turns them round, or nothing where there is one channel.
    if is_image and len(shape) == 3 and wanted[:2] == shape[1:] and _frames(wanted, (shape[0],)):
        return _stacked(given, _frames(wanted, (shape[0],)))
    if is_image and shape == wanted[:2] and wanted[2] <= 16:
        return _stacked(given, wanted[2])
    if shape and shape[:-1] == wanted[:-1] and _frames(wanted, shape):
        return _stacked(given, _frames(wanted, shape))
    raise SpaceMismatch(
        f"{what}: observation {given.key!r} has shape {box.shape} there and {shape} in the environment",
        hint="name the environment that it was trained on, with its wrappers, or leave --env out",
    )


def _stacked(frame: ObservationSpec, stack: int) -> ObservationSpec:
    """Return the spec of so many frames as `VecFrameStack` stacks them."""
    return replace(frame, stack=stack, stack_fill=(0.0,) if stack > 1 else None)


def _frames(wanted: Shape, frame: Shape) -> int:
    """Return how many frames fill the last axis; 0 where they do not."""
    count, rest = divmod(wanted[-1], frame[-1])
    return count if rest == 0 and count <= 16 else 0


def _stacked_bounds(box: Box) -> bool:
    """Tell whether bounds may be those of stacked frames, which are of no use.

    `VecFrameStack` repeats each element's bound in place where the frames follow each other, so an element gets
    another one's bounds. Runs of equal bounds give it away; an unstacked space that has them too only loses bounds.
    """
    if not box.shape or all((bound == bound.flat[0]).all() for bound in (box.low, box.high)):
        return False
    width = box.shape[-1]
    return any(
        all((bound.reshape(-1, count) == bound.reshape(-1, count)[:, :1]).all() for bound in (box.low, box.high))
        for count in range(2, 17)
        if width % count == 0
    )


def _bounds(bound: NDArray[Any], turned: bool) -> tuple[float, ...] | None:
    values = as_floats(bound)
    flat = (np.moveaxis(values, 0, -1) if turned else values).ravel()
    if not np.isfinite(flat).all():
        return None
    return (float(flat[0]),) if (flat == flat[0]).all() else tuple(flat.tolist())


def normalizer(
    seen: tuple[Seen, ...], statistics: VecNormalize | None, *, divides_images: bool, what: str
) -> Normalizer:
    """Return the constants that do what Stable-Baselines3 does before its network.

    Constants are in the layout of the graph's inputs, of one element where all are the same.

    Raises:
        SpaceMismatch: statistics of other observations.
        UnsupportedModel: statistics and /255 on one key, or a clip that would cut images.
    """
    by_key = dict(statistics.statistics) if statistics is not None else {}
    known = {each.spec.key for each in seen}
    if not set(by_key) <= known:
        named = ", ".join(shown(key) for key in sorted(by_key)[:8])
        raise SpaceMismatch(f"{what} has statistics of {named}, the agent observes {sorted(known)}")
    clip = statistics.clip if statistics is not None and by_key else 0.0
    offset: dict[str, tuple[float, ...]] = {}
    scale: dict[str, tuple[float, ...]] = {}
    for each in seen:
        key, divided = each.spec.key, divides_images and each.box.is_image
        if divided and (key in by_key or 0 < clip < 1):
            raise UnsupportedModel(
                f"{what}: image {key!r} is divided by 255 and clipped or normalised too, which one constant cannot do",
                hint="train with VecNormalize(norm_obs_keys=[...]) that leaves images out, and clip_obs of at least 1",
            )
        if divided:
            offset[key], scale[key] = (0.0,), (1 / 255,)
        elif key in by_key:
            offset[key], scale[key] = _laid_out(each, by_key[key], what)
    return Normalizer(where="graph" if scale else "none", offset=offset, scale=scale, clip=clip)


def lost_to_float32(seen: tuple[Seen, ...], constants: Normalizer) -> tuple[str, ...]:
    """Return warnings of observations that `VecNormalize` takes in float64 and a policy file cannot.

    A file's input is float32: near 1.7e9 it holds steps of 128, which are all there is of a deviation of 5.
    """
    warnings = []
    for each in seen:
        key, dtype = each.spec.key, np.dtype(each.spec.dtype)
        if key not in constants.scale or dtype.name not in _FINER_THAN_FLOAT32:
            continue
        with np.errstate(over="ignore", invalid="ignore"):  # what float32 does not hold at all is Q01's
            steps = np.spacing(np.abs(np.asarray(constants.offset[key], np.float32))).astype(np.float64)
            shares = np.nan_to_num(steps * np.asarray(constants.scale[key]), posinf=0.0)
        worst = int(shares.argmax())
        if shares[worst] > MAX_FLOAT32_SHARE:
            warnings.append(
                f"observation {key!r}[{worst}] is {dtype.name} around {constants.offset[key][worst]:.6g}, where "
                f"float32 has steps of {steps[worst]:.3g}: {shares[worst]:.2g} of its standard deviations. The file "
                "sees it no finer, and may act otherwise than the agent: let the environment take off a constant, and "
                "train again"
            )
    return tuple(warnings)


def filled(seen: tuple[Seen, ...], statistics: VecNormalize | None, *, what: str) -> tuple[Seen, ...]:
    """Return `seen` with what `VecFrameStack` has before an episode's first frame in the environment's own units.

    Its zeros are those of the environment where a `VecNormalize` comes after it. Where one comes before, which
    statistics of a single frame tell, they are zeros of what was normalised: the mean.

    Raises:
        UnsupportedModel: the mean of integers, which is no integer.
    """
    by_key = statistics.statistics if statistics is not None else {}
    return tuple(_filled(each, by_key[each.spec.key], what) if each.spec.key in by_key else each for each in seen)


def _filled(seen: Seen, statistics: Statistics, what: str) -> Seen:
    spec = seen.spec
    if spec.stack == 1 or statistics.offset.shape == seen.box.shape:
        return seen
    if np.dtype(spec.dtype).kind != "f":
        raise UnsupportedModel(
            f"{what}: observation {spec.key!r} is {spec.dtype} and was normalised before it was stacked: the frames "
            "before an episode's first one are the mean, which is no such number",
            hint="train with VecNormalize around VecFrameStack, or let the environment give floats",
        )
    return replace(seen, spec=replace(spec, stack_fill=tuple(statistics.offset.ravel().tolist())))


def _laid_out(seen: Seen, statistics: Statistics, what: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    arrays = [_spread(seen, values, what) for values in (statistics.offset, statistics.scale)]
    if seen.is_image:
        arrays = [np.moveaxis(values, 0, -1) for values in arrays]
    offset, scale = (tuple(values.ravel().tolist()) for values in arrays)
    return offset, scale


def _spread(seen: Seen, values: NDArray[np.float64], what: str) -> NDArray[np.float64]:
    """Return statistics of what the policy saw; where they are of one frame, every frame has the same."""
    shape, frames = seen.box.shape, seen.spec.stack
    if values.shape == shape:
        return values
    if shape and not seen.is_image and frames > 1 and values.shape == (*shape[:-1], shape[-1] // frames):
        return np.concatenate([values] * frames, axis=-1)
    key = "" if seen.spec.key == SINGLE else f" {seen.spec.key!r}"
    raise SpaceMismatch(
        f"{what} has statistics of shape {values.shape[:8]}, the agent's observation{key} has {shape}",
        hint="give the statistics that were saved with this agent",
    )
