# SPDX-License-Identifier: Apache-2.0
"""What a researcher does with photographs and a JSON of his own: looks at the data, mends what is named, plans, trains a small
model, evaluates and exports it, and opens the pages.

    python3 -B tests/flow/researcher_walk.py [--photographs N] [--steps N] [--pages FOLDER]

takes N of the photographs in TESSERA_SHARED (10 unless told otherwise; --photographs 200 --steps 300 is the whole walk, some
minutes). --pages: where pictures of the pages go, as a browser shows them."""

import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys

from browser import picture
from prepd_flow import BIN, SOURCE, Daemon, Folder, check, free_ports, listed, main, run
from train_flow import trainer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--photographs", type=int, default=10)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--pages")
wanted = parser.parse_args()
DATA = os.path.join(os.environ.get("TESSERA_SHARED", ""), "data")
FOUND = sorted(glob.glob(DATA + "/vqav2/images/*/*.jpg") + glob.glob(DATA + "/images-extra/*.jpg") + glob.glob(DATA + "/odd/*.jpg"))
if not FOUND:
    print("skipped: TESSERA_SHARED has no photographs")
    sys.exit(77)


def photographs(f):
    """His folder: copies under the names of a camera, spread over all that there are."""
    os.mkdir(f.file("photos"))
    names = []
    for i in range(wanted.photographs):
        names.append(f"IMG_{i:04d}.jpg")
        shutil.copy(FOUND[i * len(FOUND) // wanted.photographs], f.file("photos/" + names[-1]))
    return names


def his_json(f, names):
    """In words of his own, which are not prepd's, with a photograph that he has deleted."""
    def colour(i):
        return ("light", "dark", "colourful")[i % 3]
    records = [{"file": name, "caption": f"Photograph {i}, which is {colour(i)}."} for i, name in enumerate(names)]
    with open(f.file("mine.json"), "w", encoding="utf-8") as out:
        json.dump(records, out, indent=1)
    os.remove(f.file("photos/" + names[3]))
    return records


def look(f, path, code=0):
    return run("check", "-c", f.config, "--data.path", f.file(path), code=code)


def he_looks_and_mends(f, records):
    """check names each record that it cannot use, first for its members, then for its picture."""
    said = look(f, "mine.json", code=65)
    check(len(listed(said)) == len(records) and 'or "question" and "answer"' in said, said)
    held_out = max(2, len(records) // 20)
    for split, part in (("train", records[:-held_out]), ("val", records[-held_out:])):
        with open(f.file(f"talks-{split}.jsonl"), "w", encoding="utf-8") as out:
            for r in part:
                out.write(json.dumps({"image": r["file"], "question": "What is this?", "answer": r["caption"]}) + "\n")
    bad = listed(look(f, "talks-train.jsonl", code=65))
    check(3 in bad and "IMG_0003.jpg" in bad[3] and len(bad) <= 1 + len(records) // 10, bad)
    with open(f.file("talks-train.jsonl"), encoding="utf-8") as lines:
        kept = [line for i, line in enumerate(lines) if i not in bad]
    with open(f.file("talks-train.jsonl"), "w", encoding="utf-8") as out:
        out.writelines(kept)
    check(f"checked {len(kept)} samples, 0 bad" in look(f, "talks-train.jsonl"), "bad samples are left")


def he_trains(f):
    plan = trainer("plan", "-c", f.config)
    check(re.search(r"\bMiB|GiB", plan), plan)
    port = free_ports()
    with Daemon(f.config, "--metrics.listen", f"127.0.0.1:{port}"):
        said = trainer("train", "-c", f.config, "--shared")
        losses = [float(x) for x in re.findall(r"^step:.* loss: +([0-9.]+)", said, re.M)]
        check(len(losses) == wanted.steps and losses[-1] < losses[0], said)
        if wanted.pages:
            picture(f"http://127.0.0.1:{port}/", os.path.join(wanted.pages, "prepd.png"))
    last = re.search(r"^trained: .*", said, re.M)
    check(last, said)
    print(last[0])


def he_takes_the_model(f):
    """The exported folder is one of Hugging Face's form; transformers opens it where there is one."""
    trainer("export", "--model", f.file("run/checkpoint"), "--out", f.file("model"))
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        check(os.path.isfile(f.file("model/" + name)), f"{name} is not there")
    python = os.environ.get("TESSERA_PYTHON")
    if not python:
        print("skipped: TESSERA_PYTHON names no interpreter with transformers")
        return
    code = ("import sys, transformers\n_, told = transformers.AutoModelForImageTextToText.from_pretrained(sys.argv[1], "
            "output_loading_info=True)\nprint({k: v for k, v in told.items() if v})")
    p = subprocess.run([python, "-c", code, f.file("model")], capture_output=True, text=True, timeout=600)
    check(p.returncode == 0 and p.stdout.strip() == "{}", p.stdout + p.stderr)


def he_opens_the_pages(f):
    for name in ("report", "predictions"):
        path = f.file(f"run/{name}.html")
        check(os.path.getsize(path) > 2000, f"{name}.html is empty")
        if wanted.pages:
            picture("file://" + path, os.path.join(wanted.pages, name + ".png"), (1280, 2400))


def photographs_and_a_json_of_his_own():
    with Folder(images=8) as f:
        names = photographs(f)
        records = his_json(f, names)
        f.options.pop("data.path")
        f.write_options(data__format="conversations", data__path=f.file("talks-train.jsonl"), data__images=f.file("photos"),
                        eval__enable="true", eval__path=f.file("talks-val.jsonl"), eval__page=f.file("run/predictions.html"),
                        eval__generate=2 if wanted.steps < 10 else 32, training__seq_len=512, training__global_batch_size=2, training__local_batch_size=1, training__steps=wanted.steps, optimizer__lr=0.002,
                        job__dump_folder=f.file("run"), metrics__log_freq=1, checkpoint__enable="true")
        he_looks_and_mends(f, records)
        he_trains(f)
        he_takes_the_model(f)
        he_opens_the_pages(f)


sys.argv = sys.argv[:1]
main(photographs_and_a_json_of_his_own)
