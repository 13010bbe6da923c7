# SPDX-License-Identifier: Apache-2.0
"""What a run leaves to look at: figures in lines, TensorBoard's events, one page; and a bad step by either
policy."""

import json
import math
import os
import re
import signal
import struct
import subprocess
import urllib.error
import urllib.request

from prepd_flow import LIMIT_S, Folder, check, free_ports, main, wait_for
from prometheus import asked_by_dashboard, asked_by_rules, check_asked, figures
from resume_flow import STREAM, command, go, ledger, recorded


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    at, out = 0, []
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size, at = (varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at))
            value, at = data[at:at + size], at + size
        out.append((key >> 3, value))
    return out


def events(path):
    """{(tag, step): value}, every checksum checked."""
    with open(path, "rb") as f:
        data = f.read()
    out, at, first = {}, 0, True
    while at < len(data):
        size, head = struct.unpack_from("<QI", data, at)
        body = data[at + 12:at + 12 + size]
        check(head == masked(data[at:at + 8]), "a length's checksum")
        check(struct.unpack_from("<I", data, at + 12 + size)[0] == masked(body), "a record's checksum")
        event = fields(body)
        step = dict(event).get(2, 0)
        check(not first or dict(event)[3] == b"brain.Event:2", f"{event}")
        for _, value in fields(dict(event).get(5, b"")):
            v = dict(fields(value))
            out[v[1].decode(), step] = struct.unpack("<f", v[2])[0]
        first, at = False, at + 16 + size
    return out


def metrics(f, name):
    with open(f.file(name + "/metrics.jsonl")) as file:
        return [json.loads(line) for line in file]


def tensorboard_reads(folder):
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print("SKIPPED: TensorBoard's own reader is not installed; only ours has read the events")
        return
    reader = EventAccumulator(folder)
    reader.Reload()
    check(len(reader.Scalars("loss_metrics/global_avg_loss")) == 4, "TensorBoard reads otherwise")


def numbers_and_pages():
    with Folder(**STREAM) as f:
        rows = recorded(f, 4)
        go(f, "run", metrics__enable_tensorboard="true", job__description="<a & b>", **rows)
        lines = metrics(f, "run")
        for m in lines:
            parts = [m["grad_norm_" + g] for g in ("vision", "merger", "text", "router", "experts")]
            check(abs(math.hypot(*parts) - m["grad_norm"]) < 1e-9 * m["grad_norm"], f"{m}")
            check(m["expert_load"] >= 1 and 0 <= m["experts_idle_percent"] <= 100, f"{m}")
            check(m["samples_per_s"] > 0 and m["images_per_s"] > 0, f"{m}")
        left = [m["seconds_left"] for m in lines]
        check(left[-1] == 0 and all(x > 0 for x in left[:-1]), f"{left}")
        tb = f.file("run/tb")
        found = events(os.path.join(tb, os.listdir(tb)[0]))
        for m in lines:
            check(abs(found["loss_metrics/global_avg_loss", m["step"]] - m["loss"]) < 1e-6, "TensorBoard's loss")
            check(abs(found["throughput(tps)", m["step"]] / m["tps"] - 1) < 1e-6, "TensorBoard's tps")
        tensorboard_reads(tb)
        page = open(f.file("run/report.html")).read()
        check("&lt;a &amp; b&gt;" in page and page.count("<svg") >= 8 and page.count("<polyline") >= 8, page[:2000])
        check(not re.search(r"https?:|src=|href=|@import|url\(", page), "the page needs a network")
        check("optimizer.lr: " in page, "no options")


def answer(port, path):
    """The code and the text of an answer; code 0 while no one listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()
    except urllib.error.URLError:
        return 0, ""


def figures_for_prometheus():
    """A run under way answers, and tells what the lines of metrics.jsonl tell."""
    with Folder(**STREAM) as f:
        rows = recorded(f, 4)
        port = free_ports()
        watched = command(f, "run", **dict(rows, training__steps=1000000, checkpoint__interval=2,
                                           checkpoint__keep_latest_k=1, metrics__step_timeout=LIMIT_S,
                                           metrics__trainer_listen=f"127.0.0.1:{port}"))
        with open(f.file("said"), "w") as said, subprocess.Popen(watched, stdout=said, stderr=said) as p:
            try:
                wait_for(lambda: p.poll() is not None or "\ntrainer_checkpoint_step " in answer(port, "/metrics")[1],
                         "a checkpoint")
                check(p.poll() is None, open(f.file("said")).read())
                code, text = answer(port, "/metrics")
                check(code == 200 and answer(port, "/healthz") == (200, "ok\n"), text)
                in_use = go(f, "other", code=69, metrics__trainer_listen=f"127.0.0.1:{port}", **rows)
                check("metrics.trainer_listen" in in_use, in_use)
            finally:
                p.send_signal(signal.SIGTERM)
            check(p.wait(LIMIT_S) == 0, open(f.file("said")).read())
        value = figures(text)
        line = metrics(f, "run")[int(value["trainer_step"]) - 1]
        check(value["trainer_loss"] == line["loss"] and value["trainer_grad_norm"] == line["grad_norm"], f"{line} {text}")
        evaluated = ("trainer_held_out_loss",)  # a recording has no held-out rows
        check_asked(asked_by_dashboard("grafana-trainer.json"), "trainer", value, evaluated)
        check_asked(asked_by_rules("trainer"), "trainer", value)
        check(value["trainer_steps_total"] == value["trainer_step"], text)
        check(value["trainer_checkpoint_step"] % 2 == 0 and value['trainer_checkpoints_total{outcome="written"}'] > 0, text)
        with open(f.file("run/memory.json")) as file:
            check(value["trainer_memory_planned_bytes"] == json.load(file)["total"], text)
        wide = go(f, "wide", code=78, metrics__trainer_listen="0.0.0.0:9465", **rows)
        check("metrics.any_address" in wide, wide)


def a_bad_step_stops_the_run():
    with Folder(**STREAM) as f:
        rows = recorded(f, 4)
        # An absurd learning rate soon makes a gradient that is not finite.
        wild = dict(rows, optimizer__lr=10, training__max_norm=0, optimizer__weight_decay=10,
                    optimizer__eps=0, training__steps=40, checkpoint__interval=0)
        said = go(f, "skip", **wild)
        bad = [n for n, e in ledger(f, "skip").items() if e["skipped"]]
        check(bad and re.search(r"^step: .*  skipped$", said, re.M), said)
        said = go(f, "stop", code=65, training__nonfinite="stop", **wild)
        steps = ledger(f, "stop")
        check(max(steps) == bad[0] and steps[bad[0]]["ids"], f"{max(steps)}, {bad}")
        check(os.path.isdir(f.file(f"stop/checkpoint/step-{bad[0]}")), "no checkpoint")


main(numbers_and_pages, figures_for_prometheus, a_bad_step_stops_the_run)
