/* conf_nearest.c: which key someone probably meant: the one with fewest edits, or else those that
 * end in the same word in another section. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/base/words.h"
#include "common/conf/conf_table.h"

size_t conf_distance(const char *one, const char *other)
{
    enum { WIDTH = 128 }; /* longer than any key; the rest of a longer word is ignored */
    size_t rows = strnlen(one, WIDTH), columns = strnlen(other, WIDTH), row[WIDTH + 1];
    for (size_t j = 0; j <= columns; j++)
        row[j] = j;
    for (size_t i = 1; i <= rows; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            bool same = tolower((unsigned char)one[i - 1]) == tolower((unsigned char)other[j - 1]);
            size_t best = diagonal + !same;
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[columns];
}

bool conf_is_near(const char *word, size_t distance)
{
    enum { EDITS = 2, OF_LENGTH = 3 };
    const size_t share = strlen(word) / OF_LENGTH;
    return distance <= (share > EDITS ? share : EDITS);
}

const char *conf_nearest_key(const char *key)
{
    const char *nearest = NULL;
    size_t least = SIZE_MAX;
    bool whole = strchr(key, '.') != NULL;
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *option = &conf_rows[i];
        if (option->kind == ROW_SECTION || option->kind == ROW_REMOVED)
            continue;
        size_t distance = conf_distance(key, whole ? option->key : strchr(option->key, '.') + 1);
        if (distance < least) {
            least = distance;
            nearest = option->key;
        }
    }
    return conf_is_near(key, least) ? nearest : NULL;
}

/* Appends up to `most` keys that end in the word, and returns how many there are in all. */
static int same_last_word(const char *word, int most, char *out, size_t size)
{
    int found = 0;
    size_t used = 0;
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *option = &conf_rows[i];
        if (!conf_row_is_option(option) || strcasecmp(strrchr(option->key, '.') + 1, word) != 0)
            continue;
        if (found++ < most)
            used = words_add(out, size, used, "%s%s", used ? " or " : "", option->key);
    }
    return found;
}

bool conf_guess(const char *key, char *out, size_t size)
{
    enum { MOST = 3 }; /* more are no help */
    const char *near = conf_nearest_key(key), *last = strrchr(key, '.');
    if (near) {
        snprintf(out, size, "%s", near);
        return true;
    }
    const int found = same_last_word(last ? last + 1 : key, MOST, out, size);
    return found > 0 && found <= MOST;
}
