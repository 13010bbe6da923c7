/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_lease.c: any JSON as the work that a worker is given, followed by a part of bytes. Samples,
 * clips and files must be refused, or lie within their limits and below the data root. Work without
 * files is done: texts and what they begin with, and rows of texts, of which several may go on from
 * one prefix. A row that is made must be one that receivers accept, and is compared with itself and
 * with the part.
 *
 * An input is a u16 size, that many bytes of JSON {"docs":[..],"files":[..]} or {"samples":[..]},
 * and then the bytes of the part. */
#include <limits.h>
#include <string.h>

#include "prepd/worker/clips.h"
#include "prepd/worker/worker.h"
#include "prepd/worker/row_compare.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/prepd/conf_defaults.h"

enum { MAX_BYTES = 1 << 16, PARTS_BEFORE = 2 };
static const char ROOT[] = "/nowhere";

static void read_doc(const json_value *value, arena *memory)
{
    const int32_t count = (int32_t)json_count(json_find(value, "grids"));
    lease_clip *clips;
    sample smp;
    if (clips_read(json_find(value, "clips"), count, memory, &clips) == ST_OK)
        for (int32_t k = 0; k < count; k++) {
            chat_visual visual;
            FUZZ_HOLDS(clips_visual(&clips[k], 4, memory, &visual) == ST_OK);
        }
    if (lease_read_sample(value, count, memory, &smp) != ST_OK)
        return;
    for (int32_t place = 0; place < smp.n_turns; place++)
        for (int32_t piece = 0; piece < smp.turns[place].n_parts; piece++) {
            const part *todo = &smp.turns[place].parts[piece];
            FUZZ_HOLDS(todo->text ? strlen(todo->text) <= (size_t)todo->text_bytes
                                  : todo->image >= 0 && todo->image < count);
        }
}

static void read_file(const json_value *value, const wire_msg *message, arena *memory)
{
    char full[PATH_MAX];
    file_ref ref, one;
    file_view view = {0};
    video_bytes video;
    int64_t mtime_ns;
    span bytes;
    if (ref_read(value, message, &ref) != ST_OK)
        return;
    for (int64_t k = 0; ref.frames && k <= (int64_t)json_count(ref.frames); k++)
        if (ref_frame(&ref, k, full, sizeof full, &one) == ST_OK && one.shipped &&
            ref_load(&one, ROOT, MAX_BYTES, memory, &bytes) == ST_OK)
            FUZZ_HOLDS(bytes.size <= MAX_BYTES);
    if (file_resolve(ROOT, ref.in, full, sizeof full) == ST_OK)
        FUZZ_HOLDS(strncmp(full, ROOT, strlen(ROOT)) == 0 && !strstr(full, "/../"));
    if (!ref.shipped) /* a file of this machine, which is not read here */
        return;
    if (ref_view(&ref, ROOT, MAX_BYTES, memory, &view) == ST_OK)
        FUZZ_HOLDS(view.bytes.size <= MAX_BYTES);
    ref_unview(&ref, &view);
    if (ref_start(&ref, ROOT, MAX_BYTES, 16, memory, &view) == ST_OK)
        FUZZ_HOLDS(view.bytes.size <= MAX_BYTES);
    if (ref_load(&ref, ROOT, MAX_BYTES, memory, &bytes) == ST_OK)
        FUZZ_HOLDS(bytes.size <= MAX_BYTES);
    if (ref_open(&ref, ROOT, MAX_BYTES, &video, &mtime_ns) == ST_OK)
        ref_close(&video);
}

static void read_lease(const json_value *value, const wire_msg *message)
{
    const json_value *docs = json_find(value, "docs"), *files = json_find(value, "files");
    arena memory;
    arena_init(&memory, 1 << 26);
    for (size_t i = 0; i < json_count(docs); i++)
        read_doc(json_item(docs, i), &memory);
    for (size_t i = 0; i < json_count(files); i++)
        read_file(json_item(files, i), message, &memory);
    arena_done(&memory);
}

/* --- work that needs no files --- */

static workshop *open_shop(void)
{
    static const worker_options options = {.data_root = ROOT};
    static workshop shop;
    const char *source = getenv("TESSERA_SOURCE");
    char folder[PATH_MAX];
    if (shop.options)
        return &shop; /* made once, and reachable until the end */
    shop = (workshop){.options = &options, .train = conf_defaults(), .eval = conf_defaults()};
    snprintf(folder, sizeof folder, "%s/tests/golden/tokenizer/pairs", source ? source : ".");
    FUZZ_HOLDS(tokenizer_load(folder, &shop.tokens) == ST_OK);
    FUZZ_HOLDS(tokenizer_scratch_new(shop.tokens, &shop.token_scratch) == ST_OK);
    FUZZ_HOLDS(chat_ids_find(shop.tokens, &shop.chat) == ST_OK);
    FUZZ_HOLDS(codec_new(&shop.packer) == ST_OK && wire_msg_new(&shop.items_made) == ST_OK);
    arena_init(&shop.row, 1 << 26);
    arena_init(&shop.sample, 1 << 26);
    return &shop;
}

static status pass_item(void *user, int64_t item)
{
    (void)user, (void)item;
    return ST_OK;
}

static bool shows_pictures(const json_value *docs)
{
    for (size_t i = 0; i < json_count(docs); i++)
        if (json_count(json_find(json_item(docs, i), "grids")))
            return true;
    return false;
}

/* A text has something in common with another one at most as far as it goes. */
static void check_record(const json_value *record, bool begins)
{
    const int64_t tokens = json_int(json_find(record, "tokens"), -1),
                  agrees = json_int(json_find(record, "agrees"), -1),
                  head = json_int(json_find(record, "head"), -1);
    if (json_find(record, "cause"))
        return;
    FUZZ_HOLDS(tokens > 0 && json_int(json_find(record, "targets"), -1) <= tokens);
    FUZZ_HOLDS(begins == (agrees >= 0) && begins == (head >= 0) && agrees <= tokens &&
               head <= tokens);
}

static void make_texts(workshop *shop, const json_value *lease)
{
    const json_value *samples = json_find(lease, "samples"), *records;
    const bool begins = json_bool(json_find(lease, "begins"), false);
    json_value *value = NULL;
    char *text = NULL;
    if (make_records(shop, lease, pass_item, NULL, &text) != ST_OK)
        return;
    FUZZ_HOLDS(json_parse(text, strlen(text), "records", &value) == ST_OK);
    records = json_find(value, "records");
    FUZZ_HOLDS(json_count(records) == json_count(samples));
    for (size_t i = 0; i < json_count(records); i++)
        check_record(json_item(records, i), begins);
    json_free(&value);
    free(text);
}

/* A row is the same as itself, and no row is the same as parts that hold none. */
static void compare_made(workshop *shop, const json_value *lease, const wire_msg *made,
                         const wire_msg *message, arena *memory)
{
    const compared_rows itself = {.n_parts = {wire_msg_parts(made)}, .count = 1};
    compared_rows rows;
    bool same;
    FUZZ_HOLDS(row_compare(shop->packer, &shop->made, made, made, &itself, 0, memory, &same) ==
                   ST_OK &&
               same);
    if (row_compare_read(lease, message, &rows) != ST_OK)
        return;
    for (int i = 0; i < rows.count; i++)
        FUZZ_HOLDS(row_compare(shop->packer, &shop->made, made, message, &rows, i, memory, &same) ==
                       ST_OK &&
                   !same);
}

static void make_texts_row(workshop *shop, const json_value *lease, const wire_msg *message)
{
    wire_msg *made = NULL;
    char *failed = NULL;
    arena memory;
    row packed;
    arena_init(&memory, 1 << 26);
    FUZZ_HOLDS(wire_msg_new(&made) == ST_OK);
    if (make_row(shop, lease, pass_item, NULL, made, &failed) == ST_OK) {
        FUZZ_HOLDS(!failed); /* only a picture can fail a sample */
        FUZZ_HOLDS(codec_decode(shop->packer, made, "fuzz", &memory, &packed, NULL) == ST_OK);
        compare_made(shop, lease, made, message, &memory);
    }
    wire_msg_free(&made);
    arena_done(&memory);
}

static void do_lease(const json_value *value, const wire_msg *message)
{
    const char *kind = json_text(json_find(value, "kind"), "");
    const json_value *files = json_find(value, "files"), *docs = json_find(value, "docs");
    if (strcmp(kind, "texts") == 0)
        make_texts(open_shop(), value);
    else if (strcmp(kind, "row") == 0 && json_count(files) == 0 && !shows_pictures(docs))
        make_texts_row(open_shop(), value, message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_value *value = NULL;
    wire_msg *message = NULL;
    if (size < 2)
        return 0;
    size_t text = (size_t)(data[0] | data[1] << 8);
    if (text > size - 2)
        text = size - 2;
    if (json_parse((const char *)data + 2, text, "fuzz", &value) != ST_OK)
        return 0;
    FUZZ_HOLDS(wire_msg_new(&message) == ST_OK);
    for (int i = 0; i < PARTS_BEFORE; i++)
        FUZZ_HOLDS(wire_msg_add(message, "", 0) == ST_OK);
    FUZZ_HOLDS(wire_msg_add(message, data + 2 + text, size - 2 - text) == ST_OK);
    read_lease(value, message);
    do_lease(value, message);
    wire_msg_free(&message);
    json_free(&value);
    return 0;
}
