#include "prepd/dataset/dataset.h"

status dataset_open(const conf *c, dataset **out)
{
    /* In the order of the choices of data.format. */
    static const char *const names[] = {"vqav2", "conversations", "webdataset",
                                        "text",  "video",         "mixture"};
    if (c->data_format == DATA_VQAV2)
        return dataset_vqav2.open(c, out);
    return FAIL(ST_CONFIG, "data.format %s is not built in yet; this version reads vqav2",
                names[c->data_format]);
}

void dataset_close(dataset **d)
{
    if (!d || !*d)
        return;
    (*d)->v->close(*d);
    *d = NULL;
}
