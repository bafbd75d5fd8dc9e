"""Shutting a client out: its certificates, its session, its rights, in that order."""

from __future__ import annotations

from quarl_edge.broker.directory import BrokerDirectory
from quarl_edge.broker.running import end_session, find_running


def revoke_client(directory: BrokerDirectory, name: str) -> bool:
    """Revoke a client, wherever an earlier attempt stopped.

    Its rights stay until its session is ended, so that the broker may still publish its will, and others see it go;
    they go in any case, which leaves a session that could not be ended without any right.

    Returns:
        Whether a broker runs on this directory and knows.

    Raises:
        UsageError: no such client was ever enrolled.
        AuthorityError: files are missing or cannot be written.
        LinkError: the running broker cannot be reached, or still lets the client in.
    """
    directory.revoke(name)
    running = find_running(directory)
    try:
        if running is not None:
            running.reload()
            if running.engine == "mosquitto":
                end_session(directory, running, name)
    finally:
        directory.write_rules()
        if running is not None:
            running.reload()
    return running is not None
