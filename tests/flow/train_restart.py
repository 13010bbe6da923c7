# SPDX-License-Identifier: Apache-2.0
"""A run whose process is killed resumes from its copy in memory, as if nothing had happened; a copy that is torn,
changed, of another run or missing on one rank is never used, and the run says so."""

import contextlib
import glob
import os
import shutil
import signal
import struct
import subprocess
import time

from prepd_flow import LIMIT_S, Folder, below, check, command_line, main, seed, wait_for
from resume_flow import STREAM, command, go, ledger, recorded, same
from train_flow import has_mpi, settings

STEPS, INTERVAL = 14, 3
TRIES = 5  # a run may end before the moment to kill it has come
PAGE = 4096
SMALL = {"optimizer__states": "int8", "training__master": "bf16", "optimizer__in_backward": "true",
         "training__global_batch_size": 1}


def rows_of(f):
    """Options of runs that keep a copy of every step in memory, and a checkpoint of every third on disk."""
    return dict(recorded(f, STEPS), checkpoint__interval=INTERVAL, checkpoint__memory_interval=1)


def copies(f):
    return sorted(glob.glob(f.file("memory/*")))


def steps_of(path):
    """The steps of both sides of a copy; 0: that side is not whole."""
    with open(path, "rb") as file:
        head = file.read(3 * PAGE)
    return [struct.unpack_from("<q", head, (1 + side) * PAGE)[0] for side in (0, 1)] if len(head) == 3 * PAGE else [0, 0]


def killed(f, name, when, ranks=(), **rows):
    """A run whose processes are all killed as soon as when(steps of a rank's copy) holds for all ranks. Returns those of rank 0."""
    for _ in range(TRIES):
        shutil.rmtree(f.file(name), ignore_errors=True)
        if is_killed(f, name, when, ranks, **rows):
            return steps_of(copies(f)[0])
    raise AssertionError(f"{name}: {TRIES} runs ended before they were killed")


def is_killed(f, name, when, ranks, **rows):
    """False if the run ended before."""
    p = subprocess.Popen([*command(f, name, **rows), *ranks], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=settings(ranks))
    count = int(ranks[1]) if ranks else 1

    def send(signal_number):
        for pid in (p.pid, *below(p.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal_number)

    def holds():
        try:
            files = copies(f)
            return len(files) == count and all(when(steps_of(path)) for path in files)
        except FileNotFoundError:  # the run ended, and removed them
            return False

    def stopped():
        if p.poll() is not None or not holds():
            return p.poll() is not None
        send(signal.SIGSTOP)
        if holds():
            return True
        send(signal.SIGCONT)  # too late; another step will come
        return False

    wait_for(stopped, "moment to kill the run", LIMIT_S, 0.0005)
    if p.poll() is not None:
        check(p.returncode == 0, f"{name}: exit code {p.returncode}")
        return False
    everyone = below(p.pid)
    send(signal.SIGKILL)
    p.wait()
    wait_for(lambda: not any(any(command_line(pid)) for pid in everyone), "end of the ranks")
    return True


def flip(path, step):
    """Changes a bit of the values of a step."""
    with open(path, "r+b") as file:
        head = struct.unpack("<8s14q", file.read(15 * 8))
        at = head[12] + steps_of(path).index(step) * head[13] + 5
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def two_after(f, name):
    """Both sides are whole, and both are newer than the newest checkpoint, which is whole too."""
    def holds(steps):
        newest = max(steps)
        saved = f.file(f"{name}/checkpoint/step-{newest - 2}")
        return newest % INTERVAL == 2 and min(steps) == newest - 1 and os.path.isdir(saved)
    return holds


class Crashed:
    """The folder of a run that was killed, and its copies in memory, as they were then."""

    def __init__(self, f, name, *args, **rows):
        self.f, self.name = f, name
        self.step = max(killed(f, name, two_after(f, name), *args, **rows))
        for part in (name, "memory"):
            shutil.copytree(f.file(part), f.file("as-it-was/" + part))

    def again(self):
        for part in (self.name, "memory"):
            shutil.rmtree(self.f.file(part), ignore_errors=True)
            shutil.copytree(self.f.file("as-it-was/" + part), self.f.file(part))
        return copies(self.f)


def goes_on(f, name, where, step, *ranks, **rows):
    """The killed run is started again: what it says. It must end as the one that was left alone."""
    said = go(f, name, *ranks, **rows)
    place = "the copy in memory " + f.file("memory/") if where == "memory" else f.file(name + "/checkpoint/step-")
    check(f"resuming from step {step} of {place}" in said, f"not from step {step} of {where}: {said}")
    check(not copies(f), f"a finished run leaves {copies(f)}")
    return said


def a_killed_run_goes_on_from_memory():
    """Between two copies the newest is taken, in the middle of one the older."""
    with Folder(images=16, **STREAM) as f:
        rows = rows_of(f)
        go(f, "quiet", **dict(rows, checkpoint__memory_folder=""))
        check(not copies(f), "copies that were not asked for")
        host = dict(rows, memory__host="moments")  # the copy is taken from where they rest, and goes back there
        step = max(killed(f, "torn", lambda steps: 0 in steps and max(steps) > 0, **host))
        goes_on(f, "torn", "memory", step, **host)
        same(f, "quiet", "torn", STEPS)
        crashed = Crashed(f, "run", **rows)
        step = crashed.step
        goes_on(f, "run", "memory", step, **rows)
        same(f, "quiet", "run", STEPS)
        copy = crashed.again()[0]
        flip(copy, step)
        said = goes_on(f, "run", "memory", step - 1, **rows)
        check(f"the copy of step {step} in memory is passed over" in said and "its hash differs" in said, said)
        same(f, "quiet", "run", STEPS)
        copy = crashed.again()[0]
        flip(copy, step)
        flip(copy, step - 1)
        said = goes_on(f, "run", "disk", step - 2, **rows)
        check(said.count("is passed over") == 2 and f"{copy}: this copy in memory, which the run does not resume from" in said, said)
        same(f, "quiet", "run", STEPS)
        crashed.again()
        goes_on(f, "run", "disk", step - 2, checkpoint__load_step=step - 2, **rows)
        same(f, "quiet", "run", STEPS)
        crashed.again()
        shutil.rmtree(f.file("run"))
        said = go(f, "run", **rows)
        check("it is of another run" in said and "only the disk is left" in said and "resuming" not in said, said)
        same(f, "quiet", "run", STEPS)


def lines(path):
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read().count(b"\n")
    return 0


def killed_in_a_step(f, name, share, saved=False, **rows):
    """A run whose process is killed in its third step, after this share of the time that the second took, or in a later one
    if it must have `saved` a checkpoint before. Returns the last step that it told of, and what it said."""
    path = f.file(name + "/ledger.jsonl")
    was, times = lines(path), []
    with open(f.file("said"), "w+") as said:
        p = subprocess.Popen(command(f, name, **rows), stdout=said, stderr=said)
        for count in (1, 2):
            wait_for(lambda: p.poll() is not None or lines(path) >= was + count, "step", LIMIT_S, 0.0005)
            times.append(time.monotonic())
        wait_for(lambda: p.poll() is not None or not saved or glob.glob(f.file(f"{name}/checkpoint/step-*")),
                 "checkpoint", LIMIT_S, 0.0005)
        time.sleep(share * (times[1] - times[0]))
        p.kill()
        p.wait()
        said.seek(0)
        text = said.read()
    check(p.returncode == -signal.SIGKILL, f"{name}: exit code {p.returncode} before it was killed: {text}")
    return max(ledger(f, name)), text


def killed_while_it_updates_in_backward():
    """What the step has updated by then is gone: the run resumes from the last copy, or where that is lost from the last
    checkpoint, both of whole steps, and ends as one that was left alone. Also with moments and values of few bits. How many steps
    these are depends on how soon the run is killed, so its end is decided afterwards."""
    rng = seed()
    with Folder(images=16, **STREAM) as f:
        rows = dict(rows_of(f), **SMALL, training__steps=100000)
        told, said = killed_in_a_step(f, "run", rng.uniform(0.3, 0.9), **rows)
        for where, saved in ("memory", True), ("disk", False):
            copied = max(steps_of(copies(f)[0]))
            on_disk = max([int(path.rsplit("-", 1)[1]) for path in glob.glob(f.file("run/checkpoint/step-*"))], default=0)
            if where == "disk":
                os.remove(copies(f)[0])
            told, said = killed_in_a_step(f, "run", rng.uniform(0.3, 0.9), saved, **rows)
            newer = where == "memory" and copied > on_disk  # a machine that is busy may have saved the step that it copied
            place = f"{copied} of the copy in memory" if newer else f"{on_disk} of {f.file('run/checkpoint/step-')}"
            check(f"resuming from step {place}" in said, f"not from step {place}: {said}")
        rows.update(training__steps=told + 2, checkpoint__memory_folder="")
        go(f, "run", **rows)
        go(f, "quiet", **rows)
        same(f, "quiet", "run", told + 2)


def every_rank_must_have_it():
    """With moments and values of few bits, updated in backward."""
    if not has_mpi():
        return
    two = {"training__backend": "cpu", "parallelism__tensor_parallel_degree": 2, **SMALL}
    with Folder(images=16, **STREAM) as f:
        ranks, rows = ("--nproc", "2"), dict(rows_of(f), **two)
        go(f, "quiet", *ranks, **rows)
        crashed = Crashed(f, "run", ranks, **rows)
        goes_on(f, "run", "memory", crashed.step, *ranks, **rows)
        check(ledger(f, "run") == ledger(f, "quiet"), "the ledgers differ")
        os.remove(crashed.again()[1])
        said = goes_on(f, "run", "disk", crashed.step - 2, *ranks, **rows)
        check("only the disk is left: rank 1: " in said and "No such file" in said, said)
        check(ledger(f, "run") == ledger(f, "quiet"), "the ledgers differ")


def adapters_go_on_over_their_own_base():
    """Killed before the first checkpoint, when nothing else says which base the adapters belong to."""
    with Folder(images=16, **STREAM) as f:
        rows = dict(rows_of(f), lora__rank=2, lora__random_base="true", checkpoint__interval=1000)
        go(f, "quiet", **dict(rows, checkpoint__memory_folder=""))
        rows["memory__host"] = "both"
        step = max(killed(f, "run", lambda steps: min(steps) > 0, **rows))
        said = go(f, "run", code=78, **dict(rows, training__seed=2))
        check("training.seed" in said or "base" in said, said)
        check(copies(f), "the copy is gone")
        goes_on(f, "run", "memory", step, **rows)
        check(ledger(f, "run") == ledger(f, "quiet"), "the ledgers differ")


def no_room_in_memory():
    """The run is told that only the disk is left, and is the same."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        print("skipped: no file system can be mounted here")
        return
    with Folder(images=16, **STREAM) as f:
        rows = dict(rows_of(f), training__steps=2)
        os.makedirs(f.file("memory"))
        script = f"mount -t tmpfs -o size=1M none {f.file('memory')} && exec \"$@\""
        p = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", *command(f, "full", **rows)], capture_output=True,
                           text=True, timeout=LIMIT_S)
        check(p.returncode == 0 and "trained:" in p.stdout, f"exit code {p.returncode}: {p.stderr}")
        check("after a crash this run can resume only from the disk" in p.stderr and "and there is room for 0.001 GiB" in p.stderr,
              p.stderr)


main(a_killed_run_goes_on_from_memory, killed_while_it_updates_in_backward, every_rank_must_have_it, adapters_go_on_over_their_own_base,
     no_room_in_memory)
