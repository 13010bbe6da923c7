/* SPDX-License-Identifier: Apache-2.0 */
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

static status on_member(void *user, const zip_member *member)
{
    const int64_t size = *(const int64_t *)user;
    static uint8_t some[4096];
    zip_stream *stream = NULL;
    int64_t offset, seen = 0;
    FUZZ_HOLDS(member->name[0] && member->header >= 0 && member->bytes >= 0 &&
               member->packed <= size);
    int fd = open(path, O_RDONLY);
    if (member->packed >= 0 && zip_place(fd, path, member, &offset) == ST_OK)
        FUZZ_HOLDS(offset > member->header && offset + member->packed <= size);
    close(fd);
    if (zip_open(path, member, &stream) != ST_OK)
        return ST_OK;
    for (size_t got = 1; got && seen < MOST; seen += (int64_t)got)
        if (zip_next(stream, some, sizeof some, &got) != ST_OK)
            break;
    zip_close(&stream);
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
    FILE *file = fopen(path, "wb");
    FUZZ_HOLDS(file && fwrite(data, 1, size, file) == size);
    fclose(file);
    status_clear();
    if (zip_read(path, on_member, &bytes) != ST_OK)
        FUZZ_HOLDS(status_text()[0]);
    return 0;
}
