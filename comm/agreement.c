/* agreement.c - see agreement.h. SPDX-License-Identifier: Apache-2.0 */
#include "comm/agreement.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define CONTROL_MAGIC UINT32_C(0x43435344) /* "DSCC" */
enum { FAILURE_NONE, FAILURE_WRITING, FAILURE_SET };

/* ---- calls ------------------------------------------------------------------------------------------------------- */

const char *dsc_comm_op_text(dsc_comm_op op)
{
    static const char *const texts[DSC_COMM_OP_COUNT] = { "all_gather", "all_to_all", "reduce_scatter", "all_reduce",
                                                          "broadcast",  "barrier",    "send",           "recv" };
    return (unsigned)op < DSC_COMM_OP_COUNT ? texts[op] : "unknown operation";
}

bool dsc_call_matches(const dsc_call_record *mine, const dsc_call_record *theirs)
{
    const bool pair = (mine->op == DSC_COMM_SEND && theirs->op == DSC_COMM_RECV) ||
                      (mine->op == DSC_COMM_RECV && theirs->op == DSC_COMM_SEND);
    const bool sends = mine->op == DSC_COMM_SEND || mine->op == DSC_COMM_RECV;
    return (sends ? pair : mine->op == theirs->op && mine->detail == theirs->detail) &&
           mine->exchange == theirs->exchange && mine->bytes == theirs->bytes;
}

const char *dsc_call_text(const dsc_call_record *call, char text[DSC_CALL_TEXT_BYTES])
{
    const char *op = dsc_comm_op_text((dsc_comm_op)call->op);
    if (call->op < 0)
        snprintf(text, DSC_CALL_TEXT_BYTES, "no collective");
    else if (call->op == DSC_COMM_BARRIER || call->bytes < 0)
        snprintf(text, DSC_CALL_TEXT_BYTES, "%s", op);
    else if (call->op == DSC_COMM_BROADCAST)
        snprintf(text, DSC_CALL_TEXT_BYTES, "%s of %lld bytes from rank %d", op, (long long)call->bytes, call->detail);
    else if (call->op == DSC_COMM_REDUCE_SCATTER)
        snprintf(text, DSC_CALL_TEXT_BYTES, "%s of %lld bytes in %s", op, (long long)call->bytes,
                 dsc_dtype_text((dsc_dtype)call->detail));
    else
        snprintf(text, DSC_CALL_TEXT_BYTES, "%s of %lld bytes", op, (long long)call->bytes);
    return text;
}

const char *dsc_caller_text(const dsc_caller *caller, char text[DSC_CALL_TEXT_BYTES])
{
    char call[DSC_CALL_TEXT_BYTES];
    snprintf(text, DSC_CALL_TEXT_BYTES, "%.80s (call %lld on channel %d)", dsc_call_text(&caller->call, call),
             (long long)caller->number, caller->channel);
    return text;
}

/* ---- texts of failures ------------------------------------------------------------------------------------------- */

const char *dsc_rank_text(int32_t rank, int32_t pid, const char *host, char text[DSC_RANK_TEXT_BYTES])
{
    if (pid <= 0)
        snprintf(text, DSC_RANK_TEXT_BYTES, "rank %d", rank);
    else if (host == NULL)
        snprintf(text, DSC_RANK_TEXT_BYTES, "rank %d (pid %d)", rank, pid);
    else
        snprintf(text, DSC_RANK_TEXT_BYTES, "rank %d (pid %d on %.64s)", rank, pid, host);
    return text;
}

void dsc_missing_add(dsc_missing_ranks *missing, int32_t rank, const char *rank_text, const char *last_seen)
{
    const size_t used = strlen(missing->text), space = sizeof missing->text - used;
    const bool no_gap = missing->listed == missing->count;
    if (missing->count++ == 0)
        missing->first = rank;
    if (!no_gap)
        return;
    const int length = snprintf(missing->text + used, space, "%s%s%s%s", used == 0 ? "" : "; ", rank_text,
                                last_seen != NULL ? ", last seen in " : "", last_seen != NULL ? last_seen : "");
    if ((size_t)length < space)
        missing->listed++;
    else
        missing->text[used] = 0; /* no rank is named in part */
}

void dsc_text_disagree(char text[DSC_FAILURE_TEXT_BYTES], const dsc_caller *caller, int32_t peer,
                       const dsc_call_record *theirs)
{
    char own[DSC_CALL_TEXT_BYTES], other[DSC_CALL_TEXT_BYTES];
    snprintf(text, DSC_FAILURE_TEXT_BYTES, "ranks disagree: rank %d is in %s, rank %d in %s", caller->rank,
             dsc_caller_text(caller, own), peer, dsc_call_text(theirs, other));
}

void dsc_text_stuck(char text[DSC_FAILURE_TEXT_BYTES], const dsc_caller *caller, int64_t timeout_ns,
                    const dsc_missing_ranks *missing)
{
    char here[DSC_CALL_TEXT_BYTES], more[32] = "";
    if (missing->listed < missing->count)
        snprintf(more, sizeof more, " and %d more", missing->count - missing->listed);
    snprintf(text, DSC_FAILURE_TEXT_BYTES, "rank %d waited %.1f s in %s for %s%s", caller->rank,
             (double)timeout_ns * 1e-9, dsc_caller_text(caller, here), missing->text, more);
}

void dsc_text_closed(char text[DSC_FAILURE_TEXT_BYTES], const dsc_caller *caller, const char *rank_text)
{
    char here[DSC_CALL_TEXT_BYTES];
    snprintf(text, DSC_FAILURE_TEXT_BYTES, "%.120s closed its communicator; rank %d waited for it in %s", rank_text,
             caller->rank, dsc_caller_text(caller, here));
}

void dsc_text_gone(char text[DSC_FAILURE_TEXT_BYTES], const dsc_caller *caller, const char *rank_text,
                   const char *reason)
{
    char here[DSC_CALL_TEXT_BYTES], waited[DSC_CALL_TEXT_BYTES + 32] = "";
    if (caller != NULL)
        snprintf(waited, sizeof waited, "; rank %d waited for it in %s", caller->rank, dsc_caller_text(caller, here));
    snprintf(text, DSC_FAILURE_TEXT_BYTES, "%.120s is gone%s%.60s%s", rank_text, reason != NULL ? ": " : "",
             reason != NULL ? reason : "", waited);
}

/* ---- the first failure ------------------------------------------------------------------------------------------- */

static bool is_failure(int32_t status) { return status > DSC_OK && status <= DSC_ERR_DEVICE; }

bool dsc_failure_publish(dsc_first_failure *failure, dsc_status status, int32_t rank, const char *text)
{
    uint32_t none = FAILURE_NONE;
    DSC_ASSERT(is_failure(status));
    if (!atomic_compare_exchange_strong(&failure->state, &none, FAILURE_WRITING))
        return false;
    snprintf(failure->text, sizeof failure->text, "%s", text);
    dsc_text_printable(failure->text);
    failure->status = (int32_t)status;
    failure->rank = rank;
    atomic_store(&failure->state, FAILURE_SET);
    return true;
}

dsc_status dsc_failure_report(const dsc_first_failure *failure, dsc_error *err)
{
    /* Writing the text takes microseconds. A process that dies in between leaves only the state. */
    for (int i = 0; i < 1000 && atomic_load(&failure->state) != FAILURE_SET; i++)
        dsc_clock_sleep_ns(100000);
    if (atomic_load(&failure->state) != FAILURE_SET)
        return DSC_FAIL(err, DSC_ERR_PEER, "comm", "a rank failed before it could report the reason");
    char text[DSC_FAILURE_TEXT_BYTES];
    memcpy(text, failure->text, sizeof text);
    text[sizeof text - 1] = 0;
    const bool known = is_failure(failure->status);
    const dsc_status status = DSC_FAIL(err, known ? (dsc_status)failure->status : DSC_ERR_PEER, "comm", "%s", text);
    if (err != NULL)
        err->rank = failure->rank;
    return status;
}

/* ---- control messages -------------------------------------------------------------------------------------------- */

dsc_control_message dsc_control_failure(const dsc_first_failure *failure)
{
    dsc_control_message message = {
        .magic = CONTROL_MAGIC, .kind = DSC_CONTROL_FAILURE, .status = (int16_t)failure->status, .rank = failure->rank
    };
    memcpy(message.text, failure->text, sizeof message.text);
    return message;
}

dsc_control_message dsc_control_farewell(void)
{
    return (dsc_control_message){ .magic = CONTROL_MAGIC, .kind = DSC_CONTROL_FAREWELL };
}

dsc_control_kind dsc_control_check(dsc_control_message *message, int32_t from, int32_t size)
{
    if (message->magic != CONTROL_MAGIC)
        return DSC_CONTROL_INVALID;
    if (message->kind == DSC_CONTROL_FAREWELL)
        return DSC_CONTROL_FAREWELL;
    if (message->kind != DSC_CONTROL_FAILURE || !is_failure(message->status))
        return DSC_CONTROL_INVALID;
    message->text[sizeof message->text - 1] = 0;
    if (message->rank < 0 || message->rank >= size)
        message->rank = from;
    return DSC_CONTROL_FAILURE;
}
