/* terms.c: TERMS, what every worker is told of the options. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "prepd/serve/dispatch_state.h"

/* TERMS hold what a worker must know to do any lease: all options, as YAML that can be loaded, and
 * the digest of the model folder whose tokenizer the index was made with. */
status dispatch_make_terms(dispatch *d)
{
    char *yaml = NULL, model[HASH_TEXT];
    size_t yaml_size = 0, size;
    FILE *f = open_memstream(&yaml, &yaml_size);
    if (!f)
        return FAIL(ST_NO_MEMORY, "no memory for the terms");
    conf_print(d->options, f);
    if (fclose(f) != 0) {
        free(yaml);
        return FAIL(ST_NO_MEMORY, "no memory for the terms");
    }
    json_writer w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_cstr(&w, "version", TESSERA_VERSION);
    json_put_key_text(&w, "options", yaml, yaml_size);
    hash_print(d->train.model_digest, model);
    json_put_key_cstr(&w, "model", model);
    json_put_key_bool(&w, "videos", d->videos);
    json_end_object(&w);
    char *text = NULL;
    status st = json_writer_take(&w, &text, &size);
    if (st == ST_OK) {
        free(d->terms);
        d->terms = text;
    }
    json_writer_done(&w);
    free(yaml);
    return st;
}

status seat_send_terms(dispatch *d, const wire_peer *to)
{
    return wire_send_json(d->workers, to, KIND_TERMS, 0, d->terms, strlen(d->terms));
}

status dispatch_new_terms(dispatch *d)
{
    TRY(dispatch_make_terms(d));
    for (worker_seat *worker = d->seats; worker; worker = worker->next)
        if (seat_send_terms(d, &worker->peer) != ST_OK)
            log_debug("worker could not be told: %s", status_text());
    return ST_OK;
}
