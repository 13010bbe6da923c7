# SPDX-License-Identifier: Apache-2.0
"""The daemon as a process: which libraries it maps, how it stops, who it lets in, what it reports."""

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import zmq

import prepd_workers
from hostile_target import dealer
from prepd_flow import BIN, LIMIT_S, UNPRIVILEGED, Daemon, Folder, check, children, free_ports, gone, main, run, \
    unprivileged, wait_for, workers_below
from terminal import Terminal

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402


def maps(pid):
    with open(f"/proc/{pid}/maps") as f:
        return f.read()


def status(folder):
    return json.loads(run("status", "-c", folder.config, "--json"))


def workers_joined(folder, n):
    return lambda: len(status(folder)["workers"]) == n


def ready(folder, n=2):
    wait_for(lambda: os.path.exists(folder.file("d.sock.control")), "control endpoint")
    wait_for(workers_joined(folder, n), f"{n} workers joined")


def no_image_library_in_the_dispatcher():
    with Folder() as f, Daemon(f.config) as d:
        ready(f)
        check("vips" not in maps(d.p.pid), "libvips is mapped in the dispatcher")
        workers = workers_below(d.p.pid)
        check(workers and all("libvips" in maps(w) for w in workers), "workers without libvips")


def a_signal_leaves_nothing_behind():
    """Nor do several signals, one after the other."""
    term, interrupt = signal.SIGTERM, signal.SIGINT
    for signals in ((term,), (interrupt,), (term, term), (term, interrupt, term)):
        with Folder() as f, Daemon(f.config) as d:
            ready(f)
            below = children(d.p.pid)
            for sig in signals[:-1]:
                d.p.send_signal(sig)
                time.sleep(0.002)
            check(d.stop(signals[-1]) == 0, f"exit code after {signals}\n{d.said()}")
            wait_for(lambda: all(gone(c) for c in below), "workers end")
            left = [n for n in os.listdir(f.path) if n.startswith("d.sock")]
            check(not left, f"ipc files left: {left}")


def a_second_signal_ends_it_at_once():
    """The first signal waits for work in progress, here a picture that takes for ever, and says what a second one
    does."""
    lib = os.path.join(os.path.dirname(os.path.dirname(BIN)), "lib/tessera")
    trap = {"TESSERA_REAL_IMAGE_MODULE": os.path.join(lib, "libprepd_image.so"),
            "TESSERA_IMAGE_MODULE": os.path.join(lib, "../../tests/libpoison_module.so")}
    with Folder() as f:
        for image in f.train_images():
            with open(image, "ab") as x:
                x.write(b"POISON:hang")
        for second in (signal.SIGTERM, signal.SIGINT):
            with Daemon(f.config, by=["env", *(f"{k}={v}" for k, v in trap.items())]) as d:
                ready(f)
                rows = client.connect("ipc://" + f.file("d.sock"))

                def ask():
                    with contextlib.suppress(RuntimeError):  # the daemon stops
                        next(rows)

                asks = threading.Thread(target=ask, daemon=True)
                asks.start()
                wait_for(lambda: any(w["busy"] for w in status(f)["workers"]), "a picture is decoded")
                d.p.send_signal(signal.SIGTERM)
                wait_for(lambda: "another signal stops at once" in d.said(), "it says what to do")
                check(d.stop(second, 15) == 0 and "stopping at once" in d.said(), d.said())
                asks.join()


def a_signal_while_the_data_is_opened():
    """On a file system that does not answer (a pipe that nothing writes to), or only after a while, a daemon that
    has not begun stops all the same, and has not bound anything."""
    with Folder() as f:
        questions = f.file("data/v2_OpenEnded_mscoco_train2014_questions.json")
        os.remove(questions)
        os.mkfifo(questions)
        for sig in (signal.SIGTERM, signal.SIGINT):
            with Daemon(f.config) as d:
                wait_for(lambda: len(os.listdir(f"/proc/{d.p.pid}/task")) > 1, "it opens the data")
                time.sleep(0.2)
                check(d.p.poll() is None and not os.path.exists(f.file("d.sock")), d.said())
                check(d.stop(sig) == 0, d.said())
                check("signal=" in d.said() and not os.path.exists(f.file("d.sock")), d.said())


def no_process_for_another_worker():
    """A daemon that cannot start a worker (a limit of processes) goes on with those it has and tries again."""
    with Folder() as f:
        by = unprivileged(f)
        if not by:
            return
        with Daemon(f.config, by=by) as d:
            ready(f)
            wait_for(lambda: status(f)["train"]["state"] == "ready", "they have done work")

            def most(n):
                subprocess.run([*UNPRIVILEGED, "prlimit", f"--pid={d.p.pid}", f"--nproc={n}:"], check=True)

            most(1)
            for left in (1, 0):
                os.kill(workers_below(d.p.pid)[0], signal.SIGKILL)
                wait_for(lambda: len(workers_below(d.p.pid)) == left, "the killed worker is gone")  # noqa: B023
                before = d.said().count("worker not started")
                wait_for(lambda: d.said().count("worker not started") > before, "the daemon tries to start another one")  # noqa: B023
                check(d.p.poll() is None, d.said())
            most(4096)
            wait_for(workers_joined(f, 2), "both are back")


def workers_killed_at_their_start_are_not_restarted_too_fast():
    """Workers that are killed before they have joined are started again, but not as fast as a machine can."""
    with Folder(**{"prepd.workers": 1}) as f:
        os.mkfifo(f.file("module.so"))  # workers wait for it, as on a file system that does not answer
        os.environ["TESSERA_IMAGE_MODULE"] = f.file("module.so")
        try:
            daemon = Daemon(f.config)
        finally:
            del os.environ["TESSERA_IMAGE_MODULE"]
        with daemon as d:
            wait_for(lambda: workers_below(d.p.pid), "the first one is started")
            killed, until = set(), time.monotonic() + 4
            while time.monotonic() < until:
                for pid in set(workers_below(d.p.pid)) - killed:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
                time.sleep(0.002)
            check(0 < len(killed) < 24, f"{len(killed)} were started in 4 s")
            check(d.p.poll() is None, d.said())


def no_process_for_a_supervisors_worker():
    """The same for workers elsewhere: the one that is left goes on."""
    with Folder(**{"prepd.workers": -1}) as f:
        by = unprivileged(f)
        if not by:
            return
        with Daemon(f.config, by=by) as d, tempfile.TemporaryFile("w+") as log:
            supervisor = subprocess.Popen([*by, BIN, "worker", "--connect", f"ipc://{f.file('d.sock.workers')}", "--workers", "2",
                                       "--data-root", f.file("data")], stderr=log)

            def said():
                return os.pread(log.fileno(), 1 << 20, 0).decode()
            try:
                ready(f)
                wait_for(lambda: status(f)["train"]["state"] == "ready", "they have done work")
                subprocess.run([*UNPRIVILEGED, "prlimit", f"--pid={supervisor.pid}", "--nproc=1:"], check=True)
                os.kill(workers_below(supervisor.pid)[0], signal.SIGKILL)
                wait_for(lambda: said().count("worker not started") > 1 or supervisor.poll() is not None, "it tries again and again")
                check(supervisor.poll() is None and len(workers_below(supervisor.pid)) == 1, said())
                subprocess.run([*UNPRIVILEGED, "prlimit", f"--pid={supervisor.pid}", "--nproc=4096:"], check=True)
                wait_for(workers_joined(f, 2), "both are back")
                check(d.p.poll() is None, d.said())
            finally:
                supervisor.terminate()
                supervisor.wait(60)


def a_terminal_shows_the_epoch():
    """Share and time left are shown in one line, which goes when the daemon ends."""
    with Folder(**{"training.epochs": 0}) as f:
        terminal = Terminal(BIN, "serve", "-c", f.config, env=dict(os.environ, TERM="xterm"))
        try:
            ready(f)
            for row in client.connect("ipc://" + f.file("d.sock"), timeout=60.0):
                check(terminal.read(0.02), terminal.said)
                if re.search(r"\r\[#*-*\] epoch \d+, \d+ %, [\d.]+ samples/s, \d+:\d\d left\x1b\[K\r", terminal.said):
                    break
        finally:
            terminal.p.terminate()
            check(terminal.end() == 0, terminal.said)
        check(not any("epoch" in line for line in terminal.screen()), terminal.screen())


def the_reader_of_the_log_may_leave():
    """When `prepd serve 2>&1 | tee log` loses its tee, the daemon, the supervisor and the workers go on."""
    options = {"prepd.workers": -1, "prepd.worker_bytes": 64 << 20, "log.level": "debug"}
    with Folder(**options) as f:
        end = "ipc://" + f.file("d.sock")
        serve = [BIN, "serve", "-c", f.config]
        keep = [BIN, "worker", "--connect", end + ".workers", "--data-root", f.file("data")]
        with subprocess.Popen(serve, stderr=subprocess.PIPE) as daemon, \
                subprocess.Popen(keep, stderr=subprocess.PIPE) as supervisor:
            try:
                rows = client.connect(end, timeout=60.0)
                check(next(rows)["number"] == 0, "no row")
                check(daemon.stderr.readline(), "the daemon logged nothing")
                daemon.stderr.close()
                supervisor.stderr.close()
                daemon.send_signal(signal.SIGHUP)
                for w in workers_below(supervisor.pid):
                    with contextlib.suppress(ProcessLookupError):  # it is being restarted
                        os.kill(w, signal.SIGKILL)
                check([next(rows)["number"] for _ in range(9)] == [*range(1, 10)], "the rows differ")
                rows.close()
                check(daemon.poll() is None and supervisor.poll() is None, "the daemon or the supervisor has ended")
                daemon.terminate()
                check(daemon.wait(60) == 0, f"exit code {daemon.returncode}")
            finally:
                daemon.kill()
                supervisor.terminate()
            check(supervisor.wait(60) == 0, f"exit code {supervisor.returncode}")


def a_killed_command_leaves_nothing_behind():
    for sig in (signal.SIGINT, signal.SIGKILL):
        with Folder() as f:
            own = f.file("tmp")
            os.mkdir(own)
            p = subprocess.Popen([BIN, "digest", "-c", f.config, "--steps", "1000000"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 env={**os.environ, "TMPDIR": own})
            wait_for(lambda: workers_below(p.pid), "workers")
            below = [*children(p.pid), *workers_below(p.pid)]
            p.send_signal(sig)
            check(p.wait(60) != 0, "the command ended with success")
            wait_for(lambda: all(gone(c) for c in below), "its processes end")
            wait_for(lambda: not os.listdir(own), "its folder is removed")


def workers_follow_a_killed_dispatcher():
    with Folder() as f, Daemon(f.config) as d:
        ready(f)
        below = children(d.p.pid)
        d.p.send_signal(signal.SIGSTOP)  # otherwise it would replace the stopped worker
        os.kill(below[0], signal.SIGSTOP)
        d.stop(signal.SIGKILL)
        wait_for(lambda: all(gone(c) for c in below), "all workers end, even the stopped one")
        with Daemon(f.config) as again:  # the stale ipc files do not keep it from starting
            ready(f)
            check(again.stop() == 0, again.said())


def a_deep_folder_does_not_matter():
    """An endpoint longer than the address of a socket can be (107 bytes), at every end of it."""
    with Folder() as f:
        deep = f.file("x" * 60 + "/" + "y" * 60)
        os.makedirs(deep)
        end = "ipc://" + deep + "/d.sock"
        with Daemon(f.config, "--prepd.endpoint", end) as d:
            wait_for(lambda: os.path.exists(deep + "/d.sock.control"), "control endpoint")
            rows = client.connect(end, timeout=60.0)
            check(next(rows)["number"] == 0 and next(rows)["number"] == 1, "no rows")
            rows.close()
            said = json.loads(run("status", "--connect", end, "--json"))
            check(said["workers_alive"] == 2, f"status: {said}")
            check(d.stop() == 0, d.said())
        check(not os.listdir(deep), f"left behind: {os.listdir(deep)}")


def an_endpoint_in_use_is_named():
    with Folder() as f, Daemon(f.config) as d:
        ready(f)
        second = subprocess.run([BIN, "serve", "-c", f.config], capture_output=True, text=True,
                                timeout=LIMIT_S)
        check(second.returncode not in (0, 70), f"exit code {second.returncode}")
        check("d.sock" in second.stderr, f"does not name the endpoint: {second.stderr}")
        check(d.p.poll() is None and len(status(f)["workers"]) == 2, "the first daemon no longer works")
    first = free_ports()
    with socket.socket() as s:
        port = first + 2
        s.bind(("127.0.0.1", port))
        s.listen()
        with Folder() as f:  # its data set never answers, but it is not read before the ports are tried
            questions = f.file("data/v2_OpenEnded_mscoco_train2014_questions.json")
            os.remove(questions)
            os.mkfifo(questions)
            for mine, whose in ((first, "control"), (first + 1, "workers'"), (first + 2, None)):
                p = subprocess.run([BIN, "serve", "-c", f.config, "--prepd.endpoint",
                                    f"tcp://127.0.0.1:{mine}"], capture_output=True, text=True, timeout=LIMIT_S)
                check(p.returncode == 69 and f":{port} is in use" in p.stderr, p.stderr)
                check(whose is None or f"the {whose} port of tcp://127.0.0.1:{mine}: " in p.stderr, p.stderr)
            for option, value, code, words in (
                    ("prepd.endpoint", f"tcp://0.0.0.0:{first}", 78, "needs CURVE keys"),
                    ("prepd.endpoint", f"ipc://{f.file('absent')}/x.sock", 73, "make the folder, or choose another prepd.endpoint"),
                    ("metrics.listen", f"127.0.0.1:{port}", 69, "metrics.listen"),
                    ("metrics.listen", "0.0.0.0:1", 78, "loopback")):
                p = subprocess.run([BIN, "serve", "-c", f.config, "--" + option, value], capture_output=True, text=True, timeout=LIMIT_S)
                check(p.returncode == code and words in p.stderr, f"{option} {value}: exit code {p.returncode}: {p.stderr}")


HELLO = {"version": 3, "stream": "train", "start_row": 0, "rank": 0, "ranks": 1,
         "credit_bytes": 1 << 20}


def message(payload, kind=1, version=1, magic=b"TSRA"):
    """A header of 64 bytes (proto's wire format) and one part of JSON; digest 0 means not given."""
    body = json.dumps(payload).encode()
    head = magic + struct.pack("<HHQIIQQ", version, kind, 0, 0, 0, len(body), 0)
    return [head.ljust(64, b"\0"), body]


def answer(context, endpoint, parts):
    s = context.socket(zmq.DEALER)
    s.setsockopt(zmq.LINGER, 0)
    s.setsockopt(zmq.RCVTIMEO, 10000)
    s.connect(endpoint)
    s.send_multipart(parts)
    got = s.recv_multipart()
    s.close()
    return got


def strangers_are_refused_and_the_daemon_lives():
    with Folder() as f, Daemon(f.config) as d:
        ready(f)
        context = zmq.Context()
        end = "ipc://" + f.file("d.sock")
        strange = [[b"hello"], [b""], [b"\0" * 64], [os.urandom(64), os.urandom(100)],
                   [b"TSRA" + b"\xff" * 60] * 3, message(HELLO)[:1]]
        for suffix in ("", ".workers", ".control"):
            for parts in strange:
                got = answer(context, end + suffix, parts)
                check(b"message" in got[1], f"no reason given: {got}")
        got = answer(context, end, message(HELLO, version=9))
        check(b"9" in got[1] and b"1" in got[1], f"versions are not named: {got[1]}")
        for change in ({"stream": "other"}, {"rank": 3}, {"ranks": 0}, {"credit_bytes": 0},
                       {"credit_bytes": "x"}, {"start_row": -1}, {"cursor": {"row": 1}},
                       {"options": {"training.seed": 99}}, {"quarantine": {}}, {"quarantine": [{"id": 1}]},
                       {"quarantine": [{"id": -1, "cause": "c"}]}, {"quarantine": [{"id": 1 << 40, "cause": "c"}]},
                       {"quarantine": 7}, {"quarantine": [{"id": 1, "cause": None}]},
                       {"quarantine": {"count": 1, "ids": "B", "index": "00" * 16}}, {"quarantine": {"count": 2, "ids": "B"}},
                       {"quarantine": {"count": 2000001, "ids": "B" * 2000001}}, {"quarantine": {"count": 1, "ids": "gggggB"}},
                       {"cursor": {"row": 1, "index": "00" * 16}}):
            got = answer(context, end, message({**HELLO, **change}))
            check(b'"code"' in got[1], f"{change} was not refused: {got[1]}")
        got = answer(context, end, message(HELLO))
        check(b"global_batch_size" in got[1], f"a good consumer is refused: {got[1]}")
        told = [{"id": 1, "cause": "c"}, {"id": 0, "cause": "by hand", "row": 3}]
        got = answer(context, end, message({**HELLO, "quarantine": told}))
        check(b'"quarantined":2' in got[1], f"HELLO's list is not taken: {got[1]}")
        options = json.loads(got[1])["options"]
        got = answer(context, end, message({**HELLO, "options": options}))
        check(b"global_batch_size" in got[1], f"the same options are refused: {got[1]}")
        options["training.seed"] = 99
        got = answer(context, end, message({**HELLO, "options": options}))
        check(b"training.seed" in got[1], f"the key that differs is not named: {got[1]}")
        check(d.p.poll() is None and len(status(f)["workers"]) == 2, "the daemon no longer works")
        context.destroy(0)


@contextlib.contextmanager
def worker_whose_words_are_changed(f, change):
    """A worker elsewhere, as the daemon sees it. change(parts) may delay each message that it sends, and returns
    what arrives."""
    context, lines, done = zmq.Context(), {}, []
    front = context.socket(zmq.ROUTER)
    front.bind("ipc://" + f.file("between"))

    def between():
        while not done:
            poller = zmq.Poller()
            for s in (front, *lines.values()):
                poller.register(s, zmq.POLLIN)
            for s, _ in poller.poll(50):
                if s is not front:
                    front.send_multipart([next(k for k, v in lines.items() if v is s), *s.recv_multipart()])
                    continue
                who, *parts = front.recv_multipart()
                if who not in lines:
                    lines[who] = context.socket(zmq.DEALER)
                    lines[who].connect("ipc://" + f.file("d.sock.workers"))
                lines[who].send_multipart(change(parts))

    thread = threading.Thread(target=between)
    thread.start()
    p = subprocess.Popen([BIN, "worker", "--connect", "ipc://" + f.file("between"), "--data-root", f.file("data")])
    try:
        yield p
    finally:
        p.kill()
        p.wait()
        done.append(True)
        thread.join()
        context.destroy(0)


def a_worker_that_sends_invalid_records_is_dismissed():
    """A worker of a trusted key, perhaps of another version, sends records that are none. It has to leave; the daemon stays
    and gets the index from another worker."""
    port = free_ports()
    end, door = f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}"
    with Folder(**{"prepd.workers": -1, "prepd.endpoint": end}) as f:
        keys, join = f.file("keys"), prepd_workers.joining(f)
        run("keygen", "--out", keys)
        run("keygen", "--out", keys, "--client", "crew", "--roles", "trusted")
        f.write_options(prepd__keys=keys)
        with Daemon(f.config) as d, zmq.Context() as context, dealer(context, door, keys + "/crew") as s:
            s.send_multipart(prepd_workers.message(join, prepd_workers.JOIN))
            kind = 0
            while kind != prepd_workers.LEASE:
                check(s.poll(60000), f"no lease\n{d.said()}")
                head, *body = s.recv_multipart()
                kind, number = struct.unpack_from("<HQ", head, 6)
            sizes = [os.path.getsize(f.file("data/" + one["path"])) for one in json.loads(body[0])["files"]]
            s.send_multipart(prepd_workers.answer(prepd_workers.RECORDS, number, {"records": [{"bytes": n} for n in sizes]}))
            wait_for(lambda: "broke the protocol" in d.said() or d.p.poll() is not None, "its records are refused or the daemon ends")
            check(d.p.poll() is None and '"mtime" is missing' in d.said(), d.said())
            good = subprocess.Popen([BIN, "worker", "--connect", door, "--keys", keys + "/crew", "--data-root", f.file("data")])
            try:
                wait_for(lambda: status(f)["train"]["state"] == "ready", "the index is built by the good one")
            finally:
                good.kill()
                good.wait()


def a_rows_stage_times_are_known_when_it_comes():
    """However slowly a worker's messages arrive."""
    def late(parts):
        if b'"stage_ns"' in parts[1]:
            time.sleep(0.3)
        return parts

    with Folder() as f:
        run("plan", "-c", f.config)  # with an index no worker of the daemon's own has to stay
        with Daemon(f.config, "--prepd.workers", "-1"), worker_whose_words_are_changed(f, late):
            rows = client.connect("ipc://" + f.file("d.sock"), timeout=float(LIMIT_S), credit_bytes=1)
            next(rows)
            seconds = status(f)["stage_seconds"]
            check(len(seconds) == 5 and all(s > 0 for s in seconds.values()), f"{seconds}")
            rows.close()


def scaled_and_drained():
    with Folder() as f, Daemon(f.config) as d:
        ready(f)
        run("scale", "5", "-c", f.config)
        wait_for(workers_joined(f, 5), "five workers")
        run("scale", "1", "-c", f.config)
        wait_for(workers_joined(f, 1), "one worker")
        wait_for(lambda: len(workers_below(d.p.pid)) == 1, "one process")
        check("workers" in run("status", "-c", f.config), "no table")
        run("drain", "-c", f.config)
        check(d.p.wait(60) == 0, "drain does not end it")


def systemd_is_told():
    with Folder() as f:
        path = f.file("notify")
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        s.bind(path)
        s.settimeout(15)
        os.environ["NOTIFY_SOCKET"] = path
        try:
            with Daemon(f.config) as d:
                check(s.recv(4096) == b"READY=1\n", "READY is not the first word")
                check(d.stop() == 0, d.said())
                said = b""
                while b"STOPPING=1" not in said:
                    said = s.recv(4096)
        finally:
            del os.environ["NOTIFY_SOCKET"]
            s.close()


def bad_configuration_is_told_with_its_code():
    with Folder() as f:
        for args, code, word in ((("--training.seqlen", "5"), 64, "training.seq_len"),
                                 (("--training.seq_len", "x"), None, "training.seq_len"),
                                 (("--data.path", f.file("nowhere")), None, "nowhere"),
                                 (("--model.path", f.file("nowhere")), None, "nowhere")):
            p = subprocess.run([BIN, "serve", "-c", f.config, *args], capture_output=True,
                               text=True, timeout=30)
            check(p.returncode in ((code,) if code else (64, 65, 66, 74, 78)),
                  f"{args}: exit code {p.returncode}\n{p.stderr}")
            check(word in p.stderr, f"{args}: {p.stderr}")


def workers_that_cannot_start_end_the_daemon():
    with Folder() as f:
        p = subprocess.run([BIN, "serve", "-c", f.config], capture_output=True, text=True,
                           timeout=60, env={**os.environ, "TESSERA_IMAGE_MODULE": "/nowhere.so"})
        check(p.returncode == 69, f"exit code {p.returncode}\n{p.stderr}")
        check("fingerprints of this machine cannot be made" in p.stderr and "/nowhere.so" in p.stderr, p.stderr)


def a_broken_model_folder_ends_the_daemon():
    """If no worker can read the model, no sample is to blame and there is no reason to try for ever."""
    with Folder() as f:
        for name in ("tokenizer.json", "config.json"):
            path = f.file("data/model/" + name)
            with open(path, "rb") as x:
                whole = x.read()
            with open(path, "wb") as x:
                x.write(whole[:len(whole) // 2])
            said = run("check", "-c", f.config, code=65)
            check(name in said and "premature EOF" in said, said)
            check("item" not in said and "quarantined" not in said, f"samples in quarantine: {said}")
            with open(path, "wb") as x:
                x.write(whole)
        check(run("check", "-c", f.config).strip().endswith(" 0 bad"), "the index was spoilt")


main(a_second_signal_ends_it_at_once, a_broken_model_folder_ends_the_daemon, workers_that_cannot_start_end_the_daemon,
     no_image_library_in_the_dispatcher, a_signal_leaves_nothing_behind, a_signal_while_the_data_is_opened,
     no_process_for_another_worker, workers_killed_at_their_start_are_not_restarted_too_fast,
     no_process_for_a_supervisors_worker, a_terminal_shows_the_epoch, the_reader_of_the_log_may_leave,
     a_killed_command_leaves_nothing_behind, workers_follow_a_killed_dispatcher, a_deep_folder_does_not_matter,
     an_endpoint_in_use_is_named, strangers_are_refused_and_the_daemon_lives,
     a_worker_that_sends_invalid_records_is_dismissed, a_rows_stage_times_are_known_when_it_comes, scaled_and_drained,
     systemd_is_told, bad_configuration_is_told_with_its_code)
