# SPDX-License-Identifier: Apache-2.0
"""Workers that are not the daemon's children: over tcp, with a data root of their own, that die, lack files, or
decode differently."""

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from faults import ALWAYS, OTHER_JPEG, sanitized, trouble
from prepd_video import data_set, form, mapped
from prepd_site import Site
from prepd_flow import BIN, LIMIT_S, Daemon, Folder, Proxy, check, free_ports, main, run, scale, seed, \
    wait_for, workers_below

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402

BUILD = os.path.dirname(os.path.dirname(BIN))
POISON = {"TESSERA_REAL_IMAGE_MODULE": os.path.join(BUILD, "lib/tessera/libprepd_image.so"),
          "TESSERA_IMAGE_MODULE": os.path.join(BUILD, "tests/libpoison_module.so")}


def mixed_and_killed():
    rng = seed()
    with Folder() as f, Site(f) as site:
        site.worker()
        site.joined(1)
        quiet = site.stream()
        site.worker()
        site.worker()
        site.command("scale", "1")
        wait_for(lambda: len(site.status()["workers"]) == 4, "one of the daemon's own and three others")
        check(site.stream() == quiet, "local and remote workers give different rows")

        def kill_two():
            for p in site.workers[:2]:
                time.sleep(rng.uniform(0.02, 0.1))
                p.send_signal(signal.SIGKILL)

        killer = threading.Thread(target=kill_two)
        killer.start()
        check(site.stream() == quiet, "the death of a remote worker changed the stream")
        killer.join()
        site.joined(1)


def a_proxy_outlives_its_daemon():
    """It accepts and closes at once while the daemon behind it is gone, which is no reason for a supervisor to
    leave. A supervisor that has never heard a daemon there is told so at once."""
    with Folder() as f, Site(f) as site, Proxy(site.port + 1) as proxy:
        words = [BIN, "worker", "--connect", f"tcp://127.0.0.1:{proxy.port}", "--data-root", site.root, "--keys", site.keys]
        p = subprocess.Popen(words, stderr=subprocess.PIPE)
        site.workers.append(p)
        site.joined(1)
        quiet = site.stream(16)
        site.daemon.stop(signal.SIGKILL)
        wait_for(lambda: proxy.closed >= 3 or p.poll() is not None, "it asks again")
        check(p.poll() is None and proxy.closed >= 3, f"{p.poll()}, {proxy.closed} came to a proxy without a daemon")
        never = subprocess.run(words, capture_output=True, text=True, timeout=60)
        check(never.returncode == 78, f"exit code {never.returncode}: {never.stderr}")
        site.daemon = Daemon(f.config, "--prepd.endpoint", site.endpoint)
        wait_for(site.answers, "the daemon is back")
        site.joined(1)
        check(site.stream(16) == quiet, "another stream")


def one_that_misses_files_is_dismissed():
    with Folder() as f, Site(f) as site:
        good = site.worker()
        site.joined(1)
        quiet = site.stream()
        shutil.rmtree(f.file("copy2"), ignore_errors=True)
        os.mkdir(f.file("copy2"))
        blind = site.worker(root=f.file("copy2"))
        site.joined(2)
        check(site.stream() == quiet, "files that one worker misses changed the stream")
        check(blind.wait(LIMIT_S) == 66, "the blind worker is dismissed")
        said = blind.stderr.read().decode()
        check("images/" in said and "--data-root" in said, f"it is not told why: {said}")
        check(not site.status()["train"]["quarantined"], "samples are in quarantine")
        check(good.poll() is None, "the good worker left too")
        absent = site.worker(root=f.file("absent"))
        check(absent.wait(LIMIT_S) == 66 and "--data-root cannot be read: No such file" in absent.stderr.read().decode(), "no such folder")


def cut_copy(site, name):
    """Pictures of which the second half is missing."""
    shutil.copytree(site.root, name)
    for folder, _, files in os.walk(os.path.join(name, "images")):
        for file in files:
            path = os.path.join(folder, file)
            os.truncate(path, os.path.getsize(path) // 2)
    return name


def one_with_a_copy_that_is_not_whole_is_dismissed():
    """No sample is blamed for its rows, nor does it say how large a picture is, even if its key is trusted. An index to
    which a trusted worker elsewhere contributed is good for the next daemon, whose files have other times."""
    with Folder() as f, Site(f) as site:
        for folder, _, files in os.walk(site.root):
            for file in files:
                os.utime(os.path.join(folder, file), (1, 1))
        partial = cut_copy(site, f.file("copy2"))
        whole = site.worker()
        site.joined(1)
        quiet = site.stream()
        blind = site.worker(root=partial)
        site.joined(2)
        check(site.stream() == quiet, "a copy that is not whole changed the stream")
        check(blind.wait(LIMIT_S) == 66, "the worker is not dismissed")
        check(not site.status()["train"]["quarantined"], "samples are in quarantine")
        whole.terminate()
        check(whole.wait(LIMIT_S) == 0, "the worker with all files does not leave")
        site.daemon.stop()
        for d in [d for d, _, _ in os.walk(f.file("data")) if d.endswith(".tessera")]:
            shutil.rmtree(d)
        site.crew = site.keys + "/crew"
        run("keygen", "--out", site.keys, "--client", "crew", "--roles", "trusted")
        site.daemon = Daemon(f.config, "--prepd.endpoint", site.endpoint)
        wait_for(site.answers, "the daemon answers")
        blind = site.worker(root=partial)
        check(blind.wait(LIMIT_S) == 66, "its records are taken")
        whole = site.worker()
        wait_for(lambda: site.status()["train"]["state"] == "ready", "the index is built by the other one")
        check(site.stream() == quiet, "who indexed changed the stream")
        whole.terminate()
        check(whole.wait(LIMIT_S) == 0, "the worker with all files does not leave")
        site.daemon.stop()
        site.daemon = Daemon(f.config, "--prepd.endpoint", site.endpoint)
        wait_for(site.answers, "the daemon answers")
        wait_for(lambda: site.status()["train"]["state"] == "ready", "the index is read")
        check("index is stale" not in site.daemon.said() and "index loaded" in site.daemon.said(), site.daemon.said())


def one_whose_mount_fails_is_dismissed():
    """A stale mount or a failing disk is that machine's fault, as missing files are."""
    if sanitized():
        return
    with Folder(**{"prepd.sample_timeout": 1}) as f, Site(f) as site:
        good = site.worker()
        site.joined(1)
        quiet = site.stream()
        with trouble(f, "open", errno.ESTALE, "COCO_train2014", ALWAYS):
            blind = site.worker()
        site.joined(2)
        check(site.stream() == quiet, "files that one worker cannot read changed the stream")
        wait_for(lambda: blind.poll() is not None, "the blind worker is dismissed")
        check(not site.status()["train"]["quarantined"], "samples are in quarantine")
        check(good.poll() is None, "the good worker left too")


def what_no_one_can_open_now_counts_as_a_crash():
    """One file server, and its trouble, for all machines. Nobody is wrong who says so, and what the daemon's own worker
    cannot open either is bad."""
    if sanitized():
        return
    with Folder(**{"prepd.sample_timeout": 1, "prepd.solo_deaths": 1}) as f:
        image = f.train_images()[7]
        with trouble(f, "open", errno.ESTALE, os.path.basename(image), 0, "") as left, Site(f) as site:
            worker = site.worker()
            site.joined(1)
            quiet = site.stream()
            left(6)  # five tries by the worker and one by the daemon
            check(site.stream() == quiet, "what passed changed the stream")
            check(left() <= 0, "nothing failed")
            said = site.status()
            check(not said["train"]["quarantined"] and not said["excluded"], f"blamed: {said['train']}, {said['excluded']}")
            left(ALWAYS)
            site.stream()
            bad = {q["id"]: q["cause"] for q in site.status()["train"]["quarantined"]}
            check(bad and set(bad) <= set(f.questions_of(image)), f"blamed: {bad}")
            check(all("Stale file handle" in c for c in bad.values()), f"blamed: {bad}")
            check(worker.poll() is None, "the supervisor of the worker left")


def one_that_misses_files_does_not_write_the_index():
    """The held-out index is built when it is first asked for: here by a worker of a trusted key that sees no file."""
    with Folder() as f, Site(f, trusted=True) as site:
        os.mkdir(f.file("copy2"))
        blind = site.worker(root=f.file("copy2"))
        site.joined(1)
        got = []
        reader = threading.Thread(target=lambda: got.extend(site.stream(stream="eval")))
        reader.start()
        wait_for(lambda: blind.poll() is not None, "the blind worker is dismissed")
        check(site.status()["eval"]["state"] != "ready", "an index without a look at the files")
        site.worker()
        reader.join(60)
        site.daemon.stop()
        check("dismissed" in site.daemon.said(), site.daemon.said())
        caches = [d for d, _, _ in os.walk(f.file("data")) if d.endswith(".tessera")]
        check(caches, "no index beside the data")
        for d in caches:
            shutil.rmtree(d)
        with Daemon(f.config, "--prepd.endpoint", site.endpoint, "--prepd.workers", "2"):
            wait_for(site.answers, "the daemon answers")
            check(got and got == site.stream(stream="eval"), "who indexed changed the stream")


def a_frame_that_no_one_can_open_blames_no_worker():
    """Its folder can be opened but the frame cannot, neither here nor there: that is the record's fault, not the
    worker's."""
    with Folder(**{"prepd.workers": -1}) as f:
        path, n, _ = data_set(f, 2)
        os.remove(f.file("data/dump/frame_7.jpg"))
        os.symlink("nowhere", f.file("data/dump/frame_7.jpg"))
        copy = f.file("copy")
        shutil.copytree(f.file("data"), copy, symlinks=True)
        port = free_ports()
        end = f"tcp://127.0.0.1:{port}"
        with Daemon(f.config, *form(path, prepd__endpoint=end)) as d:
            p = subprocess.Popen([BIN, "worker", "--connect", f"tcp://127.0.0.1:{port + 1}", "--data-root", copy])
            try:
                wait_for(lambda: "index built" in d.said() or "dismissed" in d.said(), "the index is built")
                check("dismissed" not in d.said(), d.said())
                rows = list(client.connect(end, timeout=60.0))
                check(p.poll() is None and sum(len(r["doc_sample_id"]) for r in rows) == n - 1, "more than the record of that frame is lost")
            finally:
                p.kill()
                p.wait()


def printed(f, **environment):
    """What prepd fingerprint says, by name."""
    out = subprocess.run([BIN, "fingerprint", "--model", f.file("data/model")], capture_output=True, text=True, check=True,
                         env={**os.environ, **environment}).stdout
    return dict(line.split() for line in out.splitlines())


@contextlib.contextmanager
def machine_of(**environment):
    """What is started meanwhile is started on such a machine."""
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in environment:
            del os.environ[name]


def refusal(endpoint, **more):
    try:
        next(client.connect(endpoint, timeout=60.0, **more))
    except client.Refused as e:
        return f"{e.code} {e}"
    return ""


def another_decoder_is_refused():
    """Whichever worker comes first, the daemon knows by itself what is right, even without its own workers. A
    stream continues with what made its first rows, or with something else if its user says so."""
    with Folder(**{"prepd.workers": -1}) as f:
        port = free_ports()
        end = f"tcp://127.0.0.1:{port}"
        words = [BIN, "worker", "--connect", f"tcp://127.0.0.1:{port + 1}", "--data-root", f.file("data")]
        ours, theirs = printed(f), printed(f, **OTHER_JPEG)
        check(ours["images"] != theirs["images"] and ours["tokens"] == theirs["tokens"], f"{ours} {theirs}")

        def odd(code):
            p = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **OTHER_JPEG})
            check(p.returncode == code, f"exit code {p.returncode}: {p.stderr}")
            return p.stderr

        def up(d, n):
            wait_for(lambda: d.p.poll() is not None or
                     subprocess.run([BIN, "status", "--connect", end], capture_output=True).returncode == 0, "the daemon answers")
            if n:
                scale(f, d, n)

        with Daemon(f.config, "--prepd.endpoint", end) as d:
            up(d, 0)
            said = odd(69)
            check(f"fingerprint of images {theirs['images']} there, {ours['images']} here" in said, said)
            up(d, 1)  # from now on the daemon has a local worker
            rows = client.connect(end, timeout=60.0)
            first = [next(rows) for _ in range(8)]
            rows.close()
            cursor = json.loads(first[3]["cursor"])
            check(cursor["fingerprints"] == {k: ours[k] for k in ("images", "tokens")}, f"{cursor}")
            told = json.loads(run("status", "--connect", end, "--json"))
            check(told["build"] == ours["build"] and told["fingerprints"].items() >= cursor["fingerprints"].items(), f"{told}")
        run("record", "-c", f.config, "--prepd.workers", "1", "--steps", "1", "--out", f.file("r"))
        with open(f.file("r"), "rb") as x:
            welcome = x.read(1 << 16)
        check(ours["images"].encode() in welcome[:welcome.index(b"buckets")], "WELCOME carries no fingerprint")
        with machine_of(**OTHER_JPEG), Daemon(f.config, "--prepd.endpoint", end) as d:
            up(d, 0)
            why = refusal(end, cursor=cursor)
            check(why.startswith("ST_CONFIG") and ours["images"] in why and theirs["images"] in why and "data.generation" in why,
                  why)
            old = {k: v for k, v in cursor.items() if k != "fingerprints"}  # as older builds wrote it
            rows = client.connect(end, timeout=60.0, cursor=old)
            row = next(rows)
            check(row["number"] == 4 and row["pixels"].tobytes() != first[4]["pixels"].tobytes(), "the other decoder gives the same row")
            rows.close()
            # Without its local worker the daemon accepts the one that it refused, once that is started again.
            scale(f, d, 0)
            again = subprocess.Popen(words, stderr=subprocess.DEVNULL, env={**os.environ, **OTHER_JPEG})
            wait_for(lambda: [w["local"] for w in json.loads(run("status", "--connect", end, "--json"))["workers"]] == [False],
                     "the worker is accepted")
            again.kill()
            again.wait()
        check("69" not in unit_stays_down(), "the unit of a worker that was refused is not started again")


def unit_stays_down():
    """Exit codes after which systemd does not start workers again."""
    with open(os.path.join(os.environ.get("TESSERA_SOURCE", "."), "deploy/systemd/prepd-worker@.service")) as x:
        return next(line for line in x if line.startswith("RestartPreventExitStatus=")).strip().split("=")[1].split()


def other_words(model):
    """Its tokenizer without the last ten merges: the same texts become other ids."""
    path = os.path.join(model, "tokenizer.json")
    with open(path) as x:
        tokenizer = json.load(x)
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:-10]
    with open(path, "w") as x:
        json.dump(tokenizer, x)


def another_tokenizer_is_refused():
    with Folder() as f, Site(f) as site:
        for name in ("same", "other"):
            shutil.copytree(f.file("data/model"), f.file(name))
        other_words(f.file("other"))
        site.worker("--model", f.file("same"))
        site.joined(1)
        quiet = site.stream()
        odd = site.worker("--workers", "2", "--model", f.file("other"))
        check(odd.wait(60) == 78, "workers with another tokenizer were taken, or started again and again")
        said = odd.stderr.read().decode()
        check(said.count("tokenizer and processor files have the digest") and "--model DIR" in said, said)
        site.joined(1)
        check(site.stream() == quiet, "the stream changed")
        check(not site.status()["train"]["quarantined"], "samples are in quarantine")
        other_words(f.file("same"))  # while a worker has it loaded, which is then started again
        site.workers[0].kill()
        late = site.worker("--model", f.file("same"))
        check(late.wait(60) == 78, "a tokenizer that changed was taken")


def another_decoder_of_videos_is_refused():
    """Only if there are videos; otherwise FFmpeg is not even mapped."""
    other = {"TESSERA_REAL_VIDEO_MODULE": os.path.join(BUILD, "lib/tessera/libprepd_video.so"),
             "TESSERA_VIDEO_MODULE": os.path.join(BUILD, "tests/libpoison_module.so")}
    with Folder() as f, Site(f) as site:
        first = site.worker(**other)
        site.joined(1)
        check(len(site.stream(4)) == 4 and not mapped(workers_below(first.pid)[0]), "FFmpeg is mapped where there are no videos")
    with Folder() as f:
        path, n, _ = data_set(f, 6)
        f.write_options(data__path=path, data__format="video")
        with Site(f) as site:
            good = site.worker()
            site.joined(1)
            rows = site.stream(8)
            check(rows and mapped(workers_below(good.pid)[0]), "no FFmpeg where there are videos")
            odd = site.worker(**other)
            check(odd.wait(60) == 69, "a worker with another decoder of videos was taken")
            check(b"videos" in odd.stderr.read(), "the worker was given no reason")
            check(site.stream(8) == rows, "the stream changed")
            check(not site.status()["train"]["quarantined"], "samples are in quarantine")


def a_poisonous_sample_is_found_without_local_workers():
    """Workers of a trusted key decide. Nobody says how one of them ended, so each end at work counts as a crash, and what
    kills them is bad."""
    limits = {"prepd.sample_timeout": 0.4, "prepd.solo_deaths": 1, "training.epochs": 1,
              "data.limit": 100}
    with Folder(**limits) as f, Site(f, trusted=True) as site:
        images = f.train_images()
        marks = {images[2]: "abort", images[5]: "exit", images[8]: "hang", images[14]: "fault"}
        for image, mark in marks.items():
            for path in (image, image.replace(f.file("data"), site.root)):
                with open(path, "ab") as x:
                    x.write(f"POISON:{mark}".encode())
        site.again()  # so that the index is of the files as they are now
        site.worker(**POISON)
        site.joined(1)
        rows = site.stream(10**9)
        wanted = sorted(i for image in marks for i in f.questions_of(image) if i < 100)
        now = site.status()
        found = {q["id"]: q["cause"] for q in now["train"]["quarantined"]}
        check(sorted(found) == wanted, f"quarantined {found}, poison is {wanted}")
        check(len(wanted) >= 4 and all("ends its worker" in c for c in found.values()), f"causes: {found}")
        check(now["deciders"] == 1 and now["workers_alive"] == 0, f"{now['deciders']} deciders, {now['workers']}")
        site.worker(**POISON)
        site.joined(2)
        check(site.stream(10**9) == rows, "two workers give another stream")


def signals_from_outside_blame_no_sample():
    """At the strictest limit. A row that two of these workers lost is made by one of the daemon's own."""
    with Folder(**{"prepd.solo_deaths": 1, "prepd.sample_timeout": 1}) as f, Site(f) as site:
        site.worker()
        site.joined(1)
        quiet = site.stream()
        supervisor = site.worker("--workers", "2")
        site.joined(3)
        hits = []

        def hit():
            while len(hits) < 12:
                time.sleep(0.05)
                for pid in workers_below(supervisor.pid):
                    sig = (signal.SIGSEGV, signal.SIGSTOP, signal.SIGKILL)[len(hits) % 3]
                    os.kill(pid, sig)
                    hits.append(sig)

        thread = threading.Thread(target=hit)
        thread.start()
        while thread.is_alive():
            check(site.stream() == quiet, "signals to remote workers changed the stream")
        thread.join()
        check(not site.status()["train"]["quarantined"], "samples are in quarantine")
        site.joined(3)
        supervisor.terminate()
        check(supervisor.wait(60) == 0, "the supervisor does not leave")
        site.joined(1)


def a_stopped_daemon_refuses_no_worker():
    """The kernel accepts connections for it, and no handshake is completed: that is not the answer to a wrong key."""
    with Folder() as f:
        port = free_ports()
        words = [BIN, "worker", "--connect", f"tcp://127.0.0.1:{port + 1}", "--data-root", f.file("data")]
        with socket.create_server(("127.0.0.1", port + 1)), subprocess.Popen(words, stderr=subprocess.PIPE) as p:
            time.sleep(18)  # time for three handshakes to fail
            check(p.poll() is None, p.poll() is not None and p.stderr.read())
            p.kill()


def drained_for_good_all_leave():
    """While workers elsewhere are restarted after every lease, none is left that was not told."""
    with Folder(**{"prepd.worker_bytes": 64 << 20}) as f, Site(f) as site:
        supervisors = [site.worker("--workers", "2"), site.worker()]
        site.joined(3)

        def consume():
            try:
                for _ in client.connect(site.endpoint, timeout=60, keys=site.keys):
                    pass
            except RuntimeError as e:
                check("the daemon stops" in str(e), str(e))

        rows = threading.Thread(target=consume)
        rows.daemon = True
        rows.start()
        wait_for(lambda: site.status()["rows"] > 4, "rows")
        site.command("drain")
        check(site.daemon.p.wait(60) == 0, site.daemon.said())
        for k in supervisors:
            check(k.wait(60) == 0, f"a supervisor left with {k.returncode}")


def drained_for_good_a_supervisor_without_workers_leaves():
    """Its worker hangs before it has joined, because the image library is on a file system that does not answer."""
    with Folder() as f, Site(f) as site:
        os.mkfifo(f.file("module.so"))
        vanishes = site.worker(TESSERA_IMAGE_MODULE=f.file("module.so"))
        wait_for(lambda: site.status()["supervisors"] == 1, "a supervisor is known")
        vanishes.kill()
        wait_for(lambda: site.status()["supervisors"] == 0, "a supervisor that vanished is forgotten", 40)
        supervisor = site.worker(TESSERA_IMAGE_MODULE=f.file("module.so"))
        wait_for(lambda: site.status()["supervisors"] == 1, "the supervisor is known")
        check(not site.status()["workers"], "its worker has joined")
        site.daemon.stop(limit_s=30)  # stopped, and not drained for good, so the supervisor stays
        site.daemon = Daemon(f.config, "--prepd.endpoint", site.endpoint)
        wait_for(site.answers, "the daemon is back")
        wait_for(lambda: site.status()["supervisors"] == 1, "the supervisor is known again")
        check(supervisor.poll() is None, "a supervisor left a daemon that may come back")
        site.command("drain")
        check(site.daemon.p.wait(60) == 0, site.daemon.said())
        check(supervisor.wait(60) == 0, f"the supervisor left with {supervisor.returncode}")


def a_supervisor_waits_for_the_daemon_to_come_back():
    with Folder() as f, Site(f) as site:
        p = site.worker()
        site.joined(1)
        quiet = site.stream(8)
        for sig in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            site.daemon.stop(sig, 30)
            site.daemon = Daemon(f.config, "--prepd.endpoint", site.endpoint)
            wait_for(site.answers, "the daemon is back")
            site.joined(1)
            check(p.poll() is None and site.stream(8) == quiet, f"it did not come back after {sig}")


main(mixed_and_killed, a_stopped_daemon_refuses_no_worker, a_proxy_outlives_its_daemon, drained_for_good_all_leave,
     drained_for_good_a_supervisor_without_workers_leaves, a_poisonous_sample_is_found_without_local_workers,
     signals_from_outside_blame_no_sample, one_that_misses_files_is_dismissed,
     one_with_a_copy_that_is_not_whole_is_dismissed, one_whose_mount_fails_is_dismissed,
     what_no_one_can_open_now_counts_as_a_crash, one_that_misses_files_does_not_write_the_index,
     a_frame_that_no_one_can_open_blames_no_worker, another_decoder_is_refused, another_tokenizer_is_refused,
     another_decoder_of_videos_is_refused, a_supervisor_waits_for_the_daemon_to_come_back)
