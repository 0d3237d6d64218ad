/* control.h - protocol between the coordinator and its agents, one on each host: two pure state machines,
 * (state, event) -> actions. The machines look at no clock, process or socket, so that a simulator can lose, delay,
 * repeat and reorder messages, cut hosts off and kill them. The drivers are coordinator.c and host_agent.c.
 *
 * Messages carry states, not changes. The coordinator repeats the wanted state of a host (an order) at least every half
 * second, and an agent repeats the actual state of its host (a notice). Lost, late or repeated messages therefore do no
 * harm, and each side knows the age of the newest message. After five seconds without one the coordinator counts the
 * host as lost, and the agent is cut off and ends its ranks by itself. A direct agent runs in the coordinator's process
 * (local.c). Nothing lies between the two, and neither counts the other's silence.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PROTOCOL_CONTROL_H
#define DSC_LAUNCHER_PROTOCOL_CONTROL_H

#include "launcher/protocol/membership.h"

#define DSC_CONTROL_BEAT_NS INT64_C(500000000)
#define DSC_CONTROL_LEASE_NS INT64_C(5000000000)
/* From SIGTERM to SIGKILL of an agent that is cut off. */
#define DSC_CONTROL_CUT_OFF_GRACE_NS INT64_C(1000000000)
/* How long a host has to answer when it is contacted, and the others when one has failed to. */
#define DSC_CONTROL_ANSWER_NS INT64_C(30000000000)
#define DSC_CONTROL_OTHERS_NS INT64_C(2000000000)
/* Processes that were killed are gone by then, agents that were dismissed too. */
/* The ranks of a host that is lost have ended by then, if they are cut off from here: it is not contacted sooner. */
#define DSC_CONTROL_REJOIN_NS (DSC_CONTROL_LEASE_NS + DSC_CONTROL_CUT_OFF_GRACE_NS + INT64_C(1500000000))
/* A task that the agent does not know of is sent again. */
#define DSC_CONTROL_TASK_AGAIN_NS INT64_C(2000000000)
#define DSC_CONTROL_GIVE_UP_NS INT64_C(5000000000)
#define DSC_CONTROL_LEAVE_NS INT64_C(2000000000)

typedef enum dsc_order_phase {
    DSC_ORDER_WAIT, /* nothing was started yet */
    DSC_ORDER_RUN,
    DSC_ORDER_END,  /* signal the ranks; kill them when grace_ms are over */
    DSC_ORDER_KILL,
    DSC_ORDER_QUIT  /* and then leave */
} dsc_order_phase;

/* The state that the coordinator wants on one host. */
typedef struct dsc_order {
    uint64_t number; /* counts the orders to this host; an order that is not newer than the last is ignored */
    uint32_t epoch;  /* the start that it is about, from 1; 0: none */
    dsc_order_phase phase;
    int32_t term_signal, grace_ms; /* END; signal 0: the ranks have ended, their leftovers have so long */
    uint32_t signal_count;         /* RUN, END: how many signals were to be passed on so far, and the last one */
    int32_t signal;
    uint32_t ends_seen;            /* ranks' ends that are known here */
    uint32_t command_count;        /* RUN, of ranks that leave and join: how many commands there were so far, */
    dsc_slot_command command;      /* and the last one, for a slot of this host counted from 0 */
    bool reader_gone[2];           /* nobody reads stdout, stderr any more */
} dsc_order;

typedef enum dsc_agent_phase {
    DSC_AGENT_IDLE, /* nothing was started yet */
    DSC_AGENT_RUNS,
    DSC_AGENT_GONE  /* nothing of the epoch runs any more */
} dsc_agent_phase;

enum { DSC_NOTICE_ENDS_MAX = 32 };

/* The actual state of one host. */
typedef struct dsc_notice {
    uint64_t number;
    uint32_t epoch;
    dsc_agent_phase phase;
    bool cut_off;       /* no order came within the lease: the agent ends its ranks */
    bool start_failed;  /* the ranks could not be started */
    bool drained;       /* GONE, and everything that the ranks wrote was sent */
    uint32_t commands_done;
    uint32_t ends_from; /* number of the first end below */
    int32_t end_count;
    dsc_rank_end end[DSC_NOTICE_ENDS_MAX]; /* in the order in which they were seen */
} dsc_notice;

/* ---- agent ------------------------------------------------------------------------------------------------------- */

typedef enum dsc_agent_event_kind {
    DSC_AGENT_TICK,     /* time passed */
    DSC_AGENT_ORDER,
    DSC_AGENT_TASK,     /* the task of `epoch` arrived */
    DSC_AGENT_CLOSED,   /* the stream is closed, or a signal asked the agent to end */
    DSC_AGENT_STARTED,  /* ok: after START; else it failed, and some ranks may run */
    DSC_AGENT_ENDED,    /* a rank */
    DSC_AGENT_NO_CHILDREN, /* nothing of the ranks runs */
    DSC_AGENT_DRAINED
} dsc_agent_event_kind;

typedef struct dsc_agent_event {
    dsc_agent_event_kind kind;
    int64_t now_ns;
    const dsc_order *order;
    uint32_t epoch;
    int32_t rank_count; /* TASK */
    bool elastic;       /* TASK: ranks are started by commands, and the host waits for more when none is left */
    bool ok;
    const dsc_rank_end *end;
} dsc_agent_event;

typedef enum dsc_agent_action_kind {
    DSC_AGENT_DO_START,  /* the task of `epoch`; answered by STARTED before anything else */
    DSC_AGENT_DO_SIGNAL, /* to all ranks */
    DSC_AGENT_DO_COMMAND,
    DSC_AGENT_DO_KILL,         /* whatever runs; repeated until NO_CHILDREN */
    DSC_AGENT_DO_NOTICE,       /* send it */
    DSC_AGENT_DO_STOP_READING, /* stream `which` */
    DSC_AGENT_DO_EXIT
} dsc_agent_action_kind;

typedef struct dsc_agent_action {
    dsc_agent_action_kind kind;
    uint32_t epoch;
    int signal, which;
    dsc_slot_command command;
    dsc_notice notice;
} dsc_agent_action;

typedef struct dsc_agent {
    dsc_agent_phase phase;
    uint32_t epoch;
    bool cut_off, over;
    bool direct; /* set by the driver: in one process with the coordinator, so that neither can lose the other */
    /* Private. */
    uint32_t task_epoch;
    int32_t task_ranks;
    bool elastic;
    uint32_t commands_done;
    dsc_order order; /* newest */
    uint64_t notice_count;
    int64_t received_ns, beat_at_ns, kill_at_ns, kill_again_at_ns;
    bool started, start_failed, ending, drained, dirty;
    bool reader_gone[2];
    uint32_t signal_count;
    dsc_rank_end *end; /* [capacity], the caller's: the last ones, those that are not seen at least */
    int32_t end_count, capacity;
    void (*emit)(void *user, const dsc_agent_action *action); /* must not call back into the machine */
    void *user;
} dsc_agent;

/* end[capacity] is borrowed; a task with more ranks is refused by the driver. */
void dsc_agent_init(dsc_agent *agent, dsc_rank_end *end, int32_t capacity, int64_t now_ns,
                    void (*emit)(void *user, const dsc_agent_action *action), void *user);
void dsc_agent_step(dsc_agent *agent, const dsc_agent_event *event);
int64_t dsc_agent_wake_ns(const dsc_agent *agent); /* when a TICK is due */

/* ---- coordinator ------------------------------------------------------------------------------------------------- */

typedef enum dsc_coordinator_event_kind {
    DSC_COORDINATOR_TICK,
    DSC_COORDINATOR_HELLO,   /* the agent of `host` answers and fits */
    DSC_COORDINATOR_REFUSED, /* it does not fit, or could not be started */
    DSC_COORDINATOR_CLOSED,  /* the connection to it is gone */
    DSC_COORDINATOR_NOTICE,
    DSC_COORDINATOR_START,       /* after READY: the tasks are made */
    DSC_COORDINATOR_CONNECT,     /* contact (again) whom we have no agent of, then go on to READY */
    DSC_COORDINATOR_QUIT,        /* dismiss all */
    DSC_COORDINATOR_USER,        /* SIGINT, SIGTERM, ... */
    DSC_COORDINATOR_PASS,        /* SIGUSR1, SIGSTOP, ...: to all ranks */
    DSC_COORDINATOR_FOUND,       /* the hang finder: the run ends with `code` */
    DSC_COORDINATOR_REPORT,      /* the rank in `slot` has reported its state */
    DSC_COORDINATOR_SIGNAL,      /* the rank in `slot` gets a signal: it is stopped or stuck, or --chaos wants it */
    DSC_COORDINATOR_GIVE_UP,     /* nobody waits for the job any more */
    DSC_COORDINATOR_STOP_READING /* nobody reads stream `which` */
} dsc_coordinator_event_kind;

typedef struct dsc_coordinator_event {
    dsc_coordinator_event_kind kind;
    int64_t now_ns;
    int32_t host;
    const dsc_notice *notice;
    const dsc_world_report *report;
    int32_t slot;
    int signal, which, code;
} dsc_coordinator_event;

typedef enum dsc_coordinator_action_kind {
    DSC_COORDINATOR_DO_CONNECT, /* start an agent on `host` */
    DSC_COORDINATOR_DO_READY,   /* all answer: make the tasks, then START */
    DSC_COORDINATOR_DO_TASK,    /* send `host` its task, of `epoch` */
    DSC_COORDINATOR_DO_ORDER,
    DSC_COORDINATOR_DO_ENDED,      /* rank end->rank; each once */
    DSC_COORDINATOR_DO_MEMBERSHIP, /* a call to a rank, or news */
    DSC_COORDINATOR_DO_DROP,       /* whatever stands for `host` here is ended; CLOSED may or may not follow */
    DSC_COORDINATOR_DO_LOST,       /* `host` is lost in the middle of a run; silent: it said nothing, else it closed */
    DSC_COORDINATOR_DO_OVER,       /* the run is over on every host (or never began): QUIT or CONNECT */
    DSC_COORDINATOR_DO_LEFT        /* after QUIT: nobody is there any more */
} dsc_coordinator_action_kind;

typedef struct dsc_coordinator_action {
    dsc_coordinator_action_kind kind;
    int32_t host;
    uint32_t epoch;
    bool silent;
    dsc_order order;
    const dsc_rank_end *end;
    const dsc_membership_action *membership;
} dsc_coordinator_action;

typedef enum dsc_coordinator_phase {
    DSC_COORDINATOR_IDLE,     /* before the first CONNECT */
    DSC_COORDINATOR_CONNECTS, /* waits for agents */
    DSC_COORDINATOR_READY,
    DSC_COORDINATOR_RUNS,
    DSC_COORDINATOR_OVER,     /* of one run */
    DSC_COORDINATOR_LEAVES,
    DSC_COORDINATOR_LEFT
} dsc_coordinator_phase;

typedef enum dsc_host_phase {
    DSC_HOST_AWAY,     /* no agent there (yet, or any more) */
    DSC_HOST_WAITED,   /* contacted, not answered yet */
    DSC_HOST_HERE,     /* its agent answers */
    DSC_HOST_FAILED,   /* it could not be had */
    DSC_HOST_LOST      /* it was here, and then was not */
} dsc_host_phase;

typedef struct dsc_coordinator_host {
    dsc_host_phase phase;
    int32_t rank_count;
    bool direct;        /* as in dsc_agent: it is never silent */
    bool gone, drained; /* of this epoch */
    bool start_failed;
    /* Private. */
    int32_t losses; /* times that it was lost in this run, or could not be had again */
    int64_t rejoin_at_ns, answer_by_ns;
    int32_t lives; /* processes of this run that were started, or are about to be */
    uint32_t command_count, commands_done;
    dsc_slot_command command;
    uint32_t ends_seen;
    uint64_t notice_number, order_count;
    int64_t received_ns, beat_at_ns, lost_at_ns, task_at_ns;
    bool was_lost;
    bool said;     /* last_order was sent */
    dsc_order last_order;
} dsc_coordinator_host;

typedef struct dsc_coordinator {
    dsc_coordinator_phase phase;
    uint32_t epoch;
    dsc_verdict verdict; /* of the run */
    dsc_coordinator_host *host; /* [host_count], the caller's */
    int32_t host_count;
    dsc_membership *membership; /* ranks leave and join; NULL: the ranks are fixed */
    bool host_failed;    /* some host could not be had */
    bool start_failed;   /* some host could not start its ranks */
    int32_t user_signal; /* that came before there was a run */
    /* Private. */
    int64_t grace_ns, deadline_ns, give_up_at_ns;
    uint32_t signal_count;
    int32_t signal;
    bool reader_gone[2];
    void (*emit)(void *user, const dsc_coordinator_action *action); /* must not call back into the machine */
    void *user;
} dsc_coordinator;

/* host[] has rank_count and direct filled and the rest zeroed; borrowed. */
void dsc_coordinator_init(dsc_coordinator *c, dsc_coordinator_host *host, int32_t host_count, int64_t grace_ns,
                          void (*emit)(void *user, const dsc_coordinator_action *action), void *user);
/* Ranks leave and join. The slots of a host follow those of the host before it; borrowed. */
void dsc_coordinator_set_membership(dsc_coordinator *c, dsc_membership *membership, dsc_slot *slot, int32_t count,
                                    const dsc_membership_limits *limits);
void dsc_coordinator_step(dsc_coordinator *c, const dsc_coordinator_event *event);
int64_t dsc_coordinator_wake_ns(const dsc_coordinator *c, int64_t now_ns);
/* Time of the newest message of the host that was silent longest. Hosts without processes of the run do not count. */
int64_t dsc_coordinator_last_received_ns(const dsc_coordinator *c, int64_t now_ns);
/* In OVER: when CONNECT may come, so that no rank of the last run is left on a host that was lost. 0: at once. */
int64_t dsc_coordinator_may_connect_ns(const dsc_coordinator *c);

#endif
