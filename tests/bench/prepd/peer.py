"""One peer's pipeline, timed: python peer.py NAME LIST PROCESSES SECONDS; prints images per second
and per CPU second.

Each takes paths of JPEG files and gives the consuming process patches [S, 768] uint8 in merge order,
as prepd's rows have them; the reference gives its own float32 pixel_values, which is what its users
feed to the model."""

import itertools
import math
import os
import sys
import time

import numpy as np

FACTOR, MIN_PIXELS, MAX_PIXELS = 32, 65536, 16777216


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
    """The same of [3, H, W]."""
    _, h, w = chw.shape
    x = chw.reshape(3, h // 32, 2, 16, w // 32, 2, 16)
    return np.ascontiguousarray(x.transpose(1, 4, 2, 5, 0, 3, 6)).reshape(-1, 768)


def loader(files, load, processes):
    """torch's DataLoader over the files, again and again, each item by `load`."""
    import torch

    class Files(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 30

        def __getitem__(self, i):
            torch.set_num_threads(1)
            return load(files[i % len(files)])

    return iter(torch.utils.data.DataLoader(Files(), batch_size=8, num_workers=processes,
                                            collate_fn=list))


def reference(files, processes):
    from PIL import Image
    from transformers import Qwen2VLImageProcessor

    processor = Qwen2VLImageProcessor(patch_size=16, merge_size=2, temporal_patch_size=2,
                                      min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS,
                                      image_mean=[0.5] * 3, image_std=[0.5] * 3)

    def load(path):
        image = Image.open(path).convert("RGB")
        return processor(images=[image], return_tensors="pt")["pixel_values"]

    return loader(files, load, processes)


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


def opencv(files, processes):
    import cv2
    import torch

    def load(path):
        cv2.setNumThreads(0)
        bgr = cv2.imread(path)
        h, w = fit(*bgr.shape[:2])
        if bgr.shape[:2] != (h, w):
            bgr = cv2.resize(bgr, (w, h), interpolation=cv2.INTER_CUBIC)
        return torch.from_numpy(cut(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)))

    return loader(files, load, processes)


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


def spdl(files, processes):
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    def load(path):
        packets = spdl.io.demux_image(path)
        frames = spdl.io.decode_packets(packets, filter_desc=None)
        h, w = fit(frames.height, frames.width)
        frames = spdl.io.decode_packets(
            spdl.io.demux_image(path),
            filter_desc=f"scale=w={w}:h={h}:flags=bicubic,format=pix_fmts=rgb24")
        return cut(spdl.io.to_numpy(spdl.io.convert_frames(frames)).reshape(h, w, 3))

    builder = PipelineBuilder().add_source(itertools.cycle(files))
    pipeline = builder.pipe(load, concurrency=processes).aggregate(8).add_sink(4).build(
        num_threads=processes)
    with pipeline.auto_stop():
        yield from pipeline


def grain(files, processes):
    import cv2
    import grain.python as g

    def load(path):
        cv2.setNumThreads(0)
        bgr = cv2.imread(path)
        h, w = fit(*bgr.shape[:2])
        if bgr.shape[:2] != (h, w):
            bgr = cv2.resize(bgr, (w, h), interpolation=cv2.INTER_CUBIC)
        return cut(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB))

    # Its processes want abseil's main and a module to pickle from; threads do the same here, since
    # OpenCV works without Python's lock.
    threads = g.ReadOptions(num_threads=processes, prefetch_buffer_size=16)
    data = g.MapDataset.source(files).repeat(None).map(load).to_iter_dataset(threads)
    yield from ([x] for x in data)


def cpu_seconds():
    """Of this process and its children, all threads."""
    total, todo = 0, [os.getpid()]
    while todo:
        pid = todo.pop()
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as f:
                total += int(f.read().split()[0])
            with open(f"/proc/{pid}/task/{task}/children") as f:
                todo += map(int, f.read().split())
    return total / 1e9


def main():
    name, files, processes, seconds = sys.argv[1:5]
    with open(files) as f:
        paths = f.read().split("\n")[:-1]
    batches = globals()[name](paths, int(processes))
    n = 0
    while n < 64:  # under way
        n += len(next(batches))
    n, start, cpu = 0, time.monotonic(), cpu_seconds()
    while n < len(paths) or time.monotonic() - start < float(seconds):
        n += len(next(batches))
    print(n / (time.monotonic() - start), n / (cpu_seconds() - cpu), flush=True)
    os._exit(0)  # endless loaders do not end by themselves


if __name__ == "__main__":
    main()
