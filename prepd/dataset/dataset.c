#include "prepd/dataset/dataset.h"

status dataset_open(const conf *c, dataset **out)
{
    /* In the order of the choices of data.format. */
    static const char *const names[] = {"vqav2", "conversations", "webdataset",
                                        "text",  "video",         "mixture"};
    static const dataset_vtable *const adapters[] = {
        [DATA_VQAV2] = &dataset_vqav2,
        [DATA_CONVERSATIONS] = &dataset_conversations,
        [DATA_TEXT] = &dataset_text,
        [DATA_MIXTURE] = &dataset_mixture,
    };
    const size_t n = sizeof adapters / sizeof *adapters;
    if ((size_t)c->data_format < n && adapters[c->data_format])
        return adapters[c->data_format]->open(c, out);
    return FAIL(ST_CONFIG, "data.format %s is not built in yet", names[c->data_format]);
}

void dataset_close(dataset **d)
{
    if (!d || !*d)
        return;
    (*d)->v->close(*d);
    *d = NULL;
}
