/* SPDX-License-Identifier: Apache-2.0 */
/* rank_link_find.c: see rank_link_find.h: the host and port at which rank 0 listens,
 * from options and the environment of torchrun, Slurm or mpirun. All ranks compute the same. */
#include "trainer/parallel/link/rank_link_find.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"

/* PORT_DEFAULT is torchrun's. A job of Slurm or mpirun gets a port by its number, so that two jobs
 * can share a machine. All are below the ports that the kernel gives to outgoing connections. */
enum { PORT_DEFAULT = 29500, PORT_FIRST = 20000, PORTS = 9500, MPIRUN_JOB_SHIFT = 16 };

static int port_of_job(const char *number, int shift)
{
    return PORT_FIRST + (int)((strtoul(number, NULL, 10) >> shift) % PORTS);
}

/* Open MPI 5 gives a job a name instead, such as "prterun-host-1234@1". Slurm's PMIx gives names
 * too ("slurm.pmix.12.0"), but those jobs have a number. */
static int port_of_name(const char *name)
{
    uint64_t drawn;
    const hash128 hash = hash_bytes(name, strlen(name));
    memcpy(&drawn, hash.bytes, sizeof drawn);
    return PORT_FIRST + (int)(drawn % PORTS);
}

/* The first host of a Slurm node list such as "a,b", "node[01-04,7]" or "node[3,5]-x". */
static void first_node(const char *list, char *out, size_t size)
{
    size_t prefix = strcspn(list, "[,");
    if (list[prefix] != '[') {
        snprintf(out, size, "%.*s", (int)prefix, list);
        return;
    }
    const char *number = list + prefix + 1, *closing = strchr(list, ']');
    int digits = (int)strcspn(number, "-,]");
    int tail = closing ? (int)strcspn(closing + 1, ",") : 0;
    snprintf(out, size, "%.*s%.*s%.*s", (int)prefix, list, digits, number, tail,
             closing ? closing + 1 : "");
}

static status port_of(const char *variable, int *out)
{
    const char *text = getenv(variable);
    char *end = NULL;
    long count = text ? strtol(text, &end, 10) : 0;
    if (count < 1 || count > 65535 || *end)
        return FAIL(ST_CONFIG, "%s is \"%s\", which is not a port from 1 to 65535", variable, text);
    *out = (int)count;
    return ST_OK;
}

status rank_link_find(bool one_machine, rank_link_place *out)
{
    rank_link_place place = {"", PORT_DEFAULT};
    const char *master = getenv("MASTER_ADDR"), *nodes = getenv("SLURM_STEP_NODELIST");
    const char *job = getenv("SLURM_JOB_ID"), *mpirun_job = getenv("OMPI_MCA_ess_base_jobid");
    const char *mpirun_name = getenv("PMIX_NAMESPACE");
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (getenv("MASTER_PORT")) {
        TRY(port_of("MASTER_PORT", &place.port));
        if (agent && strcmp(agent, "True") == 0)
            place.port++; /* torchrun's agent listens at MASTER_PORT itself */
    } else if (mpirun_job) {
        place.port = port_of_job(mpirun_job, MPIRUN_JOB_SHIFT);
    } else if (mpirun_name && strncmp(mpirun_name, "prte", 4) == 0) {
        place.port = port_of_name(mpirun_name);
    } else if (job) {
        place.port = port_of_job(job, 0);
    }
    if (master && *master)
        snprintf(place.host, sizeof place.host, "%s", master);
    else if (one_machine)
        snprintf(place.host, sizeof place.host, "127.0.0.1");
    else if (nodes && *nodes)
        first_node(nodes, place.host, sizeof place.host);
    else
        return FAIL(ST_CONFIG, "the ranks are on several machines, and rank 0's address is not "
                               "known: set MASTER_ADDR for all ranks");
    *out = place;
    return ST_OK;
}
