/* bpe_write.c: the trained vocabulary in the form of Hugging Face's tokenizers library. */
#include "prepd/synth/bpe.h"

#include <stdio.h>
#include <string.h>

/* Content and whether decoding may skip it; ids follow the vocabulary in this order (spec 8.4). */
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

/* The pre-tokeniser expression of the published files. */
static const char SPLIT[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                            "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

int bpe_added_id(const bpe *b, const char *content)
{
    for (int i = 0; i < N_ADDED; i++)
        if (strcmp(added_tokens[i].content, content) == 0)
            return b->n_tokens + i;
    return -1;
}

int bpe_size(const bpe *b)
{
    return b->n_tokens + N_ADDED;
}

/* The code point that stands for a byte. */
static int symbol_of(int byte)
{
    bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    if (itself)
        return byte;
    if (byte <= 32)
        return 256 + byte;
    return byte == 173 ? 256 + 67 : 256 + 33 + (byte - 127);
}

/* The token's bytes as symbols in UTF-8, terminated. */
static size_t token_symbols(const bpe *b, int token, char out[2 * BPE_TOKEN_BYTES + 1])
{
    size_t n = 0;
    for (int i = 0; i < b->size[token]; i++) {
        int code = symbol_of(b->bytes[token][i]);
        if (code < 128) {
            out[n++] = (char)code;
        } else {
            out[n++] = (char)(0xc0 | code >> 6);
            out[n++] = (char)(0x80 | (code & 63));
        }
    }
    out[n] = 0;
    return n;
}

static void put_added_flags(json_writer *w, bool special)
{
    json_put_key_bool(w, "single_word", false);
    json_put_key_bool(w, "lstrip", false);
    json_put_key_bool(w, "rstrip", false);
    json_put_key_bool(w, "normalized", false);
    json_put_key_bool(w, "special", special);
}

/* The ByteLevel step that serves as pre-tokeniser, post-processor and decoder. */
static void put_byte_level(json_writer *w)
{
    json_begin_object(w);
    json_put_key_cstr(w, "type", "ByteLevel");
    json_put_key_bool(w, "add_prefix_space", false);
    json_put_key_bool(w, "trim_offsets", false);
    json_put_key_bool(w, "use_regex", false);
    json_end_object(w);
}

static void put_pre_tokenizer(json_writer *w)
{
    json_begin_object(w);
    json_put_key_cstr(w, "type", "Sequence");
    json_begin_key_array(w, "pretokenizers");
    json_begin_object(w);
    json_put_key_cstr(w, "type", "Split");
    json_begin_key_object(w, "pattern");
    json_put_key_cstr(w, "Regex", SPLIT);
    json_end_object(w);
    json_put_key_cstr(w, "behavior", "Isolated");
    json_put_key_bool(w, "invert", false);
    json_end_object(w);
    put_byte_level(w);
    json_end_array(w);
    json_end_object(w);
}

static void put_model(const bpe *b, json_writer *w)
{
    char symbols[2 * BPE_TOKEN_BYTES + 1];
    json_begin_object(w);
    json_put_key_cstr(w, "type", "BPE");
    json_put_key_null(w, "dropout");
    json_put_key_null(w, "unk_token");
    json_put_key_cstr(w, "continuing_subword_prefix", "");
    json_put_key_cstr(w, "end_of_word_suffix", "");
    json_put_key_bool(w, "fuse_unk", false);
    json_put_key_bool(w, "byte_fallback", false);
    json_put_key_bool(w, "ignore_merges", false);
    json_begin_key_object(w, "vocab");
    for (int i = 0; i < b->n_tokens; i++) {
        token_symbols(b, i, symbols);
        json_put_key_int(w, symbols, i);
    }
    json_end_object(w);
    json_begin_key_array(w, "merges");
    for (int i = 0; i < b->n_merges; i++) {
        json_begin_array(w);
        token_symbols(b, b->left[i], symbols);
        json_put_cstr(w, symbols);
        token_symbols(b, b->right[i], symbols);
        json_put_cstr(w, symbols);
        json_end_array(w);
    }
    json_end_array(w);
    json_end_object(w);
}

void bpe_write(const bpe *b, json_writer *w)
{
    json_begin_object(w);
    json_put_key_cstr(w, "version", "1.0");
    json_put_key_null(w, "truncation");
    json_put_key_null(w, "padding");
    json_begin_key_array(w, "added_tokens");
    for (int i = 0; i < N_ADDED; i++) {
        json_begin_object(w);
        json_put_key_int(w, "id", b->n_tokens + i);
        json_put_key_cstr(w, "content", added_tokens[i].content);
        put_added_flags(w, added_tokens[i].special);
        json_end_object(w);
    }
    json_end_array(w);
    json_begin_key_object(w, "normalizer");
    json_put_key_cstr(w, "type", "NFC");
    json_end_object(w);
    json_put_key(w, "pre_tokenizer");
    put_pre_tokenizer(w);
    json_put_key(w, "post_processor");
    put_byte_level(w);
    json_put_key(w, "decoder");
    put_byte_level(w);
    json_put_key(w, "model");
    put_model(b, w);
    json_end_object(w);
}

void bpe_write_config(const bpe *b, json_writer *w)
{
    json_begin_object(w);
    json_put_key_bool(w, "add_bos_token", false);
    json_put_key_bool(w, "add_prefix_space", false);
    json_begin_key_object(w, "added_tokens_decoder");
    for (int i = 0; i < N_ADDED; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", b->n_tokens + i);
        json_begin_key_object(w, id);
        json_put_key_cstr(w, "content", added_tokens[i].content);
        put_added_flags(w, added_tokens[i].special);
        json_end_object(w);
    }
    json_end_object(w);
    json_put_key_null(w, "bos_token");
    json_put_key_bool(w, "clean_up_tokenization_spaces", false);
    json_put_key_cstr(w, "eos_token", "<|im_end|>");
    json_put_key_cstr(w, "errors", "replace");
    json_put_key_int(w, "model_max_length", 4096);
    json_put_key_cstr(w, "pad_token", "<|endoftext|>");
    json_put_key_bool(w, "split_special_tokens", false);
    json_put_key_cstr(w, "tokenizer_class", "Qwen2Tokenizer");
    json_put_key_null(w, "unk_token");
    json_end_object(w);
}
