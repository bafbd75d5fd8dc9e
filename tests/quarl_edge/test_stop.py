"""The first signal asks, the second one ends."""

import os
import signal
import subprocess
import sys
import textwrap

from quarl_edge.learner.stop import StopSignal


def test_the_first_signal_asks_and_the_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        assert stop.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_second_signal_ends_at_once():
    program = textwrap.dedent("""
        import os, signal, sys
        from quarl_edge.learner.stop import StopSignal
        with StopSignal():
            os.kill(os.getpid(), signal.SIGTERM)
            sys.stdout.write("asked\\n"); sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGTERM)
            sys.stdout.write("survived\\n")
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "asked\n"
    assert done.returncode == -signal.SIGTERM


def test_a_second_signal_of_another_kind_ends_at_once_too():
    program = textwrap.dedent("""
        import os, signal, sys
        from quarl_edge.learner.stop import StopSignal
        with StopSignal():
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            sys.stdout.write("survived\\n")
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == ""
    assert done.returncode == -signal.SIGTERM
