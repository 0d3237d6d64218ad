/* aio.c - the front of asynchronous files: blocks, depth, short results, retries, timeouts.
 *
 * Invariants: (1) a piece is either free, with the engine, or held back by the fault hook; (2) an operation is done
 * when all its bytes are moved, or when it has failed and none of its pieces is with the engine any more; (3) a failed
 * operation gives no further pieces. SPDX-License-Identifier: Apache-2.0 */
#include "offload/aio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

enum { REGIONS_MAX = 64, BATCH = 64 };
static const int64_t second_ns = 1000000000;

typedef struct slot {
    dsc_aio_piece piece; /* first: the engine gives pieces back by address */
    dsc_aio_op *op;      /* NULL: free */
    dsc_aio_fault_kind fault;
    int64_t fault_result;
    bool with_engine;
} slot;

struct dsc_aio {
    dsc_alloc *alloc;
    dsc_aio_options options;
    const dsc_aio_engine_ops *ops;
    dsc_aio_engine_state *state;
    slot *slots; /* [queue_depth] */
    int32_t with_engine, held_count;
    slot *held[DSC_AIO_DEPTH_MAX]; /* completions kept back by the hook */
    dsc_aio_op *first, *last;      /* operations with bytes to give */
    struct { char *begin, *end; } regions[REGIONS_MAX];
    int32_t region_count;
    int64_t piece_count, last_event_ns;
    bool broken; /* timed out: the engine keeps pieces for good */
    char why[512];
};

/* ---- files ---- */

dsc_status dsc_aio_file_open(const char *path, bool create, dsc_aio_file *out, dsc_error *err)
{
    const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT | O_TRUNC : 0);
    struct stat info;
    out->direct = true;
    out->fd = open(path, flags | O_DIRECT, 0600);
    if (out->fd < 0 && errno == EINVAL) { /* tmpfs and others have no O_DIRECT */
        out->direct = false;
        out->fd = open(path, flags, 0600);
    }
    snprintf(out->path, sizeof out->path, "%s", path);
    if (out->fd < 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "cannot be opened: %s", strerror(errno));
    if (fstat(out->fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        dsc_aio_file_close(out);
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "is not a regular file");
    }
    return DSC_OK;
}

void dsc_aio_file_close(dsc_aio_file *file)
{
    if (file->fd >= 0)
        (void)close(file->fd);
    file->fd = -1;
}

/* ---- open and close ---- */

static const dsc_aio_engine_ops *const engines[] = { &dsc_aio_uring, &dsc_aio_libaio, &dsc_aio_threads };

static dsc_status choose(dsc_aio *aio, dsc_error *err)
{
    const char *wanted = aio->options.engine != NULL ? aio->options.engine : "auto";
    size_t used = 0;
    for (size_t i = 0; i < DSC_COUNT(engines); i++) {
        dsc_error reason = DSC_ERROR_INIT;
        const bool named = strcmp(wanted, engines[i]->name) == 0;
        if (!named && strcmp(wanted, "auto") != 0)
            continue;
        const dsc_status status = engines[i]->open(&aio->options, &aio->state, named ? err : &reason);
        if (status == DSC_OK) {
            aio->ops = engines[i];
            char found[sizeof aio->why];
            snprintf(found, sizeof found, "%s%s%.*s", engines[i]->name, used > 0 ? "; " : "", (int)used, aio->why);
            memcpy(aio->why, found, sizeof found);
            return DSC_OK;
        }
        if (named || status != DSC_ERR_UNSUPPORTED) {
            if (!named && err != NULL)
                *err = reason;
            return status;
        }
        const int n = snprintf(aio->why + used, sizeof aio->why - used, "%s%s: %.150s", used > 0 ? ", " : "not ",
                               engines[i]->name, reason.message);
        used = (size_t)dsc_min_i64((int64_t)sizeof aio->why - 1, (int64_t)used + n);
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, "aio engine",
                    "\"%.40s\" is unknown; what exists: auto, io_uring, libaio, threads", wanted);
}

static dsc_status check_options(const dsc_aio_options *options, dsc_error *err)
{
    if (options->block_bytes < 1 || options->block_bytes > (int64_t)1 << 30)
        return DSC_FAIL(err, DSC_ERR_INPUT, "aio.block_size", "%lld is not between 1 and 2^30",
                        (long long)options->block_bytes);
    if (options->queue_depth < 1 || options->queue_depth > DSC_AIO_DEPTH_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "aio.queue_depth", "%d is not between 1 and %d", (int)options->queue_depth,
                        DSC_AIO_DEPTH_MAX);
    if (options->thread_count < 1 || options->thread_count > 256)
        return DSC_FAIL(err, DSC_ERR_INPUT, "aio.thread_count", "%d is not between 1 and 256",
                        (int)options->thread_count);
    return DSC_OK;
}

dsc_status dsc_aio_open(const dsc_aio_options *options, dsc_aio **out, dsc_error *err)
{
    dsc_aio *aio = NULL;
    *out = NULL;
    DSC_TRY(check_options(options, err));
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_IO, 1, sizeof *aio, &aio, err));
    aio->alloc = options->alloc;
    aio->options = *options;
    aio->options.block_bytes = dsc_align_up(options->block_bytes, DSC_AIO_ALIGN);
    if (aio->options.timeout_ns == 0)
        aio->options.timeout_ns = 60 * second_ns;
    dsc_status status = dsc_alloc_zeroed(aio->alloc, DSC_TAG_IO, options->queue_depth, sizeof *aio->slots, &aio->slots,
                                         err);
    if (status == DSC_OK)
        status = choose(aio, err);
    if (status != DSC_OK) {
        dsc_alloc_free(aio->alloc, aio->slots);
        dsc_alloc_free(aio->alloc, aio);
        return status;
    }
    *out = aio;
    return DSC_OK;
}

const char *dsc_aio_engine(const dsc_aio *aio) { return aio->ops->name; }
const char *dsc_aio_why(const dsc_aio *aio) { return aio->why; }

dsc_status dsc_aio_register(dsc_aio *aio, void *buf, int64_t bytes, dsc_error *err)
{
    if (aio->with_engine > 0 || bytes < 1)
        return DSC_FAIL(err, DSC_ERR_STATE, "dsc_aio_register", "called with operations under way or no bytes");
    if (aio->ops->add_region == NULL || aio->region_count == REGIONS_MAX ||
        !aio->ops->add_region(aio->state, buf, bytes))
        return DSC_OK;
    aio->regions[aio->region_count].begin = buf;
    aio->regions[aio->region_count].end = (char *)buf + bytes;
    aio->region_count++;
    return DSC_OK;
}

/* ---- pieces ---- */

static int32_t region_of(const dsc_aio *aio, const char *buf, int64_t bytes)
{
    for (int32_t i = 0; i < aio->region_count; i++)
        if (buf >= aio->regions[i].begin && buf + bytes <= aio->regions[i].end)
            return i;
    return -1;
}

static slot *free_slot(dsc_aio *aio)
{
    for (int32_t i = 0; i < aio->options.queue_depth; i++)
        if (aio->slots[i].op == NULL)
            return &aio->slots[i];
    return NULL;
}

static void fail_op(dsc_aio_op *op, dsc_status status, int errno_value, int64_t offset)
{
    if (op->status != DSC_OK)
        return;
    op->status = status;
    op->errno_value = errno_value;
    op->failed_offset = offset;
}

static void drop_first(dsc_aio *aio)
{
    aio->first = aio->first->next;
    if (aio->first == NULL)
        aio->last = NULL;
}

/* The next block of the operations, into a slot. NULL: nothing to give, or no slot. */
static slot *next_piece(dsc_aio *aio)
{
    while (aio->first != NULL && (aio->first->status != DSC_OK || aio->first->given == aio->first->bytes))
        drop_first(aio);
    dsc_aio_op *op = aio->first;
    slot *s = op != NULL ? free_slot(aio) : NULL;
    if (s == NULL)
        return NULL;
    const int64_t bytes = dsc_min_i64(aio->options.block_bytes, op->bytes - op->given);
    char *buf = (char *)op->buf + op->given;
    s->op = op;
    s->piece = (dsc_aio_piece){ .fd = op->file->fd, .write = op->write, .buf = buf, .bytes = bytes,
                                .offset = op->offset + op->given, .region = region_of(aio, buf, bytes) };
    op->given += bytes;
    op->under_way++;
    return s;
}

/* Asks the hook. False: this piece has to be given again later. */
static bool admit(dsc_aio *aio, slot *s)
{
    const dsc_aio_hook *hook = &aio->options.hook;
    s->fault = DSC_AIO_FAULT_NONE;
    aio->piece_count++;
    if (hook->before != NULL)
        s->fault = hook->before(hook->user, aio->piece_count, &s->piece, &s->fault_result);
    return s->fault != DSC_AIO_FAULT_REFUSE;
}

static void give_up_engine(dsc_aio *aio, int errno_value)
{
    for (int32_t i = 0; i < aio->options.queue_depth; i++)
        if (aio->slots[i].op != NULL && !aio->slots[i].with_engine) {
            fail_op(aio->slots[i].op, DSC_ERR_IO, errno_value, aio->slots[i].piece.offset);
            aio->slots[i].op->under_way--;
            aio->slots[i].op = NULL;
        }
}

/* Gives waiting pieces (new ones, and those that were not taken or came back short) to the engine. */
static void fill(dsc_aio *aio)
{
    if (!aio->options.overlap_events && aio->with_engine > 0)
        return;
    while (next_piece(aio) != NULL)
        ;
    for (;;) {
        dsc_aio_piece *batch[BATCH];
        int count = 0;
        for (int32_t i = 0; i < aio->options.queue_depth && count < (aio->options.single_submit ? 1 : BATCH); i++) {
            slot *s = &aio->slots[i];
            if (s->op == NULL || s->with_engine || s->fault == DSC_AIO_FAULT_LATE || s->fault == DSC_AIO_FAULT_NEVER)
                continue;
            if (admit(aio, s))
                batch[count++] = &s->piece;
        }
        if (count == 0)
            return;
        const int taken = aio->ops->submit(aio->state, batch, count);
        if (taken < 0 && taken != -EAGAIN && taken != -EINTR && taken != -EBUSY) {
            give_up_engine(aio, -taken);
            return;
        }
        for (int i = 0; i < taken; i++) {
            ((slot *)batch[i])->with_engine = true;
            aio->with_engine++;
        }
        for (int i = taken > 0 ? taken : 0; i < count; i++)
            ((slot *)batch[i])->fault = DSC_AIO_FAULT_NONE;
        if (taken < count)
            return;
    }
}

/* Only bytes put the timeout off: a device that answers for ever but moves nothing is stuck too. */
static void moved(dsc_aio *aio, dsc_aio_op *op, int64_t bytes)
{
    op->done += bytes;
    if (bytes > 0)
        aio->last_event_ns = dsc_clock_ns();
}

/* What came back of a piece: done, short (given again), to be tried again, or failed. */
static void finish(dsc_aio *aio, slot *s)
{
    dsc_aio_op *op = s->op;
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
    op->under_way--;
    s->op = NULL;
}

static void tell_held(dsc_aio *aio)
{
    for (int32_t i = 0; i < aio->held_count; i++) {
        aio->held[i]->fault = DSC_AIO_FAULT_NONE;
        finish(aio, aio->held[i]);
    }
    aio->held_count = 0;
}

/* Takes completions; waits up to timeout_ns for the first. False: none came. */
static bool take(dsc_aio *aio, int64_t timeout_ns)
{
    dsc_aio_piece *done[BATCH];
    if (aio->with_engine == 0) {
        const bool any = aio->held_count > 0;
        tell_held(aio);
        return any;
    }
    const int count = aio->ops->reap(aio->state, done, BATCH, timeout_ns);
    for (int i = 0; i < count; i++) {
        slot *s = (slot *)done[i];
        s->with_engine = false;
        aio->with_engine--;
        if (s->fault == DSC_AIO_FAULT_LATE)
            aio->held[aio->held_count++] = s;
        else if (s->fault != DSC_AIO_FAULT_NEVER)
            finish(aio, s);
    }
    return count > 0;
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
        fail_op(op, DSC_ERR_STUCK, 0, op->offset);
    if (op->status != DSC_OK || op->bytes == 0)
        return;
    if (aio->last == NULL)
        aio->first = op;
    else
        aio->last->next = op;
    aio->last = op;
    if (aio->with_engine == 0)
        aio->last_event_ns = dsc_clock_ns();
    fill(aio);
}

static bool is_done(const dsc_aio_op *op)
{
    return op->under_way == 0 && (op->status != DSC_OK || op->given == op->bytes);
}

/* The caller's again: it must not stay in the list of those with bytes to give. */
static void unlink_op(dsc_aio *aio, const dsc_aio_op *op)
{
    dsc_aio_op *before = NULL;
    for (dsc_aio_op *at = aio->first; at != NULL; before = at, at = at->next) {
        if (at != op)
            continue;
        if (before == NULL)
            aio->first = at->next;
        else
            before->next = at->next;
        if (aio->last == at)
            aio->last = before;
        return;
    }
}

bool dsc_aio_test(dsc_aio *aio, dsc_aio_op *op)
{
    while (!is_done(op) && take(aio, 0))
        fill(aio);
    if (!is_done(op))
        return false;
    unlink_op(aio, op);
    return true;
}

/* Operations that were never given in full are not waited for by anybody else: they fail where they are. */
static void break_down(dsc_aio *aio)
{
    aio->broken = true;
    for (int32_t i = 0; i < aio->options.queue_depth; i++)
        if (aio->slots[i].op != NULL)
            fail_op(aio->slots[i].op, DSC_ERR_STUCK, 0, aio->slots[i].piece.offset);
    for (; aio->first != NULL; drop_first(aio))
        fail_op(aio->first, DSC_ERR_STUCK, 0, aio->first->offset + aio->first->given);
}

static dsc_status verdict(const dsc_aio *aio, const dsc_aio_op *op, dsc_error *err)
{
    char where[1100];
    if (op->status == DSC_OK)
        return DSC_OK;
    const char *what = op->write ? "write" : "read";
    snprintf(where, sizeof where, "%s", op->file->path);
    if (op->status == DSC_ERR_STUCK)
        return DSC_FAIL(err, DSC_ERR_STUCK, where, "%s at %lld: no answer from the device for %.0f s (%s)", what,
                        (long long)op->failed_offset, (double)aio->options.timeout_ns * 1e-9, aio->ops->name);
    if (op->status == DSC_ERR_INPUT)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "ends at %lld, before what was to be read",
                        (long long)op->failed_offset);
    return DSC_FAIL(err, op->status, where, "%s of %lld bytes at %lld failed: %s (%s)", what, (long long)op->bytes,
                    (long long)op->failed_offset, strerror(op->errno_value), aio->ops->name);
}

dsc_status dsc_aio_wait(dsc_aio *aio, dsc_aio_op *op, dsc_error *err)
{
    while (!is_done(op) && !aio->broken) {
        fill(aio);
        const bool any = !is_done(op) && take(aio, second_ns / 10);
        if (is_done(op))
            break;
        if (!any && aio->with_engine == 0 && aio->held_count == 0)
            dsc_clock_sleep_ns(100000); /* the engine had no room: others of this system use it */
        if (dsc_clock_ns() - aio->last_event_ns > aio->options.timeout_ns)
            break_down(aio);
    }
    unlink_op(aio, op);
    return verdict(aio, op, err);
}

void dsc_aio_close(dsc_aio **pointer)
{
    dsc_aio *aio = *pointer;
    if (aio == NULL)
        return;
    *pointer = NULL;
    for (; aio->first != NULL; drop_first(aio))
        fail_op(aio->first, DSC_ERR_CANCELLED, 0, aio->first->offset + aio->first->given);
    const int64_t end = dsc_clock_ns() + aio->options.timeout_ns;
    while (aio->with_engine > 0 && !aio->broken && dsc_clock_ns() < end)
        (void)take(aio, second_ns / 10);
    aio->ops->close(aio->state);
    dsc_alloc_free(aio->alloc, aio->slots);
    dsc_alloc_free(aio->alloc, aio);
}
