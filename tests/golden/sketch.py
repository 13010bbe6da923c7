# SPDX-License-Identifier: Apache-2.0
"""Sketches of arrays: a few numbers that tell how far two arrays are apart, for arrays too large to keep.

A sketch has the array's norm and the sums of its elements under PROJECTIONS patterns of signs, which are a function of the
array's name alone. The sums are linear, so the difference of two sketches is the sketch of the difference; its mean square is
the square of the difference's norm, on average, within a quarter for 8 patterns. No difference but zero is unseen by all."""

import hashlib

import numpy as np

PROJECTIONS = 8


def sketch_of(name, array):
    """[1 + PROJECTIONS] float64: the norm, then the sums."""
    flat = np.asarray(array, np.float64).reshape(-1)
    n_bytes = -(-flat.size // 8)
    bits = np.frombuffer(hashlib.shake_128(name.encode()).digest(n_bytes * PROJECTIONS), np.uint8).reshape(PROJECTIONS, n_bytes)
    signs = 1 - 2.0 * np.unpackbits(bits, axis=1, count=flat.size)
    return np.concatenate([[np.linalg.norm(flat)], signs @ flat])


def distance_of(got, want):
    """About the norm of the difference of the two arrays."""
    return np.sqrt(np.mean((got[1:] - want[1:]) ** 2))
