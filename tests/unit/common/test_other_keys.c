/* test_other_keys.c: keys of other trainers. Part of test_conf. */
#include "tests/harness.h"

#include <string.h>

#include "common/conf/conf_table.h"
#include "common/conf/other_keys.h"
#include "tests/unit/common/conf_room.h"

/* Every row of other_keys.def says what is so. */
static void test_other_keys__name_options_that_exist(void **state)
{
    (void)state;
    for (size_t i = 0; i < other_keys_count; i++) {
        const other_key *row = &other_keys[i];
        if (!row->key)
            continue;
        const conf_row *option = conf_row_find(row->key), *here = conf_row_find(row->here);
        if ((row->fate == KEY_TAKEN) != (option != NULL))
            fail_msg("%s: the row says otherwise than options.def", row->key);
        if (row->here[0] ? row->fate != KEY_SAME || !here || !conf_row_is_option(here)
                         : row->fate == KEY_SAME && !row->words[0])
            fail_msg("%s: %s is no option", row->key, row->here);
        if (row->fate == KEY_NEEDLESS && !row->words[0])
            fail_msg("%s: why is it not needed?", row->key);
        for (size_t j = i + 1; j < other_keys_count; j++)
            if (other_keys[j].key && strcasecmp(row->key, other_keys[j].key) == 0)
                fail_msg("%s has two rows", row->key);
    }
}

static void test_other_keys__are_cited(void **state)
{
    const room *space = *state;
    refuse_conf(space, "model:\n  flavor: 30B\n",
                "c.yaml:2: there is no option \"model.flavor\", a key of torchtitan; here it is "
                "model.path: a preset such as");
    refuse_conf(space, "metrics:\n  enable_wandb: true\n",
                "a key of torchtitan; here: deploy/log-to-wandb follows");
    refuse_conf(space, "overlap_grad_reduce: true\n",
                "a key of Megatron; leave it out: collectives run beside products where they can "
                "(configs/other-trainers.md)");
    refuse_conf(space, "neftune_noise_alpha: 5\n",
                "a key of LLaMA-Factory and ms-swift; there is nothing like it here (configs/");
    refuse_conf(space, "LoRA_Dropout: 0.1\n", "there is nothing like it here: adapters have no");
    refuse_conf(space, "target_modules: [q_proj, k_proj]\n", "here it is lora.targets");
    refuse_flag("--float8.recipe_name", "rowwise", "there is no float8 training");
}

int run_other_keys_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_keys__name_options_that_exist),
        cmocka_unit_test(test_other_keys__are_cited),
    };
    return cmocka_run_group_tests_name("other keys", tests, enter_room, leave_room);
}
