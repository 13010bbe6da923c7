# SPDX-License-Identifier: Apache-2.0
"""What ends `prepd worker` as a user starts it, and what it waits for. A socket plays the daemon."""

import json
import os
import signal
import subprocess
import tempfile
import time

import zmq

from prepd_flow import BIN, Folder, check, main, wait_for, workers_below
from prepd_workers import message

BYE, ERROR = 7, 6


class Played:
    """A daemon's endpoint for workers, and a supervisor that connects to it."""

    def __init__(self, f, workers=1):
        self.end = "ipc://" + f.file("played.sock")
        self.context = zmq.Context()
        self.log = tempfile.TemporaryFile("w+")
        self.listen()
        self.p = subprocess.Popen([BIN, "worker", "--connect", self.end, "--data-root", f.file("data"), "--workers", str(workers)],
                                  stderr=self.log)

    def listen(self):
        self.router = self.context.socket(zmq.ROUTER)
        self.router.bind(self.end)

    def away(self):
        self.router.close(0)
        os.remove(self.end.removeprefix("ipc://"))

    def said(self):
        log = self.log.fileno()
        return os.pread(log, os.fstat(log).st_size, 0).decode()

    def joins(self, limit_s=60):
        """The next JOIN of a worker: who, and what it says."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if not self.router.poll(100):
                check(self.p.poll() is None, f"it ended with {self.p.poll()}: {self.said()}")
                continue
            who, _, said = self.router.recv_multipart()
            said = json.loads(said)
            if "build" in said:  # its supervisor sends messages too
                return who, said
        raise AssertionError(f"no worker joined: {self.said()}")

    def answer(self, who, kind, said):
        self.router.send_multipart([who, *message(said, kind)])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait(60)
        self.router.close(0)
        self.context.destroy(0)
        self.log.close()


def error(code, words="so it is"):
    return {"code": code, "message": words}


def sent_away_for_a_while_it_comes_back():
    """A fresh process does, after the time that the daemon said; why is logged once. A signal ends the wait."""
    with Folder(images=48) as f, Played(f) as d:
        who, first = d.joins()
        d.answer(who, BYE, {"again": True, "wait_s": 3, "why": "rows of this key differ\x1b[2J"})
        since = time.monotonic()
        who, second = d.joins()
        waited = time.monotonic() - since
        check(2.9 < waited < 30 and second["pid"] != first["pid"], f"{waited:.1f} s, {first}, {second}")
        check(d.said().count("seconds=3") == 1 and "rows of this key differ" in d.said() and "\x1b" not in d.said(), d.said())
        check("replaced" not in d.said(), d.said())
        d.answer(who, BYE, {"again": True})  # without a time it comes back at once
        since = time.monotonic()
        who, _ = d.joins()
        check(time.monotonic() - since < 3, "it waited")
        d.answer(who, BYE, {"again": True, "wait_s": 1 << 60, "why": "for ever"})
        wait_for(lambda: "seconds=7200" in d.said(), "it waits")
        d.p.terminate()
        check(d.p.wait(10) == 0, f"it left with {d.p.returncode}: {d.said()}")


def what_ends_it_for_good():
    """To make other rows, and what an operator must mend. The exit code says which."""
    with Folder(images=48) as f:
        for code, ends in (("ST_MISMATCH", 69), ("ST_CONFIG", 78), ("ST_NO_INPUT", 66)):
            with Played(f, workers=2) as d:
                d.answer(d.joins()[0], ERROR, error(code))
                check(d.p.wait(60) == ends and "so it is" in d.said(), f"{code}: {d.p.returncode}: {d.said()}")


def a_breach_is_waited_out():
    """Whatever a dispatcher takes for a breach of the protocol ends a worker and not its supervisor."""
    with Folder(images=48) as f, Played(f) as d:
        for times in (1, 2):
            who, _ = d.joins()
            since = time.monotonic()
            d.answer(who, ERROR, error("ST_PROTOCOL", "it sends rows that were not asked for"))
            wait_for(lambda: f"seconds={10 * times}\n" in d.said(), "it says how long it waits")  # noqa: B023
            check("it sends rows that were not asked for" in d.said() and d.p.poll() is None, d.said())
            if times == 1:
                d.joins()
                check(time.monotonic() - since > 9.9, "it came back too soon")
                for worker in workers_below(d.p.pid):
                    os.kill(worker, signal.SIGKILL)  # one that lives is replaced at once
        d.p.terminate()
        check(d.p.wait(10) == 0, f"it left with {d.p.returncode}: {d.said()}")


def a_daemon_that_is_away_for_long_is_waited_for():
    """For longer than the minute after which its workers give up. One that was never there is not."""
    with Folder(images=48) as f, Played(f) as d:
        words = [BIN, "worker", "--connect", "ipc://" + f.file("never.sock"), "--data-root", f.file("data")]
        never = subprocess.Popen(words, stderr=subprocess.PIPE)
        d.joins()
        d.away()
        wait_for(lambda: "is started again later" in d.said() or d.p.poll() is not None, "the worker gives up", 120)
        check(d.p.poll() is None, f"it left with {d.p.returncode}: {d.said()}")
        d.listen()
        d.joins()
        check(never.wait(120) == 75, f"exit code {never.returncode}: {never.stderr.read()}")


main(sent_away_for_a_while_it_comes_back, what_ends_it_for_good, a_breach_is_waited_out,
     a_daemon_that_is_away_for_long_is_waited_for)
