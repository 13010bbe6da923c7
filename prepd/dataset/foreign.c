/* foreign.c: knows tables by the ends of their names. pandas reads all of them, so it is what the
 * message shows; the names of the columns become the members of the records. */
#include "prepd/dataset/foreign.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

/* A kind of table: what it is called, and pandas' call that reads it. */
typedef struct foreign_kind {
    const char *ending, *name, *reader;
} foreign_kind;

static const foreign_kind kinds[] = {
    {".csv", "CSV", "read_csv"},         {".csv.gz", "CSV", "read_csv"},
    {".csv.zst", "CSV", "read_csv"},     {".tsv", "TSV", "read_table"},
    {".tsv.gz", "TSV", "read_table"},    {".parquet", "Parquet", "read_parquet"},
    {".arrow", "Arrow", "read_feather"}, {".feather", "Arrow", "read_feather"},
    {".xlsx", "Excel", "read_excel"},    {".xls", "Excel", "read_excel"},
};

static const foreign_kind *kind_of(const char *name)
{
    const size_t length = strlen(name);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const size_t ending = strlen(kinds[k].ending);
        if (length > ending && strcasecmp(name + length - ending, kinds[k].ending) == 0)
            return &kinds[k];
    }
    return NULL;
}

static status refuse(const conf *options, const char *path, const foreign_kind *kind)
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

status foreign_refuse_file(const conf *options)
{
    struct stat info;
    const foreign_kind *kind = kind_of(options->data_path);
    return kind && stat(options->data_path, &info) == 0 && S_ISREG(info.st_mode)
               ? refuse(options, options->data_path, kind)
               : ST_OK;
}

status foreign_explain(const conf *options, status missed)
{
    char path[STATUS_PATH_MAX] = "";
    const foreign_kind *kind = NULL;
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
