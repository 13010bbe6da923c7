#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes frames, grids and timestamps of videos by the reference's own video processor.

Needs PyPI, so it runs by hand; what it wrote is kept in clip.json (test_clip). In make_images.py's environment:

    VENV/bin/python tests/golden/make_clip.py [--seed S] [--cases N] [--out F]

Frames come from Qwen3VLVideoProcessor.sample_frames, grids from smart_resize as its _preprocess calls it, and texts from
the processor's _calculate_timestamps in its format. Small videos also run through the whole of Qwen3VLProcessor, whose
text and grid must be the same. More than 64 "indices" are kept as ["sum", n, sum of (k + 1) * index].
"""

import argparse
import json
import logging
import os
import random
import sys

import numpy as np
from transformers import Qwen2TokenizerFast
from transformers.models.qwen2_vl.image_processing_qwen2_vl_fast import Qwen2VLImageProcessorFast
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor, smart_resize
from transformers.video_utils import VideoMetadata

HERE = os.path.dirname(os.path.abspath(__file__))
PUBLISHED = (4096, 25165824)
RATES = [24, 25, 30, 60, 23.976023976023978, 29.97002997002997, 359 / 12, 12, 10, 1, 0.5, 2, 7.3, None]


def hand_made():
    """(frames, rate, height, width, limits)"""
    yield 48, 24, 64, 64, PUBLISHED
    for total in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13):
        yield total, 24, 64, 96, PUBLISHED
    for height, width in ((32, 32), (31, 64), (64, 31), (32, 6400), (32, 6432), (48, 80), (33, 47), (1080, 1920)):
        yield 30, 30, height, width, PUBLISHED
    yield 269, 359 / 12, 240, 320, PUBLISHED
    yield 147, 24000 / 1001, 360, 640, PUBLISHED
    yield 150, 30, 224, 224, PUBLISHED
    yield 9216, 24, 64, 64, PUBLISHED  # exactly 768 frames are taken
    yield 100000, 24, 2160, 3840, PUBLISHED
    yield 40, None, 64, 64, PUBLISHED
    yield 48, 24, 64, 64, (1 << 20, 1 << 22)
    yield 5, 2, 64, 64, (4096, 5 * 64 * 64)  # five frames count as four against a maximum of five
    yield 7, 2, 64, 64, (4096, 7 * 64 * 64)  # and seven as eight


def drawn(rng):
    side = lambda: int(2 ** rng.uniform(5, 11.5))
    smallest = int(2 ** rng.uniform(10, 20))
    limits = rng.choice([PUBLISHED, PUBLISHED, (smallest, smallest * rng.randint(1, 40))])
    return int(2 ** rng.uniform(1, 13)), rng.choice(RATES), side(), side(), limits


def whole(processor, total, rate, height, width, limits):
    """(grid, text) of the whole processor."""
    made = processor(text=["<|vision_start|><|video_pad|><|vision_end|>"], return_tensors="pt",
                     videos=[np.zeros((total, 3, height, width), np.uint8)], do_sample_frames=True,
                     video_metadata=[VideoMetadata(total_num_frames=total, fps=rate)],
                     size={"shortest_edge": limits[0], "longest_edge": limits[1]})
    return made["video_grid_thw"][0].tolist(), processor.tokenizer.decode(made["input_ids"][0])


def case(processor, total, rate, height, width, limits):
    video = processor.video_processor
    row = {"total": total, "fps": rate or 0, "size": [height, width], "limits": list(limits)}
    indices = video.sample_frames(VideoMetadata(total_num_frames=total, fps=rate)).tolist()
    row["indices"] = indices if len(indices) <= 64 else [
        "sum", len(indices), sum((k + 1) * i for k, i in enumerate(indices))]
    times = processor._calculate_timestamps(list(indices), rate or 24, 2)
    row["texts"] = [f"<{t:.1f} seconds>" for t in times]
    if len(times) > 32:
        row["texts"] = row["texts"][:31] + row["texts"][-1:]
    try:
        h, w = smart_resize(len(indices), height, width, 2, 32, *limits)
    except ValueError as e:
        row["refused"] = str(e)
        return row
    row["grid"] = [len(times), h // 16, w // 16]
    if total * height * width < 3e6 and h * w * len(indices) < 3e6:
        grid, text = whole(processor, total, rate, height, width, limits)
        pads = "<|vision_start|>" + "<|video_pad|>" * (h * w // 1024) + "<|vision_end|>"
        assert grid == row["grid"], (row, grid)
        assert text == "".join(f"<{t:.1f} seconds>" + pads for t in times), row
        row["whole"] = True
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=40, help="drawn ones, beside those made by hand")
    parser.add_argument("--out", default=os.path.join(HERE, "clip.json"))
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    tokenizer = Qwen2TokenizerFast(tokenizer_file=os.path.join(HERE, "tokenizer", "pairs", "tokenizer.json"))
    size = {"shortest_edge": PUBLISHED[0], "longest_edge": PUBLISHED[1]}
    processor = Qwen3VLProcessor(Qwen2VLImageProcessorFast(), tokenizer, Qwen3VLVideoProcessor(size=size))
    rng = random.Random(args.seed)
    rows = [case(processor, *c) for c in [*hand_made(), *(drawn(rng) for _ in range(args.cases))]]
    with open(args.out, "w") as f:
        f.write('{"cases": [\n' + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "\n]}\n")
    print(f"{args.out}: {len(rows)} cases, {sum('whole' in r for r in rows)} through the whole processor")
    return 0


if __name__ == "__main__":
    sys.exit(main())
