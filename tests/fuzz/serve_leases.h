/* SPDX-License-Identifier: Apache-2.0 */
/* serve_leases.h: what must hold of every lease that fuzz_serve.c's dispatcher sends to a worker,
 * and of every one that it has. */
#ifndef TESSERA_TESTS_FUZZ_SERVE_LEASES_H
#define TESSERA_TESTS_FUZZ_SERVE_LEASES_H

#include "common/base/span.h"
#include "prepd/serve/core/state/lease.h"

/* The text of a LEASE: a prefix stands before its branches, which bring no pictures of their own
 * and are as many as it says; a text comes after one before it in the lease, or after one that is
 * sent with it. */
void check_lease_text(span text);
/* The items of a lease: a prefix stands before its branches. */
void check_lease_items(const lease *leased);

#endif
