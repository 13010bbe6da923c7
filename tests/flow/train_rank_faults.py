"""A training run of four ranks loses one of them, killed or stopped at a moment that the seed decides:
the run ends with an exit code, and the log file of every other rank names the lost one, its step, its
call and its samples."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

from prepd_flow import Folder, children, check, main
from resume_flow import recorded
from train_flow import SHORT, TRAINER, options

RANKS, LIMIT_S = 4, 120
SEED = int(os.environ.get("TESSERA_SEED", random.randrange(1 << 30)))
rng = random.Random(SEED)
WHERE = r"step \d+, (in|after) (all gather|reduce scatter|all reduce|broadcast): [a-z ]+( of layer \d+)? over [a-z_]+"


def read(path):
    try:
        with open(path) as f:
            return f.read()
    except FileNotFoundError:
        return ""


def rank_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as f:
        found = re.search(rb"\0OMPI_COMM_WORLD_RANK=(\d+)", f.read())
    return int(found[1]) if found else None


def start(f, name):
    """A run that has done two steps, and the file of what it says."""
    values = dict(SHORT, **{"job.dump_folder": f.file(name), "training.steps": 100000, "training.backend": "cpu",
                            "feed.replay": f.file("rows.rec"), "comm.heartbeat_timeout_seconds": 2})
    with open(f.file(name + ".said"), "w") as said:
        p = subprocess.Popen([TRAINER, "train", "-c", f.config, "--nproc", str(RANKS), *options(values)],
                             stdout=said, stderr=said)
    end = time.monotonic() + LIMIT_S
    while read(f.file(name + "/metrics.jsonl")).count("\n") < 2:
        if p.poll() is not None or time.monotonic() > end:
            p.kill()
            check(False, read(f.file(name + ".said")))
        time.sleep(0.05)
    return p, f.file(name + ".said")


def lose(f, name, number, cause):
    rank, pids = rng.randrange(1, RANKS), {}
    p, _ = start(f, name)
    try:
        pids = {rank_of(pid): pid for mpirun in children(p.pid) for pid in children(mpirun)}
        check(set(pids) >= set(range(RANKS)), f"{pids}")
        time.sleep(rng.uniform(0.2, 1.2))
        os.kill(pids[rank], number)
        code = p.wait(LIMIT_S)
        check(code != 0, f"exit code {code}")
    finally:
        for pid in [p.pid, *pids.values()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    for other in set(range(RANKS)) - {rank}:
        log = read(f.file(f"{name}/log/rank-{other}.log"))
        line = next((l for l in log.splitlines() if "the run ends:" in l), "")
        check(re.search(rf"the run ends: rank {rank} \(.*, pid {pids[rank]}\) {cause}", line), f"{line}\n{log}")
        check(re.search(rf"heard last .*{WHERE}.*samples( \d+)+.*; this rank: {WHERE}.*samples( \d+)+", line), line)


def lost_ranks_are_named():
    with Folder(images=16) as f:
        recorded(f)
        lose(f, "killed", signal.SIGKILL, "died")
        lose(f, "stopped", signal.SIGSTOP, "says nothing for 2.0 s")


def the_launchers_signal_stops_all_after_the_same_step():
    with Folder(images=16) as f:
        recorded(f)
        p, said = start(f, "ended")
        p.send_signal(signal.SIGTERM)
        code = p.wait(LIMIT_S)
        said = read(said)
        check(code == 0 and len(set(re.findall(r"stopping after step \d+ as asked", said))) == 1, f"{code}\n{said}")


if shutil.which("mpirun") is None or not os.path.exists(os.path.join(os.path.dirname(TRAINER), "../lib/libtessera_mpi.so")):
    print("skipped: Open MPI was not found when this was built")
    sys.exit(77)
print(f"seed {SEED} (TESSERA_SEED repeats it)")
main(lost_ranks_are_named, the_launchers_signal_stops_all_after_the_same_step)
