/* SPDX-License-Identifier: Apache-2.0 */
/* link_loss.c: how a running job ends, as part of link_core.h: which rank is lost, and what a rank
 * can know of that.
 *
 * A connection that is closed belongs to a process that ended. Silence says less, since both ends
 * of a link that carries nothing see the same. Rank 0 hears all others, so it can tell: if only one
 * of them is silent, that one is stopped or cut off; if all of several are, it is rank 0 itself. A
 * job of two ranks, and every other rank, which hears rank 0 alone, can only name the two ends.
 * Whoever gives up for silence therefore says so to the other end, which learns of it as soon as
 * the link carries something again, and does not take the process that has ended for the cause. */
#include <stdio.h>
#include <string.h>

#include "trainer/parallel/core/link_state.h"

/* STILL_TOLD_NS: a rank that was stopped takes the end of the others as its own doing for this long
 * after it continues. */
static const int64_t STILL_TOLD_NS = INT64_C(5) * 1000 * 1000 * 1000;
enum { WHO_MAX = CONTROL_HOST_MAX + 64 };

/* Whether this cause is what a rank said of itself (link_core_leave). */
static bool is_own_word(const char *why)
{
    static const char begin[] = "rank ", end[] = " failed: ";
    if (strncmp(why, begin, sizeof begin - 1) != 0)
        return false;
    why += sizeof begin - 1;
    const size_t digits = strspn(why, "0123456789");
    return digits > 0 && strncmp(why + digits, end, sizeof end - 1) == 0;
}

/* Whether this peer was silent until a moment ago, or is, for about as long as counts as a loss. */
static bool is_quiet(const link_core *core, const link_peer *peer)
{
    const int64_t now = core->now.ns, most = core->silence_ns / 2;
    return now - peer->heard_ns > most ||
           (peer->gap_ns > most && now - peer->gap_until_ns < core->silence_ns);
}

void loss_hear(link_core *core, link_peer *peer)
{
    const int64_t gap = core->now.ns - peer->heard_ns;
    if (gap > core->silence_ns / 2) {
        peer->gap_ns = gap;
        peer->gap_until_ns = core->now.ns;
    }
    peer->heard_ns = core->now.ns;
}

/* ---- the end ---- */

/* Ends the job with this cause, and on rank 0 tells the others, in the words `told`. Only the first
 * cause counts. Before the first step all ranks fail with the same error; if they are on one
 * machine, rank 0 prints it once when it ends, and the others only write it to their logs.
 * silence: those that are silent are told that it is about them. */
static void end_job(link_core *core, const char *why, const char *told, bool silence)
{
    if (core->over)
        return;
    snprintf(core->lost, sizeof core->lost, "%s", why);
    core->over = true;
    core->over_ns = core->now.ns;
    core->leave_by_ns = core->now.ns + LAST_WORD_NS; /* those that are told now need time too */
    core->refused = core->one_machine && !core->now.began && is_own_word(why);
    link_answer(core, (link_action){.kind = LINK_ENDS,
                                    .text = core->lost,
                                    .say = !(core->refused && core->rank == 0),
                                    .hush = core->refused && core->rank != 0});
    for (int i = 0; i < core->n_peers; i++) {
        const bool about_it = silence && is_quiet(core, &core->peer[i]);
        if (core->peer[i].conn >= 0 && (core->rank == 0 || about_it))
            link_send(core, core->peer[i].conn, about_it ? CONTROL_SILENT : CONTROL_LOST, told,
                      strlen(told));
    }
}

/* Whether this rank was stopped until a moment ago, for so long that the others took it for lost.
 * In that case it is itself the cause of their end. */
static bool was_still(const link_core *core)
{
    return (core->still_met || core->still_ns + core->beat_ns >= core->silence_ns) &&
           core->now.ns - core->still_until_ns < STILL_TOLD_NS;
}

/* The others, if any is left, are told in the same words without "this one". */
static void end_as_still(link_core *core, const char *who)
{
    char why[CONTROL_TEXT_MAX], told[CONTROL_TEXT_MAX];
    char *const texts[] = {why, told};
    for (int i = 0; i < 2; i++)
        snprintf(texts[i], CONTROL_TEXT_MAX,
                 "rank %d (%s, pid %u)%s did nothing for %.1f s because it was stopped "
                 "(SIGSTOP) or "
                 "its machine was; the other ranks, %s among them, have ended without it",
                 core->rank, core->me.host, core->me.pid, i == 0 ? ", this one," : "",
                 (double)core->still_ns * 1e-9, who);
    end_job(core, why, link_keep(core, told), false);
}

/* ---- names ---- */

static void name_peer(const link_peer *peer, char out[WHO_MAX])
{
    if (peer->rank == 0)
        snprintf(out, WHO_MAX, "rank 0 (%s)", peer->host);
    else
        snprintf(out, WHO_MAX, "rank %d (%s, pid %d)", peer->rank, peer->host, peer->pid);
}

static void name_me(const link_core *core, char out[WHO_MAX])
{
    snprintf(out, WHO_MAX, "rank %d (%s, pid %u)", core->rank, core->me.host, core->me.pid);
}

/* Adds when and where the peer was heard last. */
static void end_with(link_core *core, const char *what, const link_peer *peer, bool silence)
{
    char why[CONTROL_TEXT_MAX];
    snprintf(why, sizeof why, "%.900s; heard last %.1f s ago: %.3000s", what,
             (double)(core->now.ns - peer->heard_ns) * 1e-9, peer->place);
    end_job(core, why, core->lost, silence);
}

/* This rank's end of its last word: nobody is lost, since rank 0 may end once this rank is done,
 * and a rank that was told of this one's failure hangs up. */
static bool is_done(const link_core *core)
{
    return core->leaving && (core->rank != 0 || core->failed[0]);
}

void loss_of_peer(link_core *core, const link_peer *peer, const char *how)
{
    char what[WHO_MAX + 512], who[WHO_MAX];
    name_peer(peer, who);
    link_drop(core, peer->conn);
    if (is_done(core))
        return;
    if (was_still(core)) {
        end_as_still(core, who);
        return;
    }
    snprintf(what, sizeof what, "%s %s", who, how);
    end_with(core, what, peer, false);
}

/* ---- silence ---- */

/* How many other ranks rank 0 has a connection to, besides this one, and how many of them are
 * silent too. */
static int count_others(const link_core *core, const link_peer *but, int *out_quiet)
{
    int count = 0;
    *out_quiet = 0;
    for (int i = 0; i < core->n_peers; i++)
        if (&core->peer[i] != but && core->peer[i].conn >= 0) {
            count++;
            *out_quiet += is_quiet(core, &core->peer[i]);
        }
    return count;
}

/* The job ends since nothing was heard from this peer, which is told, for its link may carry
 * something again. */
static void give_up(link_core *core, const link_peer *peer)
{
    char what[3 * WHO_MAX + 256], who[WHO_MAX], me[WHO_MAX];
    int quiet;
    const int others = count_others(core, peer, &quiet);
    const double silence_s = (double)core->silence_ns * 1e-9;
    name_peer(peer, who);
    name_me(core, me);
    if (others > 0 && quiet == others)
        snprintf(what, sizeof what,
                 "%s has heard none of the other %d ranks for %.1f s: it is cut off, or all of "
                 "them are stopped or cut off; %s",
                 me, others + 1, silence_s, who);
    else if (others > 0)
        snprintf(what, sizeof what, "%s has said nothing for %.1f s: it is stopped or cut off", who,
                 silence_s);
    else
        snprintf(what, sizeof what,
                 "%s has said nothing for %.1f s to %s: it is stopped, or one of the two is cut "
                 "off",
                 who, silence_s, me);
    end_with(core, what, peer, true);
}

void loss_by_silence(link_core *core)
{
    for (int i = 0; i < core->n_peers && !core->over; i++) {
        const link_peer *peer = &core->peer[i];
        if (peer->conn < 0 || core->now.ns - peer->heard_ns < core->silence_ns)
            continue;
        if (is_done(core))
            link_drop(core, peer->conn);
        else
            give_up(core, peer);
    }
}

/* ---- absence ---- */

/* Writes the numbers of those that have not said what they need, like " 1 3", and finds the last of
 * them, NULL if that is rank 0 itself. Returns how many they are. */
static int list_absent(const link_core *core, char *out, size_t size, const link_peer **out_last)
{
    size_t used = 0;
    int count = core->asks ? 0 : 1;
    *out_last = NULL;
    out[0] = 0;
    if (!core->asks)
        used += (size_t)snprintf(out, size, " 0");
    for (int i = 0; i < core->n_peers; i++) {
        const link_peer *peer = &core->peer[i];
        if (peer->conn < 0 || peer->said)
            continue;
        *out_last = peer;
        count++;
        if (used + 16 < size)
            used += (size_t)snprintf(out + used, size - used, " %d", peer->rank);
    }
    return count;
}

void loss_by_absence(link_core *core)
{
    char what[WHO_MAX + 256], list[128], who[WHO_MAX];
    const link_peer *last;
    const int count = list_absent(core, list, sizeof list, &last);
    const double waited_s = (double)core->now.call_ns * 1e-9;
    if (count > 1) {
        snprintf(what, sizeof what,
                 "the shape of micro-batch %lld: no answer within %.1f s from ranks%s, whose work "
                 "hangs",
                 (long long)core->shapes + 1, waited_s, list);
        end_job(core, what, core->lost, false);
        return;
    }
    if (last)
        name_peer(last, who);
    else
        name_me(core, who);
    snprintf(
        what, sizeof what,
        "%s has not come to micro-batch %lld within %.1f s, as the others have: its work hangs",
        who, (long long)core->shapes + 1, waited_s);
    if (last)
        end_with(core, what, last, false);
    else
        end_job(core, what, core->lost, false);
}

/* ---- delay ---- */

/* Whether this peer does what the others wait for: it says that it waits for nothing, or is no
 * longer heard. */
static bool keeps_others(const link_core *core, const link_peer *peer)
{
    return peer->conn >= 0 && !peer->waits && (!peer->held || !link_is_heard(core, peer));
}

/* Writes the numbers of the ranks that keep others waiting, like " 1 3"; the late one, or this rank
 * if that is NULL, is none of them. *out_last: the last, NULL if that is rank 0 itself. Returns how
 * many they are. */
static int list_keepers(const link_core *core, const link_peer *late, char *out, size_t size,
                        const link_peer **out_last)
{
    const bool mine = late && !core->now.held && !core->now.waits;
    size_t used = mine ? (size_t)snprintf(out, size, " 0") : 0;
    int count = mine;
    *out_last = NULL;
    for (int i = 0; i < core->n_peers; i++) {
        const link_peer *peer = &core->peer[i];
        if (peer == late || !keeps_others(core, peer))
            continue;
        *out_last = peer;
        count++;
        if (used + 16 < size)
            used += (size_t)snprintf(out + used, size - used, " %d", peer->rank);
    }
    return count;
}

/* A rank whose calls are late cannot know why, since a device does not say for whom it waits. But
 * all ranks report whether they wait for the others; who does not is the cause. */
void loss_by_delay(link_core *core, const link_peer *late, const char *failed)
{
    char what[WHO_MAX + 1024], list[128], who[WHO_MAX];
    const link_peer *last;
    const int count = list_keepers(core, late, list, sizeof list, &last);
    if (count == 0) {
        end_job(core, failed, core->lost, false);
        return;
    }
    if (count > 1) {
        snprintf(what, sizeof what,
                 "ranks%s keep the others waiting: they hang in their work or are stopped (%.600s)",
                 list, failed);
        end_job(core, what, core->lost, false);
        return;
    }
    if (last)
        name_peer(last, who);
    else
        name_me(core, who);
    snprintf(what, sizeof what,
             "%s keeps the others waiting: it hangs in its work or is stopped (%.600s)", who,
             failed);
    if (last)
        end_with(core, what, last, false);
    else
        end_job(core, what, core->lost, false);
}

/* ---- what others say ---- */

/* Rank 0: this peer has heard nothing of it, and has ended. */
static void end_unheard(link_core *core, const link_peer *peer)
{
    char what[3 * WHO_MAX + 256], who[WHO_MAX], me[WHO_MAX];
    int quiet;
    const int others = count_others(core, peer, &quiet);
    const double silence_s = (double)core->silence_ns * 1e-9;
    name_peer(peer, who);
    name_me(core, me);
    if (others > 0 && quiet == others)
        snprintf(what, sizeof what,
                 "%s was cut off from all other ranks: %s heard nothing of it for %.1f s and has "
                 "ended",
                 me, who, silence_s);
    else if (others > 0)
        snprintf(what, sizeof what,
                 "%s was cut off: it heard nothing of rank 0 for %.1f s and has ended, while rank "
                 "0 heard others",
                 who, silence_s);
    else
        snprintf(what, sizeof what,
                 "%s heard nothing of %s for %.1f s and has ended: one of the two was cut off", who,
                 me, silence_s);
    end_with(core, what, peer, false);
}

void loss_told(link_core *core, link_peer *peer, const char *text, bool of_me)
{
    char who[WHO_MAX];
    name_peer(peer, who);
    if (of_me && was_still(core))
        end_as_still(core, who);
    else if (of_me && core->rank == 0)
        end_unheard(core, peer);
    else
        end_job(core, text, core->lost, false);
}
