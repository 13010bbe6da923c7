/* doubt.h: what is known of a row that a decider makes, or makes again, before it is sent. Pure
 * state; who is right is decided in doubts.c. */
#ifndef TESSERA_PREPD_SERVE_CORE_DOUBT_H
#define TESSERA_PREPD_SERVE_CORE_DOUBT_H

#include "common/base/hash.h"
#include "prepd/serve/core/accounts.h"
#include "prepd/serve/core/lease.h"

enum { DOUBT_DECIDERS = 3, DOUBT_WHO_BYTES = 128 };

struct doubt {
    uint64_t account; /* account.number of the key whose row it is; 0: a decider made it */
    char maker[DOUBT_WHO_BYTES]; /* in words */
    wire_msg *made[2]; /* [n_made] rows with which the next decider's is compared; owned */
    int n_made;
    uint64_t by[DOUBT_DECIDERS]; /* [n_by] worker_seat.number of the deciders that have made it */
    int n_by;
    int deaths; /* of deciders that decoded what they were to compare with */
    bool must;  /* it waits for as long as it takes */
    int64_t since_ns;
    char *tag;    /* of made[0] while it is the maker's; owned */
    bool refused; /* it was refused; the maker's row is known by its digest alone */
    hash128 digest;
    int64_t refused_ns; /* when */
    uint64_t refuser;   /* account.number of the consumer's key */
};

doubt *doubt_new(uint64_t account, int64_t now_ns); /* NULL: no memory */
void doubt_free(doubt **doubt);
/* Whether this decider has made the row; doubt may be NULL. */
bool doubt_has_made(const doubt *doubt, uint64_t number);
/* The rows with which the next decider compares its own, borrowed; returns how many. */
int doubt_rows(const lease *lease, const wire_msg *out_rows[2]);
/* A decider died while it decoded what it was to compare its own row with. After two of these the
 * rows are dropped, which counts as if the next decider's differed. */
void doubt_killed(doubt *doubt);
/* The row's documents are others now, so what was made of it proves nothing: a decider makes it,
 * and the key whose row it was is watched. */
void doubt_void(const accounts *accounts, lease *lease);

#endif
