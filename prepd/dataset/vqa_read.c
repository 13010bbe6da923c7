#include "prepd/dataset/vqa.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "common/base/rng.h"
#include "prepd/dataset/names.h"

/* What the item callbacks share. */
typedef struct reading {
    vqa *d;
    const char *file; /* name without its folder, for causes */
    bool listed;      /* images.json gives the pictures' names */
    bool drawn;
    rng_key draw;
    int64_t limit;
    int64_t n_items;
    bool references; /* keep what answers are judged by */
} reading;

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_blank(const char *s)
{
    return s[strspn(s, " \t\r\n")] == 0;
}

/* Where an item stands, for causes: "FILE: byte N". */
static void format_place(const reading *r, int64_t offset, char out[VQA_NAME_MAX])
{
    snprintf(out, VQA_NAME_MAX, "%.180s: byte %" PRId64, r->file, offset);
}

/* Keeps the note of the failed call as the question's cause; the first cause stays. */
static status blame_note(vqa *d, vqa_question *q)
{
    if (q->cause)
        return ST_OK;
    return text_pool_format(&d->texts, &q->cause, "%s", status_text());
}

#define BLAME(d, q, ...)                                                                           \
    do {                                                                                           \
        if (!(q)->cause)                                                                           \
            TRY(text_pool_format(&(d)->texts, &(q)->cause, __VA_ARGS__));                          \
    } while (0)

static status add_image(vqa *d, int64_t id, const char *path, size_t n, int32_t *out)
{
    bool is_new;
    int64_t at;
    TRY(id_map_put(&d->by_image, id, d->n_images, &at, &is_new));
    *out = (int32_t)at;
    if (!is_new)
        return ST_OK;
    if (d->n_images == INT32_MAX)
        return FAIL_IN(ST_BAD_INPUT, d->paths.questions, "more than %d pictures", INT32_MAX);
    TRY(array_room((void **)&d->image_paths, d->n_images, &d->image_capacity,
                   sizeof *d->image_paths));
    TRY(text_pool_add(&d->texts, path, n, &d->image_paths[d->n_images]));
    d->n_images++;
    return ST_OK;
}

/* images.json: {"images": [{"id", "file_name", ...}], "note": ...}, or the bare list. */
static status read_list(vqa *d, const conf *c)
{
    json_value *document = NULL;
    const char *source = d->paths.images_json;
    status st;
    TRY(json_load(source, &document));
    const json_value *list = document;
    if (json_typeof(document) != JSON_ARRAY)
        TRY_OR(done, json_want_array(document, "images", source, &list));
    for (size_t i = 0; i < json_count(list); i++) {
        const json_value *item = json_item(list, i);
        char at[VQA_PATH_MAX + 32];
        const char *name;
        int64_t id;
        int32_t ignored;
        snprintf(at, sizeof at, "%s: images[%zu]", source, i);
        TRY_OR(done, json_want_int(item, "id", at, &id));
        TRY_OR(done, json_want_text(item, "file_name", at, &name));
        if (!path_stays_inside(name)) {
            st = FAIL_IN(ST_BAD_INPUT, at, "file_name \"%s\" leaves the folder of pictures", name);
            goto done;
        }
        if (i == 0)
            TRY_OR(done,
                   vqa_find_listed(c, json_text(json_find(document, "note"), ""), name, &d->paths));
        TRY_OR(done, add_image(d, id, name, strlen(name), &ignored));
    }
    if (d->n_images == 0)
        st = FAIL_IN(ST_BAD_INPUT, source, "the list of images is empty");
done:
    json_free(&document);
    return st;
}

/* The picture of a question by its image id. */
static status find_image(reading *r, vqa_question *q)
{
    vqa *d = r->d;
    char path[2 * VQA_NAME_MAX + 64];
    if (r->listed) {
        q->image = (int32_t)id_map_get(&d->by_image, q->image_id);
        if (q->image < 0)
            BLAME(d, q, "%s: byte %" PRId64 ": image_id %" PRId64 " is not in images.json", r->file,
                  q->offset, q->image_id);
        return ST_OK;
    }
    if (q->image_id < 0) {
        BLAME(d, q, "%s: byte %" PRId64 ": image_id %" PRId64 " is negative", r->file, q->offset,
              q->image_id);
        return ST_OK;
    }
    int64_t place = -1;
    if (d->paths.picture_zip[0]) {
        place = id_map_get(&d->place_of, q->image_id);
        if (place < 0 || d->places[place].bytes < 0) {
            BLAME(d, q, "%s: byte %" PRId64 ": image_id %" PRId64 " %s %s", r->file, q->offset,
                  q->image_id, place < 0 ? "is not in" : "is deflated, not stored, in",
                  d->paths.picture_zip);
            return ST_OK;
        }
    }
    const int64_t known = d->n_images;
    int n = place < 0 ? snprintf(path, sizeof path, "%sCOCO_%s_%012" PRId64 ".jpg",
                                 d->paths.image_folder, d->paths.subtype, q->image_id)
                      : snprintf(path, sizeof path, "%s:COCO_%s_%012" PRId64 ".jpg",
                                 d->paths.picture_zip, d->paths.subtype, q->image_id);
    TRY(add_image(d, q->image_id, path, (size_t)n, &q->image));
    if (place < 0 || d->n_images == known)
        return ST_OK;
    TRY(array_room((void **)&d->place_at, known, &d->place_at_capacity, sizeof *d->place_at));
    d->place_at[known] = place;
    return ST_OK;
}

static status on_question(void *user, const json_value *item, const json_place *place)
{
    const int64_t offset = place->offset;
    reading *r = (reading *)user;
    vqa *d = r->d;
    char at[VQA_NAME_MAX];
    r->n_items++;
    if (r->limit && d->n_questions >= r->limit)
        return ST_OK;
    TRY(array_room((void **)&d->questions, d->n_questions, &d->question_capacity,
                   sizeof *d->questions));
    vqa_question *q = &d->questions[d->n_questions];
    *q = (vqa_question){.offset = offset, .image = -1};
    format_place(r, offset, at);
    const char *text = "";
    if (!item)
        BLAME(d, q,
              "%s: a record of %" PRId64
              " bytes is not read; a record may have %d bytes and about %d values",
              at, place->bytes, JSON_ITEM_BYTES, JSON_ITEM_VALUES);
    if (json_want_int(item, "question_id", at, &q->id) == ST_OK)
        q->has_id = true;
    else
        TRY(blame_note(d, q));
    if (json_want_int(item, "image_id", at, &q->image_id) != ST_OK)
        TRY(blame_note(d, q));
    else
        TRY(find_image(r, q));
    if (json_want_text(item, "question", at, &text) != ST_OK)
        TRY(blame_note(d, q));
    else if (is_blank(text))
        BLAME(d, q, "%s: \"question\" is empty", at);
    size_t n = json_text_size(json_find(item, "question"));
    if (n > INT32_MAX) {
        BLAME(d, q, "%s: \"question\" is longer than 2 GiB", at);
        n = 0;
    }
    TRY(text_pool_add(&d->texts, text, n, &q->text));
    q->text_bytes = (int32_t)n;
    if (q->has_id) {
        bool is_new;
        int64_t first;
        TRY(id_map_put(&d->by_question, q->id, d->n_questions, &first, &is_new));
        if (!is_new)
            BLAME(d, q, "%s: question_id %" PRId64 " was given before, at byte %" PRId64, at, q->id,
                  d->questions[first].offset);
        if (!is_new)
            q->has_id = false; /* the annotation belongs to the first */
    }
    d->n_questions++;
    return ST_OK;
}

/* The text to be trained: multiple_choice_answer, or one of the ten drawn by (seed, question). */
static status pick_answer(reading *r, const json_value *item, const char *at, const char **out,
                          size_t *out_n)
{
    const json_value *owner = item;
    const char *key = "multiple_choice_answer";
    if (r->drawn) {
        const json_value *answers;
        int64_t id = json_int(json_find(item, "question_id"), 0);
        TRY(json_want_array(item, "answers", at, &answers));
        if (json_count(answers) == 0)
            return FAIL_IN(ST_BAD_INPUT, at, "\"answers\" is empty");
        owner = json_item(answers, rng_below(r->draw, (uint64_t)id, json_count(answers)));
        key = "answer";
    }
    TRY(json_want_text(owner, key, at, out));
    *out_n = json_text_size(json_find(owner, key));
    if (is_blank(*out))
        return FAIL_IN(ST_BAD_INPUT, at, "\"%s\" is empty", key);
    if (*out_n > INT32_MAX)
        return FAIL_IN(ST_BAD_INPUT, at, "\"%s\" is longer than 2 GiB", key);
    return ST_OK;
}

static void put_text_of(json_writer *w, const json_value *item, const char *key)
{
    json_put_key_cstr(w, key, json_text(json_find(item, key), ""));
}

/* What the official evaluation needs of an annotation. */
static status keep_reference(vqa *d, vqa_question *q, const json_value *item)
{
    const json_value *answers = json_find(item, "answers");
    json_writer w;
    char *text = NULL;
    size_t size;
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_int(&w, "question_id", q->id);
    put_text_of(&w, item, "question_type");
    put_text_of(&w, item, "answer_type");
    json_begin_key_array(&w, "answers");
    for (size_t i = 0; i < json_count(answers); i++)
        json_put_cstr(&w, json_text(json_find(json_item(answers, i), "answer"), ""));
    json_end_array(&w);
    json_end_object(&w);
    TRY(json_writer_take(&w, &text, &size));
    status st = text_pool_add(&d->texts, text, size, &q->reference);
    free(text);
    return st;
}

static status on_annotation(void *user, const json_value *item, const json_place *place)
{
    const int64_t offset = place->offset;
    reading *r = (reading *)user;
    vqa *d = r->d;
    char at[VQA_NAME_MAX];
    int64_t id, image_id;
    const char *answer;
    size_t n;
    r->n_items++;
    format_place(r, offset, at);
    /* An annotation without a readable id, or of a question that is not here, blames nobody: the
     * question it was meant for then has none. */
    if (json_want_int(item, "question_id", at, &id) != ST_OK)
        return ST_OK;
    int64_t position = id_map_get(&d->by_question, id);
    if (position < 0)
        return ST_OK;
    vqa_question *q = &d->questions[position];
    if (q->answered) {
        BLAME(d, q, "%s: question_id %" PRId64 " has a second annotation", at, id);
        return ST_OK;
    }
    q->answered = true;
    if (json_want_int(item, "image_id", at, &image_id) != ST_OK)
        return blame_note(d, q);
    if (image_id != q->image_id)
        BLAME(d, q, "%s: image_id %" PRId64 ", but the question has %" PRId64, at, image_id,
              q->image_id);
    if (pick_answer(r, item, at, &answer, &n) != ST_OK)
        return blame_note(d, q);
    q->answer_bytes = (int32_t)n;
    if (r->references)
        TRY(keep_reference(d, q, item));
    return text_pool_add(&d->texts, answer, n, &q->answer);
}

status vqa_read(vqa *d, const conf *c, int64_t limit)
{
    reading r = {.d = d, .limit = limit};
    r.references = c->data_references;
    r.drawn = c->data_answer == ANSWER_DRAWN;
    r.draw = rng_key_make((uint64_t)c->training_seed, "answer");
    r.listed = d->paths.images_json[0] != 0;
    if (r.listed)
        TRY(read_list(d, c));
    else
        TRY(vqa_find_pictures(c, &d->paths));
    if (d->paths.picture_zip[0])
        TRY(vqa_zip_pictures(d));
    const vqa_paths *p = &d->paths;
    r.file = file_name(p->question_member[0] ? p->question_member : p->questions);
    TRY(vqa_stream(p->questions, p->question_member, "questions", NULL, on_question, &r));
    if (d->n_questions == 0)
        return FAIL_IN(ST_BAD_INPUT, d->paths.questions, "the file holds no question");
    r.file = file_name(p->annotation_member[0] ? p->annotation_member : p->annotations);
    /* Ten answers are nine tenths of an annotation. */
    TRY(vqa_stream(p->annotations, p->annotation_member, "annotations",
                   r.drawn || r.references ? NULL : "answers", on_annotation, &r));
    for (int64_t i = 0; i < d->n_questions; i++) {
        vqa_question *q = &d->questions[i];
        if (!q->answered)
            BLAME(d, q, "question_id %" PRId64 " has no annotation in %s", q->id, r.file);
    }
    return ST_OK;
}
