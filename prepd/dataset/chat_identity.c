/* chat_identity.c: the digest that tells one set of conversations from another: the bytes of the
 * record files, the clips, and the options that change what a record means. */
#include "prepd/dataset/conversations.h"

status conversations_identify(conversations *set, const conf *options)
{
    hasher *hash = NULL;
    if (!set->contents)
        TRY(records_contents(set->files, &set->contents));
    TRY(hasher_new(&hash));
    hasher_add(hash, "conversations", 13);
    hasher_add_u64(hash, (uint64_t)set->count);
    hasher_add_u64(hash, (uint64_t)options->data_loss_on);
    hasher_add_u64(hash, options->data_trim);
    hasher_add_text(hash, options->data_stage_weights);
    clip_table_digest(&set->clips, hash);
    hasher_add_u64(hash, (uint64_t)records_count(set->files));
    hasher_add(hash, set->contents, (size_t)records_count(set->files) * sizeof *set->contents);
    set->identity = hasher_value(hash);
    hasher_free(&hash);
    return ST_OK;
}
