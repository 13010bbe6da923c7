#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the sizes of pictures after resizing, by the reference's own smart_resize.

Needs PyPI, so it runs by hand; what it wrote is kept in fit.json (test_fit). In make_images.py's environment:

    VENV/bin/python tests/golden/make_fit.py [--seed S] [--cases N] [--out F]

A row has height, width, min_pixels, max_pixels, and the height and width that come out, or 0, 0 if it is refused. A third
of the limits are exactly the area of a resized picture, or one pixel more or less.
"""

import argparse
import json
import os
import random
import sys

from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

HERE = os.path.dirname(os.path.abspath(__file__))
PUBLISHED = (65536, 16777216)
FACTOR = 32


def drawn(rng):
    """(height, width, limits)"""
    height, width = (int(2 ** rng.uniform(0, 13)) for _ in range(2))
    if rng.random() < 0.05:  # at the limit of the aspect ratio
        height = max(1, 200 * width + rng.choice([-1, 0, 1]))
    which = rng.randrange(3)
    if which == 0:
        return height, width, PUBLISHED
    if which == 1:
        smallest = int(2 ** rng.uniform(10, 18))
        return height, width, (smallest, smallest * rng.randint(1, 30))
    area = 1
    for side in (height, width):
        area *= max(FACTOR, round(side / FACTOR) * FACTOR)
    area += rng.choice([-1, 0, 1])
    return height, width, rng.choice([(area, area * rng.randint(1, 9)), (max(1, area // rng.randint(1, 9)), area)])


def row(height, width, limits):
    try:
        return [height, width, *limits, *smart_resize(height, width, FACTOR, *limits)]
    except ValueError:
        return [height, width, *limits, 0, 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--out", default=os.path.join(HERE, "fit.json"))
    args = parser.parse_args()
    rng = random.Random(args.seed)
    rows = [row(*drawn(rng)) for _ in range(args.cases)]
    with open(args.out, "w") as f:
        f.write("[" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "]\n")
    print(f"{args.out}: {len(rows)} sizes, {sum(r[-1] == 0 for r in rows)} refused")
    return 0


if __name__ == "__main__":
    sys.exit(main())
