/* verdict.h - why a job ends, for which rank, and how far its end has come. A pure state machine: events go in, and the
 * signals for the ranks come out. It looks at no clock, process or socket.
 *
 *   RUN   nothing has happened
 *   END   all ranks were signalled (`term_signal`): one failed, a host was lost, the user asked, or all are done
 *   KILL  their time is over
 *
 * A rank that ends with code 4 or 5 ("peer lost", "stuck") is seldom the cause. The verdict therefore waits for a
 * better culprit: 300 ms, and until a message of every host came since. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PROTOCOL_VERDICT_H
#define DSC_LAUNCHER_PROTOCOL_VERDICT_H

#include "base/base.h"

/* How a rank ended. */
typedef struct dsc_rank_end {
    int32_t rank;
    int32_t pid;
    int32_t code;       /* as a shell sees it: 128 + signal when killed */
    int32_t signal;     /* that killed it, or 0 */
    int32_t exec_errno; /* why PROGRAM could not be executed, or 0 */
} dsc_rank_end;

typedef enum dsc_verdict_phase { DSC_VERDICT_RUN, DSC_VERDICT_END, DSC_VERDICT_KILL } dsc_verdict_phase;

typedef struct dsc_verdict {
    dsc_verdict_phase phase;
    int32_t term_signal;  /* END: the ranks' signal; 0: none, the ranks have ended */
    int64_t kill_at_ns;   /* END: when KILL begins */
    int32_t alive_count;  /* ranks that have not ended */
    int64_t grace_ns;     /* after the user's signal */
    int32_t user_signal;  /* that the job ends for, or 0 */
    int64_t user_signal_at_ns;
    bool culprit_known;   /* a rank is to blame */
    dsc_rank_end culprit;
    int32_t lost_host;    /* the host that is to blame, or -1 */
    int32_t found_code;   /* the job ends with it because we found the ranks stuck or at odds; 0: no */
    /* Private. */
    bool has_primary, has_suspect;
    dsc_rank_end primary; /* first rank that failed of itself */
    dsc_rank_end suspect; /* first rank that ended with code 4 or 5 */
    int64_t judge_at_ns;
    int32_t finding;      /* not yet decided on */
} dsc_verdict;

void dsc_verdict_init(dsc_verdict *v, int32_t rank_count, int64_t grace_ns);

/* Events. Ends that are noted before the next tick have no order: one by a signal is then the likelier cause. */
void dsc_verdict_rank_ended(dsc_verdict *v, const dsc_rank_end *end);
/* The job ends for this end of a rank; ranks that leave and join are counted elsewhere (membership.h). */
void dsc_verdict_blame(dsc_verdict *v, const dsc_rank_end *end);
/* A host with that many living ranks cannot be reached any more. */
void dsc_verdict_host_lost(dsc_verdict *v, int32_t host, int32_t alive_count);
/* SIGINT, SIGTERM, ... from the user. True when it begins the end; the second one ends the grace time. */
bool dsc_verdict_user_signal(dsc_verdict *v, int32_t signal_number, int64_t now_ns);
/* The hang finder found something that the job ends with `code` for, unless there is a better reason. */
void dsc_verdict_found(dsc_verdict *v, int32_t code);
/* Nobody is left to wait for it, or it could not be started: all ranks are killed at once. */
void dsc_verdict_give_up(dsc_verdict *v);

/* Decides. received_ns: time of the newest message of the host that was silent longest (one host: now_ns). */
void dsc_verdict_tick(dsc_verdict *v, int64_t received_ns, int64_t now_ns);
/* When time alone may change the verdict next; INT64_MAX: never. */
int64_t dsc_verdict_wake_ns(const dsc_verdict *v, int64_t now_ns);

/* Codes 4 and 5 of the contract, which a peer can cause. */
bool dsc_rank_end_is_caused_by_peer(const dsc_rank_end *end);

#endif
