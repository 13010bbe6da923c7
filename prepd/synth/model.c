/* model.c: a model small enough to learn the generated data on a CPU in minutes, with every part
 * that the large ones have: experts, grouped-query attention, DeepStack, interleaved rotary
 * positions. */
#include "prepd/synth/model.h"

#include <stdlib.h>

#include "prepd/synth/bpe.h"
#include "prepd/synth/synth_files.h"
#include "prepd/synth/scene.h"

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
    int n = 0;
    for (size_t i = 0; i < sizeof template_texts / sizeof *template_texts; i++)
        texts[n++] = (bpe_text){template_texts[i], WEIGHT_TEMPLATE};
    for (int i = 0; scene_text(i) && n < MAX_TEXTS - 1; i++)
        texts[n++] = (bpe_text){scene_text(i), WEIGHT_SCENE};
    texts[n++] = (bpe_text){plain_english, WEIGHT_ENGLISH};
    return bpe_train(texts, n, 640, out);
}

static void put_ints(json_writer *w, const char *key, const int *v, int n)
{
    json_begin_key_array(w, key);
    for (int i = 0; i < n; i++)
        json_put_int(w, v[i]);
    json_end_array(w);
}

/* The hidden size is neither the width of an expert nor twice that, so that the layout of stored
 * experts can be told from their shapes. The number of heads times head_dim differs from the hidden
 * size, as in the published models. */
static void put_text_config(const bpe *b, json_writer *w)
{
    static const int sections[] = {8, 4, 4};
    int vocabulary =
        (bpe_size(b) + VOCABULARY_MULTIPLE - 1) / VOCABULARY_MULTIPLE * VOCABULARY_MULTIPLE;
    json_begin_object(w);
    json_put_key_cstr(w, "model_type", "qwen3_vl_moe_text");
    json_put_key_int(w, "vocab_size", vocabulary);
    json_put_key_int(w, "hidden_size", 128);
    json_put_key_int(w, "intermediate_size", 256);
    json_put_key_int(w, "num_hidden_layers", 4);
    json_put_key_int(w, "num_attention_heads", 8);
    json_put_key_int(w, "num_key_value_heads", 2);
    json_put_key_int(w, "head_dim", 32);
    json_put_key_cstr(w, "hidden_act", "silu");
    json_put_key_bool(w, "attention_bias", false);
    json_put_key_real(w, "attention_dropout", 0.0);
    json_put_key_int(w, "num_experts", 8);
    json_put_key_int(w, "num_experts_per_tok", 2);
    json_put_key_int(w, "moe_intermediate_size", 96);
    json_put_key_bool(w, "norm_topk_prob", true);
    json_put_key_int(w, "decoder_sparse_step", 1);
    put_ints(w, "mlp_only_layers", NULL, 0);
    json_put_key_real(w, "router_aux_loss_coef", 0.001);
    json_put_key_real(w, "rms_norm_eps", 1e-6);
    json_put_key_int(w, "rope_theta", SMALL_THETA);
    json_begin_key_object(w, "rope_scaling");
    json_put_key_cstr(w, "rope_type", "default");
    json_put_key_bool(w, "mrope_interleaved", true);
    put_ints(w, "mrope_section", sections, 3);
    json_end_object(w);
    json_put_key_int(w, "max_position_embeddings", 4096);
    json_put_key_real(w, "initializer_range", SMALL_INITIAL);
    json_put_key_int(w, "bos_token_id", bpe_added_id(b, "<|endoftext|>"));
    json_put_key_int(w, "eos_token_id", bpe_added_id(b, "<|im_end|>"));
    json_put_key_cstr(w, "dtype", "bfloat16");
    json_put_key_bool(w, "use_cache", true);
    json_put_key_bool(w, "tie_word_embeddings", false);
    json_end_object(w);
}

static void put_vision_config(json_writer *w)
{
    static const int deepstack[] = {0, 1, 2};
    json_begin_object(w);
    json_put_key_cstr(w, "model_type", "qwen3_vl_moe");
    json_put_key_int(w, "depth", 4);
    json_put_key_int(w, "hidden_size", 96);
    json_put_key_int(w, "num_heads", 4);
    json_put_key_int(w, "intermediate_size", 192);
    json_put_key_cstr(w, "hidden_act", "gelu_pytorch_tanh");
    json_put_key_int(w, "in_channels", 3);
    json_put_key_int(w, "patch_size", 16);
    json_put_key_int(w, "temporal_patch_size", 2);
    json_put_key_int(w, "spatial_merge_size", 2);
    json_put_key_int(w, "num_position_embeddings", 64);
    put_ints(w, "deepstack_visual_indexes", deepstack, 3);
    json_put_key_int(w, "out_hidden_size", 128);
    json_put_key_real(w, "initializer_range", SMALL_INITIAL);
    json_end_object(w);
}

static void put_config(const bpe *b, json_writer *w)
{
    json_begin_object(w);
    json_begin_key_array(w, "architectures");
    json_put_cstr(w, "Qwen3VLMoeForConditionalGeneration");
    json_end_array(w);
    json_put_key_cstr(w, "model_type", "qwen3_vl_moe");
    json_put_key_int(w, "image_token_id", bpe_added_id(b, "<|image_pad|>"));
    json_put_key_int(w, "video_token_id", bpe_added_id(b, "<|video_pad|>"));
    json_put_key_int(w, "vision_start_token_id", bpe_added_id(b, "<|vision_start|>"));
    json_put_key_int(w, "vision_end_token_id", bpe_added_id(b, "<|vision_end|>"));
    json_put_key_bool(w, "tie_word_embeddings", false);
    json_put_key(w, "text_config");
    put_text_config(b, w);
    json_put_key(w, "vision_config");
    put_vision_config(w);
    json_end_object(w);
}

static void put_generation(const bpe *b, json_writer *w)
{
    int ends[] = {bpe_added_id(b, "<|im_end|>"), bpe_added_id(b, "<|endoftext|>")};
    json_begin_object(w);
    json_put_key_int(w, "bos_token_id", ends[1]);
    json_put_key_int(w, "pad_token_id", ends[1]);
    json_put_key_bool(w, "do_sample", false);
    put_ints(w, "eos_token_id", ends, 2);
    json_end_object(w);
}

/* The members of "size" are areas in pixels, whatever their names say: so the processor reads them.
 */
static void put_processor(json_writer *w, int64_t min_pixels, int64_t max_pixels, const char *key,
                          const char *type)
{
    json_begin_object(w);
    json_begin_key_object(w, "size");
    json_put_key_int(w, "longest_edge", max_pixels);
    json_put_key_int(w, "shortest_edge", min_pixels);
    json_end_object(w);
    json_put_key_int(w, "patch_size", 16);
    json_put_key_int(w, "temporal_patch_size", 2);
    json_put_key_int(w, "merge_size", 2);
    static const char *const keys[] = {"image_mean", "image_std"};
    for (int k = 0; k < 2; k++) {
        json_begin_key_array(w, keys[k]);
        for (int c = 0; c < 3; c++)
            json_put_real(w, 0.5);
        json_end_array(w);
    }
    json_put_key_cstr(w, "processor_class", "Qwen3VLProcessor");
    json_put_key_cstr(w, key, type);
    json_end_object(w);
}

status model_write(const char *folder, int64_t min_pixels, int64_t max_pixels)
{
    status st;
    json_writer w;
    bpe *b = (bpe *)malloc(sizeof *b);
    if (!b)
        return FAIL(ST_NO_MEMORY, "no memory for a vocabulary");
    json_writer_init(&w);
    TRY_OR(done, train_vocabulary(b));
    put_config(b, &w);
    TRY_OR(done, files_write_json(folder, "config.json", &w));
    put_generation(b, &w);
    TRY_OR(done, files_write_json(folder, "generation_config.json", &w));
    put_processor(&w, min_pixels, max_pixels, "image_processor_type", "Qwen2VLImageProcessorFast");
    TRY_OR(done, files_write_json(folder, "preprocessor_config.json", &w));
    put_processor(&w, min_pixels, 16 * max_pixels, "video_processor_type", "Qwen3VLVideoProcessor");
    TRY_OR(done, files_write_json(folder, "video_preprocessor_config.json", &w));
    bpe_write(b, &w);
    TRY_OR(done, files_write_json(folder, "tokenizer.json", &w));
    bpe_write_config(b, &w);
    TRY_OR(done, files_write_json(folder, "tokenizer_config.json", &w));
done:
    json_writer_done(&w);
    free(b);
    return st;
}
