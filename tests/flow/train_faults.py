# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are damaged or do not fit on the disk are never believed and never cost the run; its ledger can be
replayed."""

import errno
import fcntl
import glob
import json
import os
import random
import resource
import shutil
import signal
import subprocess

from faults import ALWAYS, sanitized, trouble
from prepd_flow import LIMIT_S, Daemon, Folder, check, main, wait_for
from resume_flow import STREAM, command, go, ledger, recorded, resealed, same
from train_flow import SHORT, has_mpi, options, settings, trainer


def damage_is_noticed():
    """Any file of the newest checkpoint is truncated or changed: it is named and passed over, and the run is the
    same."""
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
            check("resuming from step 2" in said, said)
            same(f, "quiet", "hurt", 3)


def all_are_damaged():
    """There is nothing whole to resume from: the run asks and does not start anew, and what is set aside stays."""
    with Folder(**STREAM) as f:
        rows = recorded(f, 2)
        go(f, "run", **rows)
        for step in (1, 2):
            os.remove(f.file(f"run/checkpoint/step-{step}/training/manifest.json"))
        said = go(f, "run", code=65, **rows)
        check("none of the 2 checkpoints is whole" in said and "load_step 0" in said, said)
        for _ in range(2):
            go(f, "run", checkpoint__load_step=0, **rows)
        check({"set-aside-step-1", "set-aside-step-1.2", "set-aside-step-2", "set-aside-step-2.2"} <=
              set(os.listdir(f.file("run/checkpoint"))), os.listdir(f.file("run/checkpoint")))


def full_disk():
    """No save fits: this is reported, the run continues, and whole checkpoints stay; with room again the next one is
    kept."""
    with Folder(**STREAM) as f:
        rows = recorded(f, 60)
        go(f, "quiet", **dict(rows, checkpoint__interval=0))  # only its last step is compared
        size = os.path.getsize(f.file("quiet/checkpoint/step-60/training/rank-00000-of-00001.safetensors"))

        def limit():  # no file can grow beyond this size, which is like a full disk and works for any user
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))

        p = subprocess.Popen(command(f, "full", **rows), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, preexec_fn=limit)
        wait_for(lambda: len(ledger(f, "full")) > 4 if os.path.exists(f.file("full/ledger.jsonl")) else False,
                 "steps without room")
        check(not glob.glob(f.file("full/checkpoint/step-*")), "a checkpoint that cannot be whole")
        resource.prlimit(p.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        out, err = p.communicate(timeout=LIMIT_S)
        check(p.returncode == 0 and "is not written" in err, f"exit code {p.returncode}\n{err}")
        same(f, "quiet", "full", 60)
        p = subprocess.run(command(f, "never", **dict(rows, training__steps=4)), capture_output=True, text=True, preexec_fn=limit)
        check(p.returncode == 74 and "trained:" not in p.stdout, f"exit code {p.returncode}: {p.stderr}")
        check("is not kept, and the last whole checkpoint is that of step 0; make room" in p.stderr, p.stderr)
        check(not glob.glob(f.file("never/checkpoint/*step-*")), "leftovers fill the disk")


def on_a_small_disk(f, name, room, *words, code=0, **changed):
    """A run whose folder is a file system of this many bytes, which is removed with it: what it says, and its
    checkpoints."""
    disk, listed = f.file(name), f.file(name + ".listed")
    os.makedirs(disk, exist_ok=True)
    script = (f"mount -t tmpfs -o size={room} none {disk} && shift && \"$@\"; code=$?; cd {disk}/checkpoint && ls -d step-* .step-* "
              f">{listed} 2>&1; for s in step-*; do [ -e $s/training/manifest.json ] || exit 99; done; exit $code")
    p = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", "-", *command(f, name, **changed), *words], capture_output=True,
                       text=True, timeout=LIMIT_S, env=settings(words))
    check(p.returncode == code, f"{name}: exit code {p.returncode}, wanted {code}\n{p.stdout}{p.stderr}")
    with open(listed) as file:
        return p.stderr, sorted(n for n in file.read().split() if n.startswith("step-"))


def the_oldest_makes_room():
    """The disk has room for two checkpoints, and three are to be kept: no save fails, and the last whole one is
    always there. The same if the system does not tell how much room there is, and with two ranks."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        print("skipped: no file system can be mounted here")
        return
    with Folder(images=32, **STREAM) as f:
        rows = recorded(f, 8)
        go(f, "quiet", **dict(rows, training__steps=1))
        one = sum(os.path.getsize(os.path.join(d, n)) for d, _, names in os.walk(f.file("quiet/checkpoint/step-1")) for n in names)
        runs = {"two": (2.6, (), {}), "ranks": (2.6, ("--nproc", "2"), dict(training__backend="cpu", parallelism__tensor_parallel_degree=2))}
        for name, (room, words, changed) in list(runs.items())[:1 + has_mpi()]:
            said, kept = on_a_small_disk(f, name, int(room * one), *words, **rows, **changed)
            check("is not written" not in said and said.count("is removed, though checkpoint.keep_latest_k is 3") == 6, f"{name}: {said}")
            check(kept == ["step-7", "step-8"], f"{name}: {kept}")
        if not sanitized():
            with trouble(f, "statvfs", errno.EIO, "checkpoint", ALWAYS, verb="train"):
                said, kept = on_a_small_disk(f, "untold", int(2.6 * one), **rows)
            check("is not written" not in said and "is removed, though" in said and kept[-1] == "step-8", f"{kept}: {said}")
        said, kept = on_a_small_disk(f, "one", int(1.6 * one), code=74, **dict(rows, training__steps=2))
        check("is removed" not in said and "checkpoint of step 2 is not written" in said and kept == ["step-1"], f"{kept}: {said}")


def a_cursor_that_cannot_be_is_refused():
    """In a checkpoint that is sealed: no cursor, one at another row, of another stream, of another index, of steps
    that do not match; no list of bad samples. A damaged checkpoint is passed over for the one before; no run begins again at row 0."""
    def cursor(**changed):
        def change(state):
            state["cursor"] = json.dumps(dict(json.loads(state["cursor"]), **changed))
        return change

    bad = {"there is no cursor": lambda s: s.update(cursor=""), "not an object": lambda s: s.update(cursor="null"),
           "resumes at row 1000000, but 4 rows were trained": cursor(row=1000000, step=500000), "to the eval stream": cursor(stream="eval"),
           "resumes at row 4 of step 7": cursor(step=7), "8 rows as taken by 2 steps of 2 rows": lambda s: s.update(rows=8),
           "the quarantine is an integer": lambda s: s.update(quarantine="7"),
           "belongs to index": cursor(index="0" * 32)}
    with Folder(images=32, **STREAM) as f, Daemon(f.config):
        go(f, "run", training__steps=2)
        for n, (words, change) in enumerate(bad.items()):
            shutil.copytree(f.file("run"), f.file(f"bad-{n}"))
            resealed(f.file(f"bad-{n}/checkpoint/step-2"), change)
            code = 78 if "index" in words else 65
            said = go(f, f"bad-{n}", code=code, training__steps=3, checkpoint__load_step=2)
            check(words in said and "step-2" in said or code == 78, f"{words}: {said}")
            check(max(ledger(f, f"bad-{n}")) == 2, said)
        said = go(f, "bad-0", training__steps=3)
        check("checkpoint of step 2 is passed over" in said and "there is no cursor" in said and "resuming from step 1" in said, said)
        go(f, "run", training__steps=3)
        same(f, "run", "bad-0", 3)


def one_writes_here():
    with Folder(**STREAM) as f:
        rows = recorded(f, 1)
        go(f, "run", **rows)
        with open(f.file("run/.lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            said = go(f, "run", code=69, **rows)
            check("another trainer writes here" in said and "job.dump_folder" in said, said)
        go(f, "run", **rows)


def no_room_for_lines():
    """Ledger, metrics and events do not fit: each is reported once, and the run is the same to its end."""
    with Folder(**STREAM) as f:
        rows = recorded(f, 6)
        log = {"checkpoint__enable": "false", "metrics__enable_tensorboard": "true"}
        go(f, "quiet", **log, **rows)

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (700, resource.RLIM_INFINITY))

        p = subprocess.run(command(f, "full", **log, **rows), capture_output=True, text=True,
                           preexec_fn=limit)
        said = p.stdout + p.stderr
        check(p.returncode == 0 and "trained: loss" in p.stdout, said)
        check(p.stderr.count("the ledger has gaps") == 1 and p.stderr.count("numbers of this run") == 1, said)
        check(p.stdout.count("step: ") == 6, said)
        few, all_of = ledger(f, "full"), ledger(f, "quiet")
        check(0 < len(few) < 6 and all(all_of[n] == few[n] for n in few), (few, all_of))


def the_reader_of_the_lines_may_leave():
    """trainer train | head -1: the run continues to its end, everything is kept, and its exit code says so."""
    with Folder(**STREAM) as f:
        rows = recorded(f, 6)
        go(f, "quiet", **rows)
        for n in range(6):  # a run that had printed everything before the pipe closed ends well, so several are tried
            p = subprocess.Popen(command(f, f"piped-{n}", **rows), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while not p.stdout.readline().startswith("step:"):
                check(p.poll() is None, "the trainer ended")
            p.stdout.close()
            p.stdout = None
            said = p.communicate(timeout=LIMIT_S)[1]
            same(f, "quiet", f"piped-{n}", 6)
            if p.returncode != 0:
                break
        check(p.returncode == 74 and said.count("standard output can no longer be written") == 1, f"{p.returncode}\n{said}")


def a_folder_that_takes_no_checkpoint_is_told_at_once():
    # Without this capability, root cannot write everywhere.
    held = ["setpriv", "--bounding-set", "-dac_override"] if os.getuid() == 0 else []
    with Folder(**STREAM) as f:
        rows = recorded(f, 2)
        os.makedirs(f.file("run/checkpoint"))
        for path, mode in ((f.path, 0o755), (f.file("run"), 0o777), (f.file("run/checkpoint"), 0o555)):
            os.chmod(path, mode)
        p = subprocess.run([*held, *command(f, "run", **rows)], capture_output=True, text=True)
        check(p.returncode == 73 and "checkpoints cannot be written here" in p.stderr, f"{p.returncode}\n{p.stderr}")
        check("step:" not in p.stdout, p.stdout)
        os.mkdir(f.file("shut"), 0o555)
        p = subprocess.run([*held, *command(f, "shut", **rows)], capture_output=True, text=True)
        check(p.returncode == 73 and "choose a job.dump_folder" in p.stderr, f"{p.returncode}\n{p.stderr}")


def another_model_is_refused():
    with Folder(**STREAM) as f:
        rows = recorded(f, 3)
        go(f, "run", **dict(rows, training__steps=2))
        model = {"model__path": "debug", "model__tokenizer": f.file("data/model")}
        for name, changed in (("another model", model), ("adapters", {"lora__rank": 4})):
            said = go(f, "run", code=65, **dict(rows, **changed))
            check("trains another model" in said and "job.dump_folder" in said, f"{name}: {said}")
        go(f, "run", **rows)  # the refused runs have harmed nothing


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
        with open(path, "w") as file:  # as if the run had gone on from step 3, up to step 5 only
            file.write("\n".join(lines + lines[3:5]) + "\n")
        check("5 steps, 1 to 5, agree" in trainer("verify", *here, "--from", "0"), "verify uses lines of an abandoned branch")
        entry = json.loads(lines[4])
        entry["loss"] += 1e-12
        lines[4] = json.dumps(entry)
        with open(path, "w") as file:
            file.write("\n".join(lines) + '\n{"step": 7, "cut sho')
        said = trainer("verify", *here, "--from", "0", code=65)
        check("step 5 is the first that differs: the loss was" in said, said)
        said = trainer("verify", *here, "--from", "0", "--optimizer.lr", "0.01", code=65)
        check("step 2 is the first that differs: the loss was" in said and "optimizer.lr: 0.01 here, 0.002 in the run" in said, said)
        said = trainer("verify", *here, "--from", "0", "--lr_scheduler.warmup_steps", "3", "--training.steps", "5", code=65)
        check("lr_scheduler.warmup_steps: 3 here," in said and "training.steps: 5 here, 6 in the run" in said, said)
        check("1 steps, 6 to 6" in trainer("verify", *here, "--from", "5"), "behind the change")


main(damage_is_noticed, all_are_damaged, a_cursor_that_cannot_be_is_refused, one_writes_here, full_disk,
     the_oldest_makes_room, no_room_for_lines, the_reader_of_the_lines_may_leave,
     a_folder_that_takes_no_checkpoint_is_told_at_once, another_model_is_refused, verify_replays)
