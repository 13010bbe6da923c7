/* SPDX-License-Identifier: Apache-2.0 */
/* conf_room.c: see conf_room.h. */
#include "tests/unit/common/conf_room.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

int enter_room(void **state)
{
    static room space;
    char *folder = harness_temp();
    space.folder = realpath(folder, NULL);
    free(folder);
    snprintf(space.file, sizeof space.file, "%s/c.yaml", space.folder);
    *state = &space;
    return 0;
}

int leave_room(void **state)
{
    harness_remove(&((room *)*state)->folder);
    return 0;
}

void write_yaml(const room *space, const char *text)
{
    FILE *file = fopen(space->file, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

status load_args(const room *space, conf *options, const char *text, const char *first,
                 const char *second, const char *third, const char *fourth)
{
    char *argv[8] = {(char *)"prepd", (char *)"-c",  (char *)space->file, (char *)first,
                     (char *)second,  (char *)third, (char *)fourth,      NULL};
    int argc = 3;
    while (argv[argc])
        argc++;
    write_yaml(space, text);
    status st = conf_load(options, &argc, argv);
    if (st == ST_OK)
        assert_int_equal(argc, 1);
    return st;
}

status load_text(const room *space, conf *options, const char *text)
{
    return load_args(space, options, text, NULL, NULL, NULL, NULL);
}

void refuse_conf(const room *space, const char *text, const char *words)
{
    conf options;
    assert_fails(ST_CONFIG, load_text(space, &options, text), words);
}

void refuse_flag(const char *first, const char *second, const char *words)
{
    char *argv[] = {(char *)"prepd", (char *)first, (char *)second, NULL};
    int argc = second ? 3 : 2;
    conf options;
    assert_fails(ST_USAGE, conf_load(&options, &argc, argv), words);
}
