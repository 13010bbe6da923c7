/* bpe_write.c: writes the trained vocabulary in the form of Hugging Face's tokenizers library. */
#include "prepd/synth/bpe.h"

#include <stdio.h>
#include <string.h>

/* Qwen3-VL's added tokens: the content, and whether decoding may skip it. Their ids follow the
 * vocabulary in this order. */
static const struct added {
    const char *content;
    bool special;
} added_tokens[] = {
    {"<|endoftext|>", true},      {"<|im_start|>", true},
    {"<|im_end|>", true},         {"<|object_ref_start|>", true},
    {"<|object_ref_end|>", true}, {"<|box_start|>", true},
    {"<|box_end|>", true},        {"<|quad_start|>", true},
    {"<|quad_end|>", true},       {"<|vision_start|>", true},
    {"<|vision_end|>", true},     {"<|vision_pad|>", true},
    {"<|image_pad|>", true},      {"<|video_pad|>", true},
    {"<tool_call>", false},       {"</tool_call>", false},
    {"<|fim_prefix|>", false},    {"<|fim_middle|>", false},
    {"<|fim_suffix|>", false},    {"<|fim_pad|>", false},
    {"<|repo_name|>", false},     {"<|file_sep|>", false},
    {"<tool_response>", false},   {"</tool_response>", false},
    {"<think>", false},           {"</think>", false},
};
enum { N_ADDED = sizeof added_tokens / sizeof *added_tokens };

/* The pre-tokeniser's expression in the published tokenizer.json. */
static const char SPLIT[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                            "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

int bpe_added_id(const bpe *vocabulary, const char *content)
{
    for (int i = 0; i < N_ADDED; i++)
        if (strcmp(added_tokens[i].content, content) == 0)
            return vocabulary->n_tokens + i;
    return -1;
}

int bpe_size(const bpe *vocabulary)
{
    return vocabulary->n_tokens + N_ADDED;
}

/* The code point that stands for a byte (see bpe.c). */
static int symbol_of(int byte)
{
    bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    if (itself)
        return byte;
    if (byte <= 32)
        return 256 + byte;
    return byte == 173 ? 256 + 67 : 256 + 33 + (byte - 127);
}

/* Writes the bytes of a token as symbols in UTF-8, terminated; returns the length. */
static size_t token_symbols(const bpe *vocabulary, int token, char out[2 * BPE_TOKEN_BYTES + 1])
{
    size_t count = 0;
    for (int i = 0; i < vocabulary->size[token]; i++) {
        int code = symbol_of(vocabulary->bytes[token][i]);
        if (code < 128) {
            out[count++] = (char)code;
        } else {
            out[count++] = (char)(0xc0 | code >> 6);
            out[count++] = (char)(0x80 | (code & 63));
        }
    }
    out[count] = 0;
    return count;
}

static void put_added_flags(json_writer *writer, bool special)
{
    json_put_key_bool(writer, "single_word", false);
    json_put_key_bool(writer, "lstrip", false);
    json_put_key_bool(writer, "rstrip", false);
    json_put_key_bool(writer, "normalized", false);
    json_put_key_bool(writer, "special", special);
}

/* The ByteLevel step, which is used as pre-tokeniser, post-processor and decoder. */
static void put_byte_level(json_writer *writer)
{
    json_begin_object(writer);
    json_put_key_cstr(writer, "type", "ByteLevel");
    json_put_key_bool(writer, "add_prefix_space", false);
    json_put_key_bool(writer, "trim_offsets", false);
    json_put_key_bool(writer, "use_regex", false);
    json_end_object(writer);
}

static void put_pre_tokenizer(json_writer *writer)
{
    json_begin_object(writer);
    json_put_key_cstr(writer, "type", "Sequence");
    json_begin_key_array(writer, "pretokenizers");
    json_begin_object(writer);
    json_put_key_cstr(writer, "type", "Split");
    json_begin_key_object(writer, "pattern");
    json_put_key_cstr(writer, "Regex", SPLIT);
    json_end_object(writer);
    json_put_key_cstr(writer, "behavior", "Isolated");
    json_put_key_bool(writer, "invert", false);
    json_end_object(writer);
    put_byte_level(writer);
    json_end_array(writer);
    json_end_object(writer);
}

static void put_model(const bpe *vocabulary, json_writer *writer)
{
    char symbols[2 * BPE_TOKEN_BYTES + 1];
    json_begin_object(writer);
    json_put_key_cstr(writer, "type", "BPE");
    json_put_key_null(writer, "dropout");
    json_put_key_null(writer, "unk_token");
    json_put_key_cstr(writer, "continuing_subword_prefix", "");
    json_put_key_cstr(writer, "end_of_word_suffix", "");
    json_put_key_bool(writer, "fuse_unk", false);
    json_put_key_bool(writer, "byte_fallback", false);
    json_put_key_bool(writer, "ignore_merges", false);
    json_begin_key_object(writer, "vocab");
    for (int i = 0; i < vocabulary->n_tokens; i++) {
        token_symbols(vocabulary, i, symbols);
        json_put_key_int(writer, symbols, i);
    }
    json_end_object(writer);
    json_begin_key_array(writer, "merges");
    for (int i = 0; i < vocabulary->n_merges; i++) {
        json_begin_array(writer);
        token_symbols(vocabulary, vocabulary->left[i], symbols);
        json_put_cstr(writer, symbols);
        token_symbols(vocabulary, vocabulary->right[i], symbols);
        json_put_cstr(writer, symbols);
        json_end_array(writer);
    }
    json_end_array(writer);
    json_end_object(writer);
}

void bpe_write(const bpe *vocabulary, json_writer *writer)
{
    json_begin_object(writer);
    json_put_key_cstr(writer, "version", "1.0");
    json_put_key_null(writer, "truncation");
    json_put_key_null(writer, "padding");
    json_begin_key_array(writer, "added_tokens");
    for (int i = 0; i < N_ADDED; i++) {
        json_begin_object(writer);
        json_put_key_int(writer, "id", vocabulary->n_tokens + i);
        json_put_key_cstr(writer, "content", added_tokens[i].content);
        put_added_flags(writer, added_tokens[i].special);
        json_end_object(writer);
    }
    json_end_array(writer);
    json_begin_key_object(writer, "normalizer");
    json_put_key_cstr(writer, "type", "NFC");
    json_end_object(writer);
    json_put_key(writer, "pre_tokenizer");
    put_pre_tokenizer(writer);
    json_put_key(writer, "post_processor");
    put_byte_level(writer);
    json_put_key(writer, "decoder");
    put_byte_level(writer);
    json_put_key(writer, "model");
    put_model(vocabulary, writer);
    json_end_object(writer);
}

void bpe_write_config(const bpe *vocabulary, json_writer *writer)
{
    json_begin_object(writer);
    json_put_key_bool(writer, "add_bos_token", false);
    json_put_key_bool(writer, "add_prefix_space", false);
    json_begin_key_object(writer, "added_tokens_decoder");
    for (int i = 0; i < N_ADDED; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", vocabulary->n_tokens + i);
        json_begin_key_object(writer, id);
        json_put_key_cstr(writer, "content", added_tokens[i].content);
        put_added_flags(writer, added_tokens[i].special);
        json_end_object(writer);
    }
    json_end_object(writer);
    json_put_key_null(writer, "bos_token");
    json_put_key_bool(writer, "clean_up_tokenization_spaces", false);
    json_put_key_cstr(writer, "eos_token", "<|im_end|>");
    json_put_key_cstr(writer, "errors", "replace");
    json_put_key_int(writer, "model_max_length", 4096);
    json_put_key_cstr(writer, "pad_token", "<|endoftext|>");
    json_put_key_bool(writer, "split_special_tokens", false);
    json_put_key_cstr(writer, "tokenizer_class", "Qwen2Tokenizer");
    json_put_key_null(writer, "unk_token");
    json_end_object(writer);
}
