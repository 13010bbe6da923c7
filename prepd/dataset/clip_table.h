/* clip_table.h: which images of a data set are clips: video files, and folders of frames with the
 * names in them. Folders are read once, when the data set is opened; pixels never. */
#ifndef TESSERA_PREPD_DATASET_CLIP_TABLE_H
#define TESSERA_PREPD_DATASET_CLIP_TABLE_H

#include "prepd/dataset/chat_record.h"
#include "prepd/dataset/names.h"

typedef struct clip_entry {
    enum { ENTRY_UNKNOWN, ENTRY_IMAGE, ENTRY_VIDEO, ENTRY_FRAMES } kind;
    double fps; /* of frames */
    int64_t first_frame;
    int32_t n_frames;
} clip_entry;

typedef struct clip_table {
    clip_entry *of; /* [n] by image number */
    int64_t n, capacity;
    name_list frames;
    int64_t max_frames;
    bool any, videos; /* an image is a clip; a video file */
} clip_table;

/* Image number j is shown as `item`; numbers come in order, with repeats. A new one that is refused
 * is not taken. ST_BAD_INPUT, with the
 * source: it was shown as something else before, a folder of frames without a rate or without
 * frames or with too many, a file with a rate. */
WARN_UNUSED status clip_table_note(clip_table *t, int64_t j, const char *root, const char *name,
                                   const chat_item *item, const char *source);

/* Adds to a place what kind of image it is. */
void clip_table_place(const clip_table *t, int64_t j, image_place *out);
/* Name of frame k inside its folder. */
const char *clip_table_frame(const clip_table *t, int64_t j, int32_t k);
void clip_table_digest(const clip_table *t, hasher *h); /* nothing if there is no clip */
void clip_table_done(clip_table *t);

#endif
