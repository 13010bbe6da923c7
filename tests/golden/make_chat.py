#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes ids, labels and positions of conversations with pictures by the reference's own processor and model.

Needs PyPI, so it runs by hand; what it wrote is kept in chat.json (test_chat_golden). In make_images.py's
environment:

    VENV/bin/python tests/golden/make_chat.py --data SHARED/data [--seed S] [--cases N]

Ids come from apply_chat_template and Qwen3VLProcessor of transformers 4.57.3, with the tiny tokenizer of this folder and
with the published one, and positions from get_rope_index of Qwen3VLModel. The reference has no labels: trained are the
tokens that begin in an assistant's text, and its <|im_end|>. In "ids", -n stands for n image tokens.

--same-as FILE (a chat_template.json, chat_template.jinja or tokenizer_config.json) writes nothing: it renders the
conversations by that template too and says whether all texts are the same, so that the file's template may be listed
as known (prepd/sample/chat_template.c).
"""

import argparse
import json
import logging
import os
import random
import re
import sys
import types

import numpy as np
import torch
from PIL import Image
from transformers import Qwen2TokenizerFast
from transformers.models.qwen2_vl.image_processing_qwen2_vl_fast import Qwen2VLImageProcessorFast
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

HERE = os.path.dirname(os.path.abspath(__file__))
TEXTS = ["What is this?", "the colour of the sky", " ", "\n", "a\n\nb", "  two  spaces  ", "naïve café", "e\u0301 u\u0308",
         "什么颜色？", "😀👍🏽", "it's 1234.5", "def f(x):\n    return x\n", "", "<b>no tag</b>", "assistant\n", "yes", "2",
         "<|im_start", "\u3000", "trailing \n"]


def turn(role, *parts):
    return {"role": role, "parts": list(parts)}


def hand_made():
    """Conversations whose parts are texts, or [h, w] of a picture's grid in patches."""
    return [
        [turn("user", [4, 6], "What is this?"), turn("assistant", "a cat")],
        [turn("user", "text only"), turn("assistant", "yes")],
        [turn("system", "You are terse."), turn("user", [4, 4], [6, 2], [2, 8], "Compare."), turn("assistant", "no")],
        [turn("user", "before", [8, 4], "between", [4, 8], "behind"), turn("assistant", "one"),
         turn("user", [2, 2]), turn("assistant", "two"), turn("user", "again?"), turn("assistant", "three\n")],
        [turn("user", [10, 2]), turn("assistant", "tall"), turn("system", "ignored here"), turn("user", [2, 10]),
         turn("assistant", "wide")],
    ]


def drawn(rng):
    turns = [turn("system", rng.choice(TEXTS))] if rng.random() < 0.3 else []
    for _ in range(rng.randint(1, 3)):
        parts = [rng.choice(TEXTS) for _ in range(rng.randint(1, 3))]
        for _ in range(rng.randint(0, 2)):
            parts.insert(rng.randint(0, len(parts)), [2 * rng.randint(1, 5), 2 * rng.randint(1, 5)])
        turns += [turn("user", *parts), turn("assistant", *(rng.choice(TEXTS) for _ in range(rng.randint(1, 2))))]
    return turns


def labels_of(text, tokenizer, pad, ids, pads):
    """Ranges [first, end) of trained tokens: those that begin in an assistant's text, and its <|im_end|>."""
    spans = [m.span(1) for m in re.finditer(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", text, re.S)]
    short = tokenizer(text, return_offsets_mapping=True)
    out, at, pads = [], 0, iter(pads)
    for i, (start, _) in zip(short["input_ids"], short["offset_mapping"], strict=True):
        n = next(pads) if i == pad else 1
        assert ids[at : at + n] == [i] * n
        if any(a <= start < b for a, b in spans):
            if out and out[-1][1] == at:
                out[-1][1] += 1
            else:
                out.append([at, at + 1])
        at += n
    assert at == len(ids)
    return out


def shorten(ids, pad):
    out = []
    for i in ids:
        if i != pad:
            out.append(i)
        elif out and out[-1] < 0:
            out[-1] -= 1
        else:
            out.append(-1)
    return out


def positions(processor, made):
    """get_rope_index of the model, which reads only these numbers of its config: [3, T]"""
    config = types.SimpleNamespace(
        vision_config=types.SimpleNamespace(spatial_merge_size=2), image_token_id=processor.image_token_id,
        video_token_id=processor.video_token_id, vision_start_token_id=processor.vision_start_token_id)
    places, _ = Qwen3VLModel.get_rope_index(types.SimpleNamespace(config=config), made["input_ids"],
                                            made.get("image_grid_thw"), None, made["attention_mask"])
    return places[:, 0].numpy().astype(int)


def expected(turns, processor, template):
    images, messages = [], []
    for t in turns:
        content = []
        for part in t["parts"]:
            if isinstance(part, str):
                content.append({"type": "text", "text": part})
            else:
                content.append({"type": "image"})
                images.append(Image.new("RGB", (part[1] * 16, part[0] * 16)))
        messages.append({"role": t["role"], "content": content})
    text = processor.apply_chat_template(messages, chat_template=template, tokenize=False)
    made = processor(text=[text], images=images or None, return_tensors="pt")
    ids = made["input_ids"][0].tolist()
    pad, grids = processor.image_token_id, made.get("image_grid_thw")
    wanted = [p for t in turns for p in t["parts"] if not isinstance(p, str)]
    assert [g[1:] for g in (grids.tolist() if grids is not None else [])] == wanted
    places = positions(processor, made)
    assert places.shape == (3, len(ids))
    trained = labels_of(text, processor.tokenizer, pad, ids, [h * w // 4 for h, w in wanted])
    return {"ids": shorten(ids, pad), "trained": trained, "positions": places.tolist()}


def template_of(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    return text if path.endswith(".jinja") else json.loads(text)["chat_template"]


def same_as(path, cases, processor, template):
    """The number of conversations that the file's template renders differently, the first of which is printed."""
    other, wrong = template_of(path), 0
    for turns in cases:
        messages = [{"role": t["role"], "content": [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image"}
                                                    for p in t["parts"]]} for t in turns]
        ours, theirs = (processor.apply_chat_template(messages, chat_template=x, tokenize=False) for x in (template, other))
        if ours != theirs:
            if not wrong:
                print(f"ours   {ascii(ours)}\ntheirs {ascii(theirs)}")
            wrong += 1
    print(f"{path}: {wrong} of {len(cases)} conversations differ")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the shared data folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=11, help="drawn ones, beside those made by hand")
    parser.add_argument("--out", default=os.path.join(HERE, "chat.json"))
    parser.add_argument("--same-as", metavar="FILE")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    template = template_of(os.path.join(args.data, "tokenizer", "chat_template.json"))
    size = {"shortest_edge": 1024, "longest_edge": 1 << 24}  # so that the tiny grids are not resized
    keys = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
    processors = {}
    for name, folder in (("tiny", os.path.join(HERE, "tokenizer", "pairs")), ("published", os.path.join(args.data, "tokenizer"))):
        tokenizer = Qwen2TokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"))
        processors[name] = Qwen3VLProcessor(Qwen2VLImageProcessorFast(size=dict(size), **keys), tokenizer,
                                            Qwen3VLVideoProcessor(), chat_template=template)
    rng = random.Random(args.seed)
    cases = hand_made() + [drawn(rng) for _ in range(args.cases)]
    if args.same_as:
        return same_as(args.same_as, cases, processors["tiny"], template)
    with open(args.out, "w") as f:
        f.write('{"cases": [\n')
        for i, turns in enumerate(cases):
            row = {"turns": turns, **{name: expected(turns, p, template) for name, p in processors.items()}}
            f.write(json.dumps(row, separators=(",", ":")) + (",\n" if i + 1 < len(cases) else "\n"))
        f.write("]}\n")
    print(f"{args.out}: {len(cases)} cases")
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    np.seterr(all="raise")
    sys.exit(main())
