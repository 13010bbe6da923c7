/* vqa_find.h: finds the files of one split of a VQAv2 folder. Names are matched liberally, because
 * people unpack archives in their own way and rename folders. If nothing fits, the error says what
 * was looked for. */
#ifndef TESSERA_PREPD_DATASET_VQA_FIND_H
#define TESSERA_PREPD_DATASET_VQA_FIND_H

#include "common/conf/conf.h"
#include "common/base/status.h"

enum { VQA_PATH_MAX = 4096, VQA_NAME_MAX = 256 }; /* bytes, with the end */

typedef struct vqa_paths {
    char questions[VQA_PATH_MAX];         /* absolute; of the JSON file or of its zip file */
    char annotations[VQA_PATH_MAX];       /* the same */
    char question_member[VQA_NAME_MAX];   /* name inside the zip file; "" if it is not in one */
    char annotation_member[VQA_NAME_MAX]; /* the same */
    char images_json[VQA_PATH_MAX];       /* the list of image names; "" if the folder has none */
    char root[VQA_PATH_MAX];              /* absolute folder that image paths start from */
    char holder[VQA_PATH_MAX]; /* the folder that the user named, without links, if the data set
                                * itself says where root is; else "" */
    char image_folder[VQA_NAME_MAX]; /* below root, with a slash at its end; or "" */
    char subtype[VQA_NAME_MAX];      /* "train2014", as in the names COCO_train2014_%012d.jpg */
    char picture_zip[VQA_NAME_MAX];  /* below root; "" if the pictures are files of their own */
} vqa_paths;

/* Finds questions, annotations and images.json of data.split in data.path. ST_CONFIG if two files
 * fit equally well. */
WARN_UNUSED status vqa_find_files(const conf *options, vqa_paths *out);
/* Finds the folder whose pictures have the official names, or else the zip file (train2014.zip). */
WARN_UNUSED status vqa_find_pictures(const conf *options, vqa_paths *paths);
/* Finds the folder that the names of images.json start from: the folder of the pictures, its images
 * folder, or the one that the list's note names ("file_name is relative to images-extra/"), which
 * may also lie beside it. `first` is a file_name of the list; the folder that holds it is
 * preferred. Leaves image_folder empty. */
WARN_UNUSED status vqa_find_listed(const conf *options, const char *note, const char *first,
                                   vqa_paths *paths);

#endif
