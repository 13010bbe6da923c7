# SPDX-License-Identifier: Apache-2.0
"""What consumers get: every sample once, ranks that share steps, exact resume, streams side by side, and a slow
consumer that costs the others nothing. It uses the Python client, as a PyTorch user would."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types

from formats import fingerprint, own_of
from prepd_flow import Daemon, Folder, check, main, run, wait_for

PROTO = os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto")
PYTHON = os.path.join(PROTO, "python")
sys.path.insert(0, PYTHON)
from tessera import client, messages, row_order  # noqa: E402
import numpy as np  # noqa: E402
import zmq  # noqa: E402

STEP = 4  # training.global_batch_size of the folder
ONE_EPOCH = {"training.epochs": 1}


def endpoint(folder):
    return "ipc://" + folder.file("d.sock")


def rows_of(folder, n=None, **options):
    """(number, fingerprint, sample ids, cursor, own quarantined) of the next n rows, or of all."""
    out = []
    stream = client.connect(endpoint(folder), timeout=60.0, **options)
    for row in stream:
        out.append((row["number"], fingerprint(row), list(row["doc_sample_id"]), row["cursor"], own_of(row)))
        if len(out) == n:
            break
    stream.close()
    return out


def status(folder):
    return json.loads(run("status", "-c", folder.config, "--json"))


def up(folder):
    wait_for(lambda: os.path.exists(folder.file("d.sock.control")), "control endpoint")


def every_sample_once():
    with Folder(**ONE_EPOCH) as f, Daemon(f.config) as d:
        up(f)
        rows = rows_of(f)
        ids = sorted(i for r in rows for i in r[2])
        check(ids == list(range(len(ids))) and len(ids) == status(f)["train"]["samples"],
              "an epoch does not have every sample once")
        check([r[0] for r in rows] == list(range(len(rows))), "rows are not in stream order")
        check(len(rows) % STEP == 0, "the last step is not complete")
        check(d.p.poll() is None, d.said())


def ranks_share_every_step():
    with Folder(**ONE_EPOCH) as f, Daemon(f.config):
        up(f)
        alone = {r[0]: r[1] for r in rows_of(f)}
        for ranks in (2, 4):
            shares = [rows_of(f, rank=k, ranks=ranks) for k in range(ranks)]
            numbers = sorted(r[0] for s in shares for r in s)
            check(numbers == sorted(alone), f"{ranks} ranks together do not get every row once")
            for s in shares:
                check(all(alone[r[0]] == r[1] for r in s), "a row depends on the number of ranks")
                steps = [r[0] // STEP for r in s]
                check(all(steps.count(k) == STEP // ranks for k in set(steps)),
                      "a rank has not its share of every step")


def a_row_given_again_has_its_cursor():
    """Every row with a bad picture is made twice, the second time when its consumer is steps ahead."""
    with Folder(images=160, **{**ONE_EPOCH, "training.global_batch_size": 8, "prepd.workers": 7}) as f:
        for image in f.train_images()[::8]:
            with open(image, "rb+") as x:
                x.truncate(os.path.getsize(image) * 2 // 3)
        with Daemon(f.config):
            up(f)
            found = 0
            for rank in range(2):
                rows = rows_of(f, rank=rank, ranks=2)
                found += len({i for r in rows for i in r[4]})
                numbers = [r[0] for r in rows]
                wanted = [after if after // 8 == n // 8 else (n // 8 + 1) * 8 for n, after in zip(numbers, numbers[1:] + [1 << 40])]
                check([json.loads(r[3])["row"] for r in rows] == wanted, f"rank {rank}: rows {numbers}, cursors "
                      f"{[json.loads(r[3])['row'] for r in rows]}")
            check(found > 10, f"only {found} bad samples were met")


def ranks_share_samples_that_are_no_whole_steps():
    """The stream of single samples ends where the data ends, so the last step may be short."""
    for left in range(1, STEP):
        with Folder(**{"data.limit": 2 * STEP + left}) as f, Daemon(f.config):
            up(f)
            for ranks in (1, 2, 4):
                ids = [int(i) for k in range(ranks) for r in rows_of(f, stream="sample", rank=k, ranks=ranks) for i in r[2]]
                check(sorted(ids) == list(range(2 * STEP + left)), f"{left} samples left, {ranks} ranks got {sorted(ids)}")


def resumed_exactly():
    with Folder(**ONE_EPOCH) as f:
        with Daemon(f.config) as d:
            up(f)
            whole = rows_of(f)
            for stop in (1, 5, 8):
                first = rows_of(f, stop)
                rest = rows_of(f, cursor=json.loads(first[-1][3]))
                check([r[:2] for r in first + rest] == [r[:2] for r in whole],
                      f"stopped after {stop} rows, the rest differs")
            # Two ranks stop after step 1, and one consumer goes on alone.
            pair = [rows_of(f, STEP, rank=k, ranks=2) for k in range(2)]
            cursors = {json.loads(p[-1][3])["row"] for p in pair}
            check(cursors == {2 * STEP}, f"at the end of a step the ranks' cursors are {cursors}")
            rest = rows_of(f, cursor=json.loads(pair[0][-1][3]))
            check([r[:2] for r in rest] == [r[:2] for r in whole[2 * STEP:]], "other ranks differ")
            d.stop(signal.SIGKILL)
        with Daemon(f.config):  # a new daemon needs nothing but the cursor
            wait_for(lambda: status_or_none(f), "the daemon is back")
            rest = rows_of(f, cursor=json.loads(first[-1][3]))
            check([r[:2] for r in first + rest] == [r[:2] for r in whole], "after a restart")


def resumed_in_a_later_epoch():
    """From any cursor, one or two ranks get the rows that follow. A cursor without the place at which its epoch
    begins is refused; a wrong place only affects its own consumer."""
    def without_begin(cursor):
        return {k: v for k, v in cursor.items() if k != "begin"}

    with Folder(**{"training.epochs": 3.5, "training.seq_len": 384}) as f, Daemon(f.config) as d:
        up(f)
        whole = rows_of(f)
        cursors = [json.loads(r[3]) for r in whole]
        begins = {c["begin"]["epoch"]: c["begin"]["row"] for c in cursors}
        check(sorted(begins) == [0, 1, 2, 3] and sorted(begins.values()) == list(begins.values()), str(begins))
        d.stop(signal.SIGKILL)
        with Daemon(f.config):
            wait_for(lambda: status_or_none(f), "the daemon is back")
            for k in range(begins[1] - 2, len(whole) - 1, 3):
                rest = rows_of(f, 6, cursor=cursors[k])
                check([r[:2] for r in rest] == [r[:2] for r in whole[k + 1:k + 7]], f"wrong rows after row {k}")
                check(json.loads(rest[0][3]) == cursors[k + 1], f"the cursor of row {k + 1} differs")
            try:
                rows_of(f, cursor=without_begin(cursors[begins[2] + 3]))
                raise AssertionError("a cursor without a beginning was taken")
            except RuntimeError as refused:
                check("\"epoch\" is missing" in str(refused), f"what is missing: {refused}")
            ends = [k for k in range(begins[2], begins[3] + STEP) if cursors[k]["row"] % STEP == 0]
            pair = [r for rank in range(2) for r in rows_of(f, cursor=cursors[ends[0]], rank=rank, ranks=2)]
            check(sorted(r[:2] for r in pair) == [r[:2] for r in whole[ends[0] + 1:]], "two ranks get other rows")
            lie = dict(cursors[ends[1]], begin={"epoch": 2, "row": begins[2] - 1})
            check([r[1] for r in rows_of(f, 6, cursor=lie)] != [r[1] for r in whole[ends[1] + 1:ends[1] + 7]],
                  "a false place of the epoch changes nothing")
            for epoch, row in ((2, cursors[ends[1]]["row"] + 1), (4, 5), (-1, 0), (0, 1), (2, 1)):
                try:
                    rows_of(f, 1, cursor=dict(cursors[ends[1]], begin={"epoch": epoch, "row": row}))
                    check(False, f"a cursor that begins epoch {epoch} at row {row} was accepted")
                except RuntimeError as told:
                    check("row" in str(told), str(told))
            check([r[:2] for r in rows_of(f)] == [r[:2] for r in whole], "a false cursor changed the rows of another consumer")


# Stands in for the parts of torch that the page's lines use, on machines without it.
TORCH = """import numpy as np
class Tensor(np.ndarray):
    long = lambda self: self.astype(np.int64)
    float = lambda self: self.astype(np.float32)
    expand = lambda self, *s: np.broadcast_to(self, [n if k == -1 else k for k, n in zip(s, self.shape)], subok=True)
from_numpy = lambda a: a.view(Tensor)
"""


def with_torch(f):
    """An environment in which Python finds torch, or what stands for it."""
    os.mkdir(f.file("stub"))
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode != 0:
        with open(f.file("stub/torch.py"), "w") as stub:
            stub.write(TORCH)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([f.file("stub"), PYTHON])}


def the_page_s_lines_for_pytorch():
    """The lines for PyTorch, as proto's page has them: an epoch that is stopped in the middle and continued, by one
    rank and by two."""
    with open(os.path.join(PROTO, "python.md"), encoding="utf-8") as page:
        lines = page.read().split("```python\nimport json")[1].split("```")[0]
    lines = "import json" + lines
    with Folder(**ONE_EPOCH) as f, Daemon(f.config):
        up(f)
        env = with_torch(f)

        def said(what, source=endpoint(f), code=0, **more):
            p = subprocess.run([sys.executable, "-B", "-c", what, source], cwd=f.path, env={**env, **more},
                               capture_output=True, text=True, timeout=60)
            check(p.returncode == code, p.stderr)
            return p.stdout.splitlines() if code == 0 else p.stderr
        whole = said(lines)
        check(len(whole) == len(rows_of(f)) and ", 1536)" in whole[0], whole)
        check(said(lines) == [], "the cursor at the end gives rows")
        os.remove(f.file("cursor-0.json"))
        part = said(lines + "    if row['number'] == 4:\n        break\n")
        check(part + said(lines) == whole, f"{part} and what follows are not the whole")
        # Two ranks as torchrun starts them. After a whole step their cursors are the same, and one rank goes on alone.
        os.remove(f.file("cursor-0.json"))
        stop = lines + f"    done = globals().get('done', 0) + 1\n    if done == {STEP}:\n        break\n"
        pair = [said(stop, RANK=str(r), WORLD_SIZE="2") for r in range(2)]
        check(sorted(pair[0] + pair[1], key=lambda line: int(line.split()[0])) == whole[:2 * STEP], pair)
        cursors = [open(f.file(f"cursor-{r}.json")).read() for r in range(2)]
        check(json.loads(cursors[0])["row"] == json.loads(cursors[1])["row"] == 2 * STEP, cursors)
        rest = [said(lines, RANK=str(r), WORLD_SIZE="2") for r in range(2)]
        check(sorted(rest[0] + rest[1], key=lambda line: int(line.split()[0])) == whole[2 * STEP:], rest)
        check(len(rest[0]) == len(rest[1]), "one rank has more rows than the other")
        with open(f.file("cursor-0.json"), "w") as kept:
            kept.write(cursors[1])
        check(said(lines) == whole[2 * STEP:], "one rank alone from the other's cursor")
        check("tessera.Rows" in said(lines, f.config, 1, WORLD_SIZE="2"), "a recording for two")
    with Folder(**ONE_EPOCH) as f, Daemon(f.config, "--data.group", "shared_prefix"):  # rows with prefixes, whose mask they take
        up(f)
        p = subprocess.run([sys.executable, "-B", "-c", lines, endpoint(f)], cwd=f.path, env=with_torch(f),
                           capture_output=True, text=True, timeout=60)
        check(p.returncode == 0 and len(p.stdout.splitlines()) >= STEP, p.stdout + p.stderr)


def the_readme_s_lines_for_pytorch():
    """As README.md has them, but for the places of the client and of the socket."""
    with open(os.path.join(PROTO, "..", "README.md"), encoding="utf-8") as page:
        lines = page.read().split("```python\n")[1].split("```")[0]
    with Folder(**ONE_EPOCH) as f, Daemon(f.config):
        up(f)
        check(lines.count("ipc://build/smoke/prepd.sock") == 1, lines)
        lines = lines.replace("ipc://build/smoke/prepd.sock", endpoint(f))
        said = subprocess.run([sys.executable, "-B", "-c", lines], cwd=f.path, env=with_torch(f), capture_output=True, text=True,
                              timeout=60)
        rows = [line.split()[0] for line in said.stdout.splitlines()]
        check(said.returncode == 0 and rows == [str(i) for i in range(len(rows_of(f)))], said.stdout + said.stderr)


def floats_are_the_reference_s():
    """For every byte value, the client's floats and the page's are those that the processors of transformers make."""
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "..", "golden", "floats.json"), encoding="utf-8") as kept:
        wanted = {k: np.frombuffer(bytes.fromhex(v), ">f4").astype("<f4") for k, v in json.load(kept).items()}
    pixels = np.arange(256, dtype=np.uint8)
    for resampler, values in wanted.items():
        got = client.floats(pixels, resampler)
        check(got.dtype == np.float32 and (got == values).all(), f"{resampler}: {got[got != values]}")
    check((client.floats(pixels) == wanted["torch"]).all(), "the default is not the reference's default")
    check((client.floats(pixels, "pillow13") == wanted["pillow"]).all(), "Pillow 13 only resizes otherwise")
    check((wanted["torch"] != wanted["pillow"]).sum() == 128, "the two processors are the same")
    with open(os.path.join(PROTO, "python.md"), encoding="utf-8") as page:
        line = re.search(r"pixel_values = (\(.*\))\.expand", page.read())[1]
    patches = types.SimpleNamespace(float=lambda: pixels.astype(np.float32))
    check((eval(line, {"patches": patches}) == wanted["torch"]).all(), f"the page's {line} is another arithmetic")


def answers(*given):
    """A daemon that gives these answers, as (kind, row, JSON), to the first peer that says HELLO."""
    def serve(socket):
        peer = socket.recv_multipart()[0]
        for kind, row, said in given:
            text = json.dumps(said).encode()
            socket.send_multipart([peer, messages.HEADER.pack(b"TSRA", 1, kind, row, 0, 0, len(text), 0, bytes(16), bytes(8)), text])
        socket.recv_multipart()  # BYE
    return serve


def rows_out_of_order_are_refused():
    """The client in Python refuses rows out of order as client.c does (test_row_order.c): from a daemon that sends them, and by
    its rules alone."""
    def refused(what, words):
        try:
            what()
        except ValueError as e:
            check(words in str(e), f"{e}, wanted: {words}")
        else:
            check(False, f"taken, wanted: {words}")

    def order(welcome, cursor=None, start_row=0, rank=0, ranks=1, taken=()):
        o = row_order.Order(welcome, cursor, start_row, rank, ranks)
        for number in taken:
            o.take(number)
        return o
    steps = {"row": 0, "global_batch_size": 4}
    one = order({"row": 40}, '{"row": 40}', taken=(40, 41))
    refused(lambda: one.take(43), "row 43 came where row 42 was expected")
    refused(lambda: one.take(41), "row 41 came where row 42 was expected")
    refused(lambda: order({"row": 0}, {"row": 40}), "begins at row 0 but row 40 was asked for")
    rounds = order({"row": 102, "recording": {"first": 100, "rows": 3}}, {"row": 102}, taken=(102, 100, 101, 102))
    refused(lambda: rounds.take(103), "row 103 came where row 100 was expected")
    second = order(steps, rank=1, ranks=2, taken=(1,))
    refused(lambda: second.take(0), "row 0 came where row 2 was expected")
    refused(lambda: second.take(4), "row 4 of step 1 came after 1 of this rank's 2 rows of step 0")
    second.take(2)
    refused(lambda: second.take(3), "row 3 of step 0 came after 2")
    second.take(6)
    with tempfile.TemporaryDirectory() as folder:
        context = zmq.Context()
        for said, words in ((((messages.WELCOME, 0, steps), (messages.ROW, 1, {})), "row 1 came where row 0 was expected"),
                            (((messages.ROW, 0, {}),), "a row came before WELCOME"),
                            (((messages.WELCOME, 0, dict(steps, row=8)),), "begins at row 8 but row 0 was asked for")):
            socket, end = context.socket(zmq.ROUTER), "ipc://" + os.path.join(folder, "d.sock")
            socket.setsockopt(zmq.RCVTIMEO, 30000)
            socket.bind(end)
            daemon = threading.Thread(target=answers(*said), args=(socket,))
            daemon.start()
            refused(lambda: next(client.connect(end, timeout=60.0)), words)
            daemon.join()
            socket.close()
        context.term()


def welcome(folder, **more):
    """What a consumer is told after it has said this."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, 30000)
    socket.connect(endpoint(folder))
    text = json.dumps(dict({"version": 3, "stream": "train", "credit_bytes": 1}, **more)).encode()
    socket.send_multipart([messages.HEADER.pack(b"TSRA", 1, messages.HELLO, 0, 0, 0, len(text), 0, bytes(16),
                                              bytes(8)), text])
    parts = socket.recv_multipart()
    check(messages.header(parts[0])[0] == messages.WELCOME, parts)
    socket.close()
    context.term()
    return json.loads(parts[1])


def many_epochs_begin_like_one():
    """A million epochs would take minutes to plan, but the first row does not wait for them."""
    with Folder() as f:
        with Daemon(f.config):
            up(f)
            endless = rows_of(f, 60)
            check(welcome(f)["rows"] == -1, "a stream without end says how long it is")
        with Daemon(f.config, "--training.epochs", "1000000"):
            up(f)
            said = welcome(f, rows_later=True)
            check(said["rows"] is None and said["epoch_rows"] < 40, f"{said['rows']} of {said['epoch_rows']} rows")
            check([r[:3] for r in rows_of(f, 60)] == [r[:3] for r in endless], "other rows than without end")
        with Daemon(f.config, "--training.epochs", "2.5"):
            up(f)
            later = welcome(f, rows_later=True)["rows"]
            told = welcome(f)["rows"]
            rows = rows_of(f)
            check(later is None and told == len(rows), f"{told} rows were promised, {len(rows)} came")
            full = sum(len(r[2]) > 0 for r in rows)
            check([r[:3] for r in rows[:full]][:60] == [r[:3] for r in endless[:full]], "other rows than without end")
            check(welcome(f, rows_later=True)["rows"] == told, "counted, and not told")


def status_or_none(folder):
    try:
        return status(folder)
    except AssertionError:
        return None


def rows_of_another_version_are_refused():
    """A build that packs otherwise has other samples in its rows; continuing there would repeat some and lose some."""
    with Folder(**ONE_EPOCH) as f, Daemon(f.config):
        up(f)
        cursor = json.loads(rows_of(f, 3)[-1][3])
        rows_of(f, 1, cursor=cursor)
        for other, words in (({k: v for k, v in cursor.items() if k != "plan"}, "plan"), (dict(cursor, plan=cursor["plan"] + 1), "packed by version")):
            try:
                rows_of(f, 1, cursor=other)
            except RuntimeError as refused:
                check(words in str(refused), f"the reason: {refused}")
            else:
                raise AssertionError(f"a cursor of another packing was taken: {other}")


def another_data_set_is_refused():
    with Folder(**ONE_EPOCH) as f:
        with Daemon(f.config):
            up(f)
            cursor = json.loads(rows_of(f, 3)[-1][3])
        os.utime(f.train_images()[0], (1, 1))  # a new time makes the daemon build the index again, and ...
        with open(f.train_images()[0], "ab") as x:
            x.write(b"\0")  # ... its digest differs, because the file does
        with Daemon(f.config):
            up(f)
            try:
                rows_of(f, 1, cursor=cursor)
            except RuntimeError as refused:
                check("index" in str(refused), f"the reason: {refused}")
            else:
                raise AssertionError("a cursor of other data was taken")


def train_and_eval_side_by_side():
    with Folder() as f, Daemon(f.config):
        up(f)
        train = client.connect(endpoint(f), timeout=60.0)
        first = next(train)
        held_out = rows_of(f, stream="eval")
        ids = [i for r in held_out for i in r[2]]
        check(len(ids) == status(f)["eval"]["samples"] and sorted(ids) == list(range(len(ids))),
              "eval does not give every held-out sample once")
        check(next(train)["number"] == first["number"] + 1, "train did not go on")
        train.close()


def a_cursors_list_is_its_consumers_own():
    """A quarantine list is part of one consumer's stream; what a worker finds bad counts for all."""
    with Folder(**ONE_EPOCH) as f:
        picture = f.train_images()[0]
        bad = set(f.questions_of(picture))
        with open(picture, "rb") as i:
            whole = i.read()
        with open(picture, "wb") as o: # the header stays, so the damage is found when it is decoded
            o.write(whole[:len(whole) * 2 // 3])
        with Daemon(f.config):
            up(f)
            alone = rows_of(f)
            good, other = (next(int(i) for i in alone[k][2] if i not in bad) for k in (1, 2))
            cursor = dict(json.loads(alone[0][3]), row=0, quarantine=[{"id": good, "cause": "told"}])
        with Daemon(f.config):
            up(f)
            told = client.connect(endpoint(f), timeout=60.0, cursor=cursor, quarantine=[{"id": other, "cause": "merged"}])
            first = next(told) # from here on the daemon knows its list
            plain = rows_of(f)
            rest = [first, *told]
        check([r[:3] for r in plain] == [r[:3] for r in alone],
              "a list that one consumer brought changed another's rows")
        for rows, wanted in (([r[4] for r in plain], bad), ([own_of(r) for r in rest], bad | {good, other})):
            own = set().union(*rows)
            check(own == wanted, f"the rows name {own}, wanted {wanted}")
        check(set(rest[-1]["bad_samples"]) == bad | {good, other}, f"it knows {list(rest[-1]['bad_samples'])}")
        check([r[3] for r in plain] == [r[3] for r in alone] and rest[-1]["cursor"] == alone[-1][3], "a list is in a cursor")
        differ = [a[0] for a, r in zip(alone, rest, strict=True) if a[1] != fingerprint(r)]
        mine = [a[0] for a in alone if good in a[2] or other in a[2]]
        check(differ == mine, f"rows {differ} differ from a stream without the list, wanted {mine}")


def eval_files_that_hang_stop_no_one_else():
    """The held-out data is on a file system that does not answer: a pipe that nothing writes to."""
    with Folder(**ONE_EPOCH) as f:
        with Daemon(f.config):
            up(f)
            wanted = [r[1] for r in rows_of(f)]
        questions = f.file("data/v2_OpenEnded_mscoco_val2014_questions.json")
        with open(questions, "rb") as i:
            text = i.read()
        os.remove(questions)
        os.mkfifo(questions)
        with Daemon(f.config) as d:
            up(f)
            held_out = subprocess.Popen([sys.executable, "-B", "-c",
                                         "import sys\n"
                                         f"sys.path.insert(0, {PYTHON!r})\n"
                                         "from tessera import client\n"
                                         f"print(len(list(client.connect({endpoint(f)!r}, "
                                         "'eval', timeout=60))))"], stdout=subprocess.PIPE)
            wait_for(lambda: status(f)["eval"]["state"] == "being opened", "the eval section")
            check([r[1] for r in rows_of(f)] == wanted, "the train stream stopped or differs")
            check(held_out.poll() is None, "the held-out consumer ended before there were data")
            with open(questions, "wb") as o:
                o.write(text)
            check(int(held_out.communicate(timeout=60)[0]) > 0, "no held-out rows")
            check(status(f)["eval"]["state"] == "ready", "")
        with Daemon(f.config) as d: # again, with no writer at all: the daemon must still stop
            up(f)
            def ask():
                with contextlib.suppress(RuntimeError):  # the daemon stops
                    next(client.connect(endpoint(f), "eval", timeout=120.0))
            asks = threading.Thread(target=ask)
            asks.start()
            wait_for(lambda: status(f)["eval"]["state"] == "being opened", "the eval section")
            check(d.stop() == 0, f"it does not stop\n{d.said()}")
            asks.join()


def a_slow_consumer_costs_only_itself():
    credit = 1 << 20
    with Folder() as f, Daemon(f.config) as d:
        up(f)
        slow = client.connect(endpoint(f), timeout=60.0, credit_bytes=credit)
        next(slow)
        quick = rows_of(f, 300)
        check(len(quick) == 300, "the quick consumer waits for the slow one")
        sessions = status(f)["consumers"]
        for s in sessions:
            check(s["unreturned_bytes"] <= credit and s["credit_bytes"] <= credit,
                  f"more than its credit is under way: {s}")
        before = status(f)["rss_bytes"]
        time.sleep(0.5)
        check(status(f)["rss_bytes"] - before < 4 << 20, "the daemon grows while nobody reads")
        numbers = [next(slow)["number"] for _ in range(20)]
        check(numbers == list(range(1, 21)), f"the slow consumer lost rows: {numbers}")
        slow.close()
        check(d.p.poll() is None, d.said())


def one_that_vanishes_is_forgotten():
    """A consumer that was killed with its credit used up says no BYE and gets no more rows; only a message from the
    daemon shows that it is gone."""
    with Folder() as f, Daemon(f.config) as d:
        up(f)
        code = ("import sys, time; sys.path.insert(0, sys.argv[2]); from tessera import client; "
                "s = client.connect(sys.argv[1], credit_bytes=1 << 20); next(s); "
                "print('on', flush=True); time.sleep(60)")
        p = subprocess.Popen([sys.executable, "-c", code, endpoint(f), PYTHON],
                             stdout=subprocess.PIPE)
        check(p.stdout.readline() == b"on\n", "the consumer did not get a row")
        p.kill()
        p.wait()
        wait_for(lambda: not status(f)["consumers"], "the session is closed", 40)
        check(d.p.poll() is None, d.said())


main(every_sample_once, a_row_given_again_has_its_cursor, ranks_share_samples_that_are_no_whole_steps,
     many_epochs_begin_like_one, ranks_share_every_step, resumed_exactly, resumed_in_a_later_epoch,
     the_page_s_lines_for_pytorch, the_readme_s_lines_for_pytorch, floats_are_the_reference_s,
     rows_out_of_order_are_refused, another_data_set_is_refused, rows_of_another_version_are_refused,
     train_and_eval_side_by_side, a_cursors_list_is_its_consumers_own, eval_files_that_hang_stop_no_one_else,
     a_slow_consumer_costs_only_itself, one_that_vanishes_is_forgotten)
