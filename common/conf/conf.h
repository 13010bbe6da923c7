/* conf.h: the resolved options of a run: rows of options.def -> struct, YAML, flags, help.
 *
 * One YAML file serves both programs and each checks all of it. Precedence: default < YAML <
 * command line (--section.key VALUE or --section.key=VALUE). Unknown keys fail and name the nearest
 * valid one, if it is near. */
#ifndef TESSERA_COMMON_CONF_H
#define TESSERA_COMMON_CONF_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/arena.h"
#include "common/base/hash.h"
#include "common/base/status.h"

/* Values of the OPTION_ENUM rows, in the order of their choices. */
enum { DATA_VQAV2, DATA_CONVERSATIONS, DATA_WEBDATASET, DATA_TEXT, DATA_VIDEO, DATA_MIXTURE };
enum { CHAT_TEMPLATE_KNOWN, CHAT_TEMPLATE_INSTRUCT };
enum { GROUP_NONE, GROUP_CONVERSATION, GROUP_SHARED_IMAGE };
enum { LOSS_ON_ALL, LOSS_ON_LAST };
enum { ANSWER_MAJORITY, ANSWER_DRAWN };
enum { OVERLONG_AUTO, OVERLONG_REFUSE, OVERLONG_SPLIT };
enum { OVERSIZE_SHRINK, OVERSIZE_REFUSE };
enum { DAMAGED_ACCEPT, DAMAGED_REFUSE };
enum { DECODER_AUTO, DECODER_VIPS };
enum { RESAMPLER_TORCH, RESAMPLER_PILLOW, RESAMPLER_VIPS, RESAMPLER_PILLOW13 };
enum { TRANSPARENCY_4_57, TRANSPARENCY_5_23 };
enum { VIDEO_PROMPT_4_57, VIDEO_PROMPT_5_23 };
enum { FILTER_AUTO, FILTER_NONE, FILTER_PLANE };
enum { CODEC_AUTO, CODEC_NONE, CODEC_ZSTD };
enum { BACKEND_AUTO, BACKEND_CPU, BACKEND_CUDA };
enum { ATTENTION_AUTO, ATTENTION_CUDNN, ATTENTION_PORTABLE };
enum { DECAY_CONSTANT, DECAY_LINEAR, DECAY_COSINE, DECAY_SQRT };
enum { NONFINITE_SKIP, NONFINITE_STOP };
enum { WEIGHTING_TOKEN, WEIGHTING_SAMPLE, WEIGHTING_SQRT };
enum { AC_NONE, AC_SELECTIVE, AC_FULL };
enum { AC_VISION_SAME, AC_VISION_NONE, AC_VISION_SELECTIVE, AC_VISION_FULL };
enum { RESHARD_DEFAULT, RESHARD_ALWAYS, RESHARD_NEVER };
enum { MFU_USEFUL, MFU_TORCHTITAN };
enum { ENGINE_AUTO, ENGINE_MPI, ENGINE_NCCL, ENGINE_REPLAY };
enum { EXPERT_EXCHANGE_AUTO, EXPERT_EXCHANGE_DEVICE, EXPERT_EXCHANGE_HOST };
enum { CHECKPOINT_SYNC, CHECKPOINT_ASYNC, CHECKPOINT_PINNED };

typedef struct conf {
#define OPTION_INT(section, name, ...)  int64_t section##_##name;
#define OPTION_REAL(section, name, ...) double section##_##name;
#define OPTION_BOOL(section, name, ...) bool section##_##name;
#define OPTION_TEXT(section, name, ...)                                                            \
    const char *section##_##name; /* never NULL; owned by the conf */
#define OPTION_ENUM(section, name, ...) int section##_##name;
#include "common/conf/options.def"
    arena texts;       /* process lifetime: holds the strings */
    const char *place; /* who chose: the YAML file, the command line, or both; "" if nobody */
} conf;

/* Reads -c FILE (or --config) and every --section.key VALUE from argv[1..argc), whatever c held.
 * What is neither is left, in order, in argv[1..*argc) for the verb to read. A switch may stand
 * alone (--log.json) or with true/false behind it. Then conf_check. On failure c is empty: ST_USAGE
 * for the command line, ST_CONFIG (with the line) for the file, ST_NO_INPUT if there is none.
 *
 * Relative paths: in the file from its folder, on the command line from the working directory, as
 * defaults from the working directory; the default endpoint from the file's folder, so that both
 * programs meet. model.path without a slash that names no folder is left as it is: a preset;
 * model.path and model.tokenizer as Org/Name mean a snapshot in the Hugging Face cache
 * (common/base/model_cache.h) where no folder has that name. */
WARN_UNUSED status conf_load(conf *c, int *argc, char **argv);
void conf_done(conf *c);

/* c->place, or NULL for nobody: the input of a failure that a value is to blame for. */
static inline const char *conf_place(const conf *c)
{
    return c->place && *c->place ? c->place : NULL;
}

/* Rules between options. Called by conf_load; again after a change in a test. */
WARN_UNUSED status conf_check(const conf *c);

/* One option as the command line would set it (key without the dashes). No conf_check. */
WARN_UNUSED status conf_set(conf *c, const char *key, const char *value);

/* A copy that owns its texts; conf_done it apart, also after a failure. */
WARN_UNUSED status conf_copy(const conf *from, conf *to);

/* What the eval stream is made from: eval.* laid over data.*, one epoch, in order, with the
 * majority answer. A copy; conf_done it apart. */
WARN_UNUSED status conf_eval(const conf *c, conf *out);

/* "key: value" of every option, loadable again (--print-config). */
void conf_print(const conf *c, FILE *to);
/* The option part of --help for one program: owner PREPD or TRAINER rows and BOTH; of these the
 * BASIC ones, with `all` the EXPERT ones too; or only some keys (NULL at the end of them), whatever
 * their level. Returns how many EXPERT ones it has left out. */
int conf_help(FILE *to, bool for_trainer, const char *const *only, bool all);
/* configs/README.md. */
void conf_reference(FILE *to);

/* The stream rows as one JSON object {"key": value, ...}, in table order; goes into HELLO. Paths
 * (model.path, model.tokenizer) enter by the digest of what they hold, given by the caller, since
 * folders may be mounted elsewhere. Heap; the caller frees. */
WARN_UNUSED status conf_stream_json(const conf *c, hash128 model_digest, char **out);
/* NULL if both JSON objects agree, else the first key that differs, in a heap string
 * "training.seed: 1 here, 2 there". A key that one of them does not have counts as its default:
 * the stream comes from a build that did not know it yet. */
WARN_UNUSED status conf_stream_diff(const char *ours, const char *theirs, char **out_difference);

#endif
