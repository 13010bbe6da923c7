/* SPDX-License-Identifier: Apache-2.0 */
/* choices.c: the words for choices and ways, and what the options make of them (choices.h). */
#include "trainer/device/choices.h"

#include <stdio.h>
#include <string.h>

#include "common/conf/conf.h"

enum { KEY_MAX = 32, VALUE_MAX = 128, ATTENTIONS = CHOICE_VISION_BACKWARD + 1 };
static const char also_portable[] =
    "+portable"; /* beside a way: our own kernels take some shapes */

static const struct {
    const char *key, *name, *remedy, *way[3];
} words[CHOICES] = {
/* clang-format off */
#define ATTENTION_WORDS(key, name) \
    {key, "attention of " name, "training.attention portable", {"cudnn", "cudnn_next", "portable"}}
    /* clang-format on */
    [CHOICE_TEXT_FORWARD] = ATTENTION_WORDS("text_forward", "text, forward"),
    [CHOICE_TEXT_BACKWARD] = ATTENTION_WORDS("text_backward", "text, backward"),
    [CHOICE_VISION_FORWARD] = ATTENTION_WORDS("vision_forward", "vision, forward"),
    [CHOICE_VISION_BACKWARD] = ATTENTION_WORDS("vision_backward", "vision, backward"),
#undef ATTENTION_WORDS
    [CHOICE_EXPERTS] = {"experts",
                        "the experts' products",
                        "training.experts portable",
                        {"hopper", "portable"}},
    [CHOICE_GRAPHS] = {"graphs", "steps as graphs", "cuda_graph.scope off", {"captured", "off"}}};

void choices_make(int attention, int experts, choice_facts facts, device_choices *out)
{
    *out = (device_choices){.open = true};
    for (int choice = 0; choice < ATTENTIONS; choice++) {
        out->way[choice] =
            facts.cudnn && attention != ATTENTION_PORTABLE ? ATTENTION_BY_CUDNN : ATTENTION_BY_OURS;
        out->last[choice] =
            attention == ATTENTION_CUDNN ? ATTENTION_BY_NEXT_ENGINE : ATTENTION_BY_OURS;
    }
    out->way[CHOICE_EXPERTS] =
        facts.hopper && experts != EXPERTS_PORTABLE ? EXPERTS_BY_HOPPER : EXPERTS_BY_PORTABLE;
    out->last[CHOICE_EXPERTS] = experts == EXPERTS_HOPPER ? EXPERTS_BY_HOPPER : EXPERTS_BY_PORTABLE;
    out->last[CHOICE_GRAPHS] = GRAPHS_NONE;
}

void choices_without_cudnn(device_choices *inout)
{
    for (int choice = 0; choice < ATTENTIONS; choice++)
        inout->way[choice] = ATTENTION_BY_OURS;
}

bool choices_have_cudnn(const device_choices *made)
{
    return made->way[CHOICE_TEXT_BACKWARD] != ATTENTION_BY_OURS ||
           made->way[CHOICE_VISION_BACKWARD] != ATTENTION_BY_OURS;
}

status choices_check_cudnn(int sm)
{
    if (sm < CHOICE_CUDNN_SM)
        return FAIL(ST_UNAVAILABLE,
                    "cuDNN is used on compute capability %d.%d and later, and the GPU has %d.%d",
                    CHOICE_CUDNN_SM / 10, CHOICE_CUDNN_SM % 10, sm / 10, sm % 10);
    return ST_OK;
}

const char *choice_name(int choice)
{
    return words[choice].name;
}

const char *choice_way(int choice, int way)
{
    return words[choice].way[way];
}

const char *choice_remedy(int choice)
{
    return words[choice].remedy;
}

/* Whether our own kernels take some calls beside the way in use. */
static bool takes_ours_too(const device_choices *made, int choice)
{
    return choice < ATTENTIONS && made->way[choice] != ATTENTION_BY_OURS &&
           made->also_ours >> choice & 1;
}

/* Appends a scope without its blanks, which part words here. */
static int put_scope(char *out, size_t room, const char *scope)
{
    int used = 0;
    for (; *scope && used + 1 < (int)room; scope++)
        if (*scope != ' ')
            out[used++] = *scope;
    out[used] = 0;
    return used;
}

void choices_text(const device_choices *made, const char *scope, bool deterministic,
                  char out[CHOICES_TEXT])
{
    int used = 0;
    out[0] = 0;
    if (!made->open)
        return;
    for (int choice = 0; choice < CHOICE_GRAPHS; choice++)
        used += snprintf(out + used, CHOICES_TEXT - (size_t)used, "%s=%s%s ", words[choice].key,
                         words[choice].way[made->way[choice]],
                         takes_ours_too(made, choice) ? also_portable : "");
    used += snprintf(out + used, CHOICES_TEXT - (size_t)used, "%s=", words[CHOICE_GRAPHS].key);
    used += put_scope(out + used, VALUE_MAX,
                      made->way[CHOICE_GRAPHS] == GRAPHS_NONE || !scope[0] ? "off" : scope);
    snprintf(out + used, CHOICES_TEXT - (size_t)used, " deterministic=%s",
             deterministic ? "true" : "false");
}

/* Cuts the word "key=value" that begins at `from`. */
static void cut_word(const char *from, char key[KEY_MAX], char value[VALUE_MAX])
{
    const int size = (int)strcspn(from, " "), name = (int)strcspn(from, "= ");
    snprintf(key, KEY_MAX, "%.*s", name, from);
    snprintf(value, VALUE_MAX, "%.*s", size > name ? size - name - 1 : 0,
             from + name + (from[name] == '='));
}

/* Whether these are the same way. Checkpoints from before our own kernels' part was said have the
 * way alone, so that a value without it tells nothing of them. */
static bool is_same_way(const char *was, const char *now)
{
    const size_t length = strlen(was);
    return strncmp(was, now, length) == 0 &&
           (!now[length] || strcmp(now + length, also_portable) == 0);
}

void choices_changes(const char *was, const char *now, choice_change each, void *user)
{
    char key[KEY_MAX], value[VALUE_MAX], old_key[KEY_MAX], old[VALUE_MAX];
    for (const char *word = now; *word; word += strcspn(word, " "), word += *word == ' ') {
        cut_word(word, key, value);
        for (const char *other = was; *other;
             other += strcspn(other, " "), other += *other == ' ') {
            cut_word(other, old_key, old);
            if (strcmp(key, old_key) == 0 && !is_same_way(old, value))
                each(user, key, old, value);
        }
    }
}

/* ---- the experts' products ---- */

enum { HOPPER = 90 }; /* wgmma, which that kernel is made of, exists on no other GPU */

status experts_choose(int wanted, int sm, bool *out_hopper)
{
    if (wanted == EXPERTS_HOPPER && sm != HOPPER)
        return FAIL(ST_UNAVAILABLE,
                    "training.experts hopper: the GPU has compute capability %d.%d, and that "
                    "kernel needs 9.0; leave the option at auto",
                    sm / 10, sm % 10);
    *out_hopper = sm == HOPPER && wanted != EXPERTS_PORTABLE;
    return ST_OK;
}
