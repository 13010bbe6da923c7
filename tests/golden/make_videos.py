#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes hashes of the patches of videos by the reference's own processor, for check_videos.py.

Needs PyPI, so it runs by hand; what it wrote is kept in videos.jsonl. In make_images.py's environment with PyAV
(18.1.0, whose FFmpeg is not the version of Debian):

    VENV/bin/pip install av==18.1.0
    VENV/bin/python tests/golden/make_videos.py --data SHARED/data

PyAV's to_ndarray("rgb24") gives all frames, as in transformers' read_video_pyav. Then the whole of Qwen3VLProcessor runs
with the container's number of frames and rate.
"""

import argparse
import json
import os

import av
import numpy as np
import torch
from check_videos import HERE, PUBLISHED, SEEDS, SETTINGS, sha
from transformers import Qwen2TokenizerFast
from transformers.models.qwen2_vl.image_processing_qwen2_vl_fast import Qwen2VLImageProcessorFast
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata


def read(path):
    with av.open(path) as container:
        rate = float(container.streams.video[0].average_rate)
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)]), rate


def reference(processor, frames, rate, settings):
    s = dict(PUBLISHED, **settings)
    video = processor.video_processor
    video.fps, video.min_frames, video.max_frames = s["fps"], s["min_frames"], s["max_frames"]
    made = processor(text=["<|vision_start|><|video_pad|><|vision_end|>"], return_tensors="pt",
                     videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)], do_sample_frames=True,
                     video_metadata=[VideoMetadata(total_num_frames=len(frames), fps=rate)],
                     size={"shortest_edge": s["min_pixels"], "longest_edge": s["max_pixels"]})
    pixels = made["pixel_values_videos"] * 127.5 + 127.5
    patches = pixels.round().to(torch.uint8).numpy()
    assert np.abs(pixels.numpy() - patches).max() < 1e-3
    text = processor.tokenizer.decode(made["input_ids"][0])
    return made["video_grid_thw"][0].tolist(), text, patches


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--data", required=True, help="SHARED/data")
    args.add_argument("--out", default=os.path.join(HERE, "videos.jsonl"))
    args = args.parse_args()
    folder = os.path.join(args.data, "tokenizer")
    tokenizer = Qwen2TokenizerFast(os.path.join(folder, "vocab.json"), os.path.join(folder, "merges.txt"),
                                   tokenizer_file=os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "video_preprocessor_config.json")) as f:
        config = json.load(f)
    with open(os.path.join(folder, "preprocessor_config.json")) as f:
        image = json.load(f)
    processor = Qwen3VLProcessor(Qwen2VLImageProcessorFast(**image), tokenizer, Qwen3VLVideoProcessor(**config))
    shared = os.path.join(args.data, "video")
    files = {name: os.path.join(SEEDS, name) for name in sorted(os.listdir(SEEDS))}
    files.update({"shared/" + n: os.path.join(shared, n) for n in sorted(os.listdir(shared)) if not n.endswith("json")})
    with open(args.out, "w") as out:
        for name, path in files.items():
            frames, rate = read(path)
            for which, settings in SETTINGS.items():
                grid, text, patches = reference(processor, frames, rate, settings)
                out.write(json.dumps({"video": name, "settings": which, "grid": grid,
                                      "text": sha(np.frombuffer(text.encode(), np.uint8)),
                                      "patches": sha(patches)}) + "\n")


if __name__ == "__main__":
    main()
