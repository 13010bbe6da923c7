/* SPDX-License-Identifier: Apache-2.0 */
/* expected.h: what every row of a stream must be, computed from the data set and the options by a
 * plan of its own (tests/sim/plan), which shares no code with that of the daemon. */
#ifndef TESSERA_TESTS_SIM_PREPD_EXPECTED_H
#define TESSERA_TESTS_SIM_PREPD_EXPECTED_H

#include "tests/sim/plan/slow_plan.h"
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
    int64_t cost;        /* predicted */
} reference_row;

enum { KEPT_STEPS = 32 };

typedef struct reference {
    const sim_data *data; /* borrowed */
    const conf *options;  /* borrowed */
    data_index *index;    /* sealed */
    slow_data facts;      /* the data as the plan is given them */
    slow_plan *plan;
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

/* What the index of an honest build says of the data. It borrows the samples' pictures. */
slow_data reference_facts(const sim_data *data);
void reference_facts_done(slow_data *facts);

/* Prepares a stream. False if a source has no sample that can be used. Ends the process if there is
 * no memory. */
bool reference_init(reference *out, const sim_data *data, const conf *options, slow_kind kind);
void reference_done(reference *of);

/* Row `number`; NULL past the end of the stream. It stays where it is until reference_done, except
 * in a stream without end, where it stays until the next call. */
const reference_row *reference_find_row(reference *of, uint64_t number);

/* The first row from `from` on that this rank is owed; false if there is none. */
bool reference_next(reference *of, int ranks, int rank, uint64_t from, uint64_t *out);

#endif
