"""A terminal for a program, at which a test types."""

import os
import pty
import re
import select
import signal
import subprocess
import time

from prepd_flow import LIMIT_S, check


def hear_signals():
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Terminal:
    """The program leads a session that has this terminal, so that Ctrl-C reaches it and what it has started."""

    def __init__(self, *words, cwd=None, env=None):
        self.said = ""
        self.ours, its = pty.openpty()
        # setsid -c makes the terminal at its input that of the new session.
        # A shell lets background processes ignore SIGINT, nohup lets them ignore SIGHUP, and both are inherited. A program
        # that someone starts at a terminal gets these signals.
        self.p = subprocess.Popen(["setsid", "-c", *words], cwd=cwd, env=env, stdin=its, stdout=its, stderr=its,
                                  preexec_fn=hear_signals)
        os.close(its)

    def read(self, wait_s):
        """Returns False if nothing more can come, since the last process has left the terminal."""
        if not select.select([self.ours], [], [], wait_s)[0]:
            return True
        try:
            data = os.read(self.ours, 65536)
        except OSError:
            return False
        self.said += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)

    def until(self, pattern):
        end = time.monotonic() + LIMIT_S
        while not re.search(pattern, self.said):
            check(time.monotonic() < end and self.read(0.5), f"no {pattern}:\n{self.said}")

    def ctrl_c(self):
        os.write(self.ours, b"\x03")

    def end(self):
        """Returns its exit code, once the last process has left the terminal."""
        end = time.monotonic() + LIMIT_S
        while self.read(0.5):
            check(time.monotonic() < end, f"it does not end:\n{self.said}")
        os.close(self.ours)
        return self.p.wait(LIMIT_S)
