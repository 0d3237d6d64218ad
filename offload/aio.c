/* aio.c - the front of asynchronous files: blocks, depth, short results, retries, timeouts.
 *
 * Invariants:
 *  A1. A block is free, held by the engine, or held back by the fault hook.
 *  A2. An operation is done when all its bytes are moved, or when it has failed and the engine holds no block of it.
 *  A3. A failed operation submits no further blocks. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "offload/aio_internal.h"

static const int64_t second_ns = 1000000000;

/* ---- pieces ---- */

static int32_t region_of(const dsc_aio *aio, const char *buf, int64_t bytes)
{
    DSC_ASSERT(bytes > 0);
    for (int32_t i = 0; i < aio->region_count; i++)
        if (buf >= aio->regions[i].begin && buf + bytes <= aio->regions[i].end)
            return i;
    return -1;
}

int32_t dsc_aio_fixed_fd(const dsc_aio *aio, const dsc_aio_file *file)
{
    for (int32_t i = 0; i < DSC_AIO_FILES_MAX; i++)
        if (aio->files[i] == file)
            return i;
    return -1;
}

static dsc_aio_slot *free_slot(dsc_aio *aio)
{
    DSC_ASSERT(aio->with_engine <= aio->options.queue_depth);
    for (int32_t i = 0; i < aio->options.queue_depth; i++)
        if (aio->slots[i].op == NULL && !aio->slots[i].with_engine)
            return &aio->slots[i];
    return NULL;
}

static void fail_op(dsc_aio_op *op, dsc_status status, int errno_value, int64_t offset)
{
    DSC_ASSERT(status != DSC_OK);
    if (op->status != DSC_OK)
        return;
    op->status = status;
    op->errno_value = errno_value;
    op->failed_offset = offset;
}

static int list_of(const dsc_aio_op *op) { return !op->write ? 0 : op->soon ? 1 : 2; }

static void drop_first(dsc_aio *aio, int list)
{
    DSC_ASSERT(list < DSC_AIO_LISTS);
    dsc_aio_op **first = &aio->waiting[list].first;
    DSC_ASSERT(*first != NULL);
    *first = (*first)->next;
    if (*first == NULL)
        aio->waiting[list].last = NULL;
}

/* The first that has bytes to give; NULL: none. */
static dsc_aio_op *first_waiting(dsc_aio *aio)
{
    dsc_aio_op *op = NULL;
    for (int list = 0; list < DSC_AIO_LISTS && op == NULL; list++)
        while ((op = aio->waiting[list].first) != NULL && (op->status != DSC_OK || op->given == op->bytes))
            drop_first(aio, list);
    DSC_ASSERT(op == NULL || op->given < op->bytes);
    return op;
}

/* The next block of the operations, into a slot. NULL: nothing to give, or no slot. Somebody is about to need what is
 * read, and nobody what is written. */
static dsc_aio_slot *next_piece(dsc_aio *aio)
{
    dsc_aio_op *op = first_waiting(aio);
    dsc_aio_slot *s = op != NULL ? free_slot(aio) : NULL;
    if (s == NULL)
        return NULL;
    const int64_t bytes = dsc_min_i64(aio->options.block_bytes, op->bytes - op->given);
    DSC_ASSERT(bytes > 0);
    DSC_ASSERT(!s->with_engine); /* A1 */
    char *buf = (char *)op->buf + op->given;
    s->op = op;
    s->piece = (dsc_aio_piece) { .fd = op->file->fd,
                                 .write = op->write,
                                 .buf = buf,
                                 .bytes = bytes,
                                 .offset = op->offset + op->given,
                                 .region = region_of(aio, buf, bytes),
                                 .place = op->file->keeper == aio ? dsc_aio_fixed_fd(aio, op->file) : -1 };
    op->given += bytes;
    op->under_way++;
    DSC_ASSERT(op->given <= op->bytes);
    return s;
}

/* Asks the hook. False: this piece has to be given again later. */
static bool admit(dsc_aio *aio, dsc_aio_slot *s)
{
    const dsc_aio_hook *hook = &aio->options.hook;
    DSC_ASSERT(s->op != NULL);
    DSC_ASSERT(!s->with_engine); /* A1 */
    s->fault = DSC_AIO_FAULT_NONE;
    aio->piece_count++;
    if (hook->before != NULL)
        s->fault = hook->before(hook->user, aio->piece_count, &s->piece, &s->fault_result);
    return s->fault != DSC_AIO_FAULT_REFUSE;
}

/* The engine can never take it: its operation has failed. */
static void refuse_piece(dsc_aio_slot *s, int errno_value)
{
    DSC_ASSERT(s->op->under_way > 0);
    DSC_ASSERT(!s->with_engine);
    fail_op(s->op, DSC_ERR_IO, errno_value, s->piece.offset);
    s->op->under_way--;
    s->op = NULL;
}

/* Gives waiting pieces (new ones, and those that were not taken or came back short) to the engine. */
static void fill(dsc_aio *aio)
{
    if (!aio->options.overlap_events && aio->with_engine > 0)
        return;
    while (next_piece(aio) != NULL)
        ;
    for (;;) {
        dsc_aio_piece *batch[DSC_AIO_BATCH];
        int count = 0;
        const int most = aio->options.single_submit ? 1 : DSC_AIO_BATCH;
        for (int32_t i = 0; i < aio->options.queue_depth && count < most; i++) {
            dsc_aio_slot *s = &aio->slots[i];
            if (s->op == NULL || s->with_engine || s->fault == DSC_AIO_FAULT_LATE || s->fault == DSC_AIO_FAULT_NEVER)
                continue;
            if (admit(aio, s))
                batch[count++] = &s->piece;
        }
        if (count == 0)
            return;
        const int taken = aio->ops->submit(aio->state, batch, count);
        DSC_ASSERT(taken <= count);
        for (int i = 0; i < taken; i++) {
            ((dsc_aio_slot *)batch[i])->with_engine = true;
            aio->with_engine++;
        }
        DSC_ASSERT(aio->with_engine <= aio->options.queue_depth);
        for (int i = taken > 0 ? taken : 0; i < count; i++)
            ((dsc_aio_slot *)batch[i])->fault = DSC_AIO_FAULT_NONE;
        if (taken < 0 && taken != -EAGAIN && taken != -EINTR && taken != -EBUSY)
            refuse_piece((dsc_aio_slot *)batch[0], -taken); /* the others are given again, without it */
        else if (taken < count)
            return;
    }
}

/* Only bytes put the timeout off: a device that answers for ever but moves nothing is stuck too. */
static void moved(dsc_aio *aio, dsc_aio_op *op, int64_t bytes)
{
    op->done += bytes;
    DSC_ASSERT(bytes >= 0);
    DSC_ASSERT(op->done <= op->bytes);
    if (bytes > 0)
        aio->last_event_ns = dsc_clock_ns();
}

/* The result of a block: done, short (submitted again), to be tried again, or failed. */
static void finish(dsc_aio *aio, dsc_aio_slot *s)
{
    dsc_aio_op *op = s->op;
    DSC_ASSERT(op != NULL);
    DSC_ASSERT(!s->with_engine); /* A1 */
    int64_t result = s->fault == DSC_AIO_FAULT_RESULT ? s->fault_result : s->piece.result;
    s->fault = DSC_AIO_FAULT_NONE;
    if (result == -EINTR || result == -EAGAIN)
        return; /* the slot keeps it; fill gives it again */
    if (result > s->piece.bytes)
        result = s->piece.bytes;
    if (result > 0 && result < s->piece.bytes) {
        /* O_DIRECT goes on at block borders only: what is behind the last is moved again. */
        if (op->file->direct)
            result -= result % DSC_AIO_ALIGN;
        s->piece.buf = (char *)s->piece.buf + result;
        s->piece.offset += result;
        s->piece.bytes -= result;
        moved(aio, op, result);
        if (op->status == DSC_OK)
            return;
    } else if (result == s->piece.bytes) {
        moved(aio, op, result);
    } else if (result == 0 && !op->write) {
        fail_op(op, DSC_ERR_INPUT, 0, s->piece.offset);
    } else {
        fail_op(op, DSC_ERR_IO, result == 0 ? ENOSPC : (int)-result, s->piece.offset);
    }
    DSC_ASSERT(op->under_way > 0);
    op->under_way--;
    s->op = NULL;
}

static void tell_held(dsc_aio *aio)
{
    DSC_ASSERT(aio->with_engine == 0);
    while (aio->held_count > 0) { /* the last first */
        dsc_aio_slot *s = aio->held[--aio->held_count];
        s->fault = DSC_AIO_FAULT_NONE;
        finish(aio, s);
    }
}

/* Operations that were not submitted in full have no other waiter: they fail here. Blocks that the engine holds have no
 * owner from now on, since their operations may be gone when they complete. */
static void break_down(dsc_aio *aio, dsc_status status, int errno_value)
{
    DSC_ASSERT(status != DSC_OK);
    aio->broken = true;
    aio->broken_status = status;
    aio->broken_errno = errno_value;
    for (int32_t i = 0; i < aio->options.queue_depth; i++) {
        dsc_aio_slot *s = &aio->slots[i];
        if (s->op == NULL)
            continue;
        DSC_ASSERT(s->op->under_way > 0);
        fail_op(s->op, status, errno_value, s->piece.offset);
        s->op->under_way--;
        s->op = NULL;
    }
    aio->held_count = 0;
    for (int list = 0; list < DSC_AIO_LISTS; list++)
        for (dsc_aio_op *op; (op = aio->waiting[list].first) != NULL; drop_first(aio, list))
            fail_op(op, status, errno_value, op->offset + op->given);
}

/* Takes completions; waits up to timeout_ns for the first. False: none came. */
static bool take(dsc_aio *aio, int64_t timeout_ns)
{
    dsc_aio_piece *done[DSC_AIO_BATCH];
    if (aio->with_engine == 0) {
        const bool any = aio->held_count > 0;
        tell_held(aio);
        return any;
    }
    const int count = aio->ops->reap(aio->state, done, DSC_AIO_BATCH, timeout_ns);
    for (int i = 0; i < count; i++) {
        dsc_aio_slot *s = (dsc_aio_slot *)done[i];
        DSC_ASSERT(s->with_engine); /* an engine gives each block back once */
        s->with_engine = false;
        aio->with_engine--;
        if (s->op == NULL)
            continue; /* given up */
        if (s->fault == DSC_AIO_FAULT_LATE) {
            DSC_ASSERT(aio->held_count < DSC_AIO_DEPTH_MAX);
            aio->held[aio->held_count++] = s;
        } else if (s->fault != DSC_AIO_FAULT_NEVER) {
            finish(aio, s);
        }
    }
    DSC_ASSERT(aio->with_engine >= 0);
    if (count < 0)
        break_down(aio, DSC_ERR_IO, -count);
    return count > 0;
}

int dsc_aio_drain(dsc_aio *aio, int64_t timeout_ns)
{
    dsc_aio_piece *done[DSC_AIO_BATCH];
    const int count = aio->ops->reap(aio->state, done, DSC_AIO_BATCH, timeout_ns);
    if (count > 0)
        aio->with_engine -= count;
    DSC_ASSERT(count <= DSC_AIO_BATCH);
    DSC_ASSERT(aio->with_engine >= 0);
    return count;
}

void dsc_aio_submit(dsc_aio *aio, dsc_aio_op *op)
{
    op->given = op->done = op->failed_offset = 0;
    op->under_way = op->errno_value = 0;
    op->status = DSC_OK;
    op->next = NULL;
    const int64_t mixed = op->bytes | op->offset | (int64_t)((uintptr_t)op->buf & (DSC_AIO_ALIGN - 1));
    if (op->bytes < 0 || op->offset < 0 || op->file->fd < 0 || (op->file->direct && mixed % DSC_AIO_ALIGN != 0))
        fail_op(op, DSC_ERR_IO, EINVAL, op->offset);
    if (aio->broken)
        fail_op(op, aio->broken_status, aio->broken_errno, op->offset);
    if (op->status != DSC_OK || op->bytes == 0)
        return;
    DSC_ASSERT((aio->waiting[list_of(op)].first == NULL) == (aio->waiting[list_of(op)].last == NULL));
    DSC_ASSERT(aio->waiting[list_of(op)].last != op); /* it has been waited for before it is submitted again */
    if (aio->waiting[list_of(op)].last == NULL)
        aio->waiting[list_of(op)].first = op;
    else
        aio->waiting[list_of(op)].last->next = op;
    aio->waiting[list_of(op)].last = op;
    if (aio->with_engine == 0)
        aio->last_event_ns = dsc_clock_ns();
    fill(aio);
}

static bool is_done(const dsc_aio_op *op)
{
    DSC_ASSERT(op->under_way >= 0);
    return op->under_way == 0 && (op->status != DSC_OK || op->given == op->bytes);
}

/* The caller's again: it must not stay in the list of those with bytes to give. */
static void unlink_op(dsc_aio *aio, const dsc_aio_op *op)
{
    dsc_aio_op *before = NULL;
    for (dsc_aio_op *at = aio->waiting[list_of(op)].first; at != NULL; before = at, at = at->next) {
        if (at != op)
            continue;
        DSC_ASSERT(at->next != NULL || aio->waiting[list_of(op)].last == at);
        if (before == NULL)
            aio->waiting[list_of(op)].first = at->next;
        else
            before->next = at->next;
        if (aio->waiting[list_of(op)].last == at)
            aio->waiting[list_of(op)].last = before;
        return;
    }
}

bool dsc_aio_test(dsc_aio *aio, dsc_aio_op *op)
{
    while (!is_done(op) && take(aio, 0))
        fill(aio);
    if (!is_done(op))
        return false;
    DSC_ASSERT(op->under_way == 0); /* A2 */
    unlink_op(aio, op);
    return true;
}

static dsc_status verdict(const dsc_aio *aio, const dsc_aio_op *op, dsc_error *err)
{
    DSC_ASSERT(is_done(op)); /* A2 */
    char where[1100];
    if (op->status == DSC_OK)
        return DSC_OK;
    const char *what = op->write ? "write" : "read";
    snprintf(where, sizeof where, "%s", op->file->path);
    if (op->status == DSC_ERR_STUCK)
        return DSC_FAIL(err, DSC_ERR_STUCK, where, "%s at %lld: no answer from the device for %.3g s (%s)", what,
                        (long long)op->failed_offset, (double)aio->options.timeout_ns * 1e-9, aio->ops->name);
    if (op->status == DSC_ERR_INPUT)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "ends at %lld, before what was to be read",
                        (long long)op->failed_offset);
    return DSC_FAIL(err, op->status, where, "%s of %lld bytes at %lld failed: %s (%s)", what, (long long)op->bytes,
                    (long long)op->failed_offset, strerror(op->errno_value), aio->ops->name);
}

/* Gives and takes what there is, and waits up to timeout_ns for something to complete, but not when op (NULL: any) is
 * done. */
static void go_on(dsc_aio *aio, const dsc_aio_op *op, int64_t timeout_ns)
{
    DSC_ASSERT(!aio->broken);
    DSC_ASSERT(timeout_ns >= 0);
    fill(aio);
    const bool done = op != NULL && is_done(op);
    const bool any = !done && take(aio, dsc_min_i64(timeout_ns, aio->options.timeout_ns));
    if (any)
        fill(aio); /* the caller may work for long now, and devices can complete all their blocks at once */
    if (done || (op != NULL && is_done(op)))
        return;
    if (!any && aio->with_engine == 0 && aio->held_count == 0)
        dsc_clock_sleep_ns(100000); /* the engine had no free entry: others of this system use it */
    if (dsc_clock_ns() - aio->last_event_ns > aio->options.timeout_ns)
        break_down(aio, DSC_ERR_STUCK, 0);
}

bool dsc_aio_pump(dsc_aio *aio, int64_t timeout_ns)
{
    bool any = first_waiting(aio) != NULL;
    for (int32_t i = 0; i < aio->options.queue_depth && !any; i++)
        any = aio->slots[i].op != NULL;
    if (any && !aio->broken)
        go_on(aio, NULL, timeout_ns);
    return any && !aio->broken;
}

dsc_status dsc_aio_wait(dsc_aio *aio, dsc_aio_op *op, dsc_error *err)
{
    while (!is_done(op) && !aio->broken)
        go_on(aio, op, second_ns / 10);
    unlink_op(aio, op);
    return verdict(aio, op, err);
}

