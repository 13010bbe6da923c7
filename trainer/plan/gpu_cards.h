/* gpu_cards.h: the cards that are known by name: their memory, and the maker's figures from which
 * rates of a card that nobody has measured are assumed (rates.h). */
#ifndef TESSERA_TRAINER_PLAN_GPU_CARDS_H
#define TESSERA_TRAINER_PLAN_GPU_CARDS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct gpu_card {
    const char *word;    /* as --device has it: "rtx4090" */
    const char *name;    /* words of the name that its driver gives it: "RTX 4090" */
    double gb, gib;      /* nominal size in 10^9 bytes; what its driver offers, in GiB */
    int multiprocessors; /* how many */
    int sm;              /* compute capability, times ten */
    /* FLOP/s of dense BF16 products with float32 sums, and bytes/s of its memory:
     * NVIDIA's figures */
    double peak, memory;
    double link, host; /* bytes/s: what a rank receives from others of its node; to the host */
    bool measured; /* has the chip of the H200, whose rates were measured; link and host are 0 */
} gpu_card;

/* The card with this word for --device, in any case of letters; NULL if there is none. */
const gpu_card *gpu_card_named(const char *word);
/* The card whose name is in a driver's description and whose size is about `bytes`, else NULL. Of
 * several, the longest name ("H100 PCIe" before "H100"), then the nearest size. */
const gpu_card *gpu_card_described(const char *description, double bytes);
/* The card whose size is nearest to `bytes`, the first of equal ones; NULL if none is about as
 * large. */
const gpu_card *gpu_card_nearest(double bytes);
/* Writes all words, separated by ", ". */
enum { GPU_CARD_WORDS = 256 };
const char *gpu_card_words(char out[GPU_CARD_WORDS]);

#endif
