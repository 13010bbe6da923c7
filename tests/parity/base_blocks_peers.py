# SPDX-License-Identifier: Apache-2.0
"""The blocks of a base in 4 or 8 bits (base_blocks.c) beside bitsandbytes (Dettmers et al. 2023, arXiv:2305.14314).

TESSERA_PYTHON may name an interpreter with torch and bitsandbytes: its quantize_4bit must then give the same NF4 codes and
scales, to the byte, for values of float32 and of bf16. In any case a scale of NF4 must be
the largest magnitude of its block, and a value of int8 within half a step (test_quantised has the levels)."""

import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not installed")
    sys.exit(77)

BLOCK, COUNT = 64, 4096


def blocks_of(values, form):
    program = os.path.join(os.environ["TESSERA_TESTS"], "base_blocks")
    done = subprocess.run([program, form], input=values.tobytes(), capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.uint8).reshape(COUNT, -1)


def drawn():
    values = np.random.default_rng(5).standard_normal((COUNT, BLOCK)).astype(np.float32) * np.float32(0.02)
    values[7] = 0
    return values


def int8_is_within_half_a_step(values):
    blocks = blocks_of(values, "int8")
    scales = blocks[:, :4].copy().view(np.float32).astype(np.float64)
    off = np.abs(blocks[:, 4:].view(np.int8) * scales - values)
    if not (off <= scales * 0.5001).all():
        sys.exit("base_blocks_peers: int8 is off by more than half a step")


def nf4_scales_are_the_largest(values):
    scales = blocks_of(values, "nf4")[:, :4].copy().view(np.float32)[:, 0]
    if not (scales == np.abs(values).max(axis=1)).all():
        sys.exit("base_blocks_peers: a scale of NF4 is not the largest magnitude of its block")


def codes_of_bitsandbytes(folder):
    """In the other interpreter: reads the values, and writes the codes and scales."""
    import bitsandbytes
    import torch
    values = torch.tensor(np.load(os.path.join(folder, "values.npy")))
    for name, kind in ("float32", torch.float32), ("bf16", torch.bfloat16):
        codes, state = bitsandbytes.functional.quantize_4bit(values.to(kind), blocksize=BLOCK, quant_type="nf4")
        np.savez(os.path.join(folder, name), codes=codes.numpy().reshape(COUNT, -1), scales=state.absmax.numpy(),
                 values=values.to(kind).float().numpy())


def beside_bitsandbytes(python, values):
    if subprocess.run([python, "-c", "import bitsandbytes"], capture_output=True).returncode:
        print(f"skipped: {python} has no bitsandbytes")
        return
    with tempfile.TemporaryDirectory() as folder:
        np.save(os.path.join(folder, "values.npy"), values)
        done = subprocess.run([python, "-B", os.path.abspath(__file__), folder], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"base_blocks_peers: bitsandbytes: {done.stderr}")
        for name in "float32", "bf16":
            with np.load(os.path.join(folder, name + ".npz")) as theirs:
                blocks = blocks_of(theirs["values"], "nf4")
                codes = (blocks[:, 4:] != theirs["codes"]).sum()
                scales = (blocks[:, :4].copy().view(np.float32)[:, 0] != theirs["scales"].ravel()).sum()
            print(f"{name}: of {COUNT} blocks {codes} bytes of codes and {scales} scales differ from bitsandbytes'")
            if codes or scales:
                sys.exit("base_blocks_peers: they must be the same")


def main():
    values = drawn()
    int8_is_within_half_a_step(values)
    nf4_scales_are_the_largest(values)
    python = os.environ.get("TESSERA_PYTHON", "")
    if python:
        beside_bitsandbytes(python, values)
    else:
        print("skipped: TESSERA_PYTHON names no interpreter with bitsandbytes")


codes_of_bitsandbytes(sys.argv[1]) if sys.argv[1:] else main()
