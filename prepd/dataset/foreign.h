/* foreign.h: tables (CSV, TSV, Parquet, Arrow, Excel), which no data.format reads. They are refused
 * by name, with a way to turn them into JSON lines. */
#ifndef TESSERA_PREPD_DATASET_FOREIGN_H
#define TESSERA_PREPD_DATASET_FOREIGN_H

#include "common/conf/conf.h"

/* ST_BAD_INPUT if data.path is the file of a table, by its name. */
WARN_UNUSED status foreign_refuse_file(const conf *options);
/* For a data.path in which no data were found: ST_BAD_INPUT if it is a folder with files of tables,
 * else `missed`, whose note is left as it is. */
WARN_UNUSED status foreign_explain(const conf *options, status missed);

#endif
