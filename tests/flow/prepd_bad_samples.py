# SPDX-License-Identifier: Apache-2.0
"""A bad sample costs only itself: it is named, the others are streamed, and nothing waits for it."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import urllib.request

from faults import trap
from prepd_flow import BIN, SANITIZED, Daemon, Folder, check, digest, free_ports, listed, main, run, wait_for

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402


def damage(folder):
    """Makes four kinds of bad files; returns {image: a word that its cause must contain}."""
    images = folder.train_images()
    truncated, empty, missing, text = images[3], images[10], images[17], images[24]
    with open(truncated, "r+b") as f:
        f.truncate(os.path.getsize(truncated) // 2)
    open(empty, "wb").close()
    os.remove(missing)
    with open(text, "w") as f:
        f.write("not a picture\n" * 50)
    return {truncated: "", empty: "empty", missing: "No such file", text: ""}


def bad_files_are_named_and_cost_themselves():
    with Folder() as f:
        bad = damage(f)
        wanted = {i: (image, word) for image, word in bad.items() for i in f.questions_of(image)}
        check(len(wanted) >= 4, "the damaged pictures have no questions")
        out = run("check", "-c", f.config, code=65)
        found = listed(out)
        check(set(found) == set(wanted), f"check lists {sorted(found)}, bad are {sorted(wanted)}\n"
              f"{out}")
        for i, (image, word) in wanted.items():
            check(word in found[i], f"sample {i}: cause {found[i]!r} does not say {word!r}")
            check(os.path.basename(image) in out, f"{image} is not named")
        text = run("sample", "-c", f.config, "--index", str(min(wanted)), "--out",
                   f.file("s.safetensors"), code=65)
        check(found[min(wanted)] in text, f"sample does not say why: {text}")
        good = next(i for i in range(100) if i not in wanted)
        run("sample", "-c", f.config, "--index", str(good), "--out", f.file("s.safetensors"))
        one = digest(f.config, "--steps", "10", "--prepd.workers", "1")
        three = digest(f.config, "--steps", "10", "--prepd.workers", "3")
        check(one == three, "bad samples make the stream depend on the workers")


def samples_that_kill_their_workers():
    with trap():
        with Folder(**{"prepd.sample_timeout": 0.3, "prepd.solo_deaths": 1,
                       "data.limit": 60}) as f:
            images = f.train_images()
            marks = {images[2]: ("abort", "signal 6"), images[5]: ("exit", "exit() in the middle"),
                     images[8]: ("hang", "longer than 0.3 s"), images[11]: ("header", "signal 6"),
                     images[14]: ("fault", "exit code 1" if SANITIZED else "signal 11")}  # a sanitizer handles faults itself
            for image, (mark, _) in marks.items():
                with open(image, "ab") as x:
                    x.write(b"POISON:" + mark.encode())
            wanted = sorted(i for image in marks for i in f.questions_of(image))
            found = listed(run("check", "-c", f.config, code=65))
            check(sorted(found) == wanted, f"check lists {sorted(found)}, poison is {wanted}")
            for image, (mark, words) in marks.items():
                check(all(words in found[i] for i in f.questions_of(image)), f"{mark}: {[found[i] for i in f.questions_of(image)]}")
            one = digest(f.config, "--steps", "2", "--prepd.workers", "1")
            three = digest(f.config, "--steps", "2", "--prepd.workers", "3")
            check(one == three, "samples that kill workers make the stream depend on their number")


def a_bad_header_is_known_at_its_second_loss():
    """The first lease reports only a few of its records, the second one each of them, so no third worker is lost
    before the picture is tried alone. On a busy machine the last words of a dying worker may come late; then it
    is tried once more."""
    with trap():
        with Folder(images=200, **{"prepd.workers": 2, "prepd.solo_deaths": 1}) as f:
            bad = f.train_images()[20]
            check(os.path.getsize(bad) < 16000, "the mark is behind what is read for a header")
            with open(bad, "ab") as x:
                x.write(b"POISON:header")
            gone = []
            while 3 not in gone:
                shutil.rmtree(f.file("data/.tessera"), ignore_errors=True)
                with Daemon(f.config) as d:
                    wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
                    next(iter(client.connect("ipc://" + f.file("d.sock"), timeout=60.0)))
                    gone.append(d.said().count("worker gone"))
                    check(len(gone) < 4, f"{gone} workers were lost to one picture\n{d.said()}")


def too_many_bad_samples_stop_the_run():
    """8 % are bad and the default allows 5 %. With 4 % the run continues to the end of the epoch."""
    with Folder(images=800, **{"prepd.workers": 3}) as f:
        for image in f.train_images()[::12]:
            with open(image, "r+b") as x:
                x.truncate(os.path.getsize(image) * 2 // 3)
        with Daemon(f.config) as d:
            wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
            p = subprocess.run([BIN, "status", "-c", f.config], capture_output=True)
            check(p.returncode == 0, "no status")
            try:
                for row in client.connect("ipc://" + f.file("d.sock"), timeout=60.0):
                    pass
            except RuntimeError as why:
                check("data.quarantine_limit" in str(why), f"the reason: {why}")
                share, judged, limit = re.search(r"([0-9.]+) % of (\d+) samples .* data.quarantine_limit allows \(([0-9.]+)", str(why)).groups()
                check(int(judged) >= 1000, f"the limit was applied too early: {why}")
                check(5 < float(share) < 12 and float(limit) == 5, f"the reason lacks the figures: {why}")
            else:
                raise AssertionError("the stream went on after the limit was reached")
            check(d.p.wait(60) == 65, f"exit code {d.p.returncode}\n{d.said()}")
            check("quarantine_limit" in d.said(), d.said())


def what_is_still_with_workers_is_not_judged():
    """4 % are bad, 5 % are allowed. A picture just after the first 1,000 samples hangs, and meanwhile the workers
    find all bad samples after it. Those are over 5 % of what was sent, but they do not count before they are
    sent."""
    with trap():
        with Folder(images=1600, **{"prepd.workers": 3, "prepd.sample_timeout": 1, "prepd.solo_deaths": 1,
                                    "training.epochs": 1, "data.shuffle": "false"}) as f:
            images = f.train_images()
            for image in images[12::25]:
                with open(image, "r+b") as x:
                    x.truncate(os.path.getsize(image) * 2 // 3)
            first = next(i for i, image in enumerate(images) if min(f.questions_of(image)) >= 1050 and i % 25 != 12)
            with open(images[first], "ab") as x:
                x.write(b"POISON:hang")
            with Daemon(f.config) as d:
                wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
                n = sum(len(r["doc_sample_id"]) for r in client.connect("ipc://" + f.file("d.sock"), timeout=60.0))
                said = json.loads(run("status", "-c", f.config, "--json"))["train"]
                check(n == said["samples"] and n > 1500, f"{n} of {said['samples']} samples")
                check(0.03 * n < said["quarantined_count"] < 0.05 * n, f"bad: {said['quarantined_count']} of {n}")
                check("sample_timeout" in d.said(), "no sample hung")


def what_the_index_refuses_is_not_counted():
    """A third of the pictures is empty, which is over any limit and more than 1,000 samples. The index says so, and
    the rest is streamed to its end."""
    with Folder(images=600, **{"prepd.workers": 2, "training.epochs": 1, "data.quarantine_limit": 5}) as f:
        for image in f.train_images()[::3]:
            open(image, "wb").close()
        wanted = {i for image in f.train_images()[::3] for i in f.questions_of(image)}
        with Daemon(f.config) as d:
            wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
            ids = sorted(int(i) for r in client.connect("ipc://" + f.file("d.sock"), timeout=60.0)
                         for i in r["doc_sample_id"])
            said = json.loads(run("status", "-c", f.config, "--json"))
            all_of_them = said["train"]["samples"]
            check(said["train"]["quarantined_count"] == 0, f"counted: {said['train']}")
        told = run("plan", "-c", f.config)
        check(f"refused: {len(wanted)}\n" in told, f"not reported: {told}")
        check(len(ids) > 1000 and len(wanted) > all_of_them // 5, f"too few: {len(ids)}, {len(wanted)}")
        check(sorted(set(ids) | wanted) == list(range(all_of_them)) and len(ids) + len(wanted) == all_of_them,
              "not every sample came once or was refused")


def dimensions(image):
    """Height and width of a JPEG file, as bytes, found by stepping over markers to its frame header."""
    with open(image, "rb") as x:
        data, at = x.read(), 2
    while data[at + 1] not in (0xC0, 0xC1, 0xC2):
        at += 2 + int.from_bytes(data[at + 2:at + 4], "big")
    return data[at + 5:at + 9]


def files_that_change_after_indexing():
    """The daemon has its index when files change. Each costs its own samples, which are named. The next daemon
    indexes again and uses what is whole."""
    with Folder(**{"training.epochs": 1}) as f:
        images = f.train_images()
        longer, shorter, gone, swapped = images[2], images[5], images[8], images[11]

        def blamed(refused=()):
            wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
            got = [int(i) for r in client.connect("ipc://" + f.file("d.sock"), timeout=60.0) for i in r["doc_sample_id"]]
            said = json.loads(run("status", "-c", f.config, "--json"))["train"]
            check(sorted([*got, *refused]) == list(range(said["samples"])), "not every sample came once")
            return {q["id"]: q["cause"] for q in said["quarantined"]}
        with Daemon(f.config):
            check(blamed() == {}, "whole files are blamed")
            with open(longer, "ab") as x:
                x.write(bytes(100))
            with open(shorter, "r+b") as x:
                x.truncate(os.path.getsize(shorter) * 2 // 3)
            os.remove(gone)
            size = os.path.getsize(swapped)  # another picture, padded to the same number of bytes
            other = next(i for i in images[12:] if os.path.getsize(i) < size and dimensions(i) != dimensions(swapped))
            shutil.copyfile(other, swapped)
            with open(swapped, "ab") as x:
                x.write(bytes(size - os.path.getsize(swapped)))
            causes = blamed()
            wanted = {i for image in (longer, shorter, gone, swapped) for i in f.questions_of(image)}
            check(set(causes) == wanted, f"blamed {sorted(causes)}, changed {sorted(wanted)}")
            for image, word in ((longer, "the file changed"), (shorter, "the file changed"), (gone, "No such file"),
                                (swapped, "pixels, but the index recorded")):
                for i in f.questions_of(image):
                    check(word in causes[i], f"{i}: {causes[i]}")
        with Daemon(f.config) as d:
            causes = blamed(f.questions_of(gone))
            check("index is stale" in d.said(), d.said())
            check(not set(causes) & set(f.questions_of(longer) + f.questions_of(swapped)), f"not indexed again: {causes}")


def a_mended_file_and_the_cursor():
    """If the mended file has the same size in bytes and pixels, the index is made again and the run continues. If it
    has another size or is gone, the data set is another one, and the old cursor is refused because of its index."""
    with Folder(images=32, **{"training.epochs": 1}) as f:
        def row(cursor=None):
            """The next row, and what the daemon said."""
            with Daemon(f.config) as d:
                wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
                rows = client.connect("ipc://" + f.file("d.sock"), timeout=60.0, cursor=cursor)
                return next(rows), d.said()

        first, _ = row()
        cursor = json.loads(first["cursor"])
        image = f.train_images()[3]
        with open(image, "rb") as x:
            whole = x.read()
        at = next(k for k in range(len(whole) - 40, 0, -1) if whole[k] not in (0, 0xFE, 0xFF) and whole[k - 1] != 0xFF)
        other = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:]
        with open(image, "wb") as x:
            x.write(other)
        second, said = row(cursor)
        check("index is stale" in said and "index built" in said, f"it was not noticed\n{said}")
        check(second["number"] == 1, f"row {second['number']} after row 0")
        for change in (lambda: open(image, "ab").write(bytes(4)), lambda: os.remove(image)):
            change()
            try:
                row(cursor)
                check(False, "a cursor of other files was taken")
            except RuntimeError as refused:
                check("files or options have changed since the checkpoint" in str(refused), str(refused))


def an_entry_that_is_not_a_file_leaves_the_index_as_it_is():
    """A folder and a pipe in place of pictures, and a frame that is a folder, are refused once; the next start has
    its index."""
    with Folder(images=32, **{"training.epochs": 1}) as f:
        images = f.train_images()
        for k, make in ((2, os.mkdir), (5, os.mkfifo)):
            os.remove(images[k])
            make(images[k])
        os.makedirs(f.file("data/dump/1.jpg"))
        shutil.copyfile(images[7], f.file("data/dump/0.jpg"))
        with open(f.file("data/clips.jsonl"), "w") as x:
            x.write(json.dumps({"video": "dump", "fps": 1, "question": "?", "answer": "x"}) + "\n" +
                    json.dumps({"image": os.path.relpath(images[7], f.file("data")), "question": "?", "answer": "x"}))
        clips = ["--data.format", "video", "--data.path", f.file("data/clips.jsonl")]
        for args in ([], clips):
            said = run("check", "-c", f.config, *args, "--hash", code=65)
            n, lost = (1, 1) if args else (len(images) - 2, 2)
            check(f"{n} files hashed, {lost} could not be" in said and said.count("hash\t-") == lost, said)
            shutil.rmtree(f.file("data/.tessera"))
            for first in (True, False):
                with Daemon(f.config, *args) as d:
                    wait_for(lambda: "index loaded" in d.said() or "index built" in d.said(), "an index")
                    check(("index built" in d.said()) == first, d.said())


def real_photos_and_odd_ones():
    """Every picture of the shared odd ones under an official name; skipped without them."""
    source = os.environ.get("TESSERA_SOURCE", ".")
    shared = os.environ.get("TESSERA_SHARED", os.path.join(source, "..", "shared"))
    odd = os.path.join(shared, "data", "odd")
    if not os.path.isdir(odd):
        print("skipped: no shared data")
        return
    with open(os.path.join(odd, "index.json")) as x:
        text = x.read()
    names = sorted(n for n in os.listdir(odd) if n != "index.json" and n in text)
    with Folder(images=256, **{"prepd.workers": 2}) as f:
        images = f.train_images()[::2][:len(names)]
        check(len(images) == len(names), "not enough places for the odd pictures")
        for image, name in zip(images, names):
            shutil.copyfile(os.path.join(odd, name), image)
        out = run("check", "-c", f.config, code=65)
        found = listed(out)
        for image, name in zip(images, names):
            bad = {i in found for i in f.questions_of(image)}
            check(len(bad) <= 1, f"{name}: some samples of one picture are bad, others not")
            if name in ("zero-byte.jpg", "truncated_jpeg.jpg", "truncated_image.png", "broken.png",
                        "decompression_bomb.gif", "avif_hopper.avif", "hopper.bmp"):
                check(bad == {True}, f"{name} was taken")
            if name in ("hopper_gray.jpg", "pil_sample_cmyk.jpg", "hopper_orientation_6.jpg",
                        "Landscape_6.jpg", "transparent.png", "hopper_orientation_6.webp"):
                check(bad == {False}, f"{name} was refused: {out}")
        told = {name for image, name in zip(images, names) if os.path.basename(image) in listed_damage(out)}
        print(f"of damage is told in {sorted(told)}")
        check(told == {"hopper_bad_exif.jpg", "jpeg_ff00_header.jpg", "junk_jpeg_header.jpg"}, out)
        good = [i for im in f.train_images()[1::2] for i in f.questions_of(im)]
        check(not set(good) & set(found), "a good sample was blamed")


def damaged_copies(images):
    """Kinds of damage that every decoder passes over, in these files; returns {name: the warning}."""
    def change(image, how):
        with open(image, "rb") as x:
            data = how(bytearray(x.read()))
        with open(image, "wb") as x:
            x.write(data)

    def page(d):
        at = len(d) // 2
        return d[:at] + bytes(500) + d[at + 500:]

    def claims(d):
        at = d.index(b"\xff\xc0")
        d[at + 5:at + 7] = struct.pack(">H", 4 * struct.unpack(">H", d[at + 5:at + 7])[0])
        return d
    change(images[0], lambda d: d[:len(d) // 2] + b"\xff\xd9")
    change(images[1], page)
    change(images[2], lambda d: d[:len(d) * 3 // 4] + bytes(len(d) // 4) + b"\xff\xd9")
    change(images[3], claims)
    return {os.path.basename(i): "Corrupt JPEG data: " for i in images[:4]}


def listed_damage(out):
    rows = [line.split("\t") for line in out.splitlines() if line.startswith("damaged\t")]
    return {os.path.basename(r[1]): r[2] for r in rows}


def damaged_pictures_are_told():
    """Damaged pictures are accepted by default, as transformers does, and reported; they are refused if the option
    says so. Both decoders behave the same."""
    with Folder(images=48) as f:
        images = f.train_images()
        wanted = damaged_copies([images[k] for k in (1, 5, 9, 13)])
        for decoder in ("auto", "vips"):
            out = run("check", "-c", f.config, "--image.decoder", decoder)
            found = listed_damage(out)
            check(set(found) == set(wanted) and all(found[k].startswith(wanted[k]) for k in wanted), f"{found}\n{out}")
            check(", 0 bad, 4 pictures damaged but used" in out, out)
        bad = {i for k in (1, 5, 9, 13) for i in f.questions_of(images[k])}
        with open(images[2], "r+b") as x:
            x.truncate(100)
        out = run("check", "-c", f.config, code=65)
        check(set(listed_damage(out)) == set(wanted) and set(listed(out)) == set(f.questions_of(images[2])), out)
        out = run("check", "-c", f.config, "--data.damaged", "refuse", code=65)
        found = listed(out)
        check(set(found) == bad | set(f.questions_of(images[2])) and not listed_damage(out), out)
        check(all("data.damaged is refuse: Corrupt JPEG data" in found[i] for i in bad), f"{found}")

        # A run warns of each damaged picture once, however often it is used.
        cache = ["--cache.folder", f.file("cache")]
        os.mkdir(f.file("cache"))
        port = free_ports()
        for _ in range(2):
            with Daemon(f.config, "--training.epochs", "2", "--metrics.listen", f"127.0.0.1:{port}", *cache) as d:
                rows = list(client.connect("ipc://" + f.file("d.sock"), timeout=60.0))
                status = json.loads(run("status", "-c", f.config, "--json"))["train"]
                check(rows and status["damaged_count"] == 4, f"{status}")
                check({os.path.basename(x["file"]): x["warning"] for x in status["damaged"]}.keys() == wanted.keys(), f"{status}")
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as x:
                    check('prepd_damaged{section="train"} 4' in x.read().decode(), "the metric")
                said = run("status", "-c", f.config)
                check("4 damaged pictures used as they decode" in said and "premature end" in said, said)
                check(d.said().count("picture damaged, used as it decodes") == 4, d.said())


main(damaged_pictures_are_told, an_entry_that_is_not_a_file_leaves_the_index_as_it_is,
     too_many_bad_samples_stop_the_run, what_is_still_with_workers_is_not_judged, what_the_index_refuses_is_not_counted,
     files_that_change_after_indexing, a_mended_file_and_the_cursor, real_photos_and_odd_ones,
     bad_files_are_named_and_cost_themselves, samples_that_kill_their_workers, a_bad_header_is_known_at_its_second_loss)
