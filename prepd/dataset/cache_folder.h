/* cache_folder.h: where what can be made again is kept between starts. */
#ifndef TESSERA_PREPD_DATASET_CACHE_FOLDER_H
#define TESSERA_PREPD_DATASET_CACHE_FOLDER_H

#include <limits.h>

#include "common/conf/conf.h"

/* prepd.cache_dir; else .tessera in the data's folder; else, where that cannot be written (said in
 * the log), the user's cache folder, else one of the user's own in the temporary one. Made where it
 * is not there. ST_CANT_CREATE: prepd.cache_dir cannot be written; none of the others can, or the
 * last one may be another user's. */
WARN_UNUSED status cache_folder(const conf *c, char out[PATH_MAX]);

#endif
