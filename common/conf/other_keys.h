/* other_keys.h: keys that people know from other trainers, and what becomes of them here
 * (other_keys.def). The message about an unknown key, and the page configs/other-trainers.md. */
#ifndef TESSERA_COMMON_CONF_OTHER_KEYS_H
#define TESSERA_COMMON_CONF_OTHER_KEYS_H

#include <stddef.h>
#include <stdio.h>

typedef enum key_fate { KEY_TAKEN, KEY_SAME, KEY_NEEDLESS, KEY_ABSENT } key_fate;

typedef struct other_key {
    const char *trainer; /* whose it is, in a sentence */
    const char *key;
    key_fate fate;
    const char *here;  /* KEY_SAME: our option; "": something else, which the words name */
    const char *words; /* "" if there is no more to say */
} other_key;

extern const other_key other_keys[];
extern const size_t other_keys_count;

/* The row of a key that is not ours, in any case of letters; NULL if no row has it. */
const other_key *other_key_find(const char *key);
/* Writes the row as the end of a message about the key. */
void other_key_words(const other_key *row, char *out, size_t size);
/* Prints all rows as a page of Markdown. */
void other_keys_page(FILE *to);

#endif
