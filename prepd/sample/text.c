/* SPDX-License-Identifier: Apache-2.0 */
/* text.c: renders a sample as one string while it records the byte spans that are trained and the
 * places of pads (render), has it tokenised, and then makes ids and labels of the tokens
 * (fill_tokens). */
#include "prepd/sample/text.h"

#include <stdio.h>
#include <string.h>

#include "prepd/sample/clip.h"
#include "proto/row/batch.h"

/* The texts of the template. Lengths are computed from these. */
#define IM_START     "<|im_start|>"
#define IM_END       "<|im_end|>"
#define VISION_START "<|vision_start|>"
#define IMAGE_PAD    "<|image_pad|>"
#define VISION_END   "<|vision_end|>"
#define VIDEO_PAD    "<|video_pad|>"
#define TEXT_END     "<|endoftext|>"

static const char *const ROLE_NAME[] = {
    [ROLE_SYSTEM] = "system", [ROLE_USER] = "user", [ROLE_ASSISTANT] = "assistant"};

/* The most bytes that the template puts around a turn, an image, and a pair of frames. */
enum { TURN_BYTES = sizeof IM_START "assistant\n" IM_END "\n" - 1 };
enum { IMAGE_BYTES = sizeof VISION_START IMAGE_PAD VISION_END - 1 };
enum { PAIR_BYTES = CLIP_TEXT + sizeof VISION_START VIDEO_PAD VISION_END - 1 };

/* Bytes [start, end) of the rendered text: texts of a trained turn that have the same weight. */
typedef struct trained_span {
    int64_t start, end;
    float weight; /* in the loss; 0: these texts are not trained */
} trained_span;

/* A run of pads: those of a picture, or of a pair of a clip's frames. Places are byte offsets of
 * tokens in the text. */
typedef struct pad_run {
    int64_t at; /* its <|vision_start|> */
    int32_t image;
    int64_t open;  /* the <|vision_start|> around a whole clip, in its first run; else -1 */
    int64_t close; /* the <|vision_end|> around it, in its last run; else -1 */
} pad_run;

typedef struct rendering {
    char *text;
    int64_t size;
    trained_span *spans; /* [n_spans], ascending */
    int64_t n_spans;
    bool weighted; /* a span has a weight other than 0 and 1 */
    const chat_visual *visuals;
    bool framed_clips; /* video.prompt 5.23: two more tokens around every clip */
    pad_run *runs;     /* [n_runs], ascending */
    int64_t n_runs, n_images;
} rendering;

status chat_ids_find(const tokenizer *from, chat_ids *out)
{
    chat_ids found;
    const struct {
        const char *content;
        int32_t *id;
    } wanted[] = {
        {IM_START, &found.im_start},         {IM_END, &found.im_end},
        {VISION_START, &found.vision_start}, {VISION_END, &found.vision_end},
        {IMAGE_PAD, &found.image_pad},       {VIDEO_PAD, &found.video_pad},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].id = tokenizer_added(from, wanted[i].content);
        if (*wanted[i].id < 0)
            return FAIL(ST_BAD_INPUT,
                        "the tokenizer has no added token %s, which the Qwen3-VL chat needs",
                        wanted[i].content);
    }
    found.text_end = tokenizer_added(from, TEXT_END);
    *out = found;
    return ST_OK;
}

static void render_text(rendering *rendered, const char *text, int64_t size)
{
    if (size)
        memcpy(rendered->text + rendered->size, text, (size_t)size);
    rendered->size += size;
}

static void put_words(rendering *rendered, const char *text)
{
    render_text(rendered, text, (int64_t)strlen(text));
}

static void put_clip(rendering *text, const chat_visual *visual, int32_t image)
{
    pad_run *const first = &text->runs[text->n_runs];
    const int64_t open = text->size;
    if (text->framed_clips)
        put_words(text, VISION_START);
    for (int32_t pair = 0; pair < visual->n_pairs; pair++) {
        char when[CLIP_TEXT];
        render_text(text, when, clip_text(visual->seconds[pair], when));
        text->runs[text->n_runs++] = (pad_run){text->size, image, -1, -1};
        put_words(text, VISION_START VIDEO_PAD VISION_END);
    }
    if (!text->framed_clips)
        return;
    first->open = open;
    text->runs[text->n_runs - 1].close = text->size;
    put_words(text, VISION_END);
}

static status put_image(rendering *text, const sample *smp, int32_t image)
{
    if (image >= smp->n_images || image != text->n_images)
        return FAIL(
            ST_BAD_INPUT,
            "%s: image %d of %d is shown as number %lld; images must be shown in order, each once",
            smp->name, (int)image + 1, (int)smp->n_images, (long long)text->n_images + 1);
    const chat_visual *visual = &text->visuals[text->n_images++];
    if (visual->n_pairs > 0) {
        put_clip(text, visual, image);
        return ST_OK;
    }
    text->runs[text->n_runs++] = (pad_run){text->size, image, -1, -1};
    put_words(text, VISION_START IMAGE_PAD VISION_END);
    return ST_OK;
}

static void open_turn(rendering *text, int role)
{
    put_words(text, IM_START);
    put_words(text, ROLE_NAME[role]);
    put_words(text, "\n");
}

/* Adds the bytes [start, end). They extend the last span if they follow it and have its weight. */
static void put_span(rendering *text, int64_t start, int64_t end, float weight)
{
    trained_span *last = text->n_spans ? &text->spans[text->n_spans - 1] : NULL;
    if (start == end)
        return;
    text->weighted |= weight > 0 && weight != 1.0F;
    if (last && last->end == start && last->weight == weight)
        last->end = end;
    else
        text->spans[text->n_spans++] = (trained_span){start, end, weight};
}

static status put_turn(rendering *text, const sample *smp, const turn *said, bool train_newline)
{
    open_turn(text, said->role);
    const bool trained = said->role == ROLE_ASSISTANT && said->trained;
    float weight = 1.0F;
    for (int32_t i = 0; i < said->n_parts; i++) {
        const part *piece = &said->parts[i];
        const int64_t start = text->size;
        if (piece->image < 0)
            render_text(text, piece->text, piece->text_bytes);
        else if (said->role == ROLE_USER)
            TRY(put_image(text, smp, piece->image));
        weight = said->weights ? said->weights[i] : 1.0F;
        if (trained)
            put_span(text, start, text->size, weight);
    }
    const int64_t start = text->size;
    put_words(text, IM_END "\n");
    if (trained)
        put_span(text, start, text->size - !train_newline, weight);
    return ST_OK;
}

/* An upper bound of the text's length, so that it is allocated once. It counts each image once,
 * because put_image refuses one that is shown again. */
static int64_t text_bound(const conf *options, const sample *smp, const chat_visual *visuals)
{
    int64_t size = TURN_BYTES + (int64_t)strlen(options->data_system);
    for (int32_t k = 0; k < smp->n_images; k++)
        size += IMAGE_BYTES + (int64_t)visuals[k].n_pairs * PAIR_BYTES;
    for (int32_t i = 0; i < smp->n_turns; i++) {
        size += TURN_BYTES;
        for (int32_t k = 0; k < smp->turns[i].n_parts; k++) {
            const part *piece = &smp->turns[i].parts[k];
            size += piece->image < 0 ? piece->text_bytes : 0;
        }
    }
    return size;
}

/* Renders a plain text: all of it is one span, with <|endoftext|> at its end. */
static status render_plain(const chat_ids *ids, const sample *smp, arena *memory, rendering *out)
{
    rendering text = {0};
    const part *only = smp->n_turns == 1 && smp->turns[0].n_parts == 1 ? smp->turns[0].parts : NULL;
    if (!only || only->image >= 0)
        return FAIL(ST_BAD_INPUT, "%s: a plain sample must have one text and nothing else",
                    smp->name);
    if (ids->text_end < 0)
        return FAIL(ST_BAD_INPUT,
                    "the tokenizer has no added token " TEXT_END ", which ends a plain text");
    TRY(arena_alloc(memory, (size_t)only->text_bytes + sizeof TEXT_END, (void **)&text.text));
    TRY(arena_calloc(memory, 1, sizeof *text.spans, (void **)&text.spans));
    render_text(&text, only->text, only->text_bytes);
    put_words(&text, TEXT_END);
    put_span(&text, 0, text.size, 1.0F);
    *out = text;
    return ST_OK;
}

static status render(const conf *options, const sample *smp, const chat_visual *visuals,
                     arena *memory, rendering *out)
{
    rendering text = {.visuals = visuals,
                      .framed_clips = options->video_prompt == VIDEO_PROMPT_5_23};
    void *room;
    TRY(arena_alloc(memory, (size_t)text_bound(options, smp, visuals), &room));
    text.text = room;
    size_t spans = 0; /* one for each part and one for the end of each turn */
    size_t runs = 0;
    for (int32_t k = 0; k < smp->n_images; k++)
        runs += visuals[k].n_pairs > 0 ? (size_t)visuals[k].n_pairs : 1;
    for (int32_t i = 0; i < smp->n_turns; i++)
        spans += (size_t)smp->turns[i].n_parts + 1;
    TRY(arena_calloc(memory, spans, sizeof *text.spans, &room));
    text.spans = room;
    TRY(arena_calloc(memory, runs, sizeof *text.runs, &room));
    text.runs = room;
    bool own_system = smp->n_turns && smp->turns[0].role == ROLE_SYSTEM;
    if (options->data_system[0] && !own_system) {
        open_turn(&text, ROLE_SYSTEM);
        put_words(&text, options->data_system);
        put_words(&text, IM_END "\n");
    }
    for (int32_t i = 0; i < smp->n_turns; i++)
        if (smp->turns[i].role != ROLE_SYSTEM || i == 0)
            TRY(put_turn(&text, smp, &smp->turns[i], options->data_label_newline));
    if (text.n_images != smp->n_images)
        return FAIL(ST_BAD_INPUT, "%s: only %lld of its %d images are shown in user turns",
                    smp->name, (long long)text.n_images, (int)smp->n_images);
    *out = text;
    return ST_OK;
}

static bool closes_clip(const rendering *text, int64_t run, int64_t offset)
{
    return run > 0 && text->runs[run - 1].close == offset;
}

/* The id of the visual control token that the template put at `offset`, or -1 if it put none there.
 * `run` is the next run of pads. */
static int32_t visual_at(const rendering *text, const chat_ids *ids, int64_t run, int64_t offset)
{
    if (closes_clip(text, run, offset))
        return ids->vision_end;
    if (run >= text->n_runs)
        return -1;
    if (text->runs[run].open == offset)
        return ids->vision_start;
    const bool clip = text->visuals[text->runs[run].image].n_pairs > 0;
    int64_t at = offset - text->runs[run].at;
    if (at == 0)
        return ids->vision_start;
    if (at == (int64_t)sizeof VISION_START - 1)
        return clip ? ids->video_pad : ids->image_pad;
    if (at == (int64_t)(clip ? sizeof VISION_START VIDEO_PAD : sizeof VISION_START IMAGE_PAD) - 1)
        return ids->vision_end;
    return -1;
}

/* Checks that visual control tokens stand only where the template put them. Anywhere else they
 * would stand for pictures that do not exist. */
static status check_visual(const sample *smp, const rendering *text, const chat_ids *ids,
                           const token_list *tokens)
{
    int64_t run = 0;
    for (size_t i = 0; i < tokens->count; i++) {
        int32_t id = tokens->id[i];
        const char *name = id == ids->vision_start ? VISION_START
                           : id == ids->vision_end ? VISION_END
                           : id == ids->image_pad  ? IMAGE_PAD
                           : id == ids->video_pad  ? VIDEO_PAD
                                                   : NULL;
        if (!name)
            continue;
        if (visual_at(text, ids, run, tokens->offset[i]) != id)
            return FAIL(
                ST_BAD_INPUT,
                "%s%sits text contains %s, which stands for pictures: remove it from the text",
                smp->name, smp->name[0] ? ": " : "", name);
        run += id == ids->vision_end && !closes_clip(text, run, tokens->offset[i]);
    }
    return ST_OK;
}

/* How many characters of the rendered text begin in [start, end). */
static int64_t characters(const rendering *text, int64_t start, int64_t end)
{
    int64_t count = 0;
    for (int64_t i = start; i < end; i++)
        count += ((uint8_t)text->text[i] & 0xC0) != 0x80;
    return count;
}

/* The span of a token that begins inside span `at` and ends at byte `end`. The token may reach into
 * the texts after that span, as " Two" does if one text ends with a space. It belongs to the text
 * that most of its characters come from, and at a tie to the later one, so that the first word of a
 * stage is trained with that stage. */
static const trained_span *token_span(const rendering *text, int64_t at, int64_t start, int64_t end)
{
    const trained_span *best = &text->spans[at];
    if (end <= best->end)
        return best;
    int64_t most = characters(text, start, best->end);
    for (int64_t k = at + 1; k < text->n_spans; k++) {
        const trained_span *trained = &text->spans[k];
        if (trained->start != text->spans[k - 1].end || trained->start >= end)
            break;
        const int64_t count =
            characters(text, trained->start, trained->end < end ? trained->end : end);
        if (count >= most) {
            best = trained;
            most = count;
        }
    }
    return best;
}

/* The weight of token `index` in the loss; 0 if it is not trained, as a token that begins in the
 * template's own text. *next is the first span that does not end before the token, and moves on. */
static float weight_of(const rendering *text, const token_list *tokens, size_t index, int64_t *next)
{
    const int64_t start = tokens->offset[index];
    const int64_t end = index + 1 < tokens->count ? tokens->offset[index + 1] : text->size;
    while (*next < text->n_spans && start >= text->spans[*next].end)
        ++*next;
    if (*next == text->n_spans || start < text->spans[*next].start)
        return 0;
    return token_span(text, *next, start, end)->weight;
}

/* Copies the tokens, with the pad of each run repeated, and labels those of trained texts. */
static void fill_tokens(const rendering *text, const chat_ids *ids, const token_list *tokens,
                        chat_text *out)
{
    int64_t count = 0, run = 0, next = 0;
    out->n_targets = 0;
    for (size_t i = 0; i < tokens->count; i++) {
        int32_t id = tokens->id[i];
        if (id == ids->image_pad || id == ids->video_pad) {
            const int64_t pads = text->visuals[text->runs[run].image].tokens;
            out->run_at[run++] = count;
            for (int64_t k = 0; k < pads; k++, count++) {
                out->ids[count] = id;
                out->labels[count] = NO_LABEL;
                if (out->weights)
                    out->weights[count] = 1.0F;
            }
            continue;
        }
        const float weight = weight_of(text, tokens, i, &next);
        const bool trained = count > 0 && weight > 0;
        out->ids[count] = id;
        out->labels[count] = trained ? id : NO_LABEL;
        if (out->weights)
            out->weights[count] = trained ? weight : 1.0F;
        count++;
        out->n_targets += trained;
    }
    out->count = count;
}

status chat_encode(const tokenizer *with, tokenizer_scratch *scratch, const chat_ids *ids,
                   const conf *options, const sample *from, const chat_visual *visuals,
                   arena *memory, chat_text *out)
{
    rendering text;
    token_list *tokens = tokenizer_scratch_list(scratch);
    chat_text made = {0};
    void *room;
    TRY(from->plain ? render_plain(ids, from, memory, &text)
                    : render(options, from, visuals, memory, &text));
    tokens->count = 0;
    status st = tokenizer_encode(with, scratch, text.text, (size_t)text.size, tokens);
    if (st != ST_OK)
        return status_context(st, "%s", from->name);
    TRY(check_visual(from, &text, ids, tokens));
    int64_t count = (int64_t)tokens->count - text.n_runs;
    for (int64_t k = 0; k < text.n_runs; k++)
        count += visuals[text.runs[k].image].tokens;
    TRY(arena_calloc(memory, (size_t)count, sizeof *made.ids, &room));
    made.ids = room;
    TRY(arena_calloc(memory, (size_t)count, sizeof *made.labels, &room));
    made.labels = room;
    if (text.weighted) {
        TRY(arena_calloc(memory, (size_t)count, sizeof *made.weights, &room));
        made.weights = room;
    }
    TRY(arena_calloc(memory, (size_t)text.n_runs, sizeof *made.run_at, &room));
    made.run_at = room;
    made.n_runs = text.n_runs;
    fill_tokens(&text, ids, tokens, &made);
    if (!made.n_targets)
        return FAIL(ST_BAD_INPUT,
                    "%s%sit has no token to train: no turn of the assistant counts in the loss",
                    from->name, from->name[0] ? ": " : "");
    *out = made;
    return ST_OK;
}

/* Compares the beginnings of two texts without their pads. */

/* How many tokens both have in common from the first on. Where only one shows a picture, its
 * control tokens differ from what the other has there. */
static int64_t count_common(const chat_text *text, const chat_text *other)
{
    const int64_t most = text->count < other->count ? text->count : other->count;
    int64_t count = 0;
    while (count < most && text->ids[count] == other->ids[count])
        count++;
    return count;
}

text_beginning text_compare_beginning(const chat_text *text, const chat_text *other)
{
    text_beginning out = {.agrees = other ? count_common(text, other) : 0,
                          .head = text->n_runs ? text->run_at[text->n_runs - 1] : 0};
    while (out.first_label < text->count && text->labels[out.first_label] == NO_LABEL)
        out.first_label++;
    return out;
}
