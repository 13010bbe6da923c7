#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the files beside it with the reference, the `tokenizers` package 0.22.2, which the tests do not need: a tiny
byte-level BPE with merges in both published forms, and the ids that it gives to hard texts."""

import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = "what colour is the red square left of a blue circle how many are there two three yes no".split()
CONTROL = "endoftext im_start im_end vision_start vision_end vision_pad image_pad video_pad".split()
PARTS = [
    "'", "s", "S", "\u017f", "t", "'LL", "'re", " ", "  ", "\t", "\n", "\r", "\r\n", "\n\n", "red", "circle",
    " the", "\u00e9", "e\u0301", "\u0301", "\u0327", "\u09fe", "\u0d3c\u0316", "1", "12", "\u00b2", "\u0663",
    "\u4e2d", "\ud55c", "\u1112\u1161\u11ab", "\u0e01\u0e35", "\U0001f60a", "\u200d", "\u180e", "\u0085",
    "\u00a0", "\u2028", "\u3000", "\u200b", "\x1c", "<|im_end|>", "<|im_start|>", "<think>", "</think>",
    "<|image_pad|>", "<", "|", ">", "!", "...", "-", "\u212b", "\u2126", "\ufb01", "\u0958", "\u2adc",
    "\U0001d15e", "\u0344", "\U00011935\U00011930", "\U00011938", "\uffff", "\U0010ffff", "\u0130", "caf\u00e9",
    "cafe\u0301", "\u212bngstrom",
]


def train():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    choose = random.Random(1)
    lines = [" ".join(choose.choices(WORDS, k=8)) + "?\n\n" for _ in range(400)]
    lines += ["\u4e2d\u6587 caf\u00e9 na\u00efve \u00c5ngstrom \u0e01\u0e35   \n"] * 50
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    t.train_from_iterator(lines, trainer)
    t.add_special_tokens([AddedToken(f"<|{c}|>", normalized=False) for c in CONTROL])
    t.add_tokens([AddedToken(c, normalized=False) for c in ("<think>", "</think>", "<|im", "<|im_")])
    t.add_tokens([AddedToken("cafe\u0301", normalized=True)])  # looked up after NFC
    return t


def write(name, value):
    with open(os.path.join(HERE, name), "w", encoding="ascii") as f:
        f.write(json.dumps(value, separators=(",", ":")) + "\n")


def main():
    t = train()
    pairs = json.loads(t.to_str())
    strings = json.loads(t.to_str())
    pairs["model"]["merges"] = [m.split(" ") if isinstance(m, str) else m for m in pairs["model"]["merges"]]
    strings["model"]["merges"] = [" ".join(m) for m in pairs["model"]["merges"]]
    for form, value in (("pairs", pairs), ("strings", strings)):
        os.makedirs(os.path.join(HERE, form), exist_ok=True)
        write(form + "/tokenizer.json", value)
    choose = random.Random(2)
    parts_and_rare = PARTS + ["\u1112\u1161\u11a7", "\ud55c\u11a7\u11ab"]  # U+11A7 is not a trailing consonant
    texts = [""] + parts_and_rare + ["".join(choose.choices(PARTS, k=choose.randint(2, 9))) for _ in range(300)]
    cases = []
    for text in texts:
        ids = t.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "ids": ids, "decoded": t.decode(ids, skip_special_tokens=False)})
    write("cases.json", cases)


main()
