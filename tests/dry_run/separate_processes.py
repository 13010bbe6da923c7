#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Dry runs in which every rank is a process on a device of shapes. Its collectives go through the NCCL engine into the
library that stands in for NCCL, which moves no bytes and compares the calls. The ranks must find what a single process
finds that plays them all, and the calls that the library recorded must be those in the ledgers. It runs layouts of a
small model, and the 30B model with configs/vqav2-30b-buckets.yaml and 48 layers on 8 ranks.

    tests/dry_run/separate_processes.py          QUICK and the 30B model
    tests/dry_run/separate_processes.py --all    all of LAYOUTS
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "../..")
os.environ.setdefault("TESSERA_BIN", os.path.join(TOP, "build/bin"))
os.environ.setdefault("TESSERA_TESTS", os.path.join(TOP, "build/tests"))
sys.path.insert(0, os.path.join(HERE, "../flow"))
from hf_files import expect, np  # noqa: E402
from large_model import text, vision  # noqa: E402

PROGRAM = os.path.join(os.environ["TESSERA_TESTS"], "dry_ranks")
SHIM = os.path.join(os.environ["TESSERA_TESTS"], "nccl_shim")
MISSION = os.path.join(TOP, "configs/vqav2-30b-buckets.yaml")
DEGREES = ["data_parallel_replicate", "data_parallel_shard", "context_parallel", "tensor_parallel",
           "pipeline_parallel", "expert_parallel", "expert_tensor_parallel"]
LAYOUTS = [(1, 2, 1, 1, 1, 1, 1), (1, 8, 1, 1, 1, 4, 1), (2, 2, 1, 1, 1, 1, 1), (1, 2, 2, 2, 1, 1, 1),
           (1, 4, 1, 2, 1, 8, 1), (1, 2, 1, 2, 1, 2, 2), (2, 1, 2, 2, 1, 4, 1), (1, 1, 1, 1, 2, 1, 1),
           (1, 4, 1, 1, 2, 2, 1), (1, 2, 1, 2, 2, 2, 2), (2, 1, 2, 1, 2, 1, 1), (1, 2, 1, 1, 4, 1, 1)]
QUICK = [(1, 8, 1, 1, 1, 4, 1), (1, 2, 1, 2, 2, 2, 2)]
# Lines that only the table of one process has, since calls are compared there.
ONE = ["calls of groups, in order", "elements sent to experts, stages"]
STAGES = ["of weights, by trainer plan"]  # for a pipeline: the process of a rank knows only its own stage
RESUME = "bytes read to go on"  # a single process reads for the first and the last rank only


def table(said):
    """Reads the table of a dry run: {what: (checks, should be, is)}."""
    rows = re.findall(r"^([^\d\n]+?) +(\d+) +(\d+) +(\d+)$", said.split("of all ranks")[-1], re.M)
    return {name: tuple(map(int, numbers)) for name, *numbers in rows}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def started(command, ranks):
    """Starts the ranks as torchrun would; returns (exit code of the first that failed, or 0, what it or rank 0 said)."""
    job = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    out = []
    for rank in range(ranks):
        env = dict(os.environ, LD_LIBRARY_PATH=SHIM, **{k: str(v) for k, v in dict(job, RANK=rank, LOCAL_RANK=rank).items()})
        to = tempfile.TemporaryFile("w+")  # noqa: SIM115
        out.append((subprocess.Popen(command, stdout=to, stderr=subprocess.STDOUT, env=env), to))
    ends = []
    for p, to in out:
        p.wait(600)
        to.seek(0)
        ends.append((p.returncode, to.read()))
    return next((end for end in ends if end[0]), ends[0])


def dry(words, ranks, record=None, what="all", code=0):
    """Returns what the dry run prints. ranks 0: one process plays them all."""
    os.environ.pop("TESSERA_NCCL_RECORD", None)
    if record:
        os.environ["TESSERA_NCCL_RECORD"] = record
    with tempfile.TemporaryDirectory() as folder:
        command = [PROGRAM, folder, "h200", what, *words]
        if ranks:
            got, said = started(command, ranks)
        else:
            p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
            got, said = p.returncode, p.stdout
    expect(got == code, f"{words}, {ranks} processes: exit code {got}, wanted {code}: {said[-2000:]}")
    expect(code or said.endswith("dry run: all agree\n"), said[-2000:])
    return said


def recorded(path, ranks):
    """Reads the library's record: for every rank {NCCL's kind: [calls, bytes from others]}. It leaves out uint8, the
    type of host values, which belong to no step."""
    out = []
    for rank in range(ranks):
        of = {}
        with open(f"{path}.{rank}") as f:
            for kind, _, _, _, _, dtype, received, _ in map(str.split, f):
                if dtype != "uint8":
                    calls = of.setdefault(kind, [0, 0])
                    calls[0] += 1
                    calls[1] += int(received)
        out.append(of)
    return out


def ledger(said):
    """Reads the ledger that rank 0 prints: {NCCL's kind: [calls, bytes]}. It does not count the messages of an exchange."""
    kinds = {"all gather": "ncclAllGather", "reduce scatter": "ncclReduceScatter", "all reduce": "ncclAllReduce",
             "broadcast": "ncclBroadcast", "all to all": "ncclRecv", "recv": "ncclRecv"}
    out = {}
    for kind, calls, received in re.findall(rf"^\w+ +({'|'.join(kinds)}) +\D+? +(\d+) +(\d+)$", said, re.M):
        of = out.setdefault(kinds[kind], [0, 0])
        of[0] += int(calls)
        of[1] += int(received)
    return out


def in_processes(root, what, words, ranks, stages=1, files="all"):
    start = time.monotonic()
    record = os.path.join(root, "record")
    one, many = dry(words, 0, what=files), dry(words, ranks, record, files)
    a, b = table(one), table(many)
    expect(files != "all" or (b[RESUME][0] == ranks and b[RESUME][1] == b[RESUME][2] > 0), f"{what}: {b}")
    for name in set(a) - set(ONE) - {RESUME} - set(STAGES if stages > 1 else []):
        expect(a[name] == b.get(name), f"{what}: {name}: in one process {a[name]}, in {ranks} {b.get(name)}")
    asked = recorded(record, ranks)
    received = sum(n for of in asked for _, n in of.values())
    expect(b["bytes received in the step"] == (ranks, received, received) and received > 0,
           f"{what}: NCCL was asked for {received} bytes: {b}")
    first = ledger(many)
    expect(set(first) == set(asked[0]) - {"ncclSend"}, f"{what}: {first}, NCCL {asked[0]}")
    for kind, (calls, n) in first.items():
        expect(n == asked[0][kind][1] and (kind == "ncclRecv" or calls == asked[0][kind][0]),
               f"{what}: {kind}: {calls} calls, {n} bytes in rank 0's ledger, NCCL {asked[0][kind]}")
    print(f"{what}: {ranks} processes, {sum(c for of in asked for c, _ in of.values())} calls, "
          f"{received} bytes ({time.monotonic() - start:.1f} s with one process)", flush=True)
    return b


def small(root, degrees):
    model = "qwen3-vl-30b-a3b" if degrees[4] > 2 else "debug"  # debug has layers for two stages only
    words = ["--model.path", model, "--training.seq_len", "512", "--training.local_batch_size", "1",
             "--training.global_batch_size", "16", "--loss.router_aux_coef", "0.01"]
    for name, n in zip(DEGREES, degrees):
        words += [f"--parallelism.{name}_degree", str(n)]
    in_processes(root, "x".join(map(str, degrees)), words, int(np.prod(degrees[:5])), degrees[4],
                 "all" if model == "debug" else "step")


def mission(root):
    shapes = text("model.language_model.", False) | vision()
    count = sum(int(np.prod(s)) for s in shapes.values())
    got = in_processes(root, "Qwen3-VL-30B-A3B", ["-c", MISSION, "--model.path", "qwen3-vl-30b-a3b"], 8, files="step")
    expect(got["elements stored, each by one rank"][1:] == (count, count) and count == 31070754032, f"{count}: {got}")


def refused():
    words = ["--model.path", "debug", "--training.global_batch_size", "16"]
    err = dry(words + ["--parallelism.data_parallel_shard_degree", "2"], 4, code=78)
    expect("4 ranks are not the product of" in err, err)


def main():
    root = tempfile.mkdtemp()
    os.environ["TMPDIR"] = root
    try:
        for degrees in LAYOUTS if sys.argv[1:] == ["--all"] else QUICK:
            small(root, degrees)
        mission(root)
        refused()
    finally:
        shutil.rmtree(root)
    print("ok")


main()
