# SPDX-License-Identifier: Apache-2.0
"""Makes workers die while a test looks on: killed, stopped, by a SIGSEGV from outside, out of memory. A death is
counted once, when the process above says that it has replaced the worker, and as the kind of death that it names."""

import contextlib
import glob
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from prepd_flow import BIN, Daemon, check, command_line, gone, run, workers_below

# AddressSanitizer's handler of SIGSEGV does not say whether the signal was sent by another process; ours does.
os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0"
DIES_S = 20.0  # a worker that is struck has ended by then, even on a busy machine
TOLD_S = 1.0  # and this long after that, its replacement is in the log, unless it left by itself
STARVED_S = 0.5  # a worker without memory that lives longer than this needs no more


def starve(pid):
    """From now on no page can be added to the worker's heaps. RLIMIT_AS would not do: it counts an arena's 64 MiB
    when they are reserved."""
    resource.prlimit(pid, resource.RLIMIT_DATA, (1, resource.RLIM_INFINITY))  # 0 would mean no limit


def feed(pid):
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


KINDS = {"killed": lambda pid: os.kill(pid, signal.SIGKILL), "stopped": lambda pid: os.kill(pid, signal.SIGSTOP),
         "sent SIGSEGV": lambda pid: os.kill(pid, signal.SIGSEGV), "no memory": starve}
CAUSES = {"killed": r"signal 9 ", "stopped": r"signal 9 ",  # at once, by the process that started it
          "sent SIGSEGV": r"signal 11 .*sent by another process", "no memory": r"exit|signal (5|6|11) \([^)]*\)$"}
AT_START = {"killed", "stopped"}  # of other kinds, a death before it has begun would count as a worker that cannot start
ANY_AGE = 0.15  # the share of strikes that may hit a worker before it has begun


def larger_pictures(folder, every=16):
    """Makes some pictures larger, so that a worker that meets one needs memory that it did not need before."""
    run("synth", "--out", folder.file("large"), "--images", "16", "--seed", "2", "--sizes", "coco")
    large = sorted(glob.glob(folder.file("large/images/*/*.jpg")))
    for k, image in enumerate(folder.train_images()[::every]):
        shutil.copyfile(large[k % len(large)], image)


def has_begun(pid):
    """Whether the worker is in its sandbox and has been given leases."""
    try:
        with open(f"/proc/{pid}/status") as f:
            return "Seccomp:\t2" in f.read()
    except OSError:
        return False


def what_it_does(pid):
    """Its command line, and for each thread the name, state, pending or blocked signals, and what it waits for."""
    said = [" ".join(command_line(pid))]
    for task in glob.glob(f"/proc/{pid}/task/*"):
        with contextlib.suppress(OSError), open(task + "/status") as status, open(task + "/wchan") as wchan:
            said.append(", ".join([*re.findall(r"^(?:Name|State|PPid|TracerPid|SigPnd|ShdPnd|SigBlk):\t.*", status.read(), re.M),
                                   wchan.read()]).replace("\t", " "))
    return "\n".join(said)


class Supervisor(Daemon):
    """prepd worker: a process that keeps workers for a daemon elsewhere."""

    def __init__(self, end, folder, *args):
        self.log = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen([BIN, "worker", "--connect", end, "--data-root", folder.file("data"), *args], stderr=self.log)


class Struck:
    """A worker, and what was done to it."""

    def __init__(self, pid, kind, above):
        self.pid, self.kind, self.above = pid, kind, above
        self.since, self.told, self.gone_s = time.monotonic(), len(above.said()), None

    def end(self):
        """How the worker ended, as the process above says; None if that has not said anything yet, "" if it will
        not."""
        said = re.search(rf'worker (?:replaced|died at start) pid={self.pid} cause="(.*)"', self.above.said()[self.told:])
        if said or self.above.p.poll() is not None:
            return said[1] if said else ""
        if not gone(self.pid):
            self.gone_s = None
            return None
        self.gone_s = self.gone_s or time.monotonic()
        return "" if time.monotonic() - self.gone_s > TOLD_S else None


class Deaths(threading.Thread):
    """Strikes workers until as many have died as was asked, in equal numbers of each kind as far as possible."""

    def __init__(self, rng, most, kinds=tuple(KINDS), every_s=(0.005, 0.06)):
        super().__init__()
        self.rng, self.most, self.every_s = rng, most, every_s
        self.lock = threading.Lock()
        self.above = []  # daemons and supervisors whose workers die
        self.done = dict.fromkeys(kinds, 0)
        self.elsewhere = 0  # how many of them were workers of a supervisor
        self.dying = []
        self.any_age = False  # whether the next one may be struck before it has begun
        self.over, self.failed = False, None

    @contextlib.contextmanager
    def among(self, above):
        """Workers of this daemon or supervisor die inside the block."""
        with self.lock:
            self.above.append(above)
        try:
            yield
        finally:
            with self.lock:
                self.count()
                self.above.remove(above)
                for s in self.dying:
                    if s.above is above and s.kind == "no memory":
                        feed(s.pid)
                self.dying = [s for s in self.dying if s.above is not above]

    def n(self):
        return sum(self.done.values())

    def enough(self, short=0):
        """Whether enough have died. short: how much of what the deaths must have cost is missing; that many more die
        for it."""
        check(self.is_alive() or not self.failed, f"workers are no longer killed: {self.failed}")
        if self.n() >= self.most and short > 0:
            self.most = self.n() + math.ceil(short)
        return self.n() >= self.most

    def run(self):
        try:
            while not self.over:
                time.sleep(self.rng.uniform(*self.every_s))
                with self.lock:
                    self.count()
                    if self.n() + len(self.dying) < self.most:
                        self.strike()
        except BaseException as why:  # noqa: BLE001: the test must hear of it
            self.failed = why

    def count(self):
        left = []
        for s in self.dying:
            end, late = s.end(), time.monotonic() - s.since
            if end is not None:
                fits = re.match(CAUSES[s.kind], end)
                self.done[s.kind] += bool(fits)
                self.elsewhere += bool(fits) and isinstance(s.above, Supervisor)
            elif s.kind == "no memory" and late > STARVED_S and not gone(s.pid):
                feed(s.pid)
            else:
                check(late < DIES_S or gone(s.pid), f"{s.pid}, {s.kind}, lives {late:.1f} s later: {what_it_does(s.pid)}")
                left.append(s)
        self.dying = left

    def strike(self):
        kind = min(self.done, key=lambda k: (self.done[k] + sum(s.kind == k for s in self.dying), self.rng.random()))
        struck = {s.pid for s in self.dying}
        victims = [(pid, above) for above in self.above for pid in workers_below(above.p.pid)
                   if pid not in struck and ((self.any_age and kind in AT_START) or has_begun(pid))]
        if not victims:
            return
        pid, above = self.rng.choice(victims)
        one = Struck(pid, kind, above)
        with contextlib.suppress(ProcessLookupError):
            KINDS[kind](pid)
            self.dying.append(one)
            self.any_age = self.rng.random() < ANY_AGE

    def end(self):
        """Checks that all went well; returns in words what was done."""
        self.over = True
        self.join()
        if self.failed:
            raise self.failed
        return f"{self.n()} deaths ({', '.join(f'{n} {kind}' for kind, n in self.done.items())})"
