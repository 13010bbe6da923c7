/* SPDX-License-Identifier: Apache-2.0 */
/* dry_run_check.c: the table; who stores which elements; how many bytes files must have. */
#include "tests/dry_run/dry_run_check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/hf/hf_check.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/ops/state_codes.h"

static const char head_name[] = "lm_head.weight";

static const char *const names[DRY_KEYS] = {
    "elements stored, each by one rank", "bytes read of the weights",
    "bytes of the plan, allocated",      "bytes on the host, allocated",
    "bytes of trainer plan, of these",   "bytes of trainer plan, in all",
    "bytes received in the step",        "of weights, by trainer plan",
    "calls of groups, in order",         "elements sent to experts, stages",
    "bytes written of the weights",      "bytes of tensors in their files",
    "elements in training files",        "bytes read to go on",
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

static int64_t pick_larger(int64_t first, int64_t second)
{
    return first > second ? first : second;
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

status dry_owners_new(int64_t count, int ranks, dry_owners *out)
{
    struct dry_owner *of = calloc((size_t)(count * ranks + 1), sizeof *of);
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for notes of what %d ranks store", ranks);
    *out = (dry_owners){of, count, ranks};
    return ST_OK;
}

void dry_owners_free(dry_owners *owners)
{
    free(owners->of);
    *owners = (dry_owners){0};
}

void dry_owners_note(dry_owners *owners, const params *registry, int rank)
{
    for (int64_t i = 0; i < owners->count; i++) {
        const param *entry = &registry->list[i];
        owners->of[rank * owners->count + i] =
            (struct dry_owner){entry->held, entry->own_first, entry->own_n};
    }
}

static bool same_box(const slice *first, const slice *second)
{
    return memcmp(first->first, second->first, sizeof first->first) == 0 &&
           memcmp(first->count, second->count, sizeof first->count) == 0;
}

static bool apart(const slice *first, const slice *second)
{
    for (int i = 0; i < SLICE_AXES; i++)
        if (first->first[i] + first->count[i] <= second->first[i] ||
            second->first[i] + second->count[i] <= first->first[i])
            return true;
    return false;
}

static bool share_elements(const struct dry_owner *first, const struct dry_owner *second)
{
    if (first->count == 0 || second->count == 0 || apart(&first->held, &second->held))
        return false;
    /* Boxes that overlap only in part count as shared. No layout makes such boxes. */
    return !same_box(&first->held, &second->held) ||
           (first->first < second->first + second->count &&
            second->first < first->first + first->count);
}

static bool holds_slice(const struct dry_owner *first, const param *entry)
{
    bool fits = first->first >= 0 && first->count >= 0 &&
                first->first + first->count <= slice_count(&first->held);
    int64_t all = 1;
    for (int i = 0; i < SLICE_AXES; i++) {
        fits &= first->held.first[i] >= 0 &&
                first->held.first[i] + first->held.count[i] <= first->held.size[i];
        all *= first->held.size[i];
    }
    return fits && all == entry->count;
}

char *dry_owners_bytes(dry_owners *owners, int64_t *out_each)
{
    *out_each = owners->count * (int64_t)sizeof *owners->of;
    return (char *)owners->of;
}

/* The next rank after `other` in a replica, over all its pipeline stages. */
static int next_of(const layout *degrees, int replica, int other)
{
    do
        other++;
    while (other < degrees->world && mesh_place_of(degrees, other).replicate != replica);
    return other;
}

static status check_param(const dry_owners *owners, const param *entry, int64_t number,
                          const layout *degrees, int replica)
{
    const int first = next_of(degrees, replica, -1);
    int64_t sum = 0;
    for (int rank = first; rank < owners->ranks; rank = next_of(degrees, replica, rank)) {
        const struct dry_owner *owner = &owners->of[rank * owners->count + number];
        if (!holds_slice(owner, entry))
            return FAIL(ST_INTERNAL, "rank %d stores elements that %s does not have", rank,
                        entry->name);
        sum += owner->count;
        for (int other = first; other < rank; other = next_of(degrees, replica, other))
            if (share_elements(owner, &owners->of[other * owners->count + number]))
                return FAIL(ST_INTERNAL, "ranks %d and %d both store elements of %s", other, rank,
                            entry->name);
    }
    if (sum != entry->count)
        return FAIL(ST_INTERNAL,
                    "%s: the ranks of replica %d store %" PRId64 " of its %" PRId64 " elements",
                    entry->name, replica, sum, entry->count);
    return ST_OK;
}

status dry_owners_check(dry_checks *all, const dry_owners *owners, const params *whole,
                        const layout *degrees)
{
    for (int replica = 0; replica < degrees->replicate; replica++) {
        int64_t sum = 0;
        for (int64_t i = 0; i < owners->count; i++) {
            TRY(check_param(owners, &whole->list[i], i, degrees, replica));
            for (int rank = next_of(degrees, replica, -1); rank < owners->ranks;
                 rank = next_of(degrees, replica, rank))
                sum += owners->of[rank * owners->count + i].count;
        }
        TRY(dry_check(all, DRY_OWNED, whole->total, sum));
    }
    return ST_OK;
}

/* ---- files ---- */

static status read_sizes(const params *whole, const char *path, dry_source *source)
{
    hf_folder folder;
    hf_report report = {0};
    param_piece *pieces = NULL;
    int64_t count = 0;
    TRY(hf_folder_open(path, &folder));
    status st;
    TRY_OR(done, hf_check(&folder, whole, &report));
    TRY_OR(done, hf_report_status(&report, path));
    source->layout = report.layout;
    TRY_OR(done, params_pieces(whole, report.layout, &pieces, &count));
    for (int64_t i = 0; i < count; i++)
        source->size[pieces[i].weight - whole->list] =
            (int64_t)st_dtype_size(hf_folder_find(&folder, pieces[i].name)->dtype);
    source->repeats = !params_find(whole, head_name) && hf_folder_find(&folder, head_name);
    source->reads = true;
done:
    free(pieces);
    hf_report_done(&report);
    hf_folder_close(&folder);
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

void dry_source_close(dry_source *source)
{
    free(source->size);
    *source = (dry_source){0};
}

/* Elements of all experts of which this rank stores at least a part. */
static int64_t whole_experts(const param *entry)
{
    int64_t matrix = entry->local[1] * entry->local[2], end = entry->own_first + entry->own_n;
    return entry->own_n == 0 ? 0
                             : ((end + matrix - 1) / matrix - entry->own_first / matrix) * matrix;
}

int64_t dry_bytes_to_read(const dry_source *source, const params *registry, bool frozen_only)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < source->count; i++) {
        const param *entry = &registry->list[i];
        if (frozen_only && !entry->frozen)
            continue;
        bool turned = entry->group == GROUP_EXPERTS && source->layout != EXPERTS_FUSED;
        sum += (turned ? whole_experts(entry) : entry->own_n) * source->size[i];
    }
    return sum;
}

int64_t dry_bytes_to_write(const dry_source *source, const params *registry)
{
    int64_t sum = source->repeats ? registry->list[0].own_n * source->size[0] : 0;
    for (int64_t i = 0; i < source->count; i++)
        sum += registry->list[i].own_n * source->size[i];
    return sum;
}

int64_t dry_state_bytes(const dry_source *source, const params *registry)
{
    int64_t sum = source->reads ? dry_bytes_to_read(source, registry, true) : 0;
    for (int64_t i = 0; i < registry->count; i++) {
        const param *row = &registry->list[i];
        const size_t value = row->value ? st_dtype_size(row->value_dtype)
                                        : st_dtype_size(row->act_dtype),
                     moments = row->frozen ? 0 : 2 * st_dtype_size(row->moment_dtype);
        const int64_t blocks = row->coded ? (row->own_n + STATE_BLOCK - 1) / STATE_BLOCK : 0;
        sum += param_in_base(row)
                   ? 0
                   : row->own_n * (int64_t)(value + moments) + 2 * blocks * (int64_t)sizeof(float);
    }
    return sum;
}

static status check_weights(dry_checks *all, const dry_source *source, const params *whole,
                            const char *folder)
{
    hf_folder hf;
    hf_report report = {0};
    int64_t want = source->repeats ? whole->list[0].count * source->size[0] : 0, got = 0;
    TRY(hf_folder_open(folder, &hf));
    for (int64_t i = 0; i < whole->count; i++)
        want += whole->list[i].count * source->size[i];
    for (int64_t i = 0; i < hf.n_tensors; i++)
        got += (int64_t)hf.tensors[i]->data.size;
    status st = hf_check(&hf, whole, &report);
    if (st == ST_OK)
        st = hf_report_status(&report, folder);
    if (st == ST_OK)
        st = dry_check(all, DRY_FILES, want, got);
    hf_report_done(&report);
    hf_folder_close(&hf);
    return st;
}

static status check_state(dry_checks *all, const params *whole, int writers, const char *training)
{
    int64_t got = 0, want = 2 * params_trained(whole);
    for (int64_t i = 0; i < whole->count; i++)
        want += param_in_base(&whole->list[i]) ? 0 : whole->list[i].count;
    for (int writer = 0; writer < writers; writer++) {
        char name[64], path[STATUS_PATH_MAX];
        st_file file;
        snprintf(name, sizeof name, "rank-%05d-of-%05d.safetensors", writer, writers);
        TRY(hf_path(path, training, name));
        TRY(st_open(path, &file));
        for (size_t i = 0; i < file.n_tensors; i++)
            if (strncmp(file.tensors[i].name, "scale", 5) != 0) /* of moments in 8 bits */
                got += file.tensors[i].shape[0];
        st_close(&file);
    }
    return dry_check(all, DRY_STATE, want, got);
}

status dry_check_files(dry_checks *all, const dry_source *source, const params *whole, int writers,
                       bool has_model, const char *folder)
{
    char training[STATUS_PATH_MAX];
    if (has_model)
        TRY(check_weights(all, source, whole, folder));
    TRY(hf_path(training, folder, FOLDER_TRAINING));
    return check_state(all, whole, writers, training);
}
