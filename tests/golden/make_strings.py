#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `prepd tokenize` with the `tokenizers` package on generated strings. It runs by hand:

    python3 -m venv VENV && VENV/bin/pip install tokenizers==0.22.2
    VENV/bin/python tests/golden/make_strings.py --model DIR --prepd build/bin/prepd

DIR holds the real tokenizer.json. Each kind of string below makes --count / kinds of them from --seed, and a line for each
kind says how many ids differ. Letters, numbers, spaces and what NFC acts on are drawn from the table that make_classes.py
made of the same release (common/tokenizer/tokenizer_classes.c), and not from this interpreter's Unicode, which is older.
--sample FILE keeps N strings of each kind with their ids, and all of `borders`, as JSON lines [kind, string, [ids]], for
tests without PyPI. Exit code 1: a string differs.
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"  # set before the library starts its threads

from tokenizers import Tokenizer, normalizers  # noqa: E402

WORDS = """what colour is the red square left of a blue circle how many people are there in this
picture two three yes no man woman playing tennis dog cat sitting on bench near window wearing hat
""".split()
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'Ve", "\u2019s", "'\u017f", "''s", "' s"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n", "\n ", "\r", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0",
          "\u1680", "\u180e", "\u2000", "\u2028", "\u2029", "\u200b", "\u202f", "\u205f", "\u3000", "\ufeff"]
EMOJI = ["\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd", "\u2764\ufe0f",
         "1\ufe0f\u20e3", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\u26a1", "\ufe0f"]
HANGUL = [range(0x1100, 0x1113), range(0x1161, 0x1176), range(0x11A8, 0x11C3)]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "--", "=>", "//", "\u2014", "\u3002", "\u00bf", "\u20ac"]


def scalar(r, low=0, high=0x110000):
    while True:
        c = r.randrange(low, high)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def table(name):
    """[first, last] of one table of common/tokenizer/tokenizer_classes.c"""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "common", "tokenizer_classes.c")
    with open(path, encoding="ascii") as f:
        body = re.search(rf"code_range {name.upper()}\[\] = \{{(.*?)\n\}};", f.read(), re.S).group(1)
    return [(int(a, 16), int(b, 16)) for a, b in re.findall(r"\{0x([0-9A-F]+), 0x([0-9A-F]+)\}", body)]


def members(ranges):
    return [chr(c) for a, b in ranges for c in range(a, b + 1) if not 0xD800 <= c < 0xE000]


CLASSES = [table(name) for name in ("code_letters", "code_numbers", "code_spaces")]
LETTERS, NUMBERS, WHITE = map(members, CLASSES)
LAST = max(b for ranges in CLASSES for _, b in ranges) + 0x1000
_known = set(LETTERS + NUMBERS + WHITE)
OTHERS = [chr(c) for c in range(LAST) if not 0xD800 <= c < 0xE000 and chr(c) not in _known]
NFC = members(table("code_nfc"))
_nfd = normalizers.NFD().normalize_str
MARKS = [c for c in NFC if _nfd("a" + c + "\u0334") != "a" + c + "\u0334" or _nfd("a\u0345" + c) != "a\u0345" + c]
CHANGED = [c for c in NFC if _nfd(c) != c]


def borders(added):
    """Not drawn: around both ends of every range of the three classes, each code point after a space and before "_a",
    since a letter leaves "_a" whole and other characters take the mark along; and after a digit."""
    points = sorted({c for ranges in CLASSES for a, b in ranges for c in (a - 1, a, b, b + 1) if not 0xD800 <= c < 0xE000})
    return [" ".join(f"{chr(c)}_a1{chr(c)}" for c in points[i : i + 4]) for i in range(0, len(points), 4)]


def question(r, added):
    return " ".join(r.choices(WORDS, k=r.randint(3, 12))).capitalize() + r.choice(["?", "?\n", " ?", "."])


def planes(r, added):  # all planes, assigned or not
    return "".join(scalar(r, p << 16, (p + 1) << 16) for p in r.choices(range(17), k=r.randint(1, 12)))


def basic_plane(r, added):
    return "".join(scalar(r, 0, 0x10000) for _ in range(r.randint(1, 16)))


def classes(r, added):  # runs of different classes, for the borders of the expression
    out = []
    for _ in range(r.randint(1, 6)):
        out += r.choices(r.choice([LETTERS, NUMBERS, WHITE, OTHERS]), k=r.randint(1, 4))
        out.append(r.choice(["", "", " ", "a", "\n", "'s"]))
    return "".join(out)


def marks(r, added):  # characters and marks that meet in normal forms, even those newer than the library's tables
    return "".join(r.choice(["a", "", "\u0301", "\u0327"]) + r.choice(r.choice([MARKS, NFC, LETTERS, OTHERS])) for _ in range(r.randint(2, 8)))


def combining(r, added):
    out = []
    for _ in range(r.randint(1, 6)):
        out.append(r.choice(["a", "e", "o", "A", "n", "\u0e01", "\u0915", "\u05d0", "\u3042", r.choice(CHANGED)]))
        out += r.choices(MARKS, k=r.randint(0, 5))
    return "".join(out)


def composed(r, added):  # single characters that NFC changes or that begin a composition
    return r.choice(["", "x", " "]).join(r.choices(CHANGED, k=r.randint(1, 6)))


def hangul(r, added):
    out = []
    for _ in range(r.randint(1, 5)):
        out += [chr(r.choice(part)) for part in HANGUL[: r.randint(1, 3)]]
        out.append(r.choice(["", chr(r.randrange(0xAC00, 0xD7A4)), chr(r.randrange(0x11A7, 0x11C3)), " "]))
    return "".join(out)


def spaces(r, added):
    return "".join(r.choice(SPACES) * r.randint(1, 3) + r.choice(["", "a", "1", "!", "\u00e9"]) for _ in range(r.randint(1, 8)))


def digits(r, added):
    some = "".join(r.choices("0123456789", k=r.randint(1, 12)))
    return r.choice(["", " ", "$", "x"]) + some + r.choice([".", ",", " ", ""]) + "".join(r.choices(NUMBERS, k=r.randint(0, 4)))


def contractions(r, added):
    return "".join(r.choice(WORDS + ["\u00e9t\u00e9", "I", "1", ""]) + r.choice(CONTRACTIONS) + r.choice(["", " ", "x"]) for _ in range(r.randint(1, 5)))


def emoji(r, added):
    return "".join(r.choice(EMOJI) + r.choice(["", " ", "a", "\u200d", "\ufe0f"]) for _ in range(r.randint(1, 6)))


def added_tokens(r, added):
    parts = added + [t[:-1] for t in added[:6]] + ["<|", "|>", "<", ">", "im_start", " ", "\n", "e\u0301", "user", "</think", "<|im_"]
    return "".join(r.choices(parts, k=r.randint(1, 8)))


def long_words(r, added):
    alphabet = r.choice(["abcdefghijklmnopqrstuvwxyz", "ab", "a", "\u4e2d\u6587\u5b57", "-=", "\u00e9\u0301", " ", "0"])
    return "".join(r.choices(alphabet, k=r.randint(50, 1200)))


def punctuation(r, added):
    return "".join(r.choice(PUNCTUATION) * r.randint(1, 4) + r.choice(["", " ", "\n", "\r\n\n", "word", "7"]) for _ in range(r.randint(1, 8)))


def mixture(r, added):
    kinds = [k for k in KINDS if k not in (mixture, long_words)]
    return "".join(r.choice(kinds)(r, added) for _ in range(r.randint(2, 4)))


KINDS = [question, planes, basic_plane, classes, marks, combining, composed, hangul, spaces, digits, contractions,
         emoji, added_tokens, long_words, punctuation, mixture]


def every_character(added):
    """Not drawn: each Unicode scalar value, between letters and, after a space, as in borders; 8 to a string."""
    alive = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    return (["a" + "b".join(alive[i : i + 8]) + "c" for i in range(0, len(alive), 8)] +
            [" ".join(c + "_a" for c in alive[i : i + 8]) for i in range(0, len(alive), 8)])


def every_mark(added):
    """Not drawn: each scalar value between marks of low and high class, and after what may join it."""
    alive = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    return ["".join(f"e\u0345{c}\u0334 {c}\u0301 \u1100{c} " for c in alive[i : i + 4]) for i in range(0, len(alive), 4)]


def ours(prepd, model, strings):
    text = "".join(json.dumps(s) + "\n" for s in strings)
    done = subprocess.run([prepd, "tokenize", "--model", model, "--jsonl"], input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def invalid_bytes(r):
    """A line that is not UTF-8: random bytes, cut characters, surrogates, overlong forms."""
    parts = [bytes([r.randrange(256)]), b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xe4\xb8", b"\xf0\x9f\x98",
             "\u4e2d\u00e9\U0001f600".encode(), b"red", b" ", b"\xff"]
    return b"".join(r.choices(parts, k=r.randint(1, 10))).replace(b"\n", b"").replace(b"\r", b"")


def ours_plain(prepd, model, lines):
    text = b"".join(line + b"\n" for line in lines)
    done = subprocess.run([prepd, "tokenize", "--model", model], input=text, capture_output=True, check=True)
    return [[int(i) for i in line.split()] for line in done.stdout.split(b"\n")[:-1]]


PAIRS = 7


def cpu_seconds(job):
    """CPU time, ours and of the children that ended: other load of the machine does not count."""
    before = os.times()
    job()
    after = os.times()
    return sum(after[i] - before[i] for i in range(4))


def speed(args, reference):
    """100,000 questions: the library with its one thread, beside the whole of ours: start, loading
    tokenizer.json, parsing and printing JSON (Python's own share of writing it comes on top). In turn,
    PAIRS times: each pair meets the same load of the machine."""
    r = random.Random(args.seed)
    strings = [question(r, []) for _ in range(100000)]
    pairs = []
    for _ in range(PAIRS):
        theirs = cpu_seconds(lambda: reference.encode_batch(strings))
        start = cpu_seconds(lambda: ours(args.prepd, args.model, strings[:1]))
        pairs.append((theirs, cpu_seconds(lambda: ours(args.prepd, args.model, strings)), start))
    theirs, whole, start = (statistics.median(column) for column in zip(*pairs))
    times = sorted(t / (w - s) for t, w, s in pairs)
    print(f"100000 questions, CPU seconds, medians of {PAIRS} pairs: encode_batch {theirs:.2f}, prepd tokenize {whole:.2f} of"
          f" which {start:.2f} to start: {statistics.median(times):.1f} times as fast ({times[0]:.1f} to {times[-1]:.1f};"
          f" with the start {statistics.median(t / w for t, w, _ in pairs):.1f})")


def compare(name, strings, args, reference, lines=None):
    want = [e.ids for e in reference.encode_batch(strings, add_special_tokens=False)]
    got = ours(args.prepd, args.model, strings) if lines is None else ours_plain(args.prepd, args.model, lines)
    if len(got) != len(want):
        raise SystemExit(f"{name}: {len(got)} answers to {len(want)} strings")
    wrong = [(s, g, w) for s, g, w in zip(strings, got, want) if g != w]
    print(f"| {name} | {len(strings)} | {sum(map(len, want))} | {len(wrong)} |", flush=True)
    for s, g, w in wrong[: args.show]:
        print(f"    {ascii(s)}\n      ours      {g}\n      reference {w}")
    return len(wrong), want


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prepd", required=True)
    parser.add_argument("--count", type=int, default=120000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speed", action="store_true", help="only measure")
    parser.add_argument("--show", type=int, default=3, help="differences printed per kind")
    parser.add_argument("--sample", help="file of kept strings")
    parser.add_argument("--keep", type=int, default=24, help="strings of each kind in it")
    args = parser.parse_args()
    reference = Tokenizer.from_file(args.model + "/tokenizer.json")
    added = [t.content for t in reference.get_added_tokens_decoder().values()]
    if args.speed:
        speed(args, reference)
        return 0
    began, wrong, kept = time.monotonic(), 0, []
    print("| kind | strings | ids | differ |\n|---|---|---|---|")
    for kind in KINDS:
        r = random.Random(f"{args.seed} {kind.__name__}")
        strings = [kind(r, added) for _ in range(args.count // len(KINDS))]
        n, ids = compare(kind.__name__, strings, args, reference)
        wrong += n
        short = [(kind.__name__, s, i) for s, i in zip(strings, ids) if len(i) <= 120]
        kept += short[: args.keep]
    strings = borders(added)
    n, ids = compare("borders", strings, args, reference)
    wrong += n
    kept += [("borders", s, i) for s, i in zip(strings, ids)]
    wrong += compare("every_character", every_character(added), args, reference)[0]
    wrong += compare("every_mark", every_mark(added), args, reference)[0]
    r = random.Random(args.seed)
    lines = [invalid_bytes(r) for _ in range(8000)]
    wrong += compare("invalid_bytes", [x.decode("utf-8", "replace") for x in lines], args, reference, lines)[0]
    speed(args, reference)
    if args.sample:
        with open(args.sample, "w", encoding="ascii") as f:
            f.writelines(json.dumps(k, separators=(",", ":")) + "\n" for k in kept)
    print(f"{wrong} strings differ; {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
