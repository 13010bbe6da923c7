# SPDX-License-Identifier: Apache-2.0
"""WebDataset tars: the same rows as the files from which they were made, read out of the tars; every kind of text
member; bad members and damaged tars are named."""

import json
import os
import shutil
import tarfile

from formats import fingerprint, in_data, load, options, picture, stream_of, write_lines, write_tar
from prepd_flow import Folder, check, digest, main, run
from prepd_video import data_set


def form(path, **more):
    return options(data__format="webdataset", data__path=path, **more)


def shards(f, samples, each, form_of, prefix):
    """Tars of `each` samples, the picture before or after its words."""
    for first in range(0, len(samples), each):
        members = []
        for k, (image, question, answer) in enumerate(samples[first:first + each]):
            key = f"{prefix}{first + k:06d}"
            pair = [(key + ".jpg", picture(f, image)), (key + ".json", {"question": question, "answer": answer})]
            members += pair if k % 2 else pair[::-1]
        write_tar(in_data(f, f"set-{first // each:03d}.tar"), members, form_of)
    return in_data(f, "set-{000..%03d}.tar" % ((len(samples) - 1) // each))


def same_rows_as_vqav2():
    with Folder() as f:
        samples = load(f)
        wanted = digest(f.config, "--steps", "8")
        for kind, prefix in ((tarfile.USTAR_FORMAT, "a/"), (tarfile.GNU_FORMAT, "long/" * 40 + "name"),
                             (tarfile.PAX_FORMAT, "né/" + "x" * 120)):
            path = shards(f, samples, 50, kind, prefix)
            check(digest(f.config, "--steps", "8", *form(path)) == wanted, f"tar format {kind}: other rows")
        check(digest(f.config, "--steps", "8", *form(path), "--prepd.workers", "3") == wanted, "3 workers")
        os.mkdir(f.file("moved"))
        for name in os.listdir(f.file("data")):
            if name.startswith("set-"):
                os.rename(in_data(f, name), f.file("moved/train-" + name))
        moved = form(f.file("moved"))
        check(digest(f.config, "--steps", "8", *moved) == wanted, "a folder of shards")
        said = run("check", "-c", f.config, *moved, "--hash")
        check(f"checked {len(samples)} samples, 0 bad" in said, said)
        hashes = {line.split("\t")[1] for line in said.splitlines() if line.startswith("hash\t")}
        check("-" not in hashes and len(hashes) == len({s[0] for s in samples}), f"{len(hashes)} hashes")


def every_kind_of_words():
    with Folder(images=16) as f:
        a, b = (picture(f, s[0]) for s in (load(f)[0], load(f)[-1]))
        path = write_tar(in_data(f, "k.tar"), [
            ("1.jpg", a), ("1.txt", "a caption\n"), ("2.cls", "7"), ("2.png", b),
            ("3.0.jpg", a), ("3.1.jpg", b), ("3.json", {"conversations": [
                {"from": "human", "value": "<image><image>Same?"}, {"from": "gpt", "value": "no"}]}),
            ("4.jpg", a), ("4.json", {"width": 3}), ("4.txt", "words beside facts"),
            ("5.jpg", a), ("5.json", {"caption": "in json"}), ("6.json", {"question": "2+2?", "answer": "4"}),
            ("7.jpg", a), ("7.json", {"question": "no chat", "messages": None}), ("7.txt", "words"),
            ("README", "no key")])
        args = form(path, data__prompt="Describe it.")
        check("checked 7 samples, 0 bad" in run("check", "-c", f.config, *args), "check")
        for index, images in enumerate((1, 1, 2, 1, 1, 0, 1)):
            said = run("sample", "-c", f.config, "--index", str(index), "--out", f.file("s"), "--overwrite", *args)
            check(said.rstrip().endswith(f"{images} images"), said)
        one = digest(f.config, "--steps", "1", *args)
        check(digest(f.config, "--steps", "1", *form(path)) != one, "data.prompt changes nothing")


def videos_in_tars():
    """The rows of the same records with their own files, whatever reads them."""
    with Folder(images=32) as f:
        path, n, _ = data_set(f, 6)
        with open(path) as x:
            records = [r for r in map(json.loads, x) if "dump" not in json.dumps(r)]  # a folder is not a member of a tar
        members = []
        for k, r in enumerate(records):
            names = [p["video"] for p in r["messages"][0]["content"] if "video" in p] if "messages" in r else \
                [r[kind] for kind in ("video", "image") if kind in r]
            members += [(f"{k:03}.{i}{os.path.splitext(name)[1]}", picture(f, name)) for i, name in enumerate(names)]
            members.append((f"{k:03}.json", r))
        args = form(write_tar(in_data(f, "v.tar"), members), training__epochs=1)
        files = options(data__format="video", data__path=write_lines(in_data(f, "same.jsonl"), records), training__epochs=1)
        want = [fingerprint(r) for r in stream_of(f, files)]
        check([fingerprint(r) for r in stream_of(f, args)] == want, "other rows than from files")
        check(len({digest(f.config, "--steps", "3", *args, "--prepd.workers", str(w)) for w in (1, 3)}) == 1, "workers")
        clip, still = members[0][1], picture(f, load(f)[0][0])
        turns = [{"role": "user", "content": "<image><video>?"}, {"role": "assistant", "content": "x"}]
        bad = write_tar(in_data(f, "w.tar"), [
            ("a.avi", clip), ("a.txt", "a caption"), ("b.avi", clip), ("b.jpg", still), ("b.json", {"messages": turns}),
            ("c.avi", clip[:len(clip) // 2]), ("c.txt", "cut short"), ("d.jpg", still), ("d.mp4", clip),
            ("d.json", {"messages": turns})])
        said = run("check", "-c", f.config, *form(bad), code=65)
        for words in ("w.tar:b: its texts show <image> as number 1, but that member is of the other kind", "w.tar:c.avi",
                      "checked 4 samples, 2 bad"):
            check(words in said, f"{words!r} is not in\n{said}")


def questions_of_one_picture_stand_in_an_array():
    """They are the samples, and share the pictures, that records in a file are and share."""
    with Folder(images=16) as f:
        asked, members, records = {}, [], []
        for image, question, answer in load(f):
            asked.setdefault(image, []).append({"question": question, "answer": answer})
        first, second, *_ = asked
        for k, (image, several) in enumerate(asked.items()):
            members += [(f"{k:03}.jpg", picture(f, image)), (f"{k:03}.json", several if len(several) > 1 else several[0])]
            records += [{"image": image, **r} for r in several]
        talk = {"messages": [{"role": "user", "content": "<image> and <image>?"}, {"role": "assistant", "content": "two"}]}
        same = {"question": "Same?", "answer": "no"}
        members += [("pair.0.jpg", picture(f, first)), ("pair.1.jpg", picture(f, second)),
                    ("pair.json", [talk, same, {"caption": "both"}])]
        records += [{"images": [first, second], **r} for r in (talk, same, {"question": "<image><image>Describe it.", "answer": "both"})]
        path, file = write_tar(in_data(f, "q.tar"), members), write_lines(in_data(f, "q.jsonl"), records)
        for group in ("shared_image", "shared_prefix"):
            more = {"training__epochs": 1, "data__prompt": "Describe it.", "data__group": group}
            want = stream_of(f, options(data__format="conversations", data__path=file, **more))
            check([fingerprint(r) for r in stream_of(f, form(path, **more))] == [fingerprint(r) for r in want],
                  f"{group}: other rows than of a file")
            items = sum(len(r["grid_thw"]) for r in want)
            check(items < len(records) and any("doc_prefix" in r for r in want) == (group == "shared_prefix"),
                  f"{group}: {items} pictures of {len(records)} samples")
        check(len({digest(f.config, "--steps", "2", *form(path, **more), "--prepd.workers", str(w)) for w in (1, 3)}) == 1, "workers")
        a, good = picture(f, first), asked[first][0]
        bad = write_tar(in_data(f, "bad.tar"), [
            ("a.jpg", a), ("a.json", [good, {"question": "and?"}, 7]), ("b.jpg", a), ("b.json", []),
            ("c.jpg", a), ("c.json", [good]), ("c.txt", "a text comes first"), ("d.jpg", a), ("d.json", [good] * 5)])
        said = run("check", "-c", f.config, *form(bad), code=65)
        for words in ("bad.tar:a, record 2: expected ", "bad.tar:a, record 3: expected ",
                      "bad.tar:b: the array in its .json holds no record", "checked 10 samples, 3 bad"):
            check(words in said, f"{words!r} is not in\n{said}")
        check("checked 6 samples" in run("check", "-c", f.config, *form(bad, data__limit=6), code=65), "data.limit")


def bad_ones_are_named():
    with Folder(images=16) as f:
        a = picture(f, load(f)[0][0])
        path = write_tar(in_data(f, "b.tar"), [
            ("good.jpg", a), ("good.txt", "x"), ("mute.jpg", a), ("broken.jpg", a), ("broken.json", '{"a": 1,\n]'),
            ("lost.jpg", a[:200]), ("lost.txt", "cut short"), ("empty.jpg", a), ("empty.txt", " \n"),
            ("count.jpg", a), ("count.json", {"messages": [{"role": "user", "content": "q"}]}),
            ("blind.txt", "no picture"),
            ("latin.jpg", a), ("latin.txt", "d\xe9j\xe0".encode("latin-1")), ("twice.jpg", a), ("twice.jpg", a), ("twice.txt", "x")])
        said = run("check", "-c", f.config, *form(path), code=65)
        for words in ("b.tar:mute: the sample has no .json", "b.tar:broken: .json, line 2", "b.tar:lost.jpg",
                      "b.tar:empty: its text is empty", "b.tar:count: its texts show 0 images",
                      "b.tar:blind: the sample has neither", "b.tar:latin: its text is not UTF-8", "b.tar:twice: it has two members of the same name", "checked 9 samples, 8 bad"):
            check(words in said, f"{words!r} is not in\n{said}")
        with open(path, "rb") as x:
            data = x.read()
        for name, bad, words in (("cut", data[:len(data) // 2], "stops early"),
                                 ("noise", data[:110] + b"7" + data[111:], "not a tar header"),
                                 ("text", b"no tar at all" * 100, "checksum"), ("gz", b"\x1f\x8b" + data, "is compressed")):
            with open(in_data(f, name + ".tar"), "wb") as x:
                x.write(bad)
            said = run("check", "-c", f.config, *form(in_data(f, name + ".tar")), code=65)
            check(words in said and name + ".tar" in said, f"{name}: {said}")
        latin = os.fsdecode(b"train-\xe9")
        os.makedirs(in_data(f, "shards"))
        os.makedirs(in_data(f, latin))
        for odd in (f"shards/{latin}.tar", f"{latin}/train.tar"):
            shutil.copyfile(path, in_data(f, odd))
        said = run("plan", "-c", f.config, *form(in_data(f, "shards")), code=65)
        check("name of the tar is not UTF-8" in said, said)
        said = run("plan", "-c", f.config, *form(in_data(f, latin)), code=78)
        check("folder's name is not UTF-8" in said, said)
        said = run("check", "-c", f.config, *form(in_data(f, "none-{00..01}.tar")), code=66)
        check("none-00.tar" in said, said)


main(same_rows_as_vqav2, every_kind_of_words, videos_in_tars, questions_of_one_picture_stand_in_an_array, bad_ones_are_named)
