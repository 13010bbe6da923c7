/* SPDX-License-Identifier: Apache-2.0 */
/* Test of payload.c: what a lease says of samples that share a prefix, of the one that is tried
 * alone, and of blank ones; and of when a text may be tried alone (index_build.c). */
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/state/dispatch_state.h"
#include "prepd/serve/core/rows/core_rows.h"
#include "prepd/serve/core/consumers/core_consumers.h"
#include "proto/row/tag.h"
#include "tests/harness.h"
#include "tests/unit/prepd/serve/still_world.h"
#include "tests/unit/prepd/conf_defaults.h"

enum { SAMPLES = 3, SHARED_TEXT = 10, TEXT = 20, HEAD = 4, LABEL = 14 };

/* Three questions on one picture. */
static int64_t count_samples(const dataset *set)
{
    (void)set;
    return SAMPLES;
}

static int64_t count_images(const dataset *set)
{
    (void)set;
    return 1;
}

static status make_sample(const dataset *set, int64_t index, arena *memory, sample *out)
{
    static const char *const questions[] = {"which", "where", "how"};
    static int32_t image = 0;
    part *parts;
    turn *said;
    (void)set;
    TRY(arena_calloc(memory, 2, sizeof(turn), (void **)&said));
    TRY(arena_calloc(memory, 3, sizeof(part), (void **)&parts));
    parts[0] = (part){.image = 0};
    parts[1] = (part){questions[index], (int64_t)strlen(questions[index]), -1};
    parts[2] = (part){"red", 3, -1};
    said[0] = (turn){.role = ROLE_USER, .parts = parts, .n_parts = 2};
    said[1] = (turn){.role = ROLE_ASSISTANT, .trained = true, .parts = parts + 2, .n_parts = 1};
    *out = (sample){.id = (uint64_t)index,
                    .name = questions[index],
                    .turns = said,
                    .n_turns = 2,
                    .images = &image,
                    .n_images = 1};
    return ST_OK;
}

static const char *path_of(const dataset *set, int64_t image)
{
    (void)set, (void)image;
    return "picture.jpg";
}

static const char *root_of(const dataset *set)
{
    (void)set;
    return "/nowhere";
}

static hash128 identity_of(const dataset *set)
{
    (void)set;
    return hash_bytes("payload", 7);
}

static const char *reference_of(const dataset *set, int64_t index)
{
    static const char *const answers[] = {"[\"0\"]", "[\"1\"]", "[\"2\"]"};
    (void)set;
    return answers[index];
}

static const dataset_vtable vtable = {.name = "three questions",
                                      .samples = count_samples,
                                      .sample = make_sample,
                                      .outline = make_sample,
                                      .images = count_images,
                                      .image_path = path_of,
                                      .root = root_of,
                                      .identity = identity_of,
                                      .reference = reference_of};

/* The same in a mixture that takes the first two questions twice in an epoch. */
static int parts_of(const dataset *set, const dataset_part **out)
{
    static const dataset_part parts[] = {{"often", 0, 2, 3}, {"rarely", 2, 1, 1}};
    (void)set;
    *out = parts;
    return 2;
}

typedef struct scene {
    dataset_vtable adapter;
    dataset data;
    conf options;
    dispatch state;
    consumer_seat *consumer;
    plan *plan;
    lease *lease;
    json_value *said; /* the lease as its worker reads it */
} scene;

/* `chained`: how many samples go on from the one before. */
static void make_index(int64_t chained, data_index **out)
{
    const index_image picture = {1000, 1, 320, 256, NULL, 0, 0};
    assert_ok(index_new(SAMPLES, 1, out));
    assert_ok(index_take_beginnings(*out));
    assert_ok(index_put_image(*out, 0, &picture));
    for (int64_t i = 0; i < SAMPLES; i++) {
        const index_sample record = {TEXT, 3, NULL};
        const index_beginning beginning = {.before = i > 0 && i <= chained,
                                           .agrees = i > 0 && i <= chained ? SHARED_TEXT : 0,
                                           .head = HEAD,
                                           .first_label = LABEL};
        assert_ok(index_put_sample(*out, i, &record));
        assert_ok(index_put_beginning(*out, i, &beginning));
    }
    assert_ok(index_seal(*out));
}

static void set_up_parts(scene *all, int (*parts)(const dataset *set, const dataset_part **out))
{
    static const int64_t item[] = {~INT64_C(0), 0, 1, 2};
    *all = (scene){.adapter = vtable, .options = conf_defaults()};
    all->adapter.parts = parts;
    all->data.adapter = &all->adapter;
    all->options.data_group = GROUP_SHARED_PREFIX;
    all->options.is_held_out = true;
    all->options.training_seq_len = 512;
    all->options.training_global_batch_size = 1;
    all->options.training_epochs = 1;
    all->options.data_shuffle = false;
    all->state.options = &all->options;
    source *train = &all->state.train;
    *train = (source){.name = "train", .data = &all->data, .opened = true, .ready = true};
    assert_ok(conf_copy(&all->options, &train->options));
    make_index(parts ? 1 : SAMPLES - 1, &train->index);
    assert_ok(clip_limits_load(&all->options, &train->clips));
    lease_book_init(&all->state.book, 1);
    arena_init(&all->state.scratch, 1 << 24);
    assert_ok(plan_new(&all->options, &all->data, train->index, PLAN_PACKED, &all->plan));
    assert_non_null(all->consumer = calloc(1, sizeof *all->consumer));
    *all->consumer =
        (consumer_seat){.src = train, .plan = all->plan, .stream = "train", .ranks = 1};
    assert_ok(lease_new(&all->state.book, LEASE_ROW, all->consumer, 0, item, 4, &all->lease));
    assert_ok(lease_set_branches(all->lease, 0, parts ? SAMPLES - 1 : SAMPLES));
}

static void set_up(scene *all)
{
    set_up_parts(all, NULL);
}

static void tear_down(scene *all)
{
    json_free(&all->said);
    lease_free(&all->lease);
    bad_samples_done(&all->state.train.bad);
    free(all->consumer);
    plan_free(&all->plan);
    index_free(&all->state.train.index);
    conf_done(&all->state.train.options);
    arena_done(&all->state.scratch);
}

/* The documents of the leased row, in the scratch memory. */
static planned_row row_of(scene *all)
{
    planned_row placed;
    arena_reset(&all->state.scratch);
    assert_ok(
        plan_row(all->plan, all->consumer->from, all->lease->row, &all->state.scratch, &placed));
    return placed;
}

/* Writes the lease; returns the list of its documents. */
static const json_value *docs_of(scene *all)
{
    char *text;
    size_t size;
    const planned_row placed = row_of(all);
    json_free(&all->said);
    assert_ok(payload_lease(&all->state, all->lease, &placed, false, NULL, &text, &size));
    assert_ok(json_parse(text, size, "the lease", &all->said));
    free(text);
    return json_find(all->said, "docs");
}

static int64_t member_of(const json_value *docs, size_t doc, const char *key)
{
    return json_int(json_find(json_item(docs, doc), key), -7);
}

static bool says(const json_value *docs, size_t doc, const char *key)
{
    return json_bool(json_find(json_item(docs, doc), key), false);
}

/* Receivers read a tag fast if it is written as they expect it. */
static void assert_fits_scan(const char *text, const json_value *tag)
{
    enum { MOST = 16, TOKENS = 4096 };
    static const char *const member[] = {"ids", "parts", "prefixes", "lengths", "targets"};
    static uint64_t id[MOST];
    static int32_t nth_part[MOST], prefix[MOST], cu_seqlens[MOST + 1], grid[3 * MOST],
        label[TOKENS];
    const json_value *list[5];
    row packed = {.doc_sample_id = id, .doc_part = nth_part, .doc_prefix = prefix, .labels = label};
    packed.cu_seqlens = cu_seqlens;
    packed.grid_thw = grid;
    for (int i = 0; i < 5; i++)
        list[i] = json_find(tag, member[i]);
    packed.n_docs = (int64_t)json_count(list[0]);
    for (size_t i = 0; i < (size_t)packed.n_docs; i++) {
        id[i] = (uint64_t)json_int(json_item(list[0], i), 0);
        nth_part[i] = (int32_t)json_int(json_item(list[1], i), 0);
        prefix[i] = (int32_t)json_int(json_item(list[2], i), 0);
        cu_seqlens[i + 1] = cu_seqlens[i] + (int32_t)json_int(json_item(list[3], i), 0);
        const int64_t targets = json_int(json_item(list[4], i), 0);
        for (int32_t k = cu_seqlens[i]; k < cu_seqlens[i + 1]; k++)
            label[k] = k < cu_seqlens[i + 1] - targets ? NO_LABEL : 1;
    }
    const json_value *grids = json_find(tag, "grids");
    packed.n_items = (int64_t)json_count(grids) / 3;
    for (size_t i = 0; i < json_count(grids); i++)
        grid[i] = (int32_t)json_int(json_item(grids, i), 0);
    const span bytes = span_of(text, strlen(text));
    char *to = (char *)malloc(tag_texts_bytes(bytes));
    tag_texts texts;
    assert_non_null(to);
    assert_true(
        tag_scan(bytes, (uint64_t)json_int(json_find(tag, "row"), -1), &packed, to, &texts));
    free(to);
}

/* The tag of the row, which the dispatcher keeps for its consumer. */
static json_value *tag_of(scene *all)
{
    const worker_seat worker = {.number = 5, .pid = 7, .host = "there", .decider = true};
    const planned_row placed = row_of(all);
    json_value *tag = NULL;
    assert_ok(tag_make(&all->state, all->lease, &placed, &worker));
    assert_int_equal(all->lease->by, 5);
    assert_ok(json_parse(all->lease->tag, strlen(all->lease->tag), "tag", &tag));
    assert_string_equal(json_text(json_find(tag, "worker"), ""), "7 on there");
    assert_fits_scan(all->lease->tag, tag);
    return tag;
}

static int64_t number_of(const json_value *tag, const char *member, size_t doc)
{
    return json_int(json_item(json_find(tag, member), doc), INT64_MIN);
}

static void test_payload_lease__a_prefix_and_its_branches(void **state)
{
    (void)state;
    scene all;
    set_up(&all);
    const json_value *docs = docs_of(&all);
    const int64_t pads = 10 * 8, cut = SHARED_TEXT + pads;
    assert_int_equal(json_count(docs), 1 + SAMPLES);
    assert_int_equal(member_of(docs, 0, "id"), 0);
    assert_int_equal(member_of(docs, 0, "part"), -1);
    assert_int_equal(member_of(docs, 0, "prefix"), SAMPLES);
    assert_int_equal(member_of(docs, 0, "tokens"), cut);
    assert_int_equal(member_of(docs, 0, "whole"), TEXT + pads);
    assert_int_equal(json_count(json_find(json_item(docs, 0), "grids")), 1);
    for (size_t i = 1; i <= SAMPLES; i++) {
        assert_int_equal(member_of(docs, i, "id"), (int64_t)i - 1);
        assert_int_equal(member_of(docs, i, "before"), cut);
        assert_int_equal(member_of(docs, i, "from"), cut);
        assert_int_equal(member_of(docs, i, "tokens"), TEXT - SHARED_TEXT);
        assert_null(json_find(json_item(docs, i), "prefix"));
        assert_null(json_find(json_item(docs, i), "grids")); /* the pictures are the prefix's */
        assert_int_equal(says(docs, i, "same"), i == 1);     /* whose text is the first branch's */
        assert_false(says(docs, i, "bad"));
    }
    assert_int_equal(json_count(json_find(all.said, "files")), 1);
    /* What the row's metadata becomes is not told to the worker. */
    static const char *const untold[] = {"cursor", "quarantine", "references"};
    for (size_t i = 0; i < 3; i++)
        assert_null(json_find(all.said, untold[i]));
    json_value *tag = tag_of(&all);
    assert_string_equal(json_text(json_find(tag, "references"), ""),
                        "[null,[\"0\"],[\"1\"],[\"2\"]]");
    for (size_t i = 0; i <= SAMPLES; i++) {
        assert_int_equal(number_of(tag, "ids", i), i ? (int64_t)i - 1 : 0);
        assert_int_equal(number_of(tag, "parts", i), i ? 0 : -1);
        assert_int_equal(number_of(tag, "prefixes", i), i ? 0 : -1);
        assert_int_equal(number_of(tag, "lengths", i), i ? TEXT - SHARED_TEXT : cut);
        assert_int_equal(number_of(tag, "targets", i), i ? 3 : 0);
    }
    assert_int_equal(json_count(json_find(tag, "grids")), 3);
    json_free(&tag);
    tear_down(&all);
}

/* The picture of a prefix is wanted as long as one question is good, and a prefix is in no list. */
static void test_payload_lease__quarantined_branches(void **state)
{
    (void)state;
    scene all;
    bool fresh;
    set_up(&all);
    for (int64_t bad = 0; bad < SAMPLES; bad++) {
        assert_ok(bad_samples_add(&all.state.train.bad, bad, "why", &fresh));
        const json_value *docs = docs_of(&all);
        assert_int_equal(json_count(docs), 1 + SAMPLES);
        assert_int_equal(says(docs, 0, "bad"), bad == SAMPLES - 1);
        for (int64_t i = 0; i < SAMPLES; i++)
            assert_int_equal(says(docs, (size_t)i + 1, "bad"), i <= bad);
        json_value *list = NULL, *tag = tag_of(&all);
        for (int64_t i = 0; i < SAMPLES; i++)
            assert_int_equal(number_of(tag, "targets", (size_t)i + 1), i <= bad ? 0 : 3);
        const char *text = json_text(json_find(tag, "quarantine"), "");
        assert_ok(json_parse(text, strlen(text), "the list", &list));
        assert_int_equal(json_count(list), bad + 1);
        json_free(&list);
        json_free(&tag);
    }
    tear_down(&all);
}

/* Leases the row for its consumer; returns the bytes that are reserved for it. *out_tag is the size
 * of its tag. */
static int64_t reserved_for(scene *all, size_t *out_tag)
{
    consumer_seat *consumer = all->consumer;
    planned_row placed;
    lease *leased = NULL;
    consumer->next_row = 0;
    planning_turn(&all->state);
    assert_ok(consumer_produce(&all->state, consumer, &leased, &placed));
    assert_non_null(leased);
    const int64_t bytes = consumer->slots[consumer->first_slot].reserved;
    lease_free(&leased);
    consumer->credit += bytes;
    consumer->reserved = consumer->n_slots = 0;
    json_value *tag = tag_of(all);
    json_free(&tag);
    *out_tag = strlen(all->lease->tag);
    return bytes;
}

/* Causes may be long, and grow where they are escaped. */
static void test_payload_tag__its_list_is_reserved(void **state)
{
    (void)state;
    scene all;
    bool fresh;
    char cause[BAD_CAUSE_BYTES + 1];
    size_t before, after;
    set_up(&all);
    memset(cause, '"', BAD_CAUSE_BYTES);
    cause[BAD_CAUSE_BYTES] = 0;
    all.options.prepd_buffer_bytes = INT64_C(1) << 40;
    all.state.n_consumers = 1;
    all.consumer->welcomed = true;
    all.consumer->credit = INT64_C(1) << 40;
    const int64_t reserved = reserved_for(&all, &before);
    for (int64_t bad = 0; bad < SAMPLES; bad++) {
        assert_ok(bad_samples_add(&all.state.train.bad, bad, cause, &fresh));
        const int64_t more = reserved_for(&all, &after) - reserved;
        assert_true(after > before);
        assert_true(more >= (int64_t)(after - before));
        assert_true(more < (int64_t)(after - before) + 64);
    }
    tear_down(&all);
}

/* Loses the lease while `item` is in work until that item is tried alone. */
static void suspect(scene *all, int64_t item)
{
    int64_t poison;
    for (int k = 0; k < LEASE_MAX_LOSSES; k++) {
        lease_on(all->lease, item);
        assert_int_equal(lease_lost(&all->state.book, all->lease, LOSS_CRASH, &poison),
                         LEASE_AGAIN);
        assert_ptr_equal(lease_book_take(&all->state.book, true), all->lease);
    }
}

/* A question alone is that sample, whole and with its picture; a prefix alone is its first one. */
static void test_payload_lease__tried_alone(void **state)
{
    (void)state;
    static const int64_t suspects[] = {~INT64_C(0), 0, 1, 2};
    for (int i = 0; i < 4; i++) {
        scene all;
        set_up(&all);
        suspect(&all, suspects[i]);
        const json_value *docs = docs_of(&all);
        assert_int_equal(json_count(docs), 1);
        assert_int_equal(member_of(docs, 0, "id"), lease_sample(suspects[i]));
        assert_int_equal(member_of(docs, 0, "part"), 0);
        assert_int_equal(member_of(docs, 0, "tokens"), TEXT + 10 * 8);
        assert_int_equal(json_count(json_find(json_item(docs, 0), "grids")), 1);
        assert_int_equal(json_count(json_find(json_item(docs, 0), "turns")), 2);
        assert_null(json_find(json_item(docs, 0), "before"));
        assert_null(json_find(json_item(docs, 0), "prefix"));
        assert_int_equal(json_count(json_find(all.said, "files")), 1);
        tear_down(&all);
    }
}

/* The picture is looked at even if the question that stands for the prefix is quarantined. */
static void test_payload_lease__a_prefix_alone_whose_first_question_is_bad(void **state)
{
    (void)state;
    scene all;
    bool fresh;
    set_up(&all);
    assert_ok(bad_samples_add(&all.state.train.bad, 0, "why", &fresh));
    suspect(&all, ~INT64_C(0));
    assert_false(says(docs_of(&all), 0, "bad"));
    assert_ok(bad_samples_add(&all.state.train.bad, 1, "why", &fresh));
    assert_ok(bad_samples_add(&all.state.train.bad, 2, "why", &fresh));
    assert_true(says(docs_of(&all), 0, "bad"));
    tear_down(&all);
}

/* Samples that a mixture has in a row twice are tried once. */
static void test_payload_lease__what_is_twice_in_a_row_is_tried_once(void **state)
{
    (void)state;
    static const int64_t suspects[] = {~INT64_C(0), 0, 1, 2};
    for (int i = 0; i < 4; i++) {
        scene all;
        set_up_parts(&all, parts_of);
        assert_int_equal(json_count(docs_of(&all)), 3 + 3 + 1);
        suspect(&all, suspects[i]);
        const json_value *docs = docs_of(&all);
        assert_int_equal(json_count(docs), 1);
        assert_int_equal(member_of(docs, 0, "id"), lease_sample(suspects[i]));
        assert_false(says(docs, 0, "same"));
        tear_down(&all);
    }
}

/* A text that is compared with another one is tried alone only when that one is settled. */
static void test_index_build_waits__for_the_predecessor(void **state)
{
    (void)state;
    static const int64_t second = 1;
    const index_sample record = {TEXT, 3, NULL};
    scene all = {.adapter = vtable};
    source *train = &all.state.train;
    lease *leased;
    int64_t poison;
    all.data.adapter = &all.adapter;
    arena_init(&all.state.scratch, 1 << 20);
    lease_book_init(&all.state.book, 1);
    assert_ok(index_new(SAMPLES, 1, &train->index));
    assert_ok(predecessors_new(&all.data, &train->build.before));
    for (int64_t i = 0; i < 2; i++) {
        sample smp;
        assert_ok(make_sample(&all.data, i, &all.state.scratch, &smp));
        assert_ok(predecessors_add(train->build.before, i, &smp));
    }
    assert_int_equal(predecessors_back(train->build.before, 1), 1);
    assert_ok(lease_new(&all.state.book, LEASE_TEXTS, train, 0, &second, 1, &leased));
    assert_false(index_build_waits(leased)); /* a lease as a whole may go */
    for (int k = 0; k < LEASE_MAX_LOSSES; k++) {
        lease_on(leased, second);
        assert_int_equal(lease_lost(&all.state.book, leased, LOSS_CRASH, &poison), LEASE_AGAIN);
        assert_ptr_equal(lease_book_take(&all.state.book, true), leased);
    }
    assert_int_equal(lease_solo_item(leased), second);
    assert_true(index_build_waits(leased));
    assert_ok(index_put_sample(train->index, 0, &record));
    assert_false(index_build_waits(leased));
    lease_free(&leased);
    predecessors_free(&train->build.before);
    index_free(&train->index);
    arena_done(&all.state.scratch);
}

/* Where both are in one lease, the one that the other is compared with is tried first: whichever
 * was in work when workers died, the death could have been either's. */
static void test_index_build_order_trials__begins_with_the_predecessor(void **state)
{
    (void)state;
    static const int64_t both[] = {0, 1};
    scene all = {.adapter = vtable};
    source *train = &all.state.train;
    lease *leased;
    int64_t poison;
    all.data.adapter = &all.adapter;
    arena_init(&all.state.scratch, 1 << 20);
    lease_book_init(&all.state.book, 1);
    assert_ok(index_new(SAMPLES, 1, &train->index));
    assert_ok(predecessors_new(&all.data, &train->build.before));
    for (int64_t i = 0; i < 2; i++) {
        sample smp;
        assert_ok(make_sample(&all.data, i, &all.state.scratch, &smp));
        assert_ok(predecessors_add(train->build.before, i, &smp));
    }
    assert_ok(lease_new(&all.state.book, LEASE_TEXTS, train, 0, both, 2, &leased));
    for (int k = 0; k < LEASE_MAX_LOSSES; k++) {
        lease_on(leased, 1); /* which is in work, but may die of text 0 */
        assert_int_equal(lease_lost(&all.state.book, leased, LOSS_CRASH, &poison), LEASE_AGAIN);
        index_build_order_trials(leased);
        assert_ptr_equal(lease_book_take(&all.state.book, true), leased);
    }
    assert_int_equal(lease_solo_item(leased), 0);
    assert_int_equal(leased->n_untried, 2);
    const index_sample record = {TEXT, 3, NULL};
    assert_ok(index_put_sample(train->index, 0, &record));
    lease_solo_done(&all.state.book, leased);
    index_build_order_trials(leased);
    assert_int_equal(lease_solo_item(leased), 1);
    assert_ptr_equal(lease_book_take(&all.state.book, true), leased);
    lease_free(&leased);
    predecessors_free(&train->build.before);
    index_free(&train->index);
    arena_done(&all.state.scratch);
}

/* The first text is longer than a lease of texts may be. */
static status outline_long_first(const dataset *set, int64_t index, arena *memory, sample *out)
{
    TRY(make_sample(set, index, memory, out));
    out->text_bytes = index == 0 ? 4 << 20 : 10;
    return ST_OK;
}

/* A lease of texts is as long as the texts that are in it, those before them included: the second
 * text, which goes with the first one beside it, leaves no room for the third. */
static void test_index_build_produce__counts_the_predecessors(void **state)
{
    (void)state;
    const index_image picture = {1000, 1, 320, 256, NULL, 0, 0};
    scene all = {.adapter = vtable};
    source *train = &all.state.train;
    all.adapter.outline = outline_long_first;
    all.data.adapter = &all.adapter;
    arena_init(&all.state.scratch, 1 << 20);
    lease_book_init(&all.state.book, 1);
    train->data = &all.data;
    train->build = (index_build){.src = train, .active = true, .left = SAMPLES, .next_image = 1};
    assert_ok(index_new(SAMPLES, 1, &train->index));
    assert_ok(index_put_image(train->index, 0, &picture));
    assert_ok(predecessors_new(&all.data, &train->build.before));
    for (int64_t i = 0; i < SAMPLES; i++) {
        lease *leased;
        assert_ok(index_build_produce(&all.state, train, &leased));
        assert_int_equal(leased->n_items, 1);
        assert_int_equal(leased->item[0], i);
        assert_int_equal(predecessors_back(train->build.before, i), i > 0);
        lease_free(&leased);
    }
    predecessors_free(&train->build.before);
    index_free(&train->index);
    arena_done(&all.state.scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_payload_lease__a_prefix_and_its_branches),
        cmocka_unit_test(test_payload_lease__quarantined_branches),
        cmocka_unit_test(test_payload_tag__its_list_is_reserved),
        cmocka_unit_test(test_payload_lease__tried_alone),
        cmocka_unit_test(test_payload_lease__a_prefix_alone_whose_first_question_is_bad),
        cmocka_unit_test(test_payload_lease__what_is_twice_in_a_row_is_tried_once),
        cmocka_unit_test(test_index_build_waits__for_the_predecessor),
        cmocka_unit_test(test_index_build_order_trials__begins_with_the_predecessor),
        cmocka_unit_test(test_index_build_produce__counts_the_predecessors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
