#include "prepd/dataset/open_source.h"

#include <string.h>

#include "common/base/file.h"
#include "common/base/utf8.h"
#include "prepd/dataset/chat_record.h"
#include "prepd/dataset/foreign.h"

status dataset_open_by(const dataset_vtable *adapter, const conf *options, dataset **out)
{
    chat_rules rules;
    /* Wrong rules are an error even for data that does not use them. */
    TRY(chat_rules_of(options, &rules));
    if (!options->data_path[0])
        return FAIL_IN(ST_CONFIG, conf_place(options),
                       "data.path is not set: name the folder or file of the data set");
    TRY(foreign_refuse_file(options));
    /* Without workers here the pictures may be where trusted workers are (daemon.c). */
    if (options->data_images[0] && options->prepd_workers >= 0 &&
        !file_is_folder(options->data_images))
        return FAIL_IN(
            ST_NO_INPUT, options->data_images,
            "there is no such folder; data.images names the one that holds the pictures");
    const status opened = adapter->open(options, out);
    if (opened == ST_NO_INPUT)
        return foreign_explain(options, opened);
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
