/* device.c - the front of every device: checks what callers pass and forwards to the backend's table.
 *
 * Arguments that are wrong here are bugs of this program, so they are asserted; what can go wrong in the world is the
 * backend's to report. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.h"

#define X(id, args) \
    _Static_assert(sizeof(args) <= DSC_LAUNCH_ARGS_MAX, "arguments of " #id " fit into a queue entry");
#include "kernels/kernels.def"
#undef X

static int64_t args_bytes_of(dsc_kernel kernel)
{
    static const int64_t bytes[DSC_KERNEL_COUNT] = {
#define X(id, args) (int64_t)sizeof(args),
#include "kernels/kernels.def"
#undef X
    };
    return bytes[kernel];
}

static bool is_whole(const dsc_device_ops *ops)
{
    return ops->open != NULL && ops->close != NULL && ops->stream_open != NULL && ops->stream_close != NULL &&
           ops->stream_sync != NULL && ops->event_open != NULL && ops->event_close != NULL &&
           ops->event_record != NULL && ops->stream_wait != NULL && ops->event_sync != NULL &&
           ops->event_passed != NULL && ops->copy != NULL && ops->zero != NULL && ops->launch != NULL &&
           ops->host_call != NULL && ops->mem_open != NULL && ops->mem_close != NULL && ops->gemm_prepare != NULL &&
           ops->props != NULL && (ops->gemm_measure != NULL) == (ops->gemm_plans_get != NULL) &&
           (ops->gemm_measure != NULL) == (ops->gemm_plans_set != NULL) &&
           (ops->sections_open != NULL) == (ops->section_begin != NULL) &&
           (ops->sections_open != NULL) == (ops->section_end != NULL) &&
           (ops->wait_begin != NULL) == (ops->wait_end != NULL) &&
           (ops->wait_begin != NULL) == (ops->waited_ns != NULL);
}

dsc_status dsc_device_open(const dsc_device_ops *ops, dsc_device **out, const dsc_device_options *options,
                           dsc_error *err)
{
    DSC_ASSERT(out != NULL);
    DSC_ASSERT(ops != NULL && options != NULL);
    *out = NULL;
    if (ops->version != DSC_DEVICE_OPS_VERSION || !is_whole(ops))
        return DSC_FAIL(err, DSC_ERR_INTERNAL, ops->name,
                        "device table of version %u, expected a whole one of version %u", ops->version,
                        DSC_DEVICE_OPS_VERSION);
    DSC_ASSERT(options->alloc != NULL);
    DSC_ASSERT(options->threads >= 1);
    DSC_TRY(ops->open(out, options, err));
    DSC_ASSERT((*out)->ops == ops);
    return DSC_OK;
}

dsc_status dsc_device_open_host(dsc_device *device, const dsc_device_options *options, dsc_device **out, dsc_error *err)
{
    DSC_ASSERT(device != NULL && out != NULL);
    *out = NULL;
    return device->ops->open_host != NULL ? device->ops->open_host(device, options, out, err)
                                          : dsc_device_open(&dsc_device_cpu, out, options, err);
}

void dsc_device_close(dsc_device **device)
{
    if (device == NULL || *device == NULL)
        return;
    (*device)->ops->close(*device);
    *device = NULL;
}

dsc_status dsc_stream_open(dsc_device *device, dsc_stream_kind kind, const char *name, dsc_stream **out, dsc_error *err)
{
    DSC_ASSERT(kind == DSC_STREAM_COMPUTE || kind == DSC_STREAM_ASYNC || kind == DSC_STREAM_BEHIND);
    DSC_ASSERT(kind != DSC_STREAM_BEHIND || !dsc_device_host_visible(device));
    DSC_ASSERT(name != NULL);
    *out = NULL;
    DSC_TRY(device->ops->stream_open(device, kind, name, out, err));
    DSC_ASSERT((*out)->ops == device->ops);
    return DSC_OK;
}

void dsc_stream_close(dsc_stream **stream)
{
    if (stream == NULL || *stream == NULL)
        return;
    (*stream)->ops->stream_close(*stream);
    *stream = NULL;
}

dsc_status dsc_stream_sync(dsc_stream *stream, dsc_error *err) { return stream->ops->stream_sync(stream, err); }

dsc_status dsc_event_open(dsc_device *device, dsc_event **out, dsc_error *err)
{
    *out = NULL;
    DSC_TRY(device->ops->event_open(device, out, err));
    DSC_ASSERT((*out)->ops == device->ops);
    return DSC_OK;
}

void dsc_event_close(dsc_event **event)
{
    if (event == NULL || *event == NULL)
        return;
    (*event)->ops->event_close(*event);
    *event = NULL;
}

dsc_status dsc_event_record(dsc_event *event, dsc_stream *stream, dsc_error *err)
{
    DSC_ASSERT(event->ops == stream->ops);
    return stream->ops->event_record(event, stream, err);
}

dsc_status dsc_stream_wait(dsc_stream *stream, dsc_event *event, dsc_error *err)
{
    DSC_ASSERT(event->ops == stream->ops);
    stream->calls++;
    return stream->ops->stream_wait(stream, event, err);
}

dsc_status dsc_stream_order(dsc_event *mark, dsc_stream *before, dsc_stream *after, dsc_error *err)
{
    if (after == before)
        return DSC_OK;
    DSC_ASSERT(mark != NULL && before != NULL && after != NULL);
    DSC_TRY(dsc_event_record(mark, before, err));
    return dsc_stream_wait(after, mark, err);
}

dsc_status dsc_event_sync(dsc_event *event, dsc_error *err) { return event->ops->event_sync(event, err); }
bool dsc_event_passed(dsc_event *event) { return event->ops->event_passed(event); }

dsc_status dsc_copy(dsc_stream *stream, void *to, const void *from, int64_t bytes, dsc_error *err)
{
    DSC_ASSERT(bytes >= 0);
    DSC_ASSERT(bytes == 0 || (to != NULL && from != NULL));
    stream->calls++;
    return stream->ops->copy(stream, to, from, bytes, err);
}

dsc_status dsc_fill_zero(dsc_stream *stream, void *to, int64_t bytes, dsc_error *err)
{
    DSC_ASSERT(bytes >= 0);
    DSC_ASSERT(bytes == 0 || to != NULL);
    stream->calls++;
    return stream->ops->zero(stream, to, bytes, err);
}

dsc_status dsc_launch(dsc_stream *stream, dsc_kernel kernel, const void *args, int64_t args_bytes, dsc_error *err)
{
    DSC_ASSERT((unsigned)kernel < DSC_KERNEL_COUNT);
    DSC_ASSERT(args != NULL);
    DSC_ASSERT(args_bytes == args_bytes_of(kernel));
    stream->calls++;
    return stream->ops->launch(stream, kernel, args, args_bytes, err);
}

dsc_status dsc_host_call(dsc_stream *stream, dsc_host_fn fn, const void *args, int64_t args_bytes, dsc_error *err)
{
    DSC_ASSERT(fn != NULL);
    DSC_ASSERT(args_bytes >= 0 && args_bytes <= DSC_LAUNCH_ARGS_MAX);
    DSC_ASSERT(args_bytes == 0 || args != NULL);
    stream->calls++;
    return stream->ops->host_call(stream, fn, args, args_bytes, err);
}

dsc_status dsc_mem_open(dsc_device *device, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    DSC_ASSERT(bytes >= 0);
    DSC_ASSERT(tier == DSC_TIER_DEVICE || tier == DSC_TIER_PINNED);
    return device->ops->mem_open(device, tag, tier, bytes, out, err);
}

void dsc_mem_close(dsc_device *device, dsc_buf *buf)
{
    if (device != NULL && buf != NULL)
        device->ops->mem_close(device, buf);
}

dsc_status dsc_gemm_measure(dsc_stream *stream, dsc_gemm_choice choice, int64_t chunk_bytes, dsc_gemm_measured *out,
                            dsc_error *err)
{
    *out = (dsc_gemm_measured){ 0 };
    return stream->ops->gemm_measure != NULL ? stream->ops->gemm_measure(stream, choice, chunk_bytes, out, err)
                                             : DSC_OK;
}

dsc_status dsc_gemm_plans_get(dsc_device *device, char *text, int64_t capacity, int64_t *bytes, dsc_error *err)
{
    DSC_ASSERT(dsc_gemm_has_plans(device));
    return device->ops->gemm_plans_get(device, text, capacity, bytes, err);
}

dsc_status dsc_gemm_plans_set(dsc_device *device, const char *text, int64_t *others, dsc_error *err)
{
    DSC_ASSERT(dsc_gemm_has_plans(device));
    return device->ops->gemm_plans_set(device, text, others, err);
}

dsc_status dsc_gemm_prepare(dsc_device *device, const dsc_gemm_args *shape, dsc_error *err)
{
    DSC_ASSERT(shape != NULL);
    return device->ops->gemm_prepare(device, shape, err);
}

dsc_status dsc_attention_prepare(dsc_device *device, const dsc_attention_fwd_args *shape, dsc_error *err)
{
    DSC_ASSERT(shape != NULL);
    return device->ops->attention_prepare != NULL ? device->ops->attention_prepare(device, shape, err) : DSC_OK;
}

dsc_status dsc_conv2d_prepare(dsc_device *device, const dsc_conv2d_args *shape, dsc_error *err)
{
    DSC_ASSERT(shape->shape.groups == 1);
    return device->ops->conv2d_prepare != NULL ? device->ops->conv2d_prepare(device, shape, err) : DSC_OK;
}

void dsc_device_props_get(dsc_device *device, dsc_device_props *out)
{
    *out = (dsc_device_props){ .index = -1, .total_bytes = INT64_MAX, .free_bytes = INT64_MAX };
    device->ops->props(device, out);
}

dsc_status dsc_device_reserve(dsc_device *device, int64_t bytes, dsc_error *err)
{
    DSC_ASSERT(bytes >= 0);
    return device->ops->reserve != NULL ? device->ops->reserve(device, bytes, err) : DSC_OK;
}

void dsc_device_watch(dsc_device *device, dsc_watch_fn fn, void *user)
{
    if (device->ops->watch != NULL)
        device->ops->watch(device, fn, user);
}

void *dsc_stream_native(dsc_stream *stream) { return stream->ops->native != NULL ? stream->ops->native(stream) : NULL; }

dsc_status dsc_device_bind(dsc_device *device, dsc_error *err)
{
    return device->ops->bind != NULL ? device->ops->bind(device, err) : DSC_OK;
}

dsc_status dsc_sections_open(dsc_stream *stream, int32_t count, dsc_error *err)
{
    DSC_ASSERT(count >= 0);
    return stream->ops->sections_open != NULL ? stream->ops->sections_open(stream, count, err) : DSC_OK;
}

dsc_status dsc_section_begin(dsc_stream *stream, int32_t section, dsc_error *err)
{
    return stream->ops->section_begin != NULL ? stream->ops->section_begin(stream, section, err) : DSC_OK;
}

dsc_status dsc_section_end(dsc_stream *stream, bool run, dsc_error *err)
{
    return stream->ops->section_end != NULL ? stream->ops->section_end(stream, run, err) : DSC_OK;
}
