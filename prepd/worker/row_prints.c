/* SPDX-License-Identifier: Apache-2.0 */
/* row_prints.c: sets up what the built-in leases need, and does them. */
#include "prepd/worker/row_prints.h"

#include <stdio.h>
#include <string.h>

#include "prepd/sample/clip.h"

/* The built-in leases by whose rows two builds are compared (row_prints.h).
 *
 * tests/style/leases checks that the list has every value of the options that change how a row
 * is made, every format and codec, and every member of a document. */

/* Small, so that a picture takes a fraction of a millisecond; both ways of fitting are used. */
static const fit_limits LIMITS = {.min_pixels = 1024, .max_pixels = 1 << 16};

static const char PICTURE_TURNS[] =
    "[{\"role\":1,\"trained\":false,\"parts\":[0,\"what colour is the circle?\"]},"
    "{\"role\":2,\"trained\":true,\"parts\":[\"red\"]}]";
static const char OTHER_TURNS[] =
    "[{\"role\":1,\"trained\":false,\"parts\":[0,\"what colour is the square?\"]},"
    "{\"role\":2,\"trained\":true,\"parts\":[\"blue\"]}]";

static bool ends_in(const char *name, const char *ending)
{
    const size_t length = strlen(name), tail = strlen(ending);
    return length >= tail && strcmp(name + length - tail, ending) == 0;
}

static const example *find_example(const char *name)
{
    int i = 0;
    while (strcmp(examples[i].name, name) != 0)
        i++;
    return &examples[i];
}

/* --- one picture --- */

static fit_grid grid_of(int32_t rows, int32_t columns)
{
    return (fit_grid){rows * PATCH_SIDE, columns * PATCH_SIDE, rows, columns, 0};
}

/* A document with these turns and no picture yet. */
static print_doc doc_of(int64_t id, const char *turns, int64_t tokens)
{
    return (print_doc){.id = id, .turns = turns, .tokens = tokens};
}

static void show(print_doc *doc, int64_t file, fit_grid grid)
{
    doc->images[doc->n_images] = file;
    doc->grids[doc->n_images++] = grid;
    doc->tokens += fit_tokens(grid);
}

/* Makes a row of one picture, at this size or, if grid is NULL, as it is fitted. */
static status do_picture(print_work *work, print_file file, const fit_grid *grid)
{
    print_text text = {.turns = PICTURE_TURNS, .n_images = 1};
    fit_grid fitted;
    TRY(print_measure_file(work, &file));
    if (!file.height)
        return ST_OK; /* refused, as the hash has it now */
    TRY(print_measure_texts(work, &text, 1));
    if (!grid)
        TRY(fit_image(file.height, file.width, LIMITS, &fitted));
    print_doc doc = doc_of(1, PICTURE_TURNS, text.tokens);
    show(&doc, 0, grid ? *grid : fitted);
    print_begin_row(work);
    TRY(print_add_file(work, &file));
    print_add_doc(work, &doc);
    return print_end_row(work, false);
}

/* Makes a row of each picture whose name ends so, with each of these values of the option. */
static status do_pictures(print_work *work, const char *ending, int *option, const int *values,
                          int n_values)
{
    const int before = *option;
    for (int k = 0; k < n_values; k++) {
        *option = values[k];
        for (int i = 0; i < n_examples; i++)
            if (ends_in(examples[i].name, ending))
                TRY(do_picture(work, (print_file){.from = &examples[i]}, NULL));
    }
    *option = before;
    return ST_OK;
}

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static status do_jpeg(print_work *work)
{
    static const int decoders[] = {DECODER_AUTO, DECODER_VIPS};
    return do_pictures(work, ".jpg", &work->shop.train.image_decoder, decoders, COUNT(decoders));
}

static const int transparencies[] = {TRANSPARENCY_4_57, TRANSPARENCY_5_23};

static status do_png(print_work *work)
{
    return do_pictures(work, ".png", &work->shop.train.image_transparency, transparencies,
                       COUNT(transparencies));
}

static status do_webp(print_work *work)
{
    return do_pictures(work, ".webp", &work->shop.train.image_transparency, transparencies,
                       COUNT(transparencies));
}

/* --- sizes --- */

static const int resamplers[] = {RESAMPLER_TORCH, RESAMPLER_PILLOW, RESAMPLER_VIPS,
                                 RESAMPLER_PILLOW13};

/* A picture that becomes smaller, larger, both, or stays as it is, which takes another way through
 * make_row.c; also for a JPEG whose colours are converted while it is cut. */
static status do_resizing(print_work *work)
{
    static const struct {
        const char *name;
        int32_t rows, columns;
    } sizes[] = {{"exact420.jpg", 2, 4}, {"exact444.jpg", 2, 4}, {"exact444.jpg", 2, 2},
                 {"exact444.jpg", 4, 4}, {"exact444.jpg", 6, 8}, {"ycc444.jpg", 4, 2},
                 {"ycc444.jpg", 2, 4},   {"rgb8.png", 8, 10}};
    int *option = &work->shop.train.image_resampler;
    const int before = *option;
    for (int k = 0; k < COUNT(resamplers); k++) {
        *option = resamplers[k];
        for (int i = 0; i < COUNT(sizes); i++) {
            const fit_grid grid = grid_of(sizes[i].rows, sizes[i].columns);
            TRY(do_picture(work, (print_file){.from = find_example(sizes[i].name)}, &grid));
        }
    }
    *option = before;
    return do_picture(work, (print_file){.from = find_example("ycc420.jpg"), .piece = 512}, NULL);
}

/* --- how pixels are packed, and which documents a row may have --- */

/* A row of a picture, a second question about it, a third that is blank, another picture, and the
 * first one again. */
static status do_packed_row(print_work *work, bool press)
{
    print_text text = {.turns = PICTURE_TURNS, .n_images = 1};
    print_file files[] = {{.from = find_example("ycc420.jpg")},
                          {.from = find_example("rgba8.png")}};
    TRY(print_measure_texts(work, &text, 1));
    for (int i = 0; i < COUNT(files); i++)
        TRY(print_measure_file(work, &files[i]));
    print_begin_row(work);
    for (int i = 0; i < COUNT(files); i++)
        TRY(print_add_file(work, &files[i]));
    for (int i = 0; i < 5; i++) {
        print_doc doc = doc_of(i, PICTURE_TURNS, text.tokens);
        doc.shared = i == 1 || i == 2;
        doc.bad = i == 2;
        show(&doc, i == 3, i == 3 ? grid_of(2, 4) : grid_of(4, 2));
        print_add_doc(work, &doc);
    }
    TRY(print_end_row(work, press));
    print_doc blank = doc_of(7, PICTURE_TURNS, text.tokens);
    blank.bad = true;
    show(&blank, 0, grid_of(2, 2));
    print_begin_row(work);
    TRY(print_add_file(work, &files[0]));
    print_add_doc(work, &blank);
    return print_end_row(work, press);
}

static status do_packing(print_work *work)
{
    static const int codecs[] = {CODEC_AUTO, CODEC_NONE, CODEC_ZSTD};
    conf *options = &work->shop.train;
    for (int i = 0; i < COUNT(codecs); i++) {
        options->prepd_image_codec = codecs[i];
        TRY(do_packed_row(work, false));
        TRY(do_packed_row(work, true));
    }
    options->prepd_image_codec = CODEC_AUTO;
    return ST_OK;
}

/* --- texts --- */

/* A system turn, a turn of the assistant that is not trained, weights, and characters in several
 * forms. */
static const char TALK[] =
    "[{\"role\":0,\"trained\":false,\"parts\":[\"the circle is red\"]},"
    "{\"role\":1,\"trained\":false,\"parts\":[\"how many caf\\u00e9 ?  \\n\\n\",\"12 "
    "cafe\\u0301\"]},"
    "{\"role\":2,\"trained\":false,\"parts\":[\"three\"]},"
    "{\"role\":1,\"trained\":false,\"parts\":[\"\\ud55c \\u1112\\u1161\\u11ab \\ud83d\\ude0a\"]},"
    "{\"role\":2,\"trained\":true,\"parts\":[\"yes, \",\"two \",\"blue\"],\"weights\":[0.5,2,0]}]";
static const char PLAIN[] = "[{\"role\":2,\"trained\":true,\"parts\":[\"what colour is the red "
                            "square left of a blue circle? "
                            "how many are there\\n\\nna\\u00efve \\u212bngstrom \\u4e2d\\u6587 "
                            "don't WE'LL 1234 \\t !?\"]}]";
static const char SHORT[] = "[{\"role\":1,\"trained\":false,\"parts\":[\"how many?\"]},"
                            "{\"role\":2,\"trained\":true,\"parts\":[\"two\"]}]";

/* A row of whole texts. With data.system a text without a system turn gets one. */
static status do_whole_texts(print_work *work)
{
    print_text texts[] = {{.turns = TALK}, {.turns = SHORT}, {.turns = PLAIN, .plain = true}};
    TRY(print_measure_texts(work, texts, COUNT(texts)));
    print_begin_row(work);
    for (int i = 0; i < COUNT(texts); i++) {
        print_doc doc = doc_of(i, texts[i].turns, texts[i].tokens);
        doc.plain = texts[i].plain;
        print_add_doc(work, &doc);
    }
    return print_end_row(work, false);
}

static status do_split_text(print_work *work)
{
    print_text text = {.turns = PLAIN, .plain = true};
    TRY(print_measure_texts(work, &text, 1));
    print_begin_row(work);
    for (int32_t i = 0; i < 2; i++) {
        print_doc doc = doc_of(5, PLAIN, i ? text.tokens - text.tokens / 2 : text.tokens / 2);
        doc.plain = true;
        doc.part = i;
        doc.from = i ? text.tokens / 2 : 0;
        doc.whole = text.tokens;
        doc.same = i > 0;
        print_add_doc(work, &doc);
    }
    return print_end_row(work, false);
}

/* A row of two samples that begin alike: what they share, and two branches. */
static status do_prefix(print_work *work, print_file *file, const char *one, const char *other)
{
    print_text texts[] = {{.turns = one, .n_images = file != NULL},
                          {.turns = other, .n_images = file != NULL}};
    const fit_grid grid = grid_of(2, 4);
    TRY(print_measure_texts(work, texts, 2));
    int64_t before = texts[1].agrees;
    for (int i = 0; i < 2; i++)
        if (texts[i].first_label - 1 < before)
            before = texts[i].first_label - 1;
    const int64_t pads = file ? fit_tokens(grid) : 0;
    print_doc prefix = doc_of(0, one, before);
    prefix.part = -1;
    prefix.prefix = 2;
    prefix.whole = texts[0].tokens + pads;
    print_begin_row(work);
    if (file) {
        TRY(print_add_file(work, file));
        show(&prefix, 0, grid);
    }
    print_add_doc(work, &prefix);
    for (int i = 0; i < 2; i++) {
        print_doc doc = doc_of(i, texts[i].turns, texts[i].tokens - before);
        doc.before = doc.from = prefix.tokens;
        doc.whole = texts[i].tokens + pads;
        doc.same = i == 0;
        print_add_doc(work, &doc);
    }
    return print_end_row(work, false);
}

static status do_texts(print_work *work)
{
    const char *const before = work->shop.train.data_system;
    print_file file = {.from = find_example("ycc420.jpg")};
    TRY(do_whole_texts(work));
    work->shop.train.data_system = "no square is red";
    TRY(do_whole_texts(work));
    work->shop.train.data_system = before;
    TRY(do_split_text(work));
    TRY(do_prefix(work, NULL,
                  "[{\"role\":1,\"trained\":false,\"parts\":[\"the circle is red. how many?\"]},"
                  "{\"role\":2,\"trained\":true,\"parts\":[\"two\"]}]",
                  "[{\"role\":1,\"trained\":false,\"parts\":[\"the circle is red. what?\"]},"
                  "{\"role\":2,\"trained\":true,\"parts\":[\"blue\"]}]"));
    TRY(print_measure_file(work, &file));
    TRY(do_prefix(work, &file, PICTURE_TURNS, OTHER_TURNS));
    print_begin_row(work);
    return print_end_row(work, false); /* the empty row */
}

/* --- clips --- */

/* A row of the clip: its first, middle and last frame. */
static status do_clip(print_work *work, print_file file)
{
    char clip[128];
    const int64_t last = file.frames - 1;
    fit_grid grid = grid_of(2, 4);
    snprintf(clip, sizeof clip, "{\"index\":[0,%lld,%lld],\"fps\":%.17g}", (long long)(last / 2),
             (long long)last, file.fps);
    print_text text = {.turns = PICTURE_TURNS, .n_images = 1, .clip = clip};
    TRY(print_measure_texts(work, &text, 1));
    grid.pairs = 2;
    print_doc doc = doc_of(1, PICTURE_TURNS, text.tokens);
    doc.clip = clip;
    show(&doc, 0, grid);
    print_begin_row(work);
    TRY(print_add_file(work, &file));
    print_add_doc(work, &doc);
    return print_end_row(work, false);
}

static const int prompts[] = {VIDEO_PROMPT_4_57, VIDEO_PROMPT_5_23};

/* A folder of frames, which needs no video decoder. In a row lease it names the frames taken. */
static status do_frames(print_work *work)
{
    conf *options = &work->shop.train;
    for (int i = 0; i < COUNT(prompts); i++)
        for (int k = 0; k < COUNT(resamplers); k++) {
            print_file file = {.from = find_example("orientation2.jpg"), .n_frames = 3, .fps = 2};
            options->video_prompt = prompts[i];
            options->image_resampler = resamplers[k];
            TRY(print_measure_file(work, &file));
            TRY(do_clip(work, file));
        }
    options->video_prompt = VIDEO_PROMPT_4_57;
    options->image_resampler = RESAMPLER_TORCH;
    return ST_OK;
}

static status do_clips(print_work *work)
{
    static const char *const endings[] = {".mp4", ".mkv", ".webm", ".avi", ".ts"};
    for (int i = 0; i < n_examples; i++)
        for (int k = 0; k < COUNT(endings); k++) {
            print_file file = {.from = &examples[i], .video = true};
            if (!ends_in(examples[i].name, endings[k]))
                continue;
            TRY(print_measure_file(work, &file));
            if (file.frames)
                TRY(do_clip(work, file));
        }
    return ST_OK;
}

/* Does all leases of one fingerprint of rows, which then is the value of work->hash. */
static status print_leases_do(print_work *work, print_kind kind)
{
    static status (*const make[N_PRINTS])(print_work *) = {
        [PRINT_JPEG] = do_jpeg,         [PRINT_PNG] = do_png,       [PRINT_WEBP] = do_webp,
        [PRINT_RESIZING] = do_resizing, [PRINT_FRAMES] = do_frames, [PRINT_TEXTS] = do_texts,
        [PRINT_PACKING] = do_packing,   [PRINT_CLIPS] = do_clips};
    return make[kind](work);
}

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
