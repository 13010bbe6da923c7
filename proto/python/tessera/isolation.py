# SPDX-License-Identifier: Apache-2.0
"""Checks at run time that a model isolates the documents of a packed row.

The obvious calls do not. With a cache, or an attention that ignores the mask, documents see the ones before them; without the
mask, positions that jump at pictures cut documents to pieces. The loss is then off by some per cent without a word. So before the
first batch counts, the probe changes the beginning of one document and looks at the ends of all: where a token may not look,
nothing may change; where it must, something does."""
import collections
import inspect
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Set

import numpy as np
import torch

FINE, COARSE = 1e-3, 0.02  # what the rest may change, as a share of the family's change: in 32 bits, and in 16
NOISE = 1e-6  # of the logits: a smaller change in 32 bits is rounding
REMEDY = ("Call it with everything that the collator gives, use_cache=False included, and make the collator with the attention that the "
          "model has (attn_implementation)")
KEPT = 8  # batches that may be made before the first is trained on


class Packed(NamedTuple):
    """A batch that a collator has made."""
    ids: torch.Tensor  # [1, T]
    borders: np.ndarray  # [D + 1]
    prefix: np.ndarray  # [D]
    visual_row: np.ndarray  # [T]


class IsolationProbe:
    """A hook of a model's forward, which removes itself once a batch with several documents has passed. checked: whether one has."""

    def __init__(self, model: torch.nn.Module):
        self.batches: Deque[Packed] = collections.deque(maxlen=KEPT)
        self.checked = False
        self.hook = model.register_forward_pre_hook(self.look, with_kwargs=True)

    def remember(self, ids: torch.Tensor, borders: np.ndarray, prefix: np.ndarray, visual_row: np.ndarray) -> None:
        if not self.checked:
            self.batches.append(Packed(ids, borders, prefix, visual_row))

    def look(self, model: torch.nn.Module, args: tuple, inputs: Dict[str, Any]) -> None:
        ids = inputs.get("input_ids", args[0] if args else None)
        if ids is None:
            raise RuntimeError("tessera: the model is called without input_ids, so its first batch cannot be checked")
        batch = self.known(ids.cpu())
        if batch is None:
            raise RuntimeError("tessera: the model is called with a batch that this collator has not made")
        changed = what_to_change(batch)
        if changed is None:
            return  # one document alone: the next batch may have more
        check_isolation(model, args, inputs, ids, batch, changed)
        self.checked = True
        self.batches.clear()
        self.hook.remove()

    def known(self, ids: torch.Tensor) -> Optional[Packed]:
        return next((b for b in self.batches if torch.equal(b.ids, ids)), None)


class Change(NamedTuple):
    """Which tokens of a document get which ids. The logits of its family, which are it and its branches, must change; no others
    may."""
    document: int
    places: List[int]
    ids: List[int]
    family: Set[int]


def beginning_of(batch: Packed, document: int) -> List[int]:
    """The text tokens at a document's beginning: before its last visual token, or of its first half."""
    first, end = int(batch.borders[document]), int(batch.borders[document + 1])
    visual = np.flatnonzero(batch.visual_row[first:end] >= 0)
    stop = first + int(visual[-1]) if len(visual) else first + (end - first) // 2
    return [t for t in range(first, stop) if batch.visual_row[t] < 0]


def what_to_change(batch: Packed) -> Optional[Change]:
    """The beginning of the first prefix, or else of a document, at best one with pictures; None if the row has nothing beside its
    family."""
    n = len(batch.prefix)
    shows = [bool((batch.visual_row[batch.borders[d]:batch.borders[d + 1]] >= 0).any()) for d in range(n)]
    for document in sorted(range(n), key=lambda d: (not (batch.prefix == d).any(), not shows[d])):
        family = {document} | set(np.flatnonzero(batch.prefix == document).tolist())
        places = beginning_of(batch, document)
        ids = [int(batch.ids[0, t]) for t in places]
        if len(set(ids)) > 1 and len(family) < n and batch.prefix[document] < 0:
            # The same ids in another order, so that they are ones that the model knows.
            return Change(document, places, ids[1:] + ids[:1], family)
    return None


def check_isolation(model: torch.nn.Module, args: tuple, inputs: Dict[str, Any], ids: torch.Tensor, batch: Packed, change: Change) -> None:
    other = ids.clone()
    other[0, change.places] = torch.tensor(change.ids, dtype=ids.dtype, device=ids.device)
    ends = torch.from_numpy(batch.borders[1:] - 1).to(ids.device)
    training = model.training
    model.eval()  # dropout would change everything
    try:
        with torch.no_grad():
            logits = logits_at(model, args, inputs, ids, ends)
            difference = (logits_at(model, args, inputs, other, ends) - logits).abs().amax(-1).tolist()
    finally:
        model.train(training)
    fine = next(model.parameters()).dtype in (torch.float32, torch.float64)
    own = max(difference[d] for d in change.family)
    leak, where = max((difference[d], d) for d in range(len(difference)) if d not in change.family)
    if not leak <= (FINE if fine else COARSE) * own:
        raise RuntimeError(f"tessera: the model does not isolate the documents of a row: changing document {change.document} changes the "
                           f"logits of document {where} by {leak:.3g} (its own by {own:.3g}). {REMEDY}")
    least = NOISE * float(logits.abs().max()) if fine else 0.0
    blind = [d for d in sorted(change.family) if not difference[d] > least]
    if blind:
        what = "its own end" if blind[0] == change.document else f"document {blind[0]}, whose prefix it is"
        raise RuntimeError(f"tessera: the model does not show the beginning of document {change.document} to {what}: changing it "
                           f"changes nothing there. {REMEDY}")


def logits_at(model: torch.nn.Module, args: tuple, inputs: Dict[str, Any], ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The logits [D, V] at these tokens, with these ids in place of the batch's."""
    given = {k: v for k, v in inputs.items() if k not in ("labels", "num_items_in_batch")}
    if "input_ids" in given:
        given["input_ids"] = ids
    else:
        args = (ids, *args[1:])
    few = "logits_to_keep" in inspect.signature(model.forward).parameters
    logits = model.forward(*args, **given, **({"logits_to_keep": places} if few else {})).logits[0]
    return (logits if few else logits[places]).float()
