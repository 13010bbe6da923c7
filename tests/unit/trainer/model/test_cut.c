/* test_cut.c: how a parameter is cut over the ranks of a layout. The parts that the ranks hold make
 * up the whole parameter, with nothing missing and nothing twice, and layouts that a model does not
 * allow are refused. */
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "trainer/model/params.h"
#include "trainer/ops/open.h"

static layout layout_like(int64_t replicate, int64_t shard, int64_t context, int64_t tensor,
                          int64_t expert, int64_t expert_tensor)
{
    return (layout){.replicate = replicate,
                    .shard = shard,
                    .context = context,
                    .tensor = tensor,
                    .pipeline = 1,
                    .expert = expert,
                    .expert_tensor = expert_tensor,
                    .world = replicate * shard * context * tensor,
                    .accumulation = 8};
}

static params *cut_for(const model_dims *d, const layout *l, int rank)
{
    params *p;
    assert_ok(params_new(d, &p));
    assert_ok(params_cut(p, d, l, mesh_place_of(l, rank)));
    for (int64_t i = 0; i < p->count; i++) {
        const param *q = &p->list[i];
        int64_t elements = 1;
        for (int a = 0; a < q->n_dims; a++)
            elements *= q->local[a];
        assert_int_equal(elements, q->n_local);
        assert_int_equal(slice_count(&q->held), q->n_local);
    }
    return p;
}

/* The pipeline stages have the units in order, and each unit is on exactly one stage, whatever else
 * cuts it. */
static void test_cut__stages_have_every_unit_once(void **state)
{
    (void)state;
    model_dims d;
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &d));
    layout l = layout_like(1, 2, 1, 2, 2, 1);
    l.pipeline = 3;
    l.world *= 3;
    l.stage_end[0] = 12;
    l.stage_end[1] = 31;
    params *of[3];
    for (int stage = 0; stage < 3; stage++)
        of[stage] = cut_for(&d, &l, stage * 4 + 1);
    for (int64_t i = 0; i < of[0]->count; i++) {
        const param *p = &of[0]->list[i];
        int want = p->layer >= 0 ? (p->layer >= 12) + (p->layer >= 31)
                   : strcmp(p->name, "lm_head.weight") == 0 ||
                           strcmp(p->name, "model.language_model.norm.weight") == 0
                       ? 2
                       : 0;
        for (int stage = 0; stage < 3; stage++)
            assert_int_equal(of[stage]->list[i].elsewhere, stage != want);
    }
    params_sizes size;
    int64_t stored = 0;
    mesh m;
    mesh_alone(&m); /* one rank per stage, which stores all of the stage */
    for (int stage = 0; stage < 3; stage++) {
        params_share(of[stage], &m, true);
        assert_ok(params_size(of[stage], &backend_cpu, true, &size));
        stored += size.stored;
        params_free(&of[stage]);
    }
    /* Two ranks (tensor or expert) each store half of what they share, and spans are padded. */
    assert_in_range(stored, 31070754032 / 2, 31070754032 * 11 / 20);
}

static bool overlap_slices(const slice *a, const slice *b)
{
    bool all = true;
    for (int axis = 0; axis < SLICE_AXES; axis++)
        all = all && a->first[axis] < b->first[axis] + b->count[axis] &&
              b->first[axis] < a->first[axis] + a->count[axis];
    return all;
}

/* Within a stage and a replica, the ranks that own a row together hold the same part of it, other
 * ranks hold nothing of that part, and all of them together hold everything. */
static void check_shapes(const char *preset, layout l)
{
    model_dims d;
    params **of = calloc((size_t)l.world, sizeof(params *));
    int *owner = calloc((size_t)l.world, sizeof *owner), world = (int)(l.world / l.replicate);
    assert_ok(dims_preset(preset, &d));
    for (int rank = 0; rank < world; rank++)
        of[rank] = cut_for(&d, &l, rank);
    for (int64_t i = 0; i < of[0]->count; i++)
        for (int a = 0; a < world; a++) {
            const param *mine = &of[a]->list[i];
            int owners = mesh_members(&l, a, params_owners(mine), owner), same = 0;
            assert_int_equal(mine->n_local * (world / owners), mine->count);
            for (int b = 0; b < world; b++) {
                const slice *theirs = &of[b]->list[i].held;
                bool shares = false;
                for (int k = 0; k < owners; k++)
                    shares |= owner[k] == b;
                if (shares)
                    assert_memory_equal(theirs, &mine->held, sizeof *theirs);
                else
                    assert_false(overlap_slices(theirs, &mine->held));
                same += shares;
            }
            assert_int_equal(same, owners);
        }
    for (int rank = 0; rank < world; rank++)
        params_free(&of[rank]);
    free(owner);
    free(of);
}

static void test_cut__ranks_hold_everything_once(void **state)
{
    (void)state;
    for (int preset = 0; preset < 2; preset++) {
        const char *name = preset ? "tile" : "debug";
        check_shapes(name, layout_like(1, 1, 1, 1, 1, 1));
        check_shapes(name, layout_like(1, 8, 1, 1, 4, 1));
        check_shapes(name, layout_like(1, 2, 2, 2, 1, 1));
        check_shapes(name, layout_like(1, 2, 1, 2, 2, 2));
        check_shapes(name, layout_like(1, 4, 1, 2, 8, 1));
        check_shapes(name, layout_like(2, 2, 2, 1, 4, 1));
        check_shapes(name, layout_like(1, 2, 1, 2, 1, 2));
    }
    check_shapes("qwen3-vl-30b-a3b", layout_like(1, 2, 1, 4, 2, 4));
    check_shapes("qwen3-vl-30b-a3b", layout_like(1, 8, 1, 1, 8, 1));
}

/* Compares a slice with a plain walk over the elements of the tensor. */
static void check_slice(const slice *s)
{
    int64_t count = s->size[0] * s->size[1] * s->size[2] * s->size[3], local = 0, at, run = 0;
    for (int64_t stored = 0; stored < count; stored++) {
        int64_t rest = stored, axis = SLICE_AXES;
        bool held = true;
        while (axis-- > 0) {
            int64_t i = rest % s->size[axis];
            held = held && i >= s->first[axis] && i < s->first[axis] + s->count[axis];
            rest /= s->size[axis];
        }
        assert_int_equal(slice_find(s, stored), held ? local : -1);
        if (!held) {
            assert_int_equal(run, 0); /* the last run ended here */
            continue;
        }
        assert_int_equal(slice_run(s, local, 1, &at), 1);
        assert_int_equal(at, stored);
        if (run == 0)
            run = slice_run(s, local, count, &at);
        run--;
        local++;
    }
    assert_int_equal(local, slice_count(s));
}

static void test_slice__runs_and_finds(void **state)
{
    (void)state;
    const int shares[][SLICE_AXES] = {{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 3, 1, 1}, {2, 1, 1, 4},
                                      {1, 1, 1, 2}, {2, 3, 1, 1}, {2, 3, 2, 4}};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++)
        for (int64_t which = 0; which < 2; which++) {
            slice s = slice_whole(4, 6, 2, 8);
            for (int axis = 0; axis < SLICE_AXES; axis++)
                slice_cut(&s, axis, which < shares[i][axis] ? which : 0, shares[i][axis]);
            check_slice(&s);
        }
}

/* The initial values on the ranks of a cut model are those of the whole model. */
static void test_cut__initial_values_are_the_same(void **state)
{
    (void)state;
    layout l = layout_like(1, 2, 1, 2, 2, 2);
    model_dims d;
    device *dev;
    stream *s;
    params *whole;
    assert_ok(dims_preset("debug", &d));
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &dev));
    assert_ok(dev->backend->stream_new(dev, &s));
    assert_ok(params_new(&d, &whole));
    assert_ok(params_alloc(whole, s, false));
    assert_ok(params_init(whole, s, 3));
    for (int rank = 0; rank < l.world; rank++) {
        params *p = cut_for(&d, &l, rank);
        assert_ok(params_alloc(p, s, false));
        assert_ok(params_init(p, s, 3));
        for (int64_t i = 0; i < p->count; i++) {
            const float *got = p->list[i].value, *want = whole->list[i].value;
            for (int64_t j = 0, run, at; j < p->list[i].n_local; j += run) {
                run = slice_run(&p->list[i].held, j, p->list[i].n_local, &at);
                assert_memory_equal(got + j, want + at, (size_t)run * sizeof *got);
            }
        }
        params_release(p, s);
        params_free(&p);
    }
    params_release(whole, s);
    params_free(&whole);
    dev->backend->stream_free(&s);
    device_close(&dev);
}

static layout staged(int64_t stages)
{
    layout l = layout_like(1, 1, 1, 1, 1, 1);
    l.pipeline = l.world = stages;
    return l;
}

static void test_cut__refusals_name_what_does_not_divide(void **state)
{
    (void)state;
    const struct {
        const char *preset;
        layout l;
        const char *rule;
    } cases[] = {
        {"qwen3-vl-30b-a3b", layout_like(1, 1, 1, 8, 1, 1),
         "tensor_parallel_degree 8 must divide the model's 4 key-value heads"},
        {"qwen3-vl-30b-a3b", layout_like(1, 3, 1, 1, 3, 1),
         "expert_parallel_degree 3 must divide the model's 128 experts"},
        {"qwen3-vl-30b-a3b", staged(47),
         "pipeline_parallel_degree 47 must be at most 46: the model has 48 layers, of which the "
         "first stage must have 3"},
        {"qwen3-vl-2b", staged(2), "the model's head shares its weights with the embedding"},
        {"debug", layout_like(1, 32, 1, 1, 32, 1),
         "expert_parallel_degree 32 must divide the model's 16 experts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_dims d;
        params *p;
        assert_ok(dims_preset(cases[i].preset, &d));
        assert_ok(params_new(&d, &p));
        assert_fails(ST_CONFIG, params_cut(p, &d, &cases[i].l, mesh_place_of(&cases[i].l, 0)),
                     cases[i].rule);
        /* The batch is not known here, so the message suggests no other layout (test_layout.c tests
         * those). */
        assert_null(strstr(status_text(), "nearest"));
        params_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut__ranks_hold_everything_once),
        cmocka_unit_test(test_cut__stages_have_every_unit_once),
        cmocka_unit_test(test_slice__runs_and_finds),
        cmocka_unit_test(test_cut__initial_values_are_the_same),
        cmocka_unit_test(test_cut__refusals_name_what_does_not_divide),
    };
    return cmocka_run_group_tests_name("cut", tests, NULL, NULL);
}
