#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of several ranks. A run that goes on with the same ranks has the same bits, with other ranks the same
numbers up to rounding. A run that is killed while it writes resumes from its last complete checkpoint. Whichever
rank reads a damaged byte finds it, and all ranks go on from the checkpoint before."""

import glob
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from ranks import BIN, ENV, MPIRUN, check, kill_session, run  # noqa: E402

STEPS, EVERY = 6, 2


class Runs:
    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="ranks")
        run(os.path.join(BIN, "prepd"), "synth", "--out", self.file("data"), "--images", 40, "--seed", 1)
        with open(self.file("c.yaml"), "w") as f:
            f.write("model: {path: data/model}\ndata: {format: vqav2, path: data, split: train}\n"
                    "eval: {enable: false}\nprepd: {endpoint: 'ipc://p.sock', workers: 1}\n"
                    "training: {seq_len: 256, local_batch_size: 1, threads: 1, global_batch_size: 4, "
                    f"steps: {STEPS}}}\noptimizer: {{lr: 1.0e-3}}\n"
                    f"checkpoint: {{enable: true, interval: {EVERY}, keep_latest_k: 0}}\n"
                    "metrics: {log_freq: 1}\n")
        run(os.path.join(BIN, "prepd"), "record", "-c", self.file("c.yaml"), "--steps", STEPS,
            "--out", self.file("rows.rec"))

    def file(self, name):
        return os.path.join(self.path, name)

    def words(self, folder, ranks, *options):
        trainer = [os.path.join(BIN, "trainer"), "train", "-c", self.file("c.yaml"),
                   "--feed.replay", self.file("rows.rec"), "--job.dump_folder", self.file(folder),
                   *map(str, options)]
        return trainer if ranks == 1 else [MPIRUN, "-np", str(ranks), *trainer]

    def train(self, folder, ranks, *options):
        """The loss of each step that this run made."""
        return losses(run(*self.words(folder, ranks, *options)))

    def copy(self, folder, to):
        shutil.copytree(self.file(folder), self.file(to))

    def model(self, folder, step):
        with open(self.file(f"{folder}/checkpoint/step-{step}/model.safetensors"), "rb") as f:
            return f.read()


def losses(said):
    return {int(s): float(l) for s, l in re.findall(r"^step: +(\d+)  loss: +([0-9.]+)", said, re.M)}


def near(a, b):
    return all(abs(a[k] - b[k]) <= 2e-4 for k in a)


def ranks_go_on_in_any_layout(r):
    alone = r.train("one", 1)
    pair = r.train("pair", 2)
    check(sorted(pair) == list(range(1, STEPS + 1)) and near(pair, alone), f"{pair} is not {alone}")
    for name, ranks, options in (("again", 2, ()), ("four", 4, ("--parallelism.data_parallel_"
                                 "replicate_degree", 2)), ("three", 1, ())):
        r.copy("pair", name)
        on = r.train(name, ranks, "--checkpoint.load_step", 2, *options)
        check(sorted(on) == list(range(3, STEPS + 1)), f"{name} did not go on after step 2: {on}")
        check(near(on, pair), f"{name}: {on} is not {pair}")
    check(r.model("again", STEPS) == r.model("pair", STEPS), "the same ranks went on to other bits")
    stages = ("--parallelism.pipeline_parallel_degree", 2)
    staged = r.train("staged", 4, *stages)  # two stages, each of two shards
    check(near(staged, alone), f"staged: {staged} is not {alone}")
    for wrote, name, ranks, options in (("staged", "staged again", 4, stages), ("staged", "together", 1, ()),
                                        ("pair", "cut", 2, stages)):
        r.copy(wrote, name)
        on = r.train(name, ranks, "--checkpoint.load_step", 2, *options)
        check(sorted(on) == list(range(3, STEPS + 1)), f"{name} did not go on after step 2: {on}")
        check(near(on, pair), f"{name}: {on} is not {pair}")
    check(r.model("staged again", STEPS) == r.model("staged", STEPS), "stages went on to other bits")
    r.copy("one", "spread")  # two ranks go on from what one rank wrote
    check(near(r.train("spread", 2, "--checkpoint.load_step", 4), alone), "one rank's, by two")


def killed_while_it_writes(r):
    want = r.train("whole", 2)
    chance = random.Random(4)
    for round_ in range(4):
        name = f"killed{round_}"
        p = subprocess.Popen(r.words(name, 2), env=ENV, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, start_new_session=True)
        writing = r.file(f"{name}/checkpoint/.step-{EVERY * (1 + round_ % 2)}.writing")
        deadline = time.monotonic() + 60
        while not os.path.isdir(writing) and time.monotonic() < deadline and p.poll() is None:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.15)
        kill_session(p.pid)
        p.communicate()
        on = r.train(name, 2)
        check(max(on) == STEPS and near(on, want), f"{name}: {on} is not {want}")
        check(r.model(name, STEPS) == r.model("whole", STEPS), f"{name}: other bits")
        left = glob.glob(r.file(f"{name}/checkpoint/.step-*"))
        check(not left, f"left behind: {left}")
        with open(r.file(f"{name}/checkpoint/step-{STEPS}/training/manifest.json")) as f:
            files = [x["name"] for x in json.load(f)["files"]]
        check("training/rank-00001-of-00002.safetensors" in files, files)


def damage_is_found_whoever_looks(r):
    """Each rank reads its share of a checkpoint's bytes. A file with a changed byte is named, whichever rank
    reads it, and all ranks go on from the same earlier step."""
    for name in ("model.safetensors", "training/rank-00000-of-00002.safetensors",
                 "training/rank-00001-of-00002.safetensors", "training/state.json"):
        folder = "damaged " + os.path.basename(name)
        r.copy("pair", folder)
        with open(r.file(f"{folder}/checkpoint/step-{STEPS}/{name}"), "r+b") as f:
            f.seek(-1, 2)
            byte = f.read(1)[0]
            f.seek(-1, 2)
            f.write(bytes([byte ^ 1]))
        said = run(*r.words(folder, 2, "--training.steps", STEPS))
        told = re.search(rf"checkpoint of step {STEPS} is passed over: .*{re.escape(os.path.basename(name))}.*bytes changed", said)
        check(told, f"{name}: {said}")
        check(f"resuming from step {STEPS - EVERY}" in said, f"{name}: {said}")
        check(r.model(folder, STEPS) == r.model("pair", STEPS), f"{name}: other values")


def main():
    r = Runs()
    try:
        ranks_go_on_in_any_layout(r)
        damage_is_found_whoever_looks(r)
        killed_while_it_writes(r)
    finally:
        shutil.rmtree(r.path)


if __name__ == "__main__":
    main()
