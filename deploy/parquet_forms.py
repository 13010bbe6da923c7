# SPDX-License-Identifier: Apache-2.0
"""parquet_forms: the forms in which from-parquet writes the rows of a table: their pictures as files, and lines that become JSONL
of data.format conversations or the files of VQAv2's official download. No part of it knows pyarrow."""

import hashlib
import json
import os
import re

import parquet_columns as columns_of
from parquet_columns import Skipped, Wrong

BEGINNINGS = ((b"\xff\xd8\xff", "jpg"), (b"\x89PNG\r\n\x1a\n", "png"))
VQA_NAME = "images/{split}2014/COCO_{split}2014_{id:012d}.jpg"


def kept(path, data):
    """Writes a file that is there whole or not at all. One that is there already must have the same bytes."""
    if os.path.exists(path):
        with open(path, "rb") as f:
            return f.read() == data
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "wb") as f:
        f.write(data)
    os.replace(path + ".part", path)
    return True


class Maker:
    """Makes lines of a row, and at the end files of the lines."""

    def __init__(self, args, found, labels):
        self.args, self.found, self.labels = args, found, labels
        self.out = args.out

    def pictures(self, row):
        """The bytes of the row's pictures, in order, and None where it could have one and has none."""
        for name in self.found.get("image", []):
            for value in row[name] if isinstance(row[name], list) else [row[name]]:
                data = value.get("bytes") if isinstance(value, dict) else value
                path = data if isinstance(data, str) else value.get("path") if isinstance(value, dict) else None
                if isinstance(data, bytes) and data:
                    yield data
                elif path and re.match(r"[a-z0-9]+://", path):
                    raise Wrong(f"column {name} holds addresses ({path}), and nothing is fetched from a network here: download the "
                                "pictures first (img2dataset makes WebDataset files, which data.format webdataset reads), or into a "
                                "folder for --images, with their paths in the table")
                elif path and self.args.images:
                    file = os.path.realpath(os.path.join(self.args.images, path))
                    if os.path.commonpath([file, os.path.realpath(self.args.images)]) != os.path.realpath(self.args.images):
                        raise Skipped("a picture whose path leads out of the folder of --images")
                    if not os.path.isfile(file):
                        raise Skipped("a picture that is not there, or is no file")
                    try:
                        with open(file, "rb") as f:
                            yield f.read()
                    except OSError as error:
                        raise Skipped(f"a picture that cannot be read: {error.strerror}") from None
                elif path:
                    raise Wrong(f"column {name} holds the path {path} and no bytes: --images FOLDER says where these files are")
                else:
                    yield None


class Conversations(Maker):
    """JSONL of data.format conversations, one file for each table. A picture's name is the hash of its bytes."""

    def name_of(self, data):
        kind = next((k for begins, k in BEGINNINGS if data.startswith(begins)), None)
        kind = kind or ("webp" if data[8:12] == b"WEBP" else "img")
        name = hashlib.sha256(data).hexdigest()[:24]
        return f"images/{name[:2]}/{name}.{kind}"

    def lines(self, row):
        pictures = []
        for data in self.pictures(row):
            pictures.append(data and self.name_of(data))
            if data:
                kept(os.path.join(self.out, pictures[-1]), data)
        return columns_of.records_of(row, self.found, pictures, self.args.prompt, self.labels)

    def end(self, parts):
        """A command that was killed here may have named some of them already."""
        for i, part in enumerate(parts):
            if os.path.exists(part):
                os.replace(part, os.path.join(self.out, f"{self.args.split}-{i:05d}.jsonl"))
        return f"--data.format conversations --data.path {self.out} --data.split {self.args.split}"


class Vqav2(Maker):
    """The folder of VQAv2's official download, for tables with its columns."""

    def lines(self, row):
        try:
            image_id, question_id = int(row["image_id"]), int(row["question_id"])
        except (TypeError, ValueError, OverflowError):
            raise Skipped("an id is no number") from None
        if not (0 <= image_id < 2**63 and 0 <= question_id < 2**63):
            raise Skipped("an id is negative, or has more than 63 bits")
        pictures = list(filter(None, self.pictures(row)))
        if not pictures:
            raise Skipped("no picture")
        if not kept(os.path.join(self.out, VQA_NAME.format(split=self.args.split, id=image_id)), pictures[0]):
            raise Wrong(f"image_id {image_id} belongs to two different pictures")
        line = {"q": {"image_id": image_id, "question": row[self.found["question"][0]], "question_id": question_id}}
        if row.get("answers") or row.get("multiple_choice_answer"):
            line["a"] = {"question_id": question_id, "image_id": image_id,
                         **{k: row[k] for k in ("question_type", "answer_type", "multiple_choice_answer", "answers") if k in row}}
        return [line]

    def end(self, parts):
        split, info = self.args.split, {"info": {"description": "from parquet"}, "data_subtype": f"{self.args.split}2014"}
        for name, key, member in ((f"v2_OpenEnded_mscoco_{split}2014_questions.json", "questions", "q"),
                                  (f"v2_mscoco_{split}2014_annotations.json", "annotations", "a")):
            path = os.path.join(self.out, name)
            with open(path + ".part", "w", encoding="utf-8") as f:
                f.write(json.dumps(info)[:-1] + f', "{key}": [')
                first = True
                for part in parts:
                    with open(part, encoding="utf-8") as lines:
                        for line in lines:
                            item = json.loads(line).get(member)
                            if item is not None:
                                f.write(("" if first else ",\n") + json.dumps(item, ensure_ascii=False))
                                first = False
                f.write("]}\n")
            os.replace(path + ".part", path)
        return f"--data.format vqav2 --data.path {self.out} --data.split {split}"
