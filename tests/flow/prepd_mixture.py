# SPDX-License-Identifier: Apache-2.0
"""Mixtures: every source has its share of the samples, each source comes exactly once in each pass of its own, the
stream is the same when resumed and with any number of workers, and wrong lists are refused with the line."""

import collections
import io
import json
import os
import sys
import tarfile

from formats import fingerprint, in_data, llava, load, options, stream_of, write_lines
from prepd_flow import Daemon, Folder, check, digest, main, run, wait_for

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402


def write_list(f, text):
    with open(f.file("mix.yaml"), "w") as x:
        x.write(text)
    return options(data__format="mixture", data__path=f.file("mix.yaml"))


def sources(f, weights=(None, None, None)):
    """VQAv2 as it is, conversations elsewhere, text; returns the options and their sizes."""
    samples = load(f)
    talks = write_lines(f.file("talks.jsonl"), [llava(*s) for s in samples[:20]])
    text = write_lines(in_data(f, "text.jsonl"), [{"text": "some words " * (1 + k % 90)} for k in range(50)])
    lists = ["vqa:\n  path: data\n  format: vqav2\n",
             f"talks:\n  format: conversations\n  path: {os.path.basename(talks)}\n  images: data\n",
             f"text:\n  format: text\n  path: {text}\n"]
    for k, w in enumerate(weights):
        lists[k] += f"  weight: {w}\n" if w else ""
    return write_list(f, "".join(lists)), (len(samples), 20, 50)


def seen(rows):
    """How often each sample came; a split one is counted by its first part."""
    return collections.Counter(int(i) for r in rows for i, part in zip(r["doc_sample_id"], r["doc_part"])
                               if part == 0)


def every_sample_once_without_weights():
    with Folder(images=32) as f:
        args, sizes = sources(f)
        got = seen(stream_of(f, args + options(training__epochs=1)))
        check(got == {i: 1 for i in range(sum(sizes))}, "an epoch does not have every sample once")
        said = run("check", "-c", f.config, *args)
        check(f"checked {sum(sizes)} samples, 0 bad" in said, said)
        with open(f.file("data/model/chat_template.jinja"), "w") as x:
            x.write("{{ messages }}")  # of another model, which matters only if a source has turns
        said = run("plan", "-c", f.config, *args, code=78)
        check("does not know this chat template" in said, said)
        args = write_list(f, f"text:\n  format: text\n  path: {in_data(f, 'text.jsonl')}\n")
        run("plan", "-c", f.config, *args)


def weighted_and_exact():
    with Folder(images=32) as f:
        args, sizes = sources(f, (1, 2, 1))
        args += options(data__window=40)
        epochs = 3
        rows = stream_of(f, args + options(training__epochs=epochs))
        got, first = seen(rows), 0
        total = {}
        for k, n in enumerate(sizes):
            times = [got[i] for i in range(first, first + n)]
            check(max(times) - min(times) <= 1, f"source {k}: a sample {min(times)} to {max(times)} times")
            total[k] = sum(times)
            first += n
        check(abs(total[1] - 2 * total[0]) <= epochs, f"weights 1 to 2 gave {total}")
        check(total[1] > 20 * epochs, f"a small source with a large weight is not repeated: {total}")
        whole = [fingerprint(r) for r in rows]
        for stop in (1, len(rows) // 2):
            rest = stream_of(f, args + options(training__epochs=epochs), cursor=json.loads(rows[stop - 1]["cursor"]))
            check([fingerprint(r) for r in rest] == whole[stop:], f"resumed after {stop} rows, the rest differs")
        check(len({digest(f.config, "--steps", "6", *args, "--prepd.workers", str(w)) for w in (1, 3)}) == 1,
              "the number of workers changes the stream")
        one = digest(f.config, "--steps", "6", *args)
        check(digest(f.config, "--steps", "6", *args, "--training.seed", "3") != one, "the seed does not change the stream")
        said = run("plan", "-c", f.config, *args)
        check("source talks: 20 samples; an epoch takes 59" in said, said)


def a_weight_is_the_streams_and_not_the_indexs():
    """With another weight the index is the same and the stream another; a cursor of the old stream is refused,
    naming the weight it had."""
    with Folder(images=32) as f:
        def started(weights, cursor=None, cache="warm"):
            """Rows, and what the daemon said."""
            args, _ = sources(f, weights)
            os.makedirs(f.file(cache), exist_ok=True)
            with Daemon(f.config, *args, "--training.epochs", "1", "--prepd.cache_dir", f.file(cache)) as d:
                wait_for(lambda: os.path.exists(f.file("d.sock.control")), d.said())
                rows = client.connect("ipc://" + f.file("d.sock"), timeout=60.0, cursor=cursor)
                return [dict(r, cursor=json.loads(r["cursor"])) for r in rows], d.said()

        first, said = started((1, 2, 1))
        check("index built" in said, said)
        cursor = first[0]["cursor"]
        check(cursor["weights"] == {"vqa": 1, "talks": 2, "text": 1}, cursor)
        second, said = started((1, 3, 1))
        check("index loaded" in said and "index built" not in said, f"a weight cost an index\n{said}")
        check([fingerprint(r) for r in second] != [fingerprint(r) for r in first], "the weight does not change the stream")
        check(second[0]["cursor"]["contents"] == cursor["contents"], "another index")
        check(second[0]["cursor"]["index"] != cursor["index"], "two streams have the same identity")
        for weights, words, cache in (
                ((1, 3, 1), "source talks has weight 2, but in ", "cold"), ((1, 3, 1), " it has 3: ", "warm"),
                ((None, None, None), "source vqa has weight 1, but in ", "warm"), ((None, None, None), "it has none: ", "warm")):
            try:
                started(weights, cursor, cache)
                check(False, f"a cursor of other weights than {weights} was taken")
            except RuntimeError as refused:
                check(words in str(refused), f"{words!r} is not in {refused}")
        before = {k: v for k, v in cursor.items() if k not in ("weights", "contents")}  # a cursor of an older build
        rest, said = started((1, 2, 1), before)
        check("index loaded" in said, said)
        check([fingerprint(r) for r in rest] == [fingerprint(r) for r in first[1:]], "resumed, the rest differs")


def a_mixture_of_one_is_that_one():
    with Folder(images=32) as f:
        samples = load(f)
        with tarfile.open(in_data(f, "train.tar"), "w") as t:
            for k, (image, question, answer) in enumerate(samples):
                t.add(in_data(f, image), f"{k:04d}.jpg")
                words = json.dumps({"question": question, "answer": answer}).encode()
                info = tarfile.TarInfo(f"{k:04d}.json")
                info.size = len(words)
                t.addfile(info, io.BytesIO(words))
        talks = write_lines(in_data(f, "talks.jsonl"), [llava(*s) for s in samples])
        for name, path in (("vqav2", f.file("data")), ("conversations", talks),
                           ("webdataset", in_data(f, "train.tar"))):
            alone = digest(f.config, "--steps", "4", *options(data__format=name, data__path=path))
            args = write_list(f, f"one:\n  format: {name}\n  path: {path}\n")
            check(digest(f.config, "--steps", "4", *args) == alone, f"{name}: other rows in a mixture")
        alone = digest(f.config, "--steps", "4", "--data.group", "conversation")
        args = write_list(f, f"one:\n  path: {f.file('data')}\n  group: conversation\n") # without a format it is vqav2
        check(digest(f.config, "--steps", "4", *args) == alone, "other conversations in a mixture")


def wrong_lists_are_refused():
    with Folder(images=16) as f:
        for text, words in (("vqa:\n  path: data\n  wieght: 2\n", ("mix.yaml:3", "wieght", "trim, group")),
                            ("vqa:\n  path: data\n  weight: -2\n", ("mix.yaml:3", "above 0")),
                            ("a:\n  path: data\n  weight: 2\nb:\n  path: data\n", ("give a weight to all of them, or to none",)),
                            ("a:\n  path: nowhere\n", ("source a", "nowhere", "names no format and is read as vqav2")),
                            ("a:\n  path: data\n  group: shared_image\n", ("mix.yaml:3", "beside data.path")),
                            ("a:\n  path: data/t.jsonl\n  format: text\n  group: conversation\n",
                             ("data.group is for data with pictures",)),
                            ("a:\n  format: mixture\n  path: mix.yaml\n", ("a source cannot be a mixture itself",)),
                            ("a:\n  format: vqa\n", ("mix.yaml:2", "vqav2")), ("", ("no source",))):
            args = write_list(f, text)
            for code in (78, 66):
                try:
                    said = run("check", "-c", f.config, *args, code=code)
                    break
                except AssertionError:
                    if code == 66:
                        raise
            for word in words:
                check(word in said, f"{word!r} is not in\n{said}")


main(every_sample_once_without_weights, weighted_and_exact, a_weight_is_the_streams_and_not_the_indexs, a_mixture_of_one_is_that_one,
     wrong_lists_are_refused)
