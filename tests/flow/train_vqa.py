# SPDX-License-Identifier: Apache-2.0
"""The accuracy of generated answers by VQAv2's rules. On generated pictures all ten annotators agree, so it must be the
accuracy that teacher forcing counts; with annotators changed by hand, it must be what the rules say. Questions that
share a prefix in their rows get the answers and the accuracy that they get apart."""

import json
import os
import re
import sys

from prepd_flow import SOURCE, Daemon, Folder, check, main, run
from train_flow import SHORT, options, trainer

sys.path.insert(0, os.path.join(SOURCE, "proto", "python"))
from tessera import client  # noqa: E402

STREAM = {"training.seq_len": 256, "training.global_batch_size": 4}


def learned(f):
    run("record", "-c", f.config, "--steps", "40", "--out", f.file("rows.rec"))
    values = dict(SHORT, **{"feed.replay": f.file("rows.rec"), "training.steps": 60, "optimizer.lr": 0.003,
                            "job.dump_folder": f.file("run"), "checkpoint.enable": "true"})
    trainer("train", "-c", f.config, *options(values))
    return f.file("run/checkpoint")


def judged(f, model, *more):
    said = trainer("eval", "-c", f.config, "--model.path", model, "--eval.generate", "-1", "--eval.show", "0", *more)
    forced = re.search(r"accuracy: ([0-9.]+)% of (\d+) answers", said)
    vqa = re.search(r"^vqa: accuracy: ([0-9.]+)% of (\d+) questions", said, re.MULTILINE)
    types = re.findall(r"^  (answer|question) type +(.+?) +([0-9.]+)% of (\d+)$", said, re.MULTILINE)
    check(forced and vqa and types, said)
    return float(forced[1]), int(forced[2]), float(vqa[1]), int(vqa[2]), types


def page(path, questions, vqa):
    """Every question is on the page once, under a picture, with the words that were judged."""
    with open(path) as file:
        text = file.read()
    rows = re.findall(r'<tr class="(right|wrong)"><td>(.+?)</td><td>(.+?)</td><td>(.*?)</td><td>(\d+) %</td>', text)
    check(len(rows) == questions, f"{len(rows)} rows of {questions} questions")
    check(all((asked.endswith("?")) and (score == "100") == (want == words) for _, asked, want, words, score in rows), rows)
    check(abs(sum(int(r[4]) for r in rows) / questions - vqa) < 0.06, f"{vqa}")
    pictures = re.findall(r'src="data:image/png;base64,([A-Za-z0-9+/=]+)"', text)
    check(0 < len(pictures) <= text.count("<section>") and all(p.startswith("iVBORw0KGgo") for p in pictures), "pictures")
    check("://" not in text, "the page needs a network")


def annotations(f):
    path = f.file("data/v2_mscoco_val2014_annotations.json")
    with open(path) as file:
        return path, json.load(file)


def agrees_with_teacher_forcing_and_the_rules():
    with Folder(images=48, **STREAM) as f:
        model = learned(f)
        path, document = annotations(f)
        check(all(len({a["answer"] for a in q["answers"]}) == 1 for q in document["annotations"]), "synth changed")
        with Daemon(f.config):
            forced, n, vqa, m, types = judged(f, model, "--eval.page", f.file("page.html"))
        check(n == m and 0 < forced < 100 and abs(forced - vqa) < 0.06, f"{forced}, {vqa}")
        for kind in ("answer", "question"):
            mine = [(float(p), int(k)) for t, _, p, k in types if t == kind]
            check(sum(k for _, k in mine) == m, f"{types}")
            check(abs(sum(p * k for p, k in mine) / m - vqa) < 0.01, f"{types}")
        page(f.file("page.html"), m, vqa)
        shared = ("--data.group", "shared_prefix")
        with Daemon(f.config, *shared):
            rows = client.connect("ipc://" + f.file("d.sock"), stream="eval", timeout=60.0, prefixes=True)
            prefixes = sum(int((row["doc_part"] < 0).sum()) for row in rows)
            check(prefixes > 0, "no held-out questions share a prefix")
            together = judged(f, model, "--eval.page", f.file("shared.html"), *shared)
        check(together[:4] == (forced, n, vqa, m) and sorted(together[4]) == sorted(types), f"{together}, apart {forced} {vqa}")
        page(f.file("shared.html"), m, vqa)
        # Now two of the ten annotators agree with the answer and eight do not. A right answer is then worth 0.6.
        for q in document["annotations"]:
            for a in q["answers"][2:]:
                a["answer"] = "nothing of the kind"
        with open(path, "w") as file:
            json.dump(document, file)
        with Daemon(f.config):
            _, _, two, _, _ = judged(f, model)
        check(abs(two - 0.6 * vqa) < 0.02, f"{two}, wanted 0.6 x {vqa}")


main(agrees_with_teacher_forcing_and_the_rules)
