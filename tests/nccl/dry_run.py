#!/usr/bin/env python3
"""trainer train --dry-run --nproc N: every rank is a process on a device of shapes. Its collectives go through the
NCCL engine into the library that stands in for NCCL (whatever NCCL the machine has), which moves no bytes and
compares the calls. The ranks must find what a single process finds that plays them all, and the calls that the
library recorded must be those in the ledgers. It runs layouts of a small model, and the 30B model with
configs/vqav2-30b-buckets.yaml and 48 layers on 8 ranks, from a sparse folder of 62 GB.

    tests/nccl/dry_run.py          QUICK and the 30B model
    tests/nccl/dry_run.py --all    all of LAYOUTS
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "../..")
os.environ.setdefault("TESSERA_BIN", os.path.join(TOP, "build/bin"))
sys.path.insert(0, os.path.join(HERE, "../flow"))
from hf_files import expect, np, trainer  # noqa: E402
from large_model import VL, folder, text, vision  # noqa: E402
from prepd_flow import LIMIT_S, wait_for  # noqa: E402

OTHERS = tempfile.mktemp(prefix="another-nccl")
TRAINER = os.path.join(os.environ["TESSERA_BIN"], "trainer")
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
GO_ON = "bytes read to go on"  # a single process reads for the first and the last rank only


def table(said):
    """Reads the table of a dry run: {what: (checks, should be, is)}."""
    rows = re.findall(r"^([^\d\n]+?) +(\d+) +(\d+) +(\d+)$", said.split("of all ranks")[-1], re.M)
    return {name: tuple(map(int, numbers)) for name, *numbers in rows}


def dry(words, ranks, record=None, code=0):
    """Returns what the dry run prints. ranks 0: one process plays them all."""
    env = {"LD_LIBRARY_PATH": OTHERS}
    if record:
        env["TESSERA_NCCL_RECORD"] = record
    got, said, err = trainer("train", "--dry-run", *(["--nproc", str(ranks)] if ranks else []), *words, env=env)
    expect(got == code, f"{words}, {ranks} processes: exit code {got}, wanted {code}: {err[-900:]}\n{said[-2000:]}")
    expect(code or said.endswith("dry run: all agree\n"), said[-2000:])
    return err if code else said


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


def in_processes(root, what, words, ranks, stages=1):
    start = time.monotonic()
    record = os.path.join(root, "record")
    one, many = dry(words, 0), dry(words, ranks, record)
    a, b = table(one), table(many)
    expect(b[GO_ON][0] == ranks and b[GO_ON][1] == b[GO_ON][2] > 0, f"{what}: {b}")
    for name in set(a) - set(ONE) - {GO_ON} - set(STAGES if stages > 1 else []):
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
    in_processes(root, "x".join(map(str, degrees)), words, int(np.prod(degrees[:5])), degrees[4])


def mission(root):
    shapes = text("model.language_model.", False) | vision()
    path, total = folder(root, "30b-a3b", VL, shapes, 13)
    count = sum(int(np.prod(s)) for s in shapes.values())
    got = in_processes(root, "Qwen3-VL-30B-A3B", ["-c", MISSION, "--model.path", path], 8)
    for name, wanted in {"elements stored, each by one rank": count, "bytes read of the weights": total,
                         "bytes of tensors in their files": total, "bytes written of the weights": total,
                         "elements in training files": 3 * count, GO_ON: 3 * 4 * count}.items():
        expect(got[name][1:] == (wanted, wanted), f"{name}: {got[name]}, wanted {wanted}")
    expect(count == 31070754032 and total == 62141508064, f"{count} elements, {total} bytes")


def refused(root):
    words = ["--model.path", "debug", "--training.global_batch_size", "16"]
    err = dry(words + ["--parallelism.data_parallel_shard_degree", "2"], 4, code=78)
    expect("4 ranks are not the product of" in err, err)


def another_nccl(folder):
    """Makes a libnccl.so.2 that is found first but must not be called, as on a machine that has NCCL."""
    names = ["GetVersion", "GetUniqueId", "GetErrorString", "GetLastError", "CommInitRankConfig", "CommSplit", "CommFinalize",
             "CommDestroy", "CommAbort", "CommGetAsyncError", "AllGather", "ReduceScatter", "AllReduce", "Broadcast", "Send",
             "Recv", "GroupStart", "GroupEnd"]
    os.mkdir(folder)
    source = os.path.join(folder, "nccl.c")
    with open(source, "w") as f:
        f.write("".join(f"void nccl{name}(void) {{ __builtin_trap(); }}\n" for name in names))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", os.path.join(folder, "libnccl.so.2"), source], check=True)


def interrupted(root):
    """A dry run that is ended by a signal leaves no files behind either."""
    words = [TRAINER, "train", "--dry-run", "--nproc", "2", "--model.path", "qwen3-vl-30b-a3b", "--training.global_batch_size", "16"]
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGKILL:
        p = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        wait_for(lambda: left_in(root) or p.poll() is not None, "its folder")
        expect(p.poll() is None, "it ended before it was stopped")
        os.killpg(p.pid, number) if number == signal.SIGKILL else p.send_signal(number)
        p.wait(LIMIT_S)
        wait_for(lambda: not left_in(root), f"nothing is left after {number!r}: {left_in(root)}")


def left_in(root):
    return [n for n in os.listdir(root) if n.startswith("dry-run")]


def main():
    root = tempfile.mkdtemp()
    os.environ["TMPDIR"] = root
    try:
        another_nccl(OTHERS)
        for degrees in LAYOUTS if sys.argv[1:] == ["--all"] else QUICK:
            small(root, degrees)
        mission(root)
        refused(root)
        expect(not left_in(root), f"left behind: {left_in(root)}")
        interrupted(root)
    finally:
        shutil.rmtree(root)
        shutil.rmtree(OTHERS, ignore_errors=True)
    print("ok")


main()
