"""What is installed separately, and the command that adds it."""

from __future__ import annotations

import importlib.util

from quarl_device.errors import MissingExtra

VIDEO_HINT = "in a clone: make install; elsewhere: pip install 'quarl-edge[video]'"


def require_learner(command: str) -> None:
    """Make sure that the `learner` extra is there.

    Args:
        command: what needs it, for the message.

    Raises:
        MissingExtra: TensorFlow or quarl-edge-export is not installed.
    """
    for module in ("tensorflow", "tf_keras", "tensorflow_model_optimization", "quarl_export"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(
                f"quarl-edge {command} needs {module}, which is not installed",
                hint="in a clone: make install; elsewhere: pip install 'quarl-edge[learner]'",
            )


def require_metrics() -> None:
    """Make sure that the `metrics` extra is there.

    Raises:
        MissingExtra: prometheus-client is not installed.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise MissingExtra(
            "--metrics-port needs prometheus-client, which is not installed",
            hint="in a clone: make install; elsewhere: pip install 'quarl-edge[metrics]'",
        ) from None


def require_plot() -> None:
    """Make sure that the `plot` extra is there.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra(
            "quarl-edge plot needs matplotlib, which is not installed",
            hint="in a clone: make install; elsewhere: pip install 'quarl-edge[plot]'",
        )


def require_video(*, mp4: bool) -> None:
    """Make sure that the `video` extra is there.

    Args:
        mp4: that needs ffmpeg too, which comes with imageio-ffmpeg.

    Raises:
        MissingExtra: imageio or imageio-ffmpeg is not installed.
    """
    modules = {"imageio": "imageio", **({"imageio_ffmpeg": "imageio-ffmpeg"} if mp4 else {})}
    for module, name in modules.items():
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(f"--video needs {name}, which is not installed", hint=VIDEO_HINT)
