# SPDX-License-Identifier: Apache-2.0
"""python_collators.py MODEL PLAIN.rec PREFIXES.rec: holds the collators of the Python package against a small model of transformers.
Run by python_examples.py. FlexAttention is computed as written there, uncompiled: to compile it for a CPU takes minutes."""
import sys

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

import tessera
from tessera import collate, masks

TOLERANCE = 2e-5
torch.compiler.set_stance("force_eager")


def loss_of(model, collator, rows):
    batch = collator(rows)
    return float(model(**batch).loss), int((batch["labels"] >= 0).sum())


def must_raise(what, *words):
    try:
        what()
    except (RuntimeError, ValueError) as e:
        assert all(w in str(e) for w in words), (words, e)
    else:
        raise AssertionError(f"no error: {words}")


torch.manual_seed(0)
folder, *recordings = sys.argv[1:]
config = AutoConfig.from_pretrained(folder)
model = AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa").float().eval()
for path in recordings:
    rows = list(tessera.Rows(path, prefixes=True))[:2]
    for attention in ("sdpa", "eager", "flex_attention"):
        model.set_attn_implementation(attention)
        collator = collate.for_transformers(attention)
        with torch.no_grad():
            probe = collator.guard(model)
            packed, targets = loss_of(model, collator, rows)
            assert probe.checked and not model._forward_pre_hooks, "the guard did not look, or stayed"
            parts = [loss_of(model, collate.for_transformers(attention), [one]) for row in rows for one in collate.split_row(row)]
            separate = sum(loss * n for loss, n in parts) / targets
        assert sum(n for _, n in parts) == targets and abs(packed - separate) < TOLERANCE * separate, (path, attention, packed, separate)
        print(f"{path.rsplit('/', 1)[1]}, {attention}: packed {packed:.7f}, one by one {separate:.7f}")
        probe, batch = collator.guard(model), collator(rows)
        batch.update(use_cache=True, attention_mask=None)
        with torch.no_grad():
            must_raise(lambda: model(**batch), "does not isolate", "use_cache=False")
        probe.hook.remove()
    model.set_attn_implementation("sdpa")
    for spoil, words in ((lambda b: b.update(attention_mask=torch.ones_like(b["input_ids"])), "does not isolate"),
                         (lambda b: b.update(attention_mask=None, position_ids=b["position_ids"][1:]), "tessera: the model does not")):
        collator = collate.for_transformers()
        probe, batch = collator.guard(model), collator(rows)
        spoil(batch)
        with torch.no_grad():
            must_raise(lambda: model(**batch), words, "use_cache=False")
        probe.hook.remove()
    sees = masks.mask_4d(rows[0], torch.bool)
    from torch.nn.attention.flex_attention import create_mask
    tokens = sees.shape[-1]
    assert torch.equal(create_mask(collate.block_mask(rows[0]).mask_mod, 1, 1, tokens, tokens, "cpu"), sees), "another block mask"
    joined = collate.join_rows(rows)
    masks.documents(joined)
    assert collate.plain(rows)["input_ids"].shape == joined["input_ids"].shape
    inputs, labels = collate.for_torchtitan("flex")(rows)
    assert labels.shape == inputs["input"].shape == inputs["positions"].shape and inputs["mrope_positions"].shape[0] == 3
    assert torch.equal(labels[0, :-1], torch.from_numpy(joined["labels"][1:].astype(np.int64))) and labels[0, -1] == -100
plain, prefixes = (list(tessera.Rows(path, prefixes=True))[:1] for path in recordings)
assert collate.for_torchtitan("varlen")(plain)[0]["attention_masks"].max_q == int(np.diff(plain[0]["cu_seqlens"]).max())
must_raise(lambda: collate.for_torchtitan("varlen")(prefixes), "branch of document")
must_raise(lambda: collate.for_transformers("flash_attention_2")(prefixes), "branch of document")
must_raise(lambda: collate.for_transformers()([dict(plain[0], loss_weight=np.ones(len(plain[0]["labels"]), np.float32))]), "loss_weight")
must_raise(lambda: collate.for_transformers("flash"), "there is no attention")
