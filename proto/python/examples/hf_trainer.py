# SPDX-License-Identifier: Apache-2.0
"""Trains a model of transformers on rows of prepd with its Trainer, and goes on exactly where a checkpoint stands.

    python hf_trainer.py SOURCE MODEL OUT --steps 100 [--save 50] [--attention sdpa]
    torchrun --nproc-per-node 8 hf_trainer.py SOURCE MODEL OUT --steps 100

SOURCE: an endpoint of prepd serve. MODEL: its folder; without weights in it the model begins at random. A step is the daemon's
training.global_batch_size rows, over all ranks. Run again, it resumes from the last checkpoint in OUT, and takes no step if that
has all of them."""
import argparse
import hashlib
import json
import os

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import tessera
from tessera import collate


class KeepRows(TrainerCallback):
    """Writes the place in the stream into each checkpoint, for each rank."""

    def __init__(self, rows):
        self.rows = rows

    def on_save(self, args, state, control, **_):
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        with open(os.path.join(folder, f"rows-{args.process_index}.json"), "w", encoding="utf-8") as f:
            json.dump(self.rows.state_dict(), f)


class RowsTrainer(Trainer):
    def get_train_dataloader(self):
        # As it is: accelerate would give one rank's rows to all ranks, and take a batch more than the checkpoint has trained on.
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=1, collate_fn=self.data_collator)


def load_model(folder, attention):
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(folder)
    if any(name.endswith(".safetensors") for name in os.listdir(folder)):
        return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    return AutoModelForImageTextToText.from_config(config, attn_implementation=attention).float()


def sha_of(model):
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save", type=int, default=50)
    parser.add_argument("--attention", default="sdpa")
    asked = parser.parse_args()
    rows = tessera.Rows(asked.source, prefixes=True, run="hf-trainer")
    args = TrainingArguments(asked.out, max_steps=asked.steps, save_steps=asked.save, per_device_train_batch_size=1,
                             gradient_accumulation_steps=rows.welcome["global_batch_size"] // rows.options.world, learning_rate=1e-3,
                             remove_unused_columns=False, ignore_data_skip=True, logging_steps=1, report_to=[], dataloader_num_workers=0)
    last = get_last_checkpoint(asked.out) if os.path.isdir(asked.out) else None
    done = int(last.rpartition("-")[2]) if last else 0
    finished = done >= asked.steps  # the Trainer would take another step before it looks
    if last:
        with open(os.path.join(last, f"rows-{args.process_index}.json"), encoding="utf-8") as f:
            rows.load_state_dict(json.load(f))
    model, collator = load_model(last if finished else asked.model, asked.attention), collate.for_transformers(asked.attention)
    collator.guard(model)  # checks in the first step that documents are isolated
    trainer = RowsTrainer(model, args, data_collator=collator, train_dataset=rows, callbacks=[KeepRows(rows)])
    if not finished:
        trainer.train(resume_from_checkpoint=last)
        done = trainer.state.global_step
    if args.process_index == 0:
        print("steps", done, "rows", rows.progress.taken, "sha256", sha_of(model))


if __name__ == "__main__":
    main()
