# SPDX-License-Identifier: Apache-2.0
"""The kept flavours of golden models, and the rows that each is tried on. See make_cases.py.

They are small, and no two dimensions are equal by accident. `moe` is the published family in small. `odd` has odd counts
of everything that may be odd, and a dense layer among the MoE layers. `tied` and `dense` are the dense Qwen3-VL; in
`head`, the top level says tied although the head is one of its own. `text` is the text-only Qwen3-MoE with one matrix for
each expert, and `raw` the same without renormalised top-k weights.
"""

import json
import os

import transformers
from transformers import (
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func as text_aux
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import load_balancing_loss_func as vl_aux

AUX_COEF = 0.1  # strong enough to be seen in every router gradient

TEXT = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rms_norm_eps": 1e-06,
    "rope_theta": 5000000,
    "max_position_embeddings": 4096,
    "initializer_range": 0.02,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 10,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "router_aux_loss_coef": AUX_COEF,
}
MROPE = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [2, 1, 1]}
VISION = {
    "depth": 3,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 20,
    "hidden_act": "gelu_pytorch_tanh",
    "in_channels": 3,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 1],
    "initializer_range": 0.02,
}


def visual(model_type, text, vision=None, tied=False, first_special=55):
    text = TEXT | {"rope_scaling": MROPE, "tie_word_embeddings": tied} | text
    vision = VISION | {"out_hidden_size": text["hidden_size"]} | (vision or {})
    return {
        "model_type": model_type,
        "text_config": text | {"model_type": model_type + "_text"},
        "vision_config": vision | {"model_type": model_type},
        "vision_start_token_id": first_special,
        "vision_end_token_id": first_special + 1,
        "image_token_id": first_special + 2,
        "video_token_id": first_special + 3,
        "tie_word_embeddings": tied,
    }


ODD_TEXT = MOE | {
    "vocab_size": 67,
    "hidden_size": 22,
    "num_hidden_layers": 3,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 9,
    "mlp_only_layers": [1],
    "intermediate_size": 13,
    "rope_scaling": MROPE | {"mrope_section": [3, 1, 1]},
}
ODD_VISION = {"hidden_size": 12, "num_heads": 3, "intermediate_size": 17, "num_position_embeddings": 25}
TEXT_ONLY = TEXT | MOE | {"model_type": "qwen3_moe", "rope_theta": 1000000, "tie_word_embeddings": False}
KEPT = {
    "moe": visual("qwen3_vl_moe", MOE),
    "odd": visual("qwen3_vl_moe", ODD_TEXT, ODD_VISION | {"deepstack_visual_indexes": [0, 2]}),
    "tied": visual("qwen3_vl", {}, {"depth": 2, "hidden_size": 8}, tied=True),
    "dense": visual("qwen3_vl", {}, {"depth": 2, "hidden_size": 8}),
    # 4.57 reads text_config and so does not tie it, nor does 5.23, because the stored head differs from the embedding.
    "head": visual("qwen3_vl", {}, {"depth": 2, "hidden_size": 8}) | {"tie_word_embeddings": True},
    "text": TEXT_ONLY,
    "raw": TEXT_ONLY | {"norm_topk_prob": False, "num_experts": 5, "decoder_sparse_step": 2},
}
# Seeds of kept cases that are not 1. With 1, the rounding of the reference in dense/mixed is 5.9e-6.
SEEDS = {"dense": 6}

# Cases whose float64 gradients are kept too. Together they use every mechanism.
EXACT = ("moe/mixed", "odd/aux_packed", "tied/mixed", "raw/aux")


def drawn(rng):
    """A config.json at random (random.Random): sizes of no common factor, any counts that the family allows."""
    kind = rng.choice(["qwen3_vl_moe", "qwen3_vl_moe", "qwen3_vl", "qwen3_moe"])
    kv, experts, layers = rng.randint(1, 3), rng.randint(1, 9), rng.randint(1, 4)
    head_dim = 2 * rng.randint(2, 8)
    first_special = rng.randint(50, 90)
    text = {
        "vocab_size": first_special + 4 + rng.randint(0, 9),
        "hidden_size": rng.randint(14, 31),
        "intermediate_size": rng.randint(5, 40),
        "num_hidden_layers": layers,
        "num_key_value_heads": kv,
        "num_attention_heads": kv * rng.randint(1, 4),
        "head_dim": head_dim,
        "rms_norm_eps": rng.choice([1e-6, 1e-5]),
        "rope_theta": rng.choice([10000, 1000000, 5000000, 10000000]),
    }
    if kind != "qwen3_vl":
        text |= MOE | {
            "num_experts": experts,
            "num_experts_per_tok": rng.choice([1, experts, rng.randint(1, experts)]),
            "moe_intermediate_size": rng.choice([3, 5, 6, 9, 11, 13]),
            "decoder_sparse_step": rng.choice([1, 1, 2]),
            "mlp_only_layers": rng.choice([[], [], [layers - 1]]),
        }
    if kind == "qwen3_moe":
        return TEXT | text | {"model_type": kind, "tie_word_embeddings": rng.random() < 0.3,
                              "norm_topk_prob": rng.random() < 0.5}
    depth, heads = rng.randint(1, 4), rng.randint(1, 3)
    vision = {
        "depth": depth,
        "num_heads": heads,
        "hidden_size": heads * 4 * rng.randint(4, 6),
        "intermediate_size": rng.randint(5, 40),
        "num_position_embeddings": rng.choice([1, 2, 3, 4, 5, 7, 11, 48]) ** 2,
        "deepstack_visual_indexes": sorted(rng.sample(range(depth), rng.randint(0, min(depth, layers)))),
    }
    sections = [rng.randint(0, head_dim // 2) for _ in range(3)]
    text["rope_scaling"] = MROPE | {"mrope_section": sections}
    tied = kind == "qwen3_vl" and rng.random() < 0.5
    return visual(kind, text, vision, tied, first_special)


class Flavour:
    def __init__(self, name, config_class, model_class, aux_function, config):
        self.name = name
        self.config = config_class(**{k: v for k, v in config.items() if k != "model_type"})
        self.model_class = model_class
        self.aux_function = aux_function
        self.visual = "vision_config" in config
        text = config.get("text_config", config)
        self.vocab = text["vocab_size"]
        self.moe = "num_experts" in text
        self.published = self.moe and self.vocab != ODD_TEXT["vocab_size"]
        self.aux_coef = text.get("router_aux_loss_coef", 0.001)
        self.special = {}
        if self.visual:
            self.special = {
                "start": config["vision_start_token_id"],
                "end": config["vision_end_token_id"],
                "image": config["image_token_id"],
                "video": config["video_token_id"],
            }

    def text(self, model):
        return model.config.get_text_config()


KINDS = {
    "qwen3_vl_moe": (Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration, vl_aux),
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLForConditionalGeneration, None),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, text_aux),
}


def open_flavour(name, config):
    return Flavour(name, *KINDS[config["model_type"]], config)


ONE_IMAGE = [3, ("image", 4, 6), 9]  # larger than the table of positions, which is interpolated
IMAGES = [2, ("image", 4, 6), 3, ("image", 6, 4), ("image", 2, 2), 12]
VIDEO = [4, ("video", 2, 4, 4), 11]
MIXED = [2, ("image", 2, 4), 4, ("video", 2, 2, 4), 3, ("image", 4, 2), 6]


def cases_of(flavour):
    """(name, parts of every document, aux_coef): every kind of row alone for the published form,
    all kinds in one row elsewhere."""
    coef = flavour.aux_coef
    if not flavour.visual:
        return [("text", [[19]], 0), ("packed", [[11], [17], [2]], 0), ("aux", [[23]], coef)]
    cases = [("text", [[19]], 0), ("mixed", [IMAGES, VIDEO, [10], MIXED], 0)]
    if flavour.name == "head":
        return cases[:1]
    if flavour.moe:
        cases += [("aux_packed", [VIDEO, [8]], coef)]
    if flavour.published:
        cases += [("image", [ONE_IMAGE], 0), ("images", [IMAGES], 0), ("video", [VIDEO], 0)]
        cases += [("packed", [ONE_IMAGE, [14]], 0), ("aux", [ONE_IMAGE], coef)]
    return cases


def keep_version(path, make):
    """Replaces this version of transformers' part of a JSON file, {version: results}, by what make() finds."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kept = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            kept = json.load(f)
    kept[transformers.__version__] = make()
    with open(path, "w", encoding="utf-8") as f:
        json.dump(dict(sorted(kept.items())), f, indent=1)
        f.write("\n")
