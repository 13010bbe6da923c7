/* SPDX-License-Identifier: Apache-2.0 */
/* model.c: a model small enough to learn the generated data on a CPU in minutes, with every part
 * that the large ones have: experts, grouped-query attention, DeepStack, interleaved rotary
 * positions. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/synth/synth.h"

/* --- files --- */

status files_path(char out[FILES_PATH_MAX], const char *folder, const char *format, ...)
{
    char name[FILES_PATH_MAX];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(name, sizeof name, format, args);
    va_end(args);
    if (length < 0 || length >= FILES_PATH_MAX ||
        snprintf(out, FILES_PATH_MAX, "%s/%s", folder, name) >= FILES_PATH_MAX)
        return FAIL_IN(ST_BAD_INPUT, folder, "the path is longer than %d bytes", FILES_PATH_MAX);
    return ST_OK;
}

status files_write(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return FAIL_IN(ST_CANT_CREATE, path, "cannot create: %s", strerror(errno));
    size_t written = fwrite(data, 1, size, file);
    int closed = fclose(file);
    if (written != size || closed)
        return FAIL_IN(ST_IO, path, "cannot write %zu bytes: %s", size, strerror(errno));
    return ST_OK;
}

status files_write_json(const char *folder, const char *name, json_writer *writer)
{
    char path[FILES_PATH_MAX];
    char *text = NULL;
    size_t size;
    TRY(files_path(path, folder, "%s", name));
    TRY(json_writer_take(writer, &text, &size));
    status st = files_write(path, text, size);
    free(text);
    return st;
}

/* --- the model --- */

/* The vocabulary is trained on the questions and answers and on these: the words of the chat
 * template, and plain English, so that other short questions are not spelled byte by byte. */
static const char *const template_texts[] = {"user", "assistant", "system", "\n", "\n\n", "tool"};
static const char plain_english[] =
    "You are a helpful assistant. Please look at the picture and answer with one word. Describe "
    "this image. What is in the picture? What color is the car? What is the man doing? Is there a "
    "circle in the image? Is it a yes or a no? How many people are in this photo? Where is the "
    "dog? Which animal is on the table? There is a small black cat near the window. The woman in "
    "the white shirt is holding a large orange ball. Two children are playing on the grass in "
    "front of a house. The sky above the mountain is gray and it may rain. A train stands at the "
    "station, and some people are waiting for it. The number on the sign is 4, not 5, 6, 7, 8, 9 "
    "or 0. He has been here before, and she will come back to the same place after that. It was "
    "one of the first things they had seen that day. The shapes are on the ground: a red square, "
    "a blue ring, a green triangle and a yellow cross. Some of them are near the left side, the "
    "others near the right side, above or below the middle.";

enum { WEIGHT_TEMPLATE = 1000, WEIGHT_SCENE = 100, WEIGHT_ENGLISH = 2 };
enum { VOCABULARY_MULTIPLE = 64 }; /* rows of the embedding; published ones are padded too */

/* With these two values so small a model learns in minutes, which it does not with the published
 * ones. The first weights are near 1 / sqrt(width). The rotary frequencies tell one merged patch
 * from the next: with a theta of 5,000,000 the fastest frequency of the width turns by 0.15 rad
 * from patch to patch, with 100 by 0.56. */
#define SMALL_INITIAL 0.05
enum { SMALL_THETA = 100 };

static status train_vocabulary(bpe *out)
{
    enum { MAX_TEXTS = 64 };
    bpe_text texts[MAX_TEXTS];
    int count = 0;
    for (size_t i = 0; i < sizeof template_texts / sizeof *template_texts; i++)
        texts[count++] = (bpe_text){template_texts[i], WEIGHT_TEMPLATE};
    for (int i = 0; scene_text(i) && count < MAX_TEXTS - 1; i++)
        texts[count++] = (bpe_text){scene_text(i), WEIGHT_SCENE};
    texts[count++] = (bpe_text){plain_english, WEIGHT_ENGLISH};
    return bpe_train(texts, count, 640, out);
}

static void put_ints(json_writer *writer, const char *key, const int *values, int count)
{
    json_begin_key_array(writer, key);
    for (int i = 0; i < count; i++)
        json_put_int(writer, values[i]);
    json_end_array(writer);
}

/* The hidden size is neither the width of an expert nor twice that, so that the layout of stored
 * experts can be told from their shapes. The number of heads times head_dim differs from the hidden
 * size, as in the published models. */
static void put_text_config(const bpe *merges, json_writer *writer)
{
    static const int sections[] = {8, 4, 4};
    int vocabulary =
        (bpe_size(merges) + VOCABULARY_MULTIPLE - 1) / VOCABULARY_MULTIPLE * VOCABULARY_MULTIPLE;
    json_begin_object(writer);
    json_put_key_cstr(writer, "model_type", "qwen3_vl_moe_text");
    json_put_key_int(writer, "vocab_size", vocabulary);
    json_put_key_int(writer, "hidden_size", 128);
    json_put_key_int(writer, "intermediate_size", 256);
    json_put_key_int(writer, "num_hidden_layers", 4);
    json_put_key_int(writer, "num_attention_heads", 8);
    json_put_key_int(writer, "num_key_value_heads", 2);
    json_put_key_int(writer, "head_dim", 32);
    json_put_key_cstr(writer, "hidden_act", "silu");
    json_put_key_bool(writer, "attention_bias", false);
    json_put_key_real(writer, "attention_dropout", 0.0);
    json_put_key_int(writer, "num_experts", 8);
    json_put_key_int(writer, "num_experts_per_tok", 2);
    json_put_key_int(writer, "moe_intermediate_size", 96);
    json_put_key_bool(writer, "norm_topk_prob", true);
    json_put_key_int(writer, "decoder_sparse_step", 1);
    put_ints(writer, "mlp_only_layers", NULL, 0);
    json_put_key_real(writer, "router_aux_loss_coef", 0.001);
    json_put_key_real(writer, "rms_norm_eps", 1e-6);
    json_put_key_int(writer, "rope_theta", SMALL_THETA);
    json_begin_key_object(writer, "rope_scaling");
    json_put_key_cstr(writer, "rope_type", "default");
    json_put_key_bool(writer, "mrope_interleaved", true);
    put_ints(writer, "mrope_section", sections, 3);
    json_end_object(writer);
    json_put_key_int(writer, "max_position_embeddings", 4096);
    json_put_key_real(writer, "initializer_range", SMALL_INITIAL);
    json_put_key_int(writer, "bos_token_id", bpe_added_id(merges, "<|endoftext|>"));
    json_put_key_int(writer, "eos_token_id", bpe_added_id(merges, "<|im_end|>"));
    json_put_key_cstr(writer, "dtype", "bfloat16");
    json_put_key_bool(writer, "use_cache", true);
    json_put_key_bool(writer, "tie_word_embeddings", false);
    json_end_object(writer);
}

static void put_vision_config(json_writer *writer)
{
    static const int deepstack[] = {0, 1, 2};
    json_begin_object(writer);
    json_put_key_cstr(writer, "model_type", "qwen3_vl_moe");
    json_put_key_int(writer, "depth", 4);
    json_put_key_int(writer, "hidden_size", 96);
    json_put_key_int(writer, "num_heads", 4);
    json_put_key_int(writer, "intermediate_size", 192);
    json_put_key_cstr(writer, "hidden_act", "gelu_pytorch_tanh");
    json_put_key_int(writer, "in_channels", 3);
    json_put_key_int(writer, "patch_size", 16);
    json_put_key_int(writer, "temporal_patch_size", 2);
    json_put_key_int(writer, "spatial_merge_size", 2);
    json_put_key_int(writer, "num_position_embeddings", 64);
    put_ints(writer, "deepstack_visual_indexes", deepstack, 3);
    json_put_key_int(writer, "out_hidden_size", 128);
    json_put_key_real(writer, "initializer_range", SMALL_INITIAL);
    json_end_object(writer);
}

static void put_config(const bpe *vocabulary, json_writer *writer)
{
    json_begin_object(writer);
    json_begin_key_array(writer, "architectures");
    json_put_cstr(writer, "Qwen3VLMoeForConditionalGeneration");
    json_end_array(writer);
    json_put_key_cstr(writer, "model_type", "qwen3_vl_moe");
    json_put_key_int(writer, "image_token_id", bpe_added_id(vocabulary, "<|image_pad|>"));
    json_put_key_int(writer, "video_token_id", bpe_added_id(vocabulary, "<|video_pad|>"));
    json_put_key_int(writer, "vision_start_token_id", bpe_added_id(vocabulary, "<|vision_start|>"));
    json_put_key_int(writer, "vision_end_token_id", bpe_added_id(vocabulary, "<|vision_end|>"));
    json_put_key_bool(writer, "tie_word_embeddings", false);
    json_put_key(writer, "text_config");
    put_text_config(vocabulary, writer);
    json_put_key(writer, "vision_config");
    put_vision_config(writer);
    json_end_object(writer);
}

static void put_generation(const bpe *vocabulary, json_writer *writer)
{
    int ends[] = {bpe_added_id(vocabulary, "<|im_end|>"),
                  bpe_added_id(vocabulary, "<|endoftext|>")};
    json_begin_object(writer);
    json_put_key_int(writer, "bos_token_id", ends[1]);
    json_put_key_int(writer, "pad_token_id", ends[1]);
    json_put_key_bool(writer, "do_sample", false);
    put_ints(writer, "eos_token_id", ends, 2);
    json_end_object(writer);
}

/* The members of "size" are areas in pixels, whatever their names say:
 * so the processor reads them. */
static void put_processor(json_writer *writer, int64_t min_pixels, int64_t max_pixels,
                          const char *key, const char *type)
{
    json_begin_object(writer);
    json_begin_key_object(writer, "size");
    json_put_key_int(writer, "longest_edge", max_pixels);
    json_put_key_int(writer, "shortest_edge", min_pixels);
    json_end_object(writer);
    json_put_key_int(writer, "patch_size", 16);
    json_put_key_int(writer, "temporal_patch_size", 2);
    json_put_key_int(writer, "merge_size", 2);
    static const char *const keys[] = {"image_mean", "image_std"};
    for (int k = 0; k < 2; k++) {
        json_begin_key_array(writer, keys[k]);
        for (int i = 0; i < 3; i++)
            json_put_real(writer, 0.5);
        json_end_array(writer);
    }
    json_put_key_cstr(writer, "processor_class", "Qwen3VLProcessor");
    json_put_key_cstr(writer, key, type);
    json_end_object(writer);
}

status model_write(const char *folder, int64_t min_pixels, int64_t max_pixels)
{
    status st;
    json_writer writer;
    bpe *vocabulary = (bpe *)malloc(sizeof *vocabulary);
    if (!vocabulary)
        return FAIL(ST_NO_MEMORY, "no memory for a vocabulary");
    json_writer_init(&writer);
    TRY_OR(done, train_vocabulary(vocabulary));
    put_config(vocabulary, &writer);
    TRY_OR(done, files_write_json(folder, "config.json", &writer));
    put_generation(vocabulary, &writer);
    TRY_OR(done, files_write_json(folder, "generation_config.json", &writer));
    put_processor(&writer, min_pixels, max_pixels, "image_processor_type",
                  "Qwen2VLImageProcessorFast");
    TRY_OR(done, files_write_json(folder, "preprocessor_config.json", &writer));
    put_processor(&writer, min_pixels, 16 * max_pixels, "video_processor_type",
                  "Qwen3VLVideoProcessor");
    TRY_OR(done, files_write_json(folder, "video_preprocessor_config.json", &writer));
    bpe_write(vocabulary, &writer);
    TRY_OR(done, files_write_json(folder, "tokenizer.json", &writer));
    bpe_write_config(vocabulary, &writer);
    TRY_OR(done, files_write_json(folder, "tokenizer_config.json", &writer));
done:
    json_writer_done(&writer);
    free(vocabulary);
    return st;
}
