"""One stream, exactly once, under all faults together: workers die, are stopped and starved, the
dispatcher is killed and started again, trainers go away at random steps and come back as 1, 2, 4 or 8
ranks with the cursor of the last whole step. From the ids in the rows received: every sample of an
epoch once, or listed as quarantined; every row as in a quiet run.

    prepd_exactly_once.py [WORKER_DEATHS [DISPATCHER_DEATHS]]     long form: 1000 40
"""

import json
import os
import signal
import sys
import threading
import time

from formats import fingerprint, own_of
from prepd_flow import Daemon, Folder, check, main, seed, wait_for, workers_below

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto"))
import client  # noqa: E402

DEATHS = int(sys.argv[1]) if len(sys.argv) > 1 else 25
RESTARTS = int(sys.argv[2]) if len(sys.argv) > 2 else 3
STEP = 8  # training.global_batch_size: a row for each of 8 ranks
RANKS = (1, 2, 4, 8)
STOPPED = 0.1  # of the faults: each stands still until the dispatcher's patience ends
SILENCE_S = 4.0  # a consumer of a daemon that was killed hears nothing, and goes away


class Faults(threading.Thread):
    """Kills and stops workers of whichever daemon is there, as long as it is told to."""

    def __init__(self, rng):
        super().__init__()
        self.rng, self.pid, self.deaths, self.over = rng, None, 0, False

    def run(self):
        while not self.over:
            time.sleep(self.rng.uniform(0.005, 0.06))
            victims = workers_below(self.pid) if self.pid and self.deaths < DEATHS else []
            if not victims:
                continue
            try:
                stopped = self.rng.random() < STOPPED
                os.kill(self.rng.choice(victims), signal.SIGSTOP if stopped else signal.SIGKILL)
                self.deaths += 1
            except ProcessLookupError:
                pass


def rank_rows(folder, rank, ranks, cursor, steps, out, silence_s):
    """The rows of `steps` steps that this rank is owed, or all to the end; or why not."""
    try:
        stream = client.connect("ipc://" + folder.file("d.sock"), cursor=cursor, rank=rank,
                                ranks=ranks, timeout=silence_s)
        first = cursor["row"] // STEP if cursor else 0
        for row in stream:
            if steps and row["number"] // STEP >= first + steps:
                break
            out.append((row["number"], fingerprint(row), [int(i) for i in row["doc_sample_id"]],
                        row["cursor"], own_of(row)))
            if steps and len(out) == steps * (STEP // ranks):
                break
        stream.close()
    except Exception as why:  # noqa: BLE001: a daemon that was killed is met in many ways
        out.append(why)


def part_of_run(folder, ranks, cursor, steps, silence_s=SILENCE_S):
    """All ranks at once, each a consumer of its own; None where one of them failed."""
    shares = [[] for _ in range(ranks)]
    threads = [threading.Thread(target=rank_rows, args=(folder, k, ranks, cursor, steps, shares[k], silence_s))
               for k in range(ranks)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    rows = [r for share in shares for r in share]
    return None if any(isinstance(r, Exception) for r in rows) else sorted(rows, key=lambda r: r[0])


def up(folder, daemon):
    wait_for(lambda: os.path.exists(folder.file("d.sock.control")) or daemon.p.poll() is not None,
             "control endpoint", 60)
    check(daemon.p.poll() is None, daemon.said())


def quiet_run(folder):
    with Daemon(folder.config) as d:
        up(folder, d)
        rows = part_of_run(folder, 1, None, 0, 60.0)  # nobody is killed: it may take its time
    check(rows, "the quiet run failed")
    return rows


def under_all_faults():
    rng = seed()
    images = 128 if DEATHS <= 25 else 4 * DEATHS
    with Folder(images=images, **{"training.epochs": 2, "training.global_batch_size": STEP,
                                  "training.seq_len": 64, "prepd.workers": 3,
                                  "prepd.sample_timeout": 1}) as f:
        pictures = f.train_images()
        bad = set()
        for picture in (pictures[1], pictures[-2]):  # found bad when decoded: the header stays
            bad |= set(f.questions_of(picture))
            with open(picture, "rb+") as x:
                x.truncate(os.path.getsize(picture) * 2 // 3)
        wanted = quiet_run(f)
        got, cursor, restarts, sizes = [], None, 0, set()
        faults = Faults(rng)
        faults.start()
        try:
            while cursor is None or cursor["row"] < len(wanted):
                with Daemon(f.config) as d:
                    up(f, d)
                    faults.pid = d.p.pid
                    dies = None
                    if restarts < RESTARTS:
                        dies = threading.Timer(rng.uniform(0.2, 1.0), d.p.kill)
                        dies.start()
                    while d.p.poll() is None and (cursor is None or cursor["row"] < len(wanted)):
                        ranks = rng.choice(RANKS)
                        left = (len(wanted) - (cursor["row"] if cursor else 0)) // STEP
                        rows = part_of_run(f, ranks, cursor, min(rng.randint(1, 6), left))
                        if rows is None:
                            continue  # a trainer's checkpoint: the last whole part counts
                        got += rows
                        cursor = json.loads(rows[-1][3])
                        sizes.add(ranks)
                    faults.pid = None
                    if dies:
                        dies.cancel()
                        restarts += 1
        finally:
            faults.over = True
            faults.join()
        check([r[0] for r in got] == list(range(len(wanted))), "rows are missing, twice or disordered")
        changed = [r[0] for r, w in zip(got, wanted, strict=True) if r[1] != w[1]]
        check(not changed, f"rows {changed} differ from a quiet run")
        listed = set().union(*(r[4] for r in got))
        check({q["id"] for q in cursor["quarantine"]} <= bad, f"{cursor}: wanted of {bad}")
        check(listed == bad, f"quarantined {sorted(listed)}, damaged {sorted(bad)}")
        ids = [i for r in got for i in r[2]]
        n = len(set(ids))
        check(sorted(ids) == sorted(list(range(n)) * 2), "two epochs are not every sample twice")
        check(len(sizes) > 1 or len(wanted) < 8 * STEP, f"only {sizes} ranks")
        print(f"{len(wanted)} rows, {n} samples, {faults.deaths} workers and {restarts} dispatchers "
              f"lost, as {sorted(sizes)} ranks")


main(under_all_faults)
