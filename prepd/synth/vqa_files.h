/* vqa_files.h: writes the two official files of VQAv2, questions and annotations, for one split of
 * generated scenes. The documents are built in memory and written at the end. */
#ifndef TESSERA_PREPD_SYNTH_VQA_FILES_H
#define TESSERA_PREPD_SYNTH_VQA_FILES_H

#include "common/json/json.h"
#include "prepd/synth/scene.h"

typedef struct vqa_files {
    json_writer questions, annotations;
} vqa_files;

/* The split is "train" or "val"; the files say train2014 or val2014. */
void vqa_begin(vqa_files *files, const char *split);
/* Adds the questions about a scene. Their ids are image_id * 1000 + n, as in the official files. */
void vqa_add(vqa_files *files, int64_t image_id, const scene *about);
WARN_UNUSED status vqa_finish(vqa_files *files, const char *folder, const char *split);
void vqa_done(vqa_files *files); /* frees the documents; also after a failure */

#endif
