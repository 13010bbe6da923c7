# SPDX-License-Identifier: Apache-2.0
"""Ranks that share the rows of a live daemon: one of them receives, and the others get each row from it. The losses
are, bit for bit, those of a recording of the same rows, which every rank reads by itself; an evaluation finds what
one rank finds; a daemon that dies ends every rank with an error that names the rank which received the rows."""

import os
import re
import signal
import subprocess
import sys
import time

from prepd_flow import LIMIT_S, Daemon, Folder, check, main, text_of
from resume_flow import STREAM, recorded
from train_flow import SHORT, TRAINER, facts, has_mpi, options, train

STEPS = 4
LAYOUTS = {"context 2": {"context_parallel_degree": 2}, "tensor 2": {"tensor_parallel_degree": 2},
           "pipeline 2": {"pipeline_parallel_degree": 2},
           "shard 2 x context 2": {"data_parallel_shard_degree": 2, "context_parallel_degree": 2}}


def layout(degrees):
    ranks = 1
    for degree in degrees.values():
        ranks *= degree
    return {"nproc": ranks, "training__backend": "cpu", "training__global_batch_size": 2,
            "eval__enable": "false", **{"parallelism__" + k: v for k, v in degrees.items()}}


def live_rows_are_the_recordings():
    with Folder(images=16, **STREAM) as f:
        replay = recorded(f, STEPS)
        for name, degrees in LAYOUTS.items():
            own = train(f, name + " recorded", **replay, **layout(degrees))
            with Daemon(f.config):
                live = train(f, name + " live", training__steps=STEPS, **layout(degrees))
            check(facts(own) == facts(live) and len(live) == STEPS, f"{name}:\n{facts(own)}\n{facts(live)}")
            shards = degrees.get("data_parallel_shard_degree", 1)
            for m in live:  # a single consumer is the mean; of two, the larger has at most all, which is twice the mean
                check(m["balance"] == 1 if shards == 1 else 1 <= m["balance"] <= 2, f"{name}: {m}")
                check(1 <= m["context_balance"] <= 2 and 1 <= m["vision_balance"] <= 2, f"{name}: {m}")
            check(shards == 1 or any(m["balance"] > 1 for m in live), f"{name}: all steps are even")


def trained(f, name, values):
    """What a run printed, with its model evaluated at its end."""
    values = dict(SHORT, **values, **{"job.dump_folder": f.file(name), "training.steps": 2,
                                      "training.global_batch_size": 2})
    p = subprocess.run([TRAINER, "train", "-c", f.config, *options(values)], capture_output=True, text=True,
                       timeout=LIMIT_S)
    check(p.returncode == 0, p.stdout + p.stderr)
    return p.stdout


def an_evaluation_judges_whole_rows():
    found = []
    with Folder(images=16, **STREAM) as f, Daemon(f.config):
        for name, values in (("one", {}),
                             ("stages", {"nproc": 2, "parallelism.pipeline_parallel_degree": 2}),
                             ("two", {"nproc": 2, "parallelism.context_parallel_degree": 2}),
                             ("four", {"nproc": 4, "parallelism.context_parallel_degree": 2,
                                       "parallelism.tensor_parallel_degree": 2}),
                             ("shards", {"nproc": 2, "parallelism.data_parallel_shard_degree": 2}),
                             ("replicas", {"nproc": 4, "parallelism.data_parallel_replicate_degree": 2,
                                           "parallelism.context_parallel_degree": 2})):
            said = trained(f, name, dict(values, **{"training.backend": "cpu", "eval.generate": 0, "eval.enable": "true"}))
            judged = re.search(r"eval: (loss: [\d.]+  accuracy: [\d.]+% of \d+ answers  images swapped: "
                               r"[\d.]+% of \d+ \(own: [\d.]+%\))", said)
            check(judged, said)
            found.append(judged[1])
            consumers = {"shards": 2, "replicas": 2}.get(name, 1)
            parts = {r: re.search(r"held-out rows: (\d+) of (\d+) by this rank", text_of(f.file(f"{name}/log/rank-{r}.log")))
                     for r in range(0, values.get("nproc", 1), values.get("nproc", 1) // consumers)} if consumers > 1 else {}
            check(all(parts.values()), f"{name}: {parts}")
            rows = {int(p[2]) for p in parts.values()}
            check(not parts or rows == {sum(int(p[1]) for p in parts.values())}, f"{name}: rows are not shared out: {parts}")
    check(len(set(found)) == 1 and not found[0].endswith("of 0"), f"{found}")


def a_stream_that_ends_badly_ends_all_ranks():
    with Folder(images=16, **STREAM) as f, Daemon(f.config) as daemon:
        values = dict(SHORT, **{"job.dump_folder": f.file("lost"), "training.steps": 100000, "training.backend": "cpu",
                                "training.global_batch_size": 2, "nproc": 2, "eval.enable": "false",
                                "parallelism.context_parallel_degree": 2, "feed.timeout": 30, "prepd.reconnect_timeout": 1,
                                "prepd.ahead_bytes": 1 << 20})
        with open(f.file("said"), "w") as said:
            p = subprocess.Popen([TRAINER, "train", "-c", f.config, *options(values)], stdout=said, stderr=said)
        try:
            end = time.monotonic() + LIMIT_S
            while text_of(f.file("lost/metrics.jsonl")).count("\n") < 2:
                check(p.poll() is None and time.monotonic() < end, text_of(f.file("said")))
                time.sleep(0.05)
            daemon.p.send_signal(signal.SIGKILL)
            code = p.wait(LIMIT_S)
        finally:
            p.kill()
        check(code != 0, f"exit code {code}\n{text_of(f.file('said'))}")
        own, peer = text_of(f.file("lost/log/rank-0.log")), text_of(f.file("lost/log/rank-1.log"))
        check("d.sock" in own, own + text_of(f.file("said")))
        check(re.search("rank 0(, which receives this rank's rows: .*d.sock| failed: .*d.sock)", peer), peer)


if not has_mpi():
    print("skipped: Open MPI was not found when this was built")
    sys.exit(77)
main(live_rows_are_the_recordings, an_evaluation_judges_whole_rows, a_stream_that_ends_badly_ends_all_ranks)
