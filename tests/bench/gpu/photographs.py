# SPDX-License-Identifier: Apache-2.0
"""Writes a data set of few photographs and many questions, whose rows are full and still take little room where they travel.

    photographs.py VQAV2 FOLDER PHOTOGRAPHS SAMPLES

takes the first PHOTOGRAPHS pictures of VQAV2's train split. Each of SAMPLES samples is one of its questions, in their order and again
from the first, about one of these pictures. The question may have been asked of another one, which changes nothing about the
work of a step. Several samples of a row show the same picture, and a recording holds each picture once.
"""

import json
import os
import shutil
import sys

IMAGES = "images/train2014"
QUESTIONS, ANSWERS = "v2_OpenEnded_mscoco_train2014_questions.json", "v2_mscoco_train2014_annotations.json"


def file_of(image):
    return os.path.join(IMAGES, f"COCO_train2014_{image:012d}.jpg")


def read(folder, name):
    with open(os.path.join(folder, name)) as f:
        return json.load(f)


def write(folder, name, value):
    with open(os.path.join(folder, name), "w") as f:
        json.dump(value, f)


def main(source, to, photographs, samples):
    asked, answered = read(source, QUESTIONS), read(source, ANSWERS)
    images = list(dict.fromkeys(q["image_id"] for q in asked["questions"]))[:photographs]
    answer_of = {a["question_id"]: a for a in answered["annotations"]}
    questions, answers = [], []
    for i in range(samples):
        question = asked["questions"][i % len(asked["questions"])]
        here = {"question_id": i, "image_id": images[i % len(images)]}
        questions.append(question | here)
        answers.append(answer_of[question["question_id"]] | here)
    os.makedirs(os.path.join(to, IMAGES))
    for image in images:
        shutil.copyfile(os.path.join(source, file_of(image)), os.path.join(to, file_of(image)))
    write(to, QUESTIONS, asked | {"questions": questions})
    write(to, ANSWERS, answered | {"annotations": answers})


main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
