/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of joining.c: which builds of workers may work. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/state/dispatch_state.h"
#include "prepd/serve/core/workers/core_workers.h"
#include "tests/harness.h"
#include "tests/unit/prepd/serve/still_world.h"

#define OURS  "00000000000000000000000000000000"
#define OTHER "11111111111111111111111111111111"

static conf options;
static dispatch daemon_;
static const wire_peer peer = {.connection = 1};

/* A daemon that knows all its fingerprints but those of videos. */
static int set_up(void **state)
{
    (void)state;
    daemon_ = (dispatch){.outside = still_world(),
                         .options = &options,
                         .now_ns = 1,
                         .place = {.host = "here", .build = OURS}};
    for (int k = 0; k < N_PRINTS; k++)
        if (!print_needs_videos((print_kind)k))
            fingerprints_set(&daemon_.fingerprints, (print_kind)k, hash_bytes(&k, sizeof k));
    daemon_.terms = strdup("{}");
    return daemon_.terms == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    free(daemon_.seats);
    free(daemon_.terms);
    accounts_free(&daemon_.accounts);
    return 0;
}

/* JOIN of a worker that has the daemon's fingerprints, but for those of the kinds from `from` on,
 * and another one of kind `odd` (N_PRINTS: none). */
static status join(const char *build, int64_t form, int from, int odd)
{
    json_writer writer;
    json_value *value = NULL;
    char *text = NULL;
    size_t size;
    fingerprints prints = daemon_.fingerprints;
    for (int k = from; k < N_PRINTS; k++)
        prints.of[k][0] = 0;
    if (odd < N_PRINTS)
        fingerprints_set(&prints, (print_kind)odd, hash_bytes("odd", 3));
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_cstr(&writer, "version", TESSERA_VERSION);
    json_put_key_cstr(&writer, "build", build);
    json_put_key_cstr(&writer, "host", "there");
    json_put_key_int(&writer, "pid", 7);
    if (form > 0)
        json_put_key_int(&writer, "form", form);
    fingerprints_put(&prints, &writer);
    json_end_object(&writer);
    assert_ok(json_writer_take(&writer, &text, &size));
    assert_ok(json_parse(text, size, "join", &value));
    const status st = seat_join(&daemon_, &peer, "worker", value);
    json_free(&value);
    free(text);
    return st;
}

static void test_join__another_build_with_the_same_rows_works(void **state)
{
    (void)state;
    assert_ok(join(OTHER, LEASE_FORM, PRINT_TOKENS, N_PRINTS));
    assert_true(daemon_.seats->has_terms && daemon_.seats->other_build && !daemon_.seats->proved);
    assert_ok(join(OTHER, LEASE_FORM, N_PRINTS, N_PRINTS));
    assert_true(daemon_.seats->proved);
    assert_string_equal(daemon_.seats->build, OTHER);
}

static void test_join__the_same_build_needs_no_prints_of_rows(void **state)
{
    (void)state;
    assert_ok(join(OURS, 0, N_STREAM_PRINTS, N_PRINTS));
    assert_true(daemon_.seats->proved && !daemon_.seats->other_build);
}

static void test_join__another_form_is_refused(void **state)
{
    (void)state;
    for (int64_t form = 0; form <= LEASE_FORM + 1; form++)
        if (form != LEASE_FORM) {
            assert_int_equal(join(OTHER, form, N_PRINTS, N_PRINTS), ST_MISMATCH);
            assert_non_null(strstr(status_text(), OTHER));
            assert_non_null(strstr(status_text(), "lease form"));
            assert_null(daemon_.seats);
        }
}

static void test_join__refusal_names_what_differs(void **state)
{
    char words[64];
    (void)state;
    for (int k = N_STREAM_PRINTS; k < N_PRINTS; k++) {
        if (print_needs_videos((print_kind)k))
            continue;
        assert_int_equal(join(OTHER, LEASE_FORM, N_PRINTS, k), ST_MISMATCH);
        snprintf(words, sizeof words, "fingerprint of %s", print_names[k]);
        assert_non_null(strstr(status_text(), words));
        assert_int_equal(join(OURS, 0, N_PRINTS, k), ST_MISMATCH); /* its libraries differ */
    }
    assert_null(daemon_.seats);
}

/* An older build may lack a fingerprint: then nothing shows that it makes such rows alike. */
static void test_join__a_missing_print_is_refused(void **state)
{
    (void)state;
    assert_int_equal(join(OTHER, LEASE_FORM, PRINT_PACKING, N_PRINTS), ST_MISMATCH);
    assert_non_null(strstr(status_text(), "fingerprint of packing none there"));
    assert_null(daemon_.seats);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_join__another_build_with_the_same_rows_works, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_join__the_same_build_needs_no_prints_of_rows, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_join__another_form_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_join__refusal_names_what_differs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_join__a_missing_print_is_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
