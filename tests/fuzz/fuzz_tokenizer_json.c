/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_tokenizer_json.c: any bytes as a tokenizer.json. It must be refused with a message, or give
 * a tokenizer that encodes and decodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "What's red? e\xCC\x81 <|im_end|>\n\n 12 \xE4\xB8\xAD\xFF"
                               "a\xCC\x81\xCC\xA3 \xE1\xA0\x8E.\xE1\x84\x80\xE1\x85\xA1";
    tokenizer *vocabulary = NULL;
    tokenizer_scratch *scratch = NULL;
    token_list list = {0};
    char *back;
    size_t back_size;
    if (tokenizer_parse((const char *)data, size, "fuzz", &vocabulary) != ST_OK) {
        if (!status_text()[0] || vocabulary)
            abort();
        return 0;
    }
    /* A changed expression may exceed the limits of the matcher, which is refused too. */
    if (tokenizer_scratch_new(vocabulary, &scratch) == ST_OK &&
        tokenizer_encode(vocabulary, scratch, text, sizeof text, &list) == ST_OK) {
        if (tokenizer_decode(vocabulary, list.id, list.count, false, &back, &back_size) != ST_OK)
            abort();
        free(back);
    }
    token_list_done(&list);
    tokenizer_scratch_free(&scratch);
    tokenizer_free(&vocabulary);
    return 0;
}
