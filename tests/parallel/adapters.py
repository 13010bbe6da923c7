#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters (LoRA) of several ranks. The merged model and the adapter folder that they write have the bits that one
rank writes for the same values, and any layout can go on from them."""

import os
import shutil
import subprocess
import sys

import numpy

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checkpoints import STEPS, Runs, near  # noqa: E402
from ranks import BIN, ENV, check, run  # noqa: E402

LORA = ("--lora.rank", 4, "--lora.alpha", 12, "--lora.random_base", "true", "--checkpoint.model", "always",
        "--lora.targets", "q_proj,k_proj,v_proj,o_proj,gate,gate_up_proj,down_proj", "--optimizer.lr", 0.01)
FILES = ("model.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json")
OFF = 1e-3  # largest difference after 6 steps that round differently, as a share of the adapters' norm
LAYOUTS = {
    "shard 2": (2, ()),
    "shard 2 x tensor 2": (4, ("--parallelism.tensor_parallel_degree", 2)),
    "replicate 2 x shard 2": (4, ("--parallelism.data_parallel_replicate_degree", 2,
                                  "--checkpoint.async_mode", "disabled")),
    "pipeline 2 x shard 2": (4, ("--parallelism.pipeline_parallel_degree", 2)),
    "shard 2, expert 2": (2, ("--parallelism.expert_parallel_degree", 2)),
    "shard 2 x tensor 2, expert 2, expert-tensor 2": (
        4, ("--parallelism.tensor_parallel_degree", 2, "--parallelism.expert_parallel_degree", 2,
            "--parallelism.expert_tensor_parallel_degree", 2)),
}


def files(r, folder, step):
    out = {}
    for name in FILES:
        with open(r.file(f"{folder}/checkpoint/step-{step}/{name}"), "rb") as f:
            out[name] = f.read()
    return out


def adapter(r, folder, step):
    """Reads all values of a checkpoint's adapters."""
    data = files(r, folder, step)[FILES[1]]
    return numpy.frombuffer(data[8 + int.from_bytes(data[:8], "little"):], numpy.float32).astype(numpy.float64)


def off(a, b):
    return numpy.linalg.norm(a - b) / numpy.linalg.norm(b)


def go_on(r, wrote, name, ranks, step, *options):
    r.copy(wrote, name)
    on = r.train(name, ranks, *LORA, "--checkpoint.load_step", step, *options)
    check(min(on) == step + 1, f"{name} did not go on after step {step}: {on}")
    return on


def one_rank_writes_the_same(r, wrote):
    """Lets one rank go on with a step that changes nothing, and save."""
    name = wrote + ", written again"
    go_on(r, wrote, name, 1, 4, "--optimizer.lr", 0, "--training.steps", 5)
    was, now = files(r, wrote, 4), files(r, name, 5)
    check([n for n in FILES if was[n] != now[n]] == [], f"{wrote}: one rank writes other bytes")


def any_layout_trains_them(r):
    alone = r.train("one", 1, *LORA)
    want = adapter(r, "one", STEPS)
    check(alone[STEPS] < alone[1], f"nothing is learnt: {alone}")
    for name, (ranks, layout) in LAYOUTS.items():
        said = r.train(name, ranks, *LORA, *layout)
        check(near(said, alone), f"{name}: {said} is not {alone}")
        far = off(adapter(r, name, STEPS), want)
        print(f"{name}: adapters are {far:.1e} off those of one rank", flush=True)
        check(far <= OFF, f"{name}: adapters are {far} off")
        one_rank_writes_the_same(r, name)
    go_on(r, "shard 2", "again", 2, 2, "--checkpoint.model", "end")
    want_files = files(r, "shard 2", STEPS)
    for name in FILES:  # merged by both ranks when the run ends, from checkpoints of adapters alone
        with open(r.file(f"again/checkpoint/{name}"), "rb") as f:
            check(f.read() == want_files[name], f"the same ranks went on to other bits: {name}")
    check(not os.path.exists(r.file(f"again/checkpoint/step-{STEPS}/model.safetensors")), "a checkpoint has the whole model")
    for wrote, name, ranks, layout in (("shard 2", "gathered", 1, ()), ("one", "spread", *LAYOUTS["shard 2"]),
                                       ("shard 2", "cut", *LAYOUTS["shard 2 x tensor 2"]),
                                       ("shard 2, expert 2", "together", *LAYOUTS["shard 2"])):
        on = go_on(r, wrote, name, ranks, 2, *layout)
        check(near(on, alone), f"{name}: {on} is not {alone}")
        check(off(adapter(r, name, STEPS), want) <= OFF, f"{name}: other adapters")


def ranks_share_a_base_in_codes(r):
    """Two ranks, and experts on two, have the codes of one."""
    coded = (*LORA[:LORA.index("--checkpoint.model")], *LORA[LORA.index("--checkpoint.model") + 2:], "--lora.base", "nf4",
             "--training.steps", 2)
    alone = r.train("codes", 1, *coded)
    for name in ("shard 2", "shard 2, expert 2"):
        ranks, layout = LAYOUTS[name]
        said = r.train("codes of " + name, ranks, *coded, *layout)
        check(near(said, alone), f"codes of {name}: {said} is not {alone}")


def any_ranks_know_the_base(r):
    """Its hashes are the same, whoever makes them: of files that ranks share, each hashes some. One rank resumes from
    what two wrote, and ranks refuse another base together."""
    base = r.file(f"one/checkpoint/step-{STEPS}")
    lora = (*LORA, "--checkpoint.model", "never", "--model.path", base)
    stages = ("--parallelism.pipeline_parallel_degree", 2)
    r.train("two", 2, *lora, *stages, "--training.steps", 2)
    on = go_on(r, "two", "then one", 1, 2, *lora[len(LORA):], "--training.steps", 3)
    check(list(on) == [3], f"{on}")
    known = []
    for name, step in (("two", 2), ("then one", 3)):
        with open(r.file(f"{name}/checkpoint/step-{step}/training/base.json"), "rb") as f:
            known.append(f.read())
    check(known[0] == known[1] and known[0].count(b'":"') > 50, "another base")
    base = r.file("shard 2/checkpoint/step-2")
    p = subprocess.run(r.words("two", 2, *LORA, "--model.path", base, *stages), env=ENV, capture_output=True, text=True,
                       timeout=120)
    check(p.returncode and "trained on another base" in p.stdout + p.stderr, f"{p.stdout}{p.stderr}")


def ranks_leave_a_model_of_parts(r):
    """Without adapters, with the tower frozen: checkpoints have what is trained, which any ranks go on from, and all ranks
    write the model in the end. It is the one that one rank makes of their checkpoint."""
    base = r.file(f"one/checkpoint/step-{STEPS}")
    frozen = ("--freeze.pattern", "vision", "--model.path", base, "--optimizer.lr", 1e-3)
    alone = r.train("parts of one", 1, *frozen)
    for name in ("shard 2 x tensor 2", "pipeline 2 x shard 2"):
        ranks, layout = LAYOUTS[name]
        said = r.train("parts of " + name, ranks, *frozen, *layout)
        check(near(said, alone), f"{name}: {said} is not {alone}")
        folder = r.file(f"parts of {name}/checkpoint")
        check(os.listdir(f"{folder}/step-{STEPS}") == ["training"], f"{name}: {os.listdir(folder)}")
        run(os.path.join(BIN, "trainer"), "export", "--model", f"{folder}/step-{STEPS}", "--out", r.file("made of " + name))
        models = []
        for path in (folder, r.file("made of " + name)):
            with open(path + "/model.safetensors", "rb") as f:
                models.append(f.read())
        check(models[0] == models[1], f"{name}: the model is not that of its checkpoint")
    r.copy("parts of " + name, "parts together")
    on = r.train("parts together", 1, *frozen, "--checkpoint.load_step", 2)
    check(min(on) == 3 and near(on, alone), f"{on} is not {alone}")


def main():
    r = Runs()
    try:
        any_layout_trains_them(r)
        ranks_share_a_base_in_codes(r)
        any_ranks_know_the_base(r)
        ranks_leave_a_model_of_parts(r)
    finally:
        shutil.rmtree(r.path)


if __name__ == "__main__":
    main()
