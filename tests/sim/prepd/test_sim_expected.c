/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the simulator's data set and reference: an epoch has every usable sample once, and the
 * ranks of any job share each step out among them. */
#include <stdlib.h>

#include "tests/harness.h"
#include "tests/sim/prepd/expected.h"
#include "tests/unit/prepd/conf_defaults.h"

enum { SAMPLES = 90 };

static const sim_data_rules rules = {.n_pictures = 12,
                                     .n_samples = SAMPLES,
                                     .begins = true,
                                     .common_text = 70,
                                     .longest_text = 600,
                                     .bad_header = 50,
                                     .kills_header = 50,
                                     .not_there = 20,
                                     .fails = 60,
                                     .vanishes = 20,
                                     .kills = 60,
                                     .hangs = 30,
                                     .not_adapted = 40,
                                     .refused = 40,
                                     .text_kills = 40,
                                     .clips = 100,
                                     .plain = 100,
                                     .without_picture = 250};

static conf options_of(int group)
{
    conf options = conf_defaults();
    options.data_group = group;
    options.data_window = 32;
    options.training_seq_len = 512;
    options.training_epochs = 2;
    options.training_global_batch_size = 6;
    return options;
}

static bool is_refused(const sim_data *data, int64_t number)
{
    const sim_sample *own = &data->sample[number];
    bool refused = own->record.cause != NULL;
    for (int32_t i = 0; i < own->n_shown; i++)
        refused |= sim_data_picture_record(data, own->shows[i]).cause != NULL;
    return refused;
}

static void test_reference__has_every_usable_sample_once_an_epoch(void **state)
{
    (void)state;
    for (int group = GROUP_NONE; group <= GROUP_SHARED_PREFIX; group++) {
        const conf options = options_of(group);
        sim_data data;
        reference rows;
        int seen[SAMPLES] = {0};
        int64_t usable = 0;
        sim_data_init(&data, &rules, harness_seed() + (uint64_t)group);
        assert_true(reference_init(&rows, &data, &options, SLOW_PACKED));
        for (uint64_t number = 0; reference_find_row(&rows, number); number++) {
            const reference_row *row = reference_find_row(&rows, number);
            for (int64_t i = 0; i < row->n_docs; i++)
                if (row->docs[i].branches == 0)
                    seen[row->docs[i].sample]++;
        }
        for (int64_t i = 0; i < SAMPLES; i++) {
            usable += !is_refused(&data, i);
            assert_true(is_refused(&data, i) ? seen[i] == 0 : seen[i] >= 2);
            if (!data.sample[i].plain && !is_refused(&data, i))
                assert_int_equal(seen[i], 2); /* two epochs; only plain texts come in parts */
        }
        assert_true(usable > SAMPLES / 2 && usable < SAMPLES);
        reference_done(&rows);
        sim_data_done(&data);
    }
}

static void test_reference__mixes_sources_by_their_weights(void **state)
{
    (void)state;
    conf options = options_of(GROUP_NONE);
    sim_data_rules mixed = {.n_samples = SAMPLES,
                            .n_sources = 3,
                            .weight = {1, 2, 6},
                            .piece_samples = 7,
                            .without_picture = 1000};
    sim_data data;
    reference rows;
    int64_t from[3] = {0};
    options.training_epochs = 1;
    sim_data_init(&data, &mixed, harness_seed());
    assert_true(reference_init(&rows, &data, &options, SLOW_PACKED));
    for (uint64_t number = 0; reference_find_row(&rows, number); number++) {
        const reference_row *row = reference_find_row(&rows, number);
        for (int64_t i = 0; i < row->n_docs; i++)
            from[sim_data_place(&data, row->docs[i].sample).source]++;
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(from[i], SAMPLES * mixed.weight[i] / 9);
    reference_done(&rows);
    sim_data_done(&data);
}

static void test_reference__ranks_share_every_step(void **state)
{
    (void)state;
    const conf options = options_of(GROUP_SHARED_IMAGE);
    sim_data data;
    reference rows;
    sim_data_init(&data, &rules, harness_seed());
    assert_true(reference_init(&rows, &data, &options, SLOW_PACKED));
    for (int ranks = 1; ranks <= 6; ranks++) {
        int *owners = calloc((size_t)rows.n_rows, sizeof *owners);
        for (int rank = 0; rank < ranks; rank++)
            for (uint64_t from = 0, at; reference_next(&rows, ranks, rank, from, &at);
                 from = at + 1)
                owners[at]++;
        for (uint64_t i = 0; i < rows.n_rows; i++)
            assert_int_equal(owners[i], 1);
        free(owners);
    }
    reference_done(&rows);
    sim_data_done(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference__has_every_usable_sample_once_an_epoch),
        cmocka_unit_test(test_reference__mixes_sources_by_their_weights),
        cmocka_unit_test(test_reference__ranks_share_every_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
