/* SPDX-License-Identifier: Apache-2.0 */
/* sim_samples.c: draws the samples: their texts, the pictures they show, and which of them begin
 * alike. */
#include "tests/sim/prepd/sim_samples.h"

#include <stdio.h>
#include <string.h>

#include "tests/sim/prepd/sim_sources.h"

enum { LAST_PICTURE = 4 }; /* tokens before a sample's last picture, where it has one */

static text_fate draw_text_fate(sim_random *luck, const sim_data_rules *rules)
{
    const int drawn = (int)sim_random_below(luck, 1000), adapted = rules->not_adapted,
              refused = adapted + rules->refused;
    if (drawn < adapted)
        return TEXT_NOT_ADAPTED;
    if (drawn < refused)
        return TEXT_REFUSED;
    return drawn < refused + rules->text_kills ? TEXT_KILLS : TEXT_FINE;
}

static const char *cause_of(text_fate fate)
{
    static const char *const causes[] = {[TEXT_FINE] = NULL,
                                         [TEXT_NOT_ADAPTED] = "has no answer",
                                         [TEXT_REFUSED] = "cannot be encoded",
                                         [TEXT_KILLS] = "ends its worker"};
    return causes[fate];
}

static const char *const prompts[] = {"", "answer briefly", "answer at length"};

static void add_turn(sim_sample *to, int role, bool trained, part *parts, int32_t count)
{
    to->turns[to->n_turns++] =
        (turn){.role = role, .trained = trained, .parts = parts, .n_parts = count};
}

/* Writes the turns of a sample: its pictures and a question, then the answer; or one plain text. */
static void write_turns(sim_sample *out)
{
    int32_t count = 0;
    part *parts = out->parts;
    for (int32_t i = 0; i < out->n_shown; i++)
        parts[count++] = (part){.image = i};
    parts[count++] = (part){out->question, (int64_t)strlen(out->question), -1};
    if (out->system > 0) {
        out->told[0] = (part){prompts[out->system], (int64_t)strlen(prompts[out->system]), -1};
        add_turn(out, ROLE_SYSTEM, false, out->told, 1);
    }
    add_turn(out, out->plain ? ROLE_ASSISTANT : ROLE_USER, out->plain, parts, count);
    if (out->plain)
        return;
    parts[count] = (part){out->answer, (int64_t)strlen(out->answer), -1};
    add_turn(out, ROLE_ASSISTANT, true, parts + count, 1);
}

/* Tokens that come before what tells the sample from its neighbours. */
static int32_t common_tokens(const sim_sample *of, const sim_data_rules *rules)
{
    return of->n_shown > 0 ? LAST_PICTURE + 2 : rules->common_text;
}

static void draw_record(sim_sample *out, sim_random *luck, const sim_data_rules *rules)
{
    const int32_t common = common_tokens(out, rules);
    const int32_t asked = (int32_t)sim_random_between(luck, 3, 24),
                  targets = (int32_t)sim_random_between(luck, 2, 9);
    out->record.cause = cause_of(out->fate);
    if (out->record.cause)
        return;
    if (out->plain) {
        out->record.text_tokens = (int32_t)sim_random_between(luck, 8, rules->longest_text);
        out->record.targets = out->record.text_tokens - 1;
        out->begins.first_label = 1;
        return;
    }
    out->record.text_tokens = common + asked + targets;
    out->record.targets = targets;
    out->begins.head = out->n_shown > 0 ? LAST_PICTURE : 0;
    out->begins.first_label = common + asked;
}

/* Chooses among the pictures of the sample's source. */
static void choose_pictures(const sim_data *data, int64_t number, sim_random *luck,
                            const sim_data_rules *rules, sim_sample *out)
{
    const sim_source *of = &data->source[sim_data_place(data, number).source];
    const int64_t count = of->n_pictures;
    const bool shows = !out->plain && count > 0 &&
                       !sim_random_chance(luck, (uint64_t)rules->without_picture, 1000);
    /* Questions on one picture are neighbours now and then and far apart at other times. */
    const int64_t shown =
        sim_random_chance(luck, 2, 3)
            ? (number - of->first) * count / of->count
            : (int64_t)sim_random_below(luck, (uint64_t)count + 1) % (count > 0 ? count : 1);
    out->n_shown = shows ? (int32_t)sim_random_chance(luck, 1, 8) + 1 : 0;
    for (int32_t i = 0; i < out->n_shown; i++)
        out->shows[i] = (int32_t)(of->first_picture + (shown + i) % count);
}

static void draw_sample(const sim_data *data, int64_t number, sim_random *luck,
                        const sim_data_rules *rules)
{
    sim_sample *out = &data->sample[number];
    out->fate = draw_text_fate(luck, rules);
    out->plain = sim_random_chance(luck, (uint64_t)rules->plain, 1000);
    if (!out->plain && sim_random_chance(luck, 1, 3))
        out->system = (int)sim_random_between(luck, 1, 2);
    choose_pictures(data, number, luck, rules, out);
    snprintf(out->name, sizeof out->name, "sample %lld", (long long)number);
    snprintf(out->question, sizeof out->question, "q%llx.%lld",
             (unsigned long long)(data->seed & 0xffff), (long long)number);
    snprintf(out->answer, sizeof out->answer, "a%lld", (long long)number);
    if (number % 3 != 0)
        snprintf(out->judged_by, sizeof out->judged_by, "{\"answers\":[\"a%lld\"]}",
                 (long long)number);
    write_turns(out);
    draw_record(out, luck, rules);
    if (sim_data_has_bad_clip(data, number))
        out->record = (index_sample){.cause = "its clip has no header"};
}

static bool same_place(const sim_data *data, int64_t one, int64_t other)
{
    const sample_place first = sim_data_place(data, one), second = sim_data_place(data, other);
    return first.source == second.source && first.piece == second.piece;
}

static bool same_pictures(const sim_sample *one, const sim_sample *other)
{
    bool same =
        one->n_shown == other->n_shown && (one->n_shown == 0 || one->system == other->system);
    for (int32_t i = 0; same && i < one->n_shown; i++)
        same = one->shows[i] == other->shows[i];
    return same;
}

/* The sample that this one's beginning is compared with: the last before it that shows the same
 * pictures after the same prompt, or a text directly before a text; both of one source and piece.
 * Samples that no worker looks at are no neighbours. */
static int64_t find_neighbour(const sim_data *data, int64_t number)
{
    const sim_sample *own = &data->sample[number];
    for (int64_t i = number - 1; i >= 0 && !own->plain; i--) {
        const sim_sample *other = &data->sample[i];
        if (other->fate == TEXT_NOT_ADAPTED || sim_data_has_bad_clip(data, i))
            continue;
        if (!other->plain && same_pictures(own, other) && same_place(data, number, i))
            return i;
        if (own->n_shown == 0)
            return -1;
    }
    return -1;
}

static void find_beginnings(sim_data *data, const sim_data_rules *rules)
{
    for (int64_t i = 0; i < data->n_samples; i++) {
        sim_sample *own = &data->sample[i];
        if (!data->begins || own->record.cause) {
            own->begins = (index_beginning){0};
            continue;
        }
        const int64_t before = find_neighbour(data, i);
        if (before < 0 || data->sample[before].record.cause)
            continue; /* a refused neighbour is none */
        own->begins.before = i - before;
        own->begins.agrees =
            own->system == data->sample[before].system ? common_tokens(own, rules) : 0;
    }
}

void sim_samples_draw(sim_data *data, const sim_data_rules *rules, sim_random *luck)
{
    for (int64_t i = 0; i < data->n_samples; i++)
        draw_sample(data, i, luck, rules);
    find_beginnings(data, rules);
}
