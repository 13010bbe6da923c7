# SPDX-License-Identifier: Apache-2.0
"""Ranks on two machines, which are network namespaces with a cable between them that is cut in the middle of the run.
The ranks on either side end within the configured time, with an exit code, and the log of each names the lost
rank, its step, call and samples. Plugged in again, the run continues. Needs root, ip(8) and mpirun; skipped
without them."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

from mpirun_env import MPIRUN_ENV
from prepd_flow import LIMIT_S, Folder, check, main, text_of
from resume_flow import ledger, recorded
from train_flow import SHORT, TRAINER, has_mpi, options

if not has_mpi():
    print("skipped: Open MPI was not found when this was built")
    sys.exit(77)
if os.geteuid() != 0 or not shutil.which("ip") or subprocess.run(
        ["ip", "netns", "add", f"probe{os.getpid()}"], capture_output=True).returncode != 0:
    print("skipped: network namespaces need root and ip(8)")
    sys.exit(77)
subprocess.run(["ip", "netns", "del", f"probe{os.getpid()}"], check=True)

RANKS, SILENCE_S, ENDING_S = 4, 8, 5
SEED = int(os.environ.get("TESSERA_SEED", random.randrange(1 << 30)))
rng = random.Random(SEED)
ENV = dict(MPIRUN_ENV, MASTER_ADDR="10.78.0.1")
WHERE = r"step \d+, (in|after) (all gather|reduce scatter|all reduce|broadcast): [a-z ]+( of layer \d+)? over [a-z_]+"
# mpirun calls this to start its daemon on another machine, here a namespace with its own host name.
AGENT = """#!/bin/sh
host=$1
shift
exec ip netns exec $host unshare -u sh -c "hostname $host; $*"
"""


def ip(*args):
    p = subprocess.run(["ip", *args], capture_output=True, text=True)
    check(p.returncode == 0, f"ip {' '.join(args)}: {p.stderr}")
    return p.stdout


class Sites:
    def __init__(self, folder):
        tag = f"t{os.getpid() % 100000}"
        self.names = [tag + "a", tag + "b"]
        self.agent = folder.file("agent")
        with open(self.agent, "w") as f:
            f.write(AGENT)
        os.chmod(self.agent, 0o755)
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.names[0], "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", self.names[1])
        for k, name in enumerate(self.names):
            ip("-n", name, "addr", "add", f"10.78.0.{1 + k}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")

    def cable(self, state):
        """Takes the cable down, or up and then waits until each side reaches the other, which takes the kernel
        seconds."""
        ip("-n", self.names[0], "link", "set", "wire", state)
        end = time.monotonic() + LIMIT_S
        while state == "up" and not (self.reaches(0) and self.reaches(1)):
            check(time.monotonic() < end, "the cable does not come up")
            time.sleep(0.05)

    def reaches(self, k):
        """Whether the other side answers; that nothing listens there is an answer."""
        words = [sys.executable, "-c", "import errno, socket, sys; s = socket.socket(); s.settimeout(2); "
                 "sys.exit(s.connect_ex((sys.argv[1], 9)) != errno.ECONNREFUSED)", f"10.78.0.{2 - k}"]
        return subprocess.run(["ip", "netns", "exec", self.names[k], *words], capture_output=True).returncode == 0

    def trainers(self):
        """Process ids of the ranks on both sides."""
        ids = [int(i) for name in self.names for i in ip("netns", "pids", name).split()]
        return [i for i in ids if text_of(f"/proc/{i}/comm").strip() == "trainer"]

    def start(self, folder, name, steps):
        values = dict(SHORT, **{"job.dump_folder": folder.file(name), "training.steps": steps, "training.backend": "cpu",
                                "training.threads": 1, "feed.replay": folder.file("rows.rec"), "checkpoint.enable": "true",
                                "checkpoint.interval": 2, "comm.heartbeat_timeout_seconds": SILENCE_S})
        a, b = self.names
        words = ["mpirun", "-np", str(RANKS), "-H", f"{a}:2,{b}:2", "--map-by", "node", "-x", "MASTER_ADDR",
                 "--mca", "plm_rsh_agent", self.agent, "--mca", "oob_tcp_if_include", "wire", "--mca", "btl_tcp_if_include",
                 "wire", "--mca", "odls_base_sigkill_timeout", "5", TRAINER, "train", "-c", folder.config, *options(values)]
        with open(folder.file(name + ".said"), "a") as said:
            return subprocess.Popen(["ip", "netns", "exec", a, "unshare", "-u", "sh", "-c",
                                     f'hostname {a}; exec "$0" "$@"', *words], env=ENV, stdout=said, stderr=said)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in self.names:
            for i in ip("netns", "pids", name).split():
                try:
                    os.kill(int(i), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def steps_done(f, name):
    return max(ledger(f, name), default=0) if os.path.exists(f.file(name + "/ledger.jsonl")) else 0


def a_cut_cable_ends_both_sides():
    with Folder(images=16) as f, Sites(f) as sites:
        recorded(f)
        p = sites.start(f, "cut", 100000)
        end = time.monotonic() + LIMIT_S
        while steps_done(f, "cut") < 3:
            check(p.poll() is None and time.monotonic() < end, text_of(f.file("cut.said")))
            time.sleep(0.05)
        check(len(sites.trainers()) == RANKS, f"{sites.trainers()} are not {RANKS} ranks")
        time.sleep(1 + rng.uniform(0, 1))  # after a sign of life of each rank, so that the others have heard of a step
        cut = time.monotonic()
        sites.cable("down")
        while sites.trainers() and time.monotonic() < cut + LIMIT_S:
            time.sleep(0.1)
        took = time.monotonic() - cut
        check(not sites.trainers(), f"ranks run on {took:.0f} s after the cut\n" + text_of(f.file("cut.said")))
        print(f"all ranks ended {took:.1f} s after the cut; silence is noticed after {SILENCE_S}, then {ENDING_S} at most")
        for rank in range(RANKS):
            log = text_of(f.file(f"cut/log/rank-{rank}.log"))
            line = next((l for l in log.splitlines() if "the run ends:" in l), "")
            lost = re.search(r"the run ends: rank (\d) ", line)
            check(lost and int(lost[1]) % 2 != rank % 2, f"rank {rank} does not name one of the other side: {line}\n{log}")
            check(re.search(rf"{WHERE}.*samples( \d+)+.*; this rank: {WHERE}.*samples( \d+)+", line), line)
        try:
            check(p.wait(10) != 0, "exit code 0")
        except subprocess.TimeoutExpired:  # mpirun waits for its daemon on the other side
            p.kill()
            p.wait()
        sites.cable("up")
        done = steps_done(f, "cut")
        p = sites.start(f, "cut", done + 4)
        check(p.wait(LIMIT_S) == 0, text_of(f.file("cut.said"))[-4000:])
        check("resuming from step" in text_of(f.file("cut.said")) and steps_done(f, "cut") == done + 4, text_of(f.file("cut.said"))[-4000:])


print(f"seed {SEED} (TESSERA_SEED repeats it)")
main(a_cut_cable_ends_both_sides)
