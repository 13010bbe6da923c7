/* fake_data.c: see fake_data.h. The data set has only what the plan asks of it: sizes, causes, and
 * which picture a sample shows. */
#include "tests/unit/prepd/plan/fake_data.h"

#include "common/base/rng.h"
#include "tests/harness.h"

static void fake_close(dataset *d)
{
    (void)d;
}

static int64_t fake_count(const dataset *d)
{
    return ((const fake_data *)d)->n;
}

static status fake_get(const dataset *d, int64_t i, arena *a, sample *out)
{
    const fake_sample *s = &((const fake_data *)d)->samples[i];
    void *images;
    TRY(arena_calloc(a, 1, sizeof(int32_t), &images));
    *(int32_t *)images = (int32_t)(s->image_of ? s->image_of - 1 : i);
    *out = (sample){
        .id = (uint64_t)i,
        .name = "fake",
        .cause = s->cause,
        .images = (int32_t *)images,
        .n_images = s->width > 0 && !s->cause,
        .plain = s->plain,
    };
    return ST_OK;
}

static const char *fake_path(const dataset *d, int64_t j)
{
    (void)d;
    (void)j;
    return "picture.jpg";
}

static const char *fake_root(const dataset *d)
{
    (void)d;
    return "/";
}

static int64_t fake_chunk(const dataset *d, int64_t i)
{
    const fake_data *f = (const fake_data *)d;
    return f->per_chunk ? i / f->per_chunk : -1;
}

static hash128 fake_identity(const dataset *d)
{
    (void)d;
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

void fake_data_init(fake_data *f, const fake_sample *samples, int64_t n)
{
    *f = (fake_data){.base = {&fake_vtable}, .samples = samples, .n = n};
    assert_ok(index_new(n, n, &f->index));
    for (int64_t i = 0; i < n; i++) {
        index_sample s = {samples[i].text_tokens, 1, NULL};
        index_image im = {1000, 1, samples[i].width, samples[i].height,
                          samples[i].width > 0 ? NULL : "no such file"};
        assert_ok(index_put_image(f->index, i, &im));
        assert_ok(index_put_sample(f->index, i, &s));
    }
    assert_ok(index_seal(f->index));
}

void fake_data_done(fake_data *f)
{
    index_free(&f->index);
}

void fake_vqa_lengths(uint64_t seed, fake_sample *out, int64_t n)
{
    static const int32_t sizes[][2] = {{640, 480}, {640, 427}, {480, 640}, {640, 480},
                                       {500, 375}, {427, 640}, {640, 360}, {612, 612}};
    rng_key key = rng_key_make(seed, "fake lengths");
    for (int64_t i = 0; i < n; i++) {
        uint64_t k = rng_below(key, (uint64_t)(2 * i), 8);
        out[i] = (fake_sample){
            .text_tokens = 22 + (int32_t)rng_below(key, (uint64_t)(2 * i + 1), 14),
            .width = sizes[k][0],
            .height = sizes[k][1],
        };
    }
}
