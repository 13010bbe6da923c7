/* SPDX-License-Identifier: Apache-2.0 */
/* mistakes.c: see mistakes.h. */
#include "common/conf/mistakes.h"

#include <stdlib.h>
#include <string.h>

static status_note *copy_note(const status_note *note)
{
    status_note *copy = malloc(sizeof *copy);
    if (copy)
        *copy = *note;
    return copy;
}

status mistakes_add(mistakes *list, status st)
{
    if (st != ST_USAGE && st != ST_CONFIG && st != ST_NO_INPUT && st != ST_IO)
        return st;
    if (!list->first)
        list->first = copy_note(status_last());
    if (list->count < MISTAKES_KEPT)
        list->text[list->count] = strdup(status_text());
    if (!list->first || (list->count < MISTAKES_KEPT && !list->text[list->count]))
        return FAIL(ST_NO_MEMORY, "no memory for a list of mistakes");
    list->count++;
    return ST_OK;
}

status mistakes_first(const mistakes *list)
{
    if (!list->first)
        return ST_OK;
    status_set(list->first);
    return list->first->code;
}

void mistakes_done(mistakes *list)
{
    for (int64_t i = 0; i < list->count && i < MISTAKES_KEPT; i++)
        free(list->text[i]);
    free(list->first);
    *list = (mistakes){0};
}
