/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_index.c: any bytes as an index file. It must be refused, or every record in it must be
 * readable. The checksum is corrected first, because otherwise no input would get past it. */
#include <string.h>

#include "prepd/plan/index.h"
#include "tests/fuzz/fuzz.h"

enum { KEY_AT = 8, CHECK_AT = 64, HEADER = 80 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    hash128 key = {{0}};
    data_index *index;
    uint8_t *file = malloc(size ? size : 1);
    if (!file)
        return 0;
    memcpy(file, data, size);
    if (size >= HEADER) {
        memcpy(key.bytes, file + KEY_AT, sizeof key.bytes);
        memset(file + CHECK_AT, 0, sizeof(hash128));
        hash128 right = hash_bytes(file, size);
        memcpy(file + CHECK_AT, right.bytes, sizeof right.bytes);
    }
    if (index_parse(span_of(file, size), "fuzz", key, &index) == ST_OK) {
        volatile size_t sum = 0;
        for (int64_t j = 0; j < index_images(index); j++) {
            index_image record;
            index_image_get(index, j, &record);
            sum = sum + (record.cause ? strlen(record.cause) : 0);
        }
        for (int64_t i = 0; i < index_samples(index); i++) {
            index_sample record;
            index_sample_get(index, i, &record);
            sum = sum + (record.cause ? strlen(record.cause) : 0);
            if (!index_has_beginnings(index))
                continue;
            index_beginning begins; /* the plan goes back by it and makes documents of it */
            index_beginning_get(index, i, &begins);
            FUZZ_HOLDS(begins.before >= 0 && begins.before <= i && begins.agrees >= 0 &&
                       begins.agrees <= record.text_tokens && begins.head >= 0 &&
                       (record.cause ||
                        (begins.first_label >= 1 && begins.first_label < record.text_tokens)));
        }
        index_free(&index);
    }
    free(file);
    return 0;
}
