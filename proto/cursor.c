/* cursor.c: the checks of cursor.h. Members that only the daemon understands are not looked at. */
#include "proto/cursor.h"

#include <stdbool.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/json/json.h"

/* Reads a member that must be there and be a number of 0 or more. */
static status read_count(const json_value *value, const char *key, const char *source, int64_t *out)
{
    TRY(json_want_int(value, key, source, out));
    return *out >= 0 ? ST_OK
                     : FAIL_IN(ST_BAD_INPUT, source, "the cursor's %s is %lld, which is below 0",
                               key, (long long)*out);
}

static status check_names(const json_value *value, const char *source, const char *stream)
{
    const char *theirs, *index;
    hash128 digest;
    TRY(json_want_text(value, "stream", source, &theirs));
    TRY(json_want_text(value, "index", source, &index));
    if (strcmp(theirs, stream) != 0)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "the cursor belongs to the %.32s stream, not to the %s stream", theirs,
                       stream);
    return hash_parse(index, &digest)
               ? ST_OK
               : FAIL_IN(ST_BAD_INPUT, source, "the cursor's index \"%.40s\" is not a digest",
                         index);
}

/* Checks begin: the first row of the epoch that the next step begins in, or of the one before. */
static status check_begin(const json_value *begin, const char *source, int64_t row, int64_t epoch)
{
    int64_t first, of;
    if (!begin)
        return FAIL_IN(
            ST_CONFIG, source,
            "the cursor does not say where its epoch begins (begin): an early prepd wrote "
            "it. Resume with the programs that wrote it, or raise data.generation (for a "
            "recording: record the rows again)");
    TRY(read_count(begin, "epoch", source, &of));
    TRY(read_count(begin, "row", source, &first));
    if (of > epoch || first >= row || (of == 0) != (first == 0))
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "the cursor resumes at row %lld of epoch %lld, but says that epoch %lld begins "
            "at row %lld",
            (long long)row, (long long)epoch, (long long)of, (long long)first);
    return ST_OK;
}

static status check_members(const json_value *value, const char *source, const char *stream,
                            int64_t step_rows, int64_t *out_row)
{
    int64_t row, step, epoch;
    if (json_typeof(value) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, source, "the cursor is a %s, not an object",
                       json_type_name(json_typeof(value)));
    TRY(check_names(value, source, stream));
    TRY(read_count(value, "row", source, &row));
    TRY(read_count(value, "step", source, &step));
    TRY(read_count(value, "epoch", source, &epoch));
    if (row == 0)
        return FAIL_IN(ST_BAD_INPUT, source, "the cursor resumes at row 0, which follows no row");
    if (step_rows > 0 && step != row / step_rows)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "the cursor resumes at row %lld of step %lld, but steps have %lld rows",
                       (long long)row, (long long)step, (long long)step_rows);
    TRY(check_begin(json_find(value, "begin"), source, row, epoch));
    *out_row = row;
    return ST_OK;
}

status cursor_read(const char *text, const char *source, const char *stream, int64_t step_rows,
                   int64_t *out_row)
{
    json_value *value = NULL;
    if (!text || !text[0])
        return FAIL_IN(ST_BAD_INPUT, source, "there is no cursor");
    TRY(json_parse(text, strlen(text), source, &value));
    status st = check_members(value, source, stream, step_rows, out_row);
    json_free(&value);
    return st;
}
