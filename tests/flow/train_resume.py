# SPDX-License-Identifier: Apache-2.0
"""A run that is killed or told to stop continues as if nothing had happened: the same losses, the same samples
exactly once, the same values to the bit.

train_resume.py [KILLS]    the quick form kills 9 times, the long one as often as asked (300) in an epoch of so many
more pictures (a kill takes about six steps, more on a busy machine); a third must fall inside a save; figures are
printed"""

import fcntl
import glob
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time

from prepd_flow import BUSY_S, LIMIT_S, SANITIZED, Daemon, Folder, check, main, run, seed, wait_for, workers_below
from resume_flow import STREAM, command, go, ledger, one_line_a_step, recorded, same
from terminal import hear_signals
from train_flow import has_mpi, settings, trainer

KILLS = int(sys.argv[1]) if len(sys.argv) > 1 else 9
INSIDE = KILLS // 3
IMAGES = max(240, 45 * KILLS if KILLS > 9 else 0)
RACES = 5  # how many runs are tried, of which one must get the signal before it ends
HUNG_UP = 64  # steps of a run whose terminal disappears during one of the first
FEW = {"prepd__ahead_bytes": 1048576}  # with more rows, a fast trainer would not notice that its daemon is away


class Victims:
    """A daemon, its workers and a trainer of it; what was done to them. A kill takes the run a step or two further,
    however fast the machine: what is waited for is a step or a save, and a moment ends with the step that comes."""

    into_save_s = 0.03  # how long after a save begins; it is adjusted to what a save takes here

    def __init__(self, f, name, rng, **values):
        self.f, self.name, self.rng, self.values = f, name, rng, dict(FEW, **values)
        self.daemon, self.said = Daemon(f.config), open(f.file(name + ".said"), "w+")
        self.done = {"inside a save": 0, "trainer": 0, "worker": 0, "daemon": 0}
        self.begin()

    def begin(self):
        self.p = subprocess.Popen(command(self.f, self.name, **self.values), stdout=self.said, stderr=self.said)

    def steps(self):
        path = self.f.file(self.name + "/ledger.jsonl")
        return os.path.getsize(path) if os.path.exists(path) else 0

    def saves(self):
        return set(glob.glob(self.f.file(self.name + "/checkpoint/.step-*.writing")))

    def until(self, what):
        """Waits until what() or the trainer's end; returns whether it lives."""
        wait_for(lambda: self.p.poll() is not None or what(), "life of the trainer", LIMIT_S, 0.001)
        return self.p.poll() is None

    def until_a_step(self):
        was = self.steps()
        return self.until(lambda: self.steps() > was)

    def a_moment(self, most_s):
        end, was = time.monotonic() + self.rng.uniform(0, most_s), self.steps()
        return self.until(lambda: time.monotonic() > end or self.steps() > was)

    def kill_trainer(self, kind):
        left = self.saves()
        if kind == "inside a save":
            self.until(lambda: self.saves() - left)
            time.sleep(self.rng.uniform(0, self.into_save_s))
        elif self.rng.random() < 0.5:
            self.a_moment(1.5)  # mostly while it starts
        else:
            self.until_a_step()
            self.a_moment(0.1)
        self.p.kill()
        code = self.p.wait()
        if code == 0:
            return
        check(code == -9, f"exit code {code}: {self.all_said()}")
        inside = bool(self.saves() - left)
        self.done["inside a save" if inside else "trainer"] += 1
        if kind == "inside a save":
            Victims.into_save_s *= 1.2 if inside else 0.5
        self.begin()

    def kill_worker(self):
        if not self.until(lambda: workers_below(self.daemon.p.pid)) or not self.a_moment(0.1):
            return
        for worker in workers_below(self.daemon.p.pid)[:1]:
            os.kill(worker, signal.SIGKILL)
            self.done["worker"] += 1

    def kill_daemon(self):
        if not self.until_a_step():  # not while the trainer connects for the first time, because then it should end
            return
        self.daemon.p.kill()
        self.daemon.p.wait()
        self.daemon.log.close()
        time.sleep(self.rng.uniform(0, 0.3))
        self.daemon = Daemon(self.f.config)
        self.done["daemon"] += 1

    def kill(self, kind):
        """Tries until one of this kind is done; a save that ended first counts as the trainer. Returns False if the
        run was over before."""
        act = {"worker": self.kill_worker, "daemon": self.kill_daemon}.get(kind, lambda: self.kill_trainer(kind))
        was = self.done[kind]
        while self.done[kind] == was and self.p.poll() is None:
            act()
        return self.done[kind] > was

    def all_said(self):
        self.said.seek(0)
        return self.said.read()

    def end(self):
        try:
            code = self.p.wait(LIMIT_S + 2 * KILLS)
        finally:
            self.daemon.stop()
        check(code == 0, f"exit code {code}: {self.all_said()}")
        check("set aside" not in self.all_said(), f"a checkpoint was not whole: {self.all_said()}")
        self.said.close()


def killed_at_any_instant():
    """An epoch from the daemon. Trainer, workers and daemon are killed at random, a third of all kills inside a
    save; the trainer outlives its daemon. Every sample is trained exactly once. A run that is over before all
    kills were done is judged in the same way, and the others are done to another one."""
    rng = seed()
    epoch = {"training.epochs": "1", "training.steps": "0"}
    with Folder(images=IMAGES, **STREAM, **epoch) as f:
        ends = {"training__epochs": 1, "training__steps": 0}
        with Daemon(f.config):
            go(f, "quiet", checkpoint__interval=0, **ends)  # only its last step is compared
            n = json.loads(run("status", "-c", f.config, "--json"))["train"]["samples"]
        kinds = ["inside a save"] * INSIDE + (["trainer", "worker", "daemon"] * KILLS)[:KILLS - INSIDE]
        rng.shuffle(kinds)
        steps, done, runs = ledger(f, "quiet"), {}, 0
        while kinds:
            runs += 1
            check(runs <= 2 * KILLS, f"{runs - 1} runs, and still to do: {kinds}")
            name = f"killed-{runs}"
            v = Victims(f, name, rng, **ends)
            while kinds and v.kill(kinds[-1]):
                kinds.pop()
            v.end()
            same(f, "quiet", name, max(steps))
            check(not glob.glob(f.file(name + "/checkpoint/.step-*")), "leftovers of a save")
            done = {kind: n + done.get(kind, 0) for kind, n in v.done.items()}
        ids = [i for step in steps.values() for i in step["ids"]]
        check(sorted(ids) == list(range(n)), f"{len(ids)} samples, {len(set(ids))} of them distinct, of {n}")
        print(f"{sum(done.values())} kills ({', '.join(f'{n} {kind}' for kind, n in done.items())}) in {runs} "
              f"runs of {len(steps)} steps, {len(ids)} samples")


def at_work(f, name, **changed):
    """A run that has reported a step."""
    p = subprocess.Popen(command(f, name, **changed), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not p.stdout.readline().startswith("step:"):
        check(p.poll() is None, "the trainer ended")
    return p


def told_to_stop_while_it_waits():
    """With a frozen part, so that the checkpoint has no model: that comes when the run has come to its end."""
    steps = 12  # rows of six are sent ahead
    how = {"training__steps": steps, "checkpoint__interval": 0, "freeze__pattern": "*patch_embed*"}
    with Folder(**STREAM) as f, Daemon(f.config) as daemon:
        go(f, "quiet", **how)
        p = at_work(f, "stopped", prepd__ahead_bytes=1048576, **how)
        daemon.p.send_signal(signal.SIGSTOP)  # no row will come
        wait_for(lambda: os.listdir(f.file("memory")), "a copy in memory")
        p.send_signal(signal.SIGTERM)
        out, err = p.communicate(timeout=LIMIT_S)
        daemon.p.send_signal(signal.SIGCONT)
        check(p.returncode == 0, f"exit code {p.returncode}: {out}{err}")  # 75, if its deadline had come
        at = max(ledger(f, "stopped"))
        check(os.path.isdir(f.file(f"stopped/checkpoint/step-{at}")), f"step {at} was not kept: {err}")
        check(not os.listdir(f.file("memory")), "the copy in memory stays, although its step is on disk")
        check("states" not in ledger(f, "stopped")[1], "the ledger names states that are as by default")
        check("trainer export --model" in err and not os.path.exists(f.file("stopped/checkpoint/config.json")), err)
        said = trainer("inspect", f.file("stopped/checkpoint"), code=66)
        check("config.json: cannot open" in said and "trainer export --model" in said, said)
        check("resuming from step" in go(f, "stopped", **how), "the run began again from the start")
        check(os.listdir(f.file(f"stopped/checkpoint/step-{steps}")) == ["training"], "a model in the checkpoint")
        same(f, "quiet", "stopped", steps)


def hangs_up(f, name, ranks, **rows):
    """The terminal from which a run was started disappears: the kernel sends SIGHUP to the session's leader, once
    more if a shell did so before. Returns what was said until then."""
    ours, theirs = pty.openpty()

    def session():
        hear_signals()
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    p = subprocess.Popen([*command(f, name, **rows), *ranks], stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=session,
                         env=settings(ranks))
    os.close(theirs)
    said = b""
    while b"grad_norm" not in said:
        said += os.read(ours, 4096)
    p.send_signal(signal.SIGHUP)
    os.close(ours)
    p.wait(LIMIT_S)
    return said.decode(), p.returncode


def a_hang_up_is_ignored(f, ranks, **rows):
    """By a run that nohup started."""
    p = subprocess.Popen([*command(f, "nohup", **rows), *ranks], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         env=settings(ranks), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    check(any("grad_norm" in line for line in iter(p.stdout.readline, "")), "the trainer ended")
    p.send_signal(signal.SIGHUP)
    said = p.communicate(timeout=LIMIT_S)[0]
    check(p.returncode == 0 and "trained: loss" in said and max(ledger(f, "nohup")) == 16, f"{p.returncode}\n{said}")


def a_terminal_hangs_up():
    """One rank and two leave a checkpoint, as after SIGTERM, and resume from it."""
    two = {"training__backend": "cpu", "parallelism__tensor_parallel_degree": 2}
    with Folder(**STREAM) as f:
        rows = dict(recorded(f, HUNG_UP), checkpoint__interval=0)
        for ranks, layout in [([], {}), (["--nproc", "2"], two)][:1 + has_mpi()]:
            for n in range(RACES):
                name = f"run-{len(ranks)}-{n}"
                said, code = hangs_up(f, name, ranks, **rows, **layout)
                at = max(ledger(f, name))
                if at < HUNG_UP:
                    break
            check(at < HUNG_UP and code in (0, 74), f"exit code {code} after step {at}: {said}")
            check(os.path.isdir(f.file(f"{name}/checkpoint/step-{at}")), f"step {at} was not kept: {said}")
            rest = dict(rows, training__steps=min(at + 4, HUNG_UP))
            said = go(f, name, *ranks, **rest, **layout)
            check(f"resuming from step {at}" in said and max(ledger(f, name)) == rest["training__steps"], said)
            if not ranks:
                go(f, "quiet", **rest)
                check(ledger(f, name) == ledger(f, "quiet"), "the ledgers differ")
        a_hang_up_is_ignored(f, ranks, **dict(rows, training__steps=16), **layout)


def told_to_stop_while_an_evaluation_connects():
    with Folder(**STREAM) as f, Daemon(f.config) as daemon:
        p = at_work(f, "stopped", training__steps=40, checkpoint__interval=0, eval__enable="true", eval__freq=4, eval__show=0)
        daemon.p.kill()  # it has rows for some steps; it asks for held-out ones after the fourth
        daemon.p.wait()
        time.sleep(3)
        check(p.poll() is None, "the trainer ended")
        p.send_signal(signal.SIGTERM)
        out, err = p.communicate(timeout=LIMIT_S)
        check(p.returncode == 0, f"exit code {p.returncode}: {out}{err}")
        at = max(ledger(f, "stopped"))
        check(os.path.isdir(f.file(f"stopped/checkpoint/step-{at}")), f"step {at} was not kept: {err}")


def a_deadline_bounds_the_way_out():
    """A step of many rows, longer than the deadline, is being computed when the signal comes. The run is given up,
    and continues from the last whole checkpoint as if nothing had happened."""
    with Folder(**dict(STREAM, **{"training.global_batch_size": 40})) as f:
        rows = dict(recorded(f, 2), training__global_batch_size=40, feed__replay=f.file("rows.rec"))
        go(f, "quiet", **rows)
        for n in range(RACES):
            p = at_work(f, f"late-{n}", checkpoint__exit_deadline=0.05, **rows)
            time.sleep(0.02)  # the next step has begun, even on a fast machine
            p.send_signal(signal.SIGTERM)
            start = time.monotonic()
            out, err = p.communicate(timeout=LIMIT_S)
            took = time.monotonic() - start
            if p.returncode != 0:
                break
        check(p.returncode == 75 and "checkpoint.exit_deadline" in err, f"exit code {p.returncode}\n{out}{err}")
        check(took < BUSY_S, f"it took {took:.1f} s")
        go(f, f"late-{n}", **rows)
        same(f, "quiet", f"late-{n}", 2)


def a_second_signal_ends_it_at_once():
    with Folder(**dict(STREAM, **{"training.global_batch_size": 40})) as f:
        rows = dict(recorded(f, 2), training__global_batch_size=40, feed__replay=f.file("rows.rec"))
        for n in range(RACES):
            p = at_work(f, f"run-{n}", **rows)
            p.send_signal(signal.SIGTERM)
            answered = any("the same signal again ends the run at once" in line for line in iter(p.stderr.readline, ""))
            p.send_signal(signal.SIGTERM)
            p.communicate(timeout=LIMIT_S)
            if p.returncode != 0:
                break
        check(answered, "the first signal is not answered at once")
        check(p.returncode == -signal.SIGTERM, f"exit code {p.returncode}")


def goes_on_from_recordings_and_kept_steps():
    with Folder(**STREAM) as f:
        rows = recorded(f)
        go(f, "quiet", checkpoint__keep_latest_k=0, **rows)
        go(f, "parts", **dict(rows, training__steps=3))
        said = go(f, "parts", **rows)
        check("resuming from step 3" in said and "differs from the checkpoint: training.steps: 8" in said, said)
        same(f, "quiet", "parts", 8)
        kept = sorted(os.listdir(f.file("parts/checkpoint")))
        check([k for k in kept if k.startswith("step-")] == ["step-6", "step-7", "step-8"], kept)
        said = go(f, "parts", **rows)
        check("trained: loss" in said and "this run is finished: " in said and "step 8 of 8" in said, said)
        check("--checkpoint.load_step 0 or another job.dump_folder it starts over" in said, said)
        # From a step in the middle. Later steps are set aside and made again, bit for bit.
        said = go(f, "quiet", checkpoint__load_step=4, checkpoint__keep_latest_k=0, **rows)
        check("resuming from step 4" in said and said.count("set aside") == 4, said)
        same(f, "quiet", "parts", 8)
        for name in ("ledger.jsonl", "metrics.jsonl"):
            one_line_a_step(f, "quiet", name)
            with open(f.file("quiet/set-aside-" + name)) as left:
                check([json.loads(line)["step"] for line in left] == [5, 6, 7, 8], name)
        # Each kept step is a folder that can be opened as a model.
        trainer("inspect", f.file("quiet/checkpoint/step-5"))
        said = go(f, "quiet", checkpoint__load_step=0, **rows)
        check("going on" not in said, said)
        same(f, "quiet", "parts", 8)
        said = go(f, "quiet", code=66, checkpoint__load_step=77, **rows)
        check("step-77" in said, said)
        said = go(f, "quiet", code=78, checkpoint__load_step=4, checkpoint__enable="false", **rows)
        check("checkpoint.load_step 4" in said and "checkpoint.enable" in said, said)


def the_best_evaluated_step_is_kept():
    with Folder(**STREAM) as f, Daemon(f.config):
        said = go(f, "run", training__steps=5, eval__enable="true", eval__freq=1, eval__show=0,
                  optimizer__lr=0.2, checkpoint__keep_latest_k=1)
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
            check("feed.replay" in said and "from a daemon, and this one takes them from a recording" in said, said)
            go(f, "replayed", **dict(rows, training__steps=2))
            said = go(f, "replayed", code=78, training__steps=3)
            check("feed.replay" in said and "from a recording, and this one takes them from a daemon" in said, said)
        run("record", "-c", f.config, "--training.seed", "9", "--steps", "3", "--out", f.file("rows9.rec"))
        said = go(f, "replayed", code=78, feed__replay=f.file("rows9.rec"), training__steps=3)
        check("another recording: training.seed: 9 here, 0 there" in said and "load_step 0" in said, said)
        with Daemon(f.config, "--training.seed", "9"):
            said = go(f, "run", code=78, training__steps=3, training__seed=9)
            check("training.seed: 9 here, 0 there" in said and "load_step 0" in said, said)


# Signals that must come in a certain moment of a step: a sanitizer makes them miss it, and their lines are those of the others.
moments = [a_terminal_hangs_up, a_deadline_bounds_the_way_out, a_second_signal_ends_it_at_once]
main(killed_at_any_instant, told_to_stop_while_it_waits, told_to_stop_while_an_evaluation_connects, goes_on_from_recordings_and_kept_steps,
     the_best_evaluated_step_is_kept, another_stream_is_refused, *([] if SANITIZED else moments))
