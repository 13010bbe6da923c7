# SPDX-License-Identifier: Apache-2.0
"""What a user can do wrong: each mistake is a clear error that names the place, and none is a hang."""

import json
import os
import shutil
import subprocess
import time

from prepd_flow import BUSY_S, Daemon, Folder, check, main, run
from train_flow import TRAINER, trainer

STREAM = {"training.seq_len": 256, "training.global_batch_size": 4}


def refused(words, code, *args):
    said = trainer(*args, code=code)
    for word in words:
        check(word in said, f"{' '.join(args)}: the error does not say {word!r}:\n{said}")


def options_that_do_not_exist_or_fit():
    with Folder(**STREAM) as f:
        c = ("train", "-c", f.config)
        refused(["training.step", "training.steps"], 64, *c, "--training.step", "3")
        refused(["training.seq_len", "16"], 64, *c, "--training.seq_len", "1")
        refused(["optimizer.lr"], 64, *c, "--optimizer.lr", "fast")
        refused(["cosine"], 64, *c, "--lr_scheduler.decay_type", "cosinus")
        refused(["no-such.yaml"], 66, "train", "-c", f.file("no-such.yaml"))
        refused(["local_batch_size"], 78, *c, "--training.local_batch_size", "3",
                "--feed.replay", record(f))
        refused(["optimizer.lr is 0", "merger"], 78, *c, "--optimizer.lr", "0", "--optimizer.groups", "merger lr=1e-3",
                "--feed.replay", record(f), "--job.dump_folder", f.file("o"))
        refused(["eval.page", "no/page.html"], 73, *c, "--eval.enable", "true", "--eval.page", f.file("no/page.html"),
                "--job.dump_folder", f.file("o"))
        refused(["rank"], 78, *c, "--parallelism.tensor_parallel_degree", "2")
        with open(f.file("bad.yaml"), "w") as bad:
            bad.write("training:\n  seq_len: 256\n  seq_len: 512\n")
        refused(["bad.yaml:3", "seq_len"], 78, "train", "-c", f.file("bad.yaml"))


def what_is_refused_makes_no_folder():
    with Folder(**STREAM) as f:
        out = ("train", "--job.dump_folder", f.file("o"))
        model = ("--model.path", f.file("data/model"))
        for words, code, more in ((["command line: model.path is not set"], 64, ()), (["/nowhere"], 66, ("--model.path", "/nowhere")),
                                  (["no/rows"], 66, (*model, "--feed.replay", f.file("no/rows"))),
                                  (["lora.targets"], 78, (*model, "--lora.rank", "2", "--lora.targets", "nothing"))):
            refused(words, code, *out, *more)
            check(not os.path.exists(f.file("o")), f"{more}: a folder was made")


def record(f):
    path = f.file("rows.rec")
    if not os.path.exists(path):
        run("record", "-c", f.config, "--steps", "1", "--out", path)
    return path


def folders_that_are_not_models():
    with Folder(**STREAM) as f:
        c = ("train", "-c", f.config, "--feed.replay", record(f), "--job.dump_folder", f.file("o"))
        refused(["qwen3-vl-31b"], 66, *c, "--model.path", "qwen3-vl-31b")
        os.makedirs(f.file("empty"))
        refused(["config.json"], 66, *c, "--model.path", f.file("empty"))
        with open(f.file("empty/config.json"), "w") as config:
            config.write('{"model_type": "qwen3_vl_moe", "text_config": {"hidden_size": "x"}}')
        refused(["config.json"], 65, *c, "--model.path", f.file("empty"))
        refused(["model.safetensors"], 66, "eval", "-c", f.config)


def another_stream_than_the_daemon_s():
    with Folder(**STREAM) as f, Daemon(f.config):
        c = ("train", "-c", f.config, "--job.dump_folder", f.file("o"))
        refused(["training.seed"], 78, *c, "--training.seed", "7")
        refused(["image.resampler"], 78, *c, "--image.resampler", "pillow")


def no_daemon_listens():
    with Folder(**STREAM) as f:
        start = time.monotonic()
        refused(["prepd serve", "waiting for prepd at", "there is no socket"], 69, "train", "-c", f.config, "--feed.timeout", "2",
                "--job.dump_folder", f.file("o"))
        check(time.monotonic() - start < BUSY_S, "it took too long")


def damaged_recordings():
    with Folder(**STREAM) as f:
        path = record(f)
        whole = open(path, "rb").read()
        for name, data in {"cut": whole[:len(whole) // 2], "empty": b"", "text": b"hello " * 99,
                           "flipped": whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]}.items():
            bad = f.file(name + ".rec")
            with open(bad, "wb") as out:
                out.write(data)
            p = subprocess.run([TRAINER, "train", "-c", f.config, "--feed.replay", bad,
                                "--training.steps", "1", "--job.dump_folder", f.file("o")],
                               capture_output=True, text=True, timeout=60)
            check(p.returncode in (65, 76), f"{name}: exit code {p.returncode}: {p.stderr}")
            check(name + ".rec" in p.stderr, f"{name}: the file is not named: {p.stderr}")


def rows_that_do_not_fit_the_model():
    """A recording made with another tokenizer has ids beyond the vocabulary."""
    with Folder(**STREAM) as f:
        refused(["vocab"], 65, "train", "-c", f.config, "--feed.replay", record(f),
                "--training.steps", "1", "--job.dump_folder", f.file("o"), "--model.path",
                tiny_vocabulary(f))


def tiny_vocabulary(f):
    shutil.copytree(f.file("data/model"), f.file("tiny"))
    path = f.file("tiny/config.json")
    config = json.load(open(path))
    config["text_config"]["vocab_size"] = 64
    json.dump(config, open(path, "w"))
    return f.file("tiny")


main(options_that_do_not_exist_or_fit, what_is_refused_makes_no_folder, folders_that_are_not_models,
     another_stream_than_the_daemon_s, no_daemon_listens, damaged_recordings, rows_that_do_not_fit_the_model)
