# SPDX-License-Identifier: Apache-2.0
"""One stream, exactly once, under all faults together. Workers, the dispatcher's own and those of a supervisor
elsewhere, are killed, stopped, sent a SIGSEGV and left without memory. The dispatcher is killed and started again.
Trainers leave at random steps and come back as 1, 2, 4 or 8 ranks with the cursor of the last whole step, also
after a process of one was killed while all of them received. Judged by the ids in the rows received, every sample
of an epoch comes once, or is listed as quarantined, or was refused by the index, and every row is the same as in a
quiet run.

    prepd_exactly_once.py [WORKER_DEATHS [DISPATCHER_DEATHS]]     long form: 1000 40
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

from deaths import Deaths, Supervisor, larger_pictures
from formats import client, fingerprint, own_of
from prepd_flow import BIN, LIMIT_S, Daemon, Folder, check, free_ports, main, run, seed, wait_for

DEATHS = int(sys.argv[1]) if len(sys.argv) > 1 else 25
RESTARTS = int(sys.argv[2]) if len(sys.argv) > 2 else 3
TRAINERS = (RESTARTS + 1) // 2  # how many runs lose a process of a trainer
STEP = 8  # training.global_batch_size, so that each of 8 ranks gets a row
RANKS = (1, 2, 4, 8)
# A consumer leaves after this time without a row, because it does not hear that its daemon was killed. The time grows
# where it was in vain.
SILENCE_S = 1.5
DAEMON_S = (0.2, 1 + DEATHS / 200)  # how long a dispatcher lives before it is killed
LONG_S = 6 * LIMIT_S
RANK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tessera import client
for row in client.connect(sys.argv[2], cursor=json.loads(sys.argv[3]), rank=int(sys.argv[4]), ranks=int(sys.argv[5]),
                          timeout=float(sys.argv[6])):
    print(row["number"], flush=True)
"""


def rank_rows(end, rank, ranks, cursor, steps, out, silence_s):
    """The rows of `steps` steps that this rank should get, or of all to the end; or why it did not get them."""
    try:
        stream = client.connect(end, cursor=cursor, rank=rank, ranks=ranks, timeout=silence_s)
        first = cursor["row"] // STEP if cursor else 0
        for row in stream:
            if steps and row["number"] // STEP >= first + steps:
                break
            out.append((row["number"], hash(tuple(fingerprint(row))), [int(i) for i in row["doc_sample_id"]],
                        row["cursor"], own_of(row)))
            if steps and len(out) == steps * (STEP // ranks):
                break
        stream.close()
    except Exception as why:  # noqa: BLE001: a killed daemon shows as many kinds of errors
        out.append(why)


def part_of_run(end, ranks, cursor, steps, silence_s, but=-1):
    """All ranks but one at once, each its own consumer: their rows, and why any of them failed."""
    shares = [[] for _ in range(ranks)]
    threads = [threading.Thread(target=rank_rows, args=(end, k, ranks, cursor, steps, shares[k], silence_s))
               for k in range(ranks) if k != but]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    rows = [r for share in shares for r in share]
    failed = [r for r in rows if isinstance(r, Exception)]
    return ([] if failed else sorted(rows, key=lambda r: r[0])), failed


def status(end):
    p = subprocess.run([BIN, "status", "--connect", end, "--json"], capture_output=True, text=True)
    return json.loads(p.stdout) if p.returncode == 0 else None


def up(end, daemon):
    wait_for(lambda: status(end) or daemon.p.poll() is not None, "the daemon answers")
    check(daemon.p.poll() is None, daemon.said())


def quiet_run(f, end):
    """A run without faults, with the number of samples there are."""
    with Daemon(f.config) as d:
        up(end, d)
        rows, failed = part_of_run(end, 1, None, 0, 60.0)  # no process is killed, so there is no hurry
        check(rows, f"the quiet run failed: {failed}")
        return rows, status(end)["train"]["samples"]


class Run:
    """Runs over the whole stream under all faults."""

    def __init__(self, f, end, n_rows, deaths, rng):
        self.f, self.end, self.n_rows, self.deaths, self.rng = f, end, n_rows, deaths, rng
        self.restarts, self.killed, self.sizes, self.limit = 0, 0, set(), time.monotonic() + LONG_S

    def enough(self):
        elsewhere = DEATHS // 8 + 1 - self.deaths.elsewhere
        return self.deaths.enough(elsewhere) and self.restarts >= RESTARTS and self.killed >= TRAINERS

    def once(self):
        """The rows of a run, by as many daemons as it takes, and the last cursor."""
        got, cursor = [], None
        while cursor is None or cursor["row"] < self.n_rows:
            with Daemon(self.f.config) as d:
                up(self.end, d)
                dies = threading.Timer(self.rng.uniform(*DAEMON_S), d.p.kill)
                if self.restarts < RESTARTS:
                    dies.start()
                with self.deaths.among(d):
                    cursor = self.parts(d, got, cursor)
                dies.cancel()
                check(d.p.poll() in (None, -signal.SIGKILL), f"exit code {d.p.returncode}\n{d.said()}")
                self.restarts += d.p.returncode is not None
        return got, cursor

    def a_rank_is_killed(self, ranks, cursor, steps, silence_s):
        """A process is killed among ranks at work. Their step is not whole, so the rows that all of them had are
        lost and come again."""
        rank = self.rng.randrange(ranks)
        words = (os.path.dirname(os.path.dirname(client.__file__)), self.end, json.dumps(cursor), str(rank), str(ranks), str(silence_s))

        def after_its_first_row(p):
            if p.stdout.readline():
                p.kill()
        with subprocess.Popen([sys.executable, "-B", "-c", RANK, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as p:
            dies = threading.Thread(target=after_its_first_row, args=(p,))
            dies.start()
            part_of_run(self.end, ranks, cursor, steps, silence_s, but=rank)
            dies.join()
        self.killed += p.returncode == -signal.SIGKILL

    def parts(self, d, got, cursor):
        """Trainers of one daemon, each continuing where the last whole part ended, to the end of the stream or of
        the daemon."""
        silence_s = SILENCE_S
        while d.p.poll() is None and (cursor is None or cursor["row"] < self.n_rows):
            ranks = self.rng.choice([r for r in RANKS if r not in self.sizes] or RANKS)
            left = (self.n_rows - (cursor["row"] if cursor else 0)) // STEP
            steps = min(self.rng.randint(1, 6), left)
            if self.killed < TRAINERS and self.rng.random() < 0.5:
                self.a_rank_is_killed(ranks, cursor, steps, silence_s)
            rows, failed = part_of_run(self.end, ranks, cursor, steps, silence_s)
            self.deaths.enough()
            check(time.monotonic() < self.limit, f"not within {LONG_S} s; last: {failed}\n{d.said()}")
            silence_s = SILENCE_S if rows else 2 * silence_s
            if rows:
                got += rows
                cursor = json.loads(rows[-1][3])
                self.sizes.add(ranks)
        return cursor


def same_as(wanted, n, bad, refused, got, cursor):
    """Checks two epochs of n samples: each good one comes twice, and the others are listed."""
    check([r[0] for r in got] == list(range(len(wanted))), "rows are missing, repeated or out of order")
    changed = [r[0] for r, w in zip(got, wanted, strict=True) if r[1] != w[1]]
    check(not changed, f"rows {changed} differ from a quiet run")
    quarantined = set().union(*(r[4] for r in got))
    check("quarantine" not in cursor, f"{cursor} has a list")
    check(quarantined == bad, f"quarantined {sorted(quarantined)}, damaged {sorted(bad)}")
    served, good = [i for r in got for i in r[2] if i not in bad], sorted(set(range(n)) - bad - refused)
    for epoch in (served[:len(good)], served[len(good):]):
        check(sorted(epoch) == good, "an epoch does not have every good sample once")


def under_all_faults():
    """Repeats the run as often as the deaths need. A sample is blamed for lack of memory only after more such deaths
    in a row than there are."""
    rng, port = seed(), free_ports()
    end = f"tcp://127.0.0.1:{port}"
    with Folder(images=128 if DEATHS <= 25 else 4 * DEATHS,
                **{"training.epochs": 2, "training.global_batch_size": STEP, "training.seq_len": 64,
                   "image.max_pixels": 32768, "prepd.workers": 3, "prepd.sample_timeout": 1, "prepd.solo_deaths": 10,
                   "prepd.endpoint": end}) as f:
        larger_pictures(f, every=4)
        pictures = f.train_images()
        bad, refused = set(), set()
        for picture in (pictures[1], pictures[-2]):  # the header stays, so they are found bad when they are decoded
            bad |= set(f.questions_of(picture))
            with open(picture, "rb+") as x:
                x.truncate(os.path.getsize(picture) * 2 // 3)
        for picture in (pictures[3], pictures[-4]):  # empty files are found bad when the index is built
            refused |= set(f.questions_of(picture))
            open(picture, "wb").close()
        wanted, n = quiet_run(f, end)
        check(f"samples: {n}, refused: {len(refused)}\n" in run("plan", "-c", f.config), "the index refuses more or fewer samples")
        with Supervisor(f"tcp://127.0.0.1:{port + 1}", f, "--workers", "2") as supervisor:
            deaths, times = Deaths(rng, DEATHS), 0
            runs = Run(f, end, len(wanted), deaths, rng)
            deaths.start()
            try:
                with deaths.among(supervisor):
                    while times == 0 or not runs.enough():
                        same_as(wanted, n, bad, refused, *runs.once())
                        times += 1
            finally:
                said = deaths.end()
            check(supervisor.p.poll() is None, f"the supervisor left: {supervisor.said()}")
        check(deaths.n() >= DEATHS and min(deaths.done.values()) > DEATHS // 8, f"too few, or too few of a kind: {said}")
        check(deaths.elsewhere > DEATHS // 8, f"only {deaths.elsewhere} deaths were elsewhere")
        check(runs.restarts == RESTARTS, f"{runs.restarts} dispatchers lost, not {RESTARTS}")
        check(runs.killed == TRAINERS, f"{runs.killed} ranks lost, not {TRAINERS}")
        check(runs.sizes == set(RANKS), f"only {runs.sizes} ranks")
        print(f"{said}, {deaths.elsewhere} of them elsewhere, {RESTARTS} dispatchers and {runs.killed} ranks lost, as {sorted(runs.sizes)} ranks; {times} times "
              f"{len(wanted)} rows of {n} samples, {len(bad)} quarantined, {len(refused)} refused")


main(under_all_faults)
