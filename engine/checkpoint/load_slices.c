/* load_slices.c - see load_slices.h.
 *
 * Blocks are asked for well before their turn. Where the host reaches the states where they lie, a few threads share
 * the blocks, in runs, each with memory and files of its own. In a process that has just been started most of the time
 * goes into memory that is written for the first time. SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/checkpoint/load_slices.h"
#include "engine/checkpoint/read_ahead.h"
#include "kernels/scalar.h"

#define LANES_MOST 4
#define LANE_SLOTS 5        /* memory of a lane, at least */
#define LANE_RUN 8          /* blocks behind one another that one lane reads */
#define STAGED_BYTES (2 * DSC_CKPT_BLOCK_BYTES) /* a block in bf16 is twice as long in fp32 */

/* ---- what is wanted ---- */

/* Destination of the elements of a tensor's part in this rank's slice. */
typedef struct target {
    int32_t group;
    dsc_plane plane;
    dsc_dtype dtype;
    int64_t at;     /* element of the slice */
    float *memory;  /* instead of the plane: the absmax of a moment's blocks, or averages; NULL: it is another plane */
    float *shared;  /* instead of all that, where a block's elements go on every rank; NULL: nowhere */
} target;

/* This rank's part of a stored tensor. */
typedef struct span {
    const dsc_ckpt_manifest_tensor *tensor;
    int64_t first, count;
    target to;
    bool only_verified; /* nothing goes anywhere */
} span;

/* A frozen tensor has only parameters, in the compute dtype. A trainable one is its master weights: those of a bf16
 * run, the weights themselves of an fp32 run. */
static bool find_target(const dsc_ckpt_slices_load *t, const dsc_layout_tensor *tensor, bool trainable,
                        dsc_ckpt_plane plane, span *s)
{
    DSC_ASSERT(plane < DSC_CKPT_PLANE_COUNT);
    if (t->c->layout->group[tensor->group].packed != DSC_NF4_NONE)
        return false;
    s->to = (target) { .group = dsc_ckpt_zero_group(t->c, tensor->group), .plane = DSC_PLANE_MASTER, .dtype = DSC_F32 };
    if (plane == DSC_CKPT_WEIGHTS && !trainable) {
        s->to.plane = DSC_PLANE_PARAM;
        s->to.dtype = t->dtype;
    } else if (plane == DSC_CKPT_WEIGHTS) {
        s->only_verified = dsc_ckpt_reader_find(t->reader, DSC_CKPT_MASTER, tensor->spec->name, NULL) != NULL;
    } else if (dsc_ckpt_is_shared(plane)) {
        if (!dsc_ckpt_saved_planes(&(dsc_run_state) { .recipe = t->recipe }, plane, t->c->layout, tensor))
            return false;
        s->to.shared =
            dsc_ckpt_shared(t->c->zero, plane, dsc_ckpt_zero_tensor(t->c, (int32_t)(tensor - t->c->layout->tensor)));
    } else if (dsc_ckpt_is_beside(plane)) {
        return trainable && dsc_ckpt_is_saved(&t->reader->manifest.state, plane, true) &&
               dsc_ckpt_beside(t->c->zero, plane, dsc_ckpt_zero_group(t->c, tensor->group), 0) != NULL;
    } else if (plane != DSC_CKPT_MASTER && !dsc_ckpt_is_absmax(plane)) {
        s->to.plane = (dsc_plane)(DSC_PLANE_MOMENT1 + (plane - DSC_CKPT_MOMENT1));
        s->to.dtype = dsc_ckpt_states_dtype(t->c, DSC_PLANE_MOMENT1);
        const dsc_recipe recipe = dsc_layout_recipe(t->c->layout, tensor->group, t->recipe);
        if ((int)plane - DSC_CKPT_MOMENT1 >= dsc_recipes[recipe].state_count)
            return false;
    }
    DSC_ASSERT((s->to.shared != NULL) == dsc_ckpt_is_shared(plane));
    return trainable || plane == DSC_CKPT_WEIGHTS;
}

static bool find_span(const dsc_ckpt_slices_load *t, int32_t index, dsc_ckpt_plane plane, span *out)
{
    const dsc_layout_tensor *tensor = &t->c->layout->tensor[index];
    DSC_ASSERT(index < t->c->layout->tensor_count);
    const int32_t group = dsc_ckpt_zero_group(t->c, tensor->group);
    dsc_zero_slice slice;
    *out = (span){ .tensor = NULL };
    if (group < 0)
        return false;
    dsc_ckpt_slice_get(t->c, group, &slice);
    out->count = dsc_layout_span(tensor, slice.first, slice.count, &out->first);
    if (dsc_ckpt_is_shared(plane)) { /* every rank's */
        out->first = 0;
        out->count = dsc_ckpt_count(plane, tensor);
    }
    if (dsc_ckpt_is_absmax(plane) && !dsc_ckpt_is_saved(&t->reader->manifest.state, plane, slice.trainable))
        return false;
    if (out->count == 0 || !find_target(t, tensor, slice.trainable, plane, out))
        return false;
    out->to.at = tensor->offset + out->first - slice.first;
    DSC_ASSERT(dsc_ckpt_is_shared(plane) || out->to.at >= 0);
    if (dsc_ckpt_is_absmax(plane)) {
        DSC_ASSERT(out->first % DSC_Q8_BLOCK == 0);
        out->to.memory = dsc_zero_absmax(t->c->zero, group, plane - DSC_CKPT_ABSMAX1, out->to.at);
        out->first /= DSC_Q8_BLOCK;
        out->count = dsc_div_ceil(out->count, DSC_Q8_BLOCK);
    }
    if (dsc_ckpt_is_beside(plane))
        out->to.memory = dsc_ckpt_beside(t->c->zero, plane, group, out->to.at);
    /* The load has asked for everything that must be there. */
    return dsc_ckpt_reader_find(t->reader, plane, tensor->spec->name, &out->tensor) != NULL;
}

/* ---- one after the other ---- */

typedef struct walker {
    int32_t tensor; /* of the layout */
    int plane;
    bool inside; /* of `span` */
    span span;
    int64_t at;     /* next one of its tensor's blocks */
    int64_t number; /* wanted blocks so far, those of all lanes */
} walker;

/* The next block of this lane, which meets w->span. NULL: there is none. */
static const dsc_ckpt_block *walk(const dsc_ckpt_slices_load *t, walker *w, int32_t lane, int32_t lanes)
{
    DSC_ASSERT(lane >= 0);
    DSC_ASSERT(lane < lanes);
    for (; w->tensor < t->c->layout->tensor_count; w->tensor++, w->plane = 0)
        for (; w->plane < DSC_CKPT_PLANE_COUNT; w->plane++, w->inside = false) {
            if (!w->inside && !find_span(t, w->tensor, (dsc_ckpt_plane)w->plane, &w->span))
                continue;
            w->at = w->inside ? w->at : 0;
            w->inside = true;
            const dsc_ckpt_block *blocks = t->reader->manifest.block + w->span.tensor->first_block;
            while (w->at < w->span.tensor->block_count) {
                const dsc_ckpt_block *block = &blocks[w->at++];
                if (block->first + block->count > w->span.first && block->first < w->span.first + w->span.count &&
                    dsc_ckpt_reader_has(t->reader, block) && w->number++ / LANE_RUN % lanes == lane)
                    return block;
            }
        }
    return NULL;
}

/* ---- copying ---- */

/* fp32 to 16 bits, and between these, rounds to nearest even; everything else is exact. */
static void convert(void *to, dsc_dtype to_dtype, const void *from, dsc_dtype from_dtype, int64_t count)
{
    DSC_ASSERT(count > 0);
    if (to_dtype == from_dtype)
        memcpy(to, from, (size_t)count * dsc_dtype_bytes(to_dtype));
    else
        for (int64_t i = 0; i < count; i++)
            dsc_put(to, i, to_dtype, dsc_get(from, i, from_dtype));
}

/* Writes `count` elements of a block, which lie at `from`, from the target's element `first` on: straight, or by way of
 * the buffer's end. */
static dsc_status put(const dsc_ckpt_slices_load *t, const target *to, int64_t first, const char *from,
                      dsc_dtype from_dtype, int64_t count, dsc_error *err)
{
    DSC_ASSERT(first >= 0);
    const dsc_ckpt_ctx *c = t->c;
    const bool visible = dsc_device_host_visible(c->device);
    const int64_t from_each = (int64_t)dsc_dtype_bytes(from_dtype), to_each = (int64_t)dsc_dtype_bytes(to->dtype);
    char *staged = (char *)c->buffer.ptr + c->buffer.bytes - STAGED_BYTES;
    DSC_ASSERT(count * to_each <= STAGED_BYTES);
    if (to->memory != NULL && visible) {
        memcpy(to->memory + first, from, (size_t)(count * to_each));
        return DSC_OK;
    }
    if (!visible) {
        DSC_TRY(dsc_stream_sync(c->stream, err)); /* end of the copy before */
        convert(staged, to->dtype, from, from_dtype, count);
    }
    if (to->memory != NULL)
        return dsc_copy(c->stream, to->memory + first, staged, count * to_each, err);
    for (int64_t done = 0, now; done < count; done += now) {
        void *ptr;
        now = count - done;
        DSC_TRY(dsc_ckpt_states_view(c, to->group, to->plane, to->at + first + done, &now, true, &ptr, err));
        DSC_ASSERT(now > 0);
        DSC_ASSERT(done + now <= count);
        if (visible)
            convert(ptr, to->dtype, from + done * from_each, from_dtype, now);
        else
            DSC_TRY(dsc_copy(c->stream, ptr, staged + done * to_each, now * to_each, err));
    }
    return DSC_OK;
}

/* Values that this run's dtype does not hold are refused while nothing has changed. A master becomes a weight. */
static dsc_status check_range(const dsc_ckpt_slices_load *t, const span *s, const dsc_ckpt_block *block,
                              const char *data, dsc_error *err)
{
    if (s->tensor->dtype == DSC_U8 || s->to.memory != NULL)
        return DSC_OK; /* codes; and an absmax or an average is fp32 on either side */
    const dsc_dtype to = s->to.shared != NULL                ? DSC_F32
                         : s->to.plane == DSC_PLANE_MASTER ? t->dtype : s->to.dtype;
    const int64_t i = dsc_first_overflow(data, s->tensor->dtype, to, block->count);
    DSC_ASSERT(i < block->count);
    if (i < 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, t->step_dir, "tensor \"%.200s\" has the value %g at element %lld, which is "
                    "infinite in %s (at most %g); go on in %s", s->tensor->name,
                    (double)dsc_get(data, i, s->tensor->dtype), (long long)(block->first + i), dsc_dtype_text(to),
                    dsc_dtype_largest(to), to == DSC_F16 ? "bf16 (bf16.enabled) or fp32" : "fp32");
}

/* The elements behind a tensor up to the end of its last block of codes are 0 with the absmax that is loaded too. */
static dsc_status put_padding(const dsc_ckpt_slices_load *t, const span *s, int64_t end, dsc_error *err)
{
    char zeros[DSC_Q8_BLOCK];
    const int64_t count = dsc_align_up(end, DSC_Q8_BLOCK) - end;
    DSC_ASSERT(s->to.plane >= DSC_PLANE_MOMENT1 && s->to.dtype == DSC_U8);
    DSC_ASSERT(count < DSC_Q8_BLOCK);
    memset(zeros, DSC_Q8_ZERO(s->to.plane - DSC_PLANE_MOMENT1), sizeof zeros);
    return count > 0 ? put(t, &s->to, end - s->first, zeros, DSC_U8, count, err) : DSC_OK;
}

static dsc_status put_block(const dsc_ckpt_slices_load *t, const span *s, const dsc_ckpt_block *block, const char *data,
                            dsc_error *err)
{
    const int64_t low = dsc_max_i64(s->first, block->first);
    const int64_t high = dsc_min_i64(s->first + s->count, block->first + block->count);
    DSC_ASSERT(low < high); /* the block meets this rank's part */
    if (s->to.shared != NULL) {
        memcpy(s->to.shared + low, data, (size_t)(high - low) * sizeof *s->to.shared);
        return DSC_OK;
    }
    DSC_TRY(put(t, &s->to, low - s->first, data + (low - block->first) * (int64_t)dsc_dtype_bytes(s->tensor->dtype),
                s->tensor->dtype, high - low, err));
    const bool ends = s->tensor->dtype == DSC_U8 && high == s->tensor->elements;
    return ends ? put_padding(t, s, high, err) : DSC_OK;
}

/* ---- lanes ---- */

typedef struct lane {
    const dsc_ckpt_slices_load *t;
    int32_t index, count; /* this one, of so many */
    bool copy;
    char *memory;
    int64_t bytes;
    atomic_bool *stop; /* one has failed: the others need not go on */
    pthread_t thread;
    bool started;
    dsc_status status;
    dsc_error error;
} lane;

static dsc_status read_blocks(lane *l, dsc_ckpt_read_ahead *ahead, dsc_error *err)
{
    walker asked = { 0 }, taken = { 0 };
    DSC_ASSERT(l->index < l->count);
    const dsc_ckpt_block *next = walk(l->t, &asked, l->index, l->count), *block;
    while ((block = walk(l->t, &taken, l->index, l->count)) != NULL && !atomic_load(l->stop)) {
        const char *data;
        for (; next != NULL && dsc_ckpt_read_ahead_has_room(ahead); next = walk(l->t, &asked, l->index, l->count))
            DSC_TRY(dsc_ckpt_read_ahead_request(ahead, next, err));
        DSC_TRY(dsc_ckpt_read_ahead_consume(ahead, &data, err));
        if (taken.span.only_verified)
            continue;
        DSC_TRY(check_range(l->t, &taken.span, block, data, err));
        if (l->copy)
            DSC_TRY(put_block(l->t, &taken.span, block, data, err));
    }
    return DSC_OK;
}

static void *run_lane(void *argument)
{
    lane *l = argument;
    DSC_ASSERT(l->bytes >= DSC_CKPT_SLOT_BYTES + DSC_AIO_ALIGN);
    dsc_ckpt_read_ahead ahead;
    dsc_ckpt_read_ahead_open(&ahead, l->t->reader, l->t->c, l->t->step_dir, l->memory, l->bytes);
    l->status = read_blocks(l, &ahead, &l->error);
    if (l->status != DSC_OK)
        atomic_store(l->stop, true);
    dsc_ckpt_read_ahead_close(&ahead);
    return NULL;
}

/* Several write only where all views are plain memory. */
static int32_t lanes_of(const dsc_ckpt_slices_load *t, int64_t bytes)
{
    const dsc_ckpt_ctx *c = t->c;
    for (int32_t of = 0; of < c->layout->group_count; of++) {
        const int32_t g = dsc_ckpt_zero_group(c, of);
        for (int plane = DSC_PLANE_MASTER; g >= 0 && plane <= DSC_PLANE_MOMENT3; plane++)
            if (c->layout->group[of].trainable && !dsc_ckpt_states_stay(c, g, (dsc_plane)plane))
                return 1;
        if (g >= 0 && !dsc_ckpt_states_stay(c, g, DSC_PLANE_PARAM))
            return 1;
    }
    const int64_t most = dsc_min_i64(dsc_min_i64(LANES_MOST, c->threads), bytes / (LANE_SLOTS * DSC_CKPT_SLOT_BYTES));
    DSC_ASSERT(most <= LANES_MOST);
    return (int32_t)dsc_max_i64(1, most);
}

dsc_status dsc_ckpt_load_slices(const dsc_ckpt_slices_load *t, bool copy, dsc_error *err)
{
    const dsc_ckpt_ctx *c = t->c;
    const int64_t bytes = c->buffer.bytes - (dsc_device_host_visible(c->device) ? 0 : STAGED_BYTES);
    const int32_t lanes = lanes_of(t, bytes);
    DSC_ASSERT(bytes > 0);
    DSC_ASSERT(lanes >= 1);
    DSC_ASSERT(lanes <= LANES_MOST);
    lane l[LANES_MOST];
    atomic_bool stop = false;
    for (int32_t i = 0; i < lanes; i++) {
        l[i] = (lane){ .t = t, .index = i, .count = lanes, .copy = copy, .bytes = bytes / lanes, .stop = &stop,
                       .memory = (char *)c->buffer.ptr + i * (bytes / lanes), .error = DSC_ERROR_INIT };
        l[i].started = i > 0 && pthread_create(&l[i].thread, NULL, run_lane, &l[i]) == 0;
    }
    dsc_status status = DSC_OK;
    for (int32_t i = 0; i < lanes; i++) {
        if (!l[i].started)
            run_lane(&l[i]);
        else
            pthread_join(l[i].thread, NULL);
        if (l[i].status != DSC_OK && status == DSC_OK) {
            status = l[i].status;
            if (err != NULL)
                *err = l[i].error;
        }
    }
    DSC_TRY(status);
    return dsc_stream_sync(c->stream, err);
}

/* ---- blocks that other hosts have ---- */

/* No rank waits longer for the others than for so many. */
#define SENT_AT_ONCE 1024

typedef struct post {
    const dsc_ckpt_slices_load *t;
    bool copy;
    char *buffer;            /* a block and a byte: whether it is one */
    const dsc_ckpt_block *inside; /* the buffer, of who sends */
    int64_t count;           /* blocks sent so far, by all */
    dsc_status status;       /* status of this rank's own blocks: the exchange goes on */
    dsc_error error;
} post;

static dsc_status send_block(post *p, const dsc_ckpt_block *block, int64_t bytes, int32_t to, dsc_error *err)
{
    DSC_ASSERT(bytes <= DSC_CKPT_BLOCK_BYTES);
    DSC_ASSERT(to != dsc_comm_rank(p->t->c->comm));
    if (p->status == DSC_OK && p->inside != block) {
        p->status = dsc_ckpt_reader_block(p->t->reader, block, p->buffer, &p->error);
        p->inside = block;
    }
    p->buffer[bytes] = p->status == DSC_OK;
    return dsc_comm_send(p->t->c->comm, DSC_CHANNEL_CONTROL, p->buffer, bytes + 1, to, NULL, err);
}

static dsc_status receive_block(post *p, const span *own, const dsc_ckpt_block *block, int64_t bytes, int32_t from,
                                dsc_error *err)
{
    DSC_ASSERT(bytes <= DSC_CKPT_BLOCK_BYTES);
    DSC_ASSERT(from != dsc_comm_rank(p->t->c->comm));
    p->inside = NULL;
    DSC_TRY(dsc_comm_recv(p->t->c->comm, DSC_CHANNEL_CONTROL, p->buffer, bytes + 1, from, NULL, err));
    if (!p->buffer[bytes] || p->status != DSC_OK)
        return DSC_OK; /* the sender says why */
    p->status = dsc_ckpt_reader_check(p->t->reader, block, p->buffer, &p->error);
    if (p->status == DSC_OK)
        p->status = check_range(p->t, own, block, p->buffer, &p->error);
    if (p->status == DSC_OK && p->copy)
        p->status = put_block(p->t, own, block, p->buffer, &p->error);
    return DSC_OK;
}

/* To the ranks [low, high] whose slices it meets, as far as they have it not. All ranks do this in one order. */
static dsc_status pass_on(post *p, const span *own, const dsc_ckpt_block *block, int32_t low, int32_t high,
                          dsc_error *err)
{
    const dsc_ckpt_spread *spread = p->t->spread;
    dsc_comm *comm = p->t->c->comm;
    const int32_t part = dsc_ckpt_part_of(&p->t->reader->manifest, block), from = spread->first_with[part];
    const int64_t bytes = block->count * (int64_t)dsc_dtype_bytes(own->tensor->dtype);
    DSC_ASSERT(low >= 0);
    DSC_ASSERT(high < dsc_comm_size(comm));
    DSC_ASSERT(part < p->t->reader->manifest.parts.count);
    for (int32_t to = low; to <= high; to++) {
        if (spread->part_of_rank[to] == part)
            continue;
        if (dsc_comm_rank(comm) == from)
            DSC_TRY(send_block(p, block, bytes, to, err));
        else if (dsc_comm_rank(comm) == to)
            DSC_TRY(receive_block(p, own, block, bytes, from, err));
        if (++p->count % SENT_AT_ONCE == 0)
            DSC_TRY(dsc_comm_barrier(comm, DSC_CHANNEL_CONTROL, NULL, err));
    }
    return DSC_OK;
}

static dsc_status pass_on_tensor(post *p, int32_t index, dsc_ckpt_plane plane, dsc_error *err)
{
    const dsc_ckpt_slices_load *t = p->t;
    const dsc_layout_tensor *tensor = &t->c->layout->tensor[index];
    const int64_t slice = t->c->layout->group[tensor->group].slice;
    const int64_t each = dsc_ckpt_elements_each(plane);
    const bool shared = dsc_ckpt_is_shared(plane);
    span own = { .tensor = NULL };
    if (!find_span(t, index, plane, &own)) { /* none of it is this rank's, or none of it is anybody's */
        if (!find_target(t, tensor, t->c->layout->group[tensor->group].trainable, plane, &own) ||
            dsc_ckpt_reader_find(t->reader, plane, tensor->spec->name, &own.tensor) == NULL)
            return DSC_OK;
    }
    if (own.only_verified)
        return DSC_OK; /* by who has it */
    const dsc_ckpt_block *block = t->reader->manifest.block + own.tensor->first_block;
    for (int64_t b = 0; b < own.tensor->block_count; b++, block++) {
        const int64_t low = (tensor->offset + block->first * each) / slice;
        const int64_t high = (tensor->offset + (block->first + block->count) * each - 1) / slice;
        DSC_ASSERT(low <= high);
        DSC_ASSERT(high < t->c->layout->world_size);
        DSC_TRY(pass_on(p, &own, block, shared ? 0 : (int32_t)low,
                        shared ? dsc_comm_size(t->c->comm) - 1 : (int32_t)high, err));
    }
    return DSC_OK;
}

dsc_status dsc_ckpt_load_sent(const dsc_ckpt_slices_load *t, bool copy, dsc_error *err)
{
    post p = { .t = t, .copy = copy, .buffer = t->c->buffer.ptr, .error = DSC_ERROR_INIT };
    DSC_ASSERT(t->spread != NULL);
    for (int32_t index = 0; index < t->c->layout->tensor_count; index++)
        for (int plane = 0; plane < DSC_CKPT_PLANE_COUNT; plane++)
            DSC_TRY(pass_on_tensor(&p, index, (dsc_ckpt_plane)plane, err));
    if (p.status != DSC_OK) {
        if (err != NULL)
            *err = p.error;
        return p.status;
    }
    return dsc_stream_sync(t->c->stream, err);
}
