#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the floats that the reference's image processors give for each of the 256 byte values; kept in floats.json.

Needs PyPI, so it runs by hand, in an environment as make_images.py says; 4.57.3 and 5.23.0 write the same file:

    VENV/bin/python tests/golden/make_floats.py

torch   the default processor, on tensors: (x - 127.5) / 127.5
pillow  the PIL processor: (x / 255 - 0.5) / 0.5 in two steps, which is x / 127.5 - 1; another last bit for half of them

Numbers are float32's bits in hexadecimal, 8 digits each.
"""

import json
import os

import numpy as np
import transformers

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "floats.json")
FIVE = int(transformers.__version__.split(".")[0]) >= 5
KINDS = {
    "torch": transformers.Qwen2VLImageProcessorFast,
    "pillow": transformers.Qwen2VLImageProcessorPil if FIVE else transformers.Qwen2VLImageProcessor,
}
SIDE = 32  # of a picture that has every value and that no processor resizes
LIMITS = {"size": {"shortest_edge": SIDE**2, "longest_edge": 10**7}}
SAME_FOR_4 = {} if FIVE else {"min_pixels": SIDE**2, "max_pixels": 10**7}


def floats(kind):
    picture = np.repeat((np.arange(SIDE * SIDE) % 256).astype(np.uint8).reshape(SIDE, SIDE, 1), 3, axis=2)
    processor = kind(patch_size=16, temporal_patch_size=2, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3,
                     **LIMITS, **SAME_FOR_4)
    out = processor(images=[picture], return_tensors="pt")["pixel_values"].numpy().reshape(2, 2, 3, 2, 16, 16)
    plane = out[:, :, 0, 0].transpose(0, 2, 1, 3).reshape(-1)  # the patches are put together to the picture again
    values = plane[:256]
    assert out.dtype == np.float32 and (plane.reshape(-1, 256) == values).all()
    return values.astype(">f4").tobytes().hex()


with open(PATH, "w", encoding="utf-8") as f:
    json.dump({name: floats(kind) for name, kind in KINDS.items()}, f, indent=1)
    f.write("\n")
