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
    wire_msg_free(&message);
    json_free(&value);
    return 0;
}
