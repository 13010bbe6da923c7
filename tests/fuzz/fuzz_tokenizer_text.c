/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_tokenizer_text.c: any bytes as a text for the golden tokenizer. Encoding must succeed,
 * offsets must lie inside the text, and decoding must give valid UTF-8 that is the same when it is
 * encoded and decoded again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tokenizer/tokenizer.h"
#include "common/base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require_true(bool yes, const char *what)
{
    if (yes)
        return;
    fprintf(stderr, "%s: %s\n", what, status_text());
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static tokenizer *vocabulary;
    static tokenizer_scratch *scratch;
    static token_list first, again;
    if (!vocabulary) { /* loaded once, and reachable until the end */
        const char *source = getenv("TESSERA_SOURCE");
        char folder[4096];
        snprintf(folder, sizeof folder, "%s/tests/golden/tokenizer/pairs", source ? source : ".");
        require_true(tokenizer_load(folder, &vocabulary) == ST_OK, "load");
        require_true(tokenizer_scratch_new(vocabulary, &scratch) == ST_OK, "scratch");
    }
    char *text = NULL, *twice = NULL;
    size_t text_size, twice_size;
    first.count = again.count = 0;
    require_true(tokenizer_encode(vocabulary, scratch, (const char *)data, size, &first) == ST_OK,
                 "encode");
    for (size_t i = 0; i < first.count; i++)
        require_true(first.offset[i] >= 0 && (size_t)first.offset[i] < size, "offset");
    require_true(tokenizer_decode(vocabulary, first.id, first.count, false, &text, &text_size) ==
                     ST_OK,
                 "decode");
    require_true(utf8_valid(text, text_size), "UTF-8");
    require_true(tokenizer_encode(vocabulary, scratch, text, text_size, &again) == ST_OK,
                 "encode again");
    require_true(tokenizer_decode(vocabulary, again.id, again.count, false, &twice, &twice_size) ==
                     ST_OK,
                 "decode");
    require_true(twice_size == text_size && !memcmp(twice, text, text_size), "comes back");
    free(text);
    free(twice);
    return 0;
}
