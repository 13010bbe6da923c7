# SPDX-License-Identifier: Apache-2.0
"""The first loss on weights that claim to be trained: about ln(vocabulary) draws a warning, in train and in eval. A
model that has learned a little draws none, nor does one that starts from scratch."""

import os
import subprocess

from prepd_flow import LIMIT_S, Daemon, Folder, check, main, run
from train_flow import SHORT, TRAINER, options

WORDS = "near ln(vocabulary)"


def said_by(*args):
    p = subprocess.run([TRAINER, *args], capture_output=True, text=True, timeout=LIMIT_S)
    check(p.returncode == 0, f"trainer {' '.join(args)}: exit code {p.returncode}\n{p.stdout}{p.stderr}")
    return p.stderr


def train(f, name, **changed):
    values = dict(SHORT, **{"job.dump_folder": f.file(name), "training.steps": 1, "checkpoint.enable": "true"})
    values.update({key.replace("__", "."): value for key, value in changed.items()})
    said = said_by("train", "-c", f.config, *options(values))
    return os.path.join(f.file(name), "checkpoint"), said


def random_weights_are_noticed():
    with Folder(images=16, **{"training.seq_len": 256, "training.global_batch_size": 4}) as f:
        run("record", "-c", f.config, "--steps", "40", "--out", f.file("rows.rec"))
        rows = {"feed__replay": f.file("rows.rec")}
        blind, said = train(f, "blind", optimizer__lr=1e-9, **rows)
        check(WORDS not in said, f"a model from scratch is no surprise: {said}")
        _, said = train(f, "again", model__path=blind, **rows)
        check(WORDS in said and blind in said, f"random weights pass for trained ones: {said}")
        learned, _ = train(f, "learned", training__steps=40, optimizer__lr=0.003, **rows)
        _, said = train(f, "more", model__path=learned, **rows)
        check(WORDS not in said, f"trained weights draw a warning: {said}")
        with Daemon(f.config):
            said = said_by("eval", "-c", f.config, "--model.path", blind)
            check(WORDS in said, f"eval does not notice random weights: {said}")
            said = said_by("eval", "-c", f.config, "--model.path", learned)
            check(WORDS not in said, f"eval warns of trained weights: {said}")


main(random_weights_are_noticed)
