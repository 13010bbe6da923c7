/* SPDX-License-Identifier: Apache-2.0 */
/* fake_data.c: see fake_data.h. The data set has only what the plan asks of it: sizes, causes, and
 * which picture a sample shows. */
#include "tests/unit/prepd/plan/fake_data.h"

#include "common/base/rng.h"
#include "tests/harness.h"

static void fake_close(dataset *set)
{
    (void)set;
}

static int64_t fake_count(const dataset *set)
{
    return ((const fake_data *)set)->count;
}

static status fake_get(const dataset *set, int64_t index, arena *memory, sample *out)
{
    const fake_sample *fake = &((const fake_data *)set)->samples[index];
    void *images;
    TRY(arena_calloc(memory, 1, sizeof(int32_t), &images));
    *(int32_t *)images = (int32_t)(fake->image_of ? fake->image_of - 1 : index);
    *out = (sample){
        .id = (uint64_t)index,
        .name = "fake",
        .cause = fake->cause,
        .images = (int32_t *)images,
        .n_images = fake->width > 0 && !fake->cause,
        .plain = fake->plain,
    };
    return ST_OK;
}

static const char *fake_path(const dataset *set, int64_t number)
{
    (void)set;
    (void)number;
    return "picture.jpg";
}

static const char *fake_root(const dataset *set)
{
    (void)set;
    return "/";
}

static int64_t fake_chunk(const dataset *set, int64_t index)
{
    const fake_data *data = (const fake_data *)set;
    return data->per_chunk ? index / data->per_chunk : -1;
}

static hash128 fake_identity(const dataset *set)
{
    (void)set;
    return hash_bytes("fake", 4);
}

static const dataset_vtable fake_vtable = {
    .name = "fake",
    .close = fake_close,
    .samples = fake_count,
    .sample = fake_get,
    .outline = fake_get,
    .images = fake_count,
    .image_path = fake_path,
    .root = fake_root,
    .chunk = fake_chunk,
    .identity = fake_identity,
};

void fake_data_init(fake_data *data, const fake_sample *samples, int64_t count)
{
    *data = (fake_data){.base = {&fake_vtable}, .samples = samples, .count = count};
    assert_ok(index_new(count, count, &data->index));
    for (int64_t i = 0; i < count; i++) {
        index_sample record = {samples[i].text_tokens, 1, NULL};
        index_image im = {1000, 1, samples[i].width, samples[i].height,
                          samples[i].width > 0 ? NULL : "no such file"};
        assert_ok(index_put_image(data->index, i, &im));
        assert_ok(index_put_sample(data->index, i, &record));
    }
    assert_ok(index_seal(data->index));
}

void fake_data_done(fake_data *data)
{
    index_free(&data->index);
}

void fake_vqa_lengths(uint64_t seed, fake_sample *out, int64_t count)
{
    static const int32_t sizes[][2] = {{640, 480}, {640, 427}, {480, 640}, {640, 480},
                                       {500, 375}, {427, 640}, {640, 360}, {612, 612}};
    rng_key key = rng_key_make(seed, "fake lengths");
    for (int64_t i = 0; i < count; i++) {
        uint64_t k = rng_below(key, (uint64_t)(2 * i), 8);
        out[i] = (fake_sample){
            .text_tokens = 22 + (int32_t)rng_below(key, (uint64_t)(2 * i + 1), 14),
            .width = sizes[k][0],
            .height = sizes[k][1],
        };
    }
}
