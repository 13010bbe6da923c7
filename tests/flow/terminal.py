# SPDX-License-Identifier: Apache-2.0
"""A terminal for a program, at which a test types, and what a person sees on it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from prepd_flow import LIMIT_S, check


def hear_signals():
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def screen(said, columns):
    """The lines that a terminal of this width shows after these characters. Only \\r and "erase the rest" are known:
    any other control character fails."""
    lines, at = [""], 0
    for part in re.findall("\x1b\\[K|.", said, re.DOTALL):
        if part == "\x1b[K":
            lines[-1] = lines[-1][:at]
        elif part == "\r":
            at = 0
        elif part == "\n":
            lines.append("")
            at = 0
        else:
            check(part.isprintable(), f"{part!r} in {said!r}")
            if at == columns:
                lines.append("")
                at = 0
            lines[-1] = lines[-1][:at].ljust(at) + part + lines[-1][at + 1:]
            at += 1
    return lines if lines[-1] else lines[:-1]


class Terminal:
    """The program leads a session that has this terminal, so that Ctrl-C reaches it and what it has started."""

    def __init__(self, *words, cwd=None, env=None, columns=80):
        self.said = ""
        self.ours, its = pty.openpty()
        self.resize(columns)
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
        self.said = (self.said + data.decode(errors="replace")).replace("\r\n", "\n")
        return bool(data)

    def resize(self, columns):
        self.columns = columns
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def screen(self):
        return screen(self.said, self.columns)

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
