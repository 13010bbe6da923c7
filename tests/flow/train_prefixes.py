# SPDX-License-Identifier: Apache-2.0
"""A training step on samples that share prefixes has the loss and the gradient norm of the same samples apart, however
answers of different lengths are weighed."""

from families import write_families
from prepd_flow import Daemon, Folder, check, main
from train_flow import close, train

# One step holds the whole epoch, so it has the same samples however they are packed.
WHOLE = {"training.epochs": 1, "training.global_batch_size": 12, "training.seq_len": 256, "eval.enable": "false"}


def a_step_is_that_of_separate_samples():
    with Folder(images=24, **WHOLE) as f:
        found = {}
        args, _ = write_families(f)
        more = {key[2:].replace(".", "__"): value for key, value in zip(args[::2], args[1::2])}
        for group in ("none", "shared_prefix"):
            with Daemon(f.config, *args, "--data.group", group):
                for weighting in ("token", "sample", "sqrt_length"):
                    found[group, weighting] = train(f, f"{group} {weighting}", data__group=group, loss__weighting=weighting,
                                                    training__steps=1, training__global_batch_size=12, training__backend="cpu",
                                                    **more)
        for weighting in ("token", "sample", "sqrt_length"):
            alone, shared = (found[group, weighting] for group in ("none", "shared_prefix"))
            check(len(shared) == 1 and shared[0]["rows_digest"] != alone[0]["rows_digest"], f"{shared}")
            close(alone, shared, 1e-5, f"samples that share prefixes, by {weighting}")
        losses = {weighting: found["none", weighting][0]["loss"] for weighting in ("token", "sample", "sqrt_length")}
        check(len(set(losses.values())) == 3, f"all answers weigh the same: {losses}")


main(a_step_is_that_of_separate_samples)
