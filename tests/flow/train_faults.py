"""Checkpoints that are damaged or do not fit the disk are never believed and never cost the run; its
ledger can be replayed."""

import glob
import json
import os
import random
import resource
import shutil
import signal
import subprocess

from prepd_flow import Folder, check, main, wait_for
from resume_flow import STREAM, command, go, ledger, recorded, same
from train_flow import SHORT, options, trainer


def damage_is_noticed():
    """Any file of the newest checkpoint cut or changed: named, passed over, and the run is the same."""
    rng = random.Random(5)
    with Folder(**STREAM) as f:
        rows = recorded(f, 3)
        go(f, "quiet", **rows)
        newest = f.file("quiet/checkpoint/step-3")
        files = sorted(os.path.relpath(os.path.join(d, n), newest)
                       for d, _, names in os.walk(newest) for n in names)
        check({"model.safetensors", "config.json", "tokenizer.json", "training/state.json",
               "training/manifest.json", "training/rank-00000-of-00001.safetensors"} <= set(files), files)
        for name in files:
            how = rng.choice(["cut", "flip", "gone"])
            shutil.rmtree(f.file("hurt"), ignore_errors=True)
            shutil.copytree(f.file("quiet"), f.file("hurt"))
            path = f.file("hurt/checkpoint/step-3/" + name)
            with open(path, "rb") as file:
                data = bytearray(file.read())
            at = rng.randrange(len(data))
            data[at] ^= 1 << rng.randrange(8)
            os.remove(path)
            if how != "gone":
                with open(path, "wb") as file:
                    file.write(data[:at] if how == "cut" else data)
            said = go(f, "hurt", **rows)
            check("is passed over" in said and os.path.basename(name) in said,
                  f"{name} {how} at {at}: {said}")
            check("going on from step 2" in said, said)
            same(f, "quiet", "hurt", 3)


def full_disk():
    """No save fits: told, the run goes on, what is whole stays; with room again the next one is kept."""
    with Folder(**STREAM) as f:
        rows = recorded(f, 60)
        go(f, "quiet", **rows)
        size = os.path.getsize(f.file("quiet/checkpoint/step-60/training/rank-00000-of-00001.safetensors"))

        def limit():  # files may not grow beyond this: what a full disk does, for any user
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))

        p = subprocess.Popen(command(f, "full", **rows), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, preexec_fn=limit)
        wait_for(lambda: len(ledger(f, "full")) > 4 if os.path.exists(f.file("full/ledger.jsonl")) else False,
                 "steps without room", 60)
        check(not glob.glob(f.file("full/checkpoint/step-*")), "a checkpoint that can not be whole")
        resource.prlimit(p.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        out, err = p.communicate(timeout=120)
        check(p.returncode == 0 and "is not written" in err, f"exit code {p.returncode}\n{err}")
        same(f, "quiet", "full", 60)
        p = subprocess.run(command(f, "never", **rows), capture_output=True, text=True, preexec_fn=limit)
        check(p.returncode == 74 and "trained:" not in p.stdout, f"exit code {p.returncode}: {p.stderr}")
        check(not glob.glob(f.file("never/checkpoint/*step-*")), "leftovers fill the disk")


def verify_replays():
    with Folder(**STREAM) as f:
        rows = recorded(f, 6)
        go(f, "run", **rows)
        here = ["-c", f.config, *options({"job.dump_folder": f.file("run"), "training.threads": 2, **SHORT, "lr_scheduler.decay_type": "constant",
                                          "training.global_batch_size": 2,
                                          "feed.replay": f.file("rows.rec"), "training.steps": 6})]
        check("2 steps, 5 to 6, agree" in trainer("verify", *here), "verify")
        check("6 steps, 1 to 6, agree" in trainer("verify", *here, "--from", "0"), "verify --from 0")
        path = f.file("run/ledger.jsonl")
        lines = open(path).read().splitlines()
        entry = json.loads(lines[4])
        entry["loss"] += 1e-12
        lines[4] = json.dumps(entry)
        with open(path, "w") as file:
            file.write("\n".join(lines) + '\n{"step": 7, "cut sho')
        said = trainer("verify", *here, "--from", "0", code=65)
        check("step 5 is the first that differs: loss" in said, said)
        said = trainer("verify", *here, "--from", "0", "--optimizer.lr", "0.01", code=65)
        check("step 2 is the first that differs: loss" in said, said)
        check("1 steps, 6 to 6" in trainer("verify", *here, "--from", "5"), "behind the change")


main(damage_is_noticed, full_disk, verify_replays)
