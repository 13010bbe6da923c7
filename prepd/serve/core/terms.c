/* terms.c: TERMS, what every worker is told of the options. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/dispatch_state.h"

/* TERMS hold what a worker must know to do any lease: all options, as YAML that can be loaded, and
 * the digest of the model folder whose tokenizer the index was made with. */
status dispatch_make_terms(dispatch *state)
{
    char *yaml = NULL, model[HASH_TEXT];
    size_t yaml_size = 0, size;
    FILE *file = open_memstream(&yaml, &yaml_size);
    if (!file)
        return FAIL(ST_NO_MEMORY, "no memory for the terms");
    conf_print(state->options, file);
    if (fclose(file) != 0) {
        free(yaml);
        return FAIL(ST_NO_MEMORY, "no memory for the terms");
    }
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_cstr(&writer, "version", TESSERA_VERSION);
    json_put_key_text(&writer, "options", yaml, yaml_size);
    hash_print(state->train.model_digest, model);
    json_put_key_cstr(&writer, "model", model);
    json_put_key_bool(&writer, "videos", state->videos);
    json_end_object(&writer);
    char *text = NULL;
    status st = json_writer_take(&writer, &text, &size);
    if (st == ST_OK) {
        free(state->terms);
        state->terms = text;
    }
    json_writer_done(&writer);
    free(yaml);
    return st;
}

status seat_send_terms(dispatch *state, const wire_peer *to)
{
    return outside_send_json(&state->outside, DOOR_WORKERS, to, KIND_TERMS, 0, state->terms,
                             strlen(state->terms));
}

status dispatch_new_terms(dispatch *state)
{
    TRY(dispatch_make_terms(state));
    for (worker_seat *worker = state->seats; worker; worker = worker->next) {
        worker->excused = true;
        if (seat_send_terms(state, &worker->peer) != ST_OK)
            outside_debug(&state->outside, "worker could not be told: %s", status_text());
    }
    return ST_OK;
}
