/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_vqa_cache.c: any bytes as the cache of VQAv2, in which one start keeps its tables for the
 * next (vqa_cache.c); the bytes follow a valid key and checksum. They must be refused with a
 * message, or every offset and number in them must lead to something that exists. */
#include <string.h>

#include "prepd/dataset/adapters/vqa.h"
#include "tests/fuzz/fuzz.h"

static void check_question(const vqa *set, const vqa_question *question)
{
    const int64_t text = (int64_t)strlen(text_pool_at(&set->texts, question->text));
    const int64_t answer = (int64_t)strlen(text_pool_at(&set->texts, question->answer));
    FUZZ_HOLDS(text <= question->text_bytes && answer <= question->answer_bytes);
    FUZZ_HOLDS(text_pool_at(&set->texts, question->text)[question->text_bytes] == 0);
    FUZZ_HOLDS(text_pool_at(&set->texts, question->answer)[question->answer_bytes] == 0);
    if (question->cause)
        FUZZ_HOLDS(strlen(text_pool_at(&set->texts, question->cause)) < set->texts.size);
    else
        FUZZ_HOLDS(question->image >= 0 && question->image < set->n_images);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    st_file tensors;
    if (st_parse(span_of(data, size), "fuzz", &tensors) != ST_OK)
        return 0;
    vqa set = {.base.adapter = &dataset_vqav2};
    if (st_find(&tensors, "places"))
        strcpy(set.paths.picture_zip, "pictures.zip");
    status_clear();
    if (vqa_cache_take(&set, &tensors, "fuzz") == ST_OK) {
        volatile size_t sum = 0;
        for (int64_t j = 0; j < set.n_images; j++) {
            image_place place;
            dataset_vqav2.place(&set.base, j, &place);
            sum = sum + strlen(dataset_vqav2.image_path(&set.base, j)) + (size_t)place.offset;
        }
        for (int64_t i = 0; i < set.n_questions; i++)
            check_question(&set, &set.questions[i]);
    } else {
        FUZZ_HOLDS(status_text()[0]);
    }
    free(set.questions);
    free(set.image_paths);
    free(set.places);
    free(set.place_at);
    text_pool_done(&set.texts);
    st_close(&tensors);
    return 0;
}
