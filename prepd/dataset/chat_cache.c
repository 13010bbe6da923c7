/* chat_cache.c: the tables of conversations.h, kept with the restart points of their files. What
 * lies in folders of frames is looked at at every start, kept or not. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/program/log.h"
#include "prepd/dataset/conversations.h"
#include "prepd/dataset/kept.h"

enum {
    VERSION = 1,        /* also of what is taken for a record */
    RECORD_NUMBERS = 4, /* offset, line, bytes and file, images; refused: less than 0, its cause */
    FILE_BITS = 32,
};

/* False where there is to be no cache. */
static bool name_cache(const conversations *d, const conf *c, kept_name *out)
{
    hasher *h;
    if (!kept_name_begin(c, VERSION, &h))
        return false;
    hasher_add_text(h, d->root);
    hasher_add_text(h, c->data_stage_weights);
    hasher_add_u64(h, (uint64_t)c->data_loss_on);
    hasher_add_u64(h, c->data_trim);
    hasher_add_u64(h, (uint64_t)c->video_input_frames);
    return kept_name_end(c, "chats", d->files, &h, out);
}

/* --- what is kept, as arrays --- */

typedef struct kept_chats {
    int64_t *records; /* [RECORD_NUMBERS * n] */
    int64_t *rates;   /* [images] a double's bits: frames a second of a clip; -1 bits: no clip */
    kept_points points;
} kept_chats;

static const double NO_CLIP = -1;

static status gather_records(const conversations *d, kept_chats *k)
{
    k->records = malloc(((size_t)d->n * RECORD_NUMBERS + 1) * sizeof *k->records);
    k->rates = malloc(((size_t)d->images.n + 1) * sizeof *k->rates);
    if (!k->records || !k->rates)
        return FAIL(ST_NO_MEMORY, "no memory for the places of %" PRId64 " records", d->n);
    for (int64_t i = 0; i < d->n; i++) {
        const conversation *x = &d->all[i];
        int64_t *to = k->records + i * RECORD_NUMBERS;
        to[0] = x->at.offset;
        to[1] = x->at.line;
        to[2] = (int64_t)x->at.file << FILE_BITS | (uint32_t)x->at.bytes;
        to[3] = x->cause ? -x->cause : x->n_images;
    }
    for (int64_t j = 0; j < d->images.n; j++) {
        const clip_entry *e = &d->clips.of[j];
        const double rate = e->kind == ENTRY_IMAGE ? NO_CLIP : e->fps;
        memcpy(&k->rates[j], &rate, sizeof rate);
    }
    return kept_points_of(d->files, &k->points);
}

static status save_chats(const conversations *d, const kept_name *name)
{
    kept_chats k = {0};
    char identity[HASH_TEXT];
    const int64_t contents = records_count(d->files) * (int64_t)sizeof *d->contents;
    status st = gather_records(d, &k);
    hash_print(d->identity, identity);
    const st_meta words[] = {{"identity", identity}};
    if (st == ST_OK) {
        const st_tensor tensors[] = {
            k.points.tensors[0],
            k.points.tensors[1],
            kept_column("records", DT_I64, d->n * RECORD_NUMBERS, k.records),
            kept_column("name_at", DT_I64, d->images.n, d->images.at),
            kept_column("rates", DT_I64, d->images.n, k.rates),
            kept_column("shown", DT_I32, d->n_shown, d->shown),
            kept_column("names", DT_U8, (int64_t)d->images.texts.size, d->images.texts.bytes),
            kept_column("causes", DT_U8, (int64_t)d->causes.size, d->causes.bytes),
            kept_column("contents", DT_U8, contents, d->contents),
            k.points.tensors[2],
        };
        st = kept_save(name, tensors, sizeof tensors / sizeof *tensors, words,
                       sizeof words / sizeof *words);
    }
    kept_points_done(&k.points);
    free(k.records);
    free(k.rates);
    return st;
}

void chat_cache_save(const conversations *d, const conf *c)
{
    kept_name name;
    if (d->clip_refused || records_unpacked(d->files) < KEPT_WORTH_BYTES)
        return;
    if (name_cache(d, c, &name) && save_chats(d, &name) != ST_OK)
        log_info("places of records are not kept for the next start: %s", status_text());
}

/* --- and back --- */

static status unfit(const char *path)
{
    return FAIL_IN(ST_BAD_INPUT, path, "its entries do not fit each other");
}

/* A column's bytes, copied, with room for one more. */
static status read_column(const st_file *f, const char *path, const char *name, st_dtype dtype,
                          void **out, int64_t *out_n)
{
    const st_tensor *t;
    TRY(st_want(f, name, dtype, 1, path, &t));
    *out = malloc(t->data.size + st_dtype_size(dtype));
    if (!*out)
        return FAIL(ST_NO_MEMORY, "no memory for %zu bytes of %s", t->data.size, name);
    if (t->data.size)
        memcpy(*out, t->data.data, t->data.size);
    *out_n = t->shape[0];
    return ST_OK;
}

/* Terminated texts, or none. */
static status take_texts(const st_file *f, const char *path, const char *name, text_pool *out)
{
    int64_t n;
    TRY(read_column(f, path, name, DT_U8, (void **)&out->bytes, &n));
    out->size = out->capacity = (size_t)n;
    return n && (out->bytes[0] != 0 || out->bytes[n - 1] != 0) ? unfit(path) : ST_OK;
}

/* Names and what kind of image each is: a folder of frames is listed again. */
static status take_images(conversations *d, const st_file *f, const char *path)
{
    const uint8_t *rates;
    int64_t n_rates;
    TRY(take_texts(f, path, "names", &d->images.texts));
    TRY(read_column(f, path, "name_at", DT_I64, (void **)&d->images.at, &d->images.n));
    d->images.capacity = d->images.n;
    TRY(kept_words(f, path, "rates", 1, d->images.n, &rates, &n_rates));
    if (d->images.n > INT32_MAX)
        return unfit(path);
    for (int64_t j = 0; j < d->images.n; j++) {
        const int64_t at = d->images.at[j], bits = kept_number(rates, j);
        chat_item item;
        if (at < 1 || (size_t)at >= d->images.texts.size)
            return unfit(path);
        item.name = text_pool_at(&d->images.texts, at);
        memcpy(&item.fps, &bits, sizeof item.fps);
        item.video = !(item.fps < 0);
        if (!item.video)
            item.fps = 0;
        if (!path_stays_inside(item.name))
            return unfit(path);
        TRY(clip_table_note(&d->clips, j, d->root, item.name, &item, path));
    }
    return ST_OK;
}

static bool is_sound(const conversations *d, const conversation *x)
{
    if (!kept_place_is_sound(d->files, &x->at) || x->cause < 0 || x->n_images < 0)
        return false;
    return (x->cause == 0 || (size_t)x->cause < d->causes.size) &&
           x->first_image + x->n_images <= d->n_shown;
}

static status take_records(conversations *d, const st_file *f, const char *path)
{
    const uint8_t *words;
    int64_t n, first = 0;
    TRY(take_texts(f, path, "causes", &d->causes));
    TRY(read_column(f, path, "shown", DT_I32, (void **)&d->shown, &d->n_shown));
    d->shown_capacity = d->n_shown;
    for (int64_t i = 0; i < d->n_shown; i++)
        if (d->shown[i] < 0 || d->shown[i] >= d->images.n)
            return unfit(path);
    TRY(kept_words(f, path, "records", RECORD_NUMBERS, -1, &words, &n));
    d->all = malloc(((size_t)n + 1) * sizeof *d->all);
    if (!d->all)
        return FAIL(ST_NO_MEMORY, "no memory for the places of %" PRId64 " records", n);
    d->n = d->capacity = n;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = i * RECORD_NUMBERS, which = kept_number(words, at + 2);
        const int64_t images = kept_number(words, at + 3);
        if (images > d->n_shown || images == INT64_MIN)
            return unfit(path);
        d->all[i] = (conversation){.at = {.offset = kept_number(words, at),
                                          .line = kept_number(words, at + 1),
                                          .bytes = (int32_t)(uint32_t)which,
                                          .file = (int32_t)(which >> FILE_BITS)},
                                   .n_images = images < 0 ? 0 : (int32_t)images,
                                   .first_image = first,
                                   .cause = images < 0 ? -images : 0};
        if (!is_sound(d, &d->all[i]))
            return unfit(path);
        first += d->all[i].n_images;
    }
    return n > 0 && first == d->n_shown ? ST_OK : unfit(path);
}

status chat_cache_take(conversations *d, const st_file *f, const char *path)
{
    int64_t n;
    TRY(read_column(f, path, "contents", DT_U8, (void **)&d->contents, &n));
    if (n != records_count(d->files) * (int64_t)sizeof *d->contents)
        return unfit(path);
    TRY(kept_points_take(d->files, f, path));
    TRY(take_images(d, f, path));
    return take_records(d, f, path);
}

static status take_all(conversations *d, const conf *c, const st_file *f, const char *path)
{
    const char *identity = st_meta_find(f, "identity");
    hash128 wanted;
    if (!identity || !hash_parse(identity, &wanted))
        return FAIL_IN(ST_BAD_INPUT, path, "it names no identity");
    TRY(chat_cache_take(d, f, path));
    TRY(conversations_identify(d, c));
    return hash_equal(d->identity, wanted)
               ? ST_OK
               : FAIL_IN(ST_NO_INPUT, path, "folders of frames have changed since it was written");
}

/* What a failed load has left. */
static void forget_records(conversations *d)
{
    kept_points_forget(d->files);
    free(d->all);
    free(d->shown);
    free(d->contents);
    d->all = NULL;
    d->shown = NULL;
    d->contents = NULL;
    d->n = d->capacity = d->n_shown = d->shown_capacity = 0;
    const int64_t most = d->clips.max_frames;
    name_list_done(&d->images);
    clip_table_done(&d->clips);
    d->clips.max_frames = most;
    text_pool_done(&d->causes);
}

void chat_cache_enter(const conversations *d, const conf *c, cache_lock *out)
{
    kept_name name;
    if (records_bytes(d->files) >= KEPT_WORTH_PACKED && name_cache(d, c, &name))
        kept_enter(&name, out);
}

bool chat_cache_load(conversations *d, const conf *c)
{
    kept_name name;
    st_file f;
    if (!name_cache(d, c, &name) || access(name.path, R_OK) != 0)
        return false;
    status st = kept_open(&name, &f);
    if (st == ST_OK) {
        st = take_all(d, c, &f, name.path);
        st_close(&f);
    }
    if (st == ST_OK) {
        records_adopted(d->files);
        log_info("places of records are those of the last start file=%s", name.path);
        return true;
    }
    log_info("records are read again: %s", status_text());
    forget_records(d);
    return false;
}
