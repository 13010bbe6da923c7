/* SPDX-License-Identifier: Apache-2.0 */
/* floor.c: measures the speed that no pipeline can exceed. libjpeg-turbo decodes the same files
 * from memory to RGB, in one thread, and nothing else is done.
 *
 *   bench_floor LIST PASSES        LIST: paths of JPEG files, one per line
 *
 * A turn decodes all files PASSES times. */
#include <string.h>
#include <time.h>
#include <turbojpeg.h>

#include "common/base/arena.h"
#include "common/base/clock.h"
#include "common/base/span.h"
#include "tests/bench/prepd/turns.h"

typedef struct jpegs {
    span *file; /* [count] */
    size_t count;
    size_t most_rgb; /* bytes of the largest picture */
} jpegs;

static status read_file(const char *path, arena *memory, span *out)
{
    FILE *file = fopen(path, "rb");
    void *data = NULL;
    if (!file)
        return FAIL_IN(ST_NO_INPUT, path, "cannot be opened");
    fseek(file, 0, SEEK_END);
    const long size = ftell(file);
    rewind(file);
    status st =
        size > 0 ? arena_alloc(memory, (size_t)size, &data) : FAIL_IN(ST_IO, path, "is empty");
    if (st == ST_OK && fread(data, 1, (size_t)size, file) != (size_t)size)
        st = FAIL_IN(ST_IO, path, "cannot be read");
    fclose(file);
    *out = span_of(data, (size_t)size);
    return st;
}

static status read_list(const char *list, tjhandle turbo, arena *memory, jpegs *out)
{
    enum { MOST = 100000 };
    char path[4096];
    FILE *file = fopen(list, "r");
    if (!file)
        return FAIL_IN(ST_NO_INPUT, list, "cannot be opened");
    status st = arena_calloc(memory, MOST, sizeof(*out->file), (void **)&out->file);
    while (st == ST_OK && fgets(path, sizeof(path), file) && out->count < MOST) {
        int width, height, sampling, colours;
        path[strcspn(path, "\n")] = 0;
        st = read_file(path, memory, &out->file[out->count]);
        if (st != ST_OK)
            break;
        const span bytes = out->file[out->count++];
        if (tjDecompressHeader3(turbo, bytes.data, bytes.size, &width, &height, &sampling,
                                &colours) != 0)
            st = FAIL_IN(ST_BAD_INPUT, path, "%s", tjGetErrorStr2(turbo));
        else if ((size_t)width * (size_t)height * 3 > out->most_rgb)
            out->most_rgb = (size_t)width * (size_t)height * 3;
    }
    fclose(file);
    return st;
}

static int64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static status decode_all(const jpegs *files, tjhandle turbo, uint8_t *rgb)
{
    for (size_t i = 0; i < files->count; i++) {
        int width, height, sampling, colours;
        const span bytes = files->file[i];
        if (tjDecompressHeader3(turbo, bytes.data, bytes.size, &width, &height, &sampling,
                                &colours) != 0 ||
            tjDecompress2(turbo, bytes.data, bytes.size, rgb, width, 3 * width, height, TJPF_RGB,
                          0) != 0)
            return FAIL(ST_BAD_INPUT, "file %zu: %s", i, tjGetErrorStr2(turbo));
    }
    return ST_OK;
}

int main(int argc, char **argv)
{
    const tjhandle turbo = tjInitDecompress();
    jpegs files = {0};
    arena memory;
    void *rgb;
    arena_init(&memory, 0);
    if (argc != 3 || !turbo)
        must(FAIL(ST_USAGE, "bench_floor LIST PASSES"));
    must(read_list(argv[1], turbo, &memory, &files));
    must(arena_alloc(&memory, files.most_rgb, &rgb));
    const int passes = atoi(argv[2]);
    while (turn_begins()) {
        const int64_t wall = clock_ns(), cpu = cpu_ns();
        for (int i = 0; i < passes; i++)
            must(decode_all(&files, turbo, rgb));
        turn_ends((int64_t)files.count * passes, clock_ns() - wall, cpu_ns() - cpu, 0);
    }
    tjDestroy(turbo);
    arena_done(&memory);
    return 0;
}
