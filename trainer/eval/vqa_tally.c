/* vqa_tally.c: sums of accuracies by type, as vqa_tally.h describes them. */
#include "trainer/eval/vqa_tally.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/visible.h"
#include "trainer/eval/vqa_score.h"

enum { REFERENCES_MAX = 64 }; /* annotators of a question; VQAv2 has ten */
static const char source[] = "references";

double vqa_share_percent(const vqa_share *share)
{
    return share->count ? 100.0 * share->sum / (double)share->count : 0.0;
}

/* Adds to the entry of a type. Types that find no room in the table share its last entry. */
static void count_type(vqa_share *list, int *inout_count, const char *type, double accuracy)
{
    int i = 0;
    while (i < *inout_count && strncmp(list[i].type, type, VQA_TYPE_TEXT - 1) != 0)
        i++;
    if (i == VQA_TYPES_MAX)
        i--;
    else if (i == *inout_count)
        snprintf(list[(*inout_count)++].type, VQA_TYPE_TEXT, "%s", type);
    list[i].sum += accuracy;
    list[i].count++;
}

status vqa_tally_add(vqa_tally *tally, const json_value *reference, span answer, double *out)
{
    const char *question_type, *answer_type;
    span list[REFERENCES_MAX];
    double accuracy;
    const json_value *answers;
    size_t count = 0;
    TRY(json_want_text(reference, "question_type", source, &question_type));
    TRY(json_want_text(reference, "answer_type", source, &answer_type));
    TRY(json_want_array(reference, "answers", source, &answers));
    for (; count < json_count(answers) && count < REFERENCES_MAX; count++)
        list[count] = span_of(json_text(json_item(answers, count), ""),
                              json_text_size(json_item(answers, count)));
    TRY(vqa_accuracy(answer, list, count, &accuracy));
    count_type(tally->question, &tally->n_question, question_type, accuracy);
    count_type(tally->answer, &tally->n_answer, answer_type, accuracy);
    tally->all.sum += accuracy;
    tally->all.count++;
    if (out)
        *out = accuracy;
    return ST_OK;
}

static void print_shares(const char *what, const vqa_share *list, int count, FILE *to)
{
    for (int i = 0; i < count; i++)
        fprintf(to, "  %-13s %-32s %6.2f%% of %" PRId64 "\n", what, escape_text(list[i].type).text,
                vqa_share_percent(&list[i]), list[i].count);
}

void vqa_tally_print(const vqa_tally *tally, FILE *to)
{
    print_shares("answer type", tally->answer, tally->n_answer, to);
    print_shares("question type", tally->question, tally->n_question, to);
}
