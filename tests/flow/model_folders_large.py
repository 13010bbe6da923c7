# SPDX-License-Identifier: Apache-2.0
"""Folders that are larger than memory. The complete name lists of 30B-A3B (882 tensors, 62 GB) and of the text-only
model (18,867 tensors) are sparse files: inspect reads only the headers, in seconds and with little memory. A
smaller folder, with empty values, is loaded and exported: resident are the parameters and a bounded rest, not the
file."""
import os
import shutil
import tempfile
import time

from hf_files import SANITIZED, expect, measured
from large_model import D, TEXT, VL, folder, text, vision

MEMORY, SECONDS = 100 << 20, 120  # it takes about 20 MB and half a second; the limits allow for a busy machine and sanitizers


def inspect(path, code, *words):
    start = time.monotonic()
    got, out, resident = measured("inspect", path)
    took = time.monotonic() - start
    expect(got == code, f"{path}: exit code {got}, wanted {code}: {out[-600:]}")
    for word in words:
        expect(word in out, f"{path}: \"{word}\" is not said: {out[-600:]}")
    expect((SANITIZED or resident < MEMORY) and took < SECONDS, f"{path}: {resident >> 20} MiB resident, {took:.1f} s")
    print(f"{os.path.basename(path)}: {took:.2f} s, {resident >> 20} MiB resident")


def full_lists(root):
    shapes = text("model.language_model.", False) | vision()
    path, total = folder(root, "30b-a3b", VL, shapes, 13)
    expect(len(shapes) == 882 and total == 62141508064, f"{len(shapes)} tensors, {total} bytes")
    inspect(path, 0, "0 missing, 0 extra, 0 misshapen", "31,070,754,032 parameters in 882 tensors",
            "62141508064 bytes in 882 tensors in 13 files, 882 BF16", "[E, in, out]")
    lost, turned = "model.visual.blocks.26.norm2.bias", "model.language_model.layers.47.mlp.gate.weight"
    broken = {n: s for n, s in shapes.items() if n != lost} | {"model.visual.blocks.27.norm1.bias": [D]}
    broken[turned] = broken[turned][::-1]
    path, _ = folder(root, "30b-a3b-broken", VL, broken, 13)
    inspect(path, 65, "missing    " + lost, "extra      model.visual.blocks.27.norm1.bias",
            f"misshapen  {turned} [2048, 128], wanted [128, 2048]", "1 missing, 1 extra, 1 misshapen")
    v5 = {n: [s[0], s[2], s[1]] if ".experts." in n else s for n, s in shapes.items()}
    path, _ = folder(root, "30b-a3b-v5", VL, v5, 13)
    inspect(path, 0, "0 missing, 0 extra, 0 misshapen", "[E, out, in]")

    shapes = text("model.", True)
    config = TEXT | {"model_type": "qwen3_moe", "rope_theta": 1e6, "tie_word_embeddings": False}
    path, _ = folder(root, "text-30b-a3b", config, shapes, 16)
    expect(len(shapes) == 18867, f"{len(shapes)} tensors")
    inspect(path, 0, "0 missing, 0 extra, 0 misshapen", "30,532,122,624 parameters in 18,867 tensors")


def values_pass_through(root):
    """The file is half as large as the parameters in float32, so a file that is mapped as a whole would show."""
    tiny = {"vocab_size": 1 << 18, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 64, "num_experts": 16,
            "num_experts_per_tok": 2, "moe_intermediate_size": 512, "rms_norm_eps": 1e-6,
            "rope_theta": 1e6, "model_type": "qwen3_moe", "tie_word_embeddings": False}
    at = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [1 << 18, 128], at + "input_layernorm.weight": [128],
              at + "self_attn.q_proj.weight": [128, 128], at + "self_attn.k_proj.weight": [64, 128],
              at + "self_attn.v_proj.weight": [64, 128], at + "self_attn.o_proj.weight": [128, 128],
              at + "self_attn.q_norm.weight": [64], at + "self_attn.k_norm.weight": [64],
              at + "post_attention_layernorm.weight": [128], at + "mlp.gate.weight": [16, 128]}
    shapes |= {at + "mlp.experts.gate_up_proj": [16, 1024, 128], at + "mlp.experts.down_proj": [16, 128, 512]}
    shapes |= {"model.norm.weight": [128], "lm_head.weight": [1 << 18, 128]}
    path, total = folder(root, "values", tiny, shapes, 2)
    code, _, resident = measured("export", "--model", path, "--out", path + "-out")
    expect(code == 0, "export")
    rest = resident - 2 * total
    print(f"values: file {total >> 20} MiB, parameters {total >> 19} MiB, {rest >> 20} MiB beside them")
    expect(rest < total // 3, f"{rest >> 20} MiB resident beside the parameters, file {total >> 20} MiB")


def main():
    root = tempfile.mkdtemp()
    try:
        full_lists(root)
        if not SANITIZED:
            values_pass_through(root)
    finally:
        shutil.rmtree(root)
    print("ok")


main()
