/* expected.h: what every row of a stream must be, computed from the plan alone (prepd/plan): given
 * the index, the options and the seed, nothing of what serves it. Rows are computed once and kept.
 */
#ifndef TESSERA_TESTS_SIM_PREPD_EXPECTED_H
#define TESSERA_TESTS_SIM_PREPD_EXPECTED_H

#include "prepd/plan/plan.h"
#include "tests/sim/prepd/sim_data.h"

typedef struct reference_doc {
    int64_t sample;
    int32_t branches; /* of a prefix; else 0 */
    uint64_t content; /* content_hash of it */
} reference_doc;

typedef struct reference_row {
    bool known;
    int64_t n_docs;
    reference_doc *docs; /* [n_docs] owned */
    int64_t cost;        /* assign_cost */
} reference_row;

enum { KEPT_STEPS = 32 };

typedef struct reference {
    const sim_data *data; /* borrowed */
    const conf *options;  /* borrowed */
    data_index *index;    /* sealed */
    plan *plan;
    arena memory;
    reference_row *row;        /* [capacity] */
    uint64_t n_rows, capacity; /* n_rows is UINT64_MAX for a stream without end */
    struct {
        uint64_t step;
        int ranks;    /* 0: an empty place */
        int *rank_of; /* [batch] */
    } steps[KEPT_STEPS];
    unsigned next_step;
} reference;

/* Makes the sealed index that an honest build of it gives, with the weights of a mixture. */
data_index *reference_index(const sim_data *data);

/* Prepares a stream. Fails as plan_new does. Ends the process if there is no memory. */
WARN_UNUSED status reference_init(reference *out, const sim_data *data, const conf *options,
                                  plan_kind kind);
void reference_done(reference *of);

/* Row `number`; NULL past the end of the stream. It stays where it is until reference_done, except
 * in a stream without end, where it stays until the next call. */
const reference_row *reference_find_row(reference *of, uint64_t number);

/* The first row from `from` on that this rank is owed; false if there is none. */
bool reference_next(reference *of, int ranks, int rank, uint64_t from, uint64_t *out);

#endif
