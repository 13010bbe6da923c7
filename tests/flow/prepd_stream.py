# SPDX-License-Identifier: Apache-2.0
"""One stream: the rows are the same however many workers make them, wherever they run, and wherever the stream is
entered.

prepd_stream.py [IMAGES]    long form: 3000, an epoch of 8,100 samples"""

import json
import os
import shutil
import subprocess
import sys

from formats import fingerprint
from prepd_flow import BIN, Daemon, Folder, check, digest, free_ports, main, run, scale, wait_for

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402

IMAGES = int(sys.argv[1]) if len(sys.argv) > 1 else 160
STEP = 8


def chain(digests):
    """What prepd digest should say of rows with these hashes."""
    link = client.hash_of(b"")
    for one in digests:
        link = client.hash_of(link + one)
    return link.hex()


def same_for_any_number_of_workers():
    with Folder() as f:
        digests = {w: digest(f.config, "--steps", "12", "--prepd.workers", str(w))
                   for w in (1, 2, 7)}
        check(len(set(digests.values())) == 1, f"digests differ: {digests}")
        other = digest(f.config, "--steps", "12", "--training.seed", "7")
        check(other not in digests.values(), "another seed gives the same stream")


def a_whole_epoch_by_any_workers_for_any_consumers():
    """Workers here, elsewhere, or both; workers whose number changes, and a supervisor that leaves, during the
    stream; ranks 1, 2, 4, 8; from the middle, after the dispatcher was killed."""
    with Folder(images=IMAGES, **{"training.epochs": 1, "training.global_batch_size": STEP}) as f:
        port, supervisors, equal = free_ports(), [], []
        end = f"tcp://127.0.0.1:{port}"

        def status():
            return json.loads(run("status", "--connect", end, "--json"))

        def taken(during=None, **more):
            """Number and digest of each row, since a whole one is many bytes. during: called with each."""
            out = []
            for r in client.connect(end, timeout=60.0, **more):
                out.append((r["number"], client.digest_of(r), [int(i) for i in r["doc_sample_id"]], r["cursor"]))
                if during:
                    during(r["number"])
            return out

        def same(name, got, want):
            differ = [(g[:3], w[:3]) for g, w in zip(got, want) if g[:3] != w[:3]]
            check(len(got) == len(want) and not differ, f"{name}: another stream: {len(got)} rows, {len(want)} wanted; {differ[:1]}")
            equal.append(name)

        def workers(local, elsewhere):
            scale(f, d, local)
            for k in supervisors[elsewhere:]:
                k.terminate()
                k.wait(60)
            del supervisors[elsewhere:]
            while len(supervisors) < elsewhere:
                supervisors.append(subprocess.Popen([BIN, "worker", "--connect", f"tcp://127.0.0.1:{port + 1}", "--data-root",
                                                 f.file("data")], stderr=subprocess.DEVNULL))
            wait_for(lambda: len(status()["workers"]) == local + elsewhere, f"{local} + {elsewhere} workers")

        def changed_during_the_stream(n_rows):
            """The rows while there are 1 to 7 workers here, and a supervisor leaves that has sent some."""
            sizes, left = [1, 4, 7, 3, 6, 2, 5], {}

            def here():
                return sum(w["local"] for w in status()["workers"])

            def change(row):
                if sizes and row % (n_rows // 8) == 0:
                    now = sizes.pop(0)
                    scale(f, d, now)
                    wait_for(lambda: here() == now, f"{now} workers at row {row}")
                if supervisors and row > n_rows // 3 and sum(w["leases"] for w in status()["workers"] if not w["local"]) > 0:
                    left[row] = supervisors.pop()
                    left[row].terminate()
            workers(1, 0)
            workers(1, 1)
            rows = taken(change, credit_bytes=1 << 20)
            check(not sizes, f"there were never {sizes} workers")
            check(left and min(left) < n_rows - 2, f"no supervisor left during the stream: {left}")
            check([k.wait(60) for k in left.values()] == [0], "the supervisor did not leave in good order")
            return rows

        d = Daemon(f.config, "--prepd.endpoint", end)
        try:
            wait_for(status, "the daemon")
            workers(2, 0)
            rows = taken()
            ids = sorted(i for r in rows for i in r[2])
            check(ids == list(range(status()["train"]["samples"])), "not every sample came once")
            said, wanted = digest(f.config, "--steps", str(len(rows) // STEP)), chain(r[1] for r in rows)
            check(said == wanted, f"prepd digest of the epoch is {said}, that of the rows received {wanted}")
            for local, elsewhere in ((1, 0), (7, 0), (0, 2), (0, 7), (2, 2)):
                workers(local, elsewhere)
                same(f"{local} workers here and {elsewhere} elsewhere", taken(), rows)
            same("workers that come and go", changed_during_the_stream(len(rows)), rows)
            for ranks in (2, 4, 8):
                shares = [r for k in range(ranks) for r in taken(rank=k, ranks=ranks)]
                same(f"{ranks} ranks", sorted(shares, key=lambda r: r[0]), rows)
            d.stop(9)
            d = Daemon(f.config, "--prepd.endpoint", end)
            wait_for(status, "the daemon is back")
            middle = len(rows) // 2 // STEP * STEP
            check(middle > 0, "too few rows to enter in the middle")
            same("from a cursor, by another dispatcher", taken(cursor=json.loads(rows[middle - 1][3])), rows[middle:])
            same("from a row", taken(start_row=middle), rows[middle:])
            print(f"{len(rows)} rows of {len(ids)} samples, {1 + len(equal)} times the same")
        finally:
            for k in supervisors:
                k.kill()
                k.wait()
            d.__exit__()


def the_transport_does_not_change_the_stream():
    with Folder() as f:
        plain = digest(f.config, "--steps", "4")
        packed = digest(f.config, "--steps", "4", "--prepd.image_codec", "zstd")
        check(plain == packed, "filter and codec change the digest")


def an_epoch_over_any_transport():
    """The rows themselves, as a consumer has them."""
    with Folder(images=64, **{"training.epochs": 1}) as f:
        keys = f.file("keys")
        run("keygen", "--out", keys)

        def rows(end, *options, **more):
            with Daemon(f.config, "--prepd.endpoint", end, *options):
                return [(r["number"], r["cursor"], fingerprint(r)) for r in client.connect(end, timeout=60.0, **more)]
        ipc = rows("ipc://" + f.file("d.sock"))
        check(len(ipc) > 4, f"{len(ipc)} rows")
        tcp = rows(f"tcp://127.0.0.1:{free_ports()}")
        keyed = rows(f"tcp://127.0.0.1:{free_ports()}", "--prepd.keys", keys, keys=keys)
        for got, what in ((tcp, "tcp"), (keyed, "tcp with keys")):
            differ = [g[0] for g, w in zip(got, ipc) if g != w]
            check(len(got) == len(ipc) and not differ, f"over {what}: {len(got)} rows of {len(ipc)}, others: {differ}")


def entered_at_a_later_step():
    with Folder() as f:
        def rows(name, *args):
            run("record", "-c", f.config, "--out", f.file(name), *args)
            return [(r["number"], fingerprint(r)) for r in client.replay(f.file(name))]
        whole, late = rows("whole", "--steps", "8"), rows("late", "--steps", "3", "--from", "5", "--prepd.workers", "3")
        check(len(whole) == 8 * 4 and late == whole[5 * 4:], f"other rows from the fifth step on: {[n for n, _ in late]}")
        late = digest(f.config, "--steps", "3", "--from", "5")
        again = digest(f.config, "--steps", "3", "--from", "5", "--prepd.workers", "3")
        first = digest(f.config, "--steps", "3")
        check(late == again and late != first, "start at a later step is not exact")


def index_is_only_a_cache():
    with Folder() as f:
        fresh = digest(f.config, "--steps", "4")
        cache = f.file("data/.tessera")
        check(os.listdir(cache), "no index was kept")
        check(digest(f.config, "--steps", "4") == fresh, "the cached index changes the stream")
        for name in os.listdir(cache):  # a damaged index is built again
            with open(os.path.join(cache, name), "r+b") as x:
                x.seek(200)
                x.write(b"\xff" * 16)
        check(digest(f.config, "--steps", "4") == fresh, "a damaged index was used")
        shutil.rmtree(cache)
        check(digest(f.config, "--steps", "4") == fresh, "a new index changes the stream")


def the_last_step_is_complete_and_then_it_ends():
    with Folder() as f:
        out = run("record", "-c", f.config, "--steps", "1000", "--out", f.file("r.rec"),
                  "--training.epochs", "1")
        rows = int(out.split(":")[1].split()[0])
        check(rows > 0 and rows % 4 == 0, f"{rows} rows are not a whole number of steps of 4")


def commands_need_only_the_data_section():
    """smoke.yaml with its data overridden: no eval split, another length, no daemon's endpoint."""
    source = os.environ.get("TESSERA_SOURCE", ".")
    with Folder() as f:
        here = ["-c", os.path.join(source, "configs/smoke.yaml"), "--data.path", f.file("data"),
                "--model.path", f.file("data/model"), "--training.seq_len", "128",
                "--training.global_batch_size", "8", "--eval.split", "absent"]
        check(run("check", *here).strip().endswith(" 0 bad"), "check")
        check("rows" in run("plan", *here), "plan")
        check(run("digest", *here, "--steps", "2"), "digest")
        one = f.file("one.safetensors")
        run("sample", *here, "--index", "0", "--out", one)
        check(os.path.getsize(one) > 0, "sample wrote nothing")
        run("record", *here, "--steps", "1", "--out", f.file("r.rec"))
        said = run("sample", *here, "--index", "1000000", "--out", f.file("no"), code=64)
        check("past the last sample" in said and not os.path.exists(f.file("no")), said)
        talk = run("plan", *here, "--data.group", "conversation")
        check(talk != run("plan", *here), "data.group conversation changes nothing")
        check(run("digest", *here, "--steps", "2", "--data.answer", "drawn"), "drawn answers change nothing")


main(same_for_any_number_of_workers, a_whole_epoch_by_any_workers_for_any_consumers,
     the_transport_does_not_change_the_stream, an_epoch_over_any_transport, entered_at_a_later_step,
     index_is_only_a_cache, commands_need_only_the_data_section, the_last_step_is_complete_and_then_it_ends)
