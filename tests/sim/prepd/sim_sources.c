/* SPDX-License-Identifier: Apache-2.0 */
/* sim_sources.c: a data set of one source, or a mixture of several, whose files may be readable
 * only from certain points on. */
#include "tests/sim/prepd/sim_sources.h"

static void divide(int64_t count, int nth, int n_sources, int64_t *out_first, int64_t *out_count)
{
    *out_first = count * nth / n_sources;
    *out_count = count * (nth + 1) / n_sources - *out_first;
}

void sim_sources_init(sim_data *inout, const sim_data_rules *rules)
{
    extern const dataset_vtable sim_data_vtable, sim_mixture_vtable;
    static const char *const names[MOST_SOURCES] = {"talks", "pictures", "books"};
    uint64_t facts[1 + MOST_SOURCES] = {inout->seed};
    const int count = rules->n_sources > 1 ? rules->n_sources : 1;
    inout->n_sources = count;
    inout->piece_samples = rules->piece_samples;
    for (int i = 0; i < count; i++) {
        sim_source *of = &inout->source[i];
        divide(inout->n_samples, i, count, &of->first, &of->count);
        divide(inout->n_pictures, i, count, &of->first_picture, &of->n_pictures);
        inout->part[i] = (dataset_part){names[i], of->first, of->count, rules->weight[i]};
        facts[1 + i] = (uint64_t)rules->weight[i];
    }
    const bool mixed = count > 1;
    inout->base.adapter = mixed ? &sim_mixture_vtable : &sim_data_vtable;
    inout->contents = hash_bytes(facts, sizeof *facts);
    inout->identity = mixed ? hash_bytes(facts, sizeof facts) : inout->contents;
}

sample_place sim_data_place(const sim_data *data, int64_t number)
{
    int of = data->n_sources - 1;
    while (number < data->source[of].first)
        of--;
    return (sample_place){
        of, data->piece_samples > 0 ? (number - data->source[of].first) / data->piece_samples : -1};
}
