/* fuzz_lease.c: any JSON as the work that a worker is given, followed by a part of bytes. Samples,
 * clips and files must be refused, or lie within their limits and below the data root.
 *
 * An input is a u16 size, that many bytes of JSON {"docs":[..],"files":[..]}, and then the bytes of
 * the part. */
#include <limits.h>
#include <string.h>

#include "prepd/worker/clips.h"
#include "prepd/worker/lease_read.h"
#include "tests/fuzz/fuzz.h"

enum { MAX_BYTES = 1 << 16, PARTS_BEFORE = 2 };
static const char ROOT[] = "/nowhere";

static void read_doc(const json_value *v, arena *a)
{
    const int32_t n = (int32_t)json_count(json_find(v, "grids"));
    lease_clip *clips;
    sample s;
    if (clips_read(json_find(v, "clips"), n, a, &clips) == ST_OK)
        for (int32_t k = 0; k < n; k++) {
            chat_visual visual;
            FUZZ_HOLDS(clips_visual(&clips[k], 4, a, &visual) == ST_OK);
        }
    if (lease_read_sample(v, n, a, &s) != ST_OK)
        return;
    for (int32_t t = 0; t < s.n_turns; t++)
        for (int32_t p = 0; p < s.turns[t].n_parts; p++) {
            const part *x = &s.turns[t].parts[p];
            FUZZ_HOLDS(x->text ? strlen(x->text) <= (size_t)x->text_bytes
                               : x->image >= 0 && x->image < n);
        }
}

static void read_file(const json_value *v, const wire_msg *m, arena *a)
{
    char full[PATH_MAX];
    file_ref f, one;
    file_view view = {0};
    video_bytes video;
    int64_t mtime_ns;
    span bytes;
    if (ref_read(v, m, &f) != ST_OK)
        return;
    for (int64_t k = 0; f.frames && k <= (int64_t)json_count(f.frames); k++)
        if (ref_frame(&f, k, full, sizeof full, &one) == ST_OK && one.shipped &&
            ref_load(&one, ROOT, MAX_BYTES, a, &bytes) == ST_OK)
            FUZZ_HOLDS(bytes.size <= MAX_BYTES);
    if (file_resolve(ROOT, f.in, full, sizeof full) == ST_OK)
        FUZZ_HOLDS(strncmp(full, ROOT, strlen(ROOT)) == 0 && !strstr(full, "/../"));
    if (!f.shipped) /* a file of this machine, which is not read here */
        return;
    if (ref_view(&f, ROOT, MAX_BYTES, a, &view) == ST_OK)
        FUZZ_HOLDS(view.bytes.size <= MAX_BYTES);
    ref_unview(&f, &view);
    if (ref_start(&f, ROOT, MAX_BYTES, 16, a, &view) == ST_OK)
        FUZZ_HOLDS(view.bytes.size <= MAX_BYTES);
    if (ref_load(&f, ROOT, MAX_BYTES, a, &bytes) == ST_OK)
        FUZZ_HOLDS(bytes.size <= MAX_BYTES);
    if (ref_open(&f, ROOT, MAX_BYTES, &video, &mtime_ns) == ST_OK)
        ref_close(&video);
}

static void read_lease(const json_value *v, const wire_msg *m)
{
    const json_value *docs = json_find(v, "docs"), *files = json_find(v, "files");
    arena a;
    arena_init(&a, 1 << 26);
    for (size_t i = 0; i < json_count(docs); i++)
        read_doc(json_item(docs, i), &a);
    for (size_t i = 0; i < json_count(files); i++)
        read_file(json_item(files, i), m, &a);
    arena_done(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_value *v = NULL;
    wire_msg *m = NULL;
    if (size < 2)
        return 0;
    size_t text = (size_t)(data[0] | data[1] << 8);
    if (text > size - 2)
        text = size - 2;
    if (json_parse((const char *)data + 2, text, "fuzz", &v) != ST_OK)
        return 0;
    FUZZ_HOLDS(wire_msg_new(&m) == ST_OK);
    for (int i = 0; i < PARTS_BEFORE; i++)
        FUZZ_HOLDS(wire_msg_add(m, "", 0) == ST_OK);
    FUZZ_HOLDS(wire_msg_add(m, data + 2 + text, size - 2 - text) == ST_OK);
    read_lease(v, m);
    wire_msg_free(&m);
    json_free(&v);
    return 0;
}
