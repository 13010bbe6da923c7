#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every layout gives the losses and gradients that one rank gives on the same stream. The stream is 20 steps of
packed image rows for a small Qwen3-VL MoE, with text rows and empty rows among them, so that one step and some
ranks have no images. Each layout runs in float, and in double, where a difference cannot be put down to
rounding, and again with all tokens on the same experts.

Each layout also runs one step of samples that share prefixes (data.group shared_prefix), and its loss and gradients
are compared with those of one rank that has the same samples apart (none).

    tests/parallel/layouts.py          the layouts of QUICK (ctest parallel_layouts_long; parallel_layouts runs one of them)
    tests/parallel/layouts.py --all    all of LAYOUTS
    tests/parallel/layouts.py NAME ..  some of them
    tests/parallel/layouts.py --keep FOLDER   models, rows and the table of layouts, for ranks on GPUs,
                                       where neither prepd nor Python is needed (tests/bench/gpu/ranks_on_gpus.sh)
"""

import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../flow")]
os.environ.setdefault("TESSERA_SOURCE", os.path.join(HERE, "../.."))
import prepd_flow  # noqa: E402
from ranks import BIN, MPIRUN, TESTS, check, run  # noqa: E402

STEP = 8       # rows of a step, as in mixed_rows.c

# B begins as zeros, and so does the gradient of A: that A is trained shows in the losses of later steps.
ADAPTERS = {"lora.rank": 4, "lora.alpha": 12, "lora.random_base": "true",
            "lora.targets": "q_proj,k_proj,v_proj,o_proj,gate_up_proj,down_proj"}

UPPER = {"freeze.pattern": "vision merger *embed_tokens* *layers.0.* *layers.1.*"}  # backward ends at layer 2

DEEP = {"flavour": "deep"}  # more layers than the three that a first stage must have

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
    "shard 2, tower frozen": ((1, 2, 1, 1, 1, 1, 1), {"freeze.pattern": "vision"}),
    "shard 2, text frozen": ((1, 2, 1, 1, 1, 1, 1),
                             {"freeze.pattern": "text,experts,router"}),
    "shard 4, mergers alone": ((1, 4, 1, 1, 1, 1, 1), {
        "freeze.pattern": "vision,text,experts,router"}),
    "expert 2, upper layers alone": ((1, 2, 1, 1, 1, 2, 1), dict(UPPER, **{"activation_checkpoint.mode": "full"})),
    "tensor 2, expert-tensor 2, upper layers alone": ((1, 1, 1, 2, 1, 1, 2), UPPER),
    "shard 2, one micro-step": ((1, 2, 1, 1, 1, 1, 1), {"training.local_batch_size": 4}),
    "context 2": ((1, 1, 2, 1, 1, 1, 1), {}),
    "context 4": ((1, 1, 4, 1, 1, 1, 1), {}),
    "tensor 2": ((1, 1, 1, 2, 1, 1, 1), {}),
    "tensor 4": ((1, 1, 1, 4, 1, 1, 1), {}),
    "expert 2": ((1, 2, 1, 1, 1, 2, 1), {}),
    "expert 4": ((1, 4, 1, 1, 1, 4, 1), {}),
    "expert-tensor 2": ((1, 1, 1, 2, 1, 1, 2), {}),
    "expert-tensor 4": ((1, 1, 1, 4, 1, 1, 4), {}),
    "shard 8, expert 4": ((1, 8, 1, 1, 1, 4, 1), {}),
    "shard 2 x tensor 2 x context 2": ((1, 2, 2, 2, 1, 1, 1), {}),
    "shard 2 x tensor 4, expert 2, expert-tensor 4": ((1, 2, 1, 4, 1, 2, 4), {}),
    "shard 4 x tensor 2, expert 8": ((1, 4, 1, 2, 1, 8, 1), {}),
    "replicate 2 x shard 4, expert 2": ((2, 4, 1, 1, 1, 2, 1), {}),
    "context 2, expert 2": ((1, 1, 2, 1, 1, 2, 1), {}),
    "context 2, expert 2, router loss": ((1, 1, 2, 1, 1, 2, 1), {"loss.router_aux_coef": 0.1}),
    "shard 2 x context 2, expert 4": ((1, 2, 2, 1, 1, 4, 1), {}),
    "shard 2 x tensor 2, expert 2, expert-tensor 2": ((1, 2, 1, 2, 1, 2, 2), {}),
    "shard 2 x context 2 x tensor 2, expert 4, expert-tensor 2": ((1, 2, 2, 2, 1, 4, 2), {}),
    "replicate 2 x context 2 x tensor 2": ((2, 1, 2, 2, 1, 1, 1), {}),
    "replicate 2 x shard 2 x context 2, expert 2": ((2, 2, 2, 1, 1, 2, 1), {}),
    "replicate 2 x shard 2 x tensor 2, expert 4, recomputed":
        ((2, 2, 1, 2, 1, 4, 1), {"activation_checkpoint.mode": "full"}),
    "context 4 x tensor 2, weights kept":
        ((1, 1, 4, 2, 1, 1, 1), {"parallelism.fsdp_reshard_after_forward": "never"}),
    "shard 2 x context 2 x tensor 2, tower frozen": ((1, 2, 2, 2, 1, 1, 1), {"freeze.pattern": "vision"}),
    "shard 2 x context 2, adapters": ((1, 2, 2, 1, 1, 1, 1), dict(ADAPTERS, **{
        "lora.targets": "q_proj,k_proj,v_proj,o_proj,gate,gate_up_proj,down_proj"})),
    "shard 2 x tensor 2, adapters": ((1, 2, 1, 2, 1, 1, 1), ADAPTERS),
    "tensor 4, expert 4, adapters of attention":
        ((1, 1, 1, 4, 1, 4, 1), dict(ADAPTERS, **{"lora.targets": "q_proj,k_proj,v_proj,o_proj,gate"})),
    "pipeline 2 x shard 2, adapters": ((1, 2, 1, 1, 2, 1, 1), ADAPTERS),
    "shard 2, expert 2, adapters": ((1, 2, 1, 1, 1, 2, 1), ADAPTERS),
    "tensor 2, expert-tensor 2, adapters": ((1, 1, 1, 2, 1, 1, 2), ADAPTERS),
    "shard 2 x context 2, expert 2, adapters": ((1, 2, 2, 1, 1, 2, 1), ADAPTERS),
    "shard 4 x tensor 2, expert 2, expert-tensor 2, adapters": ((1, 4, 1, 2, 1, 2, 2), ADAPTERS),
    "shard 2 x tensor 2, tile": ((1, 2, 1, 2, 1, 1, 1), {"flavour": "tile"}),
    "shard 2 x context 2, expert 4, tile": ((1, 2, 2, 1, 1, 4, 1), {"flavour": "tile"}),
    "pipeline 2": ((1, 1, 1, 1, 2, 1, 1), {}),
    "pipeline 2, recomputed": ((1, 1, 1, 1, 2, 1, 1), {"activation_checkpoint.mode": "full"}),
    "pipeline 2, router loss": ((1, 1, 1, 1, 2, 1, 1), {"loss.router_aux_coef": 0.1}),
    "pipeline 2, tower frozen": ((1, 1, 1, 1, 2, 1, 1), {"freeze.pattern": "vision"}),
    "pipeline 2, first stage frozen": ((1, 1, 1, 1, 2, 1, 1), {
        "freeze.pattern": "vision merger *embed_tokens* *layers.0.* *layers.1.* *layers.2.*"}),
    "pipeline 2, text frozen": ((1, 1, 1, 1, 2, 1, 1), {"freeze.pattern": "text,experts,router"}),
    "pipeline 4": ((1, 1, 1, 1, 4, 1, 1), DEEP),
    "pipeline 4 of more stages than micro-steps": (
        (1, 1, 1, 1, 4, 1, 1), dict(DEEP, **{"training.local_batch_size": 4})),
    "pipeline 2 x replicate 2": ((2, 1, 1, 1, 2, 1, 1), {}),
    "pipeline 2 x shard 2": ((1, 2, 1, 1, 2, 1, 1), {}),
    "pipeline 2 x shard 2, weights kept": ((1, 2, 1, 1, 2, 1, 1),
                                           {"parallelism.fsdp_reshard_after_forward": "never"}),
    "pipeline 2 x shard 2, split by hand": (
        (1, 2, 1, 1, 2, 1, 1),
        dict(DEEP, **{"parallelism.pipeline_parallel_split_points": "layers.5"})),
    "pipeline 2 x tensor 2": ((1, 1, 1, 2, 2, 1, 1), {}),
    "pipeline 2 x context 2": ((1, 1, 2, 1, 2, 1, 1), {}),
    "pipeline 2 x shard 4, expert 2": ((1, 4, 1, 1, 2, 2, 1), {}),
    "pipeline 2 x context 2 x tensor 2": ((1, 1, 2, 2, 2, 1, 1), {}),
    "pipeline 2 x shard 2 x tensor 2, expert 2, expert-tensor 2": ((1, 2, 1, 2, 2, 2, 2), {}),
    "pipeline 4 x shard 2, expert 2, recomputed": (
        (1, 2, 1, 1, 4, 2, 1),
        dict(DEEP, **{"activation_checkpoint.mode": "full"})),
}
QUICK = ["replicate 2 x shard 2", "shard 2 x context 2, expert 4",
         "shard 2 x tensor 2, expert 2, expert-tensor 2", "pipeline 2 x shard 2"]
# Also run, but only in float and for two steps: backward ends early, or in the middle of the model.
BRIEFLY = ["shard 4, mergers alone", "expert 2, upper layers alone"]
# Also run, but only on samples that share prefixes.
SHARED = ["shard 2 x tensor 2, adapters", "context 2, expert 2, router loss"]
# How a flavour differs from the model of prepd synth. small and deep have a key-value head for each of four
# tensor ranks; tile has the sizes of the preset of that name, at which fast kernels work.
FLAVOURS = {
    "small": {"text_config": {"num_key_value_heads": 4}},
    "deep": {"text_config": {"num_key_value_heads": 4, "num_hidden_layers": 6}},
    "tile": {"text_config": {"vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 2,
                             "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
                             "intermediate_size": 1024, "num_experts": 16, "num_experts_per_tok": 4,
                             "moe_intermediate_size": 256,
                             "rope_scaling": {"rope_type": "default", "mrope_interleaved": True,
                                              "mrope_section": [24, 20, 20]}},
             "vision_config": {"depth": 4, "hidden_size": 288, "num_heads": 4,
                               "intermediate_size": 576, "num_position_embeddings": 256,
                               "deepstack_visual_indexes": [1, 2], "out_hidden_size": 512}},
}
TILE_STEPS = 4
GPU_STEPS = 5  # a shape bucket is captured when it comes for the second time
CAPTURED_STEPS = 4
DEGREES = ["data_parallel_replicate_degree", "data_parallel_shard_degree",
           "context_parallel_degree", "tensor_parallel_degree", "pipeline_parallel_degree",
           "expert_parallel_degree", "expert_tensor_parallel_degree"]
WAYS = (("ranks_parity", {}, 20), ("ranks_parity_f64", {}, 3), ("ranks_parity", {"RANKS_PARITY_TIES": "1"}, 1),
        ("ranks_parity_f64", {"RANKS_PARITY_TIES": "1"}, 1))
# The largest error of a gradient, and of a later loss (README.md).
LIMITS = {"ranks_parity": (1e-5, 1e-4), "ranks_parity_f64": (1e-13, 1e-12)}
# The same where one rank has the samples apart that share prefixes in the layout.
SHARED_LIMITS = {"ranks_parity": (1e-5, 1e-5), "ranks_parity_f64": (1e-12, 1e-12)}
if prepd_flow.SANITIZED:  # double runs the same lines; the first four steps have text rows, empty rows and no images
    WAYS = (("ranks_parity", {}, 4), ("ranks_parity", {"RANKS_PARITY_TIES": "1"}, 1))
    SHARED_LIMITS = {"ranks_parity": (1e-5, 1e-5)}
LONG_TEXT = 180  # words of a text that fits into a row of 256 tokens with one question but not with two


def alone_options(options):
    """The options for one rank; its micro-batch is one row, whatever the layout has."""
    return {k: v for k, v in options.items()
            if k.startswith(("flavour", "feed.", "freeze.", "lora.", "loss.", "training.global", "training.steps"))}


class Bench:
    """Makes models, rows, and the reference results of one rank, each once when it is first needed."""

    def __init__(self, path=None):
        self.path = path or tempfile.mkdtemp(prefix="parity")
        self.known = {}
        self.flavours = set()
        self.families = None  # the options with which they are read
        run(os.path.join(BIN, "prepd"), "synth", "--out", self.file("data"), "--images", 60, "--seed", 1)

    def flavour(self, name):
        """Returns the flavour's file of options. Its model and rows are made when they are first asked for."""
        path = self.file(name + ".yaml")
        if name in self.flavours:
            return path
        self.flavours.add(name)
        model = self.file(name)
        shutil.copytree(self.file("data/model"), model)
        with open(os.path.join(model, "config.json")) as f:
            config = json.load(f)
        for section, values in FLAVOURS[name].items():
            config[section].update(values)
        with open(os.path.join(model, "config.json"), "w") as f:
            json.dump(config, f)
        with open(path, "w") as f:
            f.write(f"model: {{path: {name}}}\ndata: {{format: vqav2, path: data, split: train}}\n"
                    f"feed: {{replay: {name}.rec}}\n"
                    "eval: {enable: false}\nprepd: {endpoint: 'ipc://p.sock', workers: 1}\n"
                    "training: {seq_len: 256, local_batch_size: 1, steps: 20, threads: 1, "
                    f"global_batch_size: {STEP}}}\n"
                    "optimizer: {lr: 1.0e-3}\nlr_scheduler: {warmup_steps: 5}\n"
                    "checkpoint: {enable: false}\n")
        run(os.path.join(BIN, "prepd"), "record", "-c", path, "--steps", 5, "--overwrite", "--out", self.file("image.rec"))
        run(os.path.join(TESTS, "mixed_rows"), model, self.file("image.rec"), self.file(name + ".rec"))
        return path

    def file(self, name):
        return os.path.join(self.path, name)

    train_images = prepd_flow.Folder.train_images  # for write_families

    def epoch(self, group, rows):
        """Returns a recording of samples that begin alike, all of them in one step of so many rows."""
        path = self.file(f"families-{group}-{rows}.rec")
        if not self.families:
            from families import write_families  # needs numpy, which --keep does without
            self.families, _ = write_families(self, long_words=LONG_TEXT)
        if not os.path.exists(path):
            options = ["-c", self.flavour("small"), *self.families, "--data.group", group, "--training.epochs", 1,
                       "--training.global_batch_size", rows]
            said = run(os.path.join(BIN, "prepd"), "plan", *options)
            # A lone picture, two texts that begin alike for too few tokens, and the two with a long beginning.
            alone = "" if group == "none" else "documents without a prefix: 5"
            check("refused: 0" in said and alone in said, said)
            run(os.path.join(BIN, "prepd"), "record", *options, "--steps", 1, "--out", path)
        return path

    def options(self, more):
        words = ["-c", self.flavour(more.get("flavour", "small"))]
        for key, value in more.items():
            if key != "flavour":
                words += ["--" + key, str(value)]
        return words

    def alone(self, program, options, env, **more):
        """Returns the file that one rank wrote. more: options that it has besides."""
        options = dict(alone_options(options), **more)
        key = (program, tuple(sorted(options.items())), tuple(env))
        if key not in self.known:
            self.known[key] = self.file(f"one{len(self.known)}.safetensors")
            run(os.path.join(TESTS, program), "write", self.known[key], *self.options(options),
                **env)
        return self.known[key]

    def layout(self, program, name, env, steps):
        options = LAYOUTS[name][1]
        if options.get("flavour") == "tile":
            steps = min(steps, TILE_STEPS)
        options = dict(options, **{"training.steps": steps})
        want = self.alone(program, options, env)
        return self.compare(program, LAYOUTS[name][0], options, want, LIMITS[program], env)

    def shared(self, program, name):
        """The layout on rows whose samples share prefixes, against one rank that has these samples apart."""
        options = LAYOUTS[name][1]
        rows = 3 * STEP if "training.global_batch_size" in options else STEP  # three consumers do not share 8
        options = dict(options, **{"training.steps": 1, "training.global_batch_size": rows})
        apart = {"feed.replay": self.epoch("none", 2 * rows), "training.global_batch_size": 2 * rows}
        if "loss.router_aux_coef" in options:  # it is of a micro-batch, so all samples must be in one
            options["training.local_batch_size"] = rows
            apart["training.local_batch_size"] = 2 * rows
        want = self.alone(program, options, {}, **apart)
        options["feed.replay"] = self.epoch("shared_prefix", rows)
        return self.compare(program, LAYOUTS[name][0], options, want, SHARED_LIMITS[program], {})

    def captured(self):
        """Steps that the emulated device captures, on rows whose samples share prefixes, against the CPU that has
        these samples apart."""
        options = {"training.steps": CAPTURED_STEPS, "training.global_batch_size": STEP}
        apart = {"feed.replay": self.epoch("none", 2 * STEP), "training.global_batch_size": 2 * STEP}
        want = self.alone("ranks_parity", options, {}, **apart)
        options.update({"feed.replay": self.epoch("shared_prefix", STEP), "training.backend": "cuda"})
        return self.compare("ranks_parity_emulated", [1] * len(DEGREES), options, want, LIMITS["ranks_parity"],
                            {"RANKS_PARITY_PLANNED": "1"})

    def compare(self, program, degrees, options, want, limits, env):
        ranks = 1
        for d in degrees[:5]:
            ranks *= d
        options = dict(options, **{"parallelism." + k: v for k, v in zip(DEGREES, degrees) if v > 1})
        said = run(MPIRUN, "-np", ranks, os.path.join(TESTS, program), "compare", want, *limits, *self.options(options), **env)
        return "; ".join(line for line in said.splitlines() if line.startswith(("grad", "loss")))


def keep(folder):
    """A line of the file `layouts`: ranks, whether each row's arithmetic is that of one rank, name, flavour,
    options of one rank, options of the layout; the last two as a shell reads words."""
    os.makedirs(folder)
    bench = Bench(os.path.abspath(folder))
    with open(bench.file("layouts"), "w") as f:
        for name, (degrees, options) in LAYOUTS.items():
            options = dict(options, **{"training.steps": GPU_STEPS})
            more = dict(options, **{"parallelism." + k: v for k, v in zip(DEGREES, degrees) if v > 1})
            flavour = options.get("flavour", "small")
            bench.flavour(flavour)
            same = degrees[2] == degrees[3] == 1 and "training.local_batch_size" not in options
            words = [shlex.join([w for k, v in o.items() if k != "flavour" for w in ("--" + k, str(v))])
                     for o in (alone_options(options), more)]
            ranks = degrees[0] * degrees[1] * degrees[2] * degrees[3] * degrees[4]
            f.write("|".join([str(ranks), str(int(same)), name, flavour, *words]) + "\n")
    shutil.rmtree(bench.file("data"))
    os.remove(bench.file("image.rec"))
    shutil.rmtree(bench.file("p.sock"), ignore_errors=True)


def comparisons(bench, names):
    """What is compared, and the call that does it."""
    for name in names or QUICK + BRIEFLY + SHARED:
        for program, env, steps in WAYS if names or name in QUICK else (("ranks_parity", {}, 2),) if name in BRIEFLY else ():
            yield (f"{name:57} {'double' if 'f64' in program else 'float'}{', all tokens on the same experts' if env else ''}",
                   functools.partial(bench.layout, program, name, env, steps))
        for program in SHARED_LIMITS:
            yield (f"{name:57} {'double' if 'f64' in program else 'float'}, shared prefixes",
                   functools.partial(bench.shared, program, name))
    if not names:
        yield f"{'one rank':57} float, shared prefixes, captured", bench.captured


def main():
    names = sys.argv[1:]
    if names[:1] == ["--keep"]:
        return keep(names[1])
    if names == ["--all"]:
        names = list(LAYOUTS)
    bench = Bench()
    failed = []
    try:
        for what, compare in comparisons(bench, names):
            start = time.monotonic()
            try:
                said = compare()
            except (AssertionError, subprocess.TimeoutExpired) as e:
                failed.append(what)
                said = f"FAILED {e}"
            print(f"{what}: {said} ({time.monotonic() - start:.0f} s)", flush=True)
    finally:
        shutil.rmtree(bench.path)
    if failed:
        print("failed: " + "; ".join(failed))
        sys.exit(1)


if __name__ == "__main__":
    main()
