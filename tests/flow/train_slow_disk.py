"""Ranks that save on a disk on which one of them takes far longer than a collective may take: the others wait, none
ends the run, and what was trained is saved whole. Replicas that write nothing, checkpoints in the background and
not, the end of a run, and an end by a bad gradient."""

import os
import shutil
import sys

from faults import sanitized
from prepd_flow import Folder, check, main
from resume_flow import STREAM, go, ledger, recorded, spoiled
from train_flow import TRAINER

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


if shutil.which("mpirun") is None or not os.path.exists(os.path.join(HERE, "../lib/libtessera_mpi.so")):
    print("skipped: Open MPI was not found when this was built")
    sys.exit(77)
if sanitized():
    sys.exit(77)
main(others_wait_for_a_slow_disk, a_run_that_ends_badly_is_kept)
