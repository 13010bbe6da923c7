/* row_prints.c: sets up what the built-in leases need, and does them. */
#include "prepd/worker/row_prints.h"

#include <string.h>

#include "prepd/worker/print_leases.h"

static const worker_options NO_OPTIONS = {.data_root = "/"};

static status load_tokenizer(workshop *shop)
{
    int k = 0;
    while (strcmp(examples[k].name, "vocabulary.json") != 0)
        k++;
    TRY(tokenizer_parse((const char *)examples[k].bytes, examples[k].size, "built-in tokenizer",
                        &shop->tokens));
    TRY(tokenizer_scratch_new(shop->tokens, &shop->token_scratch));
    return chat_ids_find(shop->tokens, &shop->chat);
}

static status open_work(print_work *work, const image_api *images, const video_api *videos)
{
    workshop *shop = &work->shop;
    char *argv[] = {(char[]){"worker"}, NULL};
    int argc = 1;
    *work = (print_work){.shop = {.options = &NO_OPTIONS, .images = images, .videos = videos}};
    arena_init(&shop->row, 0);
    arena_init(&shop->sample, 0);
    arena_init(&work->memory, 0);
    TRY(conf_load(&shop->train, &argc, argv));
    TRY(conf_eval(&shop->train, &shop->eval));
    shop->have_conf = true;
    TRY(load_tokenizer(shop));
    TRY(codec_new(&shop->packer));
    TRY(wire_msg_new(&shop->items_made));
    TRY(wire_msg_new(&work->files));
    return hasher_new(&work->hash);
}

static status make_prints(const image_api *images, const video_api *videos, print_kind first,
                          print_kind end, fingerprints *inout_prints)
{
    print_work work;
    status st = open_work(&work, images, videos);
    for (int k = (int)first; st == ST_OK && k < (int)end; k++) {
        hasher_reset(work.hash);
        st = print_leases_do(&work, (print_kind)k);
        if (st == ST_OK)
            fingerprints_set(inout_prints, (print_kind)k, hasher_value(work.hash));
    }
    hasher_free(&work.hash);
    wire_msg_free(&work.files);
    arena_done(&work.memory);
    workshop_done(&work.shop);
    return st;
}

status row_prints_make(const image_api *images, fingerprints *inout_prints)
{
    return make_prints(images, NULL, PRINT_JPEG, PRINT_CLIPS, inout_prints);
}

status row_prints_make_clips(const image_api *images, const video_api *videos,
                             fingerprints *inout_prints)
{
    return make_prints(images, videos, PRINT_CLIPS, N_PRINTS, inout_prints);
}
