/* device_planned.c - a GPU that need not be here: `dsc plan` counts on it what an engine takes of a real one.
 *
 * Nothing can run on it, so only what planning calls does anything: streams and buffers are counted as the cuda
 * device's are. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "kernels/device.h"

typedef struct planned_device {
    dsc_device base;
    dsc_alloc *alloc;
    int64_t bytes;
} planned_device;

typedef struct planned_stream {
    dsc_stream base;
    dsc_alloc *alloc;
    int64_t workspace_bytes;
} planned_stream;

static dsc_status planned_open(dsc_device **out, const dsc_device_options *options, dsc_error *err)
{
    planned_device *d = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *d, &d, err));
    *d = (planned_device){ { &dsc_device_planned }, options->alloc, options->planned_bytes };
    *out = &d->base;
    return DSC_OK;
}

static void planned_close(dsc_device *device) { dsc_alloc_free(((planned_device *)device)->alloc, device); }

static dsc_status planned_stream_open(dsc_device *device, dsc_stream_kind kind, const char *name, dsc_stream **out,
                                      dsc_error *err)
{
    dsc_alloc *alloc = ((planned_device *)device)->alloc;
    const int64_t bytes = kind == DSC_STREAM_COMPUTE ? DSC_GPU_GEMM_WORKSPACE_BYTES : 0;
    planned_stream *s = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *s, &s, err));
    const dsc_status status = dsc_alloc_note(alloc, DSC_TAG_LIBRARY, DSC_TIER_DEVICE, bytes, err);
    if (status != DSC_OK) {
        dsc_alloc_free(alloc, s);
        return status;
    }
    *s = (planned_stream) { { &dsc_device_planned, 0 }, alloc, bytes };
    *out = &s->base;
    return DSC_OK;
}

static void planned_stream_close(dsc_stream *stream)
{
    planned_stream *s = (planned_stream *)stream;
    dsc_alloc_unnote(s->alloc, DSC_TAG_LIBRARY, DSC_TIER_DEVICE, s->workspace_bytes);
    dsc_alloc_free(s->alloc, s);
}

/* Host memory that planning itself takes is real; it takes none of the device's. */
static dsc_status planned_mem_open(dsc_device *device, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_buf *out,
                                   dsc_error *err)
{
    DSC_ASSERT(tier == DSC_TIER_PINNED);
    return dsc_buf_open(((planned_device *)device)->alloc, tag, tier, bytes, out, err);
}

static void planned_mem_close(dsc_device *device, dsc_buf *buf) { dsc_buf_close(buf); }

static dsc_status planned_gemm_prepare(dsc_device *device, const dsc_gemm_args *shape, dsc_error *err)
{
    return DSC_OK;
}

static void planned_props(dsc_device *device, dsc_device_props *out)
{
    const int64_t bytes = ((planned_device *)device)->bytes;
    *out = (dsc_device_props){ .index = 0, .total_bytes = bytes, .free_bytes = bytes };
    snprintf(out->name, sizeof out->name, "a planned GPU");
}

/* ---- what planning never calls ---- */

static dsc_status nothing_runs(dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_STATE, "dsc.device", "a planned GPU runs nothing");
}

static dsc_status planned_sync(dsc_stream *stream, dsc_error *err) { return nothing_runs(err); }
static dsc_status planned_event_open(dsc_device *device, dsc_event **out, dsc_error *err) { return nothing_runs(err); }
static void planned_event_close(dsc_event *event) {}
static dsc_status planned_record(dsc_event *event, dsc_stream *stream, dsc_error *err) { return nothing_runs(err); }
static dsc_status planned_wait(dsc_stream *stream, dsc_event *event, dsc_error *err) { return nothing_runs(err); }
static dsc_status planned_event_sync(dsc_event *event, dsc_error *err) { return nothing_runs(err); }
static bool planned_event_passed(dsc_event *event) { return true; }
static dsc_status planned_copy(dsc_stream *stream, void *to, const void *from, int64_t bytes, dsc_error *err)
{
    return nothing_runs(err);
}
static dsc_status planned_zero(dsc_stream *stream, void *to, int64_t bytes, dsc_error *err)
{
    return nothing_runs(err);
}
static dsc_status planned_launch(dsc_stream *stream, dsc_kernel kernel, const void *args, int64_t args_bytes,
                                 dsc_error *err)
{
    return nothing_runs(err);
}
static dsc_status planned_host_call(dsc_stream *stream, dsc_host_fn fn, const void *args, int64_t args_bytes,
                                    dsc_error *err)
{
    return nothing_runs(err);
}

const dsc_device_ops dsc_device_planned = {
    .name = "cuda",
    .version = DSC_DEVICE_OPS_VERSION,
    .host_visible = false,
    .open = planned_open,
    .close = planned_close,
    .stream_open = planned_stream_open,
    .stream_close = planned_stream_close,
    .stream_sync = planned_sync,
    .event_open = planned_event_open,
    .event_close = planned_event_close,
    .event_record = planned_record,
    .stream_wait = planned_wait,
    .event_sync = planned_event_sync,
    .event_passed = planned_event_passed,
    .copy = planned_copy,
    .zero = planned_zero,
    .launch = planned_launch,
    .host_call = planned_host_call,
    .mem_open = planned_mem_open,
    .mem_close = planned_mem_close,
    .gemm_prepare = planned_gemm_prepare,
    .props = planned_props,
};
