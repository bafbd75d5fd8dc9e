"""`python -m quarl_device.install.self_test`: whether a release that nothing points at yet can act.

Run by the release's own interpreter, as the agent's user: that it ends with 0 says that the packages are there, can be
read and imported, and that a runtime runs a model.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Try everything an agent begins with; returns the exit code."""
    import quarl_device.commands
    import quarl_device.link  # noqa: F401  that it imports is what is tried
    from quarl_device.doctor.runtime_readings import read_runtimes
    from quarl_device.environments import check_registered

    check_registered("CartPole-v1", allow_module=False)
    probes = [probe for probe in read_runtimes() if probe.version]
    working = [probe for probe in probes if probe.loads]
    if not working:
        tried = "; ".join(f"{probe.runtime} {probe.version}: {probe.detail}" for probe in probes) or "none is installed"
        sys.stderr.write(f"no runtime runs a model: {tried}\n")
        return 1
    sys.stdout.write(f"{working[0].runtime} {working[0].version} runs a model\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
