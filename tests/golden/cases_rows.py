# SPDX-License-Identifier: Apache-2.0
"""Documents of golden cases, and rows of them as proto/row/batch.h has it. See make_cases.py."""

from dataclasses import dataclass, field

import numpy as np
import torch


@dataclass
class Document:
    ids: np.ndarray  # int32 [n]
    labels: np.ndarray  # int32 [n], not shifted; -100 = no loss
    is_pad: np.ndarray  # bool [n]: a visual row goes here
    items: list = field(default_factory=list)  # (is_video, (t, h, w), pixels u8) of each item


def draw_document(draw, parts, special, vocab, keep=0.6):
    """parts: a number of text tokens, ("image", h, w) or ("video", t, h, w), in patches. Text ids
    are drawn below every special id; of their labels about `keep` remain."""
    ids, labels, items = [], [], []
    text_end = min([vocab] + [special[k] for k in ("start", "end", "image", "video") if k in special])

    def text(n):
        new = draw.integers(0, text_end, n).tolist()
        ids.extend(new)
        labels.extend(i if draw.random() < keep else -100 for i in new)

    def pads(kind, n):
        ids.extend([special["start"]] + [special[kind]] * n + [special["end"]])
        labels.extend([-100] * (n + 2))

    for part in parts:
        if isinstance(part, int):
            text(part)
            continue
        kind, *grid = part
        t, h, w = grid if kind == "video" else (1, *grid)
        bytes_per_patch = 1536 if kind == "video" else 768
        pixels = draw.integers(0, 256, (t * h * w, bytes_per_patch), dtype=np.uint8)
        items.append((kind == "video", (t, h, w), pixels))
        for frame in range(t):  # a video is a sequence of frames, each after its timestamp
            if frame:
                text(2)
            pads(kind, h * w // 4)
    labels[0] = -100
    if all(x == -100 for x in labels):
        labels[-1] = ids[-1]
    ids = np.array(ids, np.int32)
    pad_ids = [special[k] for k in ("image", "video") if k in special]
    return Document(ids, np.array(labels, np.int32), np.isin(ids, pad_ids), items)


def reference_pixels(doc, dtype=torch.float32):
    """pixel_values [S, 1536] and grids as the reference takes them, images and videos apart."""
    out = {}
    for is_video, name, grid in ((False, "pixel_values", "image"), (True, "pixel_values_videos", "video")):
        chosen = [(g, p) for v, g, p in doc.items if v == is_video]
        if not chosen:
            continue
        patches = np.concatenate([p for _, p in chosen])
        if not is_video:  # both frames of the pair are the picture
            one = patches.reshape(-1, 3, 1, 256)
            patches = np.concatenate([one, one], axis=2).reshape(-1, 1536)
        wide = torch.promote_types(dtype, torch.float32)  # rounded to a narrower type once, as the reference's processor does
        out[name] = ((torch.from_numpy(patches).to(wide) - 127.5) / 127.5).to(dtype)
        out[grid + "_grid_thw"] = torch.tensor([g for g, _ in chosen], dtype=torch.int64)
    return out


def pack(documents, positions):
    """One row of all documents. visual_row counts merged rows over all items in order."""
    ids = np.concatenate([d.ids for d in documents])
    visual_row = np.full(len(ids), -1, np.int32)
    at, next_row = 0, 0
    for d in documents:
        merged = sum(t * h * w // 4 for _, (t, h, w), _ in d.items)
        assert d.is_pad.sum() == merged
        visual_row[at + np.flatnonzero(d.is_pad)] = np.arange(next_row, next_row + merged)
        at += len(d.ids)
        next_row += merged
    items = [i for d in documents for i in d.items]
    lengths = [len(d.ids) for d in documents]
    row = {
        "input_ids": ids,
        "labels": np.concatenate([d.labels for d in documents]),
        "position_ids": np.concatenate(positions, axis=1),
        "cu_seqlens": np.cumsum([0] + lengths).astype(np.int32),
        "visual_row": visual_row,
        "grid_thw": np.array([g for _, g, _ in items], np.int32).reshape(-1, 3),
        "pixels": np.concatenate([np.zeros((0, 768), np.uint8)] + [p for v, _, p in items if not v]),
        "doc_sample_id": np.arange(len(documents), dtype=np.uint64),
        "doc_part": np.zeros(len(documents), np.int32),
    }
    if any(v for v, _, _ in items):
        row["pixels_video"] = np.concatenate([p for v, _, p in items if v])
    return {name: np.ascontiguousarray(value) for name, value in row.items()}

