/* vqa_find.h: where the files of one split of a VQAv2 folder lie. Names are matched liberally,
 * because people unpack and rename; what was looked for is said when nothing fits. */
#ifndef TESSERA_PREPD_DATASET_VQA_FIND_H
#define TESSERA_PREPD_DATASET_VQA_FIND_H

#include "common/conf/conf.h"
#include "common/base/status.h"

enum { VQA_PATH_MAX = 4096, VQA_NAME_MAX = 256 };

typedef struct vqa_paths {
    char questions[VQA_PATH_MAX];                                        /* absolute */
    char annotations[VQA_PATH_MAX];                                      /* absolute */
    char question_member[VQA_NAME_MAX], annotation_member[VQA_NAME_MAX]; /* of a zip file; "" */
    char images_json[VQA_PATH_MAX];  /* list of image names; "" if the folder has none */
    char root[VQA_PATH_MAX];         /* absolute folder that image paths start from */
    char holder[VQA_PATH_MAX];       /* what the user named, without links, where root is found by
                                        what the data set says; else "" */
    char image_folder[VQA_NAME_MAX]; /* under root, with a slash at its end, or "" */
    char subtype[VQA_NAME_MAX];      /* train2014: in the names COCO_train2014_%012d.jpg */
    char picture_zip[VQA_NAME_MAX];  /* under root; "" if they are files of their own */
} vqa_paths;

/* Questions, annotations, images.json of data.split in data.path. */
WARN_UNUSED status vqa_find_files(const conf *c, vqa_paths *out);
/* The folder of pictures named by the official pattern, or the zip file: train2014.zip. */
WARN_UNUSED status vqa_find_pictures(const conf *c, vqa_paths *p);
/* The folder that images.json's names start from: the data folder, its images folder, or one the
 * list's note names ("file_name is relative to images-extra/"), also beside the data folder.
 * first: a file_name of the list, to tell which of them holds it. Leaves image_folder empty. */
WARN_UNUSED status vqa_find_listed(const conf *c, const char *note, const char *first,
                                   vqa_paths *p);

#endif
