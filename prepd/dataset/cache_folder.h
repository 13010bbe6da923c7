/* cache_folder.h: the folder in which the index and the parsed tables of a data set are kept from
 * one start to the next. All of it can be made again. */
#ifndef TESSERA_PREPD_DATASET_CACHE_FOLDER_H
#define TESSERA_PREPD_DATASET_CACHE_FOLDER_H

#include <limits.h>

#include "common/conf/conf.h"

/* Finds the folder and makes it if it does not exist. The candidates are, in order:
 * prepd.cache_dir; .tessera in the folder of the data; the user's cache folder
 * ($XDG_CACHE_HOME/tessera or
 * ~/.cache/tessera); tessera-UID in the temporary folder. If prepd.cache_dir is set, it is the only
 * candidate. The log says so when the folder of the data cannot be written.
 *
 * ST_CANT_CREATE if prepd.cache_dir cannot be written, or if no candidate can; the last candidate
 * is also refused if another user may have made it, because what lies in it would be believed. */
WARN_UNUSED status cache_folder(const conf *options, char out[PATH_MAX]);

#endif
