#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the reference, given a model that we trained, answers held-out questions in the same words.

    VENV/bin/python tests/golden/check_answers.py -c configs/smoke.yaml --model build/smoke/run/checkpoint \\
        [--bin build/bin] [--questions 200] [--adapter]

It needs the environment of make_cases.py, runs by hand and starts its own daemon. `trainer eval` answers the questions
by greedy generation, keeping keys and values, and writes eval.page. Each picture and question on the page, as `prepd
sample` gives them, then goes through the reference's own generate(), and the texts must be the same. With --adapter,
the model is the folder of a step of a LoRA run: by PEFT the reference loads its `adapter/` onto the model that the run
began from (named in adapter_config.json), and its answers must be those of the merged model."""

import argparse
import html
import json
import os
import re
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoTokenizer, Qwen3VLMoeForConditionalGeneration

NEW_TOKENS = 16  # GENERATE_MAX of trainer/generate/generate.h


def our_answers(args, folder):
    """(sample, words, accuracy) of every question on the page, and the line of the evaluation."""
    page, programs = os.path.join(folder, "page.html"), [os.path.join(args.bin, p) for p in ("prepd", "trainer")]
    endpoint = ["--prepd.endpoint", "ipc://" + os.path.join(folder, "d.sock")]
    daemon = subprocess.Popen([programs[0], "serve", "-c", args.config, *endpoint], stderr=subprocess.DEVNULL)
    try:
        said = subprocess.run([programs[1], "eval", "-c", args.config, *endpoint, "--model.path", args.model,
                               "--eval.page", page, "--eval.show", "0", "--eval.generate", str(args.questions)],
                              check=True, capture_output=True, text=True).stdout
    finally:
        daemon.terminate()
        daemon.wait()
    with open(page, encoding="utf-8") as f:
        found = re.findall(r"<td>([^<]*)</td><td>(\d+) %</td><td>(\d+)</td></tr>", f.read())
    return [(int(n), html.unescape(words), int(score)) for words, score, n in found], said


def prompt_of(args, folder, sample):
    """Ids before the first target, pixels as the reference takes them, grid."""
    path = os.path.join(folder, "sample.safetensors")
    subprocess.run([os.path.join(args.bin, "prepd"), "sample", "-c", args.config, "--data.split", args.split,
                    "--index", str(sample), "--out", path, "--overwrite"], check=True, capture_output=True)
    t = load_file(path)
    cut = int(np.argmax(t["labels"] >= 0))
    pixels = (t["pixels"].astype(np.float32).reshape(-1, 3, 1, 256) - 127.5) / 127.5
    pixels = np.repeat(pixels, 2, axis=2).reshape(len(t["pixels"]), -1)  # a picture is two equal frames
    return t["input_ids"][:cut].astype(np.int64), pixels, t["grid_thw"].astype(np.int64)


def reference(args):
    if not args.adapter:
        return Qwen3VLMoeForConditionalGeneration.from_pretrained(args.model, dtype=torch.float32).eval()
    from peft import PeftModel
    path = os.path.join(args.model, "adapter")
    with open(os.path.join(path, "adapter_config.json"), encoding="utf-8") as f:
        base = json.load(f)["base_model_name_or_path"]
    model = Qwen3VLMoeForConditionalGeneration.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, path).eval()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-c", "--config", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--bin", default="build/bin")
    parser.add_argument("--split", default="val")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--adapter", action="store_true")
    args = parser.parse_args()
    args.model = os.path.abspath(args.model)
    model, tokenizer = reference(args), AutoTokenizer.from_pretrained(args.model)
    with tempfile.TemporaryDirectory() as folder:
        ours, said = our_answers(args, folder)
        different, right = [], 0
        for sample, words, score in ours:
            ids, pixels, grid = prompt_of(args, folder, sample)
            ids = torch.from_numpy(ids)[None]
            with torch.no_grad():
                out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids),
                                     pixel_values=torch.from_numpy(pixels), image_grid_thw=torch.from_numpy(grid),
                                     do_sample=False, max_new_tokens=NEW_TOKENS)
            theirs = tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True)
            right += score == 100
            if theirs != words:
                different.append(f"sample {sample}: ours {words!r}, the reference's {theirs!r}")
    print(said.strip().splitlines()[0])
    print(f"{len(ours)} questions, {right} right, {len(different)} answered in other words by the reference")
    print("\n".join(different[:20]))
    sys.exit(1 if different or not ours else 0)


main()
