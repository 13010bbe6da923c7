/* dry_run_check.c: the table; who stores which elements; how many bytes files must have. */
#include "trainer/check/dry_run_check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/hf_check.h"
#include "trainer/checkpoint/hf_write.h"

static const char head_name[] = "lm_head.weight";

static const char *const names[DRY_KEYS] = {
    "elements stored, each by one rank",
    "bytes read of the weights",
    "bytes of the plan, allocated",
    "bytes of trainer plan, of these",
    "bytes of trainer plan, in all",
    "bytes received in the step",
    "of weights, by trainer plan",
    "calls of groups, in order",
    "elements sent to experts, stages",
    "bytes written of the weights",
    "bytes of tensors in their files",
    "elements in training files",
    "bytes read to go on",
};

status dry_check(dry_checks *all, dry_key key, int64_t want, int64_t got)
{
    all->of[key].want += want;
    all->of[key].got += got;
    all->of[key].ranks++;
    if (want == got)
        return ST_OK;
    return FAIL(ST_INTERNAL, "%s: %" PRId64 ", but it should be %" PRId64, names[key], got, want);
}

static int64_t pick_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void dry_checks_add(dry_checks *all, const dry_checks *other)
{
    for (int i = 0; i < DRY_KEYS; i++) {
        all->of[i].want += other->of[i].want;
        all->of[i].got += other->of[i].got;
        all->of[i].ranks += other->of[i].ranks;
    }
    for (int i = 0; i < LAYOUT_STAGES; i++)
        all->stage[i] = pick_larger(all->stage[i], other->stage[i]);
    all->beside = pick_larger(all->beside, other->beside);
}

void dry_checks_print(const dry_checks *all, int64_t stages, FILE *to)
{
    fprintf(to, "%-36s %6s %20s %20s\n", "of all ranks", "checks", "should be", "is");
    for (int i = 0; i < DRY_KEYS; i++)
        if (all->of[i].ranks > 0)
            fprintf(to, "%-36s %6" PRId64 " %20" PRId64 " %20" PRId64 "\n", names[i],
                    all->of[i].ranks, all->of[i].want, all->of[i].got);
    for (int64_t i = 0; i < stages && stages > 1; i++)
        fprintf(to, "planned for a rank of stage %-13" PRId64 " %22" PRId64 " bytes\n", i,
                all->stage[i]);
    fprintf(to,
            "besides the plan a rank takes %" PRId64 " bytes for batches under way and sums\n"
            "dry run: all agree\n",
            all->beside);
}

/* ---- who stores what ---- */

struct dry_owner {
    slice held;
    int64_t first, count; /* local elements */
};

status dry_owners_new(int64_t n, int ranks, dry_owners *out)
{
    struct dry_owner *of = calloc((size_t)(n * ranks + 1), sizeof *of);
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for notes of what %d ranks store", ranks);
    *out = (dry_owners){of, n, ranks};
    return ST_OK;
}

void dry_owners_free(dry_owners *o)
{
    free(o->of);
    *o = (dry_owners){0};
}

void dry_owners_note(dry_owners *o, const params *p, int rank)
{
    for (int64_t i = 0; i < o->count; i++) {
        const param *q = &p->list[i];
        o->of[rank * o->count + i] = (struct dry_owner){q->held, q->own_first, q->own_n};
    }
}

static bool same_box(const slice *a, const slice *b)
{
    return memcmp(a->first, b->first, sizeof a->first) == 0 &&
           memcmp(a->count, b->count, sizeof a->count) == 0;
}

static bool apart(const slice *a, const slice *b)
{
    for (int x = 0; x < SLICE_AXES; x++)
        if (a->first[x] + a->count[x] <= b->first[x] || b->first[x] + b->count[x] <= a->first[x])
            return true;
    return false;
}

static bool share_elements(const struct dry_owner *a, const struct dry_owner *b)
{
    if (a->count == 0 || b->count == 0 || apart(&a->held, &b->held))
        return false;
    /* Boxes that overlap only in part count as shared. No layout makes such boxes. */
    return !same_box(&a->held, &b->held) ||
           (a->first < b->first + b->count && b->first < a->first + a->count);
}

static bool holds_slice(const struct dry_owner *a, const param *q)
{
    bool fits = a->first >= 0 && a->count >= 0 && a->first + a->count <= slice_count(&a->held);
    int64_t all = 1;
    for (int x = 0; x < SLICE_AXES; x++) {
        fits &= a->held.first[x] >= 0 && a->held.first[x] + a->held.count[x] <= a->held.size[x];
        all *= a->held.size[x];
    }
    return fits && all == q->count;
}

char *dry_owners_bytes(dry_owners *o, int64_t *out_each)
{
    *out_each = o->count * (int64_t)sizeof *o->of;
    return (char *)o->of;
}

/* The next rank after r in a replica, over all its pipeline stages. */
static int next_of(const layout *l, int replica, int r)
{
    do
        r++;
    while (r < l->world && mesh_place_of(l, r).replicate != replica);
    return r;
}

static status check_param(const dry_owners *o, const param *q, int64_t i, const layout *l,
                          int replica)
{
    const int first = next_of(l, replica, -1);
    int64_t sum = 0;
    for (int r = first; r < o->ranks; r = next_of(l, replica, r)) {
        const struct dry_owner *a = &o->of[r * o->count + i];
        if (!holds_slice(a, q))
            return FAIL(ST_INTERNAL, "rank %d stores elements that %s does not have", r, q->name);
        sum += a->count;
        for (int other = first; other < r; other = next_of(l, replica, other))
            if (share_elements(a, &o->of[other * o->count + i]))
                return FAIL(ST_INTERNAL, "ranks %d and %d both store elements of %s", other, r,
                            q->name);
    }
    if (sum != q->count)
        return FAIL(ST_INTERNAL,
                    "%s: the ranks of replica %d store %" PRId64 " of its %" PRId64 " elements",
                    q->name, replica, sum, q->count);
    return ST_OK;
}

status dry_owners_check(dry_checks *all, const dry_owners *o, const params *whole, const layout *l)
{
    for (int replica = 0; replica < l->replicate; replica++) {
        int64_t sum = 0;
        for (int64_t i = 0; i < o->count; i++) {
            TRY(check_param(o, &whole->list[i], i, l, replica));
            for (int r = next_of(l, replica, -1); r < o->ranks; r = next_of(l, replica, r))
                sum += o->of[r * o->count + i].count;
        }
        TRY(dry_check(all, DRY_OWNED, whole->total, sum));
    }
    return ST_OK;
}

/* ---- files ---- */

static status read_sizes(const params *whole, const char *path, dry_source *s)
{
    hf_folder f;
    hf_report report = {0};
    param_piece *pieces = NULL;
    int64_t n = 0;
    TRY(hf_folder_open(path, &f));
    status st;
    TRY_OR(done, hf_check(&f, whole, &report));
    TRY_OR(done, hf_report_status(&report, path));
    s->layout = report.layout;
    TRY_OR(done, params_pieces(whole, report.layout, &pieces, &n));
    for (int64_t i = 0; i < n; i++)
        s->size[pieces[i].weight - whole->list] =
            (int64_t)st_dtype_size(hf_folder_find(&f, pieces[i].name)->dtype);
    s->repeats = !params_find(whole, head_name) && hf_folder_find(&f, head_name);
    s->reads = true;
done:
    free(pieces);
    hf_report_done(&report);
    hf_folder_close(&f);
    return st;
}

status dry_source_open(const params *whole, const char *path, dry_source *out)
{
    *out = (dry_source){.layout = params_published(whole), .count = whole->count};
    out->size = calloc((size_t)whole->count + 1, sizeof *out->size);
    if (!out->size)
        return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " sizes", whole->count);
    for (int64_t i = 0; i < whole->count; i++)
        out->size[i] = whole->list[i].adapter ? 0 : (int64_t)st_dtype_size(DT_BF16);
    if (!file_is_folder(path) || !hf_has_weights(path))
        return ST_OK;
    return read_sizes(whole, path, out);
}

void dry_source_close(dry_source *s)
{
    free(s->size);
    *s = (dry_source){0};
}

/* Elements of all experts of which this rank stores at least a part. */
static int64_t whole_experts(const param *q)
{
    int64_t matrix = q->local[1] * q->local[2], end = q->own_first + q->own_n;
    return q->own_n == 0 ? 0 : ((end + matrix - 1) / matrix - q->own_first / matrix) * matrix;
}

int64_t dry_bytes_to_read(const dry_source *s, const params *p)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const param *q = &p->list[i];
        bool turned = q->group == GROUP_EXPERTS && s->layout != EXPERTS_FUSED;
        sum += (turned ? whole_experts(q) : q->own_n) * s->size[i];
    }
    return sum;
}

int64_t dry_bytes_to_write(const dry_source *s, const params *p)
{
    int64_t sum = s->repeats ? p->list[0].own_n * s->size[0] : 0;
    for (int64_t i = 0; i < s->count; i++)
        sum += p->list[i].own_n * s->size[i];
    return sum;
}

int64_t dry_state_bytes(const params *p)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < p->count; i++)
        sum += p->list[i].own_n * (p->list[i].frozen ? 1 : 3);
    return sum * (int64_t)st_dtype_size(DT_F32);
}

static status check_weights(dry_checks *all, const dry_source *s, const params *whole,
                            const char *folder)
{
    hf_folder f;
    hf_report report = {0};
    int64_t want = s->repeats ? whole->list[0].count * s->size[0] : 0, got = 0;
    TRY(hf_folder_open(folder, &f));
    for (int64_t i = 0; i < whole->count; i++)
        want += whole->list[i].count * s->size[i];
    for (int64_t i = 0; i < f.n_tensors; i++)
        got += (int64_t)f.tensors[i]->data.size;
    status st = hf_check(&f, whole, &report);
    if (st == ST_OK)
        st = hf_report_status(&report, folder);
    if (st == ST_OK)
        st = dry_check(all, DRY_FILES, want, got);
    hf_report_done(&report);
    hf_folder_close(&f);
    return st;
}

static status check_state(dry_checks *all, const params *whole, int writers, const char *training)
{
    int64_t got = 0;
    for (int r = 0; r < writers; r++) {
        char name[64], path[STATUS_PATH_MAX];
        st_file f;
        snprintf(name, sizeof name, "rank-%05d-of-%05d.safetensors", r, writers);
        TRY(hf_path(path, training, name));
        TRY(st_open(path, &f));
        for (size_t i = 0; i < f.n_tensors; i++)
            got += f.tensors[i].shape[0];
        st_close(&f);
    }
    return dry_check(all, DRY_STATE, whole->total + 2 * params_trained(whole), got);
}

status dry_check_files(dry_checks *all, const dry_source *s, const params *whole, int writers,
                       const char *folder)
{
    char training[STATUS_PATH_MAX];
    TRY(check_weights(all, s, whole, folder));
    TRY(hf_path(training, folder, FOLDER_TRAINING));
    return check_state(all, whole, writers, training);
}
