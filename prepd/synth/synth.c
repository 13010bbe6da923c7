/* synth.c: writes the model folder, then both splits picture by picture, with a progress bar on a
 * terminal. */
#include "prepd/synth/synth.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/bar.h"
#include "prepd/synth/synth_files.h"
#include "prepd/synth/jpeg.h"
#include "prepd/synth/model.h"
#include "prepd/synth/paint.h"
#include "prepd/synth/vqa_files.h"

enum { JPEG_QUALITY = 92, MAX_SIDE = 640 };
enum { HELD_OUT_SHARE = 10, HELD_OUT_LEAST = 64 };
static const char MARK[] = "synth.json";
static const char *const splits[] = {"train", "val"};

int64_t synth_held_out(int64_t images)
{
    int64_t count = images / HELD_OUT_SHARE;
    if (count < HELD_OUT_LEAST)
        count = HELD_OUT_LEAST;
    return count > images / 2 ? images / 2 : count;
}

/* A folder may be used if it does not exist, is empty, or has our mark in it. */
static status check_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return errno == ENOENT ? ST_OK
                               : FAIL_IN(ST_CANT_CREATE, folder,
                                         "the output folder cannot be read: %s", strerror(errno));
    bool ours = false, empty = true;
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        empty = false;
        ours |= strcmp(entry->d_name, MARK) == 0;
    }
    closedir(dir);
    if (empty || ours)
        return ST_OK;
    return FAIL_IN(
        ST_CANT_CREATE, folder,
        "the folder is not empty and was not made by prepd synth (there is no %s in it); "
        "give --out a new or an empty folder",
        MARK);
}

static status write_mark(const synth_options *options)
{
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_cstr(&writer, "made_by", "prepd synth " TESSERA_VERSION);
    json_put_key_int(&writer, "images", options->images);
    json_put_key_int(&writer, "seed", (int64_t)options->seed);
    json_put_key_cstr(&writer, "sizes", options->sizes == SIZES_COCO ? "coco" : "small");
    json_end_object(&writer);
    status st = files_write_json(options->folder, MARK, &writer);
    json_writer_done(&writer);
    return st;
}

typedef struct progress {
    int64_t done, total, began_ns;
} progress;

static void progress_step(progress *state)
{
    state->done++;
    bar_draw((double)state->done / (double)state->total,
             bar_seconds_left(state->began_ns, state->done, state->total), "picture %lld of %lld",
             (long long)state->done, (long long)state->total);
}

/* What painting a picture needs, used again for each. */
typedef struct easel {
    float *canvas;
    uint8_t *rgb;
    jpeg_writer *jpeg;
} easel;

static void easel_done(easel *canvas)
{
    free(canvas->canvas);
    free(canvas->rgb);
    jpeg_writer_free(&canvas->jpeg);
}

static status easel_init(easel *canvas)
{
    size_t count = (size_t)MAX_SIDE * MAX_SIDE * 3;
    memset(canvas, 0, sizeof *canvas);
    canvas->canvas = (float *)malloc(count * sizeof *canvas->canvas);
    canvas->rgb = (uint8_t *)malloc(count);
    if (!canvas->canvas || !canvas->rgb)
        return FAIL(ST_NO_MEMORY, "no memory for a picture of %d x %d", MAX_SIDE, MAX_SIDE);
    return jpeg_writer_new(&canvas->jpeg);
}

/* Writes the `count` images of a split, with ids from first_id on, and their questions. */
static status write_split(const synth_options *options, const char *split, int64_t count,
                          int64_t first_id, easel *canvas, progress *state)
{
    char folder[FILES_PATH_MAX], path[FILES_PATH_MAX];
    vqa_files files;
    status st;
    TRY(files_path(folder, options->folder, "images/%s2014", split));
    TRY(files_make_folder(folder));
    TRY(files_remove(folder, "COCO_")); /* those of an earlier, larger data set */
    vqa_begin(&files, split);
    for (int64_t i = 0; i < count; i++) {
        scene picture;
        scene_draw(options->seed, split, options->sizes, (uint64_t)count, (uint64_t)i, &picture);
        scene_paint(&picture, canvas->canvas, canvas->rgb);
        TRY_OR(done, files_path(path, folder, "COCO_%s2014_%012lld.jpg", split,
                                (long long)(first_id + i)));
        TRY_OR(done, jpeg_write(canvas->jpeg, canvas->rgb, picture.width, picture.height,
                                JPEG_QUALITY, path));
        vqa_add(&files, first_id + i, &picture);
        progress_step(state);
    }
    st = vqa_finish(&files, options->folder, split);
done:
    vqa_done(&files);
    return st;
}

status synth_write(const synth_options *options)
{
    easel canvas = {0};
    char model[FILES_PATH_MAX];
    status st;
    if (options->images < SYNTH_MIN_IMAGES || options->images > SYNTH_MAX_IMAGES)
        return FAIL(ST_USAGE, "--images %lld: expected %d to %d", (long long)options->images,
                    SYNTH_MIN_IMAGES, SYNTH_MAX_IMAGES);
    TRY(check_folder(options->folder));
    TRY(files_path(model, options->folder, "model"));
    TRY(files_make_folder(model));
    TRY(write_mark(options));
    /* The limits let small pictures stay small and those of COCO's sizes keep their full grids. */
    TRY(model_write(model, 1024, options->sizes == SIZES_COCO ? 1048576 : 65536));
    int64_t n_val = synth_held_out(options->images);
    int64_t counts[] = {options->images - n_val, n_val};
    progress state = {.total = options->images, .began_ns = clock_ns()};
    TRY_OR(done, easel_init(&canvas));
    int64_t first_id = 1;
    for (int k = 0; k < 2; k++) {
        TRY_OR(done, write_split(options, splits[k], counts[k], first_id, &canvas, &state));
        first_id += counts[k];
    }
done:
    bar_clear();
    easel_done(&canvas);
    return st;
}
