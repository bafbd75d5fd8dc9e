"""Mosquitto with everything on that keeps strangers out, run in the foreground."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from quarl_device.errors import BrokerStartFailed, MissingTool
from quarl_device.parent import end_with_parent_or_now
from quarl_device.wire.limits import MAX_PAYLOAD_BYTES
from quarl_edge.broker.address import Address
from quarl_edge.broker.directory import BrokerDirectory
from quarl_edge.broker.disk import broker_user, write_file

MAX_PACKET_BYTES = 2 * MAX_PAYLOAD_BYTES
_START_S = 10.0
_STOP_S = 10.0


def find_mosquitto() -> str:
    """Return the path of the program; Debian puts it where an unprivileged PATH does not look.

    Raises:
        MissingTool: it is not installed.
    """
    for name in ("mosquitto", "/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto"):
        found = shutil.which(name)
        if found:
            return found
    raise MissingTool("Mosquitto is not installed", hint="sudo apt-get install -y mosquitto")


def configuration(directory: BrokerDirectory, listen: Address) -> str:
    """Return `mosquitto.conf`."""
    return f"""\
# Made by `quarl-edge broker`; changes here are overwritten.
per_listener_settings false

listener {listen.port} {listen.host}
cafile {directory.ca_certificate}
certfile {directory.server}
keyfile {directory.server}
crlfile {directory.revoked}
tls_version tlsv1.2
require_certificate true
# A client is who its certificate says, whatever it claims; else any device could throw the learner off by its id.
use_identity_as_username true
use_username_as_clientid true
allow_anonymous false
acl_file {directory.acl}

# Acks are small and awaited: with Nagle's algorithm each would wait 40 ms.
set_tcp_nodelay true
max_packet_size {MAX_PACKET_BYTES}
max_inflight_messages 1000
max_queued_messages 10000
max_queued_bytes 67108864
max_keepalive 120
persistent_client_expiration 14d

persistence true
persistence_location {directory.data}/
autosave_interval 30

log_dest stderr
log_type error
log_type warning
log_type notice
log_timestamp_format %Y-%m-%dT%H:%M:%S
"""


def write_configuration(directory: BrokerDirectory, listen: Address) -> Path:
    """Write `mosquitto.conf` and give the broker's user what it must read; returns its path."""
    path = directory.path / "mosquitto.conf"
    write_file(path, configuration(directory, listen).encode())
    directory.hand_over()
    return path


class MosquittoServer:
    """A Mosquitto that ends with this process, whatever ends it.

    It is started as its own user where we are root: a Mosquitto that drops root by itself loses the tie to its parent,
    and first reads files that it cannot read again.

    Args:
        directory: of the broker.
        listen: where.

    Raises:
        MissingTool: not installed.
        BrokerStartFailed: the port is taken, or it does not accept connections within 10 s.
    """

    def __init__(self, directory: BrokerDirectory, listen: Address) -> None:
        program = find_mosquitto()
        listen.check_free()
        config = write_configuration(directory, listen)
        user = broker_user()
        self._listen = listen
        try:
            self._process = subprocess.Popen(
                [program, "-c", str(config)],
                stdin=subprocess.DEVNULL,
                user=None if user is None else user.pw_uid,
                group=None if user is None else user.pw_gid,
                extra_groups=None if user is None else [],
                # Ctrl-C in a terminal is for us, who tell the broker.
                start_new_session=True,
                preexec_fn=functools.partial(end_with_parent_or_now, os.getpid(), by=signal.SIGTERM),  # noqa: PLW1509  there are no other threads here
            )
        except OSError as error:
            raise BrokerStartFailed(f"Mosquitto cannot be started: {error.strerror}") from error
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def reload(self) -> None:
        """Have it read access rules and revoked certificates again; sessions stay."""
        self._process.send_signal(signal.SIGHUP)

    def wait(self) -> int:
        """Wait until it ends by itself or by `stop`; returns its status."""
        return self._process.wait()

    def ask_to_end(self, *, force: bool = False) -> None:
        """Have it end, without waiting."""
        self._process.send_signal(signal.SIGKILL if force else signal.SIGTERM)

    def stop(self) -> None:
        """End it: it saves what it keeps first; by force after 10 s. Idempotent."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(timeout=_STOP_S)

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise BrokerStartFailed(
                    f"Mosquitto ended with status {self._process.returncode}; its last lines above say why"
                )
            if self._listen.is_listened_at():
                return
            time.sleep(0.02)
        raise BrokerStartFailed(f"Mosquitto does not accept connections at {self._listen} after {_START_S:.0f} s")
