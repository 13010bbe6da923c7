/* beginning.c: compares the beginnings of two texts without their pads. */
#include "prepd/sample/beginning.h"

#include "proto/batch.h"

/* How many tokens both have in common from the first on. */
static int64_t count_common(const chat_text *text, const chat_text *other)
{
    int64_t most = text->count < other->count ? text->count : other->count, count = 0;
    const int64_t runs = text->n_runs < other->n_runs ? text->n_runs : other->n_runs;
    while (count < most && text->ids[count] == other->ids[count])
        count++;
    /* What lies before the first picture that the other has elsewhere, or not at all. */
    for (int64_t k = 0; k < text->n_runs || k < other->n_runs; k++) {
        if (k < runs && text->run_at[k] == other->run_at[k])
            continue;
        if (k < text->n_runs && text->run_at[k] < count)
            count = text->run_at[k];
        if (k < other->n_runs && other->run_at[k] < count)
            count = other->run_at[k];
        break;
    }
    return count;
}

text_beginning text_compare_beginning(const chat_text *text, const chat_text *other)
{
    text_beginning out = {.agrees = other ? count_common(text, other) : 0,
                          .head = text->n_runs ? text->run_at[text->n_runs - 1] : 0};
    while (out.first_label < text->count && text->labels[out.first_label] == NO_LABEL)
        out.first_label++;
    return out;
}
