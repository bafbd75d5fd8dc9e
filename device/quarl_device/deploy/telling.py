"""Who is told of a deploying agent, by its command line: the broker of its credentials, of `--broker`, or nobody."""

from __future__ import annotations

import argparse

from quarl_device.actor.identity import gone_state, new_boot_id
from quarl_device.actor.joining import joining_of
from quarl_device.deploy.herald import Herald, Joined
from quarl_device.errors import QuarlError, UsageError
from quarl_device.link import PahoLink, Will, read_password
from quarl_device.link.credentials import named_folder
from quarl_device.runtime import PolicyRuntime
from quarl_device.wire.topics import Topics


def make_herald(options: argparse.Namespace, runtime: PolicyRuntime) -> Herald | None:
    """Return what tells the fleet, not started yet; `None` where no broker was named.

    Raises:
        UsageError: what was said can never work. Anything else (credentials that have expired, a clock that is wrong,
            a password file that is not there yet) may mend, and is tried again while the agent acts.
    """
    if not options.broker and named_folder(options.credentials) is None:
        return None
    boot_id = new_boot_id()

    def join() -> Joined:
        joining = joining_of(options)
        will = Will(
            topic=Topics(joining.fleet).state(joining.name), payload=gone_state(joining.name, boot_id, mode="deploy")
        )
        link = PahoLink(joining.url, client_id=joining.client_id, password=joining.password, will=will, tls=joining.tls)
        return Joined(link=link, fleet=joining.fleet, name=joining.name)

    made: list[Joined] = []
    try:
        made.append(join())
    except UsageError:
        if not _lacks_password(options):
            raise
    except QuarlError:
        pass  # the herald says so, and tries again
    return Herald(lambda: made.pop() if made else join(), boot_id=boot_id, runtime=f"{runtime.name} {runtime.version}")


def _lacks_password(options: argparse.Namespace) -> bool:
    try:
        read_password(options.password_file)
    except UsageError:
        return True
    return False
