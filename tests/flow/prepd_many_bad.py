# SPDX-License-Identifier: Apache-2.0
"""A million bad samples: a run resumes with them, at any row and as any of 64 ranks, and comes back to a daemon that was restarted;
the daemon keeps one copy, and a loop in Python takes its rows as fast as without."""

import json
import os
import signal
import sys
import time

from prepd_flow import Daemon, Folder, check, main, run, wait_for

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(os.environ.get("TESSERA_BIN", "build/bin"))), "python"))
import tessera  # noqa: E402
from formats import in_data, options, own_of  # noqa: E402
from tessera.row_readers import _reader  # noqa: E402

SAMPLES, KNOWN, RANKS = 1_050_000, 1_000_000, 64
MIB = 1 << 20


def end_of(f):
    return "ipc://" + f.file("d.sock")


def rows_of(f, known=None, cursor="", native=None, **more):
    rows = tessera.Rows(end_of(f), timeout=60.0, native=native, **more)
    if known is not None:
        rows.load_state_dict({"tessera": 2, "stream": "train", "world": more.get("world", 1), "taken": 0, "number": None,
                              "cursor": cursor, "quarantine": known.text()})
    return rows


def memory_of(daemon):
    with open(f"/proc/{daemon.p.pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def list_of(n, index):
    """One of every hundred of the first samples, about one a row, and then the last ones."""
    known = tessera.BadSamples([{"id": k} for k in [*range(0, 20_000, 100), *range(SAMPLES - n + 200, SAMPLES)]])
    known.index = index
    check(len(known) == n, len(known))
    return known


def loop_time(f, known, native, n=40):
    """Seconds a row with a blank document takes the loop beside its waits for rows. The least of several, since others run too."""
    rows, best = rows_of(f, known, native=native), 1.0
    next(rows)
    while n > 0:
        waited, begin = rows.waited, time.monotonic()
        row = next(rows)
        took = time.monotonic() - begin - (rows.waited - waited)
        if own_of(row):
            best, n = min(best, took), n - 1
    rows.close()
    return best


def a_million_bad_samples():
    with Folder(images=16) as f:
        path = in_data(f, "lines.jsonl")
        with open(path, "w") as lines:
            lines.writelines('{"text":"%d"}\n' % k for k in range(SAMPLES))
        more = options(data__format="text", data__path=path, training__seq_len=512, training__global_batch_size=RANKS,
                       training__epochs=1, data__quarantine_limit=100, data__shuffle="false", prepd__workers=2)
        with Daemon(f.config, *more) as d:
            wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
            begin = time.monotonic()
            plain = rows_of(f)
            first = [next(plain) for _ in range(3)]
            index = plain.welcome["index"]
            print(f"an index of {SAMPLES:,} samples: {time.monotonic() - begin:.1f} s")
            lists = {n: list_of(n, index) for n in (200, 60_000, KNOWN)}
            known = lists[KNOWN]
            before = memory_of(d)
            begin = time.monotonic()
            again = rows_of(f, known, first[1]["cursor"])
            row = next(again)
            print(f"resumed at row {row['number']} with {KNOWN:,} after {time.monotonic() - begin:.2f} s; "
                  f"{len(known.text()) / 1e6:.2f} MB of HELLO")
            check(row["number"] == 2 and (row["doc_sample_id"] == first[2]["doc_sample_id"]).all(), "another row")
            check(own_of(row) == {int(i) for i in row["doc_sample_id"] if int(i) in known}, f"blank: {own_of(row)}")
            check(own_of(first[2]) == set(), "a list reaches another consumer")
            again.close()
            for native in (False, True) if _reader else (False,):
                took = {n: loop_time(f, one, native) * 1e6 for n, one in lists.items()}
                print(f"the loop's own time, native {native}: " + ", ".join(f"{n:,}: {t:.0f} us" for n, t in took.items()))
                check(took[KNOWN] < 2 * took[200] + 200, f"a long list costs the loop: {took}")
            ranks = [rows_of(f, known, rank=r, world=RANKS, run="run", credit_bytes=1, prefetch=1) for r in range(RANKS)]
            numbers = sorted(next(r)["number"] for r in ranks)
            check(numbers == list(range(RANKS)), f"{numbers}")
            said = json.loads(run("status", "-c", f.config, *more, "--json"))
            check([c["known_bad"] for c in said["consumers"]].count(KNOWN) >= RANKS, said["consumers"][0])
            print(f"{RANKS} ranks: the daemon has {memory_of(d) - before:.0f} MiB more")
            check(memory_of(d) - before < 400, "the ranks of a run do not share their list")
            for r in ranks[1:]:
                r.close()
            d.stop(signal.SIGKILL)
        with Daemon(f.config, *more):
            begin = time.monotonic()
            for _ in range(8):  # more than were under way
                row = next(ranks[0])
            print(f"back after {time.monotonic() - begin:.2f} s")
            check(own_of(row) == {int(i) for i in row["doc_sample_id"] if int(i) in known}, "what it knew is forgotten")
            ranks[0].close()


main(a_million_bad_samples)
