/* SPDX-License-Identifier: Apache-2.0 */
/* bpe.c: training. The distinct pieces of the texts are kept as lists of token ids with how often
 * they occur; each round counts all pairs of neighbours, merges the commonest pair everywhere, and
 * notes the merge. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/synth/synth.h"

/* A distinct piece of the texts, as token ids. */
typedef struct piece {
    const char *text; /* where it first stands in the texts */
    int length;       /* bytes */
    int64_t count;    /* how often it occurs */
    int how_many;     /* of ids */
    int ids[BPE_TOKEN_BYTES];
} piece;

typedef struct corpus {
    piece *pieces;
    int count, capacity;
} corpus;

/* Whether the symbol of a byte in the vocabulary is the character of the same number. The other 68
 * bytes have the characters from U+0100 on (bytes_to_unicode of GPT-2's encoder.py). */
static bool prints_as_itself(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* The length of the first piece of an ASCII text. The rules are the alternatives of Qwen's
 * expression (SPLIT in bpe.c), in their order. */
static int first_piece(const char *text, int count)
{
    static const char *const contractions[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    int i = 0;
    if (text[0] == '\'')
        for (size_t k = 0; k < sizeof contractions / sizeof *contractions; k++) {
            int length = (int)strlen(contractions[k]);
            if (length < count && strncasecmp(text + 1, contractions[k], (size_t)length) == 0)
                return 1 + length;
        }
    bool led = count > 1 && !isalnum((unsigned char)text[0]) && text[0] != '\n' &&
               text[0] != '\r' && isalpha((unsigned char)text[1]);
    if (led || isalpha((unsigned char)text[0])) {
        for (i = 1; i < count && isalpha((unsigned char)text[i]);)
            i++;
        return i;
    }
    if (isdigit((unsigned char)text[0]))
        return 1;
    i = text[0] == ' ' && count > 1 && ispunct((unsigned char)text[1]);
    if (ispunct((unsigned char)text[i])) {
        while (i < count && ispunct((unsigned char)text[i]))
            i++;
        while (i < count && (text[i] == '\n' || text[i] == '\r'))
            i++;
        return i;
    }
    int run = 0, after_newline = 0;
    for (; run < count && isspace((unsigned char)text[run]); run++)
        if (text[run] == '\n' || text[run] == '\r')
            after_newline = run + 1;
    if (after_newline)
        return after_newline;
    return run == count || run < 2 ? run : run - 1;
}

static status add_piece(corpus *known, const int byte_id[256], const char *text, int length,
                        int64_t count)
{
    for (int i = 0; i < known->count; i++)
        if (known->pieces[i].length == length &&
            memcmp(known->pieces[i].text, text, (size_t)length) == 0) {
            known->pieces[i].count += count;
            return ST_OK;
        }
    if (length > BPE_TOKEN_BYTES)
        return FAIL(ST_INTERNAL, "a piece of the texts has %d bytes; the most is %d", length,
                    BPE_TOKEN_BYTES);
    if (known->count == known->capacity) {
        int capacity = known->capacity ? 2 * known->capacity : 256;
        piece *grown = (piece *)realloc(known->pieces, (size_t)capacity * sizeof *grown);
        if (!grown)
            return FAIL(ST_NO_MEMORY, "no memory for %d pieces", capacity);
        known->pieces = grown;
        known->capacity = capacity;
    }
    piece *span = &known->pieces[known->count++];
    *span = (piece){.text = text, .length = length, .count = count, .how_many = length};
    for (int i = 0; i < length; i++)
        span->ids[i] = byte_id[(uint8_t)text[i]];
    return ST_OK;
}

/* Adds the count of each piece to the entries of its pairs, or clears those entries. */
static void count_pairs(const corpus *known, int n_tokens, int64_t *pairs, bool clear)
{
    for (int i = 0; i < known->count; i++)
        for (int k = 0; k + 1 < known->pieces[i].how_many; k++) {
            int64_t at = (int64_t)known->pieces[i].ids[k] * n_tokens + known->pieces[i].ids[k + 1];
            pairs[at] = clear ? 0 : pairs[at] + known->pieces[i].count;
        }
}

/* Finds the commonest pair of neighbours, and of equally common ones that with the lowest ids.
 * False if none occurs twice. pairs [n_tokens^2] is all zero before and after, so only the entries
 * in use are ever touched. */
static bool best_pair(const corpus *known, int n_tokens, int64_t *pairs, int *out_left,
                      int *out_right)
{
    int64_t best = 1, best_at = -1;
    count_pairs(known, n_tokens, pairs, false);
    for (int i = 0; i < known->count; i++)
        for (int k = 0; k + 1 < known->pieces[i].how_many; k++) {
            int64_t at = (int64_t)known->pieces[i].ids[k] * n_tokens + known->pieces[i].ids[k + 1];
            if (pairs[at] > best || (pairs[at] == best && best_at >= 0 && at < best_at)) {
                best = pairs[at];
                best_at = at;
            }
        }
    count_pairs(known, n_tokens, pairs, true);
    if (best_at < 0)
        return false;
    *out_left = (int)(best_at / n_tokens);
    *out_right = (int)(best_at % n_tokens);
    return true;
}

static void merge_pair(corpus *known, int left, int right, int merged)
{
    for (int i = 0; i < known->count; i++) {
        piece *span = &known->pieces[i];
        int to = 0;
        for (int k = 0; k < span->how_many; k++) {
            bool here = k + 1 < span->how_many && span->ids[k] == left && span->ids[k + 1] == right;
            span->ids[to++] = here ? merged : span->ids[k];
            k += here;
        }
        span->how_many = to;
    }
}

status bpe_train(const bpe_text *texts, int n_texts, int max_merges, bpe *out)
{
    int byte_id[256];
    corpus known = {0};
    status st = ST_OK;
    memset(out, 0, sizeof *out);
    if (max_merges > BPE_MAX_MERGES)
        max_merges = BPE_MAX_MERGES;
    /* The order of published vocabularies: first the bytes that print as themselves, then the
     * others. */
    for (int pass = 0; pass < 2; pass++)
        for (int byte = 0; byte < 256; byte++)
            if (prints_as_itself(byte) == (pass == 0)) {
                byte_id[byte] = out->n_tokens;
                out->bytes[out->n_tokens][0] = (uint8_t)byte;
                out->size[out->n_tokens++] = 1;
            }
    size_t most = BPE_BYTES + (size_t)max_merges;
    int64_t *pairs = (int64_t *)calloc(most * most, sizeof *pairs);
    if (!pairs)
        return FAIL(ST_NO_MEMORY, "no memory to count pairs of %zu tokens", most);
    for (int i = 0; i < n_texts; i++)
        for (const char *text = texts[i].text; *text;) {
            int length = first_piece(text, (int)strlen(text));
            TRY_OR(done, add_piece(&known, byte_id, text, length, texts[i].count));
            text += length;
        }
    int left, right;
    while (out->n_merges < max_merges && best_pair(&known, out->n_tokens, pairs, &left, &right)) {
        int merged = out->n_tokens++;
        memcpy(out->bytes[merged], out->bytes[left], (size_t)out->size[left]);
        memcpy(out->bytes[merged] + out->size[left], out->bytes[right], (size_t)out->size[right]);
        out->size[merged] = out->size[left] + out->size[right];
        out->left[out->n_merges] = left;
        out->right[out->n_merges++] = right;
        merge_pair(&known, left, right, merged);
    }
done:
    free(pairs);
    free(known.pieces);
    return st;
}

/* Writes the trained vocabulary in the form of Hugging Face's tokenizers library. */

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
