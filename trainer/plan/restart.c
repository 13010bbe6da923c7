/* restart.c: see restart.h. The plan of memory knows the bytes. */
#include "trainer/plan/restart.h"

#include <inttypes.h>

#include "common/base/visible.h"
#include "trainer/checkpoint/save/snapshot.h"
#include "trainer/checkpoint/save/snapshot_file.h"
#include "trainer/plan/memory_text.h"
#include "trainer/plan/recompute_plan.h"

static const double GIB = 1073741824.0;

status restart_plan_make(const plan_input *in, const recomputes *recomputed, const rates *speeds,
                         restart_plan *out)
{
    memory_plan plan;
    TRY(layout_plan_make(in, in->conf->training_local_batch_size, recomputed, &plan));
    const double bytes = (double)plan.copied, frozen = (double)plan.frozen;
    const int64_t near =
        in->layout->world < speeds->per_node ? in->layout->world : speeds->per_node;
    const double moved = bytes / speeds->of[RATE_HOST];
    const bool kept = snapshot_wanted(in->conf);
    *out = (restart_plan){.bytes = bytes,
                          .from_memory = kept ? bytes / speeds->of[RATE_HASH] + moved : 0,
                          .from_disk = (double)near * bytes / speeds->of[RATE_DISK] + moved,
                          .copying = kept ? moved : 0,
                          .frozen = frozen,
                          .reading = (double)near * frozen / speeds->of[RATE_DISK]};
    return ST_OK;
}

void restart_print(const conf *options, const restart_plan *plan, double step, FILE *to)
{
    const int64_t interval = options->checkpoint_memory_interval;
    if (!options->checkpoint_enable)
        return;
    fprintf(to, "after a crash, %.1f GiB a rank:", plan->bytes / GIB);
    if (plan->from_memory > 0)
        fprintf(to, " %.1f s from the copy in memory,", plan->from_memory);
    fprintf(to, " at least %.1f s from the disk\n", plan->from_disk);
    if (plan->frozen > 0)
        fprintf(to,
                "  beside them %.1f GiB of frozen values are read as at every start: %.1f s from "
                "the disk, less if their files are still in the machine's memory\n",
                plan->frozen / GIB, plan->reading);
    if (plan->copying > 0 && interval > 0)
        fprintf(to, "  a copy every %" PRId64 " steps takes %.2f s, %.2f %% of the time\n",
                interval, plan->copying,
                100.0 * plan->copying / (plan->copying + (double)interval * step));
}

status restart_print_room(const plan_input *in, int ranks, FILE *to)
{
    const char *folder = in->conf->checkpoint_memory_folder;
    char takes[MEMORY_BYTES_TEXT], has[MEMORY_BYTES_TEXT];
    recomputes recomputed;
    memory_plan plan;
    double room;
    if (!snapshot_wanted(in->conf))
        return ST_OK;
    TRY(recompute_plan_of(in, in->conf->training_local_batch_size, &recomputed));
    TRY(layout_plan_make(in, in->conf->training_local_batch_size, &recomputed, &plan));
    const int64_t wanted = ranks * plan.snapshot;
    if (snapshot_file_space(folder, &room) != ST_OK) { /* a run makes the folder */
        status_clear();
        return ST_OK;
    }
    if ((double)wanted > room)
        fprintf(to,
                "checkpoint.memory_folder: two copies of values and moments of %d rank%s take %s, "
                "and %s has room for %s: after a crash only the disk would be left\n",
                ranks, ranks == 1 ? "" : "s", memory_bytes_text(wanted, takes),
                escape_text(folder).text, memory_bytes_text((int64_t)room, has));
    return ST_OK;
}
