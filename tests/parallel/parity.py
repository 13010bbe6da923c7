#!/usr/bin/env python3
"""Any layout gives the losses and gradients of one rank on the same stream: 20 steps of a small
Qwen3-VL MoE on packed image rows, text rows and empty rows among them, a step without images, ranks
without any; once more with all tokens on the same experts. In float, and in double, where what is off
is no rounding.

    tests/parallel/parity.py           the layouts of QUICK (tests/run; ctest parallel_parity)
    tests/parallel/parity.py --all     all of LAYOUTS
    tests/parallel/parity.py NAME ..   some of them
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from ranks import BIN, MPIRUN, TESTS, run  # noqa: E402

STEP = 8       # rows; as mixed_rows.c has it

# name: degrees (replicate, shard, context, tensor, pipeline, expert, expert-tensor), options
LAYOUTS = {
    "shard 2": ((1, 2, 1, 1, 1, 1, 1), {}),
    "shard 4": ((1, 4, 1, 1, 1, 1, 1), {}),
    "shard 8": ((1, 8, 1, 1, 1, 1, 1), {}),
    "shard 3 of uneven pieces": ((1, 3, 1, 1, 1, 1, 1), {"training.global_batch_size": 6}),
    "replicate 2": ((2, 1, 1, 1, 1, 1, 1), {}),
    "replicate 4": ((4, 1, 1, 1, 1, 1, 1), {}),
    "replicate 2 x shard 2": ((2, 2, 1, 1, 1, 1, 1), {}),
    "replicate 2 x shard 4": ((2, 4, 1, 1, 1, 1, 1), {}),
    "replicate 4 x shard 2": ((4, 2, 1, 1, 1, 1, 1), {}),
    "shard 4, recomputed": ((1, 4, 1, 1, 1, 1, 1), {"activation_checkpoint.mode": "full"}),
    "shard 4, weights kept": ((1, 4, 1, 1, 1, 1, 1),
                              {"parallelism.fsdp_reshard_after_forward": "never"}),
    "shard 2, tower frozen": ((1, 2, 1, 1, 1, 1, 1), {"freeze.vision": "true"}),
    "shard 2, text frozen": ((1, 2, 1, 1, 1, 1, 1),
                             {"freeze.text": "true", "freeze.experts": "true",
                              "freeze.router": "true"}),
    "shard 2, one micro-step": ((1, 2, 1, 1, 1, 1, 1), {"training.local_batch_size": 4}),
}
QUICK = ["shard 2", "shard 4", "replicate 2 x shard 2"]
DEGREES = ["data_parallel_replicate_degree", "data_parallel_shard_degree",
           "context_parallel_degree", "tensor_parallel_degree", "pipeline_parallel_degree",
           "expert_parallel_degree", "expert_tensor_parallel_degree"]
# The most a gradient may be off, and a later loss; measured: see README.md.
LIMITS = {"ranks_parity": (1e-5, 1e-4), "ranks_parity_f64": (1e-13, 1e-12)}


class Bench:
    """Rows, and what one rank makes of them, each once."""

    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="parity")
        self.known = {}
        prepd = os.path.join(BIN, "prepd")
        run(prepd, "synth", "--out", self.file("data"), "--images", 60, "--seed", 1)
        with open(self.file("c.yaml"), "w") as f:
            f.write("model: {path: data/model}\ndata: {format: vqav2, path: data, split: train}\n"
                    "eval: {enable: false}\nprepd: {endpoint: 'ipc://p.sock', workers: 1}\n"
                    "training: {seq_len: 256, local_batch_size: 1, steps: 20, threads: 1, "
                    f"global_batch_size: {STEP}}}\n"
                    "optimizer: {lr: 1.0e-3}\nlr_scheduler: {warmup_steps: 5}\n"
                    "checkpoint: {enable: false}\n")
        run(prepd, "record", "-c", self.file("c.yaml"), "--steps", 5, "--out", self.file("image.rec"))
        run(os.path.join(TESTS, "mixed_rows"), self.file("data/model"), self.file("image.rec"),
            self.file("rows.rec"))

    def file(self, name):
        return os.path.join(self.path, name)

    def options(self, more):
        words = ["-c", self.file("c.yaml"), "--feed.replay", self.file("rows.rec")]
        for key, value in more.items():
            words += ["--" + key, str(value)]
        return words

    def alone(self, program, options, env):
        """The file of one rank; a micro-batch is a row, whatever the layout has."""
        options = {k: v for k, v in options.items()
                   if k.startswith(("freeze.", "training.global", "training.steps"))}
        key = (program, tuple(sorted(options.items())), tuple(env))
        if key not in self.known:
            self.known[key] = self.file(f"one{len(self.known)}.safetensors")
            run(os.path.join(TESTS, program), "write", self.known[key], *self.options(options),
                **env)
        return self.known[key]

    def layout(self, program, name, env, steps):
        degrees, options = LAYOUTS[name]
        options = dict(options, **{"training.steps": steps})
        ranks = 1
        for d in degrees[:5]:
            ranks *= d
        want = self.alone(program, options, env)
        options.update({"parallelism." + k: v for k, v in zip(DEGREES, degrees) if v > 1})
        said = run(MPIRUN, "-np", ranks, os.path.join(TESTS, program), "compare", want,
                   *LIMITS[program], *self.options(options), **env)
        return "; ".join(line for line in said.splitlines() if line.startswith(("grad", "loss")))


def main():
    names = sys.argv[1:]
    if names == ["--all"]:
        names = list(LAYOUTS)
    bench = Bench()
    failed = []
    try:
        for name in names or QUICK:
            for program, env, steps in (("ranks_parity", {}, 20), ("ranks_parity_f64", {}, 3),
                                        ("ranks_parity_f64", {"RANKS_PARITY_TIES": "1"}, 1)):
                start = time.monotonic()
                what = f"{name:28} {'double' if 'f64' in program else 'float'}" + \
                    (", all tokens on the same experts" if env else "")
                try:
                    said = bench.layout(program, name, env, steps)
                except (AssertionError, subprocess.TimeoutExpired) as e:
                    failed.append(what)
                    said = f"FAILED {e}"
                print(f"{what}: {said} ({time.monotonic() - start:.0f} s)", flush=True)
    finally:
        shutil.rmtree(bench.path)
    if failed:
        print("failed: " + "; ".join(failed))
        sys.exit(1)


main()
