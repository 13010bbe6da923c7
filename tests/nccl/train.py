#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of a small model on several ranks of the emulated device, with NCCL's collectives (the shim).
Losses and gradients are those of one rank on the CPU up to rounding; losses are those of the MPI engine bit for
bit; bytes are those of the formula; and the ledger's calls and bytes are what NCCL was asked for. All this holds
with captured steps and without. Where experts are shared, slots go to them through windows of device memory, then
by counts that the host reads, and then with all tokens on the same experts. No step allocates memory, whatever
experts its tokens go to.

    tests/nccl/train.py           the layouts of QUICK
    tests/nccl/train.py --all     all of layouts.py's with up to four ranks, and one of eight
    tests/nccl/train.py NAME ..   some of them
"""

import os
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../parallel"))
from layouts import DEGREES, LAYOUTS, LIMITS, Bench  # noqa: E402
from ranks import MPIRUN, TESTS, check, run  # noqa: E402

QUICK = ["shard 2", "replicate 2 x shard 2", "expert 2"]
STEPS = 5  # each shape of batch is captured when it comes for the second time
SHIM = os.path.join(TESTS, "nccl_shim")


def product(degrees):
    n = 1
    for d in degrees[:5]:
        n *= d
    return n


def losses(bench, name, engine, options, env):
    """The losses as exact text. What the program itself compares must be right as well."""
    degrees, more = LAYOUTS[name]
    options = dict(more, **{"training.steps": STEPS}, **options)
    want = bench.alone("ranks_parity", options, {k: v for k, v in env.items() if "TIES" in k})
    options.update({"parallelism." + k: v for k, v in zip(DEGREES, degrees) if v > 1})
    options.update({"training.backend": "cuda", "comm.engine": engine})
    env = dict(env, RANKS_PARITY_LOSSES=bench.file("losses"), RANKS_PARITY_PLANNED="1", LD_LIBRARY_PATH=SHIM)
    if engine == "nccl":
        env["TESSERA_NCCL_RECORD"] = bench.file("record")
    run(MPIRUN, "-np", product(degrees), os.path.join(TESTS, "ranks_parity_emulated"), "compare", want,
        *LIMITS["ranks_parity"], *bench.options(options), **env)
    with open(bench.file("losses")) as f:
        text = f.read()
    check(len(text.split()) == STEPS, text)
    return text


def ways(name):
    """Options and environments to run a layout with; all must give the same bits."""
    degrees = LAYOUTS[name][0]
    shared = degrees[5] * degrees[6] > 1
    with open(os.path.join(SHIM, "libnccl.so.2"), "rb") as f:
        windows = b"ncclCommWindowRegister" in f.read()  # a build without nvcc has none
    by = {"comm.expert_exchange": "device"} if shared and windows else {}
    list = [(dict(by, **{"cuda_graph.scope": scope}), {}) for scope in ("off", "step")]
    if degrees[5] > 1:  # also as if each rank were on its own node
        list.append(({"cuda_graph.scope": "step"}, {"TESSERA_NCCL_LSA": "1"}))
    return list, [{}, {"RANKS_PARITY_TIES": "1"}] if shared else [{}]


def main():
    names = sys.argv[1:]
    if names == ["--all"]:
        names = [n for n, (d, _) in LAYOUTS.items() if product(d) <= 4] + ["shard 8"]
    bench = Bench()
    try:
        for name in names or QUICK:
            start = time.monotonic()
            each, routings = ways(name)
            for routing in routings:
                want = losses(bench, name, "mpi", {"cuda_graph.scope": "off"}, routing)
                for options, env in each:
                    got = losses(bench, name, "nccl", options, dict(env, **routing))
                    check(got == want, f"{name}, {options} {env} {routing}\n{got}by MPI:\n{want}")
            print(f"{name}: {STEPS} steps, the same bits ({time.monotonic() - start:.0f} s)", flush=True)
    finally:
        shutil.rmtree(bench.path)


main()
