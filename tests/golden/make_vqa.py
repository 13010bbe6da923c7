#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes answers as the official VQA code normalises and scores them; kept in vqa.json (test_vqa_score).

    python3 tests/golden/make_vqa.py CODE/PythonEvaluationTools/vqaEvaluation/vqaEval.py

CODE is a copy of github.com/GT-Vision-Lab/VQA (a013f00 made what is kept). Its code is for Python 2 and is run by Python 3
with its print statements made calls. Keeps pairs of an answer and what becomes of it, and the accuracy of answers beside ten
annotators' ones. One answer has every letter that has another lower case (Unicode 14, by Python 3.11).
"""

import json
import os
import re
import sys

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vqa.json")
SPACES = [chr(c) for c in range(0x110000) if chr(c).isspace()]
CASED = "".join(c for c in map(chr, range(0x110000)) if c.lower() != c)
WORDS = [
    "Yes", "  the Red\tcar\n", "None of Ten", "dont", "youd've", "somebody'd", "black - and white", "1,000 / 2", "U.S.A.",
    "\u00c9COLE", "STRASSE \u1e9e", "\u0130STANBUL", "\u0391\u03a3", "\u03a3", "\u039f\u0394\u039f\u03a3 A", "\u0391\u03a3\u0391", "A\u03a3.",
    "A\u03a3'B", "A\u03a3.\u0301B", "\u00ad\u03a3", "A\u00ad\u03a3\u00ad", "\u24b6\u03a3", "\u02b0\u03a3", "\u00aa\u03a3", "\u2160\u03a3\u00b7", "A:\u03a3:1",
    "\u0419\u041e\u0413\u0423\u0420\u0422", "\u212aELVIN \u2126", "\U00010400", "\uff34\uff48\uff45 Cat", "\u4e94", "\u0663,\u0664 / 2", "\u0663.\u0664", "3.\u0664 x.",
    "a\u00a0cat", "a\u3000The\u2003cat", "a\x1cb", "a\x1fthe", "\u200bthe", "\ufeffthe cat", "\u00a0two\u00a0", "\x85ten\u2028", "a\x0bb", "no\rthe",
    "no\x00", "no\x00 the", "\x00the", "a\x00 - b", "\x00", "", " ", "a", "an The", "?", "-", ". . .", "..5", "x,1", "1,x,2,3", "can't cant CANT",
    "\u00e9,\u00c8", "the\u00a0", "'", "ma'am maam", "\ufffd", "\U0001f408 Cat",
]
LONG = ["x" * 1100, "cant " * 250, "." * 40, ". " * 40, "\u0130" * 300, "a " * 600 + "ten", CASED, "x".join(SPACES), "the".join(SPACES)]
RED = ["red"] * 5 + ["dark red"] * 5
SCORED = [
    ("Red.", RED), ("The dark  RED", RED), ("red\x00", RED), ("red\x00", ["red"] * 10), ("red", ["red\x00"] * 10), ("red\x00", ["red\x00"] * 10),
    ("Yes", ["yes"] * 10), ("yes", ["Yes"] * 10), ("yes", ["Yes"] * 9 + ["no"]), ("\u00c9t\u00e9", ["\u00e9t\u00e9"] * 2 + ["no"] * 8),
    ("\u00a0two", ["two"] * 10), ("2", ["two\u00a0"] * 9 + ["2"]), ("\u0391\u03a3", ["\u03b1\u03c2"] * 3 + ["no"] * 7), ("x" * 1100, ["x" * 1101] * 9 + ["y"]),
    ("", ["a"] * 9 + ["the"]), ("two", ["2"] * 10),
]


class Answers:
    def __init__(self, qa):
        self.qa = qa

    def getQuesIds(self):
        return list(self.qa)


def main():
    space = {}
    with open(sys.argv[1], encoding="utf-8") as f:
        exec(re.sub(r'print (".*")', r"print(\1)", f.read()), space)
    evaluate = space["VQAEval"]
    one = evaluate(Answers({}), Answers({}))

    def normalised(answer):
        answer = answer.replace("\n", " ").replace("\t", " ").strip()
        return one.processDigitArticle(one.processPunctuation(answer))

    scored = []
    for answer, references in SCORED:
        truth = Answers({0: {"question_type": "q", "answer_type": "a",
                             "answers": [{"answer": r, "answer_id": i} for i, r in enumerate(references)]}})
        judge = evaluate(truth, Answers({0: {"answer": answer}}), n=9)
        judge.evaluate()
        scored.append({"answer": answer, "references": references, "accuracy": round(judge.accuracy["overall"] / 100, 12)})
    with open(PATH, "w", encoding="utf-8") as f:
        f.write('{"normalised": [\n' + ",\n".join(json.dumps([w, normalised(w)]) for w in WORDS + LONG) + '],\n"scored": [\n' +
                ",\n".join(map(json.dumps, scored)) + "]}\n")


if __name__ == "__main__":
    main()
