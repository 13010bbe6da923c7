#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds what the reference makes of tie_word_embeddings and a stored lm_head.weight; kept in heads.json (check_heads.py).

Needs PyPI, so it runs by hand, once for each version, in the environment of make_cases.py with transformers 4.57.3 or
5.24.0. A run replaces the part of its version:

    VENV/bin/python tests/golden/make_heads.py

It changes a kept folder to each combination of the key at the top level and in text_config (absent: -, true, false;
text-only models have only the top level) and of the stored head (none, equal to the embedding, another), and loads it by
from_pretrained; "config" is a folder without weights, of which the reference makes a new model. The result is one of these:

tied      the head is the embedding: one parameter
stored    its own parameter, with the stored values
random    its own parameter with random values (the reference warns)

"saved TOP INNER" is what this version writes, as TOP INNER, of a config.json that says that.
"""

import itertools
import json
import os
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

import flavours

HERE = os.path.dirname(os.path.abspath(__file__))
PATH = os.path.join(HERE, "heads.json")
SAYS = {"-": None, "true": True, "false": False}
FOLDERS = {"qwen3_vl_moe": "moe", "qwen3_vl": "dense", "qwen3_moe": "text"}


def write_config(config, folder):
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)


def outcome(model_class, config, tensors, head):
    with tempfile.TemporaryDirectory() as folder:
        write_config(config, folder)
        if tensors is None:
            model = model_class(transformers.AutoConfig.from_pretrained(folder))
        else:
            save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
            model = model_class.from_pretrained(folder, dtype=torch.float32)
    own, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    if own.data_ptr() == embedding.data_ptr():
        return "tied"
    return "stored" if head is not None and torch.equal(own, head) else "random"


def saved(config):
    """What comes of both places when the reference reads the file and writes it again."""
    words = {value: word for word, value in SAYS.items()}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as again:
        write_config(config, folder)
        transformers.AutoConfig.from_pretrained(folder).save_pretrained(again)
        with open(os.path.join(again, "config.json"), encoding="utf-8") as f:
            written = json.load(f)
    return " ".join(words[place.get("tie_word_embeddings")] for place in (written, written.get("text_config", {})))


def table(model_type, name):
    folder = os.path.join(HERE, "cases", name)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        text = f.read()
    stored = load_file(os.path.join(folder, "model.safetensors"))
    other = stored.pop("lm_head.weight")
    embedding = next(v for n, v in stored.items() if n.endswith("embed_tokens.weight"))
    out = {}
    for top, inner in itertools.product(SAYS, SAYS if "text_config" in json.loads(text) else "-"):
        for kind, head in (("config", None), ("none", None), ("equal", embedding.clone()), ("other", other)):
            config = json.loads(text)
            for place, says in ((config, top), (config.get("text_config", {}), inner)):
                place.pop("tie_word_embeddings", None)
                if SAYS[says] is not None:
                    place["tie_word_embeddings"] = SAYS[says]
            tensors = None if kind == "config" else stored if head is None else stored | {"lm_head.weight": head}
            out[f"{top} {inner} {kind}"] = outcome(flavours.KINDS[model_type][1], config, tensors, head)
        out[f"saved {top} {inner}"] = saved(config)
    return out


if __name__ == "__main__":
    flavours.keep_version(PATH, lambda: {kind: table(kind, name) for kind, name in FOLDERS.items()})
