"""What runs policies here: tried in child processes, judged in `runtime_checks`."""

from __future__ import annotations

from pathlib import Path

from quarl_device.board.sysfs import entries, read_text
from quarl_device.delegate_spec import DelegateSpec, parse_delegate
from quarl_device.errors import QuarlError
from quarl_device.inspect.delegate_probe import PROBE_DEADLINE_S, TINY_MODEL, DelegateFault, probe_delegate
from quarl_device.inspect.probe import MODULES, Probe, installed_version, probe

_USB, _DEV = Path("/sys/bus/usb/devices"), Path("/dev")
# As it comes up, and once libedgetpu has put its program onto it.
_CORAL_USB = ("1a6e:089a", "18d1:9302")


def read_runtimes(*, deadline_s: float = PROBE_DEADLINE_S) -> list[Probe]:
    """Run a tiny model in every known runtime, each in a child process."""
    return [probe(TINY_MODEL.read_bytes(), name, deadline_s=deadline_s) for name in MODULES]


def read_numpy() -> str:
    """Return numpy's installed version; see `installed_version`."""
    return installed_version("numpy")


def read_corals(*, usb: Path = _USB, dev: Path = _DEV) -> list[str]:
    """Return what looks like an Edge TPU, such as "usb 18d1:9302" or "pci apex_0"."""
    ids = (f"{read_text(path / 'idVendor')}:{read_text(path / 'idProduct')}" for path in entries(usb, "*"))
    return [f"usb {name}" for name in ids if name in _CORAL_USB] + [
        f"pci {path.name}" for path in entries(dev, "apex_*")
    ]


def try_delegate(
    asked: DelegateSpec | None, corals: list[str], runtimes: list[Probe], *, deadline_s: float = PROBE_DEADLINE_S
) -> tuple[DelegateSpec | None, DelegateFault | None]:
    """Return the delegate that was tried, and what went wrong; the one asked for, else any where a Coral is seen."""
    spec = asked or (parse_delegate("edgetpu") if corals else None)
    if spec is None:
        return None, None
    name = next((probe.runtime for probe in runtimes if probe.loads), "")
    if not name:
        return spec, DelegateFault(found=f"{spec} was not tried: no runtime works", hint="mend the runtime first")
    return spec, probe_delegate(name, spec, deadline_s=deadline_s)


def read_environment(env_id: str) -> QuarlError | None:
    """Return why `run --env` would refuse an id, `None` where it would not."""
    from quarl_device.environments import check_registered

    try:
        check_registered(env_id, allow_module=True)
    except QuarlError as error:
        return error
    return None
