# SPDX-License-Identifier: Apache-2.0
"""Collators: what a model takes, made of rows. Rows are laid end to end to one sequence [1, T]; documents do not see each other.

    for_transformers(..)  a model of transformers (Qwen3-VL and its text models)
    for_torchtitan(..)    torchtitan's (input_dict, labels)
    plain(rows)           tensors under their own names
    block_mask(row)       FlexAttention's mask, prefixes included
    split_row(row)        its samples one by one

A collator is called with a list of rows, as a DataLoader does it. torch is needed."""
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import numpy as np
import torch

from . import masks
from .isolation import IsolationProbe
from .row_readers import Row
from .stream_errors import check

MASKED = -100  # a label that does not count
KINDS = ("sdpa", "eager", "flex_attention", "flash_attention_2", "flash_attention_3")


def join_rows(rows: List[Row]) -> Row:
    """One row of the documents of several, in their order. Only what a model takes: tensors, and neither cursor nor number."""
    if len(rows) == 1:
        return rows[0]
    out: Row = {}
    for name in ("input_ids", "labels", "doc_sample_id", "doc_part", "grid_thw", "pixels"):
        out[name] = np.concatenate([np.asarray(r[name]) for r in rows])
    out["position_ids"] = np.concatenate([np.asarray(r["position_ids"]) for r in rows], axis=1)
    tokens, items, documents = (np.cumsum([0] + [len(np.asarray(r[n])) for r in rows]) for n in ("input_ids", "doc_part", "doc_part"))
    out["cu_seqlens"] = np.concatenate([[0], *(np.asarray(r["cu_seqlens"])[1:] + t for r, t in zip(rows, tokens))]).astype(np.int32)
    merged = np.cumsum([0] + [int(np.asarray(r["grid_thw"]).prod(1).sum()) // 4 for r in rows])
    shown = [np.asarray(r["visual_row"]) for r in rows]
    out["visual_row"] = np.concatenate([np.where(s >= 0, s + m, -1) for s, m in zip(shown, merged)]).astype(np.int32)
    if any("doc_prefix" in r for r in rows):
        prefix = [np.asarray(r.get("doc_prefix", np.full(len(r["doc_part"]), -1))) for r in rows]
        out["doc_prefix"] = np.concatenate([np.where(p >= 0, p + d, -1) for p, d in zip(prefix, documents)]).astype(np.int32)
    if any("pixels_video" in r for r in rows):
        out["pixels_video"] = np.concatenate([np.asarray(r["pixels_video"]) for r in rows if "pixels_video" in r])
    if any("loss_weight" in r for r in rows):
        out["loss_weight"] = np.concatenate([np.asarray(r.get("loss_weight", np.ones(len(r["labels"]), np.float32))) for r in rows])
    return out


def split_row(row: Row) -> Iterator[Row]:
    """The samples of a row, each as a separate row with the pictures that it shows; a branch has its prefix before it. Only rows
    without clips."""
    check("pixels_video" not in row, "a row with clips cannot be split")
    ends, prefix = masks.documents(row)
    patches = np.cumsum([0, *np.asarray(row["grid_thw"]).prod(1)])
    for d in range(len(prefix)):
        if (prefix == d).any():
            continue
        own = [prefix[d], d] if prefix[d] >= 0 else [d]
        tokens = np.concatenate([np.arange(ends[k], ends[k + 1]) for k in own])
        shown = np.asarray(row["visual_row"])[tokens]
        merged = np.unique(shown[shown >= 0])
        items = np.unique(np.searchsorted(patches[1:] // 4, merged, "right"))
        lists: Row = {n: np.asarray(row[n])[tokens] for n in ("input_ids", "labels", "loss_weight") if n in row}
        yield dict(lists, position_ids=np.asarray(row["position_ids"])[:, tokens], cu_seqlens=np.array([0, len(tokens)], np.int32),
                   visual_row=np.where(shown >= 0, np.searchsorted(merged, shown), -1).astype(np.int32), doc_part=np.zeros(1, np.int32),
                   doc_sample_id=np.asarray(row["doc_sample_id"])[d:d + 1], grid_thw=np.asarray(row["grid_thw"])[items],
                   pixels=np.concatenate([np.asarray(row["pixels"])[patches[i]:patches[i + 1]] for i in items] or [np.zeros((0, 768), np.uint8)]))


def whole_numbers(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values).astype(np.int64))


def pixel_floats(patches: Any, resampler: str, dtype: torch.dtype) -> torch.Tensor:
    """Patches [S, 768] or [V, 1536] of bytes as the values [S or V, 1536] of transformers' processor: of a picture, both frames of
    a pair are the picture."""
    pixels = torch.from_numpy(np.asarray(patches)) if not isinstance(patches, torch.Tensor) else patches
    x = pixels.float()
    x = x / 127.5 - 1 if resampler != "torch" else (x - 127.5) / 127.5
    if pixels.shape[1] == 768:
        x = x.reshape(-1, 3, 1, 256).expand(-1, -1, 2, -1).reshape(-1, 1536)
    return x.to(dtype)


def which_are_clips(row: Row) -> np.ndarray:
    """For each item whether it is a clip: the token ids under the items tell, as in proto/row/batch_check.c."""
    grids = np.asarray(row["grid_thw"])
    patches = grids.prod(1)
    videos = len(row["pixels_video"]) if "pixels_video" in row else 0
    if videos in (0, patches.sum()):
        return np.full(len(grids), videos > 0)
    begins = np.cumsum(patches // 4) - patches // 4
    place = {int(v): i for i, v in reversed(list(enumerate(np.asarray(row["visual_row"])))) if v >= 0}
    under = np.asarray(row["input_ids"])[[place[int(b)] for b in begins]]
    fits = [i for i in np.unique(under) if patches[under == i].sum() == videos]
    check(fits, "no token id has the row's", videos, "patches of clips under it")
    return under == fits[-1]


def in_document(row: Row) -> np.ndarray:
    """The place of each token in its document [T]."""
    return np.concatenate([np.arange(n) for n in np.diff(np.asarray(row["cu_seqlens"]))] or [np.zeros(0, np.int64)])


def block_mask(row: Row, device: Any = "cpu", **options: Any) -> Any:
    """FlexAttention's BlockMask of a row, prefixes included. options: create_block_mask's (BLOCK_SIZE, _compile)."""
    from torch.nn.attention.flex_attention import create_block_mask
    tokens = len(row["input_ids"])
    return create_block_mask(masks.mask_function(row, device), None, None, tokens, tokens, device=device, **options)


class Borders(NamedTuple):
    """What variable-length attention takes, under torchtitan's names (VarlenMetadata)."""
    cu_seq_q: torch.Tensor
    cu_seq_k: torch.Tensor
    max_q: int
    max_k: int


def borders(row: Row) -> Borders:
    """The borders of a row without prefixes; ValueError names the first prefix of one that has any."""
    ends = torch.from_numpy(masks.cu_seqlens(row).astype(np.int32))
    longest = int(torch.diff(ends).max()) if len(ends) > 1 else 0
    return Borders(ends, ends, longest, longest)


def plain(rows: List[Row]) -> Dict[str, torch.Tensor]:
    """The tensors of the rows, laid end to end, under the names of the wire."""
    return {name: torch.from_numpy(np.ascontiguousarray(v).view(np.int64) if v.dtype == np.uint64 else np.ascontiguousarray(v))
            for name, v in ((n, np.asarray(v)) for n, v in join_rows(rows).items() if n != "bad_samples")
            if v.dtype.kind in "iuf" and v.ndim}


class ForTransformers:
    """See for_transformers."""

    def __init__(self, attention: str, resampler: str, dtype: torch.dtype, ignore_weights: bool):
        check(attention in KINDS, "there is no attention", attention + "; known are", *KINDS)
        check(resampler in ("torch", "pillow", "pillow13"), "there is no resampler", resampler)
        self.attention, self.resampler, self.dtype, self.ignore_weights = attention, resampler, dtype, ignore_weights
        self.probe: Any = None

    def __call__(self, rows: List[Row]) -> Dict[str, Any]:
        row = join_rows(rows)
        check("loss_weight" not in row or self.ignore_weights, "the row has loss_weight, which the loss of transformers' models does "
              "not heed: compute the loss from the logits, and say ignore_weights=True here")
        positions = np.concatenate([in_document(row)[None], np.asarray(row["position_ids"])])
        batch = {"input_ids": whole_numbers(row["input_ids"])[None], "labels": whole_numbers(row["labels"])[None],
                 "position_ids": whole_numbers(positions)[:, None], "use_cache": False, **self.attend(row), **self.see(row)}
        if self.probe is not None:
            self.probe.remember(batch["input_ids"], *masks.documents(row), np.asarray(row["visual_row"]))
        return batch

    def attend(self, row: Row) -> Dict[str, Any]:
        """What keeps documents apart."""
        if self.attention == "sdpa":
            return {"attention_mask": masks.mask_4d(row, torch.bool)}
        if self.attention == "eager":
            return {"attention_mask": masks.mask_4d(row, self.dtype)}
        if self.attention == "flex_attention":
            return {"attention_mask": block_mask(row)}
        ends = borders(row)
        return {"attention_mask": None, "cu_seq_lens_q": ends.cu_seq_q, "cu_seq_lens_k": ends.cu_seq_k, "max_length_q": ends.max_q,
                "max_length_k": ends.max_k}

    def see(self, row: Row) -> Dict[str, torch.Tensor]:
        """The pictures and clips."""
        grids, clips = np.asarray(row["grid_thw"]), which_are_clips(row)
        seen: Dict[str, torch.Tensor] = {}
        if (~clips).any():
            seen["pixel_values"] = pixel_floats(row["pixels"], self.resampler, self.dtype)
            seen["image_grid_thw"] = whole_numbers(grids[~clips])
        if clips.any():
            seen["pixel_values_videos"] = pixel_floats(row["pixels_video"], self.resampler, self.dtype)
            seen["video_grid_thw"] = whole_numbers(grids[clips])
        return seen

    def guard(self, model: torch.nn.Module) -> IsolationProbe:
        """Checks, in the model's first call with a batch of several documents, that they are isolated as the row says; RuntimeError
        if they are not. Call it with the model itself, before DistributedDataParallel or the like is put around it."""
        self.probe = IsolationProbe(model)
        return self.probe


def for_transformers(attention: str = "sdpa", resampler: str = "torch", dtype: torch.dtype = torch.float32,
                     ignore_weights: bool = False) -> ForTransformers:
    """A collator for models of transformers.

    attention: the model's attn_implementation, which decides what isolates documents: a 4-D mask (sdpa, eager), a block mask
    (flex_attention), the borders of documents (flash_attention_2 and 3; not for rows with prefixes). resampler: the daemon's
    image.resampler. dtype: of pixels and of eager's mask. Its guard(model) checks the first batch."""
    return ForTransformers(attention, resampler, dtype, ignore_weights)


def for_torchtitan(attention: str = "flex", pixels: bool = True, resampler: str = "torch") -> Callable[[List[Row]], Tuple[Dict[str, Any],
                                                                                                                   torch.Tensor]]:
    """A collator that gives torchtitan's (input_dict, labels): labels are those of the next token, as its loss wants them.

    input_dict has "input" [1, T], "positions" [1, T] (from 0 in each document), "mrope_positions" [3, 1, T], "attention_masks": a
    BlockMask (attention "flex"), VarlenMetadata's members ("varlen") or a mask [1, 1, T, T] ("sdpa"); and, with pixels,
    "pixel_values" [S, 1536] and "grid_thw"."""
    check(attention in ("flex", "varlen", "sdpa"), "there is no attention", attention)
    kinds = {"flex": block_mask, "varlen": borders, "sdpa": lambda row: masks.mask_4d(row, torch.bool)}

    def collate(rows: List[Row]) -> Tuple[Dict[str, Any], torch.Tensor]:
        row = join_rows(rows)
        labels = whole_numbers(row["labels"])
        inputs = {"input": whole_numbers(row["input_ids"])[None], "positions": whole_numbers(in_document(row))[None],
                  "mrope_positions": whole_numbers(row["position_ids"])[:, None], "attention_masks": kinds[attention](row)}
        if pixels and len(row["grid_thw"]):
            check("pixels_video" not in row, "the row has clips, which this collator does not give")
            inputs["pixel_values"] = pixel_floats(row["pixels"], resampler, torch.float32)
            inputs["grid_thw"] = whole_numbers(row["grid_thw"])
        return inputs, torch.cat([labels[1:], labels.new_full((1,), MASKED)])[None]
    return collate
