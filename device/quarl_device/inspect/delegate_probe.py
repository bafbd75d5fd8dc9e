"""Whether a delegate works here, tried in a child process; needs no numpy, so that the doctor can ask without one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quarl_device.delegate_spec import DelegateSpec
from quarl_device.inspect.probe import Probe, probe

PROBE_DEADLINE_S = 30.0
TINY_MODEL = Path(__file__).parents[1] / "actor" / "bench_cartpole.tflite"


@dataclass(frozen=True, kw_only=True)
class DelegateFault:
    """Why a delegate is not used.

    Attributes:
        found: what happened.
        hint: what mends it.
    """

    found: str
    hint: str


def fault_of(answer: Probe, spec: DelegateSpec) -> DelegateFault | None:
    """Return what a child's answer means, `None` where the delegate works."""
    if answer.loads:
        return None
    detail = answer.detail
    found = f"{spec} through {spec.library} does not work with {answer.runtime} {answer.version}: {detail}"
    if answer.loads is None:
        hint = f"quarl-device bench without --delegate says whether {answer.runtime} works at all"
    elif detail.startswith("OSError"):
        hint = "sudo apt-get install libedgetpu1-std, or --delegate edgetpu=/path/of/libedgetpu.so.1"
    elif "Failed to load delegate" in detail:
        hint = (
            "is the Coral plugged in (lsusb shows 1a6e:089a or 18d1:9302; ls /dev/apex_*), and may this user open it "
            "(groups: plugdev or apex)?"
        )
    elif "died of" in detail:
        hint = "library and runtime do not fit each other: install a libedgetpu built for this TFLite version"
    elif "gave no answer" in detail:
        hint = "unplug the Coral and plug it in again; does another process use it?"
    else:
        hint = "does another process use the Coral, and is the library built for this TFLite version?"
    return DelegateFault(found=found, hint=hint)


def probe_delegate(runtime: str, spec: DelegateSpec, *, deadline_s: float = PROBE_DEADLINE_S) -> DelegateFault | None:
    """Load a delegate in a child process, build an interpreter of a tiny model with it, run it.

    Args:
        runtime: a distribution of `inspect.probe.MODULES`.
        spec: the delegate.
        deadline_s: after so many seconds the child is killed.

    Returns:
        What is wrong, `None` where all went well.
    """
    return fault_of(probe(TINY_MODEL.read_bytes(), runtime, delegate=spec, deadline_s=deadline_s), spec)
