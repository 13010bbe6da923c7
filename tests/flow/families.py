# SPDX-License-Identifier: Apache-2.0
"""Samples that begin alike, for the tests of shared prefixes: questions about one picture, about two, about a clip, and
about a text, with answers of different lengths; and neighbours that share nothing."""

import random

from formats import in_data, load, options, write_lines
from prepd_video import frames_folder


def turns(parts, *said):
    talk = [{"role": "user", "content": [*parts, {"type": "text", "text": said[0]}]}]
    for k, text in enumerate(said[1:]):
        talk.append({"role": "user" if k % 2 else "assistant", "content": text})
    return {"messages": talk}


def write_families(f, seed=1, long_words=0):
    """Writes them below the folder's data; returns the options with which they are read, and how many there are. With
    long_words there are also two questions about a text of so many words, for which one row may be too short."""
    rng = random.Random(seed)
    pictures = sorted({name for name, _, _ in load(f)})
    words = sorted({word for _, question, _ in load(f) for word in question.split()})

    def text(n):
        return " ".join(rng.choice(words) for _ in range(n))
    records = []

    def family(n, *parts, passage=""):
        for _ in range(n):
            said = [passage + text(rng.randint(1, 8)), text(rng.randint(1, 5))]
            records.append(turns(parts, *said, *([text(3), text(rng.randint(1, 4))] if rng.random() < 0.3 else [])))
    shown = [{"type": "image", "image": name} for name in pictures]
    dump = {"type": "video", "video": frames_folder(f, "dump", 6), "fps": 2}
    for k in range(4):
        family(rng.randint(2, 6), shown[k])
    family(3, shown[4], shown[5])
    family(2, shown[5], shown[4])
    family(3, dump)
    for n in (30, 60):
        family(4, passage=text(n) + " ")
    family(1, shown[6])
    family(2, passage="")
    if long_words:
        passage = text(long_words) + " "
        records.extend(turns([], passage + text(9), text(5)) for _ in range(2))
    path = write_lines(in_data(f, "families.jsonl"), records)
    return options(data__format="video", data__path=path, data__prefix_min_tokens=16, data__stage_weights="0.5,2"), len(records)
