#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank of a training run is killed, stopped (SIGSTOP), or hangs in its work, in one layout after another, on the
emulated device with the double of NCCL, whose calls wait for a missing rank as NCCL's do. Where a layout captures its
steps, the ranks wait in graphs. Every other process ends by its deadline, and its log names the lost rank.

    tests/nccl/lost_ranks.py          the layouts of QUICK
    tests/nccl/lost_ranks.py --all    all of LAYOUTS
    tests/nccl/lost_ranks.py NAME ..  some of them
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../flow"))
os.environ.setdefault("TESSERA_SOURCE", os.path.join(HERE, "../.."))
os.environ.setdefault("TESSERA_BIN", os.path.join(HERE, "../../build/bin"))
from prepd_flow import LIMIT_S, Folder, check, children, text_of  # noqa: E402
from resume_flow import recorded  # noqa: E402
from train_flow import SHORT, TRAINER, options  # noqa: E402

TESTS = os.path.join(os.path.dirname(TRAINER), "../tests")
EMULATED, SHIM = os.path.join(TESTS, "trainer_emulated"), os.path.join(TESTS, "nccl_shim")
RANKS, AT_ONCE, STEPS = 4, 4, 3  # how many runs at once; steps done before a rank is lost
SILENCE_S, CALL_S = 6.0, 12.0
TRIAL = 1  # graphs of the trial before the first step
END_S = 10.0  # what NCCL's abort and the work of a process may take once the job is over; then the process is ended
SLACK_S = 15.0  # of a busy machine
SEED = int(os.environ.get("TESSERA_SEED", random.randrange(1 << 30)))

# name: the degrees that are not 1, and whether its steps are captured: where experts are shared, only by windows
LAYOUTS = {
    "shard 4": ({}, True),
    "replicate 2 x shard 2": ({"data_parallel_replicate": 2}, True),
    "expert 4": ({"expert_parallel": 4}, "by windows"),
    "tensor 2 x shard 2": ({"tensor_parallel": 2}, True),
    "context 4": ({"context_parallel": 4}, True),
    "context 2 x shard 2, expert 4": ({"context_parallel": 2, "expert_parallel": 4}, "by windows"),
    "tensor 2 x shard 2, expert 2, expert-tensor 2":
        ({"tensor_parallel": 2, "expert_parallel": 2, "expert_tensor_parallel": 2}, "by windows"),
    "pipeline 2 x shard 2": ({"pipeline_parallel": 2}, False),
}
QUICK = ["expert 4", "tensor 2 x shard 2", "context 4", "context 2 x shard 2, expert 4", "pipeline 2 x shard 2"]
# What happens to a rank: the signal, when the others must know at the latest, and how they say it.
FAULTS = {
    "killed": (signal.SIGKILL, 0.0, r"(died|is gone)"),
    "stopped": (signal.SIGSTOP, SILENCE_S, rf"has said nothing for {SILENCE_S:.1f} s"),
    "hung": (signal.SIGUSR2, CALL_S, r"(has not come to micro-batch|keeps the others waiting)"),
}


def rank_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as f:
        return int(re.search(rb"\0RANK=(\d+)", b"\0" + f.read())[1])


def has_windows():
    with open(os.path.join(SHIM, "libnccl.so.2"), "rb") as f:
        return b"ncclCommWindowRegister" in f.read()  # a build without nvcc has none


def graphs_of(f, name, rank):
    """The captured graph of each call of this rank that has ended; 0: it was in none."""
    lines = text_of(f.file(f"{name}.calls.{rank}")).splitlines()
    return [int(words[7]) for words in map(str.split, lines) if len(words) == 8]


def start(f, name, degrees, captured):
    """A run that has done some steps, of which the last was captured if any is, and its processes by rank."""
    folder = f.file(name)
    values = dict(SHORT, **{"job.dump_folder": folder, "training.backend": "cuda", "training.steps": 100000,
                            "feed.replay": f.file("rows.rec"), "eval.enable": "false",
                            "comm.heartbeat_timeout_seconds": SILENCE_S, "comm.train_timeout_seconds": CALL_S})
    values.update({f"parallelism.{key}_degree": n for key, n in degrees.items()})
    env = dict(os.environ, LD_LIBRARY_PATH=SHIM, TESSERA_NCCL_RECORD=folder + ".calls")
    with open(folder + ".said", "w") as said:
        p = subprocess.Popen([EMULATED, "train", "-c", f.config, "--nproc", str(RANKS), *options(values)],
                             stdout=said, stderr=said, env=env)
    end = time.monotonic() + LIMIT_S
    while (text_of(folder + "/metrics.jsonl").count("\n") < STEPS or (captured and not any(graphs_of(f, name, 0)[-1:]))) \
            and p.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    pids = {rank_of(pid): pid for pid in children(p.pid)}
    if p.poll() is not None or len(pids) != RANKS:
        p.kill()
        raise AssertionError(f"{name}: {pids}, exit code {p.poll()}\n{text_of(folder + '.said')}")
    return p, pids


def outlive(pids, by):
    """Waits until none of the processes is left; those that are left at that time are killed and returned."""
    left = list(pids)
    while left and time.monotonic() < by:
        time.sleep(0.05)
        left = [pid for pid in left if os.path.exists(f"/proc/{pid}")]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


def lose(f, layout, fault, rank):
    """Loses a rank; returns what there is to say of it."""
    degrees, captured = LAYOUTS[layout]
    captured = has_windows() if captured == "by windows" else captured
    number, known_s, cause = FAULTS[fault]
    name = f"{layout}, {fault}".replace(" ", "_")
    p, pids = start(f, name, degrees, captured)
    began = time.monotonic()
    os.kill(pids[rank], number)
    left = outlive([pid for r, pid in pids.items() if r != rank], began + known_s + END_S + SLACK_S)
    took = time.monotonic() - began
    left += outlive([pids[rank]], began + known_s + 2 * END_S + SLACK_S)  # the launcher kills a stopped one
    said = text_of(f.file(name + ".said"))
    check(not left, f"{layout}: a rank is {fault}, and {len(left)} processes are left after {took:.0f} s\n{said}")
    check(p.wait(LIMIT_S) != 0, f"{layout}: a rank is {fault}: exit code 0\n{said}")
    for other in set(range(RANKS)) - {rank}:
        log = text_of(f.file(f"{name}/log/rank-{other}.log"))
        check(re.search(rf"the run ends: rank {rank} \([^)]*, pid {pids[rank]}\) {cause}", log),
              f"{layout}: rank {rank} is {fault}, and the log of rank {other} is\n{log}\n{said}")
    graphs = max(max(graphs_of(f, name, other), default=0) for other in range(RANKS))
    check(captured == (graphs > TRIAL), f"{layout}: {graphs} captured graphs")
    return f"{layout}: rank {rank} is {fault}: the others ended within {took:.1f} s, with {graphs - TRIAL} captured graphs"


def main():
    names = list(LAYOUTS) if sys.argv[1:] == ["--all"] else sys.argv[1:] or QUICK
    rng = random.Random(SEED)
    print(f"seed {SEED} (TESSERA_SEED repeats it); {'with' if has_windows() else 'without'} windows", flush=True)
    with Folder(images=16) as f, ThreadPoolExecutor(AT_ONCE) as pool:
        recorded(f)
        cases = [pool.submit(lose, f, layout, fault, rng.randrange(1, RANKS)) for layout in names for fault in FAULTS]
        for case in cases:
            print(case.result(), flush=True)


if os.path.exists(EMULATED) and os.path.exists(SHIM):
    main()
else:
    print("skipped: nccl.h was not found when this was built")
    sys.exit(77)
