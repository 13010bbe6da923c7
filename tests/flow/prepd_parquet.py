# SPDX-License-Identifier: Apache-2.0
"""deploy/from-parquet: tables of every common form become data that prepd reads; VQAv2's own table becomes the rows of the
files from which it was made; a killed command goes on; what cannot be used is refused. pyarrow, which Debian does not
have, is replaced by table_double unless it is there:

    python3 -m venv V && V/bin/pip install pyarrow numpy zstandard
    TESSERA_SOURCE=$PWD TESSERA_BIN=$PWD/build/bin V/bin/python tests/flow/prepd_parquet.py
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

from formats import in_data
from prepd_flow import Folder, check, digest, main, run

SOURCE = os.path.abspath(os.environ.get("TESSERA_SOURCE", "."))
DOUBLE = os.path.join(SOURCE, "tests/flow/table_double")
try:
    import pyarrow as pa
    import pyarrow.parquet as parquet
except ImportError:
    pa = None
    print("skipped: no pyarrow; what follows runs with its double")

PICTURE = "struct<bytes: binary, path: string>"


def hexed(value):
    if isinstance(value, bytes):
        return {"$": value.hex()}
    if isinstance(value, list):
        return [hexed(v) for v in value]
    return {k: hexed(v) for k, v in value.items()} if isinstance(value, dict) else value


def write_table(path, columns, rows, group=4, features=()):
    """A table in row groups of `group` rows. columns: {name: type}, which pyarrow finds by itself; features: those of Hugging Face."""
    about = json.dumps({"info": {"features": dict(features)}})
    if pa is None:
        with open(path, "w") as f:
            json.dump({"columns": columns, "groups": [hexed(rows[i:i + group]) for i in range(0, len(rows), group)],
                       "metadata": about}, f)
        return
    table = pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows])
    found = {field.name: str(field.type) for field in table.schema}
    check({n: k.replace("element:", "item:") for n, k in found.items()} == columns, f"the types of the test are not pyarrow's: {found}")
    parquet.write_table(table.replace_schema_metadata({"huggingface": about}), path, row_group_size=group)


def converted(*args, code=0, **env):
    p = subprocess.run([sys.executable, os.path.join(SOURCE, "deploy/from-parquet"), *args], capture_output=True, text=True,
                       env=dict(os.environ, PYTHONPATH="" if pa else DOUBLE, **env))
    check(p.returncode == code, f"from-parquet {args}: exit code {p.returncode}, wanted {code}\n{p.stdout}{p.stderr}")
    return p.stdout if code == 0 else p.stderr


def aside(out):
    """The numbers of the rows that were set aside, each with a reason."""
    with open(os.path.join(out, "set-aside.jsonl")) as x:
        rows = [json.loads(line) for line in x]
    check(all(0 < len(r["why"]) < 1000 and r["table"] for r in rows), rows)
    return [r["row"] for r in rows]


def vqa_rows(f):
    with open(f.file("data/v2_OpenEnded_mscoco_train2014_questions.json")) as x:
        questions = json.load(x)["questions"]
    with open(f.file("data/v2_mscoco_train2014_annotations.json")) as x:
        answers = {a["question_id"]: a for a in json.load(x)["annotations"]}
    for q in questions:
        with open(in_data(f, "images/train2014/COCO_train2014_%012d.jpg" % q["image_id"]), "rb") as x:
            yield dict(answers[q["question_id"]], **q, image={"bytes": x.read(), "path": None})


VQA = {"question_id": "int64", "image_id": "int64", "question": "string", "multiple_choice_answer": "string",
       "question_type": "string", "answer_type": "string", "image": "struct<bytes: binary, path: null>"}


def everything_below(folder):
    found = {}
    for at, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(at, name), "rb") as f:
                found[os.path.relpath(os.path.join(at, name), folder)] = f.read()
    return found


def the_same_rows_as_json_and_killed_anywhere():
    """VQAv2's columns become VQAv2's folder, also if the command is killed at any row group and repeated."""
    with Folder(images=24) as f:
        rows = list(vqa_rows(f))
        half = len(rows) // 2
        columns = dict(VQA, answers="list<item: struct<answer: string, answer_confidence: string, answer_id: int64>>")
        columns = columns if rows[0].get("answers") else VQA
        tables = [f.file("train-0.parquet"), f.file("train-1.parquet")]
        size = half // 3 + 1
        write_table(tables[0], columns, rows[:half], group=size)
        write_table(tables[1], columns, rows[half:], group=size)
        said = converted("--split", "train", "--out", f.file("made"), *tables)
        check("question     <- question" in said and "data.format vqav2" in said and f"{len(rows)} records" in said, said)
        wanted = everything_below(f.file("made"))
        check("0 bad" in run("check", "-c", f.config, "--data.path", f.file("made")), "check")
        check(digest(f.config, "--steps", "6", "--data.path", f.file("made")) == digest(f.config, "--steps", "6"), "other rows")
        if pa is None:
            out = ["--split", "train", "--out", f.file("killed"), *tables]
            for _ in range(2 * 3):
                converted(*out, code=-signal.SIGKILL, TABLE_DOUBLE_KILL="2")  # at the second of its groups
                with open(f.file("killed/from-parquet.json")) as x:
                    if json.load(x)["at"]["group"] == 2 and os.path.exists(f.file("killed/.table-00001")):
                        break
            with open(f.file("killed/.table-00001"), "ab") as x:
                x.write(b'{"half a li')
            check("going on with table 2 of 2, row group 3" in converted(*out), "it began anew")
            found = everything_below(f.file("killed"))
            differ = [n for n in {*found, *wanted} if found.get(n) != wanted.get(n)]
            check(not differ, f"killed and continued, other files: {differ}")
        check("is finished" in converted("--split", "train", "--out", f.file("made"), *tables), "made twice")
        said = converted("--split", "val", "--out", f.file("made"), *tables, code=65)
        check("was begun with another split" in said, said)
        other = dict(rows[0], image={"bytes": rows[-1]["image"]["bytes"], "path": None})
        write_table(tables[0], columns, [*rows[:2], other])
        said = converted("--split", "train", "--out", f.file("two"), tables[0])
        check("1 rows set aside" in said and aside(f.file("two")) == [3], said)


def pictures_of(f):
    images = f.train_images()
    found = []
    for path in images[:8]:
        with open(path, "rb") as x:
            found.append({"bytes": x.read(), "path": os.path.basename(path)})
    return found


def made(f, name, columns, rows, *args, **more):
    """The records that a table becomes, and what was said; prepd finds no fault with them."""
    path = f.file(f"{name}.parquet")
    write_table(path, columns, rows, **more)
    said = converted("--out", f.file(name), path, *args)
    with open(f.file(name + "/train-00000.jsonl")) as x:
        records = [json.loads(line) for line in x]
    checked = run("check", "-c", f.config, "--data.format", "conversations", "--data.path", f.file(name), "--data.split", "train")
    check(f"checked {len(records)} samples, 0 bad" in checked, checked)
    return records, said


def texts(record):
    return [m["content"] for m in record["messages"]]


def every_form_of_table():
    with Folder(images=16) as f:
        a, b, c = pictures_of(f)[:3]
        records, said = made(f, "questions", {"id": "int64", "picture": PICTURE, "query": "string", "label": "list<item: string>"},
                             [{"id": 1, "picture": a, "query": "What?", "label": ["a", "dog", "dog"]},
                              {"id": 2, "picture": b, "query": "Who?", "label": ["me"]},
                              {"id": 3, "picture": a, "query": "Why?", "label": []}])
        check([texts(r) for r in records] == [["<image>What?", "dog"], ["<image>Who?", "me"]], records)
        check("1 rows left out: no answer" in said and "not used: id" in said, said)
        check(len(os.listdir(f.file("questions/images"))) <= 2 and records[0]["image"].endswith(".jpg"), records)
        turns = "list<item: struct<{}: string, {}: string>>"
        records, _ = made(f, "messages", {"images": f"list<item: {PICTURE}>", "conversations": turns.format("from", "value")},
                          [{"images": [a, b], "conversations": [{"from": "human", "value": "Same?"}, {"from": "gpt", "value": "No."}]},
                           {"images": [c], "conversations": [{"from": "human", "value": "<image>\nThis?"}, {"from": "gpt", "value": "Yes."},
                                                             {"from": "human", "value": "Sure?"}, {"from": "gpt", "value": "Yes."}]},
                           {"images": [], "conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}])
        check([texts(r)[0] for r in records] == ["<image><image>Same?", "<image>\nThis?", "2+2?"], records)
        check(len(records[0]["images"]) == 2 and "image" not in records[2], records)
        records, _ = made(f, "texts", {"images": f"list<item: {PICTURE}>", "texts": turns.format("user", "assistant")},
                          [{"images": [a], "texts": [{"user": "One?", "assistant": "1"}, {"user": "Two?", "assistant": "2"}]}])
        check([m["role"] for m in records[0]["messages"]] == ["user", "assistant"] * 2, records)
        records, _ = made(f, "captions", {"image": PICTURE, "caption": "list<item: string>"},
                          [{"image": a, "caption": ["A dog.", "An animal."]}], "--prompt", "What is this?")
        check([(r["question"], r["answer"]) for r in records] == [("What is this?", "A dog."), ("What is this?", "An animal.")], records)
        records, _ = made(f, "classes", {"img": PICTURE, "label": "int64"}, [{"img": a, "label": 1}],
                          features={"tags": [{"dtype": "string", "_type": "Value"}], "kind": {"_type": "ClassLabel", "num_classes": 2},
                                    "word": "string", "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}})
        check(records[0]["answer"] == "dog", records)
        records, _ = made(f, "choices", {"image_1": PICTURE, "image_2": PICTURE, "question": "string", "choices": "list<item: string>",
                                         "answer": "int64"},
                          [{"image_1": a, "image_2": b, "question": "Which?", "choices": ["x", "y"], "answer": 1}])
        check(texts(records[0]) == ["<image><image>Which?\nA. x\nB. y", "B. y"], records)
        records, said = made(f, "options", {"image": PICTURE, "question": "string", "options": "list<item: string>", "answer": "string"},
                             [{"image": a, "question": "Which?", "options": ["x", "y"], "answer": answer} for answer in ("x", "B", "1", "z")])
        check([texts(r)[1] for r in records] == ["A. x", "B. y", "B. y"] and "1 rows left out: the answer is none of the choices" in said,
              said)
        records, said = made(f, "mmmu", {**{f"image_{i}": PICTURE for i in (1, 2, 3)}, "question": "string", "options": "string", "answer": "string"},
                             [{"image_1": a, "image_2": b, "image_3": c, "question": "Like <image 2>?", "options": "['it\\'s', '<image 1>', 'y']",
                               "answer": "B"},
                              {"image_1": a, "image_3": c, "question": "<image 3> and <image 3>?", "options": "[]", "answer": "7"},
                              {"image_1": a, "question": "Which?", "options": '["x", "y"]', "answer": "A"},
                              {"image_1": a, "image_3": c, "question": "<image 2>?", "options": "[]", "answer": "7"},
                              {"image_1": a, "question": "Which?", "options": "x or y", "answer": "A"}])
        check([texts(r) for r in records] == [["<image>Like <image>?\nA. it's\nB. <image>\nC. y", "B"], ["<image><image> and <image>?", "7"],
                                              ["<image>Which?\nA. x\nB. y", "A. x"]], records)
        kinds = [r.get("images") or [r["image"]] for r in records]
        check(kinds[0][2] == kinds[1][0] == kinds[2][0] != kinds[1][1] == kinds[1][2] == kinds[0][0], records)
        check("names a picture that the row does not have" in said and "the choices are no list; --columns choices=" in said, said)
        records, said = made(f, "letters", {"image": PICTURE, "question": "string", "A": "string", "B": "string", "C": "string", "answer": "string"},
                             [{"image": a, "question": "Which?", "A": "x", "B": "y", "C": None, "answer": "B"},
                              {"image": a, "question": "Which?", "A": "x", "B": "y", "C": "z", "answer": "C"}])
        check([texts(r) for r in records] == [["<image>Which?\nA. x\nB. y", "B. y"], ["<image>Which?\nA. x\nB. y\nC. z", "C. z"]], records)
        records, said = made(f, "named", {"image": PICTURE, "question": "string", "answer": "string", "better": "string"},
                             [{"image": a, "question": "Q?", "answer": "bad", "better": "good"}], "--columns", "answer=better")
        check(texts(records[0])[1] == "good" and "answer       <- better" in said, said)
        records, _ = made(f, "chosen", {"image": PICTURE, "question": "string", "answer": "string", "caption": "string"},
                          [{"image": a, "question": "Q?", "answer": "A", "caption": "C"}], "--columns", "caption=caption,question=,answer=")
        check(records[0]["answer"] == "C", records)
        shown = converted("--show", f.file("questions.parquet"))
        check("PICTURE 1" in shown and "<image>What?" in shown, shown)


def a_hostile_row_is_set_aside():
    """Rows that once ended the conversion with a traceback, each between good ones; killed anywhere, none is listed twice."""
    good = json.dumps([{"role": "user", "content": "<image>Q?"}, {"role": "assistant", "content": "A"}])
    bad = ["5", "[" * 10**5, '[{"role": {"a": 1}, "content": "x"}]', good.replace("Q?", "\\ud800"), '[{"role": "user", "content": "Q?", "type": 3}, '
           '{"role": "assistant", "content": [{"type": "text", "text": 5}]}]']
    with tempfile.TemporaryDirectory() as folder:
        def file(name):
            return os.path.join(folder, name)
        picture = {"bytes": b"\xff\xd8\xff", "path": "a.jpg"}
        rows = [{"image": picture, "conversations": words} for k in bad for words in (good, k)]
        rows += [{"image": {"bytes": None, "path": "a\0b"}, "conversations": good}, {"image": {"bytes": None, "path": "http://a"}, "conversations": good},
                 {"image": picture, "conversations": good}]
        wrong = [2, 4, 6, 8, 10, 11, 12]
        columns = {"image": PICTURE, "conversations": "string"}
        write_table(file("t.parquet"), columns, rows)
        if pa is None:
            with open(file("t.parquet")) as x:
                table = json.load(x)
            table["groups"][0][2] = {"!": "it is no text\x1b[2J"}
            table["groups"].insert(1, "dddd")  # a group of four rows that cannot be read
            with open(file("t.parquet"), "w") as x:
                json.dump(table, x)
            wrong = [2, 3, 4, 5, 6, 7, 8, *(n + 4 for n in wrong if n > 4)]
            for _ in range(3):
                converted("--out", file("out"), "--images", folder, file("t.parquet"), code=-signal.SIGKILL, TABLE_DOUBLE_KILL="2")
        said = converted("--out", file("out"), "--images", folder, file("t.parquet"))
        check(f"{len(wrong)} rows set aside" in said and file("out/set-aside.jsonl") in said, said)
        check(aside(file("out")) == wrong, f"{aside(file('out'))}, wanted {wrong}")
        with open(file("out/train-00000.jsonl")) as x:
            n = sum(json.loads(line)["image"].endswith(".jpg") for line in x)
        check(n == len(rows) + 4 * (pa is None) - len(wrong), f"{n} records")
        write_table(file("none.parquet"), columns, [rows[1]])
        said = converted("--out", file("none"), file("none.parquet"), code=65)
        check("none.parquet, row 1: TypeError" in said and "no row made a record: 1 rows set aside" in said, said)
        said = converted("--show", file("none.parquet"), code=65)
        check("none.parquet, row 1: TypeError" in said, said)


def memory_that_runs_out_is_no_bad_row():
    """Wherever it does, the command ends and the next one reads that row group again: nothing is set aside, no record is lost."""
    if pa:
        return  # only the double runs out when it is told to
    with tempfile.TemporaryDirectory() as folder:
        table, out = os.path.join(folder, "t.parquet"), os.path.join(folder, "out")
        write_table(table, {"question": "string", "answer": "string"}, [{"question": f"Q{k}", "answer": "A"} for k in range(12)])
        for where in "group", "table", "row", "value":
            said = converted("--out", out, "--no-pictures", table, code=71, TABLE_DOUBLE_MEMORY=f"{where} 2")
            check(f"{table}, row group 2: there is not enough memory" in said and "resumes from here" in said, said)
            said = converted("--out", out, "--no-pictures", table)
            check("table 1 of 1, row group 2" in said and "12 records" in said and "set aside" not in said, said)
            with open(os.path.join(out, "train-00000.jsonl")) as x:
                found = [texts(json.loads(line))[0] for line in x]
            check(found == [f"Q{k}" for k in range(12)], found)
            shutil.rmtree(out)
            said = converted("--show", "--no-pictures", table, code=71, TABLE_DOUBLE_MEMORY=f"{where} 1")
            check("there is not enough memory" in said, said)


def what_cannot_be_used_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        def refused(columns, row, *args, code=65):
            path = os.path.join(folder, "t.parquet")
            write_table(path, columns, [row])
            return converted("--out", os.path.join(folder, "out"), path, *args, code=code)
        plain = {"question": "string", "answer": "string"}
        said = refused(plain, {"question": "Q", "answer": "A"})
        check("no column holds pictures" in said and "question is string" in said and "--no-pictures" in said, said)
        said = refused(plain, {"question": "Q", "answer": "A"}, "--columns", "image=none")
        check("there is no column none" in said, said)
        pictured = {"image": PICTURE, "n": "int64", **plain}
        row = {"image": {"bytes": b"\xff\xd8\xff", "path": "a.jpg"}, "n": 3, "question": "Q", "answer": "A"}
        said = refused(pictured, row, "--columns", "image=n")
        check("column n is int64, but image must be binary" in said, said)
        said = refused(pictured, row, "--columns", "question=n")
        check("column n is int64, but question must be a string" in said, said)
        said = refused(pictured, row, "--columns", "pictures=image")
        check("the roles are image" in said, said)
        said = refused({"image": PICTURE, "n": "int64"}, row, "--columns", "caption=")
        check("no column has a text to learn" in said, said)
        said = refused({"image": "string", **plain}, dict(row, image="https://a.org/a.jpg"), "--images", folder)
        check("holds addresses (https://a.org/a.jpg)" in said and "img2dataset" in said, said)
        said = refused({"image": "string", **plain}, dict(row, image="a.jpg"))
        check("holds the path a.jpg and no bytes: --images FOLDER" in said, said)
        check("needs the columns question_id" in refused(pictured, row, "--format", "vqav2"), "vqav2")
        if pa:
            with open(os.path.join(folder, "cut.parquet"), "wb") as f:
                f.write(b"PAR1 and no more")
            said = converted("--show", os.path.join(folder, "cut.parquet"), code=65)
            check("cannot be read as parquet" in said, said)
        os.mkdir(os.path.join(folder, "empty"))
        check("there is no .parquet file in" in converted("--show", os.path.join(folder, "empty"), code=65), "an empty folder")


main(the_same_rows_as_json_and_killed_anywhere, every_form_of_table, a_hostile_row_is_set_aside,
     memory_that_runs_out_is_no_bad_row, what_cannot_be_used_is_refused)
