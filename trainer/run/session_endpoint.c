/* session_endpoint.c: see session_endpoint.h. */
#include "trainer/run/session_endpoint.h"

#include <string.h>

#include "common/conf/rank_endpoints.h"

status session_endpoint(session *run)
{
    const char *list = run->conf->prepd_rank_endpoints, *endpoint = run->conf->prepd_endpoint;
    const int ranks = (int)layout_consumers(&run->mesh.layout);
    size_t size = strlen(endpoint);
    if (*list && !run->conf->feed_replay[0]) {
        const int missing = rank_endpoints_missing(list, ranks);
        if (missing < ranks)
            return FAIL_IN(ST_CONFIG, conf_place(run->conf),
                           "prepd.rank_endpoints names no daemon for rank %d; this run has %d "
                           "data-parallel ranks",
                           missing, ranks);
        endpoint = rank_endpoints_find(list, run->mesh.place.consumer, &size);
    }
    run->endpoint = strndup(endpoint, size);
    return run->endpoint ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for an endpoint");
}
