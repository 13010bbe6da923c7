# SPDX-License-Identifier: Apache-2.0
"""What systemd's AllowedCPUs= and MemoryMax= do to a daemon, done by hand. A CPU set, given before the start or
changed later, holds for all its workers; a memory limit that kills workers changes no row. The cgroups are of
version 2 or 1, whichever has the controller; what cannot be made here is reported."""

import json
import os
import re
import subprocess
import sys
import time

from prepd_flow import SANITIZED, Daemon, Folder, check, main, run, wait_for, workers_below

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402

MIB = 1 << 20


def allowed(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(line.split()[1] for line in f if line.startswith("Cpus_allowed_list"))


def status(folder):
    return json.loads(run("status", "-c", folder.config, "--json"))


def up(folder, n):
    wait_for(lambda: os.path.exists(folder.file("d.sock.control")), "control endpoint")
    wait_for(lambda: len(status(folder)["workers"]) == n, f"{n} workers")


class Group:
    """A cgroup with this controller below the root of its hierarchy; None inside `with` if none can be made."""

    def __init__(self, controller):
        self.path = None
        with open("/proc/mounts") as f:
            mounts = [line.split() for line in f]
        for _, at, kind, options, *_ in mounts:
            if kind == "cgroup" and controller in options.split(","):
                self.make(at, 1)
            elif kind == "cgroup2" and not self.path:
                with open(os.path.join(at, "cgroup.subtree_control")) as f:
                    if controller in f.read().split():
                        self.make(at, 2)

    def make(self, at, version):
        path = os.path.join(at, f"tessera-test-{os.getpid()}")
        try:
            os.mkdir(path)
        except OSError:
            return
        self.path, self.version, self.at = path, version, at

    def put(self, name, value):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(str(value))

    def enter(self):
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]

    def __enter__(self):
        return self if self.path else None

    def __exit__(self, *_):
        end = time.monotonic() + 10
        while self.path and time.monotonic() < end:  # until the processes that have just ended are gone
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.1)


def a_cpu_set_holds_for_all():
    """With the affinity that the daemon was started with there are as many workers as CPUs, on those alone."""
    mine = sorted(os.sched_getaffinity(0))
    with Folder(**{"prepd.workers": 0}) as f, Daemon(f.config, by=["taskset", "-c", str(mine[-1])]) as d:
        up(f, 1)
        for pid in (d.p.pid, *workers_below(d.p.pid)):
            check(allowed(pid) == str(mine[-1]), f"{pid} may use {allowed(pid)}, wanted {mine[-1]}")


def a_cpu_set_is_changed_under_it():
    """As systemctl set-property prep.slice AllowedCPUs= does."""
    mine = sorted(os.sched_getaffinity(0))
    with Group("cpuset") as g:
        if not g or len(mine) < 2:
            print("skipped: no CPU sets can be made here, or there is one CPU")
            return
        if g.version == 1:
            with open(os.path.join(g.at, "cpuset.mems")) as m:
                g.put("cpuset.mems", m.read())
        g.put("cpuset.cpus", mine[0])
        with Folder(**{"prepd.workers": 0}) as f, Daemon(f.config, by=g.enter()) as d:
            up(f, 1)
            everyone = (d.p.pid, *workers_below(d.p.pid))
            check(all(allowed(pid) == str(mine[0]) for pid in everyone), "not kept to its set")
            g.put("cpuset.cpus", mine[-1])
            check(all(allowed(pid) == str(mine[-1]) for pid in everyone), "not moved to its new set")
            run("scale", "2", "-c", f.config)
            up(f, 2)
            check(all(allowed(pid) == str(mine[-1]) for pid in workers_below(d.p.pid)), "a new one left the set")


HOG = """import mmap, sys, time
m = mmap.mmap(-1, int(sys.argv[1]))
for at in range(0, len(m), 4096):
    m[at] = 1
print("full", flush=True)
sys.stdin.read()
"""


def too_little_memory_for_its_workers():
    """Another process brings a group to its limit, so the kernel kills workers, which offer themselves for that (it
    would otherwise kill the largest process). No row changes, no sample is blamed, and they come back."""
    with Group("memory") as g:
        if not g or SANITIZED:
            print("skipped: no memory limits can be made here, or a sanitizer needs more")
            return
        usage, limit, events, swap = (
            ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control", "memory.swappiness"),
            ("memory.current", "memory.max", "memory.events", "memory.swap.max"))[g.version - 1]

        def killed():
            with open(os.path.join(g.path, events)) as x:
                return sum(int(v) for k, v in (line.split() for line in x) if k == "oom_kill")

        with Folder(**{"training.epochs": 2, "prepd.workers": 4}) as f:
            def rows(at=-1, do=None):
                out = []
                for row in client.connect("ipc://" + f.file("d.sock"), timeout=60.0):
                    out.append((row["number"], list(row["doc_sample_id"]), row["pixels"].tobytes()))
                    if row["number"] == at:
                        do()
                return out
            with Daemon(f.config, by=g.enter()) as d:
                up(f, 4)
                wanted = rows()
                hogs = []

                def press():
                    with open(os.path.join(g.path, usage)) as x:
                        now = int(x.read())
                    g.put(swap, 0)
                    g.put(limit, now + 16 * MIB)
                    hogs.append(subprocess.Popen([*g.enter(), sys.executable, "-c", HOG, str(40 * MIB)],
                                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
                    hogs[0].stdout.readline()
                got = rows(4, press)
                hogs[0].communicate()
                mine = len(re.findall(r'worker (?:replaced|died at start) pid=\d+ cause="signal 9 ', d.said()))
                check(0 < mine <= killed(), f"{killed()} were killed, {mine} of them workers\n{d.said()}")
                check(got == wanted and "quarantined" not in d.said(), d.said())
                up(f, 4)
                print(f"{killed()} killed, {mine} of them workers")


main(a_cpu_set_holds_for_all, a_cpu_set_is_changed_under_it, too_little_memory_for_its_workers)
