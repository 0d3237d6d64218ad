/* membership.h - which ranks belong to the world of a job whose ranks leave and join: a pure state machine. Events go
 * in; calls to ranks, commands for hosts and the end of the job come out. It looks at no clock, process or socket.
 *
 * A slot is a place for the process of one rank, on one host. A world has a generation (base/world_channel.h). When a
 * member of the world is lost or leaves, the world is broken: each other member leaves it and reports READY. As soon as
 * all have, those that are ready are the next world, with at least `least` ranks. Fewer wait for replacements, and save
 * and end if none comes. Free slots are filled up to `most` ranks. A new process that is ready joins at a step
 * boundary: the members are called out of their world, and all meet in the next one.
 *
 * Invariants:
 * (1) A world has only ranks that are ready, each once.
 * (2) Generations only grow, and a report about another generation than the current one changes nothing.
 * (3) Rank 0 carries states if any rank of the world does.
 * (4) A slot never has two processes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PROTOCOL_MEMBERSHIP_H
#define DSC_LAUNCHER_PROTOCOL_MEMBERSHIP_H

#include "base/world_channel.h"
#include "launcher/protocol/verdict.h"

/* Worlds in a row that no step comes out of: then the job ends. */
#define DSC_MEMBERSHIP_BARREN_MAX 8
/* Members of a broken world have so long to leave it, else they are killed. Their collectives end far sooner. */
#define DSC_MEMBERSHIP_LEAVE_NS INT64_C(120000000000)
/* The first world does not wait longer for late ranks when it has enough. */
#define DSC_MEMBERSHIP_START_NS INT64_C(30000000000)

/* A process that has not reported after so long is killed, unless no rank has ever reported. */
#define DSC_MEMBERSHIP_READY_NS INT64_C(300000000000)

typedef enum dsc_slot_phase {
    DSC_SLOT_CLOSED, /* not filled: its rank left, or the job ends */
    DSC_SLOT_FREE,   /* empty; filled unless it is barred or its host is lost, which may pass */
    DSC_SLOT_STARTS, /* its process has not reported yet */
    DSC_SLOT_READY,  /* waits for a world */
    DSC_SLOT_MEMBER, /* in the current world */
    DSC_SLOT_LEAVES  /* handed its states over; its process ends */
} dsc_slot_phase;

typedef struct dsc_slot {
    int32_t host; /* set by the owner */
    bool barred;  /* may not be filled, also in a later run */
    /* Private, but for reading. */
    dsc_slot_phase phase;
    bool host_lost;
    bool has_states;
    bool start_wanted; /* commands that are not given yet */
    int signal_wanted;
    bool killed;        /* SIGKILL was given */
    int32_t rank;       /* in the newest world that it was in */
    int32_t failures;   /* lives in a row that did not finish a step */
    int64_t free_at_ns; /* FREE: not filled before */
    int64_t ready_by_ns; /* STARTS: killed then */
} dsc_slot;

typedef struct dsc_membership_limits {
    int32_t least, most;  /* ranks of a world */
    int32_t first;        /* ranks that are started at first */
    int64_t wait_ns;      /* how long fewer than `least` wait for replacements */
    int32_t replacements; /* processes that are started for lost ones, at most; -1: any number */
} dsc_membership_limits;

typedef enum dsc_membership_phase {
    DSC_MEMBERSHIP_IDLE,
    DSC_MEMBERSHIP_GATHERS, /* ranks get ready for the next world */
    DSC_MEMBERSHIP_RUNS,
    DSC_MEMBERSHIP_BROKEN, /* a member is gone or waits: the others follow */
    DSC_MEMBERSHIP_DONE,   /* a rank has nothing left to do; so have all */
    DSC_MEMBERSHIP_ENDED
} dsc_membership_phase;

typedef enum dsc_membership_event {
    DSC_MEMBERSHIP_STARTED, /* a process is started in `slot` */
    DSC_MEMBERSHIP_LOST,    /* the process of `slot` is gone, with `end` */
    DSC_MEMBERSHIP_LEFT,    /* it left */
    DSC_MEMBERSHIP_JOINS,   /* the new process of `slot` is ready */
    DSC_MEMBERSHIP_FORMED,  /* a world of `size` ranks */
    DSC_MEMBERSHIP_GOES_ON, /* its first step is done, `since_ns` after the world before it was broken */
    DSC_MEMBERSHIP_TOO_FEW  /* `size` ranks are left */
} dsc_membership_event;

typedef enum dsc_membership_action_kind {
    DSC_MEMBERSHIP_DO_CALL, /* `call` to the rank in `slot`; the driver adds token and address */
    DSC_MEMBERSHIP_DO_TELL, /* `event` is news */
    DSC_MEMBERSHIP_DO_BLAME /* the job ends for `end` */
} dsc_membership_action_kind;

typedef struct dsc_membership_action {
    dsc_membership_action_kind kind;
    int32_t slot;
    dsc_membership_event event;
    dsc_world_call call;
    const dsc_rank_end *end;
    uint32_t generation;
    int32_t size;
    int64_t step, since_ns;
} dsc_membership_action;

typedef struct dsc_membership {
    dsc_membership_phase phase;
    dsc_membership_limits limits;
    uint32_t generation; /* newest; 0: there was no world yet */
    int32_t size;        /* its ranks */
    bool last;           /* it saves and ends: too few ranks were left, or the user ends the job */
    int64_t step;        /* newest step that a rank of the newest world reported */
    bool saved;          /* the last step is saved */
    dsc_slot *slot;      /* [count], the caller's */
    int32_t count;
    /* Private. */
    bool stepped, change_called, any_report, user_ends;
    int32_t barren, replaced_count;
    int32_t lost_count; /* lost processes that no other has replaced */
    int64_t broken_ns, since_ns, wait_until_ns;
    dsc_rank_end lost_end; /* end of the rank that was lost last */
    bool has_lost_end;
    void (*emit)(void *user, const dsc_membership_action *action); /* must not call back into the machine */
    void *user;
} dsc_membership;

/* slot[] has `host` filled and the rest zeroed; borrowed. */
void dsc_membership_init(dsc_membership *m, dsc_slot *slot, int32_t count, const dsc_membership_limits *limits,
                         void (*emit)(void *user, const dsc_membership_action *action), void *user);

/* The job begins: wants the first ranks started. */
void dsc_membership_begin(dsc_membership *m, int64_t now_ns);
void dsc_membership_report(dsc_membership *m, int32_t slot, const dsc_world_report *report, int64_t now_ns);
void dsc_membership_ended(dsc_membership *m, int32_t slot, const dsc_rank_end *end, int64_t now_ns);
/* A host with all its ranks is lost. Its slots are not filled before the host is back. */
void dsc_membership_host_lost(dsc_membership *m, int32_t host, int64_t now_ns);
/* It is there again. */
void dsc_membership_host_back(dsc_membership *m, int32_t host, int64_t now_ns);
/* The rank in a slot gets a signal: SIGKILL if it is stopped or stuck. */
void dsc_membership_signal(dsc_membership *m, int32_t slot, int signal_number);
/* The slot may, or may not, be filled. A member in a slot that may not is not touched. */
void dsc_membership_allow(dsc_membership *m, int32_t slot, bool allowed, int64_t now_ns);
/* The user ends the job: its world saves and ends, or ready ranks do so in a last one. */
void dsc_membership_user_ends(dsc_membership *m, int64_t now_ns);
void dsc_membership_tick(dsc_membership *m, int64_t now_ns);
int64_t dsc_membership_wake_ns(const dsc_membership *m); /* when a tick is due */

/* Processes that live or are about to, also those that may be started still. */
int32_t dsc_membership_alive(const dsc_membership *m);

/* Order to a host about one of its slots. */
typedef struct dsc_slot_command {
    int32_t slot;   /* -1: nothing */
    int32_t signal; /* 0: start */
} dsc_slot_command;
/* The next one for a host, which counts as given then. */
dsc_slot_command dsc_membership_command(dsc_membership *m, int32_t host);

/* No rank has ever reported: PROGRAM does not know of worlds. */
static inline bool dsc_membership_is_mute(const dsc_membership *m) { return !m->any_report; }
static inline bool dsc_slot_is_alive(const dsc_slot *slot) { return slot->phase >= DSC_SLOT_STARTS; }

#endif
