# SPDX-License-Identifier: Apache-2.0
"""Plain text: every document comes once and whole, however it is compressed, long ones in parts; the stream is the
same from any entry and with any number of workers."""

import gzip
import json
import os
import random
import subprocess
import sys

import zstandard
from formats import fingerprint, in_data, options, stream_of, write_lines
from prepd_flow import BIN, Daemon, Folder, check, digest, main, run, wait_for

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402


def form(path, **more):
    return options(data__format="text", data__path=path, training__epochs=1, **more)


def documents(n, seed=5):
    rng = random.Random(seed)
    words = ["sky", "blue", "the", "a", "photograph", "of", "é", "1234", "\n", "zebra", "und so weiter"]
    return [" ".join(rng.choice(words) for _ in range(rng.choice((3, 20, 60, 600 if k % 50 == 0 else 30))))
            for k in range(n)]


def lines_of(texts):
    return "".join(json.dumps({"text": t, "url": "x"}) + "\n" for t in texts).encode()


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)
    return path


def compressed(f, texts):
    """The same lines as gzip of many members and as zstd of many frames."""
    data = lines_of(texts)
    pieces = [data[k:k + 20000] for k in range(0, len(data), 20000)]
    return (write(in_data(f, "t.json.gz"), b"".join(gzip.compress(p) for p in pieces)),
            write(in_data(f, "t.jsonl.zst"), b"".join(zstandard.compress(p) for p in pieces)))


def every_document_once_and_whole():
    with Folder(images=16) as f:
        texts = documents(400)
        plain = write_lines(in_data(f, "t.jsonl"), [{"text": t} for t in texts])
        tokens = run_tokenize(f, texts)
        for path in (plain, *compressed(f, texts)):
            rows = stream_of(f, form(path))
            got = {}
            for r in rows:
                check(len(r["input_ids"]) <= 512, "a row over its budget")
                for k, sample in enumerate(r["doc_sample_id"]):
                    at, end = r["cu_seqlens"][k], r["cu_seqlens"][k + 1]
                    got.setdefault(int(sample), []).append((int(r["doc_part"][k]), r["input_ids"][at:end].tolist()))
                    check(r["labels"][at] == -100, "the first token of a document has a label")
                    check((r["labels"][at + 1:end] == r["input_ids"][at + 1:end]).all(), "all is trained")
            check(sorted(got) == list(range(len(texts))), f"{path}: not every document came")
            for sample, parts in got.items():
                parts.sort()
                check([p for p, _ in parts] == list(range(len(parts))), f"parts of {sample}: {parts}")
                check(sum((i for _, i in parts), []) == tokens[sample], f"{path}: document {sample}")
            check(max(len(p) for p in got.values()) > 1, "no document was split")


def run_tokenize(f, texts):
    said = subprocess.run([BIN, "tokenize", "--model", f.file("data/model"), "--jsonl"], text=True,
                          input="".join(json.dumps(t + "<|endoftext|>") + "\n" for t in texts),
                          capture_output=True, check=True).stdout
    return [json.loads(line) for line in said.splitlines()]


def the_same_stream_resumed_and_by_any_workers():
    with Folder(images=16) as f:
        texts = documents(600)
        for path in compressed(f, texts):
            args = form(path, data__window=64)
            whole = [fingerprint(r) for r in stream_of(f, args)]
            rows = stream_of(f, args)
            for stop in (3, len(rows) // 2):
                rest = stream_of(f, args, cursor=json.loads(rows[stop - 1]["cursor"]))
                check([fingerprint(r) for r in rest] == whole[stop:], f"resumed after {stop} rows")
            check(len({digest(f.config, "--steps", "4", *args, "--prepd.workers", str(w))
                       for w in (1, 3)}) == 1, "the number of workers changes the stream")
            two = digest(f.config, "--steps", "4", *args)
            check(digest(f.config, "--steps", "4", *args, "--training.seed", "9") != two, "seed")


def started(f, args):
    """Rows of another start, and whether it took its places from the one before."""
    with Daemon(f.config, *args) as d:
        wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
        stream = client.connect("ipc://" + f.file("d.sock"), timeout=60.0)
        rows = [fingerprint(next(stream)) for _ in range(24)]
        stream.close()
        said = d.said()
    return rows, "places of documents are taken from the last start" in said, said


def the_next_start_unpacks_nothing():
    """Places and restart points (in one gzip member, so in the middle of it) are kept beside the index."""
    with Folder(images=16) as f:
        rng = random.Random(3)
        some = [" ".join(rng.choice(("sky", "sea", "zebra", "1234", "und so weiter")) for _ in range(9000))
                for _ in range(40)]
        texts = [f"{k} " + some[k % 40] for k in range(340)]
        data = gzip.compress(lines_of(texts), 1)
        check(len(lines_of(texts)) > 17 << 20, "less than three restart points")
        path = write(in_data(f, "big.jsonl.gz"), data)
        cache = f.file("cache")
        os.mkdir(cache)
        args = form(path, prepd__cache_dir=cache, data__window=64)
        first, kept, said = started(f, args)
        check(not kept, said)
        rows, kept, said = started(f, args)
        check(kept, said)
        check(rows == first, "other rows with the cache")
        name = next(n for n in os.listdir(cache) if n.startswith("text-"))
        with open(os.path.join(cache, name), "rb") as x:
            whole = x.read()
        places = 8 + int.from_bytes(whole[:8], "little") + 16
        for broken in (whole[:len(whole) // 2], b"{" + whole,
                       whole[:places] + b"\xff" * 64 + whole[places + 64:]):
            write(os.path.join(cache, name), broken)
            rows, kept, said = started(f, args)
            check(not kept and "documents are read again" in said, said)
            check(rows == first, "other rows after a damaged cache")
            with open(os.path.join(cache, name), "rb") as x:
                check(x.read() == whole, "the cache was not made again")
        texts.reverse()
        write(path, gzip.compress(lines_of(texts), 1))
        rows, kept, said = started(f, args)
        check(not kept and rows != first, f"a changed file is not read again\n{said}")


def one_large_frame_is_told():
    """It has one place where unpacking can begin; of many frames each is one."""
    with Folder(images=16) as f:
        parts = [(b" " * (1 << 20) + b"\n") * 22 + lines_of([f"text {k}"] * 20) for k in range(3)]  # blank lines are not documents
        for data, told in ((zstandard.compress(b"".join(parts)), True), (b"".join(map(zstandard.compress, parts)), False),
                           (gzip.compress(b"".join(parts), 1), False)):
            path = write(in_data(f, "far.jsonl.zst"), data)
            p = subprocess.run([BIN, "plan", "-c", f.config, *form(path)], capture_output=True, text=True)
            check(p.returncode == 0, p.stdout + p.stderr)
            check(("up to 66 MiB apart" in p.stderr and "pzstd" in p.stderr) == told, p.stderr)


def refused_or_named():
    with Folder(images=16) as f:
        path = write(in_data(f, "t.jsonl"), b'{"text": "good"}\n{"text": ""}\n{"txt": 1}\n{"text": "a\n' + lines_of(["x " * 600]))
        said = run("check", "-c", f.config, *form(path), code=65)
        for word in ('t.jsonl:2: "text" is empty', 't.jsonl:3: "text" is missing', "t.jsonl:4: not JSON",
                     "checked 5 samples, 3 bad"):
            check(word in said, f"{word!r} is not in\n{said}")
        short = gzip.compress(lines_of(["some text"] * 50))[:-9]
        said = run("check", "-c", f.config, *form(write(in_data(f, "s.jsonl.gz"), short)), code=65)
        check("s.jsonl.gz" in said and "stops early" in said, said)
        bad = bytearray(zstandard.compress(lines_of(documents(50))))
        bad[40] ^= 255
        said = run("check", "-c", f.config, *form(write(in_data(f, "s.jsonl.zst"), bytes(bad))), code=65)
        check("zstd data are damaged" in said, said)


def plain_txt_files():
    """The same documents as JSON lines, as one .txt file and as a folder of .txt files give the same rows, resumed and
    by any workers, here and elsewhere, and a bad one is named by file and line."""
    with Folder(images=16) as f:
        texts = [f"{k}: " + "the zebra and\nthe sky é " * (1 + k % 40) + "." for k in range(120)]
        folder = in_data(f, "books")
        os.mkdir(folder)
        for k, text in enumerate(texts):
            write(os.path.join(folder, f"{k:03}.txt"), b"\xef\xbb\xbf" * (k % 2) + text.replace("\n", "\r\n" if k % 3 else "\n").encode())
        book = write(in_data(f, "book.txt"), "\n \n".join(texts).encode())
        lines = write_lines(in_data(f, "t.jsonl"), [{"text": t} for t in texts])
        pixels = digest(f.config, "--steps", "3", *form(lines))
        for path in (book, folder):
            args = form(path)
            check(digest(f.config, "--steps", "3", *args) == pixels, f"{path}: other rows than of JSON lines")
            check(digest(f.config, "--steps", "3", *args, "--prepd.workers", "1") == pixels, f"{path}: the number of workers changes the stream")
            rows = stream_of(f, args)
            rest = stream_of(f, args, cursor=json.loads(rows[4]["cursor"]))
            check([fingerprint(r) for r in rest] == [fingerprint(r) for r in rows[5:]], f"{path}: resumed after 5 rows")
            check("checked 120 samples, 0 bad" in run("check", "-c", f.config, *args), path)
        with Daemon(f.config, *form(book), "--prepd.workers", "0", "--data.ship", "true") as d:
            wait_for(lambda: os.path.exists(f.file("d.sock.workers")), d.said())
            with subprocess.Popen([BIN, "worker", "--connect", "ipc://" + f.file("d.sock.workers")], stderr=subprocess.DEVNULL) as elsewhere:
                stream = client.connect("ipc://" + f.file("d.sock"), timeout=60.0)
                got = [fingerprint(next(stream)) for _ in range(5)]
                stream.close()
                elsewhere.terminate()
        check(got == [fingerprint(r) for r in stream_of(f, form(book), n=5)], "other rows of a worker elsewhere")
        write(os.path.join(folder, "007.txt"), b"one\ntw\xff\n")
        write(os.path.join(folder, "008.txt"), b"\n")
        said = run("check", "-c", f.config, *form(folder), code=65)
        for words in ("7\t007.txt\t-\t007.txt:2: the text is not UTF-8", "8\t008.txt\t-\t008.txt: the file holds no text", "120 samples, 2 bad"):
            check(words in said, f"{words!r} is not in\n{said}")
        with Daemon(f.config, *form(folder)) as d:
            wait_for(lambda: os.path.exists(f.file("d.sock.control")), d.said())
            try:
                next(client.connect("ipc://" + f.file("d.sock"), stream="eval", timeout=60.0))
                check(False, "the documents of training were held out too")
            except RuntimeError as refused:
                check("name the held-out data in eval.path" in str(refused), str(refused))


def other_files_are_refused_once():
    """What no format reads is told in one line, with what to do."""
    with Folder(images=16) as f:
        for name, words in (("notes.md", "Plain text is read from a file whose name ends in .txt"), ("talks.csv", "CSV files are not read. Turn it into JSON lines")):
            path = write(in_data(f, name), b"question,answer\n" + b"what?,that\n" * 50)
            p = subprocess.run([BIN, "check", "-c", f.config, *form(path)], capture_output=True, text=True)
            check(p.returncode == 65 and p.stdout == "" and p.stderr.count("\n") == 1 and words in p.stderr, p.stdout + p.stderr)


def shared_c4():
    source = os.environ.get("TESSERA_SOURCE", ".")
    shared = os.environ.get("TESSERA_SHARED") or os.path.join(source, "..", "shared")
    path = os.path.join(shared, "data/text/c4-train.00000-of-00001.json.gz")
    if not os.path.exists(path):
        print("skipped: no shared C4 documents")
        return
    with Folder(images=16, **{"training.seq_len": 8192}) as f:
        said = run("check", "-c", f.config, *form(os.path.abspath(path), model__path=f.file("data/model")))
        check("checked 750 samples, 0 bad" in said, said)


def a_book_is_checked():
    """A sample of over a thousand parts is one row of the stream of samples: its text is read and sent once."""
    with Folder(images=16) as f:
        texts = ["a book: " + "the zebra and the sky " * 90000, "a line"]
        path = write_lines(in_data(f, "book.jsonl"), [{"text": t} for t in texts])
        said = run("check", "-c", f.config, *form(path))
        check("checked 2 samples, 0 bad" in said, said)


main(a_book_is_checked, every_document_once_and_whole, the_same_stream_resumed_and_by_any_workers,
     the_next_start_unpacks_nothing, plain_txt_files, other_files_are_refused_once, one_large_frame_is_told, refused_or_named, shared_c4)
