/* SPDX-License-Identifier: Apache-2.0 */
/* index_checks.c: whether a finished index is the one that honest workers make. */
#include "tests/sim/prepd/invariants.h"

/* When a file was changed last is what the daemon sees, whoever has read the file. */
static void check_times(simulation *sim, const data_index *index, const data_index *want)
{
    for (int64_t i = 0; i < index_images(want) && sim->rules.weight[FAULT_NO_STAT] == 0; i++) {
        index_image own, other;
        index_image_get(index, i, &own);
        index_image_get(want, i, &other);
        if (own.mtime_ns != other.mtime_ns)
            sim_break(sim, INV_INDEX, "the time of picture %lld is not that of the daemon's file",
                      (long long)i);
    }
}

void check_index(simulation *sim, int which, const data_index *index)
{
    data_index *want = reference_index(&sim->data[which]);
    index_image own, other;
    if (hash_equal(index_contents(index), index_contents(want))) {
        check_times(sim, index, want);
        index_free(&want);
        return;
    }
    sim_break(sim, INV_INDEX, "the index of %s is not what honest workers find",
              which ? "eval" : "train");
    for (int64_t i = 0; i < index_images(want); i++) {
        index_image_get(index, i, &own);
        index_image_get(want, i, &other);
        if (own.width != other.width || own.file_bytes != other.file_bytes)
            sim_log_tell(&sim->log, sim->now_ns, "picture %lld is %d wide and should be %d",
                         (long long)i, own.width, other.width);
    }
    for (int64_t i = 0; i < index_samples(want); i++) {
        index_sample one, two;
        index_sample_get(index, i, &one);
        index_sample_get(want, i, &two);
        if (one.text_tokens != two.text_tokens || !one.cause != !two.cause)
            sim_log_tell(&sim->log, sim->now_ns,
                         "sample %lld has %d tokens (%s) and should have %d (%s)", (long long)i,
                         one.text_tokens, one.cause ? one.cause : "", two.text_tokens,
                         two.cause ? two.cause : "");
    }
    index_free(&want);
}
