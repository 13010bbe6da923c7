"""prepd serve --recording: the rows of the recorded stream, round after round, for one consumer or several ranks,
entered anywhere; and all else that the protocol promises, without a data set and without workers."""

import json
import os
import shutil
import subprocess
import sys
import time

import zmq

from formats import fingerprint
from prepd_flow import LIMIT_S, Daemon, Folder, check, main, run, wait_for

PYTHON = os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python")
sys.path.insert(0, PYTHON)
from tessera import client, hashes  # noqa: E402

STEP, STEPS, FROM = 4, 3, 2  # training.global_batch_size of the folder; how many steps are recorded, from which one
ROWS, FIRST = STEP * STEPS, STEP * FROM


class Recorded:
    """A daemon that serves the steps FROM to FROM + STEPS of a stream."""

    def __init__(self, folder, *args, damage=None):
        self.file, self.end = folder.file("rows.rec"), "ipc://" + folder.file("d.sock")
        run("record", "-c", folder.config, "--steps", str(STEPS), "--from", str(FROM), "--out", self.file)
        if damage:
            damage(self.file)
        self.daemon = Daemon(folder.config, "--recording", self.file, *args)
        wait_for(lambda: os.path.exists(folder.file("d.sock")), "the daemon")

    def rows(self, n, **options):
        out = []
        stream = client.connect(self.end, timeout=60.0, **options)
        for row in stream:
            out.append((row["number"], fingerprint(row), row["cursor"]))
            if len(out) == n:
                break
        stream.close()
        return out

    def refused(self, words, **options):
        try:
            self.rows(1, **options)
        except RuntimeError as told:
            check(words in str(told), str(told))
        else:
            check(False, f"{options} was taken")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.daemon.__exit__()


def entered_anywhere():
    with Folder(**{"training.epochs": 4}) as f, Recorded(f) as r:
        whole = r.rows(2 * ROWS + 1)
        check([x[0] for x in whole] == [FIRST + k % ROWS for k in range(2 * ROWS + 1)], "the recording is not repeated")
        check([x[1] for x in whole[:ROWS]] == [x[1] for x in whole[ROWS:2 * ROWS]], "rounds differ")
        for k in range(ROWS):
            rest = r.rows(ROWS, cursor=json.loads(whole[k][2]))
            check([x[:2] for x in rest] == [x[:2] for x in whole[k + 1:k + 1 + ROWS]], f"wrong rows after row {k}")
        check(r.rows(2, start_row=ROWS + 3)[0][:2] == whole[3][:2], "start_row")
        cursor = json.loads(whole[0][2])
        for row in (0, FIRST - 1, FIRST + ROWS + 1, -1):
            r.refused("without a cursor", cursor=dict(cursor, row=row))
        r.refused("index", cursor=dict(cursor, index="0" * 32))
        r.refused("only the train stream", stream="eval")


def ranks_share_every_step():
    with Folder(**{"training.epochs": 4}) as f, Recorded(f) as r:
        whole = [x[:2] for x in r.rows(ROWS)]
        for ranks in (2, 4):
            mine = ROWS // ranks
            shares = [r.rows(mine, rank=k, ranks=ranks) for k in range(ranks)]
            check(sorted(x[:2] for s in shares for x in s) == whole, f"{ranks} ranks together do not get every row once")
            for k, share in enumerate(shares):
                for taken in range(1, mine):  # also in the middle of a step
                    rest = r.rows(mine - taken, rank=k, ranks=ranks, cursor=json.loads(share[taken - 1][2]))
                    check([x[:2] for x in rest] == [x[:2] for x in share[taken:]], f"rank {k} of {ranks} after {taken} rows")
            a_step = STEP // ranks  # rows of a rank
            for other in range(ranks):  # after a whole step, all ranks have the same cursor
                behind = json.loads(shares[other][a_step - 1][2])
                rest = [r.rows(mine - a_step, rank=k, ranks=ranks, cursor=behind) for k in range(ranks)]
                check([x[:2] for s in rest for x in s] == [x[:2] for s in shares for x in s[a_step:]], f"cursor of rank {other} of {ranks}")
        for rank in (0, 4, 7):
            r.refused("every rank needs a row", rank=rank, ranks=8)
        check(len(r.rows(3)) == 3 and r.daemon.p.poll() is None, "the daemon no longer works")


def only_ranks_of_this_daemon_are_served():
    with Folder(**{"training.epochs": 4}) as f, Recorded(f, "--prepd.ranks", "1-2") as r:
        for rank in (0, 3):
            r.refused("serves the ranks 1-2 of the training stream (prepd.ranks)", rank=rank, ranks=4)
        check(len(r.rows(STEPS, rank=2, ranks=4)) == STEPS, "rank 2 is not served")


def a_damaged_row_is_told():
    def damage(path):
        with open(path, "r+b") as x:
            x.seek(os.path.getsize(path) - 32)
            index, n = (int.from_bytes(x.read(8), "little") for _ in range(2))
            x.seek(index + 8 * (n - 2))
            at = int.from_bytes(x.read(8), "little")
            x.seek(at + 32 + 100)  # in the block of the last row but one
            x.write(b"damaged")

    with Folder(**{"training.epochs": 4}) as f, Recorded(f, damage=damage) as r:
        good = r.rows(ROWS - 2)
        check(len(good) == ROWS - 2, "the rows before the damaged one did not come")
        r.refused("damaged", cursor=json.loads(good[-1][2]))
        check(r.daemon.p.poll() is None and len(r.rows(2)) == 2, "the daemon no longer works")


def replay_checks_every_hash():
    """The reader in numpy on a file: what is damaged is named with its place; without any hash function nothing is read unless
    that is asked for."""
    with Folder() as f:
        path = f.file("rows.rec")
        run("record", "-c", f.config, "--steps", "1", "--out", path)
        with open(path, "rb") as x:
            whole = x.read()
        index, n = (int.from_bytes(whole[k:k + 8], "little") for k in (len(whole) - 32, len(whole) - 24))
        row = int.from_bytes(whole[index + 8 * (n - 1):index + 8 * n], "little")
        image = int.from_bytes(whole[-40:-32], "little")

        def told(data, *words, error=ValueError):
            with open(path, "wb") as x:
                x.write(data)
            try:
                list(client.replay(path))
                check(False, f"{words}: taken")
            except error as refused:
                check(str(refused).startswith(path + ": ") and all(w in str(refused) for w in words), f"{words}: {refused}")
        check(len(list(client.replay(path))) == n == STEP, "rows")
        for at, words in ((40, "the WELCOME does not match the hash in the head"), (row + 32 + 150, f"the row at byte {row} does not match"),
                          (row + 16, f"the row at byte {row} does not match"), (image + 40, f"the image at byte {image} does not match"),
                          (index, "the index does not match the hash in the tail"), (len(whole) - 33, "the index does not match"),
                          (len(whole) - 10, "the index does not match"), (len(whole) - 32, "cannot begin at byte"), (len(whole) - 1, "cut short"),
                          (0, "not a recording")):
            told(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:], words)
        for data, words in ((whole[:-1], "cut short"), (whole[:row], "cut short"), (whole[:60], "cut short"), (b"", "it is empty"),
                            (b'{"a": 1}' * 20, "not a recording")):
            told(data, words)
        found, hashes.xxh3_128 = hashes.xxh3_128, None
        try:
            told(whole, "neither python3-xxhash nor libxxhash", "--unchecked", error=ImportError)
            check(len(list(client.replay(path, unchecked=True))) == n, "not read although that was asked for")
        finally:
            hashes.xxh3_128 = found
        blind = f.file("blind/tessera")  # the program in a Python that finds neither
        shutil.copytree(os.path.join(PYTHON, "tessera"), blind)
        with open(os.path.join(PYTHON, "tessera", "hashes.py")) as x, open(os.path.join(blind, "hashes.py"), "w") as y:
            y.write(x.read().replace("from xxhash import", "from no_such_module import").replace("libxxhash.so.0", "no_such_library.so"))
        for words, code, said in (((), 69, "cannot be checked"), (("--unchecked",), 0, "")):
            p = subprocess.run(["/usr/bin/python3", "-B", blind, path, *words], capture_output=True, text=True, timeout=LIMIT_S)
            check(p.returncode == code and said in p.stderr and p.stdout.count("digest unchecked") == n * (code == 0), p.stdout + p.stderr)


def one_that_vanishes_is_forgotten():
    with Folder(**{"training.epochs": 4}) as f, Recorded(f) as r:
        code = ("import sys, time; sys.path.insert(0, sys.argv[2]); from tessera import client; "
                "s = client.connect(sys.argv[1], credit_bytes=1 << 10); next(s); "
                "print('on', flush=True); time.sleep(60)")
        p = subprocess.Popen([sys.executable, "-c", code, r.end, PYTHON], stdout=subprocess.PIPE)
        check(p.stdout.readline() == b"on\n", "the consumer did not get a row")
        slow = client.connect(r.end, timeout=18.0, credit_bytes=1 << 10)
        next(slow)
        p.kill()
        p.wait()
        wait_for(lambda: "consumer left" in r.daemon.said(), "the consumer is forgotten", 40)
        check("consumer gone" in r.daemon.said(), r.daemon.said())
        check(r.daemon.said().count("consumer left") == 1, "the other consumer was forgotten too")
        next(slow)
        r.daemon.stop()
        try:
            for _ in slow:
                pass
        except RuntimeError as told:
            check("the daemon stops" in str(told), str(told))


def a_flood_of_nonsense_fills_no_log():
    with Folder(**{"training.epochs": 4, "prepd.buffer_bytes": 1 << 20}) as f, Recorded(f) as r:
        context = zmq.Context()
        s = context.socket(zmq.DEALER)
        s.setsockopt(zmq.LINGER, 0)
        s.connect(r.end)
        for _ in range(5000):
            s.send_multipart([b"x" * 100])
        greedy = client.connect(r.end, timeout=60.0, credit_bytes=1 << 41)
        next(greedy)
        check(len(r.rows(ROWS)) == ROWS, "rows beside a flood")
        wait_for(lambda: "no longer listened to" in r.daemon.said(), "the flood is ignored")
        time.sleep(2.5)
        check(len(r.daemon.said()) < 20000, f"{len(r.daemon.said())} bytes of log")
        context.destroy(0)


main(entered_anywhere, ranks_share_every_step, only_ranks_of_this_daemon_are_served, a_damaged_row_is_told,
     replay_checks_every_hash, one_that_vanishes_is_forgotten, a_flood_of_nonsense_fills_no_log)
