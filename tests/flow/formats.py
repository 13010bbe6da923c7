# SPDX-License-Identifier: Apache-2.0
"""What the tests of data formats share: the synthetic VQAv2 set, written in other formats."""

import io
import json
import os
import sys
import tarfile

from prepd_flow import Daemon, check, wait_for

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402


def load(folder, split="train"):
    """Returns [(image file, question, answer)] of the synthetic set in the order of its questions."""
    with open(folder.file(f"data/v2_OpenEnded_mscoco_{split}2014_questions.json")) as f:
        questions = json.load(f)["questions"]
    with open(folder.file(f"data/v2_mscoco_{split}2014_annotations.json")) as f:
        answers = {a["question_id"]: a["multiple_choice_answer"] for a in json.load(f)["annotations"]}
    image = "images/%s2014/COCO_%s2014_%012d.jpg"
    return [(image % (split, split, q["image_id"]), q["question"], answers[q["question_id"]])
            for q in questions]


def llava(image, question, answer, mark="<image>"):
    return {"image": image, "conversations": [{"from": "human", "value": mark + question},
                                              {"from": "gpt", "value": answer}]}


def messages(image, question, answer):
    return {"messages": [{"role": "user", "content": [{"type": "image", "image": image},
                                                      {"type": "text", "text": question}]},
                         {"role": "assistant", "content": answer}]}


def write_lines(path, records):
    with open(path, "w") as f:
        for r in records:
            f.write((r if isinstance(r, str) else json.dumps(r, ensure_ascii=False)) + "\n")
    return path


def write_array(path, records):
    with open(path, "w") as f:
        json.dump(records, f, indent=1)
    return path


def options(**values):
    return [w for k, v in values.items() for w in ("--" + k.replace("__", "."), str(v))]


def in_data(folder, name):
    return os.path.join(folder.file("data"), name)


def write_tar(path, members, form_of=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w", format=form_of) as t:
        for name, data in members:
            data = data if isinstance(data, bytes) else (data if isinstance(data, str) else json.dumps(data)).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    return path


def picture(f, name):
    with open(in_data(f, name), "rb") as x:
        return x.read()


def stream_of(f, args, n=None, cursor=None):
    rows = []
    with Daemon(f.config, *args) as d:
        wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
        stream = client.connect("ipc://" + f.file("d.sock"), timeout=60.0, cursor=cursor, prefixes=True)
        for row in stream:
            rows.append(row)
            if len(rows) == n:
                break
        stream.close()
        check(d.p.poll() is None, d.said())
    return rows


def fingerprint(row):
    return [(k, v.tobytes()) for k, v in sorted(row.items()) if hasattr(v, "tobytes")]


def own_of(row):
    """Which of its samples are blank."""
    return {q["id"] for q in json.loads(row["quarantine"] or "[]")}
