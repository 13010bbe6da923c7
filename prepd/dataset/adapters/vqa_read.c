/* SPDX-License-Identifier: Apache-2.0 */
/* vqa_read.c: reads questions and annotations, which are matched by question id, and the list of
 * pictures if there is one. A question that cannot be used keeps its place and gets a cause that
 * names file, byte and key. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/rng.h"
#include "common/json/json.h"
#include "prepd/dataset/adapters/vqa.h"
#include "prepd/dataset/tables.h"
#include "prepd/dataset/zip.h"

/* Reads VQAv2 as it is downloaded, with JSON files and pictures inside zip files. */

typedef struct pictures {
    vqa *set;
    const char *path;
    int fd;
} pictures;

/* The image id in a name such as .../COCO_train2014_000000000009.jpg; -1 if the name has another
 * form. */
static int64_t id_of(const char *name)
{
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
    const char *digits = strrchr(base, '_');
    char *end;
    if (strncmp(base, "COCO_", 5) != 0 || !digits || digits[1] < '0' || digits[1] > '9')
        return -1;
    const long long id = strtoll(digits + 1, &end, 10);
    return strcmp(end, ".jpg") == 0 ? (int64_t)id : -1;
}

static status on_picture(void *user, const zip_member *member)
{
    pictures *images = (pictures *)user;
    vqa *set = images->set;
    const int64_t id = id_of(member->name);
    int64_t at;
    bool is_new;
    zip_picture picture = {.bytes = -1};
    if (id < 0)
        return ST_OK;
    if (member->stored) {
        picture.bytes = member->bytes;
        TRY(zip_place(images->fd, images->path, member, &picture.offset));
    }
    TRY(array_room((void **)&set->places, set->n_places, &set->place_capacity,
                   sizeof *set->places));
    TRY(id_map_put(&set->place_of, id, set->n_places, &at, &is_new));
    if (!is_new)
        return FAIL_IN(ST_BAD_INPUT, images->path, "it has two members for the picture %s",
                       member->name);
    set->places[set->n_places++] = picture;
    return ST_OK;
}

/* vqa_read.c: finds the pictures of paths.picture_zip by the ids in their names. */
static status vqa_zip_pictures(vqa *set)
{
    char path[VQA_PATH_MAX + VQA_NAME_MAX];
    snprintf(path, sizeof path, "%s/%s", set->paths.root, set->paths.picture_zip);
    pictures images = {.set = set, .path = path};
    images.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (images.fd < 0)
        return FAIL_IN(ST_NO_INPUT, path, "cannot open: %s", strerror(errno));
    status st = zip_read(path, on_picture, &images);
    close(images.fd);
    if (st == ST_OK && set->n_places == 0)
        st = FAIL_IN(ST_BAD_INPUT, path, "it holds no picture named COCO_*_NUMBER.jpg");
    return st;
}

/* A search for a member of a zip file. The member is read as soon as it is found, because
 * zip_member is only valid during the call. */
typedef struct member_stream {
    const char *path, *member, *key, *without;
    json_each each;
    void *user;
    bool found;
} member_stream;

static status on_member(void *user, const zip_member *member)
{
    member_stream *stream = (member_stream *)user;
    zip_stream *zip = NULL;
    char source[2 * VQA_PATH_MAX];
    if (stream->found || strcmp(member->name, stream->member) != 0)
        return ST_OK;
    stream->found = true;
    snprintf(source, sizeof source, "%s:%s", stream->path, stream->member);
    TRY(zip_open(stream->path, member, &zip));
    status st = json_stream_from(source, zip_next, zip, stream->key, stream->without, stream->each,
                                 stream->user);
    zip_close(&zip);
    return st;
}

/* Streams the array under `key` of a JSON file, or of that member of a zip file if `member` is not
 * empty. `key`, `without` and `each` are those of json_stream_array (json.h). */
static status vqa_stream(const char *path, const char *member, const char *key, const char *without,
                         json_each each, void *user)
{
    if (!member[0])
        return json_stream_array(path, key, without, each, user);
    member_stream stream = {path, member, key, without, each, user, false};
    TRY(zip_read(path, on_member, &stream));
    return stream.found ? ST_OK
                        : FAIL_IN(ST_BAD_INPUT, path, "it no longer has a member %s", member);
}

/* What the callbacks of one reading share. */
typedef struct reading {
    vqa *set;
    const char *file; /* name without its folder, for causes */
    bool listed;      /* images.json gives the pictures' names */
    bool drawn;       /* data.answer drawn */
    rng_key draw;     /* from which answers are drawn */
    int64_t limit;
    int64_t n_items; /* of the file, so far */
    bool references; /* keep what answers are judged by */
} reading;

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_blank(const char *string)
{
    return string[strspn(string, " \t\r\n")] == 0;
}

/* Where an item stands, for causes: "FILE: byte N". */
static void format_place(const reading *reader, int64_t offset, char out[VQA_NAME_MAX])
{
    snprintf(out, VQA_NAME_MAX, "%.180s: byte %" PRId64, reader->file, offset);
}

/* Makes the error of the call that just failed the cause of the question. The first cause stays. */
static status blame_note(vqa *set, vqa_question *question)
{
    if (question->cause)
        return ST_OK;
    return text_pool_format(&set->texts, &question->cause, "%s", status_text());
}

/* Gives question q of data set d a cause, formatted as by printf, unless it has one. */
#define BLAME(set, q, ...)                                                                         \
    do {                                                                                           \
        if (!(q)->cause)                                                                           \
            TRY(text_pool_format(&(set)->texts, &(q)->cause, __VA_ARGS__));                        \
    } while (0)

static status add_image(vqa *set, int64_t id, const char *path, size_t length, int32_t *out)
{
    bool is_new;
    int64_t at;
    TRY(id_map_put(&set->by_image, id, set->n_images, &at, &is_new));
    *out = (int32_t)at;
    if (!is_new)
        return ST_OK;
    if (set->n_images == INT32_MAX)
        return FAIL_IN(ST_BAD_INPUT, set->paths.questions,
                       "its questions need more than %d pictures", INT32_MAX);
    TRY(array_room((void **)&set->image_paths, set->n_images, &set->image_capacity,
                   sizeof *set->image_paths));
    TRY(text_pool_add(&set->texts, path, length, &set->image_paths[set->n_images]));
    set->n_images++;
    return ST_OK;
}

/* Reads images.json: {"images": [{"id", "file_name", ...}], "note": ...}, or the list alone. */
static status read_list(vqa *set, const conf *options)
{
    json_value *document = NULL;
    const char *source = set->paths.images_json;
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
            st = FAIL_IN(ST_BAD_INPUT, at, "file_name \"%s\" lies outside the folder of pictures",
                         name);
            goto done;
        }
        if (i == 0)
            TRY_OR(done, vqa_find_listed(options, json_text(json_find(document, "note"), ""), name,
                                         &set->paths));
        TRY_OR(done, add_image(set, id, name, strlen(name), &ignored));
    }
    if (set->n_images == 0)
        st = FAIL_IN(ST_BAD_INPUT, source, "the list of images is empty");
done:
    json_free(&document);
    return st;
}

/* Finds the picture of a question by its image id. */
static status find_image(reading *reader, vqa_question *question)
{
    vqa *set = reader->set;
    char path[2 * VQA_NAME_MAX + 64];
    if (reader->listed) {
        question->image = (int32_t)id_map_get(&set->by_image, question->image_id);
        if (question->image < 0)
            BLAME(set, question, "%s: byte %" PRId64 ": image_id %" PRId64 " is not in images.json",
                  reader->file, question->offset, question->image_id);
        return ST_OK;
    }
    if (question->image_id < 0) {
        BLAME(set, question, "%s: byte %" PRId64 ": image_id %" PRId64 " is negative", reader->file,
              question->offset, question->image_id);
        return ST_OK;
    }
    int64_t place = -1;
    if (set->paths.picture_zip[0]) {
        place = id_map_get(&set->place_of, question->image_id);
        if (place < 0 || set->places[place].bytes < 0) {
            BLAME(set, question, "%s: byte %" PRId64 ": image_id %" PRId64 " %s %s", reader->file,
                  question->offset, question->image_id,
                  place < 0 ? "is not in" : "is deflated, not stored, in", set->paths.picture_zip);
            return ST_OK;
        }
    }
    const int64_t known = set->n_images;
    int count = place < 0
                    ? snprintf(path, sizeof path, "%sCOCO_%s_%012" PRId64 ".jpg",
                               set->paths.image_folder, set->paths.subtype, question->image_id)
                    : snprintf(path, sizeof path, "%s:COCO_%s_%012" PRId64 ".jpg",
                               set->paths.picture_zip, set->paths.subtype, question->image_id);
    TRY(add_image(set, question->image_id, path, (size_t)count, &question->image));
    if (place < 0 || set->n_images == known)
        return ST_OK;
    TRY(array_room((void **)&set->place_at, known, &set->place_at_capacity, sizeof *set->place_at));
    set->place_at[known] = place;
    return ST_OK;
}

static status on_question(void *user, const json_value *item, const json_place *place)
{
    const int64_t offset = place->offset;
    reading *reader = (reading *)user;
    vqa *set = reader->set;
    char at[VQA_NAME_MAX];
    reader->n_items++;
    if (reader->limit && set->n_questions >= reader->limit)
        return ST_OK;
    TRY(array_room((void **)&set->questions, set->n_questions, &set->question_capacity,
                   sizeof *set->questions));
    vqa_question *question = &set->questions[set->n_questions];
    *question = (vqa_question){.offset = offset, .image = -1};
    format_place(reader, offset, at);
    const char *text = "";
    if (!item)
        BLAME(set, question,
              "%s: a record of %" PRId64
              " bytes is too large; it may have %d bytes and about %d values",
              at, place->bytes, JSON_ITEM_BYTES, JSON_ITEM_VALUES);
    if (json_want_int(item, "question_id", at, &question->id) == ST_OK)
        question->has_id = true;
    else
        TRY(blame_note(set, question));
    if (json_want_int(item, "image_id", at, &question->image_id) != ST_OK)
        TRY(blame_note(set, question));
    else
        TRY(find_image(reader, question));
    if (json_want_text(item, "question", at, &text) != ST_OK)
        TRY(blame_note(set, question));
    else if (is_blank(text))
        BLAME(set, question, "%s: \"question\" is empty", at);
    size_t count = json_text_size(json_find(item, "question"));
    if (count > INT32_MAX) {
        BLAME(set, question, "%s: \"question\" is longer than 2 GiB", at);
        count = 0;
    }
    TRY(text_pool_add(&set->texts, text, count, &question->text));
    question->text_bytes = (int32_t)count;
    if (question->has_id) {
        bool is_new;
        int64_t first;
        TRY(id_map_put(&set->by_question, question->id, set->n_questions, &first, &is_new));
        if (!is_new)
            BLAME(set, question, "%s: question_id %" PRId64 " was given before, at byte %" PRId64,
                  at, question->id, set->questions[first].offset);
        if (!is_new)
            question->has_id = false; /* the annotation belongs to the first question of this id */
    }
    set->n_questions++;
    return ST_OK;
}

/* Picks the answer that is trained: multiple_choice_answer, or one of the ten answers, drawn by
 * seed and question id (data.answer drawn). */
static status pick_answer(reading *reader, const json_value *item, const char *at, const char **out,
                          size_t *out_n)
{
    const json_value *owner = item;
    const char *key = "multiple_choice_answer";
    if (reader->drawn) {
        const json_value *answers;
        int64_t id = json_int(json_find(item, "question_id"), 0);
        TRY(json_want_array(item, "answers", at, &answers));
        if (json_count(answers) == 0)
            return FAIL_IN(ST_BAD_INPUT, at, "\"answers\" is empty");
        owner = json_item(answers, rng_below(reader->draw, (uint64_t)id, json_count(answers)));
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

static void put_text_of(json_writer *writer, const json_value *item, const char *key)
{
    json_put_key_cstr(writer, key, json_text(json_find(item, key), ""));
}

/* Keeps what the official evaluation needs of an annotation, as JSON. */
static status keep_reference(vqa *set, vqa_question *question, const json_value *item)
{
    const json_value *answers = json_find(item, "answers");
    json_writer writer;
    char *text = NULL;
    size_t size;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_int(&writer, "question_id", question->id);
    put_text_of(&writer, item, "question_type");
    put_text_of(&writer, item, "answer_type");
    json_begin_key_array(&writer, "answers");
    for (size_t i = 0; i < json_count(answers); i++)
        json_put_cstr(&writer, json_text(json_find(json_item(answers, i), "answer"), ""));
    json_end_array(&writer);
    json_end_object(&writer);
    TRY(json_writer_take(&writer, &text, &size));
    status st = text_pool_add(&set->texts, text, size, &question->reference);
    free(text);
    return st;
}

static status on_annotation(void *user, const json_value *item, const json_place *place)
{
    const int64_t offset = place->offset;
    reading *reader = (reading *)user;
    vqa *set = reader->set;
    char at[VQA_NAME_MAX];
    int64_t id, image_id;
    const char *answer;
    size_t count;
    reader->n_items++;
    format_place(reader, offset, at);
    /* An annotation whose id cannot be read, or that belongs to a question that is not here, is
     * skipped. The question that it was meant for is then reported as having none. */
    if (json_want_int(item, "question_id", at, &id) != ST_OK)
        return ST_OK;
    int64_t position = id_map_get(&set->by_question, id);
    if (position < 0)
        return ST_OK;
    vqa_question *question = &set->questions[position];
    if (question->answered) {
        BLAME(set, question, "%s: question_id %" PRId64 " has a second annotation", at, id);
        return ST_OK;
    }
    question->answered = true;
    if (json_want_int(item, "image_id", at, &image_id) != ST_OK)
        return blame_note(set, question);
    if (image_id != question->image_id)
        BLAME(set, question, "%s: image_id %" PRId64 ", but the question has %" PRId64, at,
              image_id, question->image_id);
    if (pick_answer(reader, item, at, &answer, &count) != ST_OK)
        return blame_note(set, question);
    question->answer_bytes = (int32_t)count;
    if (reader->references)
        TRY(keep_reference(set, question, item));
    return text_pool_add(&set->texts, answer, count, &question->answer);
}

status vqa_read(vqa *set, const conf *options, int64_t limit)
{
    reading reader = {.set = set, .limit = limit};
    reader.references = options->is_held_out;
    reader.drawn = options->data_answer == ANSWER_DRAWN;
    reader.draw = rng_key_make((uint64_t)options->training_seed, "answer");
    reader.listed = set->paths.images_json[0] != 0;
    if (reader.listed)
        TRY(read_list(set, options));
    else
        TRY(vqa_find_pictures(options, &set->paths));
    if (set->paths.picture_zip[0])
        TRY(vqa_zip_pictures(set));
    const vqa_paths *paths = &set->paths;
    reader.file = file_name(paths->question_member[0] ? paths->question_member : paths->questions);
    TRY(vqa_stream(paths->questions, paths->question_member, "questions", NULL, on_question,
                   &reader));
    if (set->n_questions == 0)
        return FAIL_IN(ST_BAD_INPUT, set->paths.questions, "the file holds no questions");
    reader.file =
        file_name(paths->annotation_member[0] ? paths->annotation_member : paths->annotations);
    /* The ten answers are nine tenths of an annotation, so they are only built where they are
     * needed. */
    TRY(vqa_stream(paths->annotations, paths->annotation_member, "annotations",
                   reader.drawn || reader.references ? NULL : "answers", on_annotation, &reader));
    for (int64_t i = 0; i < set->n_questions; i++) {
        vqa_question *question = &set->questions[i];
        if (!question->answered)
            BLAME(set, question, "question_id %" PRId64 " has no annotation in %s", question->id,
                  reader.file);
    }
    return ST_OK;
}
