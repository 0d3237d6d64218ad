/* swap.c - see swap.h. Stripe s of the space is stripe s / folder_count of folder s % folder_count.
 * SPDX-License-Identifier: Apache-2.0 */
#include "offload/swap.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"

enum { STRIPE = 4 << 20 };
static const int64_t reserve_bytes = (int64_t)64 << 20; /* left free in every folder: others write there too */

typedef struct check { uint32_t crc, generation; } check; /* generation 0: never written */

struct dsc_swap {
    dsc_alloc *alloc;
    dsc_aio *aio;
    dsc_tag tag;
    dsc_aio_file files[DSC_SWAP_FOLDERS_MAX];
    int32_t folder_count;
    int64_t bytes, stripe_bytes, noted_bytes;
    check *checks; /* [bytes / DSC_AIO_ALIGN] */
    char word[600];
};

struct dsc_swap_op {
    dsc_alloc *alloc;
    dsc_swap *swap;
    dsc_aio *aio;
    dsc_aio_op *parts;
    int64_t part_room, part_count;
    bool write, soon, bad_range;
    void *buf;
    int64_t bytes, offset;
};

int64_t dsc_swap_plan_bytes(int64_t bytes)
{
    DSC_ASSERT(bytes >= 0);
    return dsc_div_ceil(bytes + STRIPE, DSC_AIO_ALIGN) * (int64_t)sizeof(check) + (int64_t)sizeof(dsc_swap);
}

/* ---- files without a name ---- */

static void say(dsc_swap *s, const char *folder, const char *what)
{
    const size_t used = strlen(s->word);
    DSC_ASSERT(used < sizeof s->word);
    snprintf(s->word + used, sizeof s->word - used, "%s%.200s %s", used > 0 ? "; " : "", folder, what);
}

static dsc_status no_room(const char *folder, int64_t bytes, int64_t free_bytes, dsc_error *err)
{
    DSC_ASSERT(bytes > 0);
    return DSC_FAIL(err, DSC_ERR_NOFIT, folder,
                    "swap of %.2f GB (and %.2f GB left free) does not fit: %.2f GB are free; name a larger nvme_path, "
                    "or use more ranks", (double)bytes * 1e-9, (double)reserve_bytes * 1e-9, (double)free_bytes * 1e-9);
}

/* Takes the space of a file whose file system cannot reserve it, by writing it. */
static dsc_status write_all(dsc_swap *s, const dsc_aio_file *file, const char *folder, int64_t bytes,
                            int64_t free_bytes, dsc_error *err)
{
    dsc_buf zeros;
    dsc_status status = DSC_OK;
    DSC_ASSERT(bytes > 0);
    DSC_ASSERT(bytes % DSC_AIO_ALIGN == 0);
    DSC_TRY(dsc_buf_open(s->alloc, DSC_TAG_IO, DSC_TIER_HOST, dsc_min_i64(bytes, STRIPE), &zeros, err));
    for (int64_t at = 0; at < bytes && status == DSC_OK; at += zeros.bytes) {
        dsc_aio_op op = { .file = file, .write = true, .buf = zeros.ptr, .offset = at,
                          .bytes = dsc_min_i64(zeros.bytes, bytes - at) };
        dsc_aio_submit(s->aio, &op);
        status = dsc_aio_wait(s->aio, &op, err);
        if (status == DSC_ERR_IO && (op.errno_value == ENOSPC || op.errno_value == EDQUOT || op.errno_value == EFBIG))
            status = no_room(folder, bytes, free_bytes, err);
    }
    dsc_buf_close(&zeros);
    return status;
}

static dsc_status take_space(dsc_swap *s, const dsc_io *io, dsc_aio_file *file, const char *folder, int64_t bytes,
                             dsc_error *err)
{
    int64_t free_bytes = 0;
    bool taken = false;
    dsc_file plain = { .fd = file->fd };
    DSC_ASSERT(bytes == s->bytes / s->folder_count);
    DSC_TRY(dsc_io_free_bytes(folder, &free_bytes, err));
    if (free_bytes < bytes + reserve_bytes)
        return no_room(folder, bytes, free_bytes, err);
    snprintf(plain.path, sizeof plain.path, "%s", file->path);
    const dsc_status status = dsc_io_reserve(io, &plain, bytes, &taken, err);
    if (status == DSC_ERR_NOFIT)
        return no_room(folder, bytes, free_bytes, err);
    DSC_TRY(status);
    if (taken)
        return DSC_OK;
    say(s, folder, "cannot reserve space: all of it was written once instead");
    return write_all(s, file, folder, bytes, free_bytes, err);
}

static dsc_status open_file(dsc_swap *s, const dsc_io *io, const char *folder, int64_t bytes, dsc_aio_file *out,
                            dsc_error *err)
{
    dsc_file file = DSC_FILE_INIT;
    DSC_ASSERT(out->fd < 0);
    if (dsc_io_kind(folder) != DSC_PATH_DIR)
        return DSC_FAIL(err, DSC_ERR_INPUT, folder, "is not a folder: nvme_path names a folder on a fast local disk");
    DSC_TRY(dsc_io_open_unnamed(io, folder, &file, &out->direct, err));
    out->fd = file.fd;
    snprintf(out->path, sizeof out->path, "swap in %.1000s", folder);
    if (!out->direct)
        say(s, folder, "has no O_DIRECT: the system holds swap in memory too");
    return take_space(s, io, out, folder, bytes, err);
}

/* ---- open and close ---- */

void dsc_swap_close(dsc_swap **pointer)
{
    dsc_swap *s = *pointer;
    if (s == NULL)
        return;
    *pointer = NULL;
    DSC_ASSERT(s->noted_bytes == 0 || s->noted_bytes == s->bytes);
    for (int32_t i = 0; i < s->folder_count; i++)
        dsc_aio_file_close(&s->files[i]);
    if (s->noted_bytes > 0)
        dsc_alloc_unnote(s->alloc, s->tag, DSC_TIER_NVME, s->noted_bytes);
    dsc_alloc_free(s->alloc, s->checks);
    dsc_alloc_free(s->alloc, s);
}

static dsc_status open_parts(dsc_swap *s, const dsc_swap_options *options, dsc_error *err)
{
    const int64_t round = s->stripe_bytes * s->folder_count;
    if (!dsc_add_i64(options->bytes, round, &s->bytes))
        return DSC_FAIL(err, DSC_ERR_NOFIT, "swap", "%lld bytes are too many", (long long)options->bytes);
    s->bytes = dsc_align_up(options->bytes, round);
    DSC_ASSERT(s->bytes >= options->bytes);
    DSC_ASSERT(s->bytes % s->folder_count == 0);
    DSC_TRY(dsc_alloc_zeroed(s->alloc, DSC_TAG_IO, s->bytes / DSC_AIO_ALIGN, sizeof *s->checks, &s->checks, err));
    for (int32_t i = 0; i < s->folder_count; i++)
        DSC_TRY(open_file(s, options->io, options->folders[i], s->bytes / s->folder_count, &s->files[i], err));
    for (int32_t i = 0; i < s->folder_count; i++)
        (void)dsc_aio_keep_file(s->aio, &s->files[i]); /* false: by its descriptor */
    DSC_TRY(dsc_alloc_note(s->alloc, s->tag, DSC_TIER_NVME, s->bytes, err));
    s->noted_bytes = s->bytes;
    return DSC_OK;
}

dsc_status dsc_swap_open(const dsc_swap_options *options, dsc_swap **out, dsc_error *err)
{
    dsc_swap *s = NULL;
    *out = NULL;
    if (options->folder_count < 1 || options->folder_count > DSC_SWAP_FOLDERS_MAX || options->bytes < 1 ||
        options->stripe_bytes < 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "nvme_path", "swap wants 1 to %d folders and at least a byte",
                        DSC_SWAP_FOLDERS_MAX);
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_IO, 1, sizeof *s, &s, err));
    s->alloc = options->alloc;
    s->aio = options->aio;
    s->tag = options->tag;
    s->folder_count = options->folder_count;
    s->stripe_bytes = dsc_align_up(options->stripe_bytes > 0 ? options->stripe_bytes : STRIPE, DSC_AIO_ALIGN);
    DSC_ASSERT(s->stripe_bytes > 0);
    for (int32_t i = 0; i < DSC_SWAP_FOLDERS_MAX; i++)
        s->files[i].fd = -1;
    const dsc_status status = open_parts(s, options, err);
    if (status != DSC_OK) {
        dsc_swap_close(&s);
        return status;
    }
    DSC_ASSERT(s->checks != NULL);
    *out = s;
    return DSC_OK;
}

const char *dsc_swap_warning(const dsc_swap *swap) { return swap->word; }

bool dsc_swap_is_direct(const dsc_swap *swap)
{
    DSC_ASSERT(swap->folder_count > 0);
    for (int32_t i = 0; i < swap->folder_count; i++)
        if (!swap->files[i].direct)
            return false;
    return true;
}

/* ---- transfers ---- */

static int64_t part_room(int64_t bytes, int64_t stripe_bytes)
{
    DSC_ASSERT(bytes >= 0);
    DSC_ASSERT(stripe_bytes > 0);
    return dsc_div_ceil(bytes, stripe_bytes) + 1;
}

int64_t dsc_swap_op_plan_bytes(int64_t bytes, int64_t stripe_bytes)
{
    return (int64_t)sizeof(dsc_swap_op) +
           part_room(bytes, stripe_bytes > 0 ? stripe_bytes : STRIPE) * (int64_t)sizeof(dsc_aio_op);
}

dsc_status dsc_swap_op_open(dsc_swap *swap, dsc_aio *aio, int64_t bytes, dsc_swap_op **out, dsc_error *err)
{
    dsc_swap_op *op = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_zeroed(swap->alloc, DSC_TAG_IO, 1, sizeof *op, &op, err));
    op->alloc = swap->alloc;
    op->swap = swap;
    op->aio = aio != NULL ? aio : swap->aio;
    op->part_room = part_room(bytes, swap->stripe_bytes);
    DSC_ASSERT(op->aio != NULL);
    const dsc_status status = dsc_alloc_zeroed(swap->alloc, DSC_TAG_IO, op->part_room, sizeof *op->parts, &op->parts,
                                               err);
    if (status != DSC_OK) {
        dsc_alloc_free(swap->alloc, op);
        return status;
    }
    *out = op;
    return DSC_OK;
}

void dsc_swap_op_soon(dsc_swap_op *op)
{
    DSC_ASSERT(op->part_count == 0); /* no transfer is under way */
    op->soon = true;
}

void dsc_swap_op_close(dsc_swap_op **op)
{
    if (*op == NULL)
        return;
    dsc_alloc *alloc = (*op)->alloc;
    dsc_alloc_free(alloc, (*op)->parts);
    dsc_alloc_free(alloc, *op);
    *op = NULL;
}

static uint32_t crc_of(int64_t block, uint32_t generation, const void *bytes)
{
    const uint64_t place[2] = { (uint64_t)block, generation };
    return dsc_crc32c(dsc_crc32c(0, place, sizeof place), bytes, DSC_AIO_ALIGN);
}

static void start(dsc_swap_op *op, bool write, void *buf, int64_t bytes, int64_t offset)
{
    dsc_swap *s = op->swap;
    DSC_ASSERT(op->part_count == 0); /* the last transfer was waited for */
    op->write = write;
    op->buf = buf;
    op->bytes = bytes;
    op->offset = offset;
    op->part_count = 0;
    op->bad_range = bytes < 0 || offset < 0 || bytes % DSC_AIO_ALIGN != 0 || offset % DSC_AIO_ALIGN != 0 ||
                    offset > s->bytes - bytes ||
                    dsc_div_ceil(offset % s->stripe_bytes + bytes, s->stripe_bytes) > op->part_room;
    if (op->bad_range)
        return;
    for (int64_t at = 0; at < bytes;) {
        const int64_t stripe = (offset + at) / s->stripe_bytes, inside = (offset + at) % s->stripe_bytes;
        const int64_t size = dsc_min_i64(s->stripe_bytes - inside, bytes - at);
        DSC_ASSERT(size > 0);
        DSC_ASSERT(op->part_count < op->part_room);
        dsc_aio_op *part = &op->parts[op->part_count++];
        *part = (dsc_aio_op){ .file = &s->files[stripe % s->folder_count], .write = write, .soon = op->soon,
                              .buf = (char *)buf + at, .bytes = size,
                              .offset = stripe / s->folder_count * s->stripe_bytes + inside };
        dsc_aio_submit(op->aio, part);
        at += size;
    }
}

void dsc_swap_seal(dsc_swap *swap, const void *buf, int64_t bytes, int64_t offset)
{
    DSC_ASSERT(offset >= 0);
    DSC_ASSERT(offset % DSC_AIO_ALIGN == 0);
    DSC_ASSERT(offset + bytes <= swap->bytes);
    for (int64_t at = 0; at < bytes; at += DSC_AIO_ALIGN) {
        const int64_t block = (offset + at) / DSC_AIO_ALIGN;
        check *c = &swap->checks[block];
        c->generation = c->generation == UINT32_MAX ? 1 : c->generation + 1;
        c->crc = crc_of(block, c->generation, (const char *)buf + at);
    }
}

void dsc_swap_write_sealed(dsc_swap_op *op, const void *buf, int64_t bytes, int64_t offset)
{
    start(op, true, (void *)(uintptr_t)buf, bytes, offset); /* only read from */
}

void dsc_swap_write(dsc_swap_op *op, const void *buf, int64_t bytes, int64_t offset)
{
    dsc_swap_write_sealed(op, buf, bytes, offset);
    if (!op->bad_range)
        dsc_swap_seal(op->swap, buf, bytes, offset);
}

void dsc_swap_read(dsc_swap_op *op, void *buf, int64_t bytes, int64_t offset) { start(op, false, buf, bytes, offset); }

static dsc_status verify(const dsc_swap_op *op, int64_t at, int64_t end, dsc_error *err)
{
    const dsc_swap *s = op->swap;
    DSC_ASSERT(at % DSC_AIO_ALIGN == 0);
    DSC_ASSERT(end <= op->bytes);
    for (; at < end; at += DSC_AIO_ALIGN) {
        const int64_t block = (op->offset + at) / DSC_AIO_ALIGN;
        const check *c = &s->checks[block];
        if (c->generation == 0) {
            memset((char *)op->buf + at, 0, DSC_AIO_ALIGN);
        } else if (crc_of(block, c->generation, (const char *)op->buf + at) != c->crc) {
            const dsc_aio_file *file = &s->files[(op->offset + at) / s->stripe_bytes % s->folder_count];
            return DSC_FAIL(
                err, DSC_ERR_IO, file->path,
                "the bytes read at %lld are not those written there: the disk, its driver or the memory is faulty",
                (long long)(op->offset + at));
        }
    }
    return DSC_OK;
}

bool dsc_swap_test(dsc_swap_op *op)
{
    DSC_ASSERT(op->part_count <= op->part_room);
    for (int64_t i = 0; i < op->part_count; i++)
        if (!dsc_aio_test(op->aio, &op->parts[i]))
            return false;
    return true;
}

static dsc_status wait_for(dsc_swap_op *op, bool checked, dsc_error *err)
{
    if (op->bad_range)
        return DSC_FAIL(err, DSC_ERR_INTERNAL, "swap", "%lld bytes at %lld are not whole blocks inside the space",
                        (long long)op->bytes, (long long)op->offset);
    /* A part is checked while those behind it are still on their way. */
    dsc_status status = DSC_OK;
    int64_t at = 0;
    for (int64_t i = 0; i < op->part_count; i++) {
        const int64_t end = at + op->parts[i].bytes;
        const dsc_status one = dsc_aio_wait(op->aio, &op->parts[i], status == DSC_OK ? err : NULL);
        status = status == DSC_OK ? one : status;
        if (status == DSC_OK && !op->write && checked)
            status = verify(op, at, end, err);
        at = end;
    }
    DSC_ASSERT(op->part_count == 0 || at == op->bytes); /* the parts are the whole transfer */
    op->part_count = 0;
    return status;
}

dsc_status dsc_swap_wait(dsc_swap_op *op, dsc_error *err) { return wait_for(op, true, err); }

dsc_status dsc_swap_arrive(dsc_swap_op *op, dsc_error *err) { return wait_for(op, false, err); }

dsc_status dsc_swap_check(const dsc_swap_op *op, int64_t at, int64_t bytes, dsc_error *err)
{
    DSC_ASSERT(!op->write);
    DSC_ASSERT(at >= 0);
    return verify(op, at, at + bytes, err);
}
