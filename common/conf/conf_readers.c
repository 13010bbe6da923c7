/* conf_readers.c: which verbs read an option, from readers.def,
 * which tests/style/who_reads makes. */
#include <string.h>

#include "common/base/words.h"
#include "common/conf/conf_table.h"

enum { PREPD, TRAINER, N_PROGRAMS };

/* Names of verbs, separated by blanks. */
typedef struct readers {
    const char *key, *verbs[N_PROGRAMS];
} readers;

static const readers of_options[] = {
#define OPTION_READERS(key, of_prepd, of_trainer) {key, {of_prepd, of_trainer}},
#include "common/conf/readers.def"
};

static const readers of_stream = {
#define STREAM_READERS(of_prepd, of_trainer)                                                       \
    "",                                                                                            \
    {                                                                                              \
        of_prepd, of_trainer                                                                       \
    }
#include "common/conf/readers.def"
};

static const readers *find_readers(const conf_row *row)
{
    static const readers none = {"", {"", ""}};
    for (size_t i = 0; i < sizeof of_options / sizeof *of_options; i++)
        if (strcmp(of_options[i].key, row->key) == 0)
            return &of_options[i];
    return &none;
}

static bool is_among(const char *verbs, const char *verb)
{
    if (!verb)
        return *verbs != 0;
    const size_t length = strlen(verb);
    for (const char *at = verbs; (at = strstr(at, verb)); at += length)
        if ((at == verbs || at[-1] == ' ') && (at[length] == ' ' || !at[length]))
            return true;
    return false;
}

bool conf_is_read(const conf_row *row, bool trainer, const char *verb)
{
    return is_among(find_readers(row)->verbs[trainer ? TRAINER : PREPD], verb);
}

bool conf_is_taken(const conf_row *row, bool trainer, const char *verb)
{
    return conf_is_read(row, trainer, verb) ||
           (row->flow == FLOW_STREAM && is_among(of_stream.verbs[trainer ? TRAINER : PREPD], verb));
}

void conf_readers_text(const conf_row *row, char *out, size_t size)
{
    static const char *const programs[] = {"prepd", "trainer"};
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < N_PROGRAMS; i++) {
        const char *at = find_readers(row)->verbs[i];
        for (; *at; at += strspn(at, " ")) {
            const int count = (int)strcspn(at, " ");
            used =
                words_add(out, size, used, "%s%s %.*s", used ? ", " : "", programs[i], count, at);
            at += count;
        }
    }
}
