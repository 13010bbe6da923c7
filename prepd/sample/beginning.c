/* beginning.c: compares the beginnings of two texts without their pads. */
#include "prepd/sample/beginning.h"

#include "proto/batch.h"

/* How many tokens both have in common from the first on. Where only one shows a picture, its
 * control tokens differ from what the other has there. */
static int64_t count_common(const chat_text *text, const chat_text *other)
{
    const int64_t most = text->count < other->count ? text->count : other->count;
    int64_t count = 0;
    while (count < most && text->ids[count] == other->ids[count])
        count++;
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
