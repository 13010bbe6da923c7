# SPDX-License-Identifier: Apache-2.0
"""prepd under an operator: metrics, health, systemd's messages, reload, drain, a restarted daemon."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from faults import trap
from prepd_flow import BIN, LIMIT_S, Daemon, Folder, check, free_ports, main, run, seed, state_of, \
    wait_for, workers_below
from prometheus import asked_by_dashboard, asked_by_rules, check_asked, figures

SOURCE = os.environ.get("TESSERA_SOURCE", ".")
sys.path.insert(0, os.path.join(SOURCE, "proto", "python"))
from tessera import client, messages  # noqa: E402


def get(port, path, timeout=60.0):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def links_at_the_bare_address(port):
    """A browser finds a page whose links all work; HEAD gives its headers alone."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as r:
        page = r.read()
        check(r.headers["Content-Type"].startswith("text/html"), f"{r.headers}")
    links = re.findall(r'href="([^"]+)"', page.decode())
    check(links == ["/metrics", "/healthz", "/readyz"] and all(get(port, to)[0] == 200 for to in links), f"{links}")
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/", method="HEAD")) as r:
        check(r.status == 200 and int(r.headers["Content-Length"]) == len(page) and r.read() == b"", f"{r.headers}")


def up(folder):
    wait_for(lambda: os.path.exists(folder.file("d.sock.control")), "control endpoint")


def rows_of(folder, n=None, **options):
    """(number, digest of the ids) of the next rows, and the last cursor."""
    out, cursor = [], None
    for row in client.connect("ipc://" + folder.file("d.sock"), timeout=60.0, **options):
        out.append((row["number"], tuple(row["doc_sample_id"]), row["pixels"].tobytes()))
        cursor = row["cursor"]
        if len(out) == n:
            break
    return out, cursor


def figures_for_prometheus():
    with Folder(**{"training.epochs": 1}) as f:
        port = free_ports()
        with Daemon(f.config, "--metrics.listen", f"0.0.0.0:{port}", "--metrics.any_address") as d:
            up(f)
            check(f"metrics.listen 0.0.0.0:{port}: everyone who reaches this address can read" in d.said(), d.said())
            check(get(port, "/healthz")[0] == 200, "healthz")
            rows, _ = rows_of(f)
            wait_for(lambda: get(port, "/readyz")[0] == 200, "readyz")
            # One worker may have made all rows before the other one has joined.
            wait_for(lambda: 'prepd_workers{state="idle"} 2\n' in get(port, "/metrics")[1], "both workers")
            code, text = get(port, "/metrics")
            check(code == 200 and get(port, "/other")[0] == 404, "codes")
            links_at_the_bare_address(port)
            value = figures(text)
            check(value["prepd_rows_total"] == len(rows), f"rows: {value}")
            check(value['prepd_stream_rows_total{stream="train"}'] == len(rows), f"rows by stream: {value}")
            check(value['prepd_stream_rows_total{stream="eval"}'] == 0, f"rows by stream: {value}")
            check(value["prepd_samples_total"] == sum(len(r[1]) for r in rows), "samples")
            check(value['prepd_stage_seconds_total{stage="decode"}'] > 0, "no stage times")
            check(value['prepd_workers{state="idle"}'] == 2, "workers")
            info = re.findall(r'prepd_stream_info\{section="(.*?)",id="([0-9a-f]{32})",data="(.*?)",', text)
            check([(a, c) for a, _, c in info] == [("train", f.file("data"))], f"{info}")
            check(value['prepd_consumers{stream="train"}'] == value['prepd_stream_rows_sent{stream="eval"}'] == 0, text)
            check(value["process_cpu_seconds_total"] > 0, "no CPU time")
            check(abs(time.time() - value["process_start_time_seconds"]) < 600, "another start")
            check_asked(asked_by_dashboard("grafana-prepd.json"), "prepd", value)
            check_asked(asked_by_rules("prepd"), "prepd", value)
            said = run("status", "-c", f.config)
            check("stages" in said and "decode" in said and "oldest" in said, said)
            d.p.send_signal(signal.SIGSTOP)  # a frozen daemon is not healthy
            try:
                get(port, "/healthz", 0.5)
            except (socket.timeout, OSError):
                pass
            else:
                raise AssertionError("a frozen daemon is healthy")
            d.p.send_signal(signal.SIGCONT)
            wait_for(lambda: get(port, "/healthz")[0] == 200, "the daemon is healthy again")
        p = subprocess.run([BIN, "serve", "-c", f.config, "--metrics.listen", "0.0.0.0:9464"],
                           capture_output=True, text=True, timeout=30)
        check(p.returncode == 78 and "metrics.any_address" in p.stderr, p.stderr)


def a_daemon_says(endpoint, answer, after_s=0):
    """A thread in a daemon's place, which answers one command."""
    import zmq
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(endpoint + ".control")

    def serve():
        who, *_ = socket.recv_multipart()
        time.sleep(after_s)
        text = json.dumps(answer).encode()
        head = messages.HEADER.pack(b"TSRA", 1, 33, 0, 0, 0, len(text), 0, bytes(16), bytes(8))
        socket.send_multipart([who, head, text])
        context.destroy(linger=5000)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def all_quarantined_samples_are_counted():
    """Those that the daemon lists, and those beyond the list."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"ipc://{folder}/d.sock"
        listed = [{"id": i, "cause": "no picture"} for i in (3, 5)]
        source = {"state": "ready", "samples": 9000, "quarantined": listed}
        daemon = a_daemon_says(endpoint, {"train": dict(source, quarantined_count=1234),
                                          "eval": dict(source, quarantined_count=2)})
        said = run("status", "--connect", endpoint)
        daemon.join()
        check("train       ready, 9000 samples, 1234 quarantined" in said and said.count("and 1232 more") == 1, said)
        check("eval        ready, 9000 samples, 2 quarantined" in said and said.count(" more\n") == 1, said)


def a_lease_grows_old():
    """While a picture hangs, the age of the oldest lease grows as the clock does, for Prometheus and in the status."""
    port = free_ports()
    with trap(), Folder(images=64, **{"prepd.sample_timeout": 20, "data.shuffle": "false"}) as f:
        image = next(x for x in f.train_images() if min(f.questions_of(x), default=0) > 20)
        with open(image, "ab") as x:
            x.write(b"POISON:hang")

        def ages():
            """The age of the oldest lease, for Prometheus and, in the status, of the worker that is busy longest."""
            said = json.loads(run("status", "-c", f.config, "--json"))
            return (float(re.search(r"\nprepd_lease_age_seconds (\S+)", get(port, "/metrics")[1])[1]),
                    max((w["seconds"] for w in said["workers"] if w["busy"]), default=0))
        with Daemon(f.config, "--metrics.listen", f"127.0.0.1:{port}") as d:
            up(f)
            rows = client.connect("ipc://" + f.file("d.sock"), timeout=60.0)
            next(rows)
            wait_for(lambda: ages()[0] > 2, "a lease that takes its time")
            begun, before = time.monotonic(), ages()
            time.sleep(1)
            after, most = ages(), time.monotonic() - begun
            check(all(1 <= b - a <= most for a, b in zip(before, after)), f"within {most:.2f} s from {before} to {after}")
            rows.close()
            d.stop(signal.SIGKILL)


def a_daemon_without_time_is_waited_for():
    """A daemon that is busy will do what it was told some time later, so the command does not say that there is no
    daemon."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"ipc://{folder}/d.sock"
        daemon = a_daemon_says(endpoint, {"ok": True}, after_s=6)
        p = subprocess.run([BIN, "drain", "--connect", endpoint], capture_output=True, text=True, timeout=LIMIT_S)
        daemon.join()
        check(p.returncode == 0 and "the daemon is there but has not answered yet" in p.stderr, f"{p.returncode}: {p.stderr}")


def a_service_manager_that_does_not_read_does_not_block():
    """Once its socket is full, the daemon goes on without it."""
    with Folder() as f, tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(f"{folder}/notify")
        os.environ.update(NOTIFY_SOCKET=f"{folder}/notify", WATCHDOG_USEC="200000")
        try:
            with Daemon(f.config) as d:
                up(f)
                while deaf.recv(4096) != b"READY=1\n":
                    pass
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as full, contextlib.suppress(BlockingIOError):
                    full.setblocking(False)
                    while True:
                        full.sendto(b"X=1", f"{folder}/notify")
                time.sleep(1)  # time for several signs of life
                check(len(rows_of(f, 8)[0]) == 8, "no rows")
                while deaf.recv(4096) != b"WATCHDOG=1\n":
                    pass
                deaf.settimeout(0)
                with contextlib.suppress(BlockingIOError):  # makes room for its last message
                    while True:
                        deaf.recv(4096)
                check(d.p.poll() is None, d.said())
        finally:
            del os.environ["NOTIFY_SOCKET"], os.environ["WATCHDOG_USEC"]


def slow_connections_keep_no_one_out():
    """Twice as many connections as are kept, each sending a byte now and then: the next one is answered, and each of
    them is ended in time."""
    port = free_ports()
    with Folder() as f, Daemon(f.config, "--metrics.listen", f"127.0.0.1:{port}"):
        up(f)
        slow = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(64)]
        for s in slow:
            s.setblocking(False)
        dripping = True

        def drip():
            """Until all are closed."""
            say = b"GET /healthz HTTP/1.1\r\nX: "
            while dripping and slow:
                for s in list(slow):
                    try:
                        s.sendall(say)
                        closed = s.recv(1) == b""
                    except BlockingIOError:
                        closed = False
                    except OSError:
                        closed = True
                    if closed:
                        slow.remove(s)
                        s.close()
                say = b"x"
                time.sleep(0.2)
        t = threading.Thread(target=drip)
        t.start()
        try:
            begun = time.monotonic()
            check(get(port, "/healthz")[0] == 200, "a quick request was kept out")
            print(f"answered after {time.monotonic() - begun:.2f} s, {len(slow)} of 64 slow ones were left")
            wait_for(lambda: not slow, "the end of the last slow one")
        finally:
            dripping = False
            t.join()
        check(get(port, "/healthz")[0] == 200, "healthz afterwards")


def the_next_lease_is_sent_ahead():
    """A worker has its next lease before it has answered the present one. Workers that leave, as these do after
    after every lease, leave it unbegun: the rows are the same, and hardly a lease counts as lost."""
    def streamed(*options):
        with Folder(**{"training.epochs": 3}) as f, Daemon(f.config, "--prepd.workers", "1", *options):
            up(f)
            rows, _ = rows_of(f)
            return rows, json.loads(run("status", "-c", f.config, "--json"))
    lasting, said = streamed()
    check(0 < said["leases_ahead"] < len(lasting), f"{said['leases_ahead']} of {len(lasting)} leases were sent ahead")
    changing, said = streamed("--prepd.worker_bytes", "64MiB")
    check(changing == lasting, "workers that start anew change the rows")
    check(said["workers_replaced"] > 3 and said["leases_ahead"] > 0, f"too few workers were replaced: {said}")
    # On a busy machine the end of a worker is now and then seen before its last row, and then its lease does count.
    check(said["leases_lost"] < said["workers_replaced"] - 1, f"leases count as lost: {said}")


def the_status_has_what_the_page_says():
    with open(os.path.join(SOURCE, "prepd/operating.md")) as f:
        text = f.read().split("## `prepd status --json`\n")[1].split("\n## ")[0]
    text = re.sub(r"\([^)]*\)", "", text)

    def inside(name):
        return {x.strip() for x in re.search(rf"`{name}`:([^;]*)", text)[1].strip(" .\n").split(",")}
    with Folder(**{"prepd.workers": 1}) as f, Daemon(f.config):
        up(f)
        rows = client.connect("ipc://" + f.file("d.sock"), timeout=60.0)
        next(rows)
        said = json.loads(run("status", "-c", f.config, "--json"))
        rows.close()
    for what, has, wanted in (("status", said, {x for names in re.findall("`([^`]+)`", text) for x in names.split()} | {"ok"}),
                              ("workers", said["workers"][0], inside("workers")),
                              ("consumers", said["consumers"][0], inside("consumers")),
                              ("train", said["train"], inside("eval"))):
        check(set(has) == wanted, f"{what}: one of the two has not {set(has) ^ wanted}")
    check(set(said["eval"]) <= set(said["train"]), f"{said['eval']}")


class ServiceManager:
    """What systemd would hear."""

    def __init__(self, path, watchdog_s):
        self.path, self.s = path, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.s.bind(path)
        self.heard, self.at = [], 0  # (when, lines) of each message, and how many of them were looked at
        self.thread = threading.Thread(target=self.hear)
        self.thread.start()
        os.environ["NOTIFY_SOCKET"] = path
        os.environ["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))

    def hear(self):
        """Always reads, because the sender waits until there is room."""
        while said := self.s.recv(4096).decode():
            self.heard.append((time.monotonic(), said.split("\n")))

    def until(self, word):
        """What is said next, up to the message with a line that begins so."""
        def there():
            return [k for k, (_, said) in enumerate(self.heard) if k >= self.at and any(x.startswith(word) for x in said)]
        wait_for(there, f"systemd hears {word}")
        begin, self.at = self.at, there()[0] + 1
        return [x for _, said in self.heard[begin:self.at] for x in said]

    def say(self, words):
        """As a supervised process does; what it said before is heard first."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(words, self.path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        del os.environ["NOTIFY_SOCKET"], os.environ["WATCHDOG_USEC"]
        self.say(b"")
        self.thread.join()
        self.s.close()


def status_line(folder):
    """What systemd should hear, made from what prepd status says."""
    said = json.loads(run("status", "-c", folder.config, "--json"))
    c = said["consumers"][0]
    bad = said["train"]["quarantined_count"] + said["eval"]["quarantined_count"]
    return f"STATUS=epoch {c['epoch']} {100 * c['epoch_share']:.0f}%, {said['rows']} rows, " \
           f"{said['samples_per_s']:.1f} samples/s, {len(said['workers'])} workers, {bad} quarantined"


def systemd_is_told_the_true_state():
    with Folder(**{"data.quarantine_limit": 100}) as f, ServiceManager(f.file("notify"), 0.8) as s:
        for image in f.train_images()[::10]:
            os.truncate(image, os.path.getsize(image) // 2)
        with Daemon(f.config) as d:
            s.until("READY=1")
            s.until("WATCHDOG=1")
            rows = client.connect("ipc://" + f.file("d.sock"), timeout=60.0, credit_bytes=1 << 20)
            # After these rows the daemon waits for credit, so nothing changes.
            taken = sum(len(next(rows)["doc_sample_id"]) for _ in range(40))
            wait_for(lambda: status_line(f) in s.until("STATUS="), "STATUS= says what prepd status says")
            heard = [(when, x) for when, said in s.heard for x in said if x.startswith("STATUS=")]
            # Each rate is over the time since the message before it.
            told = sum(float(re.search(r"([\d.]+) samples/s", x)[1]) * (when - before)
                       for (before, _), (when, x) in zip([(s.heard[0][0], ""), *heard], heard))
            sent = json.loads(run("status", "-c", f.config, "--json"))["samples"]
            check(taken <= sent and sent / 2 < told < 2 * sent, f"{sent} samples were sent, by their rates {told:.0f}: {heard}")
            check(re.fullmatch(r"STATUS=epoch \d+ \d+%, [1-9]\d* rows, [\d.]+ samples/s, 2 workers, [1-9]\d* quarantined",
                               status_line(f)), status_line(f))
            rows.close()
            d.p.send_signal(signal.SIGHUP)
            said = s.until("RELOADING=1")
            check(any(x.startswith("MONOTONIC_USEC=") for x in said) and
                  ("READY=1" in said or s.until("READY=1")), f"reload: {said}")
            d.p.send_signal(signal.SIGSTOP)
            wait_for(lambda: state_of(d.p.pid) == "T", "the daemon is frozen")
            s.say(b"MARK=1")
            s.until("MARK=1")
            time.sleep(1.2)
            check(not s.heard[s.at:], f"a frozen daemon gives signs of life: {s.heard[s.at:]}")
            d.p.send_signal(signal.SIGCONT)
            d.p.send_signal(signal.SIGTERM)
            s.until("STOPPING=1")
            check(d.p.wait(LIMIT_S) == 0, d.said())


def reloaded_without_a_trace_in_the_stream():
    with Folder(**{"training.epochs": 1}) as f:
        with open(f.config) as x:
            text = x.read()

        def write(change):
            with open(f.config, "w") as y:
                y.write(change(text))

        with Daemon(f.config) as d:
            up(f)
            whole, _ = rows_of(f)
            rows = client.connect("ipc://" + f.file("d.sock"), timeout=60.0, credit_bytes=1 << 20)
            first = [next(rows)["number"] for _ in range(5)]
            write(lambda t: t.replace("workers: 2", "workers: 3").replace(
                "seq_len: 512", "seq_len: 256") + "log:\n  level: debug\n")
            d.p.send_signal(signal.SIGHUP)
            wait_for(lambda: "reloaded options=2" in d.said(), f"the reload {d.said()}")
            check("not reloaded: training.seq_len" in d.said(), d.said())
            wait_for(lambda: len(workers_below(d.p.pid)) == 3, "three workers")
            write(lambda t: t + "nonsense:\n  key: 1\n")
            d.p.send_signal(signal.SIGHUP)
            wait_for(lambda: "not reloaded, and nothing changes" in d.said(), "the invalid file")
            check("config.yaml" in d.said().split("not reloaded, and nothing changes")[1], d.said())
            write(lambda t: t + "  sample_timeout: 7\n" if t.rstrip().endswith("sock") else
                  t.replace("workers: 2", "workers: 2\n  sample_timeout: 7"))
            d.p.send_signal(signal.SIGHUP)  # workers are replaced between leases to get new limits
            wait_for(lambda: "reloaded prepd.sample_timeout" in d.said(), d.said())
            rest = [row["number"] for row in rows]
            check(first + rest == [r[0] for r in whole], "rows were lost by the reload")
            check(rows_of(f)[0] == whole, "the stream changed")


def address_space(pid):
    """Its limit; 0 before it has any, and when it is gone."""
    try:
        with open(f"/proc/{pid}/limits") as f:
            limit = next(line for line in f if line.startswith("Max address space")).split()[3]
    except OSError:
        limit = "unlimited"
    return 0 if limit == "unlimited" else int(limit)


def reloaded_options_take_effect():
    """Each of them, shown by what it bounds. After indexing, pictures are damaged: one hangs, others are truncated."""
    with trap(), Folder(images=128, **{"training.epochs": 0, "data.quarantine_limit": 100}) as f:
        end = "ipc://" + f.file("d.sock")

        def status():
            return json.loads(run("status", "-c", f.config, "--json"))

        def under_way(enough):
            """The bytes that are under way to a consumer that takes only one row, once they are `enough` or no longer grow."""
            rows = client.connect(end, timeout=60.0, credit_bytes=1 << 26)
            next(rows)
            now, since = -1, time.monotonic()
            while now < enough and time.monotonic() - since < 2:
                was, now = now, status()["consumers"][0]["unreturned_bytes"]
                since = time.monotonic() if now != was else since
                time.sleep(0.05)
            rows.close()
            wait_for(lambda: not status()["consumers"], "the consumer has left")
            return now

        hangs, mark = f.train_images()[-1], b"POISON:hang"
        sample = min(f.questions_of(hangs))
        with open(hangs, "ab") as x:
            x.write(bytes(len(mark)))
        with Daemon(f.config, "--data.limit", str(sample + 1)) as d:  # its sample is the last one
            def reload(section, key, value):
                with open(f.config) as x:
                    lines = [line for line in x.read().splitlines(True) if not line.startswith(f"  {key}:")]
                lines.insert(lines.index(f"{section}:\n") + 1, f"  {key}: {value}\n")
                with open(f.config, "w") as x:
                    x.writelines(lines)
                times = d.said().count("reloaded options=1\n") + 1
                d.p.send_signal(signal.SIGHUP)
                wait_for(lambda: d.said().count("reloaded options=1\n") == times, f"the reload of {key}: {d.said()}")

            up(f)
            check(under_way(5 << 20) > 4 << 20, "rows under way")
            reload("prepd", "buffer_bytes", 1 << 20)
            check(under_way(5 << 20) < 2 << 20, "buffer_bytes")
            before = [address_space(p) for p in workers_below(d.p.pid)]  # 2 GiB more than they began with, by default
            check(all(before), "their limit before")
            reload("prepd", "worker_bytes", 16 << 30)
            wait_for(lambda: [address_space(p) - max(before) > 8 << 30 for p in workers_below(d.p.pid)] == [True] * 2,
                     "workers with another limit")
            with open(hangs, "r+b") as x:  # the file keeps the size that the index knows
                x.seek(-len(mark), os.SEEK_END)
                x.write(mark)
            for image in f.train_images()[::10]:
                if image != hangs:
                    os.truncate(image, os.path.getsize(image) * 2 // 3)
            reload("prepd", "sample_timeout", 1)
            reload("prepd", "solo_deaths", 1)
            samples = sum(len(r["doc_sample_id"]) for r, _ in zip(client.connect(end, timeout=60.0), range(80)))
            there = status()["train"]["quarantined"]
            hung = [x["cause"] for x in there if x["id"] == sample]
            check(len(hung) == 1 and "than 1 s" in hung[0], f"the sample that hangs is not in quarantine: {there}")
            # The sample kills a worker twice with its row, and then alone as often as prepd.solo_deaths says.
            gone = re.findall(r"worker gone.*cause=\"signal 14", d.said())  # without the workers that a reload replaces
            check(len(gone) == 3, f"workers were lost to it {d.said()}")
            check(samples > 1000 and len(there) > 10, f"of {samples} samples quarantined: {there}")
            reload("data", "quarantine_limit", 1)
            try:
                for _ in zip(client.connect(end, timeout=60.0), range(500)):
                    pass
            except RuntimeError as why:
                check("data.quarantine_limit" in str(why), str(why))
            check(d.p.wait(LIMIT_S) == 65, d.said())


def drained_with_work_in_hand():
    """By a signal or for good: everything that was leased before reaches the consumer, and nothing after it."""
    rng, in_hand = seed(), 0
    for k in range(4):
        with Folder(images=64, **{"training.epochs": 0}) as f, Daemon(f.config) as d:
            up(f)
            rows = client.connect("ipc://" + f.file("d.sock"), timeout=60.0)
            got = [next(rows)["number"] for _ in range(3)]
            time.sleep(rng.uniform(0, 0.2))
            said = json.loads(run("status", "-c", f.config, "--json"))["consumers"][0]
            if k % 2:
                run("drain", "-c", f.config)
            else:
                d.p.send_signal(signal.SIGTERM)
            try:
                for row in rows:
                    got.append(row["number"])
            except RuntimeError as told:
                check("stops" in str(told), str(told))
            check(d.p.wait(25) == 0, d.said())
            sent = re.search(r"drained rows=(\d+)", d.said())
            check(sent and got == list(range(int(sent[1]))), f"{len(got)} rows came: {d.said()}")
            check(len(got) >= said["rows_sent"] + said["in_work"], f"{len(got)} rows came, before it drained: {said}")
            in_hand += said["in_work"]
    check(in_hand > 0, "there was never work in hand")
    print(f"{in_hand} rows in hand")


def killed_and_restarted_under_a_consumer():
    """The consumer holds the cursor; each daemon continues after the rows that were taken."""
    rng = seed()
    with Folder(**{"training.epochs": 1}) as f:
        with Daemon(f.config):
            up(f)
            whole, _ = rows_of(f)
        got, cursor, deaths = [], None, 0
        while len(got) < len(whole):
            with Daemon(f.config) as d:
                wait_for(lambda: subprocess.run([BIN, "status", "-c", f.config],
                                                capture_output=True).returncode == 0, "answers")
                wanted = None if deaths >= 8 else rng.randrange(1, 6)
                rows, cursor = rows_of(f, wanted, cursor=json.loads(cursor) if cursor else None)
                got += rows
                d.stop(signal.SIGKILL)
                deaths += 1
        check(got == whole, "the stream is another one after restarts")
        print(f"{deaths} daemons")


def one_daemon_builds_the_index():
    """Others that start on the same cold cache wait for it, say so, and build it themselves if it died."""
    with Folder(images=32) as f, contextlib.ExitStack() as all_:
        cache = f.file("cache")

        def start(name, workers):
            end = "ipc://" + f.file(name)
            words = ["--prepd.workers", str(workers)] if workers else f.without_workers()
            d = all_.enter_context(Daemon(f.config, "--prepd.endpoint", end, "--prepd.cache_dir", cache, *words))
            wait_for(lambda: os.path.exists(f.file(name + ".control")), f"{name}\n{d.said()}")
            return d, lambda: json.loads(run("status", "--connect", end, "--json"))["train"]

        def state(said, wanted, d):
            wait_for(lambda: said()["state"] == wanted, f"state {wanted}\n{d.said()}")

        def lock():
            return [name for name in os.listdir(cache) if name.endswith(".lock")]

        os.mkdir(cache)
        a, of_a = start("a", 0)  # it has no worker, so it builds for as long as the test wants
        state(of_a, "building the index", a)
        b, of_b = start("b", 1)
        c, of_c = start("c", 1)
        waiting = "waiting for an index that another prepd builds"
        for d, of_d in ((b, of_b), (c, of_c)):
            state(of_d, waiting, d)
            who = f"pid {a.p.pid} on {socket.gethostname()}"
            check(of_d()["waits_for"] == who and f"{who}: waiting for it" in d.said(), f"{of_d()}\n{d.said()}")
        check(c.stop(signal.SIGTERM) == 0, f"a daemon that waits does not stop\n{c.said()}")
        name, = lock()
        a.stop(signal.SIGKILL)
        state(of_b, "ready", b)  # the kernel has released the lock
        check("index built" in b.said() and not lock(), f"{lock()}\n{b.said()}")
        os.unlink(os.path.join(cache, name[:-len(".lock")]))

        a, of_a = start("a2", 0)
        state(of_a, "building the index", a)
        c, of_c = start("c2", 1)
        state(of_c, waiting, c)
        run("scale", "1", "--connect", "ipc://" + f.file("a2"))
        state(of_c, "ready", c)
        check("index built" in a.said(), a.said())
        check("index loaded" in c.said() and "index built" not in c.said(), f"it was built twice\n{c.said()}")
        check(not lock(), f"left behind: {lock()}")
        os.unlink(os.path.join(cache, name[:-len(".lock")]))

        os.mkdir(os.path.join(cache, name))  # a folder cannot be locked, so each daemon builds its own index
        d, of_d = start("d", 1)
        state(of_d, "ready", d)
        check("index built" in d.said() and "cannot be locked" in d.said(), d.said())


READING = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def threads(pid):
    """What the kernel says of each."""
    out = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/status") as x:
            out.append({k: v.strip() for k, _, v in (line.partition(":") for line in x)})
    return out


def confined(pid):
    try:
        said = threads(pid)
    except OSError:
        return False
    return bool(said) and all(t["NoNewPrivs"] == "1" and t["Seccomp"] == "2" for t in said)


def privileges(pid):
    """All that any of its threads has, can take or can pass on."""
    return max(int(t[name], 16) & ~READING for t in threads(pid) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"))


def workers_have_no_privileges():
    with Folder() as f, Daemon(f.config) as d:
        up(f)
        rows_of(f, 4)
        wait_for(lambda: len(workers_below(d.p.pid)) == 2 and
                 all(confined(pid) for pid in workers_below(d.p.pid)), "workers in the sandbox")
        check(not confined(d.p.pid) and (os.geteuid() != 0 or privileges(d.p.pid)), "the check does not tell")
        check(all(privileges(pid) == 0 for pid in workers_below(d.p.pid)),
              f"capabilities of workers: {[threads(pid) for pid in workers_below(d.p.pid)]}")
        check(all(os.getsid(pid) == pid for pid in workers_below(d.p.pid)),
              "a worker shares the daemon's terminal")


main(the_next_lease_is_sent_ahead, figures_for_prometheus, a_lease_grows_old, the_status_has_what_the_page_says,
     all_quarantined_samples_are_counted, slow_connections_keep_no_one_out, a_daemon_without_time_is_waited_for,
     a_service_manager_that_does_not_read_does_not_block, systemd_is_told_the_true_state,
     reloaded_without_a_trace_in_the_stream, reloaded_options_take_effect, drained_with_work_in_hand,
     killed_and_restarted_under_a_consumer, workers_have_no_privileges, one_daemon_builds_the_index)
