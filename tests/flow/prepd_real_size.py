# SPDX-License-Identifier: Apache-2.0
"""VQAv2's train split in its own form and size is opened, indexed, planned and served within bounded memory, and a
picture is encoded once for all its questions if data.group says so. Pictures and texts are drawn from
../shared/data/vqav2 if it is there, else from a generated set.

prepd_real_size.py [full]    the quick form has a tenth of the questions, the long form all 443,757"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time

from prepd_flow import LIMIT_S, SANITIZED, Daemon, Folder, check, main, run, wait_for, workers_below

SOURCE = os.environ.get("TESSERA_SOURCE", ".")
SHARED = os.environ.get("TESSERA_SHARED", os.path.join(SOURCE, "..", "shared"))
REAL = os.path.isdir(os.path.join(SHARED, "data", "vqav2"))
sys.path.insert(0, os.path.join(SOURCE, "proto", "python"))
from tessera import client  # noqa: E402

FULL = sys.argv[1:2] == ["full"]
QUESTIONS, IMAGES, ANSWERS = (443757, 82783, 4437570) if FULL else (44375, 8278, 443750)
# Limits in MiB. At full size 500 MiB are the goal for the dispatcher. At a tenth, its program and the row under way are
# a good part of the memory.
DISPATCHER = 250 if FULL else 64
WORKER = 128


@contextlib.contextmanager
def drawn(questions, images, *more):
    """A folder with such a data set in "real"; returns the options that name it, and the tokenizer."""
    with Folder(images=64, **{"training.seq_len": 8192, "training.global_batch_size": 8}) as f:
        source = os.path.join(SHARED, "data", "vqav2") if REAL else f.file("data")
        model = os.path.join(SHARED, "data", "tokenizer") if REAL else f.file("data/model")
        subprocess.run([os.path.join(SOURCE, "tests/bench/prepd/full_size"), f.file("real"), "--source", source,
                        "--questions", str(questions), "--images", str(images), *more], check=True)
        yield f, ["--data.path", f.file("real"), "--model.path", model]


def peak(pid):
    """The most MiB that it had resident."""
    with open(f"/proc/{pid}/status") as x:
        return next(int(line.split()[1]) / 1024 for line in x if line.startswith("VmHWM"))


def started(f, options):
    """Takes rows one at a time, so that memory is the data set's and not that of rows on their way. Returns (seconds
    to the first row, what the daemon says of the data, MiB of the dispatcher and of the largest worker after some
    more, its log)."""
    began = time.monotonic()
    with Daemon(f.config, *options) as d:
        wait_for(lambda: os.path.exists(f.file("d.sock")), "the daemon", LIMIT_S)
        rows = client.connect("ipc://" + f.file("d.sock"), timeout=float(LIMIT_S), credit_bytes=1)
        for k, row in enumerate(rows):
            if not k:
                took = time.monotonic() - began
            check(len(set(row["doc_sample_id"])) == len(row["doc_sample_id"]), "a sample twice in a row")
            if k == 1:
                break
        said = json.loads(run("status", "-c", f.config, *options, "--json"))["train"]
        sizes = peak(d.p.pid), max(map(peak, workers_below(d.p.pid)))
        rows.close()
        return took, said, *sizes, d.said()


def a_data_set_of_real_size():
    """Cold and from its caches; and with one of the ten answers drawn, which means that all are read."""
    with drawn(QUESTIONS, IMAGES) as (f, options):
        with open(f.file("real/v2_mscoco_train2014_annotations.json")) as x:
            answers = sum(line.count('"answer_id"') for line in x)
        check(answers == ANSWERS, f"{answers} answers")
        for name, more, word in (("cold", [], "index built"), ("warm", [], "index loaded"),
                                 ("answers drawn, cold", ["--data.answer", "drawn"], "index built")):
            took, said, dispatcher, worker, log = started(f, options + more)
            print(f"{name}: first row after {took:.1f} s, dispatcher {dispatcher:.0f} MiB, worker {worker:.0f} MiB at most")
            check(word in log, f"{name}: {log}")
            check(said["samples"] == QUESTIONS, f"{said['samples']} samples")
            check(SANITIZED or dispatcher < DISPATCHER, "the dispatcher takes too much memory")
            check(SANITIZED or worker < WORKER, "a worker takes too much memory")
        said = run("plan", "-c", f.config, *options)
        check(f"samples: {QUESTIONS}, refused: 0\n" in said, said)
        fill = float(re.search(r"tokens: .* fill: ([0-9.]+) %", said)[1])
        greedy = float(re.search(r"greedy .* fill: ([0-9.]+) %", said)[1])
        worst = float(re.search(r"worst step ([0-9.]+) %", said)[1])
        print(f"plan: {fill} % filled (greedy {greedy} %), worst step {worst} % above the mean")
        buckets_are_reported(said)
        planning = float(re.search(r"planning: .* ([0-9.]+) us a sample", said)[1])
    with drawn(100, 20) as (f, options):
        decoding = 1e6 * counted(f, options)[-1] / 100
    print(f"planning {planning:.1f} us a sample, {100 * planning / decoding:.3f} % of reading, decoding and resizing one ({decoding:.0f})")
    if REAL:
        check(fill > 99.8 and fill > greedy, "rows are not full")
        check(worst < 3, "ranks wait for each other")
    else:
        print("skipped: no shared data, whose sizes are real: how full rows are is not judged")


def buckets_are_reported(said):
    """Each with its share of the rows and how full they are, and the padding of all of them."""
    n = int(re.search(r"^buckets: (\d+) ", said, re.M)[1])
    table = [line.split() for line in said[said.index("buckets: "):].split("\n")[2:2 + n]]
    padding = [float(x) for x in re.search(r"padding to buckets: ([0-9.]+) % of the tokens, ([0-9.]+) % of the patches", said).groups()]
    rows, share, *fills = ([float(line[k].rstrip("%")) for line in table] for k in (8, 9, 10, 11))
    check(n > 1 and abs(sum(share) - 100) < 0.01 * n, f"shares of buckets: {share}")
    for fill, lost, capacity in zip(fills, padding, (0, 1)):
        room = [r * float(line[capacity]) for r, line in zip(rows, table)]
        held = sum(x * y / 100 for x, y in zip(fill, room))
        check(abs(lost - 100 * (1 - held / sum(room))) < 0.02, f"padding: {lost} of {room}, full to {fill}")


def counted(f, options):
    """Of an epoch received: samples, pictures as sent, patches as sent, tokens that stand for merged patches; and
    the seconds of all workers for reading, decoding and resizing it."""
    samples, pictures, patches, visual = [], 0, 0, 0
    with Daemon(f.config, *options, "--training.epochs", "1"):
        wait_for(lambda: os.path.exists(f.file("d.sock")), "the daemon")
        for row in client.connect("ipc://" + f.file("d.sock"), timeout=float(LIMIT_S), prefixes=True):
            samples += [int(i) for i, part in zip(row["doc_sample_id"], row["doc_part"]) if part >= 0]
            pictures += len(row["grid_thw"])
            patches += len(row["pixels"])
            visual += int((row["visual_row"] >= 0).sum())
        stages = json.loads(run("status", "-c", f.config, *options, "--json"))["stage_seconds"]
        check(all(s > 0 for s in stages.values()), f"a stage took no time: {stages}")
    return sorted(samples), pictures, patches, visual, sum(stages[k] for k in ("read", "decode", "resize"))


def a_picture_is_encoded_once_for_its_questions():
    """What is received has as many pictures as there are, their patches once, and the same tokens of all questions."""
    n_questions, n_images = 100, 20
    with drawn(n_questions, n_images, "--even") as (f, options):
        apart = counted(f, options)
        shared = counted(f, options + ["--data.group", "shared_image"])
        print(f"pictures {apart[1]} -> {shared[1]}, patches {apart[2]} -> {shared[2]}, visual tokens {apart[3]} -> {shared[3]}")
        check(apart[0] == shared[0] == list(range(n_questions)), "not every sample came once")
        check(apart[1] == n_questions and shared[1] == n_images, "pictures")
        check(apart[2] == 5 * shared[2], "patches: there are five questions to each picture")
        check(apart[3] == shared[3] == apart[2] // 4, "visual tokens: each question has its picture's, four patches each")


def evenly_loaded(said):
    """Of 8 ranks the slowest is at most 1.5 % above the mean on average, and 3 % in the worst step."""
    mean, worst = re.search(r"^balance: .* slowest is ([0-9.]+) % above the mean \(worst step ([0-9.]+) %\)", said, re.M).groups()
    print(f"the slowest of 8 ranks is {mean} % above the mean, {worst} % in the worst step")
    return float(mean) <= 1.5 and float(worst) <= 3


def prefixes_are_planned_at_real_size():
    """The questions on a picture follow its prefix: rows stay full, a question has a fraction of its tokens, and
    planning takes next to nothing of the time in which its pictures are decoded."""
    with drawn(QUESTIONS if FULL else 8000, IMAGES if FULL else 1492) as (f, options):
        said = run("plan", "-c", f.config, *options, "--data.group", "shared_prefix")
        even = [evenly_loaded(said), evenly_loaded(run("plan", "-c", f.config, *options, "--data.group", "shared_image"))]
        fill = float(re.search(r"tokens: .* fill: ([0-9.]+) %", said)[1])
        planning = float(re.search(r"planning: .* ([0-9.]+) us a sample", said)[1])
        none, own = ([float(x) for x in re.search(rf"^  {g} +([0-9.]+) +[0-9.]+ +([0-9.]+)$", said, re.M).groups()]
                     for g in ("none", "shared_prefix"))
        print(re.search("^prefixes.*$", said, re.M)[0])
        print(f"{fill} % filled; tokens a question {none[0]} -> {own[0]}, TFLOP {none[1]} -> {own[1]} (predicted)")
    with drawn(200, 37) as (f, options):
        samples, pictures, _, _, seconds = counted(f, options + ["--data.group", "shared_prefix"])
        check(samples == list(range(200)) and pictures == 37, f"{len(samples)} samples, {pictures} pictures")
        decoding = 1e6 * seconds / 200
    print(f"planning {planning:.1f} us a question, {100 * planning / decoding:.2f} % of reading, decoding and resizing ({decoding:.0f})")
    if REAL:
        check(all(even), "ranks wait for the slowest one")
        check(fill > (99 if FULL else 98), "rows are not full")  # of 66 rows the last one weighs more
        check(SANITIZED or planning < decoding / 100, "planning takes more than a hundredth of decoding")
        check(none[0] > 4 * own[0] and none[1] > 4 * own[1], "prefixes save less than the numbers of questions let expect")


main(a_data_set_of_real_size, a_picture_is_encoded_once_for_its_questions, prefixes_are_planned_at_real_size)
