/* SPDX-License-Identifier: Apache-2.0 */
/* work_files.c: what a simulated worker finds in the files of a lease: those of its machine's copy
 * of the data, or those that came with the lease. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/daemon_world.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/work.h"

bool lacks_picture(const simulation *sim, const sim_worker *worker, int64_t picture)
{
    return worker->bent == BENT_POOR_COPY &&
           sim_random_mix(sim->seed ^ (uint64_t)(picture + 1) << 16 ^ (uint64_t)worker->host) % 6 ==
               0;
}

bool is_missing(picture_fate fate)
{
    return fate == PICTURE_VANISHES || fate == PICTURE_CHANGES;
}

/* The number of a picture in the data set, from the name of its file. */
static int64_t picture_of(const json_value *file)
{
    return strtoll(json_text(json_find(file, "path"), "0"), NULL, 10);
}

size_t work_compared_parts(const json_value *told)
{
    const json_value *rows = json_find(told, "compare");
    size_t parts = 0;
    for (size_t i = 0; i < json_count(rows); i++)
        parts += (size_t)json_int(json_item(rows, i), 0);
    return parts;
}

int64_t work_files_read_ns(const wire_msg *files, const json_value *told, int64_t now_ns)
{
    int64_t word[SENT_WORDS];
    if (wire_msg_parts(files) <= PARTS_BEFORE_FILES + work_compared_parts(told))
        return now_ns;
    memcpy(word, wire_msg_part(files, PARTS_BEFORE_FILES).data, sizeof word);
    return word[2];
}

/* Checks that the bytes which came are those of the file that the lease says. */
static void check_bytes(simulation *sim, const sim_job *job, const json_value *file, size_t nth)
{
    const json_value *frames = json_find(file, "frames"),
                     *came = json_item(json_find(file, "shipped"), nth);
    const span bytes = wire_msg_part(job->files, (size_t)json_int(json_find(came, "part"), 0));
    const int64_t nth_frame =
        frames ? strtoll(json_text(json_item(frames, nth), "-1"), NULL, 10) : (int64_t)nth;
    int64_t word[SENT_WORDS] = {-1, -1};
    if (bytes.size == sizeof word)
        memcpy(word, bytes.data, sizeof word);
    if (word[0] != picture_of(file) || word[1] != nth_frame)
        sim_break(sim, INV_FILES,
                  "frame %lld of picture %lld is sent, and the lease says %lld of %lld",
                  (long long)word[1], (long long)word[0], (long long)nth_frame,
                  (long long)picture_of(file));
}

/* What became of the file when the daemon read it to send it. */
static picture_fate fate_sent(simulation *sim, const sim_job *job, const json_value *file)
{
    const json_value *shipped = json_find(file, "shipped"), *frames = json_find(file, "frames");
    const int64_t wanted = frames ? -1 : json_int(json_find(file, "bytes"), -1);
    if (json_count(shipped) != (frames ? json_count(frames) : 1))
        sim_break(sim, INV_FILES, "picture %lld is sent in %zu files", (long long)picture_of(file),
                  json_count(shipped));
    for (size_t i = 0; i < json_count(shipped); i++) {
        const json_value *one = json_item(shipped, i);
        const int64_t failed = json_int(json_find(one, "errno"), 0);
        if (failed)
            return failed == ENOENT ? PICTURE_VANISHES : PICTURE_TROUBLE;
        check_bytes(sim, job, file, i);
        if (wanted >= 0 && wanted != json_int(json_find(one, "size"), -1))
            return PICTURE_CHANGES;
    }
    return PICTURE_FINE;
}

/* Whether the worker gets at the file as the index describes it. */
static picture_fate reach_file(simulation *sim, const sim_worker *worker, const json_value *file)
{
    if (worker->ship != (json_find(file, "shipped") != NULL))
        sim_break(sim, INV_FILES, "a worker %s the files, and its lease brings %s",
                  worker->ship ? "has not" : "has", worker->ship ? "none" : "some");
    if (worker->ship)
        return fate_sent(sim, &worker->job, file);
    return lacks_picture(sim, worker, picture_of(file)) ? PICTURE_VANISHES : PICTURE_FINE;
}

picture_fate header_fate(simulation *sim, const sim_worker *worker, int64_t nth)
{
    const sim_job *job = &worker->job;
    const json_value *file = json_item(json_find(job->said, "files"), (size_t)nth);
    const picture_fate reached = reach_file(sim, worker, file),
                       own = job_data(sim, job)->picture[picture_of(file)].fate;
    if (reached != PICTURE_FINE)
        return reached == PICTURE_TROUBLE ? reached : PICTURE_NOT_THERE;
    return own < PICTURE_FAILS ? own : PICTURE_FINE;
}

/* What decoding a file does to the worker. One that was sent is as it was then. */
static picture_fate file_fate(simulation *sim, const sim_worker *worker, const json_value *file)
{
    const sim_picture *own = &job_data(sim, &worker->job)->picture[picture_of(file)];
    const picture_fate reached = reach_file(sim, worker, file);
    if (reached != PICTURE_FINE)
        return reached;
    const picture_fate fate = sim_data_fate_at(own, sim->now_ns);
    return worker->ship && is_missing(fate) ? PICTURE_FINE : fate;
}

picture_fate doc_fate(simulation *sim, const sim_worker *worker, const json_value *doc,
                      int64_t *out_picture)
{
    const json_value *files = json_find(worker->job.said, "files"),
                     *images = json_find(doc, "images");
    if (json_bool(json_find(doc, "bad"), false) || json_find(doc, "before"))
        return PICTURE_FINE; /* it decodes nothing */
    for (size_t i = 0; i < json_count(images); i++) {
        const json_value *file = json_item(files, (size_t)json_int(json_item(images, i), -1));
        const picture_fate fate = file_fate(sim, worker, file);
        *out_picture = picture_of(file);
        if (fate >= PICTURE_FAILS)
            return fate;
    }
    return PICTURE_FINE;
}
