/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of data.group shared_prefix from texts to rows: random samples are tokenised, compared,
 * indexed and planned as prepd does it, and every prefix is held against the token ids of whole
 * samples, pads included. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "prepd/plan/plan.h"
#include "prepd/sample/text.h"
#include "prepd/serve/core/state/predecessors.h"
#include "proto/row/batch.h"
#include "tests/unit/prepd/conf_defaults.h"

enum {
    SAMPLES = 500,
    IMAGES = 24, /* the last CLIPS of them are clips */
    CLIPS = 6,
    FIRST_PART = 300, /* samples of the first source; the second is read in pieces */
    PIECE = 40,
    MOST_TURNS = 4,
    MOST_PARTS = 4,
    PAIRS = 2, /* of frames, in every clip */
    SIDE = 64, /* pixels of a picture: 16 patches, 4 tokens */
    ROW = 256,
};

typedef struct made_sample {
    turn turns[MOST_TURNS];
    part parts[MOST_TURNS][MOST_PARTS];
    char text[MOST_TURNS][MOST_PARTS][600];
    int32_t images[2];
    sample is;
    bool unreadable; /* the worker refuses its text */
    /* As in a row: each pad is -1 - its image. */
    int32_t *ids;
    int64_t count, label, shown; /* the first label; tokens through the last visual one */
    /* What is expected: the first sample of those that may share, and their prefix's tokens. */
    int64_t group, prefix;
    bool in_stream, may_split, may_share;
} made_sample;

typedef struct world {
    dataset base;
    made_sample samples[SAMPLES];
    tokenizer *tokens;
    tokenizer_scratch *scratch;
    chat_ids ids;
    conf options;
    arena memory;
    data_index *index;
    rng_key key;
    uint64_t drawn;
} world;

static uint64_t draw_below(world *all, uint64_t below)
{
    return rng_below(all->key, all->drawn++, below);
}

/* --- the data set --- */

static int64_t set_samples(const dataset *set)
{
    (void)set;
    return SAMPLES;
}

static int64_t set_images(const dataset *set)
{
    (void)set;
    return IMAGES;
}

static status set_sample(const dataset *set, int64_t index, arena *memory, sample *out)
{
    (void)memory;
    *out = ((const world *)set)->samples[index].is;
    return ST_OK;
}

static const char *set_path(const dataset *set, int64_t number)
{
    (void)set;
    (void)number;
    return "picture.jpg";
}

static int64_t set_chunk(const dataset *set, int64_t index)
{
    (void)set;
    return index < FIRST_PART ? -1 : index / PIECE;
}

static int set_parts(const dataset *set, const dataset_part **out)
{
    static const dataset_part parts[] = {{"first", 0, FIRST_PART, 0},
                                         {"second", FIRST_PART, SAMPLES - FIRST_PART, 0}};
    (void)set;
    *out = parts;
    return 2;
}

static hash128 set_identity(const dataset *set)
{
    (void)set;
    return hash_bytes("made", 4);
}

static const dataset_vtable made_vtable = {
    .name = "made",
    .samples = set_samples,
    .sample = set_sample,
    .outline = set_sample,
    .images = set_images,
    .image_path = set_path,
    .chunk = set_chunk,
    .parts = set_parts,
    .identity = set_identity,
};

/* --- random samples --- */

static void add_text(world *all, made_sample *made, int place, int words, int kinds)
{
    static const char *const word[] = {"What", " is", " the", " color", " of", " a", " cat", " on"};
    turn *said = &made->turns[place];
    char *text = made->text[place][said->n_parts];
    text[0] = 0;
    for (int k = 0; k < words; k++)
        strcat(text, word[draw_below(all, (uint64_t)(k < 2 ? 1 : kinds))]);
    said->parts[said->n_parts++] = (part){text, (int64_t)strlen(text), -1};
}

static void open_turn(made_sample *made, int role, bool trained)
{
    const int at = made->is.n_turns++;
    made->turns[at] = (turn){.role = role, .trained = trained, .parts = made->parts[at]};
}

static void show_image(made_sample *made, int32_t image)
{
    turn *said = &made->turns[made->is.n_turns - 1];
    made->images[made->is.n_images] = image;
    said->parts[said->n_parts++] = (part){.image = made->is.n_images++};
}

static void make_pictures(world *all, made_sample *made)
{
    const bool two = draw_below(all, 4) == 0, late = draw_below(all, 5) == 0;
    const int32_t image = (int32_t)draw_below(all, late ? 3 : IMAGES);
    open_turn(made, ROLE_USER, false);
    if (!late && draw_below(all, 3) == 0)
        add_text(all, made, 0, 3, 1);
    if (!late)
        show_image(made, image);
    if (two && !late)
        show_image(made, (image + 1) % IMAGES);
    add_text(all, made, 0, late ? 2 : 2 + (int)draw_below(all, 6), 2);
    open_turn(made, ROLE_ASSISTANT, draw_below(all, 8) != 0);
    add_text(all, made, 1, 2, 1);
    if (!late)
        made->turns[1].trained = true;
    if (!late)
        return;
    open_turn(made, ROLE_USER, false);
    show_image(made, image);
    add_text(all, made, 2, 3, 2);
    open_turn(made, ROLE_ASSISTANT, true);
    add_text(all, made, 3, 2, 4);
}

static void make_sample(world *all, int64_t index)
{
    made_sample *made = &all->samples[index];
    const uint64_t kind = draw_below(all, 16);
    made->is = (sample){
        .id = (uint64_t)index, .name = "made", .turns = made->turns, .images = made->images};
    if (kind == 0) {
        made->is.cause = "bad on purpose";
    } else if (kind == 1) {
        made->is.plain = true;
        open_turn(made, ROLE_USER, false);
        add_text(all, made, 0, 30, 8);
    } else if (kind < 7) {
        open_turn(made, ROLE_USER, false);
        add_text(all, made, 0, 15 + (int)draw_below(all, 12), draw_below(all, 3) ? 1 : 3);
        open_turn(made, ROLE_ASSISTANT, true);
        add_text(all, made, 1, 3, 8);
    } else {
        make_pictures(all, made);
    }
    if (draw_below(all, 25) == 0 && made->is.n_turns > 1) /* longer than a row */
        for (int k = 0; k < 3; k++)
            add_text(all, made, made->is.n_turns - 1, 90, 8);
    made->unreadable = draw_below(all, 25) == 0;
}

/* --- what prepd makes of them --- */

static bool is_clip(int32_t image)
{
    return image >= IMAGES - CLIPS;
}

/* pads: with those of a row; the tokens of a picture and of a pair of frames are equal here. */
static void encode_sample(world *all, const made_sample *made, int64_t pads, chat_text *out)
{
    static const double seconds[PAIRS] = {0.25, 0.75};
    chat_visual visuals[2];
    for (int32_t k = 0; k < made->is.n_images; k++)
        visuals[k] = (chat_visual){pads, seconds, is_clip(made->images[k]) ? PAIRS : 0};
    assert_ok(chat_encode(all->tokens, all->scratch, &all->ids, &all->options, &made->is, visuals,
                          &all->memory, out));
}

static void build_index(world *all)
{
    predecessors *before;
    chat_text text[SAMPLES];
    assert_ok(index_new(SAMPLES, IMAGES, &all->index));
    assert_ok(index_take_beginnings(all->index));
    assert_ok(predecessors_new(&all->base, &before));
    for (int32_t j = 0; j < IMAGES; j++) {
        const index_image im = {1000, 1, SIDE, SIDE, NULL, is_clip(j) ? 2 * PAIRS : 0, 2};
        assert_ok(index_put_image(all->index, j, &im));
    }
    for (int64_t i = 0; i < SAMPLES; i++) {
        const made_sample *made = &all->samples[i];
        index_sample record = {.cause = made->is.cause ? made->is.cause : "no text"};
        index_beginning begins = {0};
        if (!made->is.cause)
            assert_ok(predecessors_add(before, i, &made->is));
        if (!made->is.cause)
            encode_sample(all, made, 0, &text[i]);
        if (!made->is.cause && !made->unreadable) {
            const int64_t back = predecessors_back(before, i);
            const bool there = back > 0 && !all->samples[i - back].unreadable;
            const text_beginning is =
                text_compare_beginning(&text[i], there ? &text[i - back] : NULL);
            record = (index_sample){(int32_t)text[i].count, (int32_t)text[i].n_targets, NULL};
            begins = (index_beginning){back, (int32_t)is.agrees, (int32_t)is.head,
                                       (int32_t)is.first_label};
        }
        assert_ok(index_put_sample(all->index, i, &record));
        assert_ok(index_put_beginning(all->index, i, &begins));
    }
    assert_ok(index_seal(all->index));
    predecessors_free(&before);
}

/* --- what is expected, from the ids of whole samples alone --- */

static void encode_whole(world *all, made_sample *made)
{
    chat_text text;
    int64_t run = 0, pads = (SIDE / 32) * (SIDE / 32);
    encode_sample(all, made, pads, &text);
    made->ids = text.ids;
    made->count = text.count;
    for (made->label = 0; text.labels[made->label] == NO_LABEL;)
        made->label++;
    for (int32_t k = 0; k < made->is.n_images; k++)
        for (int pair = 0; pair < (is_clip(made->images[k]) ? PAIRS : 1); pair++, run++)
            for (int64_t j = 0; j < pads; j++) {
                made->ids[text.run_at[run] + j] = -1 - made->images[k];
                made->shown = text.run_at[run] + j + 1;
            }
}

static int64_t count_common(const made_sample *one, const made_sample *other)
{
    int64_t common = 0;
    while (common < one->count && common < other->count && one->ids[common] == other->ids[common])
        common++;
    return common;
}

static bool same_place(int64_t one, int64_t other)
{
    return (one < FIRST_PART) == (other < FIRST_PART) &&
           set_chunk(NULL, one) == set_chunk(NULL, other);
}

static bool begin_alike(const made_sample *one, const made_sample *other)
{
    return one->is.n_images == other->is.n_images && one->shown == other->shown &&
           count_common(one, other) >= one->shown &&
           memcmp(one->images, other->images, sizeof *one->images * (size_t)one->is.n_images) == 0;
}

/* The longest beginning of all of list [count], before the token that precedes the lowest label of
 * those that are in the stream. */
static int64_t longest_cut(const world *all, const int64_t *list, int count)
{
    int64_t cut = INT64_MAX;
    for (int k = 0; k < count; k++) {
        const made_sample *made = &all->samples[list[k]];
        if (k > 0 && count_common(&all->samples[list[0]], made) < cut)
            cut = count_common(&all->samples[list[0]], made);
        if (made->in_stream && made->label - 1 < cut)
            cut = made->label - 1;
    }
    return cut;
}

/* Notes what is expected of the members that are in the stream. */
static void expect_group(world *all, const int64_t *list, int count)
{
    const int64_t cut = longest_cut(all, list, count);
    const bool shares =
        all->samples[list[0]].is.n_images == 0 || cut >= all->samples[list[0]].shown;
    int64_t tokens = shares ? cut : 0, members = 0;
    for (int k = 0; k < count; k++) {
        members += all->samples[list[k]].in_stream;
        tokens +=
            all->samples[list[k]].in_stream ? all->samples[list[k]].count - (shares ? cut : 0) : 0;
    }
    for (int k = 0; k < count && members > 1; k++) {
        made_sample *made = &all->samples[list[k]];
        made->group = list[0];
        made->prefix = shares ? cut : 0;
        made->may_split = tokens > ROW / 2;
    }
}

static void expect_pictures(world *all)
{
    static bool done[SAMPLES];
    memset(done, 0, sizeof done);
    for (int64_t i = 0; i < SAMPLES; i++) {
        int64_t list[SAMPLES];
        int count = 0, most = 0;
        if (!all->samples[i].in_stream || done[i] || all->samples[i].is.n_images == 0)
            continue;
        for (int64_t j = i; j < SAMPLES; j++) {
            const made_sample *made = &all->samples[j];
            if (made->is.cause || !same_place(i, j) || !begin_alike(&all->samples[i], made))
                continue;
            if (made->unreadable) /* it ends a chain */
                break;
            list[count++] = j;
            done[j] = true;
            most = made->in_stream ? count : most; /* refused ones at the end do not count */
        }
        expect_group(all, list, most);
    }
}

/* Texts: neighbours, each of which joins unless it lowers what is saved. */
static void expect_texts(world *all)
{
    int64_t list[SAMPLES], saved = 0;
    int count = 0, members = 0, most = 0;
    for (int64_t i = 0; i <= SAMPLES; i++) {
        const made_sample *made = i < SAMPLES ? &all->samples[i] : NULL;
        const bool text = made && !made->is.cause && made->is.n_images == 0 && !made->is.plain &&
                          !made->unreadable && (count == 0 || same_place(list[0], i));
        if (text && !made->in_stream) {
            if (members)
                list[count++] = i;
            continue;
        }
        if (made && made->is.cause)
            continue; /* as if it were not there */
        if (text && members > 0 && members < all->options.data_prefix_branches) {
            list[count] = i;
            const int64_t cut = longest_cut(all, list, count + 1);
            if (cut >= all->options.data_prefix_min_tokens && members * cut >= saved) {
                saved = members++ * cut;
                most = ++count;
                continue;
            }
        }
        if (members > 1)
            expect_group(all, list, most);
        count = members = 0;
        saved = 0;
        if (made && made->in_stream && made->is.n_images == 0 && !made->is.plain) {
            list[count++] = i;
            members = most = 1;
        }
    }
}

/* Samples without a prefix share their images with all others that show the same. */
static void expect_shared(world *all)
{
    for (int64_t i = 0; i < SAMPLES; i++) {
        int64_t tokens = 0, members = 0;
        made_sample *first = &all->samples[i];
        if (!first->in_stream || first->is.n_images == 0 || first->prefix > 0 || first->may_share)
            continue;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t j = i; j < SAMPLES; j++) {
                made_sample *made = &all->samples[j];
                if (!made->in_stream || made->prefix > 0 || !same_place(i, j) ||
                    made->is.n_images != first->is.n_images ||
                    memcmp(made->images, first->images,
                           sizeof *made->images * (size_t)made->is.n_images) != 0)
                    continue;
                tokens += pass == 0 ? made->count : 0;
                members += pass == 0;
                made->group = i;
                made->may_share = members > 1;
                made->may_split = tokens > ROW / 2;
            }
    }
}

static void expect_all(world *all, const plan *planned)
{
    for (int64_t i = 0; i < SAMPLES; i++) {
        made_sample *made = &all->samples[i];
        made->group = i;
        made->in_stream = !plan_cause(planned, i);
        if (!made->is.cause)
            encode_whole(all, made);
        assert_int_equal(made->in_stream,
                         !made->is.cause && !made->unreadable && made->count <= ROW);
    }
    expect_pictures(all);
    expect_texts(all);
    expect_shared(all);
}

/* --- the rows --- */

static void check_branch(const world *all, const planned_doc *prefix, const planned_doc *doc)
{
    const made_sample *made = &all->samples[doc->sample];
    assert_int_equal(doc->before, prefix->tokens);
    assert_int_equal(doc->from, prefix->tokens);
    assert_int_equal(doc->tokens, made->count - prefix->tokens);
    assert_int_equal(doc->n_images + doc->patches + doc->frames + doc->prefix, 0);
    assert_int_equal(made->group, all->samples[prefix->sample].group);
    assert_int_equal(made->prefix, prefix->tokens);
    for (int64_t k = 0; k < prefix->tokens; k++)
        assert_int_equal(made->ids[k], all->samples[prefix->sample].ids[k]);
}

/* A sample has no prefix if it shares none, or is what remains of a group that was split. Two that
 * share only a picture are side by side unless their unit was split. */
static void check_ordinary(const world *all, const planned_doc *doc, const planned_doc *last)
{
    const made_sample *made = &all->samples[doc->sample];
    assert_int_equal(doc->before, 0);
    assert_int_equal(doc->tokens, made->count);
    assert_true(made->prefix == 0 || made->may_split);
    assert_true(!doc->shared ||
                (made->may_share && all->samples[last->sample].group == made->group));
    if (made->may_share && !made->may_split)
        assert_int_equal(doc->shared, doc->sample != made->group);
}

static void check_row(const world *all, const planned_row *placed, const shape_bucket *last,
                      int *seen)
{
    const planned_doc *prefix = NULL;
    int32_t branches = 0;
    int64_t tokens = 0, patches = 0;
    for (int64_t place = 0; place < placed->n_docs; place++) {
        const planned_doc *doc = &placed->docs[place];
        tokens += doc->tokens;
        patches += doc->shared ? 0 : doc->patches;
        assert_true(doc->tokens + doc->before <= last->longest);
        if (doc->part < 0) {
            assert_int_equal(branches, 0);
            prefix = doc;
            branches = doc->prefix;
            assert_true(branches >= 2 && place + branches < placed->n_docs);
            assert_int_equal(doc->targets, 0);
            assert_int_equal(doc->n_images, all->samples[doc->sample].is.n_images);
            assert_int_equal(doc->sample, placed->docs[place + 1].sample);
            continue;
        }
        seen[doc->sample]++;
        if (branches > 0) {
            branches--;
            check_branch(all, prefix, doc);
            continue;
        }
        check_ordinary(all, doc, place > 0 ? &placed->docs[place - 1] : NULL);
    }
    assert_int_equal(branches, 0);
    assert_int_equal(tokens, placed->tokens);
    assert_int_equal(patches, placed->patches);
    assert_true(tokens <= ROW && patches <= 4 * ROW && placed->n_docs <= last->documents);
}

static void check_rows(world *all, plan *planned, int64_t *inout_branches, int64_t *inout_shared)
{
    static int seen[SAMPLES];
    int n_buckets;
    const shape_bucket *buckets = plan_buckets(planned, &n_buckets);
    memset(seen, 0, sizeof seen);
    for (uint64_t k = 0; k < plan_epoch_rows(planned); k++) {
        planned_row placed;
        const arena_mark mark = arena_save(&all->memory);
        assert_ok(plan_row(planned, NULL, k, &all->memory, &placed));
        check_row(all, &placed, &buckets[n_buckets - 1], seen);
        for (int64_t doc = 0; doc < placed.n_docs; doc++) {
            *inout_branches += placed.docs[doc].before > 0;
            *inout_shared += placed.docs[doc].shared;
        }
        arena_release(&all->memory, mark);
    }
    for (int64_t i = 0; i < SAMPLES; i++)
        assert_int_equal(seen[i], all->samples[i].in_stream);
}

static world *open_world(uint64_t round)
{
    world *all = calloc(1, sizeof *all);
    const char *source = getenv("TESSERA_SOURCE");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/tokenizer/pairs", source ? source : ".");
    assert_non_null(all);
    all->base.adapter = &made_vtable;
    assert_ok(tokenizer_load(path, &all->tokens));
    assert_ok(tokenizer_scratch_new(all->tokens, &all->scratch));
    assert_ok(chat_ids_find(all->tokens, &all->ids));
    arena_init(&all->memory, 0);
    all->key = rng_key_make(harness_seed() + round, "prefix cuts");
    all->options = conf_defaults();
    all->options.training_seq_len = ROW;
    all->options.training_epochs = 1;
    all->options.data_group = GROUP_SHARED_PREFIX;
    all->options.data_prefix_branches = 5;
    all->options.data_prefix_min_tokens = 20;
    all->options.data_system = "";
    all->options.image_min_pixels = 1024;
    all->options.image_max_pixels = 16777216;
    for (int64_t i = 0; i < SAMPLES; i++)
        make_sample(all, i);
    build_index(all);
    return all;
}

static void close_world(world *all)
{
    index_free(&all->index);
    tokenizer_scratch_free(&all->scratch);
    tokenizer_free(&all->tokens);
    arena_done(&all->memory);
    free(all);
}

static void test_cuts__are_those_of_the_ids(void **state)
{
    (void)state;
    int64_t branches = 0, shared = 0;
    for (uint64_t round = 0; round < 6; round++) {
        world *all = open_world(round);
        plan *planned;
        assert_ok(plan_new(&all->options, &all->base, all->index, PLAN_PACKED, &planned));
        expect_all(all, planned);
        check_rows(all, planned, &branches, &shared);
        plan_free(&planned);
        close_world(all);
    }
    assert_true(branches > 500 && shared > 5); /* the random samples do share */
}

static void test_samples__never_share(void **state)
{
    (void)state;
    world *all = open_world(99);
    plan *planned;
    assert_ok(plan_new(&all->options, &all->base, all->index, PLAN_SAMPLES, &planned));
    for (uint64_t k = 0; k < SAMPLES; k++) {
        planned_row placed;
        assert_ok(plan_row(planned, NULL, k, &all->memory, &placed));
        assert_true(placed.n_docs <= 1);
        if (placed.n_docs)
            assert_int_equal(placed.docs[0].prefix + placed.docs[0].before, 0);
    }
    plan_free(&planned);
    close_world(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts__are_those_of_the_ids),
        cmocka_unit_test(test_samples__never_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
