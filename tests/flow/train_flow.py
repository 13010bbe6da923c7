# SPDX-License-Identifier: Apache-2.0
"""What the flow tests of the trainer share: a short run, its metrics."""

import json
import os
import shutil
import subprocess

from prepd_flow import BIN, LIMIT_S, check

TRAINER = os.path.join(os.path.dirname(BIN), "trainer")

SHORT = {"training.steps": 4, "training.local_batch_size": 1, "training.global_batch_size": 4,
         "training.seq_len": 256, "metrics.log_freq": 1, "metrics.peak_tflops": 1,
         "optimizer.lr": 0.002}


def options(values):
    return [word for key, value in values.items() for word in ("--" + key, str(value))]


def has_mpi():
    """Whether ranks on CPUs can be started here."""
    return bool(shutil.which("mpirun")) and os.path.exists(os.path.join(os.path.dirname(TRAINER), "../lib/tessera/libtessera_mpi.so"))


def settings(args):
    """The environment of a run: Open MPI leaks from plugins that it unloads, whose names are then unknown."""
    return dict(os.environ, ASAN_OPTIONS="detect_leaks=0") if "--nproc" in args else None


def trainer(*args, code=0):
    """Runs the trainer and returns what it printed. Another exit code fails with all that was said."""
    p = subprocess.run([TRAINER, *args], capture_output=True, text=True, timeout=LIMIT_S, env=settings(args))
    check(p.returncode == code, f"trainer {' '.join(args)}: exit code {p.returncode}, wanted {code}"
                                f"\n{p.stdout}{p.stderr}")
    return p.stdout if code == 0 else p.stdout + p.stderr


def train(folder, name, **changed):
    """A short run into folder/name; returns its metrics, a dict for each step. Options of the daemon may be among the
    changed ones."""
    values = dict(SHORT, **{"job.dump_folder": folder.file(name)})
    values.update({key.replace("__", "."): value for key, value in changed.items()})
    trainer("train", "-c", folder.config, "--shared", *options(values))
    with open(os.path.join(folder.file(name), "metrics.jsonl")) as f:
        return [json.loads(line) for line in f]


def facts(metrics):
    """What must repeat to the bit."""
    return [(m["step"], m["loss"], m["grad_norm"], m["rows_digest"]) for m in metrics]


def close(a, b, tolerance, what):
    for x, y in zip(a, b, strict=True):
        for key in ("loss", "grad_norm"):
            distance = abs(x[key] - y[key]) / max(abs(x[key]), 1e-12)
            check(distance < tolerance, f"{what}: step {x['step']}: {key} {x[key]} and {y[key]}")
