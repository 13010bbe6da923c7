# SPDX-License-Identifier: Apache-2.0
"""Two ranks of a run take their rows from two daemons, each of which finds other samples bad. A checkpoint has what both
have found, and a run that resumes from it gives that to every daemon, however many there are."""

import json
import os
import shutil
import subprocess
import sys

from formats import own_of
from prepd_flow import LIMIT_S, SOURCE, Daemon, Folder, check, main, wait_for
from resume_flow import command, ledger, resealed, xxh3
from train_flow import has_mpi, options, settings

sys.path.insert(0, os.path.join(SOURCE, "proto", "python"))
from tessera import client  # noqa: E402

STEP, STEPS = 4, 4  # rows of a step; steps of a run
STREAM = {"training.seq_len": 128, "training.global_batch_size": STEP, "prepd.workers": 1, "data.quarantine_limit": 100}
RANK = {"nproc": 2, "training.backend": "cpu", "checkpoint.interval": 0, "eval.enable": "false",
        "training.global_batch_size": STEP, "training.seq_len": 128, "prepd.ahead_bytes": 1 << 20}


def end(f, name):
    return "ipc://" + f.file(name + ".sock")


def daemons(f, *names):
    """Daemons that have found nothing yet."""
    started = [Daemon(f.config, "--prepd.endpoint", end(f, name)) for name in names]
    for name in names:
        wait_for(lambda: os.path.exists(f.file(name + ".sock.control")), "control endpoint")
    return started


def stop(started):
    for daemon in started:
        daemon.stop()


def train(f, name, steps, *ends):
    """Two ranks, each with the daemon of its name."""
    where = ",".join(f"{rank}={end(f, at)}" for rank, at in enumerate(ends))
    words = command(f, name, training__steps=steps) + options(dict(RANK, **{"prepd.rank_endpoints": where}))
    p = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, env=settings(words))
    check(p.returncode == 0, f"{name}: exit code {p.returncode}\n{p.stdout}{p.stderr}")


def step_folder(f, name, step):
    return f.file(f"{name}/checkpoint/step-{step}")


def state(f, name, step):
    with open(step_folder(f, name, step) + "/training/state.json") as file:
        return json.load(file)


def known(f, name, step):
    """The file of bad samples of a checkpoint, which its state names."""
    with open(step_folder(f, name, step) + "/training/quarantine.json") as file:
        text = file.read()
    list_ = client.BadSamples(text)
    check(state(f, name, step)["quarantine"] == {"count": len(list_), "hash": xxh3(text.encode())}, f"{name}: {text}")
    return set(list_)


def truncated(f, every):
    bad = set()
    for picture in f.train_images()[::every]:
        os.truncate(picture, os.path.getsize(picture) * 2 // 3)  # the header stays, so it is found while a row is made
        bad |= set(f.questions_of(picture))
    return bad


def taken(f, name, count, **more):
    rows = []
    for row in client.connect(end(f, name), timeout=60.0, **more):
        rows.append(row)
        if len(rows) == count:
            break
    return rows


def same_rows(rows, wanted, ids):
    check([(r["number"], client.digest_of(r), r["quarantine"]) for r in rows] ==
          [(r["number"], client.digest_of(r), r["quarantine"]) for r in wanted], "two daemons give other rows than one")
    check(set(rows[0]["bad_samples"]) >= ids, "what was given in HELLO is forgotten")


def what_two_daemons_found_goes_on_with_any_number():
    with Folder(images=96, **STREAM) as f:
        bad = truncated(f, 4)
        two = daemons(f, "a", "b")
        train(f, "run", STEPS, "a", "b")
        stop(two)
        first, union = state(f, "run", STEPS), known(f, "run", STEPS)
        check(union and union <= bad, union)
        with daemons(f, "c")[0]:
            rows = taken(f, "c", 3 * STEP * STEPS)
        for row in rows[:STEP * STEPS]:
            check(own_of(row) <= union, f"row {row['number']} has {own_of(row)}, the checkpoint has {union}")
        # A good sample of each of the next rows, which are of both ranks: no daemon would find that it is bad.
        later = rows[STEP * STEPS:2 * STEP * STEPS]
        told = {next(int(i) for i in row["doc_sample_id"] if int(i) not in bad) for row in later}
        check(len(told) == len(later), f"{told}: the stream is too short for this test")

        def add(kept):  # as an earlier trainer kept it
            kept["quarantine"] = json.dumps([{"id": i, "cause": "by hand", "row": 0} for i in union | told])
        for name in ("again", "alone", "old"):
            shutil.copytree(f.file("run"), f.file(name))
        for name in ("again", "alone"):
            resealed(step_folder(f, name, STEPS), add)
        resealed(step_folder(f, "old", STEPS), lambda kept: kept.pop("quarantine"))

        two = daemons(f, "a", "b")
        train(f, "again", 2 * STEPS, "a", "b")
        both = client.BadSamples([{"id": i} for i in union | told])
        ranks = [taken(f, name, STEP // 2, rank=rank, ranks=2, cursor=first["cursor"], quarantine=both)
                 for rank, name in enumerate("ab")]
        train(f, "old", STEPS + 1, "a", "b")
        stop(two)
        one = daemons(f, "a")
        train(f, "alone", 2 * STEPS, "a", "a")
        whole = taken(f, "a", STEP, cursor=first["cursor"], quarantine=both.text())
        stop(one)

        same_rows(sorted(ranks[0] + ranks[1], key=lambda r: r["number"]), whole, set(both))
        check(len({rows[-1]["cursor"] for rows in (*ranks, whole)}) == 1, "the ranks' cursors differ after a whole step")
        check(ledger(f, "again") == ledger(f, "alone"), "one daemon and two: the ledgers differ")
        check(ledger(f, "again")[STEPS + 1] != ledger(f, "old")[STEPS + 1], "the list changes nothing: this shows nothing")
        last = state(f, "again", 2 * STEPS)
        check(last["quarantine"] == state(f, "alone", 2 * STEPS)["quarantine"], "one daemon and two: the lists differ")
        check(last["cursor"] == state(f, "alone", 2 * STEPS)["cursor"], "one daemon and two: the cursors differ")
        check(known(f, "again", 2 * STEPS) >= union | told, "what was given in HELLO is forgotten")


if not has_mpi():
    print("skipped: Open MPI was not found when this was built")
    sys.exit(77)
main(what_two_daemons_found_goes_on_with_any_number)
