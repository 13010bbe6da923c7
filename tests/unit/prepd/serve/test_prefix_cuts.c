/* Tests of data.group shared_prefix from texts to rows: random samples are tokenised, compared,
 * indexed and planned as prepd does it, and every prefix is held against the token ids of whole
 * samples, pads included. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "prepd/plan/plan.h"
#include "prepd/sample/beginning.h"
#include "prepd/serve/predecessors.h"
#include "proto/batch.h"
#include "tests/unit/prepd/conf_defaults.h"

enum {
    N = 500,
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
    made_sample s[N];
    tokenizer *tokens;
    tokenizer_scratch *scratch;
    chat_ids ids;
    conf c;
    arena a;
    data_index *index;
    rng_key key;
    uint64_t drawn;
} world;

static uint64_t draw_below(world *w, uint64_t below)
{
    return rng_below(w->key, w->drawn++, below);
}

/* --- the data set --- */

static int64_t set_samples(const dataset *d)
{
    (void)d;
    return N;
}

static int64_t set_images(const dataset *d)
{
    (void)d;
    return IMAGES;
}

static status set_sample(const dataset *d, int64_t i, arena *a, sample *out)
{
    (void)a;
    *out = ((const world *)d)->s[i].is;
    return ST_OK;
}

static const char *set_path(const dataset *d, int64_t j)
{
    (void)d;
    (void)j;
    return "picture.jpg";
}

static int64_t set_chunk(const dataset *d, int64_t i)
{
    (void)d;
    return i < FIRST_PART ? -1 : i / PIECE;
}

static int set_parts(const dataset *d, const dataset_part **out)
{
    static const dataset_part parts[] = {{"first", 0, FIRST_PART, 0},
                                         {"second", FIRST_PART, N - FIRST_PART, 0}};
    (void)d;
    *out = parts;
    return 2;
}

static hash128 set_identity(const dataset *d)
{
    (void)d;
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

static void add_text(world *w, made_sample *m, int t, int words, int kinds)
{
    static const char *const word[] = {"What", " is", " the", " color", " of", " a", " cat", " on"};
    turn *said = &m->turns[t];
    char *text = m->text[t][said->n_parts];
    text[0] = 0;
    for (int k = 0; k < words; k++)
        strcat(text, word[draw_below(w, (uint64_t)(k < 2 ? 1 : kinds))]);
    said->parts[said->n_parts++] = (part){text, (int64_t)strlen(text), -1};
}

static void open_turn(made_sample *m, int role, bool trained)
{
    const int t = m->is.n_turns++;
    m->turns[t] = (turn){.role = role, .trained = trained, .parts = m->parts[t]};
}

static void show_image(made_sample *m, int32_t image)
{
    turn *said = &m->turns[m->is.n_turns - 1];
    m->images[m->is.n_images] = image;
    said->parts[said->n_parts++] = (part){.image = m->is.n_images++};
}

static void make_pictures(world *w, made_sample *m)
{
    const bool two = draw_below(w, 4) == 0, late = draw_below(w, 5) == 0;
    const int32_t image = (int32_t)draw_below(w, late ? 3 : IMAGES);
    open_turn(m, ROLE_USER, false);
    if (!late && draw_below(w, 3) == 0)
        add_text(w, m, 0, 3, 1);
    if (!late)
        show_image(m, image);
    if (two && !late)
        show_image(m, (image + 1) % IMAGES);
    add_text(w, m, 0, late ? 2 : 2 + (int)draw_below(w, 6), 2);
    open_turn(m, ROLE_ASSISTANT, draw_below(w, 8) != 0);
    add_text(w, m, 1, 2, 1);
    if (!late)
        m->turns[1].trained = true;
    if (!late)
        return;
    open_turn(m, ROLE_USER, false);
    show_image(m, image);
    add_text(w, m, 2, 3, 2);
    open_turn(m, ROLE_ASSISTANT, true);
    add_text(w, m, 3, 2, 4);
}

static void make_sample(world *w, int64_t i)
{
    made_sample *m = &w->s[i];
    const uint64_t kind = draw_below(w, 16);
    m->is = (sample){.id = (uint64_t)i, .name = "made", .turns = m->turns, .images = m->images};
    if (kind == 0) {
        m->is.cause = "bad on purpose";
    } else if (kind == 1) {
        m->is.plain = true;
        open_turn(m, ROLE_USER, false);
        add_text(w, m, 0, 30, 8);
    } else if (kind < 7) {
        open_turn(m, ROLE_USER, false);
        add_text(w, m, 0, 15 + (int)draw_below(w, 12), draw_below(w, 3) ? 1 : 3);
        open_turn(m, ROLE_ASSISTANT, true);
        add_text(w, m, 1, 3, 8);
    } else {
        make_pictures(w, m);
    }
    if (draw_below(w, 25) == 0 && m->is.n_turns > 1) /* longer than a row */
        for (int k = 0; k < 3; k++)
            add_text(w, m, m->is.n_turns - 1, 90, 8);
    m->unreadable = draw_below(w, 25) == 0;
}

/* --- what prepd makes of them --- */

static bool is_clip(int32_t image)
{
    return image >= IMAGES - CLIPS;
}

/* pads: with those of a row; the tokens of a picture and of a pair of frames are equal here. */
static void encode_sample(world *w, const made_sample *m, int64_t pads, chat_text *out)
{
    static const double seconds[PAIRS] = {0.25, 0.75};
    chat_visual visuals[2];
    for (int32_t k = 0; k < m->is.n_images; k++)
        visuals[k] = (chat_visual){pads, seconds, is_clip(m->images[k]) ? PAIRS : 0};
    assert_ok(chat_encode(w->tokens, w->scratch, &w->ids, &w->c, &m->is, visuals, &w->a, out));
}

static void build_index(world *w)
{
    predecessors *before;
    chat_text text[N];
    assert_ok(index_new(N, IMAGES, &w->index));
    assert_ok(index_take_beginnings(w->index));
    assert_ok(predecessors_new(&w->base, &before));
    for (int32_t j = 0; j < IMAGES; j++) {
        const index_image im = {1000, 1, SIDE, SIDE, NULL, is_clip(j) ? 2 * PAIRS : 0, 2};
        assert_ok(index_put_image(w->index, j, &im));
    }
    for (int64_t i = 0; i < N; i++) {
        const made_sample *m = &w->s[i];
        index_sample record = {.cause = m->is.cause ? m->is.cause : "no text"};
        index_beginning begins = {0};
        if (!m->is.cause)
            assert_ok(predecessors_add(before, i, &m->is));
        if (!m->is.cause)
            encode_sample(w, m, 0, &text[i]);
        if (!m->is.cause && !m->unreadable) {
            const int64_t back = predecessors_back(before, i);
            const bool there = back > 0 && !w->s[i - back].unreadable;
            const text_beginning is =
                text_compare_beginning(&text[i], there ? &text[i - back] : NULL);
            record = (index_sample){(int32_t)text[i].count, (int32_t)text[i].n_targets, NULL};
            begins = (index_beginning){back, (int32_t)is.agrees, (int32_t)is.head,
                                       (int32_t)is.first_label};
        }
        assert_ok(index_put_sample(w->index, i, &record));
        assert_ok(index_put_beginning(w->index, i, &begins));
    }
    assert_ok(index_seal(w->index));
    predecessors_free(&before);
}

/* --- what is expected, from the ids of whole samples alone --- */

static void encode_whole(world *w, made_sample *m)
{
    chat_text text;
    int64_t run = 0, pads = (SIDE / 32) * (SIDE / 32);
    encode_sample(w, m, pads, &text);
    m->ids = text.ids;
    m->count = text.count;
    for (m->label = 0; text.labels[m->label] == NO_LABEL;)
        m->label++;
    for (int32_t k = 0; k < m->is.n_images; k++)
        for (int pair = 0; pair < (is_clip(m->images[k]) ? PAIRS : 1); pair++, run++)
            for (int64_t j = 0; j < pads; j++) {
                m->ids[text.run_at[run] + j] = -1 - m->images[k];
                m->shown = text.run_at[run] + j + 1;
            }
}

static int64_t count_common(const made_sample *one, const made_sample *other)
{
    int64_t n = 0;
    while (n < one->count && n < other->count && one->ids[n] == other->ids[n])
        n++;
    return n;
}

static bool same_place(int64_t i, int64_t j)
{
    return (i < FIRST_PART) == (j < FIRST_PART) && set_chunk(NULL, i) == set_chunk(NULL, j);
}

static bool begin_alike(const made_sample *one, const made_sample *other)
{
    return one->is.n_images == other->is.n_images && one->shown == other->shown &&
           count_common(one, other) >= one->shown &&
           memcmp(one->images, other->images, sizeof *one->images * (size_t)one->is.n_images) == 0;
}

/* The longest beginning of all of list [n], before the token that precedes the lowest label of
 * those that are in the stream. */
static int64_t longest_cut(const world *w, const int64_t *list, int n)
{
    int64_t cut = INT64_MAX;
    for (int k = 0; k < n; k++) {
        const made_sample *m = &w->s[list[k]];
        if (k > 0 && count_common(&w->s[list[0]], m) < cut)
            cut = count_common(&w->s[list[0]], m);
        if (m->in_stream && m->label - 1 < cut)
            cut = m->label - 1;
    }
    return cut;
}

/* Notes what is expected of the members that are in the stream. */
static void expect_group(world *w, const int64_t *list, int n)
{
    const int64_t cut = longest_cut(w, list, n);
    const bool shares = w->s[list[0]].is.n_images == 0 || cut >= w->s[list[0]].shown;
    int64_t tokens = shares ? cut : 0, members = 0;
    for (int k = 0; k < n; k++) {
        members += w->s[list[k]].in_stream;
        tokens += w->s[list[k]].in_stream ? w->s[list[k]].count - (shares ? cut : 0) : 0;
    }
    for (int k = 0; k < n && members > 1; k++) {
        made_sample *m = &w->s[list[k]];
        m->group = list[0];
        m->prefix = shares ? cut : 0;
        m->may_split = tokens > ROW / 2;
        m->may_share = !shares;
    }
}

static void expect_pictures(world *w)
{
    static bool done[N];
    memset(done, 0, sizeof done);
    for (int64_t i = 0; i < N; i++) {
        int64_t list[N];
        int n = 0, most = 0;
        if (!w->s[i].in_stream || done[i] || w->s[i].is.n_images == 0)
            continue;
        for (int64_t j = i; j < N; j++) {
            const made_sample *m = &w->s[j];
            if (m->is.cause || !same_place(i, j) || !begin_alike(&w->s[i], m))
                continue;
            if (m->unreadable) /* it ends a chain */
                break;
            list[n++] = j;
            done[j] = true;
            most = m->in_stream ? n : most; /* refused ones at the end do not count */
        }
        expect_group(w, list, most);
    }
}

/* Texts: neighbours, each of which joins unless it lowers what is saved. */
static void expect_texts(world *w)
{
    int64_t list[N], saved = 0;
    int n = 0, members = 0, most = 0;
    for (int64_t i = 0; i <= N; i++) {
        const made_sample *m = i < N ? &w->s[i] : NULL;
        const bool text = m && !m->is.cause && m->is.n_images == 0 && !m->is.plain &&
                          !m->unreadable && (n == 0 || same_place(list[0], i));
        if (text && !m->in_stream) {
            if (members)
                list[n++] = i;
            continue;
        }
        if (m && m->is.cause)
            continue; /* as if it were not there */
        if (text && members > 0 && members < w->c.data_prefix_branches) {
            list[n] = i;
            const int64_t cut = longest_cut(w, list, n + 1);
            if (cut >= w->c.data_prefix_min_tokens && members * cut >= saved) {
                saved = members++ * cut;
                most = ++n;
                continue;
            }
        }
        if (members > 1)
            expect_group(w, list, most);
        n = members = 0;
        saved = 0;
        if (m && m->in_stream && m->is.n_images == 0 && !m->is.plain) {
            list[n++] = i;
            members = most = 1;
        }
    }
}

static void expect_all(world *w, const plan *p)
{
    for (int64_t i = 0; i < N; i++) {
        made_sample *m = &w->s[i];
        m->group = i;
        m->in_stream = !plan_cause(p, i);
        if (!m->is.cause)
            encode_whole(w, m);
        assert_true(m->in_stream || m->is.cause || m->unreadable || m->count > ROW);
    }
    expect_pictures(w);
    expect_texts(w);
}

/* --- the rows --- */

static void check_branch(const world *w, const planned_doc *prefix, const planned_doc *doc)
{
    const made_sample *m = &w->s[doc->sample];
    assert_int_equal(doc->before, prefix->tokens);
    assert_int_equal(doc->from, prefix->tokens);
    assert_int_equal(doc->tokens, m->count - prefix->tokens);
    assert_int_equal(doc->n_images + doc->patches + doc->frames + doc->prefix, 0);
    assert_int_equal(m->group, w->s[prefix->sample].group);
    assert_int_equal(m->prefix, prefix->tokens);
    for (int64_t k = 0; k < prefix->tokens; k++)
        assert_int_equal(m->ids[k], w->s[prefix->sample].ids[k]);
}

/* A sample has no prefix if it shares none, or is what remains of a group that was split. Two that
 * share only a picture are side by side unless their unit was split. */
static void check_ordinary(const world *w, const planned_doc *doc, const planned_doc *last)
{
    const made_sample *m = &w->s[doc->sample];
    assert_int_equal(doc->before, 0);
    assert_int_equal(doc->tokens, m->is.plain ? doc->tokens : m->count);
    assert_true(m->prefix == 0 || m->may_split);
    assert_true(!doc->shared || (m->may_share && w->s[last->sample].group == m->group));
    if (m->may_share && !m->may_split && doc->sample != m->group)
        assert_true(doc->shared || !w->s[m->group].in_stream);
}

static void check_row(const world *w, const planned_row *r, const shape_bucket *last, int *seen)
{
    const planned_doc *prefix = NULL;
    int32_t branches = 0;
    int64_t tokens = 0, patches = 0;
    for (int64_t d = 0; d < r->n_docs; d++) {
        const planned_doc *doc = &r->docs[d];
        tokens += doc->tokens;
        patches += doc->shared ? 0 : doc->patches;
        assert_true(doc->tokens + doc->before <= last->longest);
        if (doc->part < 0) {
            assert_int_equal(branches, 0);
            prefix = doc;
            branches = doc->prefix;
            assert_true(branches >= 2 && d + branches < r->n_docs);
            assert_int_equal(doc->targets, 0);
            assert_int_equal(doc->n_images, w->s[doc->sample].is.n_images);
            assert_int_equal(doc->sample, r->docs[d + 1].sample);
            continue;
        }
        seen[doc->sample]++;
        if (branches > 0) {
            branches--;
            check_branch(w, prefix, doc);
            continue;
        }
        check_ordinary(w, doc, d > 0 ? &r->docs[d - 1] : NULL);
    }
    assert_int_equal(branches, 0);
    assert_int_equal(tokens, r->tokens);
    assert_int_equal(patches, r->patches);
    assert_true(tokens <= ROW && patches <= 4 * ROW && r->n_docs <= last->documents);
}

static void check_rows(world *w, plan *p, int64_t *inout_branches, int64_t *inout_shared)
{
    static int seen[N];
    int n_buckets;
    const shape_bucket *buckets = plan_buckets(p, &n_buckets);
    memset(seen, 0, sizeof seen);
    for (uint64_t k = 0; k < plan_epoch_rows(p); k++) {
        planned_row r;
        const arena_mark mark = arena_save(&w->a);
        assert_ok(plan_row(p, NULL, k, &w->a, &r));
        check_row(w, &r, &buckets[n_buckets - 1], seen);
        for (int64_t d = 0; d < r.n_docs; d++) {
            *inout_branches += r.docs[d].before > 0;
            *inout_shared += r.docs[d].shared;
        }
        arena_release(&w->a, mark);
    }
    for (int64_t i = 0; i < N; i++)
        assert_int_equal(seen[i], w->s[i].in_stream);
}

static world *open_world(uint64_t round)
{
    world *w = calloc(1, sizeof *w);
    const char *source = getenv("TESSERA_SOURCE");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/tokenizer/pairs", source ? source : ".");
    assert_non_null(w);
    w->base.adapter = &made_vtable;
    assert_ok(tokenizer_load(path, &w->tokens));
    assert_ok(tokenizer_scratch_new(w->tokens, &w->scratch));
    assert_ok(chat_ids_find(w->tokens, &w->ids));
    arena_init(&w->a, 0);
    w->key = rng_key_make(harness_seed() + round, "prefix cuts");
    w->c = conf_defaults();
    w->c.training_seq_len = ROW;
    w->c.training_epochs = 1;
    w->c.data_group = GROUP_SHARED_PREFIX;
    w->c.data_prefix_branches = 5;
    w->c.data_prefix_min_tokens = 20;
    w->c.data_system = "";
    w->c.image_min_pixels = 1024;
    w->c.image_max_pixels = 16777216;
    w->c.video_min_pixels = 1024;
    for (int64_t i = 0; i < N; i++)
        make_sample(w, i);
    build_index(w);
    return w;
}

static void close_world(world *w)
{
    index_free(&w->index);
    tokenizer_scratch_free(&w->scratch);
    tokenizer_free(&w->tokens);
    arena_done(&w->a);
    free(w);
}

static void test_cuts__are_those_of_the_ids(void **state)
{
    (void)state;
    int64_t branches = 0, shared = 0;
    for (uint64_t round = 0; round < 6; round++) {
        world *w = open_world(round);
        plan *p;
        assert_ok(plan_new(&w->c, &w->base, w->index, PLAN_PACKED, &p));
        expect_all(w, p);
        check_rows(w, p, &branches, &shared);
        plan_free(&p);
        close_world(w);
    }
    assert_true(branches > 500 && shared > 5); /* the random samples do share */
}

static void test_samples__never_share(void **state)
{
    (void)state;
    world *w = open_world(99);
    plan *p;
    assert_ok(plan_new(&w->c, &w->base, w->index, PLAN_SAMPLES, &p));
    for (uint64_t k = 0; k < N; k++) {
        planned_row r;
        assert_ok(plan_row(p, NULL, k, &w->a, &r));
        assert_true(r.n_docs <= 1);
        if (r.n_docs)
            assert_int_equal(r.docs[0].prefix + r.docs[0].before, 0);
    }
    plan_free(&p);
    close_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts__are_those_of_the_ids),
        cmocka_unit_test(test_samples__never_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
