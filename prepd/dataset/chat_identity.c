/* chat_identity.c: what tells one set of conversations from another. */
#include "prepd/dataset/conversations.h"

status conversations_identify(conversations *d, const conf *c)
{
    hasher *h = NULL;
    if (!d->contents)
        TRY(records_contents(d->files, &d->contents));
    TRY(hasher_new(&h));
    hasher_add(h, "conversations", 13);
    hasher_add_u64(h, (uint64_t)d->n);
    hasher_add_u64(h, (uint64_t)c->data_loss_on);
    hasher_add_u64(h, c->data_trim);
    hasher_add_text(h, c->data_stage_weights);
    clip_table_digest(&d->clips, h);
    hasher_add_u64(h, (uint64_t)records_count(d->files));
    hasher_add(h, d->contents, (size_t)records_count(d->files) * sizeof *d->contents);
    d->identity = hasher_value(h);
    hasher_free(&h);
    return ST_OK;
}
