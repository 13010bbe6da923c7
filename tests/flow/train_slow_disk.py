# SPDX-License-Identifier: Apache-2.0
"""Ranks that save on a disk on which one of them takes far longer than a collective may take: the others wait, none
ends the run, and what was trained is saved whole. Replicas that write nothing, checkpoints in the background and
not, the end of a run, and an end by a bad gradient. And a disk that fills up."""

import os
import subprocess
import sys
import time

from faults import sanitized
from prepd_flow import BUSY_S, LIMIT_S, Folder, check, main
from resume_flow import STREAM, command, go, ledger, recorded, spoiled
from train_flow import TRAINER, has_mpi

HERE = os.path.dirname(TRAINER)
SLOW = {"LD_PRELOAD": os.path.join(HERE, "../tests/libslow_disk.so"), "TESSERA_SLOW_RANK": "0"}
# A collective may take five seconds, and so may what follows a failure; a launcher waits for ten.
RANKS = {"nproc": 2, "training__backend": "cpu", "comm__train_timeout_seconds": 5}
REPLICAS = {"parallelism__data_parallel_replicate_degree": 2, "parallelism__data_parallel_shard_degree": 1}


def slowly(ms, test):
    os.environ.update(SLOW, TESSERA_SLOW_MS=str(ms))
    try:
        return test()
    finally:
        for name in (*SLOW, "TESSERA_SLOW_MS"):
            os.environ.pop(name, None)


def kept(f, name, *steps):
    for step in steps:
        check(os.path.exists(f.file(f"{name}/checkpoint/step-{step}/training/state.json")), f"{name}: step {step} is not kept")
    check(max(ledger(f, name)) == max(steps), f"{name}: {max(ledger(f, name))} steps")


def others_wait_for_a_slow_disk():
    with Folder(images=16, **STREAM) as f:
        run = dict(recorded(f, 2), **RANKS, checkpoint__interval=0)
        for name, more in ("sync", dict(REPLICAS, checkpoint__async_mode="disabled", checkpoint__interval=1)), ("shards", {}):
            slowly(420, lambda: go(f, name, **dict(run, **more)))  # noqa: B023
            kept(f, name, *([1, 2] if "interval" in str(more) else [2]))


def a_run_that_ends_badly_is_kept():
    with Folder(images=16, **STREAM) as f:
        run = dict(recorded(f, 1), checkpoint__interval=0)
        go(f, "model", **dict(run, optimizer__lr=1e-9))
        model = spoiled(f, "bad", "model.language_model.layers.1.self_attn.o_proj.weight", 0)
        said = slowly(1300, lambda: go(f, "replicas", code=65, model__path=model, training__nonfinite="stop",
                                       **run, **RANKS, **REPLICAS))
        check("training.nonfinite says stop" in said and "its process is ended" not in said, said)
        kept(f, "replicas", 1)


def room_ends_for_rank_1():
    """Whether it ended for that rank alone."""
    with Folder(images=16, **STREAM) as f:
        run = dict(recorded(f, 2), **RANKS, checkpoint__interval=1)
        os.makedirs(f.file("full/checkpoint"))
        inside = (f"mount -t tmpfs -o size=64m none {f.file('full/checkpoint')} && \"$@\" && "
                  f"ls {f.file('full/checkpoint')} && cp -r {f.file('full/checkpoint')} {f.file('kept')}")
        env = dict(os.environ, LD_PRELOAD=SLOW["LD_PRELOAD"], TESSERA_FULL_AT=".step-1.writing/training/.rank-1.")
        begin = time.monotonic()
        p = subprocess.run(["unshare", "-m", "sh", "-c", inside, "sh", *command(f, "full", **run)], capture_output=True,
                           text=True, timeout=LIMIT_S, env=env)
        took, said = time.monotonic() - begin, p.stdout + p.stderr
        check(p.returncode == 0, said)
        line = next((line for line in said.splitlines() if "the checkpoint of step 1 is not written" in line and "trainer[0]" in line), "")
        for words in ("No space left on device", "checkpoint.keep_latest_k"):
            check(words in line, f"{words!r} is not in {line!r}\n{said}")
        check(os.path.exists(f.file("kept/step-2/training/manifest.json")) and not os.path.exists(f.file("kept/step-1")), said)
        check(took < 4 * BUSY_S, f"it took {took:.0f} s")
        return "rank 1: " in line and "/training/.rank-1.done" in line


def a_full_disk_costs_one_checkpoint():
    """A tmpfs has no room left when rank 1 says that its part of step 1's checkpoint is done. Rank 0 hears of it at
    once, by the rank link, and the run continues to a whole checkpoint of step 2. If rank 0 is still writing then, it
    has no room either; the test tries again."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        print("skipped: no file system can be mounted here")
        return
    for _ in range(8):
        if room_ends_for_rank_1():
            return
    raise AssertionError("rank 0 had no room in eight runs: the test shows nothing")


if not has_mpi():
    print("skipped: Open MPI was not found when this was built")
    sys.exit(77)
if sanitized():
    sys.exit(77)
main(others_wait_for_a_slow_disk, a_run_that_ends_badly_is_kept, a_full_disk_costs_one_checkpoint)
