#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the files of prepd/worker/examples, which `prepd fingerprint` decodes: kept pictures and clips of the tests, PNGs in
every colour type and depth, and JPEGs in every orientation. Needs numpy and libvips' shared library, which writes the two
JPEGs whose sides are multiples of 32. The bytes of those depend on the library; all others are the same everywhere.

    tests/golden/make_examples.py
"""

import ctypes
import os
import shutil
import struct

import numpy as np

import pictures
from pictures import GREY, GREY_ALPHA, PALETTE, RGB, RGBA, chunk, exif, interlaced, jpeg_with, png, values

ROOT = os.path.dirname(os.path.dirname(pictures.HERE))
OUT = os.path.join(ROOT, "prepd/worker/examples")
HEIGHT, WIDTH = 11, 13
LEFT_OUT = ("animated_alpha.webp",)  # of the kept pictures: nothing else in it than in animated.webp and alpha.webp
DEPTHS = {GREY: (1, 2, 4, 8, 16), RGB: (8, 16), PALETTE: (1, 2, 4, 8), GREY_ALPHA: (8, 16), RGBA: (8, 16)}
NAMES = {GREY: "grey", RGB: "rgb", PALETTE: "palette", GREY_ALPHA: "grey_alpha", RGBA: "rgba"}
KEYS = {GREY: struct.pack(">H", 255), RGB: struct.pack(">HHH", 255, 255, 255), PALETTE: b"\0\x80\xff"}


def put(name, data):
    with open(os.path.join(OUT, name), "wb") as f:
        f.write(data)


def vips_jpeg(height, width, subsample):
    vips = ctypes.CDLL("libvips.so.42")
    vips.vips_init(b"make_examples")
    vips.vips_image_new_from_memory.restype = ctypes.c_void_p
    pixels = values(height, width, 3).astype(np.uint8).tobytes()
    im = vips.vips_image_new_from_memory(pixels, ctypes.c_size_t(len(pixels)), width, height, 3, 0)
    out, size = ctypes.c_void_p(), ctypes.c_size_t()
    failed = vips.vips_jpegsave_buffer(ctypes.c_void_p(im), ctypes.byref(out), ctypes.byref(size), b"Q", 75, b"subsample_mode",
                                       1 if subsample else 2, b"strip", 1, None)
    assert not failed
    return ctypes.string_at(out, size.value)


def main():
    os.makedirs(OUT, exist_ok=True)
    for name in sorted(set(os.listdir(pictures.KEPT)) - set(LEFT_OUT)):
        shutil.copyfile(os.path.join(pictures.KEPT, name), os.path.join(OUT, name))
    clips = os.path.join(ROOT, "tests/fuzz/seeds/video")
    for name in sorted(os.listdir(clips)):
        if "." in name and name.rsplit(".", 1)[1].isalnum() and not name.startswith("claims"):
            shutil.copyfile(os.path.join(clips, name), os.path.join(OUT, name))
    shutil.copyfile(os.path.join(pictures.HERE, "tokenizer/pairs/tokenizer.json"), os.path.join(OUT, "vocabulary.json"))
    for colour, depths in DEPTHS.items():
        for depth in depths:
            put(f"{NAMES[colour]}{depth}.png", png(HEIGHT, WIDTH, colour, depth))
        if colour in KEYS:
            put(f"{NAMES[colour]}_key.png", png(HEIGHT, WIDTH, colour, 8, chunk(b"tRNS", KEYS[colour])))
    put("interlaced.png", interlaced(HEIGHT, WIDTH))
    put("orientation5.png", png(HEIGHT, WIDTH, extra=chunk(b"eXIf", exif(5))))
    with open(os.path.join(pictures.KEPT, "ycc420.jpg"), "rb") as f:
        plain = f.read()
    for orientation in range(1, 9):
        put(f"orientation{orientation}.jpg", jpeg_with(plain, b"Exif\0\0" + exif(orientation)))
    put("exact420.jpg", vips_jpeg(32, 64, True))
    put("exact444.jpg", vips_jpeg(32, 64, False))


if __name__ == "__main__":
    main()
