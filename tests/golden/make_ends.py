#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds at which tokens the reference's generate() stops; kept in ends.json (test_dims).

Needs PyPI, so it runs by hand, once for each version, in the environment of make_cases.py with transformers 4.57.3 or
5.24.0. A run replaces the part of its version:

    VENV/bin/python tests/golden/make_ends.py

It changes a kept folder to each case's eos_token_id (at the top level, in text_config, in generation_config.json; an
absent key is -, an absent file no member), loads it by from_pretrained, and lets generate() say each of TOKENS next:
the logits are made to. A token after which nothing is said is kept as an end. "error": the reference opens no such
folder or ends generate() with an exception.
"""

import json
import os
import tempfile

import torch
import transformers

import flavours

HERE = os.path.dirname(os.path.abspath(__file__))
PATH = os.path.join(HERE, "ends.json")
TOKENS = range(5, 11)
OTHER = 12
CASES = [
    {}, {"top": 5}, {"text": 6}, {"top": 5, "text": 6}, {"top": [5, 7]}, {"text": [6, 8]}, {"top": [5, 7], "text": [6, 8]},
    {"text": 6, "generation": {"eos_token_id": [6, 9]}}, {"text": 6, "generation": {"eos_token_id": [9, 10]}},
    {"top": 5, "text": 6, "generation": {"eos_token_id": 9}}, {"generation": {"eos_token_id": [9, 10]}},
    {"text": 6, "generation": {"eos_token_id": [9, 9]}}, {"text": 6, "generation": {"eos_token_id": 9, "do_sample": True}},
    {"text": 6, "generation": {"eos_token_id": None}}, {"text": 6, "generation": {}},
    {"text": 6, "generation": {"eos_token_id": "9"}}, {"text": 6, "generation": {"eos_token_id": [9, None]}},
    {"text": 6, "generation": []},
]


class Says(transformers.LogitsProcessor):
    """Makes one token certain, and another one after it."""

    def __init__(self, token):
        self.token = token

    def __call__(self, ids, scores):
        out = torch.full_like(scores, -1e9)
        out[:, self.token if ids.shape[1] == 2 else OTHER] = 0
        return out


def ends_of(model):
    prompt = torch.tensor([[3, 4]])
    said = {t: model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=2, do_sample=False, pad_token_id=0,
                              logits_processor=transformers.LogitsProcessorList([Says(t)]))[0, 2:].tolist() for t in TOKENS}
    return [t for t, words in said.items() if words == [t]]


def outcome(model_class, config, weights, case):
    for place, key in ((config, "top"), (config.get("text_config", config), "text")):
        place.pop("eos_token_id", None)
    for place, key in ((config, "top"), (config.get("text_config", config), "text")):
        if key in case:
            place["eos_token_id"] = case[key]
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        if "generation" in case:
            with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf-8") as f:
                json.dump(case["generation"], f)
        os.symlink(weights, os.path.join(folder, "model.safetensors"))
        try:
            return ends_of(model_class.from_pretrained(folder, dtype=torch.float32))
        except Exception:  # whatever it is, it is no answer
            return "error"


def main():
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    kept = {"cases": CASES, "versions": {}}
    if os.path.exists(PATH):
        with open(PATH, encoding="utf-8") as f:
            kept = json.load(f)
        assert kept["cases"] == CASES, "the versions were asked different things"
    folder = os.path.join(HERE, "cases", "dense")
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        text = f.read()
    model_class = flavours.KINDS["qwen3_vl"][1]
    kept["versions"][transformers.__version__] = [
        outcome(model_class, json.loads(text), os.path.join(folder, "model.safetensors"), case) for case in CASES]
    with open(PATH, "w", encoding="utf-8") as f:
        f.write('{"cases": [\n' + ",\n".join(json.dumps(c) for c in CASES) + '],\n"versions": {\n' + ",\n".join(
            f"{json.dumps(v)}: {json.dumps(ends)}" for v, ends in sorted(kept["versions"].items())) + "}}\n")


if __name__ == "__main__":
    main()
