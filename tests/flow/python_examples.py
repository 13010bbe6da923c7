# SPDX-License-Identifier: Apache-2.0
"""The examples of the Python package on a tiny model: transformers' Trainer, DistributedDataParallel with two ranks and the loop of
torchtitan, each stopped and gone on with to the same bits; and what the collators give, held against the models of transformers.

They need torch, transformers and accelerate, which Debian does not have: TESSERA_PYTHON names an interpreter that has them.
Without it nothing is tested here (exit code 77)."""

import json
import os
import re
import shutil
import subprocess
import sys

from prepd_flow import BIN, LIMIT_S, SOURCE, Daemon, Folder, check, main, run, wait_for

PYTHON = os.environ.get("TESSERA_PYTHON", "")
if not PYTHON:
    print("skipped: TESSERA_PYTHON names no interpreter with torch and transformers")
    sys.exit(77)
BUILT = os.path.join(os.path.dirname(os.path.abspath(os.environ.get("TESSERA_BIN", "build/bin"))), "python")
EXAMPLES = os.path.join(os.path.abspath(SOURCE), "proto", "python", "examples")
HERE = os.path.dirname(os.path.abspath(__file__))
ENVIRONMENT = {**{k: v for k, v in os.environ.items() if k != "TESSERA_PYTHON"}, "PYTHONPATH": BUILT, "OMP_NUM_THREADS": "1",
               "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}


def has(module):
    there = subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True).returncode == 0
    if not there:
        print(f"skipped: {PYTHON} has no {module}")
    return there


def said(*words, ranks=0, code=0):
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    p = subprocess.run([PYTHON, *launch, *words], capture_output=True, text=True, timeout=LIMIT_S, env=ENVIRONMENT)
    check(p.returncode == code, f"{words}: {p.returncode}\n{p.stdout}{p.stderr}")
    return p.stdout if code == 0 else p.stdout + p.stderr


def small(**more):
    return Folder(images=64, **{"training.epochs": 0, "training.seq_len": 256, **more})


def end_of(f):
    wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
    return "ipc://" + f.file("d.sock")


def sha_in(text):
    return re.search(r"sha256 ([0-9a-f]{64})", text)[1]


def the_trainer_of_transformers():
    """Four steps; the same from the checkpoint of the second, and no step from that of the fourth."""
    if not has("accelerate"):
        return
    with small() as f, Daemon(f.config, "--data.group", "shared_prefix"):
        words = (os.path.join(EXAMPLES, "hf_trainer.py"), end_of(f), f.file("data/model"), f.file("out"), "--steps", "4", "--save", "2")
        whole = said(*words)
        check("steps 4 rows 16" in whole, whole)
        again = said(*words)
        check("steps 4 rows 16" in again and sha_in(again) == sha_in(whole), f"finished: {again}\nwhole: {whole}")
        shutil.rmtree(f.file("out/checkpoint-4"))
        again = said(*words)
        check("steps 4 rows 16" in again and sha_in(again) == sha_in(whole), f"resumed: {again}\nwhole: {whole}")


def two_ranks_of_ddp():
    """Four steps by two ranks; the same in two runs of two steps. The losses are those of one rank, to rounding."""
    with small() as f, Daemon(f.config, "--data.group", "shared_prefix"):
        script, end = os.path.join(EXAMPLES, "ddp.py"), end_of(f)
        losses = {}
        for name, ranks, stops in (("whole", 2, ("4",)), ("parts", 2, ("2", "4")), ("one", 1, ("2",))):
            texts = [said(script, end, f.file("data/model"), f.file(name), "--steps", "4", "--stop", s, ranks=ranks) for s in stops]
            losses[name] = [float(x) for x in re.findall(r"loss (\S+)", "".join(texts))], sha_in(texts[-1])
        check(losses["parts"] == losses["whole"] and len(losses["whole"][0]) == 4, f"{losses}")
        check(all(abs(a - b) < 1e-4 for a, b in zip(losses["one"][0], losses["whole"][0])), f"{losses}")


def the_loop_of_torchtitan():
    with small() as f, Daemon(f.config):
        words = (os.path.join(EXAMPLES, "torchtitan_loop.py"), end_of(f))
        losses = []
        for name, stops in (("whole", ("6",)), ("parts", ("3", "6"))):
            text = "".join(said(*words, f.file(name), "--steps", "6", "--stop", s, "--vocabulary", "640") for s in stops)
            losses.append([float(x) for x in re.findall(r"loss (\S+)", text)])
        check(losses[0] == losses[1] and len(losses[0]) == 6 and losses[0][-1] < losses[0][0], f"{losses}")


def what_collators_give():
    """Packed as the collators say, the loss is that of the documents one by one; as is obvious it is not, and the probe says so."""
    with small() as f:
        for group in "none", "shared_prefix":
            run("record", "-c", f.config, "--data.group", group, "--steps", "1", "--out", f.file(group + ".rec"))
        print(said(os.path.join(HERE, "python_collators.py"), f.file("data/model"), f.file("none.rec"), f.file("shared_prefix.rec")), end="")


def the_page_that_compares():
    """The commands of proto/beside-pytorch.md as they stand, but for places: the losses of 50 steps agree as the page says."""
    with open(os.path.join(SOURCE, "proto", "beside-pytorch.md"), encoding="utf-8") as page:
        text = page.read()
    commands, yaml = (text.split(f"```{kind}\n")[1].split("```")[0] for kind in ("sh", "yaml"))
    limit = float(re.search(r"at\s+most\s+([0-9e-]+)\s+of\s+the\s+loss", text)[1])
    trainer = os.path.join(os.path.dirname(BIN), "trainer")
    if not os.path.exists(trainer):
        print("skipped: no trainer in this build")
        return
    with small() as f:
        os.rename(f.file("data/model"), f.file("model"))
        with open(f.file("beside.yaml"), "w") as kept:
            kept.write(yaml)
        commands = commands.replace("build/bin/prepd", os.path.abspath(BIN)).replace("build/bin/trainer", os.path.abspath(trainer))
        commands = commands.replace("venv/bin/python", PYTHON).replace("proto/python/examples", EXAMPLES)
        p = subprocess.run(["bash", "-euc", commands], cwd=f.path, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_S)
        check(p.returncode == 0, p.stdout + p.stderr)
        done = json.loads(p.stdout.splitlines()[-1])
        print(f"50 steps: largest difference {done['difference']:.1e} of a loss")
        check(len(done["losses"]) == 50 and done["losses"][-1] < 0.1 * done["losses"][0] and done["difference"] <= limit, f"{done}")


main(what_collators_give, the_page_that_compares, the_loop_of_torchtitan, two_ranks_of_ddp, the_trainer_of_transformers)
