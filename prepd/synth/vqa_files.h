/* vqa_files.h: the official VQAv2 pair of files for one split of generated scenes. */
#ifndef TESSERA_PREPD_SYNTH_VQA_FILES_H
#define TESSERA_PREPD_SYNTH_VQA_FILES_H

#include "common/json/json.h"
#include "prepd/synth/scene.h"

typedef struct vqa_files {
    json_writer questions, annotations;
} vqa_files;

/* split: "train" or "val"; the files say train2014 or val2014. */
void vqa_begin(vqa_files *f, const char *split);
/* The questions of a scene; question ids are image_id * 1000 + n, as the official ones. */
void vqa_add(vqa_files *f, int64_t image_id, const scene *s);
WARN_UNUSED status vqa_finish(vqa_files *f, const char *folder, const char *split);
void vqa_done(vqa_files *f);

#endif
