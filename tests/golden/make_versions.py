#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the numbers in which versions of the reference differ, by each of them; kept in versions.json (test_versions).

Needs PyPI, so it runs by hand, once for each version, in the environment of make_cases.py with transformers 4.57.3, 5.2.0
or 5.23.0. A run replaces the part of its version:

    VENV/bin/python tests/golden/make_versions.py

frequencies  rotary frequencies of the published shapes (float32; every version has the same)
positions    the position table (bfloat16, made here) interpolated on GRIDS: in bfloat16 4.57 rounds weights, products
             and sums, 5.23 sums in float32 and rounds once; in float32 both sum in float32
router       weights of the chosen experts from bfloat16 logits (made here): 4.57 and 5.23 round them to bfloat16, 5.2
             leaves them in float32
aux          the auxiliary loss as the model adds it, on the same logits: 5.2 hands it probabilities
prompts      ids of user turns with clips (CLIPS) by the whole processor and the tiny tokenizer: up to 5.2 a clip's
             text takes the place of its vision_start and vision_end, in 5.23 it stands between them

Numbers are hexadecimal bits, 4 digits for bfloat16 and 8 for float32.
"""

import json
import logging
import os

import numpy as np
import torch
import transformers
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.qwen3_vl_moe import configuration_qwen3_vl_moe as configuration
from transformers.models.qwen3_vl_moe import modeling_qwen3_vl_moe as modeling
from transformers.video_utils import VideoMetadata

VERSION = transformers.__version__
if VERSION.startswith("4."):
    from transformers import Qwen2VLImageProcessorFast as ImageProcessor
else:  # in the 5 series this is the fast one
    from transformers import Qwen2VLImageProcessor as ImageProcessor

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "versions.json")
TEXT = [(5e6, 128), (1e6, 128), (1e7, 128), (5e6, 10), (1e6, 8), (5e6, 22)]  # theta, head_dim
VISION = [72, 64, 16, 12]  # head_dim
SIDE, WIDTH = 8, 6  # sides of the table of positions
GRIDS = [[1, 6, 10], [1, 20, 4], [1, 2, 2]]
EXPERTS, TOP_K, TOKENS = 16, 4, 24
PICTURE = {"picture": [64, 96]}  # height, width
CLIP, SHORT = {"frames": 5, "fps": 2, "size": [64, 64]}, {"frames": 2, "fps": 1, "size": [32, 64]}
CLIPS = [["Look: ", CLIP, "What happens?"], [CLIP], [SHORT, CLIP, "same?"], ["a", PICTURE, SHORT, PICTURE, " b ", SHORT, "\n"]]


def bits(tensor):
    flat = tensor.detach().contiguous().flatten()
    if flat.dtype == torch.bfloat16:
        return "".join(f"{x & 0xFFFF:04x}" for x in flat.view(torch.int16).tolist())
    return "".join(f"{x & 0xFFFFFFFF:08x}" for x in flat.float().view(torch.int32).tolist())


def frequencies():
    out = []
    for theta, d in TEXT:
        rope = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [1, 1, 1]}
        config = configuration.Qwen3VLMoeTextConfig(head_dim=d, rope_theta=theta, rope_scaling=rope)
        out.append({"theta": theta, "head_dim": d, "bits": bits(modeling.Qwen3VLMoeTextRotaryEmbedding(config).inv_freq)})
    return out


def vision_frequencies():
    """In 4.57 the class takes half of the head dimension; later the formula is the same with other arguments."""
    return [{"head_dim": d, "bits": bits(modeling.Qwen3VLMoeVisionRotaryEmbedding(d // 2).inv_freq)} for d in VISION]


def positions(dtype):
    """The interpolated table in merge order, which is the input of the blocks if patches embed to zero."""
    config = configuration.Qwen3VLMoeVisionConfig(
        depth=0, hidden_size=WIDTH, num_heads=1, intermediate_size=4, out_hidden_size=4, patch_size=16,
        num_position_embeddings=SIDE * SIDE, deepstack_visual_indexes=[])
    model = modeling.Qwen3VLMoeVisionModel._from_config(config, attn_implementation="eager")
    draw = torch.Generator().manual_seed(7)
    table = torch.randn(SIDE * SIDE, WIDTH, generator=draw).bfloat16()
    with torch.no_grad():
        model.pos_embed.weight.copy_(table)
        model.patch_embed.proj.weight.zero_()
        model.patch_embed.proj.bias.zero_()
    model = model.to(dtype)
    seen = []
    model.merger.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    grid = torch.tensor(GRIDS)
    model(torch.zeros(int(grid.prod(1).sum()), 1536, dtype=dtype), grid_thw=grid)
    return table, seen[0]


def router():
    """(logits, choices, weights) of the router on hidden states that are the logits."""
    config = configuration.Qwen3VLMoeTextConfig(
        hidden_size=EXPERTS, num_experts=EXPERTS, num_experts_per_tok=TOP_K, moe_intermediate_size=8)
    block = modeling.Qwen3VLMoeTextSparseMoeBlock(config).bfloat16().eval()
    draw = torch.Generator().manual_seed(8)
    logits = torch.stack([torch.randperm(EXPERTS, generator=draw) / 4 + torch.rand(1, generator=draw)
                          for _ in range(TOKENS)]).bfloat16()
    with torch.no_grad():
        block.gate.weight.copy_(torch.eye(EXPERTS))
    seen = {}
    block.gate.register_forward_hook(lambda m, args, out: seen.update(gate=out))
    block.experts.register_forward_pre_hook(lambda m, args: seen.update(experts=args[1:]))
    block.experts.forward = lambda x, *args: x
    block(logits[None])
    first, second = seen["experts"]
    if first.dtype.is_floating_point:  # 4.57 gives the weights of all experts, and the choices
        return logits, second, first.gather(1, second), seen["gate"]
    return logits, first, second, seen["gate"][0]  # 5 gives choices, weights and, apart, its router_logits


def prompts():
    fast = transformers.Qwen2TokenizerFast if VERSION.startswith("4.") else transformers.PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_file=os.path.join(os.path.dirname(PATH), "tokenizer", "pairs", "tokenizer.json"))
    processor = Qwen3VLProcessor(
        ImageProcessor(patch_size=16, merge_size=2, size={"shortest_edge": 1024, "longest_edge": 1 << 24}), tokenizer,
        Qwen3VLVideoProcessor(size={"shortest_edge": 4096, "longest_edge": 1 << 24}))
    out = []
    for parts in CLIPS:
        clips = [p for p in parts if "frames" in p]
        pictures = [np.zeros((*p["picture"], 3), np.uint8) for p in parts if "picture" in p]
        text = "".join(p if isinstance(p, str) else "<|vision_start|><|image_pad|><|vision_end|>" if "picture" in p else
                       "<|vision_start|><|video_pad|><|vision_end|>" for p in parts)
        made = processor(
            text=[f"<|im_start|>user\n{text}<|im_end|>\n"], images=pictures or None, do_sample_frames=True,
            videos=[np.zeros((c["frames"], 3, *c["size"]), np.uint8) for c in clips], return_tensors="pt",
            video_metadata=[VideoMetadata(total_num_frames=c["frames"], fps=c["fps"]) for c in clips])
        out.append(made["input_ids"][0].tolist())
    return out


def main():
    logging.disable(logging.WARNING)
    with torch.no_grad():
        logits, expert, weight, recorded = router()
        aux = modeling.load_balancing_loss_func((recorded.float(),), EXPERTS, TOP_K)
    table, narrow = positions(torch.bfloat16)
    _, wide = positions(torch.float32)
    mine = {"positions_bf16": bits(narrow), "positions_f32": bits(wide), "expert": expert.tolist(),
            "weight_dtype": str(weight.dtype)[6:], "weight": bits(weight), "aux": float(aux), "prompts": prompts()}
    shared = {"side": SIDE, "width": WIDTH, "grids": GRIDS, "table": bits(table), "logits": bits(logits),
              "experts": EXPERTS, "top_k": TOP_K, "text": frequencies(), "clips": CLIPS}
    kept = {"shared": shared, "versions": {}}
    if os.path.exists(PATH):
        with open(PATH, encoding="utf-8") as f:
            kept = json.load(f)
    if VERSION.startswith("4."):
        shared["vision"] = vision_frequencies()
        kept["shared"] = shared
    assert all(kept["shared"].setdefault(k, v) == v for k, v in shared.items()), "the versions were asked different things"
    kept["versions"][VERSION] = mine
    with open(PATH, "w", encoding="utf-8") as f:
        lines = [f"{json.dumps(v)}: {json.dumps(kept['versions'][v])}" for v in sorted(kept["versions"])]
        f.write(f'{{"shared": {json.dumps(kept["shared"])},\n"versions": {{\n' + ",\n".join(lines) + "\n}}\n")
    print(f"{PATH}: {', '.join(sorted(kept['versions']))}")


if __name__ == "__main__":
    main()
