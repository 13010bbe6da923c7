#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes hashes of the patches of newer versions of the reference, for check_images.py --newer.

Needs PyPI, so it runs by hand; what it wrote is kept in patches_newer.jsonl. In a temporary environment outside the
tree:

    python3 -m venv VENV
    VENV/bin/pip install torch==2.6.0 torchvision==0.21.0 transformers==5.23.0 pillow==13.0.0 numpy==2.4.6
    VENV/bin/python tests/golden/make_images_newer.py

Pillow opens each generated picture and turns it as its EXIF says. With its transparency it is given to
Qwen2VLImageProcessor (tensors: our image.resampler torch) and Qwen2VLImageProcessorPil (our pillow13), which lay it on
white (our image.transparency 5.23). What make_images.py keeps is kept, and which of the two differs from what 4.57.3 with
Pillow 11.3 made of the same picture.
"""

import io
import json
import logging
import os
import sys
import warnings

import PIL
import torch
import transformers
from PIL import Image, ImageOps
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

import pictures
from check_images import LIMITS, NEWER, NEWER_LIMITS, read_kept, sha

# The published values, which make_images.py reads from the shared data.
CONFIG = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def processors(limits):
    smallest, largest = LIMITS[limits] or (65536, 16777216)
    size = {"shortest_edge": smallest, "longest_edge": largest}
    return Qwen2VLImageProcessor(size=dict(size), **CONFIG), Qwen2VLImageProcessorPil(size=dict(size), **CONFIG)


def to_bytes(values):
    """pixel_values [S, 1536] -> u8 [S, 768]. Checks that both frames are equal and that each value is that of a byte."""
    import numpy as np
    v = np.asarray(values, np.float32).reshape(-1, 3, 2, 16, 16)
    assert (v[:, :, 0] == v[:, :, 1]).all()
    v = v[:, :, 0]
    u = np.rint(v.astype(np.float64) * 127.5 + 127.5).astype(np.uint8)
    again = (u.astype(np.float32) - np.float32(127.5)) / np.float32(127.5)
    assert np.abs(again - v).max() < 1e-6
    return np.ascontiguousarray(u)


def reference(data, both):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    out = {"size": [image.height, image.width]}
    for key, processor in zip(("torch", "pillow13"), both):
        made = processor(images=[image], return_tensors="pt")
        grid = [int(x) for x in made["image_grid_thw"][0]][1:]
        assert out.setdefault("grid", grid) == grid
        out[key] = sha(to_bytes(made["pixel_values"]))
    return out


def main():
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    print(f"transformers {transformers.__version__}, Pillow {PIL.__version__}")
    older = read_kept(os.path.join(pictures.HERE, "patches.jsonl"))
    counts = {}
    with open(NEWER, "w") as f:
        for limits in NEWER_LIMITS:
            both = processors(limits)
            for name, data in pictures.generated().items():
                was = next((r for r in older[name] if r.get("limits") == limits and "grid" in r), None)
                if not was:
                    continue  # 4.57.3 refuses it too
                try:
                    row = reference(data, both)
                except ValueError as e:
                    row = {"refused": str(e)[:120]}
                changed = [new for new, old in (("torch", "torch"), ("pillow13", "pillow")) if row.get(new) != was[old]]
                for new in changed:
                    counts[limits, new] = counts.get((limits, new), 0) + 1
                f.write(json.dumps({"picture": name, "limits": limits, **row, "changed": changed}) + "\n")
    print(f"{NEWER}: differ from 4.57.3 with Pillow 11.3: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
