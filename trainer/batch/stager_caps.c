/* stager_caps.c: counts what rows need, and compares it with the capacities of a batch. */
#include "trainer/batch/stager_caps.h"

static int64_t row_frames(const row *packed)
{
    int64_t frames = 0;
    for (int64_t i = 0; i < packed->n_items; i++)
        frames += packed->grid_thw[3 * i];
    return frames;
}

static int64_t pick_larger(int64_t first, int64_t second)
{
    return first > second ? first : second;
}

static int64_t longest_of(const row *packed)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < packed->n_docs; i++) {
        const int32_t prefix = packed->doc_prefix ? packed->doc_prefix[i] : -1;
        int64_t tokens = packed->cu_seqlens[i + 1] - packed->cu_seqlens[i];
        if (prefix >= 0)
            tokens += packed->cu_seqlens[prefix + 1] - packed->cu_seqlens[prefix];
        longest = pick_larger(longest, tokens);
    }
    return longest;
}

static int64_t frame_of(const row *packed)
{
    int64_t most = 0;
    for (int64_t i = 0; i < packed->n_items; i++)
        most =
            pick_larger(most, (int64_t)packed->grid_thw[3 * i + 1] * packed->grid_thw[3 * i + 2]);
    return most;
}

static int64_t row_targets(const row *packed)
{
    int64_t count = 0;
    for (int64_t token = 0; token < packed->n_tokens; token++)
        count += packed->labels[token] != NO_LABEL;
    return count;
}

batch_caps batch_caps_count(const row *rows, int64_t n_rows)
{
    batch_caps caps = {0};
    for (int64_t i = 0; i < n_rows; i++) {
        caps.tokens += rows[i].n_tokens;
        caps.docs += rows[i].n_docs;
        caps.patches += rows[i].n_patches + rows[i].n_video_patches;
        caps.items += rows[i].n_items;
        caps.frames += row_frames(&rows[i]);
        caps.targets += row_targets(&rows[i]);
        caps.longest = pick_larger(caps.longest, longest_of(&rows[i]));
        caps.frame = pick_larger(caps.frame, frame_of(&rows[i]));
    }
    return caps;
}

static void grow_cap(int64_t *cap, int64_t need, int64_t step)
{
    need = (need + step - 1) / step * step;
    if (need > *cap)
        *cap = need;
}

void batch_caps_for(const row *rows, int64_t n_rows, int64_t token_step, int64_t patch_step,
                    batch_caps *inout_caps)
{
    batch_caps caps = batch_caps_count(rows, n_rows);
    grow_cap(&inout_caps->tokens, caps.tokens, token_step);
    grow_cap(&inout_caps->docs, caps.docs, 1);
    grow_cap(&inout_caps->patches, caps.patches, patch_step);
    grow_cap(&inout_caps->items, caps.items, 1);
    grow_cap(&inout_caps->frames, caps.frames, 1);
    grow_cap(&inout_caps->targets, caps.targets, 1);
}

static unsigned long long first_sample(const row *rows, int64_t n_rows)
{
    for (int64_t i = 0; i < n_rows; i++) {
        if (rows[i].n_docs > 0)
            return rows[i].doc_sample_id[0];
    }
    return 0;
}

status batch_caps_check(const batch_caps *cap, const batch_caps *need, const row *rows,
                        int64_t count)
{
    const struct {
        const char *what;
        int64_t need, cap;
    } limit[] = {
        {"tokens", need->tokens, cap->tokens},    {"documents", need->docs, cap->docs},
        {"patches", need->patches, cap->patches}, {"images", need->items, cap->items},
        {"frames", need->frames, cap->frames},    {"targets", need->targets, cap->targets}};
    for (size_t i = 0; i < sizeof limit / sizeof limit[0]; i++) {
        if (limit[i].need > limit[i].cap)
            return FAIL(ST_BAD_INPUT,
                        "%lld %s of the rows from sample %llu on do not fit the batch's capacity "
                        "of %lld",
                        (long long)limit[i].need, limit[i].what, first_sample(rows, count),
                        (long long)limit[i].cap);
    }
    return ST_OK;
}

bool batch_caps_hold(const batch_caps *cap, const batch_caps *counts)
{
    return counts->tokens <= cap->tokens && counts->docs <= cap->docs &&
           counts->patches <= cap->patches && counts->items <= cap->items &&
           counts->frames <= cap->frames && counts->targets <= cap->targets &&
           (!cap->longest || counts->longest <= cap->longest) &&
           (!cap->frame || counts->frame <= cap->frame);
}
