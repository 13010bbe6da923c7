#include "prepd/dataset/dataset.h"

#include <stdio.h>

status dataset_open(const conf *c, dataset **out)
{
    /* In the order of the choices of data.format. */
    static const char *const names[] = {"vqav2", "conversations", "webdataset",
                                        "text",  "video",         "mixture"};
    static const dataset_vtable *const adapters[] = {
        [DATA_VQAV2] = &dataset_vqav2,           [DATA_CONVERSATIONS] = &dataset_conversations,
        [DATA_WEBDATASET] = &dataset_webdataset, [DATA_TEXT] = &dataset_text,
        [DATA_MIXTURE] = &dataset_mixture,
    };
    const size_t n = sizeof adapters / sizeof *adapters;
    if ((size_t)c->data_format < n && adapters[c->data_format])
        return adapters[c->data_format]->open(c, out);
    return FAIL(ST_CONFIG, "data.format %s is not built in yet", names[c->data_format]);
}

void dataset_image_place(const dataset *d, int64_t j, image_place *out)
{
    if (d->v->place) {
        d->v->place(d, j, out);
        return;
    }
    snprintf(out->path, sizeof out->path, "%s", d->v->image_path(d, j));
    out->offset = 0;
    out->bytes = -1;
}

void dataset_close(dataset **d)
{
    if (!d || !*d)
        return;
    (*d)->v->close(*d);
    *d = NULL;
}
