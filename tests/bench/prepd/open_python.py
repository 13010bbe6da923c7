# SPDX-License-Identifier: Apache-2.0
"""open_python.py RECORDING ROWS: what bench_open does, by the Python package that CMake has built: opens ROWS rows a turn, as
numpy arrays that own their memory. The turns are those of turns.h. TESSERA_PYTHON_PATH is where the package lies;
TESSERA_NATIVE=0 opens them with numpy alone."""
import os
import sys
import time

sys.path.insert(0, os.environ["TESSERA_PYTHON_PATH"])
from tessera import client, row_readers  # noqa: E402

path, n_rows = sys.argv[1], int(sys.argv[2])


def native():
    reader = row_readers._reader.Reader()
    reader.open_recording(path, loops=0)
    while True:
        number, size, arrays, texts = reader.next()
        yield dict(row_readers.arrays_of(arrays), number=number, **texts)


def numpy_alone():
    while True:
        yield from client.replay(path, prefixes=True)


rows = numpy_alone() if os.environ.get("TESSERA_NATIVE") == "0" else native()
for _ in sys.stdin:
    wall, cpu, images, size = time.perf_counter_ns(), time.process_time_ns(), 0, 0
    for _ in range(n_rows):
        row = next(rows)
        images += len(row["grid_thw"])
        size += row["pixels"].nbytes + (row["pixels_video"].nbytes if "pixels_video" in row else 0)
    print(images, time.perf_counter_ns() - wall, time.process_time_ns() - cpu, size, flush=True)
