# SPDX-License-Identifier: Apache-2.0
"""Times one peer's pipeline: python peer.py NAME LIST PROCESSES SECONDS CPUS; prints images per second
and per CPU second.

Each pipeline takes paths of JPEG files and gives the consuming process either patches [S, 768] uint8 in
merge order, as prepd's rows have them, or float32 pixel_values [S, 1536], which the reference's
processors give and a model takes. The processes that load are bound to the last PROCESSES of CPUS with
all their threads, and the one that consumes to the others. Where all are threads of one process, it has
all of them."""

import itertools
import math
import os
import signal
import sys
import time

import numpy as np

FACTOR, MIN_PIXELS, MAX_PIXELS = 32, 65536, 16777216
THREADS = {"dali", "spdl-threads", "grain-threads"}  # these have no processes that load; the one that consumes does everything
PREPD = "BENCH_PREPD"  # tells prepd-float where its rows are: the endpoint, and the pids of daemon and workers


def fit(height, width):
    """smart_resize of the reference."""
    h, w = round(height / FACTOR) * FACTOR, round(width / FACTOR) * FACTOR
    if h * w > MAX_PIXELS:
        b = math.sqrt(height * width / MAX_PIXELS)
        h, w = (math.floor(x / b / FACTOR) * FACTOR for x in (height, width))
    elif h * w < MIN_PIXELS:
        b = math.sqrt(MIN_PIXELS / (height * width))
        h, w = (math.ceil(x * b / FACTOR) * FACTOR for x in (height, width))
    return h, w


def cut(rgb):
    """[H, W, 3] -> [S, 768] in merge order; columns channel, y, x."""
    h, w, _ = rgb.shape
    x = rgb.reshape(h // 32, 2, 16, w // 32, 2, 16, 3)
    return np.ascontiguousarray(x.transpose(0, 3, 1, 4, 6, 2, 5)).reshape(-1, 768)


def cut_planes(chw):
    """The same as cut(), for an image [3, H, W]."""
    _, h, w = chw.shape
    x = chw.reshape(3, h // 32, 2, 16, w // 32, 2, 16)
    return np.ascontiguousarray(x.transpose(1, 4, 2, 5, 0, 3, 6)).reshape(-1, 768)


def loader(files, load, processes):
    """torch's DataLoader over the files without end, which makes each item by `load`."""
    import torch

    class Files(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 30

        def __getitem__(self, i):
            torch.set_num_threads(1)
            return load(files[i % len(files)])

    return iter(torch.utils.data.DataLoader(Files(), batch_size=8, num_workers=processes,
                                            collate_fn=list))


def prepd_float(files, processes):
    """Makes the reference's pixel_values from prepd's rows, which tessera/client.py receives."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "proto", "python"))
    from tessera import client

    room = [np.zeros((0, 3, 2, 256), np.float32)] * 2  # filled in turn, like buffers that go to a device
    for row in client.connect(os.environ[PREPD].split(",")[0]):
        pixels = row["pixels"].reshape(-1, 3, 256)
        room.reverse()
        if len(room[0]) < len(pixels):
            room[0] = np.zeros((len(pixels), 3, 2, 256), np.float32)
        values = room[0][:len(pixels)]
        for k in range(0, len(pixels), 64):  # in pieces that fit the nearest cache
            piece = values[k:k + 64]
            first = np.multiply(pixels[k:k + 64], np.float32(1 / 127.5))
            first -= 1
            piece[:, :, 0] = piece[:, :, 1] = first  # a picture is two equal frames
        yield np.split(values.reshape(-1, 1536), np.cumsum(row["grid_thw"].prod(1))[:-1])


def processor_of(kind):
    import transformers

    return getattr(transformers, kind)(patch_size=16, merge_size=2, temporal_patch_size=2, min_pixels=MIN_PIXELS,
                                       max_pixels=MAX_PIXELS, image_mean=[0.5] * 3, image_std=[0.5] * 3)


def processed(files, processes, open_image, kind):
    processor = processor_of(kind)

    def load(path):
        return processor(images=[open_image(path)], return_tensors="pt")["pixel_values"]

    return loader(files, load, processes)


def reference(files, processes):
    from PIL import Image

    return processed(files, processes, lambda path: Image.open(path).convert("RGB"), "Qwen2VLImageProcessor")


def torchvision_fast(files, processes):
    from torchvision.io import decode_jpeg, read_file

    return processed(files, processes, lambda path: decode_jpeg(read_file(path)), "Qwen2VLImageProcessorFast")


def open_rgb(path):
    import cv2

    cv2.setNumThreads(0)
    return cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB)


def opencv_processor(files, processes):
    return processed(files, processes, open_rgb, "Qwen2VLImageProcessor")


def opencv_fast(files, processes):
    import torch

    return processed(files, processes, lambda path: torch.from_numpy(open_rgb(path)).permute(2, 0, 1),
                     "Qwen2VLImageProcessorFast")


def torchvision(files, processes):
    import torch
    from torchvision.io import decode_jpeg, read_file
    from torchvision.transforms.v2 import functional as F

    def load(path):
        rgb = decode_jpeg(read_file(path))
        size = fit(*rgb.shape[1:])
        rgb = F.resize(rgb, size, interpolation=F.InterpolationMode.BICUBIC, antialias=True)
        return torch.from_numpy(cut_planes(rgb.numpy()))

    return loader(files, load, processes)


def load_opencv(path):
    import cv2

    cv2.setNumThreads(0)
    bgr = cv2.imread(path)
    h, w = fit(*bgr.shape[:2])
    if bgr.shape[:2] != (h, w):
        bgr = cv2.resize(bgr, (w, h), interpolation=cv2.INTER_CUBIC)
    return cut(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB))


def opencv(files, processes):
    import torch

    return loader(files, lambda path: torch.from_numpy(load_opencv(path)), processes)


def dali(files, processes):
    import nvidia.dali.fn as fn
    import nvidia.dali.types as types
    from nvidia.dali import pipeline_def

    @pipeline_def(batch_size=8, num_threads=processes, device_id=None)
    def pipe():
        jpegs, _ = fn.readers.file(files=files, prefetch_queue_depth=2)
        shape = fn.peek_image_shape(jpegs)
        size = fn.cast(shape[:2], dtype=types.FLOAT)
        even = fn.cast(size / 32.0 + 0.5, dtype=types.INT32) * 32
        rgb = fn.decoders.image(jpegs, output_type=types.RGB, device="cpu")
        return fn.resize(rgb, size=fn.cast(even, dtype=types.FLOAT),
                         interp_type=types.INTERP_CUBIC, antialias=True)

    p = pipe()
    p.build()
    while True:
        (batch,) = p.run()
        yield [cut(np.asarray(batch[i])) for i in range(len(batch))]


def load_spdl(path):
    import spdl.io

    packets = spdl.io.demux_image(path)
    h, w = fit(packets.height, packets.width)
    frames = spdl.io.decode_packets(packets,
                                    filter_desc=f"scale=w={w}:h={h}:flags=bicubic,format=pix_fmts=rgb24")
    return cut(spdl.io.to_numpy(spdl.io.convert_frames(frames)).reshape(h, w, 3))


class Endless:
    """A source without end that can be pickled, because SPDL sends it to a separate process."""

    def __init__(self, files):
        self.files = files

    def __iter__(self):
        return itertools.cycle(self.files)


def spdl_builder(files, processes):
    from spdl.pipeline import PipelineBuilder

    return PipelineBuilder().add_source(Endless(files)).pipe(load_spdl, concurrency=processes).aggregate(8).add_sink(4)


def spdl_threads(files, processes):
    pipeline = spdl_builder(files, processes).build(num_threads=processes, max_failures=0)
    with pipeline.auto_stop():
        yield from pipeline


def spdl(files, processes):
    """A pipeline in a separate process with this many threads, whose items this process reads."""
    from spdl.pipeline import run_pipeline_in_subprocess

    yield from run_pipeline_in_subprocess(spdl_builder(files, processes).get_config(), num_threads=processes, max_failures=0)


def grain_data(files, threads):
    import grain.python as g

    options = g.ReadOptions(num_threads=threads, prefetch_buffer_size=16)
    return g.MapDataset.source(files).repeat(None).map(load_opencv).to_iter_dataset(options)


def grain(files, processes):
    """Grain with worker processes of one thread each. They need abseil's main, and functions that a module defines."""
    import grain.python as g

    yield from ([x] for x in grain_data(files, 1).mp_prefetch(g.MultiprocessingOptions(processes, 16)))


def grain_threads(files, processes):
    yield from ([x] for x in grain_data(files, processes))


def descendants(pid):
    out = [pid]
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as f:
            for child in map(int, f.read().split()):
                out += descendants(child)
    return out


def bind(pid, cpus):
    for task in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(task), cpus)


def cpu_seconds(pids):
    total = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as f:
                total += int(f.read().split()[0])
    return total / 1e9


def timed(name, files, processes, seconds, cpus):
    with open(files) as f:
        paths = f.read().split("\n")[:-1]
    batches = globals()[name.replace("-", "_")](paths, processes)
    n = len(next(batches))
    if name not in THREADS:
        loading, rest = cpus[-processes:], cpus[:-processes] or cpus
        for pid in descendants(os.getpid())[1:]:
            bind(pid, loading)
        bind(os.getpid(), rest)
    pids = descendants(os.getpid()) + [int(p) for p in os.environ.get(PREPD, "").split(",")[1:]]
    while n < (400 if name == "prepd-float" else 64):  # past the rows that were made ahead
        n += len(next(batches))
    n, start, cpu = 0, time.monotonic(), cpu_seconds(pids)
    while n < len(paths) or time.monotonic() - start < seconds:
        n += len(next(batches))
    print(n / (time.monotonic() - start), n / (cpu_seconds(pids) - cpu), flush=True)
    for pid in descendants(os.getpid())[1:]:  # endless loaders do not end by themselves
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def main(_=None):
    name, files, processes, seconds, cpus = sys.argv[1:6]
    timed(name, files, int(processes), float(seconds), [int(c) for c in cpus.split(",")])


if __name__ == "__main__":
    if sys.argv[1] == "grain":
        from absl import app, flags

        flags.FLAGS([sys.argv[0]])
        app.run(main, [sys.argv[0]])
    else:
        main()
