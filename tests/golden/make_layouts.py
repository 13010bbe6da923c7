#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds how the reference opens each layout of experts; kept in layouts.json (check_round_trip.py).

Needs PyPI, so it runs by hand, once for each version, in the environment of make_cases.py with transformers 4.57.3 or
5.24.0. A run replaces the part of its version:

    TESSERA_BIN=build/bin VENV/bin/python tests/golden/make_layouts.py

A kept folder is written in each layout and loaded by from_pretrained. The result is one of these:

same      every parameter has the values of the kept folder
other     some have other values, random ones (the reference opens the folder, and warns)
error     the folder is not opened
"""

import os
import shutil
import sys
import tempfile

import torch

import flavours

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "flow"))
from hf_files import fused, in_layout, read, write  # noqa: E402

PATH = os.path.join(HERE, "layouts.json")
FOLDERS = {"qwen3_vl_moe": "moe", "qwen3_moe": "text"}
LAYOUTS = {"fused": "published", "v5": "v5", "per-expert": "per-expert"}


def outcome(model_class, folder, tensors, want):
    with tempfile.TemporaryDirectory() as at:
        shutil.copy(os.path.join(folder, "config.json"), at)
        write(os.path.join(at, "model.safetensors"), tensors)
        try:
            got = model_class.from_pretrained(at, dtype=torch.float32).state_dict()
        except RuntimeError:
            return "error"
    return "same" if all(torch.equal(value, got[name]) for name, value in want.items()) else "other"


def table(model_type, name):
    folder, model_class = os.path.join(HERE, "cases", name), flavours.KINDS[model_type][1]
    want = model_class.from_pretrained(folder, dtype=torch.float32).state_dict()
    stored = fused(read(os.path.join(folder, "model.safetensors")))
    return {name: outcome(model_class, folder, in_layout(stored, word), want) for name, word in LAYOUTS.items()}


if __name__ == "__main__":
    flavours.keep_version(PATH, lambda: {kind: table(kind, name) for kind, name in FOLDERS.items()})
