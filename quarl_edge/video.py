"""A film of episodes as they are played: the environment's own pictures, as mp4 or gif. Needs the extra `video`."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from quarl_device.environments import EnvSpec, first_line
from quarl_device.errors import EnvironmentMisbehaved, MissingExtra, QuarlError, UnsupportedSpace, UsageError
from quarl_device.files import write_atomic
from quarl_edge.extras import VIDEO_HINT, require_video

KINDS = ("mp4", "gif")
MAX_FRAMES = {"mp4": 50_000, "gif": 2_000}
MAX_SIDE = 4_096
_USUAL_FPS = 30
_MAX_FPS = 240
# A gif counts in hundredths of a second, and viewers take less than two of them for ten.
_GIF_STEP_S = 0.01
_LEAST_GIF_STEPS = 2

UInt8 = NDArray[np.uint8]


class Film:
    """Takes pictures of an environment and writes them when all went well; else nothing is written.

    Use it as a context manager, and its `watch` as that of `quarl_device.evaluate.evaluate`.

    Args:
        path: of the film, .mp4 or .gif.
        episodes: how many are filmed, from the first.

    Attributes:
        path: as given.
        frames: taken so far.
        filmed: episodes that are in it, whole or not.
        cut: whether it was full before its last episode ended.
        fps: frames per second, 0 before the first.

    Raises:
        UsageError: another kind of file, or a place that cannot be written.
        MissingExtra: imageio, or for mp4 ffmpeg, is not installed.
    """

    def __init__(self, path: Path, *, episodes: int = 1) -> None:
        self.path = path
        self._kind = _kind(path)
        require_video(mp4=self._kind == "mp4")
        self._episodes = episodes
        self._writer: Any = None
        self._shape: tuple[int, ...] = ()
        self._folder = tempfile.TemporaryDirectory(prefix="quarl-film-")
        self._draft = Path(self._folder.name) / f"film.{self._kind}"
        self.frames = self.filmed = 0
        self.cut = False
        self.fps = 0.0

    def watch(self, episode: int, world: gymnasium.Env[Any, Any]) -> None:
        """Take a picture.

        Raises:
            MissingExtra: what the environment draws with is not installed.
            UnsupportedSpace: it draws no pictures.
            EnvironmentMisbehaved: it raised, or gave something else than a picture.
            QuarlError: the film cannot be written.
        """
        if episode >= self._episodes or self.cut:
            return
        if self.frames >= MAX_FRAMES[self._kind]:
            self.cut = True
            return
        picture = _picture(world)
        if self._writer is None:
            self._begin(world, picture)
        elif picture.shape != self._shape:
            raise EnvironmentMisbehaved(f"the environment's picture was {self._shape}, and is {picture.shape} now")
        try:
            self._writer.append_data(picture)
        except (OSError, ValueError, RuntimeError) as error:
            raise QuarlError(f"the film cannot be written: {first_line(error)}") from error
        self.frames += 1
        self.filmed = episode + 1

    def __enter__(self) -> Film:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end()
            if error is None and self.frames:
                write_atomic(self.path, self._draft.read_bytes(), error=QuarlError, what="film")
        finally:
            self._folder.cleanup()

    def to_json(self) -> dict[str, Any]:
        """Return what `evaluate --format json` says of it."""
        return {
            "path": str(self.path),
            "frames": self.frames,
            "episodes": self.filmed,
            "fps": self.fps,
            "cut": self.cut,
        }

    def _begin(self, world: gymnasium.Env[Any, Any], picture: UInt8) -> None:
        import imageio

        self.fps, self._shape = _frames_per_second(world), picture.shape
        if self._kind == "gif":
            steps = max(_LEAST_GIF_STEPS, round(1.0 / self.fps / _GIF_STEP_S))
            self.fps = 1.0 / (steps * _GIF_STEP_S)
            self._writer = imageio.get_writer(self._draft, format="GIF", mode="I", duration=steps * 10, loop=0)
            return
        # One block: the pictures are even already, and no other size than theirs is wanted.
        self._writer = imageio.get_writer(
            self._draft, format="FFMPEG", mode="I", fps=self.fps, macro_block_size=1, ffmpeg_log_level="error"
        )

    def _end(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
        except (OSError, ValueError, RuntimeError) as error:
            raise QuarlError(f"the film cannot be written: {first_line(error)}") from error


def filming(env_id: str, kwargs: dict[str, Any]) -> EnvSpec:
    """Return an environment that draws pictures without a window."""
    # pygame greets on stdout when it is imported, where our results go.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # It asks for a screen even where it draws into memory alone.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    return EnvSpec(env_id=env_id, kwargs={**kwargs, "render_mode": "rgb_array"})


def _kind(path: Path) -> str:
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise UsageError(f"--video {path}: expected a name that ends with .mp4 or .gif", hint="--video film.mp4")
    if path.is_dir():
        raise UsageError(f"--video {path}: is a directory", hint="--video film.mp4")
    if not path.parent.is_dir():
        raise UsageError(f"--video {path}: there is no directory {path.parent}", hint=f"mkdir -p {path.parent}")
    return kind


def _frames_per_second(world: gymnasium.Env[Any, Any]) -> float:
    said = (world.metadata or {}).get("render_fps", _USUAL_FPS)
    known = isinstance(said, (int, float)) and math.isfinite(said) and said > 0
    return min(float(said), _MAX_FPS) if known else float(_USUAL_FPS)


def _picture(world: gymnasium.Env[Any, Any]) -> UInt8:
    """Return the environment's picture, its sides even as the codec wants them: uint8 [height, width, 3]."""
    if world.render_mode != "rgb_array":
        raise UnsupportedSpace("the environment draws no pictures: it has no render mode 'rgb_array'")
    try:
        picture = world.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtra(f"the environment draws with a package that is missing: {first_line(error)}") from error
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"the environment draws with the Python module {error.name!r}, which is not installed", hint=VIDEO_HINT
        ) from error
    except Exception as error:
        raise EnvironmentMisbehaved(
            f"the environment raised in render(): {type(error).__name__}: {first_line(error)}"
        ) from error
    return _even(picture)


def _even(picture: Any) -> UInt8:
    good = isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3
    if not good or picture.shape[2] != 3 or not all(1 <= side <= MAX_SIDE for side in picture.shape[:2]):
        found = f"{picture.dtype}{list(picture.shape)}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise EnvironmentMisbehaved(
            f"the environment's picture is {found}; expected uint8 [height, width, 3], sides up to {MAX_SIDE:,}"
        )
    odd = [(0, side % 2) for side in picture.shape[:2]]
    return np.pad(picture, [*odd, (0, 0)], mode="edge")
