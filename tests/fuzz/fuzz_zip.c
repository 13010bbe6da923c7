/* fuzz_zip.c: any bytes as a zip file. It must be refused with a message, or every member must lie
 * inside it and be readable, or give an error. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "prepd/dataset/zip.h"
#include "tests/fuzz/fuzz.h"

enum { MOST = 1 << 20 }; /* the most unpacked bytes read of a member */

static char path[256];

static void remove_file(void)
{
    remove(path);
}

static status on_member(void *user, const zip_member *m)
{
    const int64_t size = *(const int64_t *)user;
    static uint8_t some[4096];
    zip_stream *z = NULL;
    int64_t offset, seen = 0;
    FUZZ_HOLDS(m->name[0] && m->header >= 0 && m->bytes >= 0 && m->packed <= size);
    int fd = open(path, O_RDONLY);
    if (m->packed >= 0 && zip_place(fd, path, m, &offset) == ST_OK)
        FUZZ_HOLDS(offset > m->header && offset + m->packed <= size);
    close(fd);
    if (zip_open(path, m, &z) != ST_OK)
        return ST_OK;
    for (size_t n = 1; n && seen < MOST; seen += (int64_t)n)
        if (zip_next(z, some, sizeof some, &n) != ST_OK)
            break;
    zip_close(&z);
    return ST_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t bytes = (int64_t)size;
    if (!path[0]) {
        const char *tmp = getenv("TMPDIR");
        snprintf(path, sizeof path, "%.200s/fuzz-zip-%d.zip", tmp ? tmp : "/tmp", (int)getpid());
        atexit(remove_file);
    }
    FILE *f = fopen(path, "wb");
    FUZZ_HOLDS(f && fwrite(data, 1, size, f) == size);
    fclose(f);
    status_clear();
    if (zip_read(path, on_member, &bytes) != ST_OK)
        FUZZ_HOLDS(status_text()[0]);
    return 0;
}
