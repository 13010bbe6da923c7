/* SPDX-License-Identifier: Apache-2.0 */
/* workshop.c: sets up what a worker needs before its first lease: options, tokenizer, codec,
 * limits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/model_folder/model_files.h"
#include "prepd/worker/worker.h"

/* Copies the lines "key: value" whose option exists here. A daemon of another build may have more
 * options. Workers read none of those, since otherwise its lease form would be another. */
static size_t keep_known(const char *yaml, size_t size, char *to)
{
    char key[128];
    size_t kept = 0;
    for (size_t at = 0, length; at < size; at += length) {
        const char *line = yaml + at, *end = memchr(line, '\n', size - at),
                   *colon = memchr(line, ':', size - at);
        length = end ? (size_t)(end - line) + 1 : size - at;
        if (!colon || colon >= line + length || (size_t)(colon - line) >= sizeof key)
            continue;
        memcpy(key, line, (size_t)(colon - line));
        key[colon - line] = 0;
        if (!conf_has(key))
            continue;
        memcpy(to + kept, line, length);
        kept += length;
    }
    return kept;
}

/* Reads the options of TERMS. They are YAML and go through the same parser as a file, in memory. */
static status read_options(workshop *shop, const char *yaml, size_t size)
{
    char path[64];
    status st = ST_OK;
    char *known;
    TRY(arena_alloc(&shop->row, size, (void **)&known));
    const size_t known_bytes = keep_known(yaml, size, known);
    int fd = memfd_create("terms", MFD_CLOEXEC);
    if (fd < 0)
        return FAIL(ST_OS, "cannot make a file in memory for the terms");
    if (write(fd, known, known_bytes) != (ssize_t)known_bytes) {
        close(fd);
        return FAIL(ST_OS, "cannot write the terms to memory");
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    char *argv[] = {(char[]){"worker"}, (char[]){"-c"}, path, NULL};
    int argc = 3;
    TRY_OR(done, conf_load(&shop->train, &argc, argv));
    shop->have_conf = true;
    if (shop->options->model) {
        TRY_OR(done, conf_set(&shop->train, "model.path", shop->options->model));
        TRY_OR(done, conf_set(&shop->train, "model.tokenizer", ""));
    }
    TRY_OR(done, conf_eval(&shop->train, &shop->eval));
done:
    close(fd);
    return st;
}

/* Checks that config.json gives the control tokens the same ids as tokenizer.json. */
static status check_ids(const char *folder, const chat_ids *chat)
{
    const struct {
        const char *key;
        int32_t id;
    } ids[] = {{"image_token_id", chat->image_pad},
               {"video_token_id", chat->video_pad},
               {"vision_start_token_id", chat->vision_start},
               {"vision_end_token_id", chat->vision_end}};
    char path[STATUS_PATH_MAX];
    json_value *value = NULL;
    status st = ST_OK;
    snprintf(path, sizeof(path), "%s/config.json", folder);
    if (access(path, F_OK) != 0)
        return ST_OK; /* the folder has only a tokenizer; the model is a preset */
    TRY(json_load(path, &value));
    for (size_t i = 0; i < sizeof(ids) / sizeof(*ids) && st == ST_OK; i++) {
        const json_value *id = json_find(value, ids[i].key);
        if (id && json_int(id, -1) != ids[i].id)
            st = FAIL_IN(ST_CONFIG, path,
                         "%s is %lld, but tokenizer.json gives that token the id %d", ids[i].key,
                         (long long)json_int(id, -1), (int)ids[i].id);
    }
    json_free(&value);
    return st;
}

/* Limits what image work may add to the address space, so that a decompression bomb fails in this
 * process and does not take the machine's memory. */
static status limit_memory(int64_t more_bytes)
{
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lld", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    if (pages == 0)
        return ST_OK;
    const rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (rlim_t)more_bytes;
    const struct rlimit limit = {bytes, bytes};
    struct rlimit now;
    if (getrlimit(RLIMIT_AS, &now) == 0 && now.rlim_max != RLIM_INFINITY && now.rlim_max < bytes)
        return ST_OK; /* a stricter limit is in force */
    if (setrlimit(RLIMIT_AS, &limit) != 0)
        return FAIL(ST_OS, "cannot limit the address space (prepd.worker_bytes)");
    return ST_OK;
}

/* Checks that the tokenizer and processor files have the same bytes as the daemon's; their paths
 * may differ. Another tokenizer gives other ids, so rows would depend on who made them, and good
 * samples would not match the index. */
static status check_model(const conf *options, const char *folder, const json_value *terms)
{
    const char *theirs;
    char ours[HASH_TEXT];
    hash128 digest;
    TRY(json_want_text(terms, "model", "terms", &theirs));
    TRY(model_files_digest(options, &digest));
    hash_print(digest, ours);
    if (strcmp(ours, theirs) == 0)
        return ST_OK;
    return FAIL_IN(ST_CONFIG, folder,
                   "the tokenizer and processor files have the digest %s here, but %s where the "
                   "daemon runs: copy its model folder to this machine and name the copy with "
                   "--model DIR",
                   ours, theirs);
}

status workshop_init(workshop *shop, const worker_options *options, const image_api *images,
                     const json_value *terms)
{
    const char *yaml, *folder;
    hash128 print;
    *shop = (workshop){.options = options, .images = images};
    arena_init(&shop->row, 0);
    arena_init(&shop->sample, 0);
    TRY(json_want_text(terms, "options", "terms", &yaml));
    TRY(read_options(shop, yaml, json_text_size(json_find(terms, "options"))));
    TRY(model_files_folder(&shop->train, &folder));
    TRY(check_model(&shop->train, folder, terms));
    TRY(tokenizer_load(folder, &shop->tokens));
    TRY(tokenizer_fingerprint(shop->tokens, &print));
    fingerprints_set(&shop->prints, PRINT_TOKENS, print);
    TRY(tokenizer_scratch_new(shop->tokens, &shop->token_scratch));
    TRY(chat_ids_find(shop->tokens, &shop->chat));
    TRY(check_ids(folder, &shop->chat));
    TRY(codec_new(&shop->packer));
    TRY(wire_msg_new(&shop->items_made));
    if (json_bool(json_find(terms, "videos"), false)) {
        TRY(video_load(&shop->videos));
        TRY(shop->videos->fingerprint(&print));
        fingerprints_set(&shop->prints, PRINT_VIDEOS, print);
    }
    return limit_memory(shop->train.prepd_worker_bytes);
}

/* An eighth of prepd.worker_bytes stays allocated between images: by default enough for a picture
 * of 40 megapixels. */
enum { KEPT_PART = 8 };

void workshop_begin_image(workshop *shop)
{
    arena_trim(&shop->sample, (size_t)(shop->train.prepd_worker_bytes / KEPT_PART));
}

void workshop_stage_end(workshop *shop, int stage, int64_t *inout_since)
{
    const int64_t now = clock_ns();
    shop->stage_ns[stage] += now - *inout_since;
    *inout_since = now;
}

void workshop_done(workshop *shop)
{
    image_cache_close(&shop->cache);
    wire_msg_free(&shop->items_made);
    codec_free(&shop->packer);
    tokenizer_scratch_free(&shop->token_scratch);
    tokenizer_free(&shop->tokens);
    if (shop->have_conf) {
        conf_done(&shop->eval);
        conf_done(&shop->train);
    }
    arena_done(&shop->row);
    arena_done(&shop->sample);
    *shop = (workshop){0};
}

status workshop_note_damage(workshop *shop, const char *of, const char *warning)
{
    char text[240];
    char *copy;
    if (!warning || shop->damage)
        return ST_OK;
    snprintf(text, sizeof(text), "%.100s%s%s", of ? of : "", of ? ": " : "", warning);
    TRY(arena_strndup(&shop->row, text, strlen(text), &copy));
    shop->damage = copy;
    return ST_OK;
}

/* Reads the members of a lease, above all the turns of a sample. */

static const char SOURCE[] = "lease";

const conf *lease_conf(const workshop *shop, const json_value *lease)
{
    return strcmp(json_text(json_find(lease, "stream"), ""), "eval") == 0 ? &shop->eval
                                                                          : &shop->train;
}

const char *lease_cause(const char *root, const char *text)
{
    size_t length = strlen(root);
    return length && strncmp(text, root, length) == 0 && text[length] == '/' ? text + length + 1
                                                                             : text;
}

bool lease_must_end(const workshop *shop, status st)
{
    return st == ST_PROTOCOL || st == ST_NO_MEMORY || (st == ST_IO && !shop->options->data_root);
}

bool lease_is_missing(const workshop *shop, status st)
{
    return st == ST_NO_INPUT || (st == ST_IO && shop->options->data_root);
}

status lease_root(const workshop *shop, const json_value *lease, const char **out)
{
    if (shop->options->data_root) {
        *out = shop->options->data_root;
        return ST_OK;
    }
    return json_want_text(lease, "root", SOURCE, out);
}

static status read_weights(const json_value *value, arena *memory, turn *said)
{
    float *weights;
    if (!value)
        return ST_OK;
    if ((int64_t)json_count(value) != said->n_parts)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "there are %zu weights for %d parts", json_count(value),
                       (int)said->n_parts);
    TRY(arena_calloc(memory, json_count(value) + 1, sizeof *weights, (void **)&weights));
    for (int32_t i = 0; i < said->n_parts; i++) {
        const double weight = json_real(json_item(value, (size_t)i), -1);
        if (!(weight >= 0 && weight <= 1e6))
            return FAIL_IN(ST_PROTOCOL, SOURCE, "the weight %g is not within 0 to 1e6", weight);
        weights[i] = (float)weight;
    }
    said->weights = weights;
    return ST_OK;
}

static status read_turn(const json_value *value, int32_t n_images, arena *memory, turn *out)
{
    int64_t role;
    const json_value *parts;
    TRY(json_want_int(value, "role", SOURCE, &role));
    TRY(json_want_array(value, "parts", SOURCE, &parts));
    if (role < ROLE_SYSTEM || role > ROLE_ASSISTANT)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "there is no role %lld", (long long)role);
    *out = (turn){.role = (int)role,
                  .trained = json_bool(json_find(value, "trained"), false),
                  .n_parts = (int32_t)json_count(parts)};
    TRY(arena_calloc(memory, json_count(parts) + 1, sizeof(part), (void **)&out->parts));
    for (int32_t i = 0; i < out->n_parts; i++) {
        const json_value *item = json_item(parts, (size_t)i);
        if (json_typeof(item) == JSON_TEXT) {
            char *text;
            TRY(arena_strndup(memory, json_text(item, ""), json_text_size(item), &text));
            out->parts[i] = (part){text, (int64_t)json_text_size(item), -1};
            continue;
        }
        int64_t number = json_int(item, -1);
        if (number < 0 || number >= n_images)
            return FAIL_IN(ST_PROTOCOL, SOURCE, "there is no image %lld in a sample with %d images",
                           (long long)number, (int)n_images);
        out->parts[i] = (part){.image = (int32_t)number};
    }
    return read_weights(json_find(value, "weights"), memory, out);
}

status lease_read_sample(const json_value *object, int32_t n_images, arena *memory, sample *out)
{
    const json_value *turns;
    int64_t id;
    TRY(json_want_int(object, "id", SOURCE, &id));
    TRY(json_want_array(object, "turns", SOURCE, &turns));
    *out = (sample){.id = (uint64_t)id,
                    .name = "",
                    .plain = json_bool(json_find(object, "plain"), false),
                    .n_turns = (int32_t)json_count(turns),
                    .n_images = n_images};
    TRY(arena_calloc(memory, json_count(turns) + 1, sizeof(turn), (void **)&out->turns));
    TRY(arena_calloc(memory, (size_t)n_images + 1, sizeof(*out->images), (void **)&out->images));
    for (int32_t i = 0; i < out->n_turns; i++)
        TRY(read_turn(json_item(turns, (size_t)i), n_images, memory, &out->turns[i]));
    return ST_OK;
}
