/* gpu_cards.c: the table of cards; trainer/plan/time.md names its sources. */
#include "trainer/plan/gpu_cards.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* A size counts as that of a card if it is within this share of the nominal one. What a driver
 * offers, or a size in GiB for one in GB, differs by at most 8 %. */
static const double NEAR = 0.2;

/* Of cards of one size, the first is taken where only the size is known. A B200's NVLink is twice
 * as fast as an H200's, an A100's two thirds as fast. Cards without it have PCIe for everything:
 * 25 GB/s are assumed of the 32 of PCIe 4.0 x16, 50 of the 63 of 5.0. Bridges that join a few
 * cards for PCIe are not counted. */
static const gpu_card cards[] = {
    {"h200", "H200", 141, 139.7, 132, 90, 989e12, 4800e9, 0, 0, true},
    {"h100", "H100", 80, 79.1, 132, 90, 989e12, 3350e9, 0, 0, true},
    {"b200", "B200", 180, 178.3, 148, 100, 2250e12, 8000e9, 674e9, 50e9, false},
    {"h200-nvl", "H200 NVL", 141, 139.7, 132, 90, 836e12, 4800e9, 50e9, 50e9, false},
    {"h100-nvl", "H100 NVL", 94, 93.1, 132, 90, 836e12, 3900e9, 50e9, 50e9, false},
    {"h100-pcie", "H100 PCIe", 80, 79.1, 114, 90, 756e12, 2000e9, 50e9, 50e9, false},
    {"a100", "A100", 80, 79.1, 108, 80, 312e12, 2039e9, 225e9, 25e9, false},
    {"a100-40", "A100", 40, 39.4, 108, 80, 312e12, 1555e9, 225e9, 25e9, false},
    {"l40s", "L40S", 48, 44.4, 142, 89, 362e12, 864e9, 25e9, 25e9, false},
    {"rtx6000ada", "RTX 6000 Ada", 48, 47.5, 142, 89, 364.2e12, 960e9, 25e9, 25e9, false},
    {"a6000", "RTX A6000", 48, 47.5, 84, 86, 154.8e12, 768e9, 25e9, 25e9, false},
    {"rtx4090", "RTX 4090", 24, 23.6, 128, 89, 165.2e12, 1008e9, 25e9, 25e9, false},
    {"rtx3090", "RTX 3090", 24, 23.6, 82, 86, 71e12, 936e9, 25e9, 25e9, false},
    {"a10g", "A10G", 24, 22.1, 80, 86, 70e12, 600e9, 25e9, 25e9, false},
    {"l4", "L4", 24, 22.0, 58, 89, 121e12, 300e9, 25e9, 25e9, false},
};
enum { CARDS = sizeof cards / sizeof *cards };

/* How far a size is from the card's, as a share of that. */
static double distance(const gpu_card *card, double bytes)
{
    return fabs(bytes * 1e-9 / card->gb - 1.0);
}

/* Whether the text has the name as whole words: "L4" is not in "L40S". */
static bool names(const char *text, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = text; (at = strstr(at, name)) != NULL; at++)
        if ((at == text || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[length]))
            return true;
    return false;
}

const gpu_card *gpu_card_named(const char *word)
{
    for (int i = 0; i < CARDS; i++)
        if (strcasecmp(word, cards[i].word) == 0)
            return &cards[i];
    return NULL;
}

const gpu_card *gpu_card_described(const char *description, double bytes)
{
    const gpu_card *found = NULL;
    for (int i = 0; i < CARDS; i++) {
        const gpu_card *card = &cards[i];
        if (!names(description, card->name))
            continue;
        const size_t length = strlen(card->name), known = found ? strlen(found->name) : 0;
        if (length > known || (length == known && distance(card, bytes) < distance(found, bytes)))
            found = card;
    }
    return found && distance(found, bytes) <= NEAR ? found : NULL;
}

const gpu_card *gpu_card_nearest(double bytes)
{
    const gpu_card *found = &cards[0];
    for (int i = 1; i < CARDS; i++)
        if (distance(&cards[i], bytes) < distance(found, bytes))
            found = &cards[i];
    return distance(found, bytes) <= NEAR ? found : NULL;
}

const char *gpu_card_words(char out[GPU_CARD_WORDS])
{
    size_t length = 0;
    out[0] = 0;
    for (int i = 0; i < CARDS && length < GPU_CARD_WORDS; i++)
        length += (size_t)snprintf(out + length, GPU_CARD_WORDS - length, "%s%s", i ? ", " : "",
                                   cards[i].word);
    return out;
}
