# SPDX-License-Identifier: Apache-2.0
"""Workers that have no files: with data.ship the daemon sends them with the leases: pictures, parts of tars, videos
and frames. The rows, the index and the causes are the same as with files, and memory is bounded."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tarfile

from faults import sanitized, trouble
from formats import fingerprint, in_data, llava, load, options, write_lines
from middle import Middle
from prepd_flow import BIN, Daemon, Folder, check, free_ports, main, run, scale, wait_for
from prepd_video import clip, data_set, write_video
from prepd_zip import official

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402

HIDE = ["unshare", "-m", "sh", "-c", 'for d in $HIDDEN; do mount -t tmpfs none "$d" || exit 1; done; exec "$0" "$@"']


def stream(f, endpoint, args, workers, hidden=(), more=()):
    """All rows of an epoch and of the held-out data, and the last status; by local workers, or by `workers` that are sent
    everything and cannot see the hidden folders. The daemon's own make the indices, and decide about samples."""
    shutil.rmtree(f.file("cache"), ignore_errors=True)
    os.mkdir(f.file("cache"))
    port = int(endpoint.rsplit(":", 1)[1])
    made = []
    words = ["--prepd.endpoint", endpoint, "--prepd.cache_dir", f.file("cache"), *args, *more]
    if workers:
        with Daemon(f.config, *words):
            for name in ("train", "eval"):
                rows = client.connect(endpoint, stream=name, timeout=60.0)
                next(rows)
                rows.close()
        words += ["--prepd.workers", "-1"]
    with Daemon(f.config, *words) as d:
        def status():
            return json.loads(run("status", "--connect", endpoint, "--json"))
        wait_for(status, "the daemon answers")
        if workers:
            made = [subprocess.Popen([*HIDE, BIN, "worker", "--connect", f"tcp://127.0.0.1:{port + 1}", "--workers",
                                      str(workers)], stderr=subprocess.PIPE,
                                     env={**os.environ, "HIDDEN": " ".join(hidden)})]
            wait_for(lambda: sum(w["ship"] for w in status()["workers"]) == workers, f"{workers} workers")
        rows = [fingerprint(r) for s in ("train", "eval") for r in client.connect(endpoint, stream=s, timeout=60.0)]
        last = status()
        for p in made:
            p.terminate()
            p.wait(60)
            p.stderr.close()
        check(d.p.poll() is None and not last["excluded"], f"{last['excluded']}\n{d.said()}")
    return rows, last


def records_of_every_kind(f):
    path, _, videos = data_set(f, 6)
    pictures = load(f)
    with open(path) as x:
        records = [json.loads(line) for line in x]
    shutil.copy(in_data(f, videos[0]), in_data(f, "cut.avi"))
    with open(in_data(f, "cut.avi"), "r+b") as x:
        x.truncate(3000)
    with open(in_data(f, "images/bad.jpg"), "wb") as x:
        x.write(b"\xff\xd8\xff")
    records += [llava("images/absent.jpg", "q", "a"), llava("images/bad.jpg", "q", "a"), llava("images", "q", "a"),
                clip("cut.avi", "q", "a"), llava(pictures[3][0], "q", "a")]
    return write_lines(in_data(f, "all.jsonl"), records)


def can_hide():
    return os.geteuid() == 0 and subprocess.run([*HIDE[:4], "mount -t tmpfs none /mnt"], capture_output=True).returncode == 0


def rows_and_causes_as_with_files():
    if not can_hide():
        print("skipped: hiding folders from a process needs root")
        return
    with Folder(images=48) as f:
        path = records_of_every_kind(f)
        args = options(data__format="video", data__path=path, training__epochs=1, data__pack="false",
                       eval__path=path)
        want, had = stream(f, f"tcp://127.0.0.1:{free_ports()}", args, 0)
        check(len(want) > 4 and had["shipped_bytes"] == 0, "local workers are sent files")
        hidden = [in_data(f, "images"), in_data(f, "clips"), in_data(f, "dump")]
        ship = ["--data.ship", "true"]
        endpoint = f"tcp://127.0.0.1:{free_ports()}"
        for workers, more in ((1, ["--prepd.ship_bytes", "1"]), (2, [])):
            got, has = stream(f, endpoint, args, workers, hidden, ship + more)
            check(got == want, f"{workers} workers that are sent files give other rows")
            check(has["shipped_bytes"] > 100000, f"only {has['shipped_bytes']} bytes were sent")
            for k in ("train", "eval"):
                check(has[k] == had[k], f"{has[k]} instead of {had[k]}")


def pieces_of_tars():
    if not can_hide():
        print("skipped: hiding folders from a process needs root")
        return
    with Folder(images=32) as f:
        os.mkdir(f.file("tars"))
        with tarfile.open(f.file("tars/train.tar"), "w") as t:
            for k, (image, question, answer) in enumerate(load(f)[:40]):
                t.add(in_data(f, image), f"{k:03}.jpg")
                with open(f.file("words"), "w") as x:
                    json.dump({"question": question, "answer": answer}, x)
                t.add(f.file("words"), f"{k:03}.json")
            check(write_video(f.file("clip.avi")), "encoder")
            t.add(f.file("clip.avi"), "video.avi")
            with open(f.file("words"), "w") as x:
                x.write("a clip")
            t.add(f.file("words"), "video.txt")
        args = options(data__format="webdataset", data__path=f.file("tars"), training__epochs=1,
                       eval__path=f.file("tars"), eval__split="train")
        want, _ = stream(f, f"tcp://127.0.0.1:{free_ports()}", args, 0)
        got, has = stream(f, f"tcp://127.0.0.1:{free_ports()}", args, 2, [f.file("tars")], ["--data.ship", "true"])
        check(got == want and has["shipped_bytes"] > 0, "pieces of a tar that are sent give other rows")


def trouble_of_the_daemon_blames_no_worker():
    """It has no descriptor left for a while, so some leases lack a file that exists."""
    if not can_hide() or sanitized():
        return
    with Folder(images=32) as f:
        args = options(training__epochs=1)
        want, _ = stream(f, f"tcp://127.0.0.1:{free_ports()}", args, 0)
        with trouble(f, "open", errno.EMFILE, "COCO_train2014", 5, "serve") as left:
            got, has = stream(f, f"tcp://127.0.0.1:{free_ports()}", args, 1, [], ["--data.ship", "true"])
            check(left() <= 0, "no file was missing")
        check(got == want and has["train"]["quarantined_count"] == 0, f"{len(got)} rows of {len(want)}: {has['train']}")


def refused_unless_asked_for():
    with Folder(images=16) as f:
        endpoint = f"tcp://127.0.0.1:{free_ports()}"
        with Daemon(f.config, "--prepd.endpoint", endpoint) as d:
            p = subprocess.Popen([BIN, "worker", "--connect", f"tcp://127.0.0.1:{int(endpoint[-5:].strip(':')) + 1}"],
                                 stderr=subprocess.PIPE, text=True)
            try:
                wait_for(lambda: "data.ship true" in d.said(), "the worker is refused with the remedy")
            finally:
                p.kill()
                p.wait()
                p.stderr.close()


def who_makes_rows_makes_no_index():
    """Workers whose key is not trusted get no lease of it: one that would tell false sizes is never asked."""
    with Folder(images=48) as f:
        want, _ = stream(f, f"tcp://127.0.0.1:{free_ports()}", options(training__epochs=1), 0)
        shutil.rmtree(f.file("cache"))
        os.mkdir(f.file("cache"))
        port = free_ports()
        end = f"tcp://127.0.0.1:{port}"

        def change(records, _):
            for r in records:
                r["bytes"] += 1
        with Daemon(f.config, "--prepd.endpoint", end, "--prepd.cache_dir", f.file("cache"), "--training.epochs", "1",
                    "--data.ship", "true", "--prepd.workers", "-1") as d, Middle(port + 1, change) as middle:
            middle.released()
            p = subprocess.Popen([BIN, "worker", "--connect", f"tcp://127.0.0.1:{middle.port}"], stderr=subprocess.DEVNULL)
            try:
                def epoch(name):
                    return [fingerprint(r) for r in client.connect(end, stream=name, timeout=60.0)]

                def works():
                    rows = epoch("train")
                    check(rows == want[:len(rows)], "other rows")
                    return any(not w["local"] and w["leases"] for w in json.loads(run("status", "--connect", end, "--json"))["workers"])
                wait_for(works, "it makes rows")
                check(epoch("train") + epoch("eval") == want and d.said().count("index built") == 2, d.said())
                check(middle.lists == 0, f"{middle.lists} lists of records came from it")
            finally:
                p.kill()
                p.wait()


SECRET = b"root:a secret of this machine:" * 4


def nothing_outside_is_sent():
    """A picture becomes a link out of the data folder while the daemon runs: its bytes never reach a worker, only
    its own samples are lost, and all other rows are as before."""
    with Folder(images=24) as f:
        port = free_ports()
        end = f"tcp://127.0.0.1:{port}"
        image = f.train_images()[3]
        bad = set(f.questions_of(image))
        with open(f.file("secret"), "wb") as x:
            x.write(SECRET)
        seen = []
        run("plan", "-c", f.config, "--data.ship", "true")  # with an index no worker of the daemon's own has to stay
        with Daemon(f.config, "--prepd.endpoint", end, "--training.epochs", "1", "--data.ship", "true") as d, \
                Middle(port + 1, sent=lambda part: seen.append(SECRET in part)) as middle:
            def status():
                return json.loads(run("status", "--connect", end, "--json"))
            wait_for(lambda: status()["train"]["state"] == "ready", "the index is built")
            quiet = [fingerprint(r) for r in client.connect(end, timeout=60.0)]
            scale(f, d, 0)
            wait_for(lambda: not status()["workers"], "local workers have left")
            os.remove(image)
            os.symlink(f.file("secret"), image)
            p = subprocess.Popen([BIN, "worker", "--connect", f"tcp://127.0.0.1:{middle.port}"], stderr=subprocess.PIPE)
            try:
                middle.released()
                rows = list(client.connect(end, timeout=60.0))
                print(f"{sum(seen)} of {len(seen)} parts hold the secret, quarantined: {status()['train']['quarantined']}")
                check(len(seen) > 8 and not any(seen), "a file outside the data folder was sent")
                said = status()
                found = {q["id"]: q["cause"] for q in said["train"]["quarantined"]}
                # The daemon's own worker, which decides, can follow the link.
                check(set(found) == bad and all("the file changed" in c for c in found.values()), f"{found}, {d.said()}")
                check(not said["excluded"], f"{said['excluded']}, {d.said()}")
                others = [k for k, r in enumerate(rows) if not bad & {int(i) for i in r["doc_sample_id"]}]
                check(others and all(fingerprint(rows[k]) == quiet[k] for k in others), "other rows changed")
            finally:
                p.kill()
                p.wait()
                p.stderr.close()


def a_link_to_the_same_bytes_excludes_no_one():
    """The daemon does not send it, its own worker can follow it, and the worker elsewhere that says so is right."""
    with Folder(images=24, **{"training.epochs": 1, "data.ship": "true"}) as f:
        port = free_ports()
        end, image = f"tcp://127.0.0.1:{port}", f.train_images()[3]
        run("plan", "-c", f.config)  # with an index no worker of the daemon's own has to stay
        with Daemon(f.config, "--prepd.endpoint", end, "--prepd.workers", "-1") as d:
            wait_for(lambda: "index loaded" in d.said(), "the index is read")
            shutil.copy2(image, f.file("same.jpg"))
            os.remove(image)
            os.symlink(f.file("same.jpg"), image)
            p = subprocess.Popen([BIN, "worker", "--connect", f"tcp://127.0.0.1:{port + 1}"], stderr=subprocess.DEVNULL)
            try:
                rows = [fingerprint(r) for r in client.connect(end, timeout=60.0)]
                said = json.loads(run("status", "--connect", end, "--json"))
                check(any(not w["local"] and w["leases"] > 0 for w in said["workers"]), f"{said['workers']}\n{d.said()}")
                check(not said["excluded"] and not said["train"]["quarantined"], f"{said['excluded']}\n{d.said()}")
            finally:
                p.kill()
                p.wait()
        os.remove(image)
        shutil.copy2(f.file("same.jpg"), image)
        with Daemon(f.config) as d:
            wait_for(lambda: os.path.exists(f.file("d.sock.control")), "the daemon")
            check(rows == [fingerprint(r) for r in client.connect("ipc://" + f.file("d.sock"), timeout=60.0)], "other rows")


def refused(f, args, *names):
    said = run("plan", "-c", f.config, "--data.ship", "true", *args, code=78)
    check(all(n in said for n in (*names, "data.images", "mount --bind", "--data-root")), said)
    run("plan", "-c", f.config, *args)  # without data.ship the data may lie anywhere


def talks(f, folder, images, form="conversations"):
    write_lines(os.path.join(folder, "t.jsonl"), [llava(name, "q", "a") for name in images])
    return options(data__format=form, data__path=os.path.join(folder, "t.jsonl"))


def data_that_lies_outside_is_refused_at_the_start():
    """The folder that the user named may be reached through links; below it links count only if they stay inside."""
    with Folder(images=24) as f:
        pictures, ship = f.train_images(), ["--data.ship", "true"]
        a, b, c = (f.file(n) for n in "abc")
        for folder in (a, b, c):
            os.makedirs(os.path.join(folder, "images"))
            shutil.copy(pictures[0], os.path.join(folder, "images/1.jpg"))
        os.symlink("1.jpg", os.path.join(a, "images/2.jpg"))
        os.symlink("images", os.path.join(a, "more"))
        os.symlink(a, f.file("named"))
        inside = ["images/1.jpg", "images/2.jpg", "more/1.jpg", "absent.jpg"]
        run("plan", "-c", f.config, *ship, *talks(f, a, inside))
        run("plan", "-c", f.config, *ship, *talks(f, f.file("named"), inside))
        os.symlink(pictures[1], os.path.join(b, "images/2.jpg"))
        refused(f, talks(f, b, ["images/1.jpg", "images/2.jpg"]), "images/2.jpg: this and 0 other files", b)
        os.symlink("../a/images", os.path.join(b, "out"))
        refused(f, talks(f, b, ["out/1.jpg", "images/2.jpg"]), "out/1.jpg: this and 1 other files")
        # The remedy if all pictures are linked in from elsewhere.
        run("plan", "-c", f.config, *ship, *talks(f, b, ["1.jpg"]), "--data.images", os.path.join(b, "out"))

        # A mixture whose folder is above both sources.
        with open(f.file("mix.yaml"), "w") as x:
            x.write("one:\n  format: conversations\n  path: a/t.jsonl\ntwo:\n  format: conversations\n  path: c/t.jsonl\n")
        mixture = options(data__format="mixture", data__path=f.file("mix.yaml"))
        talks(f, c, ["images/1.jpg"])
        run("plan", "-c", f.config, *ship, *mixture)
        os.symlink("../../a/images/1.jpg", os.path.join(c, "images/2.jpg"))
        talks(f, c, ["images/1.jpg", "images/2.jpg"])
        refused(f, mixture, "c/images/2.jpg", c)

        # Tars, folders of frames, zip archives, and a list of pictures with absolute paths.
        with tarfile.open(os.path.join(a, "train.tar"), "w") as t:
            t.add(pictures[0], "1.jpg")
            t.add(os.path.join(a, "t.jsonl"), "1.txt")
        os.makedirs(f.file("tars"))
        os.symlink(os.path.join(a, "train.tar"), f.file("tars/train.tar"))
        refused(f, options(data__format="webdataset", data__path=f.file("tars")), "train.tar")
        os.makedirs(os.path.join(a, "frames"))
        for k in range(1, 5):
            os.symlink(pictures[0] if k == 3 else "../images/1.jpg", os.path.join(a, f"frames/{k}.jpg"))
        write_lines(os.path.join(a, "v.jsonl"), [clip("frames", "q", "a", fps=2)])
        refused(f, options(data__format="video", data__path=os.path.join(a, "v.jsonl")), "frames/3.jpg")
        zips = official(f, f.file("zips"))
        run("plan", "-c", f.config, *ship, *zips)
        os.rename(f.file("zips/train2014.zip"), f.file("train2014.zip"))
        os.symlink(f.file("train2014.zip"), f.file("zips/train2014.zip"))
        refused(f, zips, "train2014.zip")
        for named in ("images/train2014/", "../elsewhere/"):
            os.makedirs(f.file("elsewhere"), exist_ok=True)
            shutil.copy(pictures[0], f.file("elsewhere"))
            with open(in_data(f, "images.json"), "w") as x:
                json.dump({"note": named, "images": [{"id": int(p[-16:-4]), "file_name": os.path.basename(p)}
                                                     for p in pictures]}, x)
            if named[0] == ".":
                refused(f, [], os.path.basename(pictures[0]))
            else:
                run("plan", "-c", f.config, *ship)


main(rows_and_causes_as_with_files, pieces_of_tars, refused_unless_asked_for, trouble_of_the_daemon_blames_no_worker,
     nothing_outside_is_sent, a_link_to_the_same_bytes_excludes_no_one, data_that_lies_outside_is_refused_at_the_start, who_makes_rows_makes_no_index)
