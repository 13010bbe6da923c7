/* SPDX-License-Identifier: Apache-2.0 */
/* open_source.c: opens the data set that data.format names, or one source of a mixture, and refuses
 * files that no format reads. */
#include "prepd/dataset/adapters/open_source.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "common/base/file.h"
#include "common/base/utf8.h"
#include "prepd/dataset/adapters/chat_record.h"

/* --- tables (CSV, TSV, Parquet, Arrow, Excel), which no data.format reads ---
 *
 * They are known by the ends of their names. pandas reads all of them, so it is what the
 * message shows; the names of the columns become the members of the records. */

/* A kind of table: what it is called, and pandas' call that reads it. */
typedef struct table_kind {
    const char *ending, *name, *reader;
} table_kind;

static const table_kind kinds[] = {
    {".csv", "CSV", "read_csv"},         {".csv.gz", "CSV", "read_csv"},
    {".csv.zst", "CSV", "read_csv"},     {".tsv", "TSV", "read_table"},
    {".tsv.gz", "TSV", "read_table"},    {".parquet", "Parquet", "read_parquet"},
    {".arrow", "Arrow", "read_feather"}, {".feather", "Arrow", "read_feather"},
    {".xlsx", "Excel", "read_excel"},    {".xls", "Excel", "read_excel"},
};

static const table_kind *kind_of(const char *name)
{
    const size_t length = strlen(name);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const size_t ending = strlen(kinds[k].ending);
        if (length > ending && strcasecmp(name + length - ending, kinds[k].ending) == 0)
            return &kinds[k];
    }
    return NULL;
}

static status refuse(const conf *options, const char *path, const table_kind *kind)
{
    const bool text = conf_is_plain_text(options);
    return FAIL_IN(
        ST_BAD_INPUT, path,
        "%s files are not read. Turn it into JSON lines, a record for each row, and name "
        "those in data.path: python3 -c 'import pandas; pandas.%s(\"%s\").to_json("
        "\"train.jsonl\", orient=\"records\", lines=True)'. Its columns become the members "
        "of the records: %s (prepd/dataset/formats.md)",
        kind->name, kind->reader, path,
        text ? "data.format text wants \"text\""
             : "data.format conversations wants \"question\" and \"answer\", and \"image\" "
               "for a picture");
}

/* ST_BAD_INPUT if data.path is the file of a table, by its name. */
static status refuse_table(const conf *options)
{
    struct stat info;
    const table_kind *kind = kind_of(options->data_path);
    return kind && stat(options->data_path, &info) == 0 && S_ISREG(info.st_mode)
               ? refuse(options, options->data_path, kind)
               : ST_OK;
}

/* For a data.path in which no data were found: ST_BAD_INPUT if it is a folder with files of tables,
 * else `missed`, whose note is left as it is. */
static status explain_missing(const conf *options, status missed)
{
    char path[STATUS_PATH_MAX] = "";
    const table_kind *kind = NULL;
    DIR *dir = opendir(options->data_path);
    if (!dir)
        return missed;
    for (struct dirent *entry; !kind && (entry = readdir(dir));) {
        kind = kind_of(entry->d_name);
        if (kind)
            snprintf(path, sizeof path, "%.600s/%.300s", options->data_path, entry->d_name);
    }
    closedir(dir);
    return kind ? refuse(options, path, kind) : missed;
}

/* --- opening --- */

status dataset_open_by(const dataset_vtable *adapter, const conf *options, dataset **out)
{
    chat_rules rules;
    /* Wrong rules are an error even for data that does not use them. */
    TRY(chat_rules_of(options, &rules));
    if (!options->data_path[0])
        return FAIL_IN(ST_CONFIG, conf_place(options),
                       "data.path is not set: name the folder or file of the data set");
    TRY(refuse_table(options));
    /* Without workers here the pictures may be where trusted workers are (daemon.c). */
    if (options->data_images[0] && options->prepd_workers >= 0 &&
        !file_is_folder(options->data_images))
        return FAIL_IN(
            ST_NO_INPUT, options->data_images,
            "there is no such folder; data.images names the one that holds the pictures");
    const status opened = adapter->open(options, out);
    if (opened == ST_NO_INPUT)
        return explain_missing(options, opened);
    TRY(opened);
    const char *root = (*out)->adapter->root(*out);
    if (utf8_valid(root, strlen(root)))
        return ST_OK;
    const status st = FAIL_IN(ST_CONFIG, root,
                              "the folder's name is not UTF-8, but the messages to "
                              "workers are: rename it, or name a link to it");
    dataset_close(out);
    return st;
}

status dataset_open_source(const conf *options, dataset **out)
{
    /* One for each choice of data.format, except mixture. */
    static const dataset_vtable *const adapters[] = {
        [DATA_VQAV2] = &dataset_vqav2,           [DATA_CONVERSATIONS] = &dataset_conversations,
        [DATA_WEBDATASET] = &dataset_webdataset, [DATA_TEXT] = &dataset_text,
        [DATA_VIDEO] = &dataset_conversations,
    };
    _Static_assert(sizeof adapters / sizeof *adapters == DATA_MIXTURE,
                   "a data.format has no adapter: name it in the table above");
    return dataset_open_by(adapters[options->data_format], options, out);
}
