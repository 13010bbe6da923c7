#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes common/tokenizer/tokenizer_classes.c: the class of each code point in the pinned release of the reference.

Needs PyPI, so it runs by hand, once for each new pinned release:

    python3 -m venv VENV && VENV/bin/pip install tokenizers==0.22.2
    VENV/bin/python tests/golden/make_classes.py            # --check compares and writes nothing

The library has tables of its own, so it is asked about every scalar value: its expression engine about letters, numbers
and white space (a Split by that class alone), its normaliser about the code points that NFC acts on, which are those that
NFD changes or puts into another's decomposition, and those that change places with a combining mark. What folds to the
letters of the contractions is asked too and must be what tokenizer_words.c has. To keep the table short, ranges of NFC
are joined if all code points between them were assigned in Unicode 3.2: NFC does not act on those and never will, because
an assigned character keeps its normal forms.
"""

import argparse
import os
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

PINNED = "0.22.2"
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "common", "tokenizer_classes.c")
END = 0x110000
SCALARS = [c for c in range(END) if not 0xD800 <= c < 0xE000]
PER_LINE = 5
CONTRACTIONS = ["s", "t", "re", "ve", "m", "ll", "d"]

HEAD = """/* Written by tests/golden/make_classes.py, which asked tokenizers {version}. Do not edit. */
#include "common/tokenizer/tokenizer_text.h"

/* clang-format off */
"""


def matches(pattern):
    """The code points that the pattern matches, which Split cuts out of one long text."""
    split = pre_tokenizers.Split(Regex(pattern), behavior="removed")
    out = set()
    for at in range(0, len(SCALARS), 4096):
        chunk = SCALARS[at : at + 4096]
        left = set()
        for _, (first, end) in split.pre_tokenize_str("".join(map(chr, chunk))):
            left.update(chunk[first:end])
        out.update(set(chunk) - left)
    return out


def nfc_acts_on():
    decompose = normalizers.NFD().normalize_str
    acts = set()
    for c in SCALARS:
        parts = decompose(chr(c))
        if parts != chr(c):
            acts.add(c)
            acts.update(map(ord, parts))
    for c in SCALARS:  # every combining class is above 1 or below 240
        ch = chr(c)
        if c not in acts and (decompose("a" + ch + "\u0334") != "a" + ch + "\u0334" or
                              decompose("a\u0345" + ch) != "a\u0345" + ch):
            acts.add(c)
    return acts


def nfc_ranges(acts):
    """Ranges of these code points, joined where all between them was assigned in Unicode 3.2."""
    assigned = unicodedata.ucd_3_2_0.category
    out = []
    for c in sorted(acts):
        if out and all(assigned(chr(g)) != "Cn" for g in range(out[-1][1] + 1, c)):
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def ranges(members):
    out = []
    for c in sorted(members):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def table(name, rows):
    cells = [f"{{0x{a:X}, 0x{b:X}}}," for a, b in rows]
    lines = [" ".join(cells[i : i + PER_LINE]) for i in range(0, len(cells), PER_LINE)]
    return (f"static const code_range {name.upper()}[] = {{\n" + "".join(f"    {line}\n" for line in lines) +
            f"}};\nconst code_set {name} = {{{name.upper()}, sizeof {name.upper()} / sizeof *{name.upper()}}};\n")


def check_contractions():
    """Checks that after an apostrophe only the letters, their capitals and, for s, U+017F match, and nothing longer."""
    split = pre_tokenizers.Split(Regex("(?i:'" + "|'".join(CONTRACTIONS) + ")"), behavior="isolated")

    def found(tail):
        pieces = split.pre_tokenize_str("'" + tail + "#")
        return pieces[0][0] != "'" + tail + "#" and pieces[0][1][1] - 1
    one = {c for c in SCALARS if found(chr(c)) == 1}
    assert one == set(map(ord, "sStTmMdD\u017f")), sorted(map(hex, one))
    for pair in ("re", "ve", "ll"):
        first = {c for c in SCALARS if found(chr(c) + pair[1]) == 2}
        second = {c for c in SCALARS if found(pair[0] + chr(c)) == 2}
        assert first == {ord(x) for p in ("re", "ve", "ll") if p[1] == pair[1] for x in p[0] + p[0].upper()}, pair
        assert second == {ord(pair[1]), ord(pair[1].upper())}, pair


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing; exit 1 if it differs")
    args = parser.parse_args()
    if tokenizers.__version__ != PINNED:
        print(f"note: this is tokenizers {tokenizers.__version__}; the pinned release is {PINNED}", file=sys.stderr)
    check_contractions()
    letters, numbers, spaces = matches(r"\p{L}"), matches(r"\p{N}"), matches(r"\s")
    assert not letters & numbers and not letters & spaces and not numbers & spaces
    assert len(letters | numbers | spaces | matches(r"[^\s\p{L}\p{N}]")) == len(SCALARS)
    text = HEAD.format(version=PINNED)
    text += "\n".join(table(n, ranges(m)) for n, m in (("code_letters", letters), ("code_numbers", numbers), ("code_spaces", spaces)))
    text += "\n" + table("code_nfc", nfc_ranges(nfc_acts_on()))
    if args.check:
        with open(PATH, encoding="ascii") as f:
            same = f.read() == text
        print(f"{os.path.normpath(PATH)} {'is' if same else 'is NOT'} what tokenizers {tokenizers.__version__} says")
        return 0 if same else 1
    with open(PATH, "w", encoding="ascii") as f:
        f.write(text)
    print(f"{os.path.normpath(PATH)}: {len(letters)} letters, {len(numbers)} numbers, {len(spaces)} spaces")
    return 0


if __name__ == "__main__":
    sys.exit(main())
