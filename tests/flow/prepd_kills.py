# SPDX-License-Identifier: Apache-2.0
"""Workers die at random, by every kind of death, while the stream runs, while the index is built, and while samples
kill workers of their own. No row changes, and no sample is blamed that is not at fault.

prepd_kills.py [DEATHS [IMAGES]]    long form: 1000 3000, an epoch of 8,100 samples, as often as the deaths of a case
need"""

import contextlib
import json
import os
import shutil
import sys
import time

from deaths import KINDS, Deaths, Supervisor, larger_pictures
from faults import trap
from formats import client, fingerprint, own_of
from prepd_flow import LIMIT_S, Daemon, Folder, check, main, run, seed, wait_for, workers_below

DEATHS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
IMAGES = int(sys.argv[2]) if len(sys.argv) > 2 else 160
OUTSIDE = [kind for kind in KINDS if kind != "no memory"]
LONG_S = 6 * LIMIT_S  # for one case


def status(f):
    return json.loads(run("status", "-c", f.config, "--json"))


def ready(f):
    """Waits until its index is built, however long that takes."""
    wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
    wait_for(lambda: status(f)["train"]["state"] == "ready", "the index", LONG_S)


def epoch(f):
    """Number, hash and quarantined samples of every row, and the ids in them."""
    rows, ids = [], []
    for r in client.connect("ipc://" + f.file("d.sock"), timeout=60.0):
        rows.append((r["number"], hash(tuple(fingerprint(r))), sorted(own_of(r))))
        ids += [int(i) for i in r["doc_sample_id"]]
    return rows, ids


def forget_index(f):
    shutil.rmtree(f.file("data/.tessera"))


def enough(deaths, end, short):
    """Whether all have died. short: how many more leases they must have cost; a worker that dies idle costs none."""
    check(time.monotonic() < end, f"not within {LONG_S} s: {DEATHS} deaths and {short:.0f} more leases, but {deaths.done}")
    return deaths.enough(short)


def all_died(deaths, lost):
    """Says in words that all died. lost: leases."""
    said = deaths.end()
    check(deaths.n() >= DEATHS and min(deaths.done.values()) > DEATHS // 8, f"too few, or too few of a kind: {said}")
    return f"{said}, {lost} leases lost"


@contextlib.contextmanager
def who_keeps_workers(f, daemon, elsewhere):
    """The daemon, or a supervisor of three in its place."""
    if not elsewhere:
        yield daemon
        return
    wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
    run("scale", "0", "-c", f.config)
    wait_for(lambda: not workers_below(daemon.p.pid), "its own workers leave")
    with Supervisor("ipc://" + f.file("d.sock.workers"), f, "--workers", "3") as supervisor:
        yield supervisor
        check(supervisor.p.poll() is None, f"the supervisor left: {supervisor.said()}")


def under_fire(f, *kinds, elsewhere=False):
    """Runs a whole epoch in quiet, then again until all have died, with the index being built again meanwhile, unless
    they are elsewhere, where none is built."""
    with Daemon(f.config):
        ready(f)
        quiet, ids = epoch(f)
        check(sorted(ids) == list(range(status(f)["train"]["samples"])), "not every sample came once")
    if not elsewhere:
        forget_index(f)
    deaths, times, end = Deaths(seed(), DEATHS, kinds), 0, time.monotonic() + LONG_S
    own_doing = DEATHS // 16 + 1 if "no memory" in kinds else 0

    def short():
        now = status(f)
        return max((0.25 if elsewhere else 0.5) * DEATHS - now["leases_lost"], own_doing - now["lost_by_crash"])
    with Daemon(f.config) as d, who_keeps_workers(f, d, elsewhere) as above, deaths.among(above):
        deaths.start()
        try:
            ready(f)
            while times == 0 or not enough(deaths, end, short()):
                rows, _ = epoch(f)
                times += 1
                differ = [(g, w) for g, w in zip(rows, quiet) if g != w]
                check(len(rows) == len(quiet) and not differ, f"deaths changed the stream: {len(rows)} rows, {len(quiet)} "
                      f"wanted; {differ[:1]}")
        finally:
            deaths.over = True
        now = status(f)
        said = all_died(deaths, now["leases_lost"])
        check(deaths.elsewhere == (deaths.n() if elsewhere else 0), f"{deaths.elsewhere} deaths were elsewhere: {said}")
        check(now["train"]["quarantined_count"] == 0, f"good samples are in quarantine: {now['train']}")
        print(f"{said}, {now['lost_by_crash']} of them by the worker's own doing; {times} times {len(quiet)} rows of "
              f"{len(ids)} samples")
        return now


def deaths_of_every_kind():
    """Running out of memory looks like a worker's own doing. It does not happen often enough in a row here for a
    sample to be blamed."""
    with Folder(images=IMAGES, **{"training.epochs": 1, "prepd.workers": 3, "prepd.solo_deaths": 10,
                                  "prepd.sample_timeout": 3}) as f:
        larger_pictures(f)
        under_fire(f, *KINDS)


def deaths_from_outside(elsewhere=False):
    """At the strictest limit: a SIGSEGV from outside is not a crash, and a stopped worker is not slow. Elsewhere it may look as if
    workers joined and left without working, which sends all of that address away for a second."""
    with Folder(images=IMAGES, **{"training.epochs": 1, "prepd.workers": 3, "prepd.solo_deaths": 1}) as f:
        now = under_fire(f, *OUTSIDE, elsewhere=elsewhere)
        sent_away = now["lost_by_breach"] if elsewhere else 0
        check(now["lost_from_outside"] + sent_away == now["leases_lost"], f"taken for the worker's own doing: {now}")


def deaths_from_outside_elsewhere():
    """Nobody says how they died, and no sample is blamed for it."""
    deaths_from_outside(elsewhere=True)


def the_index(f):
    """All that `prepd plan` says of the index, but for the time."""
    return [line for line in run("plan", "-c", f.config).splitlines() if not line.startswith("planning")]


def deaths_while_the_index_is_built():
    """At the strictest limit, in as many builds as the deaths need, no picture and no text is refused."""
    with Folder(images=max(600, IMAGES), **{"training.epochs": 1, "prepd.workers": 3, "prepd.solo_deaths": 1}) as f:
        quiet = the_index(f)
        check(any(line.endswith("refused: 0") for line in quiet), quiet)
        deaths, lost, builds, end = Deaths(seed(), DEATHS, OUTSIDE, (0, 0.02)), 0, 0, time.monotonic() + LONG_S
        deaths.start()
        try:
            while builds == 0 or not enough(deaths, end, 0.25 * DEATHS - lost):
                forget_index(f)
                with Daemon(f.config) as d:
                    with deaths.among(d):
                        ready(f)
                    counts = status(f)
                    lost += counts["leases_lost"]
                    check(counts["lost_from_outside"] == counts["leases_lost"], f"taken for the worker's own doing: {counts}")
                    check("refused cause" not in d.said(), d.said())
                now, builds = the_index(f), builds + 1
                check(now == quiet, f"deaths changed the index: {now}, not {quiet}")
        finally:
            deaths.over = True
        print(f"{all_died(deaths, lost)}; {builds} builds of {quiet[1]}")


def samples_that_kill_among_deaths():
    """Samples abort, exit, fault or hang in a worker, and so does a header, while others die from outside. The same
    samples are blamed, for the same reasons, and the rows are the same."""
    with trap(), Folder(images=IMAGES, **{"training.epochs": 1, "prepd.workers": 3, "prepd.solo_deaths": 1,
                                          "prepd.sample_timeout": 1}) as f:
        marks = ("header", "abort", "fault", "exit", "hang")[:5 if DEATHS > 20 else 2]  # each takes a while to find
        marks = dict(zip(marks, f.train_images()[2::9]))
        for mark, image in marks.items():
            with open(image, "ab") as x:
                x.write(f"POISON:{mark}".encode())
        refused = f.questions_of(marks.pop("header"))
        wanted = {i for image in marks.values() for i in f.questions_of(image)}

        def run_of_it():
            ready(f)
            rows, ids = epoch(f)
            train = status(f)["train"]
            check(sorted([*ids, *refused]) == list(range(train["samples"])), "not every sample came once or was refused")
            return rows, {q["id"]: q["cause"] for q in train["quarantined"]}
        with Daemon(f.config):
            quiet = (*run_of_it(), the_index(f))
        check(set(quiet[1]) == wanted, f"quarantined {quiet[1]}, poison is {wanted}")
        deaths, times, lost, end = Deaths(seed(), DEATHS, OUTSIDE), 0, 0, time.monotonic() + LONG_S
        deaths.start()
        try:
            while times == 0 or not enough(deaths, end, 0.25 * DEATHS - lost):
                forget_index(f)
                with Daemon(f.config) as d:
                    with deaths.among(d):
                        now, times = run_of_it(), times + 1
                    lost += status(f)["lost_from_outside"]
                for one, other, what in zip((*now, the_index(f)), quiet, ("rows", "samples blamed", "index")):
                    check(one == other, f"deaths changed the {what}: {one}, not {other}")
        finally:
            deaths.over = True
        print(f"{all_died(deaths, lost)}; {times} times {len(quiet[0])} rows, {len(wanted)} samples that kill")


main(deaths_of_every_kind, deaths_from_outside, deaths_from_outside_elsewhere, deaths_while_the_index_is_built, samples_that_kill_among_deaths)
