# SPDX-License-Identifier: Apache-2.0
"""Trees of samples that begin alike, and rows that have each beginning once: proto/row/batch.h's doc_prefix. See
make_prefix_cases.py and check_prefix_rows.py."""

from dataclasses import dataclass

import numpy as np

import cases_rows as rows

# What prefixes are made of, as rows.draw_document takes it.
PREFIXES = [[3, ("image", 2, 4), 2], [1, ("image", 4, 2), 2, ("image", 2, 2), 4], [2, ("video", 2, 2, 4), 3], [9], [31]]


@dataclass
class Tree:
    samples: list  # Documents, each the prefix's tokens and items and then its own tokens
    shared: int  # tokens of the prefix; 0 for a sample that is an ordinary document


def draw_tree(draw, flavour, parts, n_branches):
    """A tree, or with one branch an ordinary document."""
    prefix = rows.draw_document(draw, parts, flavour.special, flavour.vocab)
    prefix.labels[:] = -100
    samples = []
    for _ in range(n_branches):
        own = rows.draw_document(draw, [int(draw.integers(2, 9))], flavour.special, flavour.vocab)  # its first token has no label
        both = [np.concatenate(pair) for pair in ((prefix.ids, own.ids), (prefix.labels, own.labels), (prefix.is_pad, own.is_pad))]
        samples.append(rows.Document(*both, prefix.items))
    return Tree(samples, len(prefix.ids) if n_branches > 1 else 0)


def draw_trees(draw, flavour, n):
    """n trees. The first has several branches, the others one (an ordinary document) or several."""
    kinds = PREFIXES if flavour.visual else PREFIXES[-2:]
    return [draw_tree(draw, flavour, kinds[draw.integers(len(kinds))], int(draw.integers(2, 8)) if not i or draw.random() < 0.7 else 1)
            for i in range(n)]


def pack(trees, positions_of):
    """One row of all trees, and for each sample where its tokens lie in the row. positions_of gives the positions [3, n] of a
    sample by itself."""
    pieces, prefix, places, ids, at = [], [], [], [], 0
    for tree in trees:
        root = len(pieces)
        where = np.arange(at, at + tree.shared)
        for i, sample in enumerate(tree.samples):
            positions = positions_of(sample)
            whole = rows.Document(sample.ids, sample.labels, sample.is_pad, [] if i else sample.items)
            if tree.shared and not i:
                pieces.append((cut(whole, 0, tree.shared), positions[:, :tree.shared]))
                prefix.append(-1)
                ids.append(len(places))
                at += tree.shared
            branch = cut(whole, tree.shared, len(sample.ids))
            branch.items = [] if tree.shared else whole.items
            pieces.append((branch, positions[:, tree.shared:]))
            prefix.append(root if tree.shared else -1)
            ids.append(len(places))
            places.append(np.concatenate([where, np.arange(at, at + len(branch.ids))]))
            at += len(branch.ids)
    row = rows.pack([document for document, _ in pieces], [positions for _, positions in pieces])
    row["doc_prefix"] = np.array(prefix, np.int32)
    row["doc_part"] = np.where(np.isin(np.arange(len(prefix)), prefix), -1, 0).astype(np.int32)
    row["doc_sample_id"] = np.array(ids, np.uint64)
    return row, places


def cut(document, begin, end):
    return rows.Document(document.ids[begin:end], document.labels[begin:end], document.is_pad[begin:end], document.items)
