"""Parquet as Hugging Face has VQAv2, converted: the same rows as the files from which it was made. Needs pyarrow,
which Debian does not have; skipped without it. With it, from the top of the tree:

    python3 -m venv V && V/bin/pip install pyarrow numpy zstandard
    TESSERA_SOURCE=$PWD TESSERA_BIN=$PWD/build/bin V/bin/python tests/flow/prepd_parquet.py
"""

import json
import os
import subprocess
import sys

from formats import in_data
from prepd_flow import Folder, check, digest, main, run

try:
    import pyarrow as pa
    import pyarrow.parquet as parquet
except ImportError:
    print("skipped: no pyarrow")
    sys.exit(77)


def rows(f):
    with open(f.file("data/v2_OpenEnded_mscoco_train2014_questions.json")) as x:
        questions = json.load(x)["questions"]
    with open(f.file("data/v2_mscoco_train2014_annotations.json")) as x:
        answers = {a["question_id"]: a for a in json.load(x)["annotations"]}
    for q in questions:
        path = in_data(f, "images/train2014/COCO_train2014_%012d.jpg" % q["image_id"])
        with open(path, "rb") as x:
            yield dict(answers[q["question_id"]], **q, image={"bytes": x.read(), "path": None})


def the_same_rows_as_json():
    source = os.environ.get("TESSERA_SOURCE", ".")
    with Folder(images=64) as f:
        table = pa.Table.from_pylist(list(rows(f)))
        half = table.num_rows // 2
        parquet.write_table(table.slice(0, half), f.file("train-0.parquet"))
        parquet.write_table(table.slice(half), f.file("train-1.parquet"))
        subprocess.run([sys.executable, os.path.join(source, "deploy/vqav2-from-parquet"), "--split", "train",
                        "--out", f.file("made"), f.file("train-0.parquet"), f.file("train-1.parquet")], check=True)
        check("0 bad" in run("check", "-c", f.config, "--data.path", f.file("made")), "check")
        check(digest(f.config, "--steps", "6", "--data.path", f.file("made")) == digest(f.config, "--steps", "6"),
              "the rows differ")


main(the_same_rows_as_json)
