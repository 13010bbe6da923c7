#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes hashes of the patches of the reference's own image processors, for check_images.py.

Needs PyPI, so it runs by hand; what it wrote is kept in patches.jsonl and pictures/. In a temporary environment outside
the tree:

    python3 -m venv VENV
    VENV/bin/pip install torch==2.6.0 torchvision==0.21.0 transformers==4.57.3 pillow==11.3.0 numpy==2.4.6
    VENV/bin/python tests/golden/make_images.py --data SHARED/data      # --pictures also needs imagecodecs

Each picture goes through transformers' load_image (open, exif_transpose, convert RGB), then through
Qwen2VLImageProcessorFast (tensors: our image.resampler torch) and Qwen2VLImageProcessor (PIL: our pillow), built
from preprocessor_config.json of the shared data with the areas of each row of LIMITS. The grid is kept, and the first 64
bits of the SHA-256 of the pixels as bytes [patches, 3, 16, 16]; normalisation is undone and checked on the way. If the
reference refuses a picture, its line has null and the reason.

--pictures writes pictures/ again, with other JPEG bytes if Pillow's libraries have changed. --draw N --seed S --out F asks
for N pictures of random sizes instead (check_images.py --patches F).
"""

import argparse
import ctypes
import io
import json
import logging
import os
import sys
import tempfile
import warnings

import numpy as np
import torch
from PIL import Image
from transformers.image_utils import load_image
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl_fast import Qwen2VLImageProcessorFast

import pictures
from check_images import LIMITS, SHARED_LIMITS, sha


def turbo_jpeg(rgb, sampling, **switches):
    """Uses libjpeg-turbo for what Pillow cannot write: samplings, ARITHMETIC=1, PROGRESSIVE=1."""
    libc = ctypes.CDLL(None)
    for name in ("ARITHMETIC", "PROGRESSIVE"):  # libjpeg-turbo reads these from the environment
        libc.setenv(f"TJ_{name}".encode(), str(switches.get(name, 0)).encode(), 1)
    lib = ctypes.CDLL("libturbojpeg.so.0")
    lib.tjInitCompress.restype = ctypes.c_void_p
    out, size = ctypes.POINTER(ctypes.c_ubyte)(), ctypes.c_ulong(0)
    height, width, _ = rgb.shape
    failed = lib.tjCompress2(ctypes.c_void_p(lib.tjInitCompress()), np.ascontiguousarray(rgb).ctypes.data_as(ctypes.c_void_p),
                             width, 0, height, 0, ctypes.byref(out), ctypes.byref(size), sampling, 80, 0)
    assert not failed
    return bytes(out[: size.value])


def write_kept():
    os.makedirs(pictures.KEPT, exist_ok=True)
    rgb = Image.fromarray(pictures.values(29, 43, 3).astype(np.uint8))
    four = pictures.values(29, 43, 4).astype(np.uint8)
    cmyk = Image.fromarray(four, "CMYK")
    alpha = Image.fromarray(four, "RGBA")
    exif = b"Exif\0\0" + pictures.exif(8)

    def put(name, image, **how):
        image.save(os.path.join(pictures.KEPT, name), **how)

    put("ycc420.jpg", rgb, quality=75, subsampling=2)
    put("ycc422.jpg", rgb, quality=75, subsampling=1)
    put("ycc444.jpg", rgb, quality=90, subsampling=0)
    put("progressive.jpg", rgb, quality=75, progressive=True)
    put("restarts.jpg", rgb, quality=75, restart_marker_blocks=2)
    put("grey.jpg", rgb.convert("L"), quality=75)
    put("cmyk.jpg", cmyk, quality=75)
    put("rgb.jpg", rgb, quality=75, keep_rgb=True)
    put("one.jpg", rgb.crop((0, 0, 1, 1)))
    for name, sampling in (("ycc440.jpg", 4), ("ycc411.jpg", 5)):
        with open(os.path.join(pictures.KEPT, name), "wb") as f:
            f.write(turbo_jpeg(np.asarray(rgb), sampling))
    import imagecodecs  # 2026.3.6; it writes kinds of JPEG that nothing else does

    other = {
        "arithmetic.jpg": turbo_jpeg(np.asarray(rgb), 2, ARITHMETIC=1),
        "arithmetic_progressive.jpg": turbo_jpeg(np.asarray(rgb), 2, ARITHMETIC=1, PROGRESSIVE=1),
        "lossless.jpg": imagecodecs.jpeg8_encode(np.asarray(rgb), lossless=True),
        "lossless_grey.jpg": imagecodecs.ljpeg_encode(np.asarray(rgb)[:, :, 0].copy()),
        "bits12.jpg": imagecodecs.jpeg8_encode(np.asarray(rgb).astype(np.uint16) << 4, bitspersample=12),
        "ycck.jpg": imagecodecs.jpeg8_encode(four, colorspace="CMYK", outcolorspace="YCCK", level=80),
    }
    for name, data in other.items():
        with open(os.path.join(pictures.KEPT, name), "wb") as f:
            f.write(data)
    put("lossy.webp", rgb, quality=75)
    put("lossless.webp", rgb, lossless=True)
    put("alpha.webp", alpha, lossless=True, exact=True)
    put("lossy_alpha.webp", alpha, quality=75)
    put("orientation8.webp", rgb, lossless=True, exif=exif)
    put("xmp6.webp", rgb, lossless=True, xmp=pictures.xmp(6))
    put("animated.webp", rgb, lossless=True, save_all=True, append_images=[rgb.rotate(180)], duration=50)
    put("animated_alpha.webp", alpha, lossless=True, save_all=True, append_images=[alpha.rotate(180)], duration=50)


def processors(config, limits):
    """(torch, pillow)"""
    smallest, largest = limits or (config["size"]["shortest_edge"], config["size"]["longest_edge"])
    size = {"shortest_edge": smallest, "longest_edge": largest}
    keys = {k: config[k] for k in ("patch_size", "temporal_patch_size", "merge_size", "image_mean", "image_std")}
    return (Qwen2VLImageProcessorFast(size=dict(size), **keys),
            Qwen2VLImageProcessor(min_pixels=smallest, max_pixels=largest, size=dict(size), **keys))


def to_bytes(values, exact):
    """pixel_values [S, 1536] -> u8 [S, 768]. Checks that both frames are equal and that each value is that of a byte."""
    v = np.asarray(values, np.float32).reshape(-1, 3, 2, 16, 16)
    assert (v[:, :, 0] == v[:, :, 1]).all()
    v = v[:, :, 0]
    u = np.rint(v.astype(np.float64) * 127.5 + 127.5).astype(np.uint8)
    again = (u.astype(np.float32) - np.float32(127.5)) / np.float32(127.5)
    assert (again == v).all() if exact else np.abs(again - v).max() < 1e-6
    return np.ascontiguousarray(u)


def reference(image, both):
    fast, slow = both
    a = fast(images=[image], return_tensors="pt")
    # The layout is given, because a picture of height 1 or 3 would be taken for one of 1 or 3 channels.
    b = slow(images=[np.asarray(image)], input_data_format="channels_last", return_tensors="np")
    grid = [int(x) for x in a["image_grid_thw"][0]]
    assert grid == [int(x) for x in b["image_grid_thw"][0]] and grid[0] == 1
    return grid[1:], to_bytes(a["pixel_values"], True), to_bytes(b["pixel_values"], False)


def rows(name, data, all_processors):
    """A line for each row of LIMITS."""
    with tempfile.NamedTemporaryFile() as f:
        f.write(data)
        f.flush()
        try:
            image = load_image(f.name)
        except Exception as e:  # any error is a refusal
            yield {"picture": name, "refused": f"{type(e).__name__}: {e}".replace(f.name, "FILE")[:120]}
            return
    with Image.open(io.BytesIO(data)) as f:
        kind = f.format
    if kind not in ("JPEG", "MPO", "PNG", "WEBP"):
        yield {"picture": name, "other_format": kind}
        return
    for limits, both in all_processors.items():
        try:
            grid, torch_bytes, pillow_bytes = reference(image, both)
        except ValueError as e:
            yield {"picture": name, "limits": limits, "refused": str(e)[:120]}
            continue
        yield {"picture": name, "limits": limits, "size": [image.height, image.width], "grid": grid, "torch": sha(torch_bytes), "pillow": sha(pillow_bytes)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the shared data folder")
    parser.add_argument("--out", default=os.path.join(pictures.HERE, "patches.jsonl"))
    parser.add_argument("--pictures", action="store_true")
    parser.add_argument("--draw", type=int, default=0, help="instead: this many generated pictures of random size")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="pictures whose name holds this")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    if args.pictures:
        write_kept()
    with open(os.path.join(args.data, "tokenizer", "preprocessor_config.json")) as f:
        config = json.load(f)
    every = {name: processors(config, limits) for name, limits in LIMITS.items()}
    shared_limits = {name: every[name] for name in SHARED_LIMITS}
    lines = 0
    with open(args.out, "w") as f:
        drawn = pictures.drawn(args.draw, args.seed)
        for which, found in ((every, drawn),) if args.draw else (
                (every, pictures.generated()), (shared_limits, pictures.shared(args.data))):
            for name, data in found.items():
                if args.only in name:
                    for row in rows(name, data, which):
                        f.write(json.dumps(row) + "\n")
                        lines += 1
    print(f"{args.out}: {lines} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
