# SPDX-License-Identifier: Apache-2.0
"""Ranks whose rows need different shape buckets replay the same captured step, on the emulated device with NCCL's shim
(tests/nccl), which ends a run whose ranks capture or launch different graphs. The second case is the recommended
run: eight ranks, 40 steps, layout and switches of its configuration, a small model."""

import json
import os
import subprocess

from prepd_flow import LIMIT_S, SOURCE, Folder, check, main
from resume_flow import recorded
from train_flow import SHORT, TRAINER, options

TESTS = os.path.join(os.path.dirname(TRAINER), "../tests")
EMULATED, SHIM = os.path.join(TESTS, "trainer_emulated"), os.path.join(TESTS, "nccl_shim")
RANKS, STEPS = 4, 14
RECOMMENDED = os.path.join(SOURCE, "configs/vqav2-30b-prefix.yaml")


def run_ranks(f, name, *words, **changed):
    """The losses of a run of all ranks, and for each rank the captured graph of every call."""
    values = dict(SHORT, **{"job.dump_folder": f.file(name), "training.backend": "cuda", "training.seq_len": 512,
                            "feed.replay": f.file("rows.rec"), "training.steps": STEPS, "eval.enable": "false"})
    values.update({key.replace("__", "."): value for key, value in changed.items()})
    env = dict(os.environ, LD_LIBRARY_PATH=SHIM, TESSERA_NCCL_RECORD=f.file(name + ".calls"))
    p = subprocess.run([EMULATED, "train", "-c", f.config, "--nproc", str(RANKS), *options(values), *words],
                       capture_output=True, text=True, timeout=LIMIT_S, env=env)
    check(p.returncode == 0, f"{name}: exit code {p.returncode}\n{p.stdout}{p.stderr}")
    graphs = []
    for rank in range(RANKS):
        with open(f.file(f"{name}.calls.{rank}")) as calls:
            graphs.append([int(line.split()[7]) for line in calls])
    with open(f.file(name + "/metrics.jsonl")) as metrics:
        return [json.loads(line)["loss"] for line in metrics], graphs


def ranks_replay_the_same_graphs():
    with Folder(images=96, **{"training.seq_len": 512}) as f:
        recorded(f, STEPS)
        eager, none = run_ranks(f, "eager", cuda_graph__scope="off")
        captured, graphs = run_ranks(f, "captured", cuda_graph__scope="step")
        check(not any(map(any, none)), "calls were captured with cuda_graph.scope off")
        check(all(each == graphs[0] for each in graphs), "the ranks ran different graphs")
        print(len(set(graphs[0])) - 2, "graphs;", sum(map(bool, graphs[0])), "of", len(graphs[0]), "calls captured")
        # the trial's, a step graph for each of two buffers, and the update: more means more than one shape
        check(max(graphs[0]) > 4, f"only {max(graphs[0])} graphs: all rows had the same shape")
        check(captured == eager, f"losses {captured} with captured steps, {eager} without")


def calls_of(path):
    """What the double of NCCL has recorded: for each call its kind, ranks, stream, elements, type and graph."""
    with open(path) as calls:
        lines = [line.split() for line in calls]
    return [(kind, size, stream, count, dtype, int(graph)) for kind, size, _, stream, count, dtype, _, graph in lines]


def the_recommended_run_is_uniform(ranks=8, steps=40):
    # rows of 1024 tokens: shorter ones all need the same shape
    with Folder(images=96, **{"training.seq_len": 1024, "training.global_batch_size": ranks,
                              "data.group": "shared_prefix"}) as f:
        recorded(f, steps)
        values = {"job.dump_folder": f.file("run"), "model.path": f.file("data/model"), "data.path": f.file("data"),
                  "training.seq_len": 1024, "training.steps": steps, "training.backend": "cuda",
                  "feed.replay": f.file("rows.rec"), "metrics.log_freq": 1, "metrics.peak_tflops": 1,
                  "checkpoint.enable": "false", "eval.enable": "false"}
        env = dict(os.environ, LD_LIBRARY_PATH=SHIM, TESSERA_NCCL_RECORD=f.file("calls"))
        p = subprocess.run([EMULATED, "train", "-c", RECOMMENDED, "--nproc", str(ranks), *options(values)],
                           capture_output=True, text=True, timeout=LIMIT_S, env=env)
        check(p.returncode == 0, f"exit code {p.returncode}\n{p.stdout}{p.stderr}")
        with open(f.file("run/metrics.jsonl")) as metrics:
            check(len(metrics.readlines()) == steps, p.stdout)
        first = calls_of(f.file("calls.0"))
        for rank in range(1, ranks):
            other = calls_of(f.file(f"calls.{rank}"))
            check(len(other) == len(first), f"rank {rank} made {len(other)} calls, rank 0 {len(first)}")
            for number, (mine, theirs) in enumerate(zip(first, other)):
                check(mine == theirs, f"call {number}: rank 0 {mine}, rank {rank} {theirs}")
        graphs = [graph for *_, graph in first]
        print(f"{steps} steps, {len(first)} calls of each of {ranks} ranks in {max(graphs)} graphs, "
              f"{sum(map(bool, graphs))} of them captured: the same on all ranks")
        check(sum(map(bool, graphs)) > len(graphs) / 2, "most calls were not captured")


if os.path.exists(EMULATED) and os.path.exists(SHIM):
    main(ranks_replay_the_same_graphs, the_recommended_run_is_uniform)
else:
    print("skipped: nccl.h was not found when this was built")
