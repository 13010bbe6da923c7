/* fuzz_vqa_cache.c: any bytes as the cache of VQAv2, in which one start keeps its tables for the
 * next (vqa_cache.c); the bytes follow a valid key and checksum. They must be refused with a
 * message, or every offset and number in them must lead to something that exists. */
#include <string.h>

#include "prepd/dataset/vqa.h"
#include "tests/fuzz/fuzz.h"

static void check_question(const vqa *d, const vqa_question *q)
{
    const int64_t text = (int64_t)strlen(text_pool_at(&d->texts, q->text));
    const int64_t answer = (int64_t)strlen(text_pool_at(&d->texts, q->answer));
    FUZZ_HOLDS(text <= q->text_bytes && answer <= q->answer_bytes);
    FUZZ_HOLDS(text_pool_at(&d->texts, q->text)[q->text_bytes] == 0);
    FUZZ_HOLDS(text_pool_at(&d->texts, q->answer)[q->answer_bytes] == 0);
    if (q->cause)
        FUZZ_HOLDS(strlen(text_pool_at(&d->texts, q->cause)) < d->texts.size);
    else
        FUZZ_HOLDS(q->image >= 0 && q->image < d->n_images);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    st_file f;
    if (st_parse(span_of(data, size), "fuzz", &f) != ST_OK)
        return 0;
    vqa d = {.base.adapter = &dataset_vqav2};
    if (st_find(&f, "places"))
        strcpy(d.paths.picture_zip, "pictures.zip");
    status_clear();
    if (vqa_cache_take(&d, &f, "fuzz") == ST_OK) {
        volatile size_t sum = strlen(text_pool_at(&d.texts, d.suffix_at));
        for (int64_t j = 0; j < d.n_images; j++) {
            image_place place;
            dataset_vqav2.place(&d.base, j, &place);
            sum = sum + strlen(dataset_vqav2.image_path(&d.base, j)) + (size_t)place.offset;
        }
        for (int64_t i = 0; i < d.n_questions; i++)
            check_question(&d, &d.questions[i]);
    } else {
        FUZZ_HOLDS(status_text()[0]);
    }
    free(d.questions);
    free(d.image_paths);
    free(d.places);
    free(d.place_at);
    text_pool_done(&d.texts);
    st_close(&f);
    return 0;
}
