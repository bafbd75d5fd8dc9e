"""Two network namespaces and the cable between them: one for the board, one for what it talks to. No way out."""

import os
import subprocess

HOST, BOARD, BITS = "192.0.2.1", "192.0.2.2", 24  # TEST-NET-1: never routed


class Cable:
    """A veth pair with one end in each namespace; both are gone after `close`."""

    def __init__(self):
        self.board, self.host = f"quarl-board-{os.getpid()}", f"quarl-host-{os.getpid()}"
        try:
            for space in (self.board, self.host):
                _ip("netns", "add", space)
                _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", self.host, "link", "add", "cable", "type", "veth", "peer", "host0", "netns", self.board)
            for space, link, address in ((self.host, "cable", HOST), (self.board, "host0", BOARD)):
                _ip("-n", space, "address", "add", f"{address}/{BITS}", "dev", link)
                _ip("-n", space, "link", "set", link, "up")
        except BaseException:
            self.close()
            raise

    @property
    def board_path(self):
        return f"/run/netns/{self.board}"

    def beside(self, words):
        """Return a command as it is run on the host's side of the cable."""
        return ["nsenter", f"--net=/run/netns/{self.host}", "--", *map(str, words)]

    def pull(self):
        """Take the cable out."""
        _ip("-n", self.host, "link", "set", "cable", "down")

    def plug(self):
        """Put it in again."""
        _ip("-n", self.host, "link", "set", "cable", "up")

    def close(self):
        for space in (self.board, self.host):
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False, timeout=20)


def _ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
