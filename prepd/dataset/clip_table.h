/* clip_table.h: which images of a data set are clips, that is, video files or folders of frames,
 * and the names of the frames. Folders are listed once, when the data set is opened. No picture is
 * read. */
#ifndef TESSERA_PREPD_DATASET_CLIP_TABLE_H
#define TESSERA_PREPD_DATASET_CLIP_TABLE_H

#include "prepd/dataset/chat_record.h"
#include "prepd/dataset/names.h"

typedef struct clip_entry {
    enum { ENTRY_UNKNOWN, ENTRY_IMAGE, ENTRY_VIDEO, ENTRY_FRAMES } kind;
    double fps;          /* of a folder of frames, in frames a second */
    int64_t first_frame; /* position in clip_table.frames */
    int32_t n_frames;
} clip_entry;

typedef struct clip_table {
    clip_entry *of; /* [count] by the image's number */
    int64_t count, capacity;
    name_list frames;
    int64_t max_frames; /* video.input_frames; set by the caller */
    bool any;           /* at least one image is a clip */
    bool videos;        /* at least one is a video file */
} clip_table;

/* Notes that image `index` is shown as `item`. Numbers come in order, with repeats; `root` and
 * `name` give the path of the image. ST_BAD_INPUT, with `source` before it, if the image was shown
 * as something else before; if a folder of frames has no rate, no pictures or too many; or if a
 * file has a rate. An image that is refused when it first comes stays unknown, and its number may
 * come again. */
WARN_UNUSED status clip_table_note(clip_table *table, int64_t index, const char *root,
                                   const char *name, const chat_item *item, const char *source);

/* Adds to a place what kind of image it is. */
void clip_table_place(const clip_table *table, int64_t index, image_place *out);
/* The name of frame `at` inside folder `index`. */
const char *clip_table_frame(const clip_table *table, int64_t index, int32_t at);
/* Adds to a digest what each image is. Adds nothing if there is no clip. */
void clip_table_digest(const clip_table *table, hasher *hash);
void clip_table_done(clip_table *table);

#endif
