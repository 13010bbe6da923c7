#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what prepd sends for each VQAv2 question of the shared data with the reference's whole processor.

Needs PyPI, so it runs by hand, in the environment of make_images.py with two more packages:

    VENV/bin/pip install pyzmq==26.2.0 zstandard==0.23.0
    VENV/bin/python tests/golden/compare_vqav2.py --prepd build/bin/prepd --data SHARED/data

It uses the published tokenizer, chat template and preprocessor_config.json, with a question as a sample, and with all
questions on a picture as one conversation. Ids, labels, grid, positions and every byte of the pixels (torch path) must
be equal.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from transformers import Qwen2TokenizerFast
from transformers.image_utils import load_image
from transformers.models.qwen2_vl.image_processing_qwen2_vl_fast import Qwen2VLImageProcessorFast
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

import make_chat
import make_images

sys.path.insert(0, os.path.join(make_chat.HERE, "..", "..", "proto", "python"))
from tessera import client  # noqa: E402


def rows(prepd, data, split, group):
    """Every sample of the split, as prepd sends it."""
    with tempfile.TemporaryDirectory(prefix="golden") as folder:
        end, config = "ipc://" + os.path.join(folder, "s"), os.path.join(folder, "c.yaml")
        with open(config, "w") as f:
            json.dump({"model": {"path": os.path.join(data, "tokenizer")}, "prepd": {"endpoint": end, "workers": 1},
                       "data": {"path": os.path.join(data, "vqav2"), "split": split, "group": group},
                       "training": {"seq_len": 17000, "global_batch_size": 1}}, f)
        daemon = subprocess.Popen([prepd, "serve", "-c", config], stderr=subprocess.DEVNULL)
        try:
            yield from client.connect(end, stream="sample")
        finally:
            daemon.terminate()
            daemon.wait(timeout=60)


def samples(data, split, group):
    """Lists of (picture, question, answer)."""
    folder = os.path.join(data, "vqav2")
    with open(os.path.join(folder, f"v2_OpenEnded_mscoco_{split}2014_questions.json")) as f:
        questions = json.load(f)["questions"]
    with open(os.path.join(folder, f"v2_mscoco_{split}2014_annotations.json")) as f:
        answers = {a["question_id"]: a["multiple_choice_answer"] for a in json.load(f)["annotations"]}
    out = {}
    for q in questions:
        image = os.path.join(folder, "images", f"{split}2014", f"COCO_{split}2014_{q['image_id']:012}.jpg")
        key = q["image_id"] if group == "conversation" else q["question_id"]
        out.setdefault(key, []).append((image, q["question"], answers[q["question_id"]]))
    return list(out.values())


def differences(processor, sample, row):
    """Names of what is not equal."""
    messages = []
    for i, (_, question, answer) in enumerate(sample):
        content = [{"type": "image"}] * (i == 0) + [{"type": "text", "text": question}]
        messages += [{"role": "user", "content": content},
                     {"role": "assistant", "content": [{"type": "text", "text": answer}]}]
    text = processor.apply_chat_template(messages, tokenize=False)
    made = processor(text=[text], images=[load_image(sample[0][0])], return_tensors="pt")
    ids, grids = made["input_ids"][0].tolist(), made["image_grid_thw"]
    labels = [-100] * len(ids)
    pads = [int(g.prod()) // 4 for g in grids]
    for first, behind in make_chat.labels_of(text, processor.tokenizer, processor.image_token_id, ids, pads):
        labels[first:behind] = ids[first:behind]
    pixels = make_images.to_bytes(made["pixel_values"], True).reshape(-1, 768)
    want = {"input_ids": ids, "labels": labels, "grid_thw": grids, "position_ids": make_chat.positions(processor, made),
            "pixels": pixels}
    return [name for name, value in want.items() if not np.array_equal(np.asarray(value), row[name])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepd", required=True)
    parser.add_argument("--data", required=True, help="the shared data folder")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    folder = os.path.join(args.data, "tokenizer")
    with open(os.path.join(folder, "chat_template.json")) as f:
        template = json.load(f)["chat_template"]
    processor = Qwen3VLProcessor(Qwen2VLImageProcessorFast.from_pretrained(folder),
                                 Qwen2TokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json")),
                                 Qwen3VLVideoProcessor(), chat_template=template)
    faults = 0
    print("| split | data.group | samples | tokens | differ |\n|---|---|---|---|---|")
    for split in ("train", "val"):
        for group in ("none", "conversation"):
            found, tokens, differ = samples(args.data, split, group), 0, 0
            for sample, row in zip(found, rows(args.prepd, args.data, split, group), strict=True):
                tokens += row["input_ids"].size
                names = differences(processor, sample, row)
                differ += bool(names)
                if names:
                    print(f"  {sample[0]}: {', '.join(names)}")
            print(f"| {split} | {group} | {len(found)} | {tokens} | {differ} |")
            faults += differ
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
