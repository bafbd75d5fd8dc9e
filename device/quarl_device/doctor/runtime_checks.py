"""Checks of what runs policies: runtime, numpy, delegate, environment."""

from __future__ import annotations

from collections.abc import Sequence

from quarl_device.delegate_spec import DelegateSpec
from quarl_device.doctor.finding import Finding, of_error, ok, problem, warning
from quarl_device.errors import QuarlError
from quarl_device.inspect.delegate_probe import DelegateFault
from quarl_device.inspect.probe import Probe

_INSTALL = "pip install ai-edge-litert, or on 32-bit ARM: pip install tflite-runtime 'numpy<2'"
_OLD_RUNTIME = "tflite-runtime"


def check_runtimes(probes: Sequence[Probe]) -> list[Finding]:
    """A tiny model must run in one installed runtime at least; one that fails beside one that works is a warning.

    Args:
        probes: of every known runtime, each made in a child process.
    """
    working = [probe for probe in probes if probe.loads]
    findings = [ok("runtime", f"{probe.runtime} {probe.version} runs a model") for probe in working]
    for probe in probes:
        if not probe.loads and probe.version:
            said = f"{probe.runtime} {probe.version} does not run a model: {probe.detail}"
            mend = f"pip install --force-reinstall {probe.runtime}" + " 'numpy<2'" * (probe.runtime == _OLD_RUNTIME)
            findings.append(warning("runtime", said, mend) if working else problem("runtime", said, mend))
    return findings or [problem("runtime", "no TFLite runtime is installed", _INSTALL)]


def check_numpy(numpy_version: str, installed: Sequence[str]) -> Finding:
    """tflite-runtime was built for numpy 1: with numpy 2 it imports, and its first interpreter dies.

    Args:
        numpy_version: such as "2.1.0", "" where it is missing.
        installed: distributions of runtimes.
    """
    major = numpy_version.partition(".")[0]
    if not major.isdecimal():
        return problem("numpy", f"numpy is missing or broken: {numpy_version[:40]!r}", "pip install numpy")
    if int(major) >= 2 and _OLD_RUNTIME in installed:
        found = f"numpy {numpy_version} with {_OLD_RUNTIME}, which needs numpy 1"
        if len(installed) > 1:
            return warning("numpy", found, f"pip uninstall {_OLD_RUNTIME}, or pip install 'numpy<2'")
        return problem("numpy", found, "pip install 'numpy<2'")
    return ok("numpy", f"numpy {numpy_version}")


def check_delegate(
    spec: DelegateSpec | None, seen: Sequence[str], fault: DelegateFault | None, *, asked: bool = False
) -> Finding:
    """An Edge TPU: asked for, or seen on a bus; one that is only seen is not needed.

    Args:
        spec: what was tried; `None` if nothing was asked for or seen.
        seen: what looks like one, such as "usb 18d1:9302".
        fault: what went wrong.
        asked: whether it was asked for.
    """
    where = f" ({', '.join(seen)})" if seen else ""
    if spec is None:
        return ok("delegate", "no Edge TPU is seen, none is asked for")
    if fault is None:
        return ok("delegate", f"{spec}{where} loads and runs a model beside it")
    return (problem if asked else warning)("delegate", f"{fault.found}{where}", fault.hint)


def check_environment(env_id: str, error: QuarlError | None) -> Finding:
    """The environment that `run --env` would make."""
    return ok("environment", f"{env_id} is registered") if error is None else of_error("environment", error)
