"""A run that is killed or told to stop goes on as if nothing had been: the same losses, the same samples
exactly once, the same values to the bit.

train_resume.py [KILLS]    the quick form kills 8 times, the long one as often as asked (300), of an
epoch of as many more samples; figures are printed"""

import glob
import os
import re
import signal
import subprocess
import sys
import time

from prepd_flow import Daemon, Folder, check, main, run, seed, workers_below
from resume_flow import STREAM, command, go, ledger, recorded, same
from train_flow import trainer

KILLS = int(sys.argv[1]) if len(sys.argv) > 1 else 8
IMAGES = max(160, 5 * KILLS)  # a step or two between two kills


def lives_until(p, rng):
    """Waits for the instant to kill: half of them right behind a step, where its save is written. False
    if the run ended before."""
    if rng.random() < 0.5:
        while (line := p.stdout.readline()) and not line.startswith("step:"):
            pass
        time.sleep(rng.uniform(0, 0.03))
    else:
        try:
            p.wait(rng.uniform(0.15, 0.7))
        except subprocess.TimeoutExpired:
            pass
    return p.poll() is None


def killed_at_any_instant():
    """An epoch from the daemon, the trainer killed at random (mostly inside a save), now and then
    a worker or the daemon too; every sample is trained exactly once."""
    rng = seed()
    epoch = {"training.epochs": "1", "training.steps": "0"}
    with Folder(images=IMAGES, **STREAM, **epoch) as f:
        ends = {"training__epochs": 1, "training__steps": 0}
        with Daemon(f.config):
            go(f, "quiet", **ends)
        daemon, kills, deaths, orphans, inside, code = Daemon(f.config), 0, 0, 0, 0, None
        while code != 0:
            left = set(glob.glob(f.file("killed/checkpoint/.step-*")))
            p = subprocess.Popen(command(f, "killed", **ends), stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
            if kills < KILLS and lives_until(p, rng):
                kills += 1
                for worker in workers_below(daemon.p.pid)[:1] if rng.random() < 0.5 else []:
                    os.kill(worker, signal.SIGKILL)
                    orphans += 1
                if rng.random() < 0.25:
                    daemon.p.kill()
                    daemon.p.wait()
                    deaths += 1
                    daemon = Daemon(f.config)
                p.kill()
                p.wait()
                inside += bool(set(glob.glob(f.file("killed/checkpoint/.step-*"))) - left)
            out, err = p.communicate(timeout=120 + 2 * KILLS)
            code = p.returncode
            check(code in (0, -9, 69, 75, 76), f"exit code {code}\n{out}{err}")
            check("set aside" not in err, f"a checkpoint was not whole or not the newest:\n{err}")
        daemon.stop()
        steps = ledger(f, "quiet")
        same(f, "quiet", "killed", max(steps))
        ids = [i for step in steps.values() for i in step["ids"]]
        check(len(ids) == len(set(ids)) and sorted(ids) == list(range(len(ids))),
              f"{len(ids)} samples, {len(set(ids))} of them distinct")
        check(not glob.glob(f.file("killed/checkpoint/.step-*")), "leftovers of a save")
        check(kills >= (KILLS if KILLS > 8 else 3), f"only {kills} kills: the run was too short")
        print(f"{kills} kills of the trainer ({inside} inside a save), {orphans} of workers, {deaths} of the "
              f"daemon, {len(steps)} steps, {len(ids)} samples")


def told_to_stop_while_it_waits():
    with Folder(**STREAM) as f, Daemon(f.config) as daemon:
        go(f, "quiet", training__steps=6)
        p = subprocess.Popen(command(f, "stopped", training__steps=6, prepd__ahead_bytes=1048576,
                                     checkpoint__interval=0),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not p.stdout.readline().startswith("step:"):
            check(p.poll() is None, "the trainer ended")
        daemon.p.send_signal(signal.SIGSTOP)  # no row will come
        time.sleep(0.5)
        start = time.monotonic()
        p.send_signal(signal.SIGTERM)
        out, err = p.communicate(timeout=60)
        took = time.monotonic() - start
        daemon.p.send_signal(signal.SIGCONT)
        check(p.returncode == 0 and took < 10, f"exit code {p.returncode} after {took:.1f} s: {out}{err}")
        at = max(ledger(f, "stopped"))
        check(os.path.isdir(f.file(f"stopped/checkpoint/step-{at}")), f"step {at} was not kept: {err}")
        if at < 6:
            check("going on from step" in go(f, "stopped", training__steps=6), "it began anew")
        same(f, "quiet", "stopped", 6)


def a_deadline_bounds_the_way_out():
    """A step of many rows is under way when the signal comes: longer than the deadline. The run is given up,
    and goes on from the last whole checkpoint as if nothing had been."""
    with Folder(**dict(STREAM, **{"training.global_batch_size": 40})) as f:
        rows = dict(recorded(f, 2), training__global_batch_size=40, feed__replay=f.file("rows.rec"))
        go(f, "quiet", **rows)
        p = subprocess.Popen(command(f, "late", checkpoint__exit_deadline=0.05, **rows), stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        while not p.stdout.readline().startswith("step:"):
            check(p.poll() is None, "the trainer ended")
        time.sleep(0.1)
        p.send_signal(signal.SIGTERM)
        start = time.monotonic()
        out, err = p.communicate(timeout=60)
        took = time.monotonic() - start
        check(p.returncode == 75 and "checkpoint.exit_deadline" in err, f"exit code {p.returncode}\n{out}{err}")
        check(took < 5, f"it took {took:.1f} s")
        go(f, "late", **rows)
        same(f, "quiet", "late", 2)


def goes_on_from_recordings_and_kept_steps():
    with Folder(**STREAM) as f:
        rows = recorded(f)
        go(f, "quiet", checkpoint__keep_latest_k=0, **rows)
        go(f, "parts", **dict(rows, training__steps=3))
        said = go(f, "parts", **rows)
        check("going on from step 3" in said and "other than in the checkpoint: training.steps: 8" in said, said)
        same(f, "quiet", "parts", 8)
        kept = sorted(os.listdir(f.file("parts/checkpoint")))
        check([k for k in kept if k.startswith("step-")] == ["step-6", "step-7", "step-8"], kept)
        check("trained: loss" in go(f, "parts", **rows), "a finished run has no result")
        # From a step in the middle; what came later is set aside and made again, to the bit.
        said = go(f, "quiet", checkpoint__load_step=4, checkpoint__keep_latest_k=0, **rows)
        check("going on from step 4" in said and said.count("set aside") == 4, said)
        same(f, "quiet", "parts", 8)
        # Every kept step is a folder that opens as a model.
        trainer("inspect", f.file("quiet/checkpoint/step-5"))
        said = go(f, "quiet", checkpoint__load_step=0, **rows)
        check("going on" not in said, said)
        same(f, "quiet", "parts", 8)
        said = go(f, "quiet", code=66, checkpoint__load_step=77, **rows)
        check("step-77" in said, said)


def the_best_evaluated_step_is_kept():
    with Folder(**STREAM) as f, Daemon(f.config):
        said = go(f, "run", training__steps=5, eval__enable="true", eval__freq=1, eval__show=0,
                  optimizer__lr=0.05, checkpoint__keep_latest_k=1)
        losses = {int(n): float(x) for n, x in re.findall(r"^eval: step: (\d+)  loss: ([0-9.]+)", said,
                                                          re.MULTILINE)}
        best = min(losses, key=losses.get)
        check(len(losses) == 4 and best < 4, f"this run has no best step in between: {losses}")
        kept = {n for n in os.listdir(f.file("run/checkpoint")) if n.startswith("step-")}
        check(kept == {f"step-{best}", "step-5"}, f"{kept}, the best is {best} of {losses}")


def another_stream_is_refused():
    with Folder(**STREAM) as f:
        rows = recorded(f, 3)
        with Daemon(f.config):
            go(f, "run", training__steps=2)
            said = go(f, "run", code=78, **rows)
            check("feed.replay" in said and "from a daemon, this one from a recording" in said, said)
            go(f, "replayed", **dict(rows, training__steps=2))
            said = go(f, "replayed", code=78, training__steps=3)
            check("feed.replay" in said and "from a recording, this one from a daemon" in said, said)
        with Daemon(f.config, "--training.seed", "9"):
            said = go(f, "run", code=78, training__steps=3, training__seed=9)
            check("training.seed: 9 here, 0 there" in said and "load_step 0" in said, said)


main(killed_at_any_instant, told_to_stop_while_it_waits, a_deadline_bounds_the_way_out,
     goes_on_from_recordings_and_kept_steps, the_best_evaluated_step_is_kept, another_stream_is_refused)
