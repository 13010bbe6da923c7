/* SPDX-License-Identifier: Apache-2.0 */
/* test_rates.c: rates of trainer plan: built in, of a card, and read from a file. Part of
 * test_cost. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/trainer/plan/plan_setting.h"

/* The built-in rates say of each how it is known and where it comes from. */
static void test_rates__built_in_rates_name_their_source(void **state)
{
    (void)state;
    const rates speeds = rates_h200();
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    rates_print(&speeds, to);
    fclose(to);
    for (int k = 0; k < RATE_KEYS; k++) {
        char *line = strstr(text, rate_name((rate_key)k));
        assert_non_null(line);
        assert_non_null(speeds.from[k]);
        static const char *const kinds[] = {[RATE_ASSUMED] = "assumed, ",
                                            [RATE_PUBLISHED] = "published, ",
                                            [RATE_NOMINAL] = "nominal, ",
                                            [RATE_MEASURED] = "measured, "};
        assert_int_equal(speeds.kind[k] == RATE_ASSUMED, k == RATE_HOST);
        assert_int_equal(speeds.kind[k] == RATE_NOMINAL, k == RATE_PEAK);
        const char *kind = kinds[speeds.kind[k]];
        line = strstr(line, kind);
        assert_non_null(line);
        assert_memory_equal(line + strlen(kind), speeds.from[k], strlen(speeds.from[k]));
    }
    free(text);
}

static void test_rates__file_and_back(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096];
    snprintf(path, sizeof path, "%s/rates.yaml", folder);
    rates speeds = {.memory = 0}, back;
    speeds.of[RATE_EXPERTS] = 612.5e12;
    speeds.kind[RATE_EXPERTS] = RATE_MEASURED;
    snprintf(speeds.source, sizeof speeds.source, "a card, its driver");
    FILE *file = fopen(path, "w");
    rates_write(&speeds, file);
    fprintf(file, "memory_gib: 80\nranks_per_node: 4\n");
    fclose(file);
    assert_ok(rates_read(path, &back));
    expect_share(back.of[RATE_EXPERTS], 612.5e12, 1e-12);
    assert_true(back.kind[RATE_EXPERTS] == RATE_MEASURED && !back.from[RATE_EXPERTS]);
    assert_int_equal(back.kind[RATE_DENSE], rates_h200().kind[RATE_DENSE]);
    assert_ptr_equal(back.from[RATE_DENSE], rates_h200().from[RATE_DENSE]);
    expect_share(back.of[RATE_DENSE], rates_h200().of[RATE_DENSE], 0);
    expect_share(back.memory, 80.0 * 1073741824, 0);
    assert_int_equal(back.per_node, 4);
    assert_string_equal(back.source, "a card, its driver");
    file = fopen(path, "w");
    fprintf(file, "dense_tflops: 700\ncopy_gbs: fast\n");
    fclose(file);
    assert_fails(ST_CONFIG, rates_read(path, &back), "copy_gbs: expected a number above 0");
    file = fopen(path, "w");
    fprintf(file, "dense_tflop: 700\n");
    fclose(file);
    assert_fails(ST_CONFIG, rates_read(path, &back), "there is no rate named dense_tflop");
    harness_remove(&folder);
}

static void test_rates__are_those_of_the_card(void **state)
{
    (void)state;
    const rates h100 = rates_of(gpu_card_named("h100")), h200 = rates_of(gpu_card_named("h200")),
                b200 = rates_of(gpu_card_named("b200")), a100 = rates_of(gpu_card_named("a100")),
                l40s = rates_of(gpu_card_named("L40S"));
    expect_share(h100.of[RATE_COPY], 4.237e12 * 3350 / 4800, 1e-12); /* its memory is slower */
    expect_share(h100.of[RATE_PEAK], rates_h200().of[RATE_PEAK], 0);
    expect_share(h200.of[RATE_COPY], rates_h200().of[RATE_COPY], 0);
    assert_string_equal(h200.source, rates_h200().source);
    assert_non_null(strstr(b200.source, "none measured for the B200"));
    expect_share(b200.of[RATE_DENSE] / b200.of[RATE_PEAK], h200.of[RATE_DENSE] / 989e12, 1e-9);
    expect_share(b200.of[RATE_COPY] / 8000e9, h200.of[RATE_COPY] / 4800e9, 1e-9);
    expect_share(a100.of[RATE_DENSE] / 312e12, h200.of[RATE_DENSE] / 989e12, 1e-9);
    expect_share(a100.of[RATE_LINK] / 600e9, h200.of[RATE_LINK] / 900e9, 2e-3);
    expect_share(a100.of[RATE_ATTENTION], a100.of[RATE_OWN_ATTENTION], 0);
    const rates pcie = rates_of(gpu_card_named("h100-pcie")),
                nvl = rates_of(gpu_card_named("h200-nvl"));
    expect_share(pcie.of[RATE_PEAK], 756e12, 0);
    expect_share(pcie.of[RATE_COPY] / 2000e9, h200.of[RATE_COPY] / 4800e9, 1e-9);
    expect_share(nvl.of[RATE_DENSE] / 836e12, h200.of[RATE_DENSE] / 989e12, 1e-9);
    assert_non_null(strstr(nvl.source, "none measured for the H200 NVL"));
    assert_true(b200.kind[RATE_DENSE] == RATE_ASSUMED && h200.kind[RATE_DENSE] == RATE_MEASURED);
    /* cuDNN does not go there: our own kernels do both passes. */
    expect_share(l40s.of[RATE_ATTENTION], l40s.of[RATE_OWN_ATTENTION], 0);
    expect_share(l40s.of[RATE_VISION_ATTENTION_BACKWARD], l40s.of[RATE_OWN_VISION_ATTENTION], 0);
}

static const char *word_of(const gpu_card *card)
{
    return card ? card->word : "none";
}

/* A driver's name is found where the size is about that card's; a size alone finds the nearest. */
static void test_cards__are_found_by_name_and_by_size(void **state)
{
    (void)state;
    static const struct {
        const char *name, *word;
        double gib;
    } described[] = {{"NVIDIA H100 80GB HBM3, sm_90, 132 multiprocessors", "h100", 79.1},
                     {"NVIDIA H100 PCIe", "h100-pcie", 79.1},
                     {"NVIDIA H200", "h200", 139.7},
                     {"NVIDIA H200 NVL", "h200-nvl", 139.8},
                     {"NVIDIA A100-SXM4-80GB", "a100", 79.2},
                     {"NVIDIA A100-PCIE-40GB", "a100-40", 39.4},
                     {"NVIDIA L40S", "l40s", 44.4},
                     {"NVIDIA L4", "l4", 22.0},
                     {"NVIDIA L40", "none", 44.4},
                     {"NVIDIA GeForce RTX 4090", "rtx4090", 23.6},
                     {"NVIDIA GeForce RTX 4090 Laptop GPU", "none", 15.6},
                     {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "none", 9.8},
                     {"Tesla T4", "none", 14.6}};
    for (size_t i = 0; i < sizeof described / sizeof *described; i++)
        assert_string_equal(
            word_of(gpu_card_described(described[i].name, described[i].gib * 1073741824)),
            described[i].word);
    static const struct {
        double bytes;
        const char *word;
    } sized[] = {{24e9, "rtx4090"}, {25769803776, "rtx4090"}, {40e9, "a100-40"},
                 {48e9, "l40s"},    {80e9, "h100"},           {96e9, "h100-nvl"},
                 {150e9, "h200"},   {192e9, "b200"},          {12e9, "none"},
                 {5e12, "none"}};
    for (size_t i = 0; i < sizeof sized / sizeof *sized; i++)
        assert_string_equal(word_of(gpu_card_nearest(sized[i].bytes)), sized[i].word);
}

int run_rates_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates__built_in_rates_name_their_source),
        cmocka_unit_test(test_rates__file_and_back),
        cmocka_unit_test(test_rates__are_those_of_the_card),
        cmocka_unit_test(test_cards__are_found_by_name_and_by_size),
    };
    return cmocka_run_group_tests_name("rates", tests, NULL, NULL);
}
