/* nccl_memory.c - memory that NCCL reads and writes in place: registered buffers, and windows of its own memory.
 *
 * A window is opened by all ranks in the same order and with the same size, as buffers of a plan are. It is closed
 * before its communicator, and its memory is freed after it. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "comm/transports/nccl_internal.h"

static dsc_nccl_transport *of(dsc_transport *transport) { return (dsc_nccl_transport *)transport; }

static dsc_nccl_buffer *find_buffer(dsc_nccl_transport *t, const void *ptr)
{
    for (int32_t i = 0; i < DSC_NCCL_BUFFERS_MAX; i++)
        if (t->buffer[i].ptr == ptr)
            return &t->buffer[i];
    return NULL;
}

/* An aborted communicator has forgotten its windows and buffers. */
static void strike_buffer(dsc_nccl_transport *t, dsc_nccl_buffer *buffer)
{
    (void)!dsc_device_bind(t->device, NULL);
    pthread_mutex_lock(&t->lock);
    for (int32_t c = 0; c < t->channel_count; c++) {
        if (buffer->handle[c] == NULL || t->channel[c].comm == NULL)
            continue;
        if (t->wishes.symmetric)
            (void)t->api.window_close(t->channel[c].comm, buffer->handle[c]);
        else
            (void)t->api.strike(t->channel[c].comm, buffer->handle[c]);
    }
    pthread_mutex_unlock(&t->lock);
    *buffer = (dsc_nccl_buffer){ .ptr = NULL };
}

/* NCCL writes the handle of a window later, so it is a member of the transport. */
static dsc_nccl_result enroll_in(dsc_nccl_transport *t, int32_t c, const dsc_buf *buf, void **handle)
{
    dsc_nccl_comm *comm = t->channel[c].comm;
    if (!t->wishes.symmetric)
        return t->api.enroll(comm, buf->ptr, (size_t)buf->bytes, handle);
    const size_t bytes = (size_t)dsc_align_up(buf->bytes, DSC_NCCL_WINDOW_ALIGN);
    return t->api.window_open(comm, buf->ptr, bytes, (dsc_nccl_window **)handle, DSC_NCCL_WINDOW_SYMMETRIC);
}

static dsc_status enroll_buffer(dsc_nccl_transport *t, const dsc_buf *buf, dsc_error *err)
{
    dsc_nccl_buffer *buffer = find_buffer(t, NULL);
    if (buffer == NULL)
        return DSC_OK; /* works without, too */
    DSC_TRY(dsc_device_bind(t->device, err));
    buffer->ptr = buf->ptr;
    dsc_status status = DSC_OK;
    for (int32_t c = 0; c < t->channel_count && status == DSC_OK; c++)
        status = dsc_nccl_settle(t, c, enroll_in(t, c, buf, &buffer->handle[c]), "the registration of a buffer",
                                 t->timeout_ns, err);
    if (status != DSC_OK)
        strike_buffer(t, buffer);
    return status;
}

/* ---- memory of the library ---- */

/* New memory is zero, as that of the device. */
static dsc_status clear(dsc_nccl_transport *t, const dsc_buf *buf, dsc_error *err)
{
    dsc_stream *stream = NULL;
    DSC_TRY(dsc_stream_open(t->device, DSC_STREAM_ASYNC, "windows", &stream, err));
    dsc_status status = dsc_fill_zero(stream, buf->ptr, buf->bytes, err);
    if (status == DSC_OK)
        status = dsc_stream_sync(stream, err);
    dsc_stream_close(&stream);
    return status;
}

static void give_back(dsc_nccl_transport *t, dsc_buf *buf)
{
    (void)!dsc_device_bind(t->device, NULL);
    (void)t->api.mem_free(buf->ptr);
    dsc_alloc_unnote(t->alloc, buf->tag, buf->tier, dsc_buf_counted(buf->bytes));
    *buf = (dsc_buf){ .ptr = NULL };
}

static dsc_status take(dsc_nccl_transport *t, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    const int64_t counted = dsc_buf_counted(bytes);
    void *ptr = NULL;
    DSC_TRY(dsc_alloc_note(t->alloc, tag, DSC_TIER_DEVICE, counted, err));
    dsc_status status = dsc_device_bind(t->device, err);
    if (status == DSC_OK &&
        t->api.mem_alloc(&ptr, (size_t)dsc_align_up(bytes, DSC_NCCL_WINDOW_ALIGN)) != DSC_NCCL_SUCCESS)
        status = DSC_FAIL(err, DSC_ERR_NOMEM, "memory", "the GPU is out of memory: NCCL could not take %.1f MiB",
                          (double)bytes / 1048576.0);
    if (status != DSC_OK) {
        dsc_alloc_unnote(t->alloc, tag, DSC_TIER_DEVICE, counted);
        return status;
    }
    *out = (dsc_buf){ .ptr = ptr, .bytes = bytes, .tag = tag, .tier = DSC_TIER_DEVICE, .alloc = t->alloc };
    return DSC_OK;
}

static dsc_status open_window(dsc_nccl_transport *t, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    DSC_TRY(take(t, tag, bytes, out, err));
    dsc_status status = clear(t, out, err);
    if (status == DSC_OK)
        status = enroll_buffer(t, out, err);
    if (status == DSC_OK)
        return DSC_OK;
    /* Windows of other ranks wait for this one, and NCCL may still hold this rank's memory for a window. */
    t->base.ops->abort(&t->base, err != NULL ? err->message : "a window could not be opened");
    give_back(t, out);
    return status;
}

/* ---- hooks ---- */

dsc_status dsc_nccl_mem_open(dsc_transport *transport, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    dsc_nccl_transport *t = of(transport);
    if (t->wishes.symmetric && bytes > 0 && find_buffer(t, NULL) != NULL)
        return open_window(t, tag, bytes, out, err);
    DSC_TRY(dsc_mem_open(t->device, tag, DSC_TIER_DEVICE, bytes, out, err));
    const dsc_status status = t->registers && bytes > 0 ? enroll_buffer(t, out, err) : DSC_OK;
    if (status != DSC_OK)
        dsc_mem_close(t->device, out);
    return status;
}

void dsc_nccl_mem_close(dsc_transport *transport, dsc_buf *buf)
{
    dsc_nccl_transport *t = of(transport);
    dsc_nccl_buffer *buffer = buf->ptr != NULL ? find_buffer(t, buf->ptr) : NULL;
    const bool is_window = buffer != NULL && t->wishes.symmetric;
    if (buffer != NULL)
        strike_buffer(t, buffer);
    if (is_window)
        give_back(t, buf);
    else
        dsc_mem_close(t->device, buf);
}
