/* agreement.h - how ranks find out that they disagree, and how a failure is reported: one protocol for shm, tcp, mpi.
 *
 * Ranks compare call records before the data of a call counts. The first failure of a communicator stays: it ends every
 * wait and every later call with one text. A transport decides only how records and failures travel: shared memory,
 * TCP messages or MPI messages.
 * Threads: a failure is published and read by any thread; a caller belongs to the thread of its channel.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_AGREEMENT_H
#define DSC_COMM_AGREEMENT_H

#include <stdatomic.h>

#include "base/flight_log.h"
#include "comm/comm.h"

/* ---- calls ------------------------------------------------------------------------------------------------------- */

#define DSC_CALL_TEXT_BYTES 128

/* A rank inside a call on one channel. Plain value. */
typedef struct dsc_caller {
    int32_t rank, channel;
    int64_t number; /* calls begun on the channel, for messages */
    dsc_call_record call;
} dsc_caller;

static inline void dsc_caller_begin(dsc_caller *caller, int32_t rank, int32_t channel, const dsc_call_record *call)
{
    caller->rank = rank;
    caller->channel = channel;
    caller->number++;
    caller->call = *call;
}

/* True when both records belong to one collective, or to a send and its recv. */
bool dsc_call_matches(const dsc_call_record *mine, const dsc_call_record *theirs);
/* "broadcast of 1000 bytes from rank 0" */
const char *dsc_call_text(const dsc_call_record *call, char text[DSC_CALL_TEXT_BYTES]);
/* "all_gather of 1000 bytes (call 12 on channel 0)" */
const char *dsc_caller_text(const dsc_caller *caller, char text[DSC_CALL_TEXT_BYTES]);

/* ---- texts of failures ------------------------------------------------------------------------------------------- */

#define DSC_FAILURE_TEXT_BYTES 368 /* a control message is then 384 bytes */
#define DSC_RANK_TEXT_BYTES 128

/* "rank 1", "rank 1 (pid 17)" or "rank 1 (pid 17 on node-b)": pid 0 and host NULL are not known. */
const char *dsc_rank_text(int32_t rank, int32_t pid, const char *host, char text[DSC_RANK_TEXT_BYTES]);

/* Ranks that a call waits for. Starts zeroed. */
typedef struct dsc_missing_ranks {
    int32_t count, listed; /* ranks that are missing; those of them in `text` */
    int32_t first;         /* lowest of them, valid when count > 0 */
    char text[192];
} dsc_missing_ranks;

/* Ranks in ascending order. `rank_text` is from dsc_rank_text; last_seen: the operation of that rank, or NULL. */
void dsc_missing_add(dsc_missing_ranks *missing, int32_t rank, const char *rank_text, const char *last_seen);

void dsc_text_disagree(char text[DSC_FAILURE_TEXT_BYTES], const dsc_caller *caller, int32_t peer,
                       const dsc_call_record *theirs);
void dsc_text_stuck(char text[DSC_FAILURE_TEXT_BYTES], const dsc_caller *caller, int64_t timeout_ns,
                    const dsc_missing_ranks *missing);
void dsc_text_closed(char text[DSC_FAILURE_TEXT_BYTES], const dsc_caller *caller, const char *rank_text);
/* caller: NULL outside a call; reason: of the system, or NULL. */
void dsc_text_gone(char text[DSC_FAILURE_TEXT_BYTES], const dsc_caller *caller, const char *rank_text,
                   const char *reason);

/* ---- the first failure ------------------------------------------------------------------------------------------- */

/* Starts zeroed; may lie in memory that processes share. */
typedef struct dsc_first_failure {
    _Atomic uint32_t state;
    int32_t status, rank;
    char text[DSC_FAILURE_TEXT_BYTES];
} dsc_first_failure;

static inline bool dsc_failure_exists(const dsc_first_failure *failure) { return atomic_load(&failure->state) != 0; }
/* True when this failure is the first one; later ones change nothing. */
bool dsc_failure_publish(dsc_first_failure *failure, dsc_status status, int32_t rank, const char *text);
/* The first failure, in *err. One exists. */
dsc_status dsc_failure_report(const dsc_first_failure *failure, dsc_error *err);

/* ---- control messages -------------------------------------------------------------------------------------------- */

typedef enum dsc_control_kind { DSC_CONTROL_INVALID, DSC_CONTROL_FAILURE, DSC_CONTROL_FAREWELL } dsc_control_kind;

/* Sent to every peer outside of calls: a failure, or a farewell of a rank that closes its communicator. */
typedef struct dsc_control_message {
    uint32_t magic;
    int16_t kind, status;
    int32_t rank, reserved;
    char text[DSC_FAILURE_TEXT_BYTES];
} dsc_control_message;
_Static_assert(sizeof(dsc_control_message) == 384, "no padding");

dsc_control_message dsc_control_failure(const dsc_first_failure *failure);
dsc_control_message dsc_control_farewell(void);
/* Kind of a message from rank `from`. In a failure, status, rank and text are then valid; an invalid rank becomes
 * `from`. */
dsc_control_kind dsc_control_check(dsc_control_message *message, int32_t from, int32_t size);

#endif
