#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks `prepd tokenize` on the strings of strings.jsonl, whose ids the reference gave (make_strings.py):

    tests/golden/check_strings.py --prepd build/bin/prepd [--model DIR]

DIR holds the real tokenizer.json; the default is data/tokenizer of the shared data, found as by the other tests. Exit
code 77 (skipped): it is not there. Needs only the standard library.
"""

import argparse
import json
import os
import subprocess
import sys


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    shared = os.environ.get("TESSERA_SHARED", os.path.join(here, "..", "..", "..", "shared"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepd", required=True)
    parser.add_argument("--model", default=os.path.join(shared, "data", "tokenizer"))
    args = parser.parse_args()
    if not os.path.exists(os.path.join(args.model, "tokenizer.json")):
        print(f"skipped: no tokenizer.json in {args.model}")
        return 77
    with open(os.path.join(here, "strings.jsonl"), encoding="ascii") as f:
        kept = [json.loads(line) for line in f]
    text = "".join(json.dumps(s) + "\n" for _, s, _ in kept)
    command = [args.prepd, "tokenize", "--model", args.model, "--jsonl"]
    answers = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    wrong = 0
    for (kind, string, want), answer in zip(kept, answers, strict=True):
        if json.loads(answer) != want:
            wrong += 1
            print(f"{kind}: {ascii(string)}\n  ours      {answer}\n  reference {want}")
    print(f"{len(kept)} strings, {wrong} differ")
    return 1 if wrong or not kept else 0


if __name__ == "__main__":
    sys.exit(main())
