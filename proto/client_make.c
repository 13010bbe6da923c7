/* client_make.c: a client's memory, and its end. */
#include <stdlib.h>
#include <string.h>

#include "proto/client_parts.h"

status client_make(const char *name, client **out)
{
    client *consumer = calloc(1, sizeof *consumer);
    status st = ST_OK;
    if (!consumer || !(consumer->name = strdup(name))) {
        free(consumer);
        return FAIL(ST_NO_MEMORY, "no memory for a client");
    }
    TRY_OR(failed, codec_new(&consumer->codec));
    TRY_OR(failed, wire_msg_new(&consumer->scratch));
    *out = consumer;
    return ST_OK;
failed:
    client_close(&consumer);
    return st;
}

static void free_texts(client_options *options)
{
    const char *const text[] = {options->endpoint,       options->keys,   options->stream,
                                options->stream_options, options->cursor, options->run,
                                options->consumer};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        free((char *)text[i]);
    memset(options, 0, sizeof *options);
}

status client_keep_options(client *consumer, const client_options *options)
{
    consumer->hello = *options;
    client_options *const hello = &consumer->hello;
    const char **const text[] = {&hello->endpoint,       &hello->keys,   &hello->stream,
                                 &hello->stream_options, &hello->cursor, &hello->run,
                                 &hello->consumer};
    bool all = true;
    hello->quarantine = NULL; /* it goes into consumer->known */
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (*text[i])
            all &= (*text[i] = strdup(*text[i])) != NULL;
    if (!all)
        return FAIL(ST_NO_MEMORY, "no memory for a client");
    return options->quarantine
               ? bad_samples_read_text(&consumer->known, options->quarantine, "quarantine")
               : ST_OK;
}

void client_hang_up(client *consumer)
{
    consumer->heard |= consumer->socket && wire_greeted(consumer->socket);
    wire_close(&consumer->socket);
    wire_free(&consumer->wire);
    consumer->joining = false;
}

void client_close(client **client_)
{
    client *consumer = client_ ? *client_ : NULL;
    if (!consumer)
        return;
    /* Best effort: a daemon that has left needs no BYE, and the caller's status note must remain
     * the reason for which it gives up. */
    const status_note why = *status_last();
    if (consumer->socket && consumer->welcome &&
        wire_send_json(consumer->socket, NULL, KIND_BYE, 0, "{}", 2) != ST_OK)
        status_set(&why);
    client_hang_up(consumer);
    share_free(&consumer->share);
    record_close(&consumer->record);
    codec_free(&consumer->codec);
    wire_msg_free(&consumer->scratch);
    free_texts(&consumer->hello);
    bad_samples_done(&consumer->known);
    free(consumer->welcome);
    free(consumer->cursor);
    free(consumer->name);
    free(consumer);
    *client_ = NULL;
}
