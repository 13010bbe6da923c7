/* ranks_world.h: a simulated job of ranks: processes that run the real core of the rank link, the
 * connections between them, the work that they do, and what goes wrong. One process, virtual time;
 * a seed decides everything.
 *
 * Times are virtual nanoseconds from the beginning, except where a name says `local`: each machine
 * has a clock of its own, which began at another time and is a little fast or slow. */
#ifndef TESSERA_TESTS_SIM_RANKS_WORLD_H
#define TESSERA_TESTS_SIM_RANKS_WORLD_H

#include "tests/sim/common/sim_log.h"
#include "tests/sim/common/sim_main.h"
#include "tests/sim/common/sim_queue.h"
#include "tests/sim/common/sim_random.h"
#include "trainer/checkpoint/core/save_core.h"
#include "trainer/parallel/core/call_deadline.h"
#include "trainer/parallel/core/link_core.h"

enum {
    RANKS_MOST = 48,
    STEPS_MOST = 12,
    WIRES_MOST = 512,
    FAULTS_MOST = 3,
    FOLDERS_MOST = 48,
    CALLS = 3
};
#define MS     INT64_C(1000000)
#define SECOND (INT64_C(1000) * MS)

typedef enum sim_kind {
    SIM_START,    /* a process starts */
    SIM_TIME,     /* a core's time is due; word: of which core's wish this is */
    SIM_REACH,    /* a rank tries to reach rank 0 */
    SIM_ARRIVE,   /* the next segment of a wire arrives; who: wire * 2 + direction */
    SIM_WORK,     /* a rank's work goes on; word: of which wish */
    SIM_SAVE,     /* an action of a save has ended; word: of which wish */
    SIM_FAULT,    /* who: number of the fault */
    SIM_MEND,     /* the fault ends */
    SIM_STRANGER, /* someone who is no rank connects, or goes on */
    SIM_PROMPT,   /* who: number of a fault that the others must have noticed by now */
    SIM_JUDGE     /* all ranks must have ended */
} sim_kind;

/* ---- connections ---- */

/* Bytes on their way; of size 0: the end of the direction, by reset if `reset`. */
typedef struct segment {
    struct segment *next;
    int64_t at_ns;
    bool reset;
    size_t size;
    uint8_t bytes[];
} segment;

/* One end: of a process (rank), or of a stranger (rank -1). conn: its core's number; -1: not
 * accepted yet. */
typedef struct wire_end {
    int rank, conn;
    bool open;              /* the process has it */
    bool finished;          /* it has ended its direction */
    segment *first, **last; /* on their way to this end */
    int64_t busy_until;     /* when the last of them arrives */
    size_t bytes;           /* of them */
} wire_end;

typedef struct tcp_wire {
    wire_end end[2]; /* of whoever connected; of rank 0 */
    bool used;
} tcp_wire;

/* ---- processes ---- */

typedef enum work_state {
    WORK_JOINS,
    WORK_COMPUTES,
    WORK_WAITS_ROWS,
    WORK_AGREES, /* on the shape of its micro-batch, before the first call of a step */
    WORK_CALLS,
    WORK_HANGS,
    WORK_WAITS_SAVE, /* for its own save before this one, or before it leaves */
    WORK_MAKES_FOLDER,
    WORK_LEAVES,
    WORK_OVER
} work_state;

/* ---- checkpoints ---- */

/* A folder of a checkpoint, whatever its name is: what every rank wrote into it. */
typedef struct save_folder {
    bool used, sealed;
    bool part[RANKS_MOST], torn[RANKS_MOST]; /* its file is there; and is not all written */
    uint64_t digest[RANKS_MOST], seal[RANKS_MOST];
    save_mark mark[RANKS_MOST];
    char text[RANKS_MOST][80]; /* of the marks */
} save_folder;

typedef struct sim_disk {
    save_folder folder[FOLDERS_MOST];
    int named[STEPS_MOST + 1], writing[STEPS_MOST + 1], trash[STEPS_MOST + 1]; /* -1: none */
    bool had[STEPS_MOST + 1]; /* that step had a checkpoint when its save began */
    int last;                 /* the step of the last whole checkpoint; 0: none */
    bool exchanges;           /* its file system can exchange two names */
} sim_disk;

/* A save on one rank. */
typedef struct save_state {
    save_core core;
    save_action action; /* that is under way */
    bool busy, missed;  /* its action ended while the process was stopped */
    bool leaving;
    int step;
    int64_t ended_ns; /* when its part ended */
    uint64_t wish, files;
    uint64_t known[RANKS_MOST]; /* digests from the others' marks */
    char text[80];
} save_state;

typedef struct process {
    int64_t start_ns;
    int64_t clock_from, clock_ppm;
    bool alive; /* it has started and has not ended */
    bool ended; /* it ended by itself: `well`, or with `words` */
    bool well;
    bool forced;  /* by LINK_EXIT */
    bool stopped; /* SIGSTOP */
    bool cut;     /* its machine is cut off */
    bool lost_power;
    char words[1024]; /* its last error */
    char lost[1024];  /* what ended the job, as it heard */
    link_core *core;
    uint64_t time_wish, work_wish;            /* the number of the last one; others are stale */
    int wire_of[RANKS_MOST + LINK_STRANGERS]; /* by conn; -1: none */
    int64_t reach_until;                      /* local */
    work_state work;
    save_state saving;
    int told_step; /* what rank 0 knows of it by its note: of which step's save */
    save_mark told;
    char told_text[80];
    int part;                  /* of its step: which of the CALLS comes next */
    bool leaves, leaves_badly; /* it waits for its save before */
    char reason[512];
    bool waits, joined;
    bool left_well; /* its work was done when it left */
    int step;
    call_deadline call;
    int64_t stopped_at, still_ns;   /* when it was stopped; for how long the last time */
    int64_t lost_at;                /* when `lost` was heard */
    bool missed_work, missed_reach; /* these were due while it was stopped */
} process;

/* ---- what goes wrong ---- */

typedef enum fault_kind {
    FAULT_KILL,
    FAULT_POWER,
    FAULT_STOP,
    FAULT_CUT,
    FAULT_FAILS,
    FAULT_HANGS,
    FAULT_RESET,
    FAULT_LATE,
    FAULT_MISSING,
    FAULT_OPTIONS,
    FAULT_STRANGER,
    FAULT_ROWS,
    FAULT_SLOW,
    FAULT_KINDS
} fault_kind;

typedef struct fault {
    fault_kind kind;
    int rank;
    int64_t at_ns, for_ns;
    int step;     /* of FAULT_FAILS, FAULT_HANGS and FAULT_ROWS */
    bool at_work; /* it struck while all ranks were at work */
    bool loses;   /* and for so long that the others must lose the rank */
} fault;

typedef struct call_state {
    bool came[RANKS_MOST];
    int n_came, last; /* how many have come; which of them last */
    bool complete;
    int64_t complete_ns;
} call_state;

typedef struct world {
    int size, steps, save_every; /* 0: no checkpoints */
    sim_disk disk;
    int64_t slow_disk_ns; /* how long all writes took that took very long */
    double silence_s, timeout_s;
    int64_t silence_ns, call_ns, compute_ns; /* call_ns: how long a call may take */
    int64_t latency_ns;
    bool one_machine;
    process rank[RANKS_MOST];
    tcp_wire wire[WIRES_MOST];
    int n_wires;
    call_state call[(STEPS_MOST + 2) * CALLS];
    fault fault[FAULTS_MOST];
    int n_faults;
    int stranger; /* what it does; its wire is stranger_wire */
    int stranger_wire;

    int64_t now_ns;
    sim_queue queue;
    sim_log log;
    sim_random wires, works, chances;
    uint64_t events; /* given to cores */

    /* for the verdict */
    bool guilty[RANKS_MOST]; /* something happened to it that may end the job */
    bool fatal;              /* something happened that must end the job */
    int64_t disturbed_ns;    /* the last disturbance, or the end of one */
    char broken[512];        /* the first invariant that did not hold */
} world;

/* ---- ranks_world.c ---- */

sim_played world_play(uint64_t seed, FILE *trace);
void world_put(world *all, int64_t at_ns, sim_kind kind, int who, uint64_t word);
/* Notes that an invariant does not hold. Only the first is kept. */
void world_broken(world *all, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- ranks_wires.c ---- */

/* A connection from a rank, or a stranger (-1), to rank 0. Returns its number; -1: nobody listens.
 */
int wires_connect(world *all, int rank);
void wires_send(world *all, int wire, int end, const void *bytes, size_t size);
void wires_finish(world *all, int wire, int end);
void wires_close(world *all, int wire, int end);
/* Both ends find the connection broken. */
void wires_reset(world *all, int wire);
size_t wires_unsent(const world *all, int wire, int end);
/* Gives an end what has arrived, as far as its process runs and hears. */
void wires_deliver(world *all, int wire, int end);
/* The same for all wires: something was mended. */
void wires_deliver_all(world *all);
void wires_free(world *all);

/* ---- ranks_process.c: the shell of one rank ---- */

/* Asks all ranks for the largest of these. */
void process_need(world *all, int rank, const uint8_t need[LINK_NEEDS]);

void process_start(world *all, int rank);
void process_time(world *all, int rank, uint64_t wish);
void process_reach(world *all, int rank);
void process_bytes(world *all, int rank, int conn, const void *bytes, size_t size);
void process_gone(world *all, int rank, int conn, bool reset);
/* Takes connections that wait to be accepted. */
void process_accept(world *all);
/* The rank tells rank 0 how its part of its save has failed. */
void process_tell(world *all, int rank, save_mark mark, const char *text);
void process_leave(world *all, int rank, const char *failed);
/* Ends the process without its doing. power: its machine too, which tells nobody. */
void process_kill(world *all, int rank, bool power);
void process_continue(world *all, int rank);
void process_free(world *all, int rank);
bool process_runs(const world *all, int rank);

/* ---- ranks_work.c: what a rank does besides ---- */

void work_begin(world *all, int rank);
void work_go_on(world *all, int rank, uint64_t wish);
/* An action of the rank's save has ended. */
void work_saved(world *all, int rank);
/* The ranks have agreed: the largest that any of them needs. */
void work_agreed(world *all, int rank, const uint8_t most[LINK_NEEDS]);
/* Looks at calls that may complete now. */
void work_look(world *all);

/* ---- ranks_saves.c ---- */

void saves_prepare(world *all);
/* The first rank makes the folder that is written into, empty. */
void saves_make_folder(world *all, int step);
/* A rank begins its part of its step's checkpoint. */
void saves_begin(world *all, int rank);
void saves_go_on(world *all, int rank, uint64_t wish);

/* ---- ranks_fault_plan.c ---- */

void faults_draw(world *all, sim_random *from);
void faults_begin(world *all, int number);
void faults_end(world *all, int number);
void faults_stranger(world *all);
const char *faults_name(fault_kind kind);
/* The fault of this kind that this rank has; NULL: none. */
fault *faults_find(world *all, fault_kind kind, int rank);

/* ---- ranks_verdict.c ---- */

/* When all ranks must have ended. */
int64_t verdict_deadline(const world *all);
/* Called when a fault strikes: whether it may, or must, end the job; and when it must have been
 * noticed, after SIM_PROMPT. */
void verdict_fault(world *all, int number);
void verdict_noticed(world *all, int number);
/* Called when a process has ended by itself. */
void verdict_process(world *all, int rank);
/* Called at the deadline. */
void verdict_all(world *all);

/* ---- ranks_names.c: about the words of a rank that has ended badly ---- */

/* Whether they name a cause. */
bool names_cause(const world *all, int rank);
/* Whether they say that this rank was itself stopped. */
bool names_itself(const world *all, int rank);
/* Whether they name this culprit, without any alternative. */
bool names_alone(const world *all, int rank, int culprit);

#endif
