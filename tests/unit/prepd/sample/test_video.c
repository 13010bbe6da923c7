/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of video.h: videos of every codec and container that is read give the chosen frames,
 * headers say what is in the file, and other, damaged or hostile files are refused. Each frame
 * shows its number as a pattern (tests/video_file.h). Letters: x, y a place in a frame. */
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "prepd/sample/decode/video.h"
#include "tests/video_file.h"

enum { WIDTH = 96, HEIGHT = 64, FRAMES = 30, SEED = 5, MOST = 64 };

static const conf limits = {.image_input_pixels = 1 << 20, .video_input_frames = 1000};

static const struct {
    const char *encoder, *ending;
} kinds[] = {
    {"libx264", "mp4"},    {"libx264", "avi"}, {"libx264", "mkv"},     {"libx264", "ts"},
    {"mpeg4", "mov"},      {"mpeg4", "avi"},   {"mjpeg", "avi"},       {"mpeg2video", "ts"},
    {"mpeg1video", "mkv"}, {"libvpx", "webm"}, {"libvpx-vp9", "webm"}, {"libx265", "mp4"},
    {"libaom-av1", "mkv"},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Reads a file; the caller frees the bytes. */
static uint8_t *bytes_of(const char *path, video_bytes *out)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const long count = ftell(file);
    rewind(file);
    uint8_t *data = malloc((size_t)count);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)count, file), count);
    fclose(file);
    *out = (video_bytes){.memory = span_of(data, (size_t)count), .fd = -1, .size = count};
    return data;
}

/* Makes a video of this kind; the caller frees its bytes. NULL if FFmpeg has no such encoder
 * here. */
static uint8_t *make_video(int kind, const char *rate, video_bytes *out)
{
    char *folder = harness_temp(), path[4096];
    const video_plan video = {kinds[kind].encoder, WIDTH, HEIGHT, FRAMES, rate, SEED};
    snprintf(path, sizeof path, "%s/v.%s", folder, kinds[kind].ending);
    uint8_t *data = video_file_write(path, &video) ? bytes_of(path, out) : NULL;
    harness_remove(&folder);
    return data;
}

typedef struct seen {
    hash128 hash[MOST];
    /* it is more like frame `number` as painted than like the frames before and after that */
    bool right[MOST];
    const int64_t *number;
    int count, fail_at;
} seen;

/* Mean difference between the grey part of a picture and frame number as painted. */
static double measure_frame_distance(const image *im, int64_t number)
{
    int64_t sum = 0, count = 0;
    for (int y = 0; y < im->height; y++)
        for (int x = y < im->height / 2 ? im->width / 2 : 0; x < im->width; x++, count++) {
            const int luma = 40 + (int)((x + y / 2 + number * SEED) / 16 % 8) * 24;
            const int want = (luma - 16) * 255 / 219;
            sum += abs(im->rgb[(y * im->width + x) * 3] - (want > 255 ? 255 : want));
        }
    return (double)sum / (double)count;
}

static status judge_frame(void *user, int64_t nth, const image *frame)
{
    seen *found = user;
    assert_int_equal(nth, found->count);
    assert_true(found->count < MOST);
    if (found->fail_at == found->count + 1)
        return FAIL(ST_NO_MEMORY, "taker is full");
    found->hash[found->count] =
        hash_bytes(frame->rgb, (size_t)frame->width * (size_t)frame->height * 3);
    if (found->number) {
        const int64_t k = found->number[nth];
        const double off = measure_frame_distance(frame, k);
        found->right[found->count] = off < measure_frame_distance(frame, k + 1) &&
                                     (k == 0 || off < measure_frame_distance(frame, k - 1));
    }
    found->count++;
    return ST_OK;
}

static status decode_chosen(const video_bytes *video, const int64_t *index, int64_t count,
                            arena *memory, seen *out)
{
    *out = (seen){.number = index};
    return video_decode(video, "v", &limits, index, count, memory, judge_frame, out);
}

static void test_video__frames_of_every_kind(void **state)
{
    static const int64_t some[] = {0, 1, 7, 7, 12, 23, 29};
    int64_t all[FRAMES];
    (void)state;
    for (int i = 0; i < FRAMES; i++)
        all[i] = i;
    for (int k = 0; k < KINDS; k++) {
        video_bytes video;
        video_info info;
        seen whole, few;
        arena memory;
        uint8_t *data = make_video(k, "24000/1001", &video);
        if (!data) {
            print_message("skipped: FFmpeg has no encoder %s\n", kinds[k].encoder);
            continue;
        }
        arena_init(&memory, 0);
        assert_ok(video_header(&video, "v", &limits, &info));
        if (info.frames != FRAMES || info.width != WIDTH || info.height != HEIGHT)
            fail_msg("%s in %s: %lld frames of %d x %d", kinds[k].encoder, kinds[k].ending,
                     (long long)info.frames, info.width, info.height);
        assert_true(info.fps > 23.9 && info.fps < 24.1);
        assert_ok(decode_chosen(&video, all, FRAMES, &memory, &whole));
        assert_int_equal(whole.count, FRAMES);
        for (int i = 0; i < FRAMES; i++)
            if (!whole.right[i])
                fail_msg("%s in %s: frame %d is another one", kinds[k].encoder, kinds[k].ending, i);
        assert_ok(decode_chosen(&video, some, 7, &memory, &few));
        for (int i = 0; i < 7; i++)
            assert_true(hash_equal(few.hash[i], whole.hash[some[i]]));
        arena_done(&memory);
        free(data);
    }
}

static int tries_left = 2;

static bool two_more(int error)
{
    assert_int_equal(error, EBADF);
    return tries_left > 0 && tries_left-- > 0;
}

/* The frames are the same whether the video is in memory, in a file, or inside a larger file. */
static void test_video__is_the_same_from_memory_and_files(void **state)
{
    static const int64_t some[] = {0, 15, 29};
    char *folder = harness_temp(), path[4096];
    video_bytes video;
    seen memory, file;
    arena room;
    (void)state;
    uint8_t *data = make_video(4, "25", &video);
    assert_non_null(data); /* this encoder is FFmpeg's own, so it is always there */
    snprintf(path, sizeof path, "%s/tar", folder);
    FILE *stream = fopen(path, "wb");
    fwrite("before", 1, 6, stream);
    fwrite(data, 1, (size_t)video.size, stream);
    fwrite("behind it", 1, 9, stream);
    fclose(stream);
    arena_init(&room, 0);
    assert_ok(decode_chosen(&video, some, 3, &room, &memory));
    video_bytes piece = {.fd = open(path, O_RDONLY), .at = 6, .size = video.size};
    assert_true(piece.fd >= 0);
    assert_ok(decode_chosen(&piece, some, 3, &room, &file));
    assert_memory_equal(memory.hash, file.hash, 3 * sizeof(hash128));
    piece.at = 0;
    assert_fails(ST_BAD_INPUT, decode_chosen(&piece, some, 3, &room, &file), "v: ");
    close(piece.fd);
    /* a read error is blamed on the disk and names the file that is read, not the video */
    piece.path = "the.tar";
    piece.again = two_more;
    assert_fails(ST_IO, decode_chosen(&piece, some, 3, &room, &file),
                 "the.tar: byte 0: it cannot be read: Bad");
    assert_int_equal(tries_left, 0);
    video_info info;
    assert_fails(ST_IO, video_header(&piece, "v", &limits, &info), "the.tar");
    arena_done(&room);
    free(data);
    harness_remove(&folder);
}

static void test_video__refused_by_name(void **state)
{
    static const int64_t first[] = {0}, far[] = {0, 31};
    conf small = limits;
    video_bytes video;
    video_info info;
    seen found;
    arena memory;
    (void)state;
    arena_init(&memory, 0);
    uint8_t *data = make_video(4, "25", &video);
    assert_non_null(data);
    small.image_input_pixels = WIDTH * HEIGHT - 1;
    assert_fails(ST_BAD_INPUT, video_header(&video, "v", &small, &info), "image.input_pixels");
    small = limits;
    small.video_input_frames = FRAMES - 1;
    assert_fails(ST_BAD_INPUT, video_header(&video, "v", &small, &info), "video.input_frames");
    assert_fails(ST_BAD_INPUT, decode_chosen(&video, far, 2, &memory, &found),
                 "ends after 30 frames");
    found = (seen){.fail_at = 1};
    assert_int_equal(video_decode(&video, "v", &limits, first, 1, &memory, judge_frame, &found),
                     ST_NO_MEMORY);
    free(data);
    static const char *const texts[] = {"", "no video at all", "#EXTM3U\n/etc/passwd\n",
                                        "ffconcat version 1.0\nfile /etc/passwd\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        video = (video_bytes){.memory = span_of(texts[i], strlen(texts[i])),
                              .fd = -1,
                              .size = (int64_t)strlen(texts[i])};
        assert_fails(ST_BAD_INPUT, video_header(&video, "v", &limits, &info), "v: ");
    }
    arena_done(&memory);
}

/* A file of 1.8 kB claims a table of 1.5 GB. */
static void test_video__a_huge_claim_is_refused(void **state)
{
    char path[4096];
    static uint8_t data[4096];
    video_info info;
    const char *source = getenv("TESSERA_SOURCE");
    (void)state;
    if (!source)
        HARNESS_SKIP("TESSERA_SOURCE is not set");
    snprintf(path, sizeof path, "%s/tests/fuzz/seeds/video/claims_1.5_GB", source);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    const video_bytes video = {.memory = span_of(data, size), .fd = -1, .size = (int64_t)size};
    assert_fails(ST_BAD_INPUT, video_header(&video, "v", &limits, &info),
                 "claims more than 512 MiB");
}

/* A file that is cut or has bytes changed is refused or gives frames, and the same when it is read
 * again. */
static void test_video__damaged_files_are_refused_or_decoded(void **state)
{
    static const int64_t some[] = {0, 11, 29};
    uint64_t seed = harness_seed();
    int refused = 0;
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        video_bytes video;
        arena memory;
        uint8_t *data = make_video(k, "25", &video);
        if (!data)
            continue;
        arena_init(&memory, 0);
        for (int i = 0; i < 24; i++) {
            video_bytes bad = video;
            video_info info[2];
            seen found[2];
            status st[2];
            uint8_t *copy = malloc((size_t)video.size);
            assert_non_null(copy);
            memcpy(copy, data, (size_t)video.size);
            bad.memory.data = copy;
            if (i < 8)
                bad.size = (int64_t)(bad.memory.size = (size_t)(video.size * i / 8));
            for (int bits = 0; i >= 8 && bits < 1 << (i % 8); bits++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                copy[(seed >> 33) % (uint64_t)video.size] = (uint8_t)(seed >> 24);
            }
            for (int twice = 0; twice < 2; twice++) {
                st[twice] = video_header(&bad, "v", &limits, &info[twice]);
                if (st[twice] == ST_OK)
                    st[twice] = decode_chosen(&bad, some, 3, &memory, &found[twice]);
            }
            assert_int_equal(st[0], st[1]);
            assert_true(st[0] == ST_OK || st[0] == ST_BAD_INPUT || st[0] == ST_NO_MEMORY);
            if (st[0] == ST_OK)
                assert_memory_equal(found[0].hash, found[1].hash,
                                    (size_t)found[0].count * sizeof(hash128));
            refused += st[0] != ST_OK;
            free(copy);
        }
        arena_done(&memory);
        free(data);
    }
    assert_true(refused > 4 * KINDS);
}

/* The fingerprint of a worker does not depend on what it has decoded before. */
static void test_video_fingerprint__is_always_the_same(void **state)
{
    hash128 one, two;
    (void)state;
    assert_ok(video_fingerprint(&one));
    assert_ok(video_fingerprint(&two));
    assert_true(hash_equal(one, two));
}

static int setup_video(void **state)
{
    (void)state;
    video_library_init();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_video__frames_of_every_kind),
        cmocka_unit_test(test_video__is_the_same_from_memory_and_files),
        cmocka_unit_test(test_video__refused_by_name),
        cmocka_unit_test(test_video__a_huge_claim_is_refused),
        cmocka_unit_test(test_video__damaged_files_are_refused_or_decoded),
        cmocka_unit_test(test_video_fingerprint__is_always_the_same),
    };
    return cmocka_run_group_tests(tests, setup_video, NULL);
}
