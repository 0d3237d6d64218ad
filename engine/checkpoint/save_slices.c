/* save_slices.c - from a rank's slices to its byte ranges: blocks are copied, hashed as they were copied, and
 * written in ranges as long as they lie together. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/checkpoint/save.h"

/* Portions of the context's buffer: one is filled while the others are written. They are many and small, so that the
 * disk has nearly all of the buffer to write at any time. With three of 8 MiB it has only the second while the third
 * is filled. */
#define PORTIONS_LEAST 3
#define PORTIONS_MOST 12
#define PORTION_BYTES (2 * DSC_CKPT_BLOCK_BYTES + 2 * DSC_AIO_ALIGN)

static dsc_plane plane_of(const dsc_ckpt_entry *entry, bool trainable)
{
    DSC_ASSERT(!dsc_ckpt_is_shared(entry->plane)); /* those have no slices */
    switch (entry->plane) {
    case DSC_CKPT_MASTER:
        return DSC_PLANE_MASTER;
    case DSC_CKPT_MOMENT1:
        return DSC_PLANE_MOMENT1;
    case DSC_CKPT_MOMENT2:
        return DSC_PLANE_MOMENT2;
    case DSC_CKPT_MOMENT3:
        return DSC_PLANE_MOMENT3;
    case DSC_CKPT_WEIGHTS:
    case DSC_CKPT_ROWS:
    case DSC_CKPT_COLS:
    case DSC_CKPT_TENSOR:
    case DSC_CKPT_ABSMAX1:
    case DSC_CKPT_ABSMAX2:
    case DSC_CKPT_AVERAGE:
    case DSC_CKPT_OUTER:
    case DSC_CKPT_PLANE_COUNT:
        break;
    }
    DSC_ASSERT(!dsc_ckpt_is_absmax(entry->plane) && !dsc_ckpt_is_beside(entry->plane)); /* they have no view */
    return entry->dtype == DSC_F32 && trainable ? DSC_PLANE_MASTER : DSC_PLANE_PARAM;
}

/* ---- places ---- */

/* Place of the next block. */
typedef struct cursor {
    int32_t file; /* file of the block before; -1: none */
    int64_t end;  /* end of the block before, in its file */
    int64_t used; /* of the buffer */
} cursor;

static const dsc_ckpt_entry *entry_of(const dsc_ckpt_save_state *s, const dsc_ckpt_block *block)
{
    DSC_ASSERT(block->entry >= 0);
    DSC_ASSERT(block->entry < s->entries.count);
    return &s->entries.entry[block->entry];
}

static int64_t bytes_of(const dsc_ckpt_save_state *s, const dsc_ckpt_block *block)
{
    DSC_ASSERT(block->count > 0);
    return block->count * (int64_t)dsc_dtype_bytes(entry_of(s, block)->dtype);
}

static int64_t file_offset(const dsc_ckpt_save_state *s, const dsc_ckpt_block *block)
{
    const dsc_ckpt_entry *entry = entry_of(s, block);
    DSC_ASSERT(block->first + block->count <= entry->count);
    return s->plan[entry->file].offset[entry->index_in_file] + block->first * (int64_t)dsc_dtype_bytes(entry->dtype);
}

static cursor start_of(const dsc_ckpt_save_state *s, const dsc_ckpt_portion *p)
{
    DSC_ASSERT(p->carried >= 0);
    DSC_ASSERT(p->carried < DSC_AIO_ALIGN);
    cursor c = { .file = -1 };
    if (p->carried > 0) {
        c.file = (int32_t)entry_of(s, &s->block[p->first])->file;
        c.end = file_offset(s, &s->block[p->first]);
        c.used = (c.end - p->carried) % DSC_AIO_ALIGN + p->carried;
    }
    return c;
}

static bool follows(const dsc_ckpt_save_state *s, const cursor *c, const dsc_ckpt_block *block)
{
    return c->file == (int32_t)entry_of(s, block)->file && c->end == file_offset(s, block);
}

/* The block's place in the buffer. */
static int64_t place(const dsc_ckpt_save_state *s, cursor *c, const dsc_ckpt_block *block)
{
    DSC_ASSERT(c->used >= 0);
    const int64_t first = file_offset(s, block);
    if (!follows(s, c, block))
        c->used = dsc_align_up(c->used, DSC_AIO_ALIGN) + first % DSC_AIO_ALIGN;
    const int64_t at = c->used;
    DSC_ASSERT(at % DSC_AIO_ALIGN == first % DSC_AIO_ALIGN);
    c->file = (int32_t)entry_of(s, block)->file;
    c->end = first + bytes_of(s, block);
    c->used = at + bytes_of(s, block);
    return at;
}

int64_t dsc_ckpt_block_count(const dsc_ckpt_save_state *s)
{
    const int32_t rank = dsc_comm_rank(s->c->comm);
    DSC_ASSERT(s->first_block[rank] <= s->first_block[rank + 1]);
    return s->first_block[rank + 1] - s->first_block[rank];
}

void dsc_ckpt_portion_plan(const dsc_ckpt_save_state *s, dsc_ckpt_portion *p)
{
    const int64_t end = dsc_ckpt_block_count(s);
    DSC_ASSERT(p->first >= 0);
    DSC_ASSERT(p->first <= end);
    cursor c = start_of(s, p);
    p->count = p->carries = 0;
    for (int64_t b = p->first; b < end; b++, p->count++) {
        (void)place(s, &c, &s->block[b]);
        if (c.used > p->bytes)
            return;
    }
}

/* ---- memory to buffer ---- */

static dsc_status copy_piece(const dsc_ckpt_save_state *s, char *to, const void *from, int64_t bytes, dsc_error *err)
{
    DSC_ASSERT(bytes > 0);
    if (!dsc_device_host_visible(s->c->device))
        return dsc_copy(s->c->stream, to, from, bytes, err);
    memcpy(to, from, (size_t)bytes);
    return DSC_OK;
}

static dsc_status copy_block(dsc_ckpt_save_state *s, const dsc_ckpt_block *block, char *to, dsc_error *err)
{
    const dsc_ckpt_entry *entry = entry_of(s, block);
    const dsc_layout_tensor *tensor = &s->c->layout->tensor[entry->tensor];
    const int64_t each = (int64_t)dsc_dtype_bytes(entry->dtype);
    const int32_t group = dsc_ckpt_zero_group(s->c, tensor->group);
    dsc_zero_slice slice;
    DSC_ASSERT(group >= 0); /* a rank stores tensors of its own stage */
    if (dsc_ckpt_is_shared(entry->plane)) {
        const float *shared = dsc_ckpt_shared(s->c->zero, entry->plane, dsc_ckpt_zero_tensor(s->c, entry->tensor));
        memcpy(to, shared + block->first, (size_t)(block->count * each));
        return DSC_OK;
    }
    dsc_ckpt_slice_get(s->c, group, &slice);
    const int64_t at = tensor->offset + block->first * dsc_ckpt_elements_each(entry->plane) - slice.first;
    DSC_ASSERT(at >= 0);
    if (dsc_ckpt_is_absmax(entry->plane)) {
        const float *absmax = dsc_zero_absmax(s->c->zero, group, entry->plane - DSC_CKPT_ABSMAX1, at);
        return copy_piece(s, to, absmax, block->count * each, err);
    }
    if (dsc_ckpt_is_beside(entry->plane))
        return copy_piece(s, to, dsc_ckpt_beside(s->c->zero, entry->plane, group, at), block->count * each, err);
    for (int64_t done = 0, now; done < block->count; done += now) {
        void *from;
        now = block->count - done;
        DSC_TRY(
            dsc_ckpt_states_view(s->c, group, plane_of(entry, slice.trainable), at + done, &now, false, &from, err));
        DSC_ASSERT(now > 0);
        DSC_ASSERT(done + now <= block->count);
        DSC_TRY(copy_piece(s, to + done * each, from, now * each, err));
    }
    return DSC_OK;
}

static void hash_block(const dsc_ckpt_save_state *s, dsc_ckpt_block *block, const char *data)
{
    block->hash = dsc_ckpt_block_hash(entry_of(s, block)->name, block, s->state->step, data, bytes_of(s, block));
}

/* Whether another thread may copy it while states do not change. */
static bool block_stays(const dsc_ckpt_save_state *s, const dsc_ckpt_block *block, const dsc_layout_tensor *tensor)
{
    const dsc_ckpt_entry *entry = entry_of(s, block);
    DSC_ASSERT(tensor == &s->c->layout->tensor[entry->tensor]);
    if (dsc_ckpt_is_shared(entry->plane) || dsc_ckpt_is_absmax(entry->plane) || dsc_ckpt_is_beside(entry->plane))
        return dsc_device_host_visible(s->c->device);
    return dsc_ckpt_states_stay(s->c, dsc_ckpt_zero_group(s->c, tensor->group),
                                plane_of(entry, tensor->spec->trainable));
}

dsc_status dsc_ckpt_portion_fetch(dsc_ckpt_save_state *s, const dsc_ckpt_portion *p, bool stays, dsc_error *err)
{
    DSC_ASSERT(p->buffer != NULL);
    DSC_ASSERT(p->first + p->count <= dsc_ckpt_block_count(s));
    const bool visible = dsc_device_host_visible(s->c->device);
    cursor c = start_of(s, p);
    for (int64_t b = p->first; b < p->first + p->count; b++) {
        dsc_ckpt_block *block = &s->block[b];
        const dsc_layout_tensor *tensor = &s->c->layout->tensor[entry_of(s, block)->tensor];
        char *to = p->buffer + place(s, &c, block);
        if (block_stays(s, block, tensor) != stays)
            continue;
        DSC_TRY(copy_block(s, block, to, err));
        if (visible) /* now, while it is in the processor's cache */
            hash_block(s, block, to);
    }
    return DSC_OK;
}

void dsc_ckpt_portion_hash(dsc_ckpt_save_state *s, const dsc_ckpt_portion *p)
{
    DSC_ASSERT(p->buffer != NULL);
    DSC_ASSERT(p->first + p->count <= dsc_ckpt_block_count(s));
    cursor c = start_of(s, p);
    for (int64_t b = p->first; b < p->first + p->count && !dsc_device_host_visible(s->c->device); b++)
        hash_block(s, &s->block[b], p->buffer + place(s, &c, &s->block[b]));
}

/* ---- buffer to files ---- */

dsc_status dsc_ckpt_portion_write(dsc_ckpt_save_state *s, dsc_ckpt_portion *p, const atomic_bool *stop, dsc_error *err)
{
    DSC_ASSERT(p->buffer != NULL);
    DSC_ASSERT(p->carries >= 0);
    DSC_ASSERT(p->carries < DSC_AIO_ALIGN);
    cursor c = start_of(s, p);
    int64_t run_end = c.end, run_bytes = p->carried; /* contiguous bytes before the block */
    for (int64_t b = p->first; b <= p->first + p->count; b++) {
        const bool last = b == p->first + p->count;
        if (stop != NULL && atomic_load(stop))
            return DSC_FAIL(err, DSC_ERR_STATE, s->commit.tmp_dir, "the engine was closed before this was written");
        if ((last || !follows(s, &c, &s->block[b])) && run_bytes > 0) {
            const int64_t bytes = run_bytes - (last ? p->carries : 0);
            if (bytes > 0)
                DSC_TRY(dsc_ckpt_writer_write(&s->writer, c.file, p->buffer + c.used - run_bytes, run_end - run_bytes,
                                              bytes, err));
            run_bytes = 0;
        }
        if (last)
            break;
        (void)place(s, &c, &s->block[b]);
        run_end = c.end;
        run_bytes += bytes_of(s, &s->block[b]);
    }
    DSC_ASSERT(run_bytes == 0);
    p->writes = s->writer.staging.begun;
    return DSC_OK;
}

/* Bytes that the next portion writes together with its first block. */
static void carry(const dsc_ckpt_save_state *s, dsc_ckpt_portion *p, dsc_ckpt_portion *next)
{
    DSC_ASSERT(next != p);
    DSC_ASSERT(next->first == p->first + p->count);
    cursor c = start_of(s, p);
    int64_t run_bytes = p->carried;
    for (int64_t b = p->first; b < p->first + p->count; b++) {
        run_bytes = follows(s, &c, &s->block[b]) ? run_bytes : 0;
        (void)place(s, &c, &s->block[b]);
        run_bytes += bytes_of(s, &s->block[b]);
    }
    next->carried = 0;
    if (next->first == dsc_ckpt_block_count(s) || !follows(s, &c, &s->block[next->first]))
        return;
    p->carries = next->carried = dsc_min_i64(run_bytes, c.end % DSC_AIO_ALIGN);
    memcpy(next->buffer + (c.end - p->carries) % DSC_AIO_ALIGN, p->buffer + c.used - p->carries, (size_t)p->carries);
}

static dsc_status fill(dsc_ckpt_save_state *s, const dsc_ckpt_portion *p, dsc_error *err)
{
    DSC_TRY(dsc_ckpt_portion_fetch(s, p, true, err));
    DSC_TRY(dsc_ckpt_portion_fetch(s, p, false, err));
    DSC_TRY(dsc_stream_sync(s->c->stream, err));
    dsc_ckpt_portion_hash(s, p);
    return DSC_OK;
}

dsc_status dsc_ckpt_save_slices(dsc_ckpt_save_state *s, dsc_error *err)
{
    dsc_ckpt_portion portion[PORTIONS_MOST] = { 0 };
    const int64_t end = dsc_ckpt_block_count(s), all = s->c->buffer.bytes - DSC_AIO_ALIGN;
    const int64_t portions = dsc_max_i64(PORTIONS_LEAST, dsc_min_i64(PORTIONS_MOST, all / PORTION_BYTES));
    char *const buffer = (char *)dsc_align_up((int64_t)(intptr_t)s->c->buffer.ptr, DSC_AIO_ALIGN);
    const int64_t bytes = all / portions / DSC_AIO_ALIGN * DSC_AIO_ALIGN;
    DSC_ASSERT(bytes >= DSC_CKPT_BLOCK_BYTES + 2 * DSC_AIO_ALIGN);
    DSC_TRY(dsc_ckpt_writer_files(&s->writer, s->commit.tmp_dir, err));
    for (int64_t i = 0; i < portions; i++)
        portion[i] = (dsc_ckpt_portion) { .buffer = buffer + i * bytes, .bytes = bytes };
    for (int64_t i = 0, first = 0; first < end; i++) {
        dsc_ckpt_portion *p = &portion[i % portions], *next = &portion[(i + 1) % portions];
        p->first = first;
        dsc_ckpt_portion_plan(s, p);
        DSC_ASSERT(p->count > 0); /* a portion holds a block at least */
        DSC_TRY(fill(s, p, err));
        first = next->first = p->first + p->count;
        DSC_TRY(dsc_ckpt_writer_wait(&s->writer, next->writes, err));
        carry(s, p, next);
        DSC_TRY(dsc_ckpt_portion_write(s, p, NULL, err));
    }
    return dsc_ckpt_writer_sync(&s->writer, err);
}
