/* other_keys.c: the rows of other_keys.def as an array, in messages, and as a page. */
#include "common/conf/other_keys.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

/* A heading is a row without a key; `words` says where its keys are written. */
const other_key other_keys[] = {
#define OTHER_TRAINER(title, where)       {title, NULL, KEY_TAKEN, "", where},
#define OTHER_KEY(key, fate, here, words) {NULL, key, KEY_##fate, here, words},
#include "common/conf/other_keys.def"
};
const size_t other_keys_count = sizeof other_keys / sizeof *other_keys;

static const char page[] = "configs/other-trainers.md";

const other_key *other_key_find(const char *key)
{
    for (size_t i = 0; i < other_keys_count; i++)
        if (other_keys[i].key && other_keys[i].fate != KEY_TAKEN &&
            strcasecmp(other_keys[i].key, key) == 0)
            return &other_keys[i];
    return NULL;
}

static const char *trainer_of(const other_key *row)
{
    while (row->key)
        row--;
    return row->trainer;
}

void other_key_words(const other_key *row, char *out, size_t size)
{
    static const char *const begin[] = {"", "here it is ", "leave it out",
                                        "there is nothing like it here"};
    const bool by_words = row->fate == KEY_SAME && !row->here[0];
    snprintf(out, size, "a key of %s; %s%s%s%s (%s)", trainer_of(row),
             by_words ? "here" : begin[row->fate], row->here, row->words[0] ? ": " : "", row->words,
             page);
}

/* Prints a text into a table cell, where | would end the cell. */
static void put_cell(FILE *to, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', to);
        fputc(*text, to);
    }
}

static void put_row(FILE *to, const other_key *row)
{
    static const char *const fate[] = {"taken", "equivalent", "not needed", "absent"};
    fprintf(to, "| `%s` | %s | ", row->key, fate[row->fate]);
    if (row->here[0])
        fprintf(to, "`%s`%s", row->here, row->words[0] ? ": " : "");
    put_cell(to, row->words);
    fputs(" |\n", to);
}

void other_keys_page(FILE *to)
{
    fputs("# Keys of other trainers\n\n"
          "<!-- Made from common/conf/other_keys.def by `prepd --other-trainers`. Do not edit. "
          "-->\n\n"
          "What becomes of the keys that people bring along. *Taken*: the key is an option here "
          "too, or another spelling of one.\n*Equivalent*: the option named does it. *Not needed*: "
          "nothing is lost without the key; the row says why. *Absent*: this\nproject does not do "
          "it. Only keys that are taken may stand in a file; the message about any other cites "
          "its row, and all\nmistakes of a file are told at once. [README.md](README.md) explains "
          "every option.\n",
          to);
    for (size_t i = 0; i < other_keys_count; i++) {
        if (other_keys[i].key)
            put_row(to, &other_keys[i]);
        else
            fprintf(to, "\n## %s\n\n%s\n\n| key | here | as |\n|---|---|---|\n",
                    other_keys[i].trainer, other_keys[i].words);
    }
}
