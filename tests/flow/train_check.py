# SPDX-License-Identifier: Apache-2.0
"""trainer check: the table of what must not change a step, and a model in which something does."""

import json
import os

from prepd_flow import Daemon, Folder, check, main
from resume_flow import STREAM, go, recorded
from train_flow import SHORT, TRAINER, has_mpi, options, trainer

RECOMPUTED = tuple(f"activation checkpointing {mode}" for mode in (
    "none  ", "selective, op  ", "selective, op, save attention", "selective, 2", "full  "))
CASES = RECOMPUTED + ("the same again", "one micro-batch of all rows", "one thread",
         "documents one by one", "resumed after step 1")


def asked(f, *more, code=0):
    values = dict(SHORT, **{"training.global_batch_size": 2, "job.dump_folder": f.file("check")})
    return trainer("check", "-c", f.config, *options(values), *more, code=code)


def nothing_changes_a_step():
    with Folder(**STREAM) as f:
        with Daemon(f.config):
            said = asked(f, "--steps", "3", "--loss.router_aux_coef", "0.01")
        lines = {case: [line for line in said.splitlines() if case in line] for case in CASES}
        check(all(len(found) == 1 and found[0].endswith(" ok") for found in lines.values()), said)
        for case in RECOMPUTED + ("the same again", "one thread", "resumed after step 1"):
            check(lines[case][0].count("to the bit") == 2, said)
        check(said.startswith(f"weights: {f.file('data/model')}, drawn from training.seed, as a run begins; no checkpoint"), said)
        check("router_aux_coef is taken as 0" in said and "one rank against several" in said, said)
        check(os.listdir(f.file("check")) == [], "it leaves files behind")
        check("--steps" in trainer("check", "-c", f.config, "--steps", "1", code=64), "one step cannot be resumed")
        said = asked(f, "--feed.timeout", "1.5", code=69)
        check("waiting for prepd at" in said and "prepd serve" in said, said)


def a_nan_counts_as_off():
    with Folder(**STREAM) as f:
        rows = recorded(f, 2)
        go(f, "good", **rows)
        path = f.file("good/checkpoint/model.safetensors")
        with open(path, "rb") as file:
            data = bytearray(file.read())
        header = 8 + int.from_bytes(data[:8], "little")
        about = json.loads(data[8:header])
        at = header + about[next(n for n in about if n.endswith("q_proj.weight"))]["data_offsets"][0]
        data[at:at + 2] = b"\xc0\x7f"  # bf16 NaN
        os.remove(path)  # it is a link into the last step's folder
        with open(path, "wb") as file:
            file.write(data)
        said = asked(f, "--feed.replay", f.file("rows.rec"), "--model.path", f.file("good/checkpoint"), code=65)
        check("OFF" in said and "differ by more than rounding" in said, said)


def one_rank_against_several():
    """In the layout of the options if it is one for as many ranks, else in shards. A batch that does not fit them is
    reported before anything is run."""
    if not has_mpi():
        print("skipped: Open MPI was not found when this was built")
        return
    with Folder(**STREAM) as f:
        with Daemon(f.config):
            said = asked(f, "--nproc", "2", "--training.backend", "cpu",
                         "--parallelism.data_parallel_replicate_degree", "2")
        line = next(line for line in said.splitlines() if line.startswith("2 ranks, replicate 2 "))
        check(line.endswith(" ok") and float(line.split()[-3]) < 1e-6, said)
        said = asked(f, "--nproc", "2", "--training.backend", "cpu", "--parallelism.world_size", "8",
                     "--training.local_batch_size", "2", code=78)
        check("is not a multiple of" in said and "2 data-parallel ranks" in said, said)
        check(os.listdir(f.file("check")) == [], "it leaves files behind")


main(nothing_changes_a_step, a_nan_counts_as_off, one_rank_against_several)
