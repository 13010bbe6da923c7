/* config_changes.c: compares options line by line, in the text that conf_print writes. */
#include "trainer/run/config_changes.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_MAX = 128, VALUE_MAX = 4096 };

status config_text(const conf *options, char **out)
{
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return FAIL(ST_NO_MEMORY, "no memory for the options as text");
    conf_print(options, file);
    if (fclose(file) != 0) {
        free(text);
        return FAIL(ST_NO_MEMORY, "no memory for the options as text");
    }
    *out = text;
    return ST_OK;
}

static void copy_part(char *to, size_t room, const char *from, size_t size)
{
    snprintf(to, room, "%.*s", (int)size, from);
}

/* Finds the line "key: value" in a text and copies its value; false: there is no such line. */
static bool find_value(const char *text, const char *key, char out[VALUE_MAX])
{
    const size_t length = strlen(key);
    out[0] = 0;
    for (const char *line = text; *line;) {
        const size_t size = strcspn(line, "\n");
        if (size > length + 1 && strncmp(line, key, length) == 0 && line[length] == ':') {
            copy_part(out, VALUE_MAX, line + length + 2, size - length - 2);
            return true;
        }
        line += size + (line[size] == '\n');
    }
    return false;
}

static bool changes_steps(const char *key)
{
    return strncmp(key, "job.", 4) != 0 && strncmp(key, "checkpoint.", 11) != 0;
}

void config_changes(const char *was, const char *now, config_change each, void *user)
{
    for (const char *line = now; *line;) {
        const size_t size = strcspn(line, "\n"), colon = strcspn(line, ":");
        char key[KEY_MAX], before[VALUE_MAX], after[VALUE_MAX];
        if (colon + 2 <= size && line[0] != '#') {
            copy_part(key, sizeof key, line, colon);
            copy_part(after, sizeof after, line + colon + 2, size - colon - 2);
            find_value(was, key, before);
            if (changes_steps(key) && strcmp(before, after) != 0)
                each(user, key, before, after);
        }
        line += size + (line[size] == '\n');
    }
}
