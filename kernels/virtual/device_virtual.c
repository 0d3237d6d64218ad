/* device_virtual.c - see virtual.h. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/conv2d_products.h"
#include "kernels/virtual/launch_times.h"

/* Addresses of device memory. They have no pages: nobody but streams may touch them, and streams touch nothing. */
#define ARENA_BYTES (INT64_C(1) << 40)
#define ALIGNMENT 256
#define ARCH 90 /* that of every card of the tables */

typedef struct virtual_device {
    dsc_device base;
    dsc_alloc *alloc;
    dsc_virtual_clock *clock;
    char *arena; /* NULL: this is the host beside the card */
    int64_t used_bytes;
    dsc_cudnn_use convolutions;
    dsc_gemm_choice plans;
} virtual_device;

typedef struct virtual_stream {
    dsc_stream base;
    virtual_device *device;
    int32_t number;
    double at_s; /* all that it was given is done */
    int64_t workspace_bytes;
    bool computes; /* a COMPUTE stream, whose waits for exchanges count */
} virtual_stream;

typedef struct virtual_event {
    dsc_event base;
    virtual_device *device;
    int32_t number;
    double at_s;
} virtual_event;

const char *dsc_virtual_part_text(dsc_virtual_part part)
{
    static const char *const texts[] = {
        "products",           "attention", "other kernels",      "update",
        "update by the host", "exchange",  "copies to the host", "copies from the host"
    };
    DSC_ASSERT(part >= 0 && part < DSC_VIRTUAL_PART_COUNT);
    return texts[part];
}

bool dsc_virtual_is(const dsc_device *device)
{
    return device->ops == &dsc_device_virtual || device->ops == &dsc_device_virtual_cpu;
}

static bool is_cpu(const virtual_device *d) { return d->base.ops == &dsc_device_virtual_cpu; }

double dsc_virtual_cpu_s(dsc_virtual_clock *clock, int32_t kind, const int64_t *shape)
{
    bool known;
    const double seconds = dsc_launch_times_get(clock->rates->launches, kind, shape, &known);
    if (!known && clock->without_time == 0)
        clock->without_time = kind + 1;
    return (seconds + clock->rates->launch_s) * fmax(1, clock->share);
}

dsc_virtual_clock *dsc_virtual_clock_of(dsc_device *device)
{
    DSC_ASSERT(dsc_virtual_is(device));
    return ((virtual_device *)device)->clock;
}

/* ---- devices ---- */

static dsc_status open_one(const dsc_device_ops *ops, const dsc_device_options *options, dsc_device **out,
                           dsc_error *err)
{
    const bool card = ops == &dsc_device_virtual && options->index >= 0;
    virtual_device *d = NULL;
    DSC_ASSERT(options->clock != NULL && options->clock->rates != NULL);
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *d, &d, err));
    *d = (virtual_device) { .base = { ops },
                            .alloc = options->alloc,
                            .clock = options->clock,
                            .convolutions = options->convolutions,
                            .plans = options->plans };
    *out = &d->base;
    if (!card)
        return DSC_OK;
    void *arena = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena != MAP_FAILED) {
        d->arena = arena;
        return DSC_OK;
    }
    dsc_alloc_free(options->alloc, d);
    *out = NULL;
    return DSC_FAIL(err, DSC_ERR_NOMEM, "", "no addresses for the memory of a virtual GPU; raise ulimit -v");
}

static dsc_status virtual_open(dsc_device **out, const dsc_device_options *options, dsc_error *err)
{
    options->clock->own_attention =
        options->attention == DSC_CUDNN_NEVER && options->clock->rates->attention_own_flops[0] > 0;
    return open_one(&dsc_device_virtual, options, out, err);
}

static dsc_status virtual_open_cpu(dsc_device **out, const dsc_device_options *options, dsc_error *err)
{
    DSC_ASSERT(options->clock->rates->cores > 0 && options->clock->rates->launches != NULL);
    return open_one(&dsc_device_virtual_cpu, options, out, err);
}

static dsc_status virtual_open_host(dsc_device *device, const dsc_device_options *options, dsc_device **out,
                                    dsc_error *err)
{
    dsc_device_options host = *options;
    host.clock = ((virtual_device *)device)->clock;
    host.index = -1; /* the host beside the card */
    return open_one(&dsc_device_virtual, &host, out, err);
}

static void virtual_close(dsc_device *device)
{
    virtual_device *d = (virtual_device *)device;
    if (d->arena != NULL)
        munmap(d->arena, ARENA_BYTES);
    dsc_alloc_free(d->alloc, d);
}

static void virtual_cpu_props(dsc_device *device, dsc_device_props *out)
{
    snprintf(out->name, sizeof out->name, "a virtual CPU");
}

static void virtual_props(dsc_device *device, dsc_device_props *out)
{
    const virtual_device *d = (const virtual_device *)device;
    const int64_t bytes = (int64_t)d->clock->rates->memory_bytes;
    *out = (dsc_device_props) { .index = 0, .arch = ARCH, .total_bytes = bytes, .free_bytes = bytes };
    snprintf(out->name, sizeof out->name, "a virtual %s", d->clock->rates->name);
}

/* ---- memory ---- */

static dsc_status device_memory(virtual_device *d, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    const int64_t counted = dsc_buf_counted(bytes), at = dsc_align_up(d->used_bytes, ALIGNMENT);
    if (counted > ARENA_BYTES - at)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "a virtual GPU has no addresses left");
    DSC_TRY(dsc_alloc_note(d->alloc, tag, DSC_TIER_DEVICE, counted, err));
    *out = (dsc_buf) { .ptr = d->arena + at, .bytes = bytes, .tag = tag, .tier = DSC_TIER_DEVICE, .alloc = d->alloc };
    d->used_bytes = at + counted;
    return DSC_OK;
}

/* Zeros that take a page when they are read. */
static dsc_status pinned_memory(virtual_device *d, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_buf *out,
                                dsc_error *err)
{
    const int64_t counted = dsc_buf_counted(bytes);
    DSC_TRY(dsc_alloc_note(d->alloc, tag, tier, counted, err));
    void *at = mmap(NULL, (size_t)dsc_max_i64(1, counted), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        dsc_alloc_unnote(d->alloc, tag, tier, counted);
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "no addresses for the pinned memory of a virtual GPU");
    }
    *out = (dsc_buf) { .ptr = at, .bytes = bytes, .tag = tag, .tier = tier, .alloc = d->alloc };
    return DSC_OK;
}

static dsc_status virtual_mem_open(dsc_device *device, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_buf *out,
                                   dsc_error *err)
{
    virtual_device *d = (virtual_device *)device;
    DSC_ASSERT(tier == DSC_TIER_DEVICE || tier == DSC_TIER_PINNED);
    return tier == DSC_TIER_DEVICE && d->arena != NULL ? device_memory(d, tag, bytes, out, err)
                                                       : pinned_memory(d, tag, tier, bytes, out, err);
}

static bool on_card(const virtual_device *d, const void *p)
{
    const char *at = p;
    return d->arena != NULL && at >= d->arena && at < d->arena + ARENA_BYTES;
}

static void virtual_mem_close(dsc_device *device, dsc_buf *buf)
{
    virtual_device *d = (virtual_device *)device;
    if (buf->ptr == NULL)
        return;
    const int64_t counted = dsc_buf_counted(buf->bytes);
    dsc_alloc_unnote(d->alloc, buf->tag, buf->tier, counted);
    if (!on_card(d, buf->ptr))
        munmap(buf->ptr, (size_t)dsc_max_i64(1, counted));
    *buf = (dsc_buf) { 0 };
}

/* ---- streams and events ---- */

/* Moves the clocks and keeps the item. */
static void move(virtual_stream *s, virtual_event *e, dsc_virtual_kind kind, dsc_virtual_part part, int32_t ranks,
                 double seconds)
{
    dsc_virtual_clock *clock = s != NULL ? s->device->clock : e->device->clock;
    dsc_virtual_trace *trace = clock->trace;
    const dsc_virtual_item item = {
        kind, part, s != NULL ? s->number : -1, e != NULL ? e->number : -1, ranks, seconds
    };
    dsc_virtual_move(clock, s != NULL ? &s->at_s : NULL, e != NULL ? &e->at_s : NULL, &item);
    if (trace != NULL && trace->count < trace->capacity)
        trace->item[trace->count++] = item;
    else if (trace != NULL)
        trace->full = true;
}

static void wait_or_record(virtual_stream *s, virtual_event *e, dsc_virtual_kind kind)
{
    move(s, e, kind, DSC_VIRTUAL_PART_COUNT, 0, 0);
}

/* A CPU's work: by the calling thread, or by the stream's own. */
static void work_on_cpu(virtual_stream *s, dsc_virtual_part part, int32_t kind, const int64_t *shape)
{
    const double seconds = dsc_virtual_cpu_s(s->device->clock, kind, shape);
    move(s, NULL, s->computes ? DSC_VIRTUAL_HOST_WORK : DSC_VIRTUAL_KERNEL, part, 0, seconds);
}

/* The calling thread is where its COMPUTE stream is. */
static void follow(virtual_stream *s)
{
    if (is_cpu(s->device) && s->computes)
        wait_or_record(s, NULL, DSC_VIRTUAL_STREAM_SYNC);
}

/* The host's own work: the thread that calls does it. */
static void work_on_host(virtual_stream *s, double seconds)
{
    move(s, NULL, DSC_VIRTUAL_HOST_WORK, DSC_VIRTUAL_HOST_UPDATE, 0, seconds);
}

static void occupy(virtual_stream *s, dsc_virtual_part part, double seconds)
{
    const bool copies = part == DSC_VIRTUAL_TO_HOST || part == DSC_VIRTUAL_FROM_HOST;
    move(s, NULL, copies ? DSC_VIRTUAL_TRANSFER : DSC_VIRTUAL_KERNEL, part, 0, seconds);
}

void dsc_virtual_exchange(dsc_stream *stream, int32_t ranks, double seconds)
{
    move((virtual_stream *)stream, NULL, DSC_VIRTUAL_COLLECTIVE, DSC_VIRTUAL_EXCHANGE, ranks, seconds);
    follow((virtual_stream *)stream);
}

static dsc_status virtual_stream_open(dsc_device *device, dsc_stream_kind kind, const char *name, dsc_stream **out,
                                      dsc_error *err)
{
    virtual_device *d = (virtual_device *)device;
    virtual_stream *s = NULL;
    DSC_TRY(dsc_alloc_zeroed(d->alloc, DSC_TAG_CONTROL, 1, sizeof *s, &s, err));
    const int64_t bytes = kind == DSC_STREAM_COMPUTE && d->arena != NULL ? DSC_GPU_GEMM_WORKSPACE_BYTES : 0;
    const dsc_status status = dsc_alloc_note(d->alloc, DSC_TAG_LIBRARY, DSC_TIER_DEVICE, bytes, err);
    if (status != DSC_OK) {
        dsc_alloc_free(d->alloc, s);
        return status;
    }
    *s = (virtual_stream) { { d->base.ops, 0 }, d, d->clock->streams++, 0, bytes, kind == DSC_STREAM_COMPUTE };
    *out = &s->base;
    return DSC_OK;
}

static void virtual_stream_close(dsc_stream *stream)
{
    virtual_stream *s = (virtual_stream *)stream;
    dsc_alloc_unnote(s->device->alloc, DSC_TAG_LIBRARY, DSC_TIER_DEVICE, s->workspace_bytes);
    dsc_alloc_free(s->device->alloc, s);
}

static dsc_status virtual_stream_sync(dsc_stream *stream, dsc_error *err)
{
    wait_or_record((virtual_stream *)stream, NULL, DSC_VIRTUAL_STREAM_SYNC);
    return DSC_OK;
}

static dsc_status virtual_event_open(dsc_device *device, dsc_event **out, dsc_error *err)
{
    virtual_device *d = (virtual_device *)device;
    virtual_event *e = NULL;
    DSC_TRY(dsc_alloc_zeroed(d->alloc, DSC_TAG_CONTROL, 1, sizeof *e, &e, err));
    *e = (virtual_event) { { d->base.ops }, d, d->clock->events++, 0 };
    *out = &e->base;
    return DSC_OK;
}

static void virtual_event_close(dsc_event *event)
{
    virtual_event *e = (virtual_event *)event;
    dsc_alloc_free(e->device->alloc, e);
}

static dsc_status virtual_event_record(dsc_event *event, dsc_stream *stream, dsc_error *err)
{
    wait_or_record((virtual_stream *)stream, (virtual_event *)event, DSC_VIRTUAL_RECORD);
    return DSC_OK;
}

static dsc_status virtual_stream_wait(dsc_stream *stream, dsc_event *event, dsc_error *err)
{
    wait_or_record((virtual_stream *)stream, (virtual_event *)event, DSC_VIRTUAL_STREAM_WAIT);
    follow((virtual_stream *)stream);
    return DSC_OK;
}

static dsc_status virtual_event_sync(dsc_event *event, dsc_error *err)
{
    wait_or_record(NULL, (virtual_event *)event, DSC_VIRTUAL_EVENT_SYNC);
    return DSC_OK;
}

static void virtual_wait_begin(dsc_stream *stream)
{
    if (((virtual_stream *)stream)->computes)
        wait_or_record((virtual_stream *)stream, NULL, DSC_VIRTUAL_WAIT_BEGIN);
}

static void virtual_wait_end(dsc_stream *stream)
{
    if (((virtual_stream *)stream)->computes)
        wait_or_record((virtual_stream *)stream, NULL, DSC_VIRTUAL_WAIT_END);
}

/* A card's file may have times whose sum an int64_t does not hold. */
static int64_t virtual_waited_ns(dsc_stream *stream)
{
    return (int64_t)fmin(((virtual_stream *)stream)->device->clock->exposed_s * 1e9, 0x1p62);
}

/* A caller that polls would poll for ever, because only waits move the clock. */
static bool virtual_event_passed(dsc_event *event) { return virtual_event_sync(event, NULL) == DSC_OK; }

/* ---- work ---- */

static dsc_status virtual_copy(dsc_stream *stream, void *to, const void *from, int64_t bytes, dsc_error *err)
{
    virtual_stream *s = (virtual_stream *)stream;
    const dsc_card_rates *rates = s->device->clock->rates;
    const double count = (double)bytes;
    const int64_t shape[DSC_LAUNCH_SHAPE] = { bytes };
    if (is_cpu(s->device))
        work_on_cpu(s, DSC_VIRTUAL_MEMORY_KERNELS, DSC_LAUNCH_COPY, shape);
    else if (s->device->arena == NULL)
        work_on_host(s, 2 * count / rates->host_update_bytes);
    else if (on_card(s->device, to) && on_card(s->device, from))
        occupy(s, DSC_VIRTUAL_MEMORY_KERNELS, rates->kernel_s + 2 * count / rates->kernel_bytes);
    else
        occupy(s, on_card(s->device, to) ? DSC_VIRTUAL_FROM_HOST : DSC_VIRTUAL_TO_HOST,
               rates->kernel_s + count / rates->host_link_bytes);
    return DSC_OK;
}

static dsc_status virtual_zero(dsc_stream *stream, void *to, int64_t bytes, dsc_error *err)
{
    virtual_stream *s = (virtual_stream *)stream;
    const dsc_card_rates *rates = s->device->clock->rates;
    const int64_t shape[DSC_LAUNCH_SHAPE] = { bytes };
    if (is_cpu(s->device))
        work_on_cpu(s, DSC_VIRTUAL_MEMORY_KERNELS, DSC_LAUNCH_ZERO, shape);
    else if (s->device->arena == NULL)
        work_on_host(s, (double)bytes / rates->host_update_bytes);
    else
        occupy(s, DSC_VIRTUAL_MEMORY_KERNELS, rates->kernel_s + (double)bytes / rates->kernel_bytes);
    return DSC_OK;
}

static dsc_status virtual_launch(dsc_stream *stream, dsc_kernel kernel, const void *args, int64_t args_bytes,
                                 dsc_error *err)
{
    virtual_stream *s = (virtual_stream *)stream;
    const dsc_card_rates *rates = s->device->clock->rates;
    dsc_virtual_part part;
    DSC_ASSERT(args_bytes <= DSC_LAUNCH_ARGS_MAX);
    if (is_cpu(s->device)) {
        int64_t shape[DSC_LAUNCH_SHAPE];
        dsc_launch_shape(kernel, args, shape);
        (void)dsc_virtual_kernel_s(rates, kernel, args, &part);
        work_on_cpu(s, part, (int32_t)kernel, shape);
        return DSC_OK;
    }
    if (s->device->arena == NULL) {
        work_on_host(s, dsc_virtual_host_kernel_s(rates, kernel, args));
        return DSC_OK;
    }
    double seconds = dsc_virtual_kernel_s(rates, kernel, args, &part);
    if (kernel == DSC_KERNEL_ATTENTION_BWD && s->device->clock->own_attention)
        seconds = dsc_virtual_own_gradients_s(rates, args);
    occupy(s, part, seconds);
    return DSC_OK;
}

/* At once, by a thread whose clock is the stream's. */
static dsc_status virtual_host_call(dsc_stream *stream, dsc_host_fn fn, const void *args, int64_t args_bytes,
                                    dsc_error *err)
{
    virtual_stream *s = (virtual_stream *)stream;
    _Alignas(16) char copy[DSC_LAUNCH_ARGS_MAX];
    DSC_ASSERT(args_bytes >= 0 && args_bytes <= DSC_LAUNCH_ARGS_MAX);
    if (args_bytes > 0)
        memcpy(copy, args, (size_t)args_bytes);
    wait_or_record(s, NULL, DSC_VIRTUAL_CALL_BEGIN);
    const dsc_status status = fn(copy, err);
    wait_or_record(s, NULL, DSC_VIRTUAL_CALL_END);
    return status;
}

static dsc_status virtual_gemm_prepare(dsc_device *device, const dsc_gemm_args *shape, dsc_error *err)
{
    return DSC_OK;
}

/* A card has cuDNN, and every pass that asks for it gets it. */
static bool virtual_conv2d_is_whole(dsc_stream *stream, const dsc_conv2d_args *args)
{
    const virtual_device *d = ((const virtual_stream *)stream)->device;
    return is_cpu(d) ? dsc_conv2d_is_whole_on_cpu(args) : dsc_conv2d_wants_cudnn(args, d->convolutions, d->plans, ARCH);
}

const dsc_device_ops dsc_device_virtual = {
    .name = "cuda",
    .version = DSC_DEVICE_OPS_VERSION,
    .host_visible = false,
    .open = virtual_open,
    .open_host = virtual_open_host,
    .close = virtual_close,
    .stream_open = virtual_stream_open,
    .stream_close = virtual_stream_close,
    .stream_sync = virtual_stream_sync,
    .event_open = virtual_event_open,
    .event_close = virtual_event_close,
    .event_record = virtual_event_record,
    .stream_wait = virtual_stream_wait,
    .event_sync = virtual_event_sync,
    .event_passed = virtual_event_passed,
    .copy = virtual_copy,
    .zero = virtual_zero,
    .launch = virtual_launch,
    .host_call = virtual_host_call,
    .mem_open = virtual_mem_open,
    .mem_close = virtual_mem_close,
    .gemm_prepare = virtual_gemm_prepare,
    .conv2d_is_whole = virtual_conv2d_is_whole,
    .props = virtual_props,
    .wait_begin = virtual_wait_begin,
    .wait_end = virtual_wait_end,
    .waited_ns = virtual_waited_ns,
};

const dsc_device_ops dsc_device_virtual_cpu = {
    .name = "cpu",
    .version = DSC_DEVICE_OPS_VERSION,
    .host_visible = true,
    .open = virtual_open_cpu,
    .close = virtual_close,
    .stream_open = virtual_stream_open,
    .stream_close = virtual_stream_close,
    .stream_sync = virtual_stream_sync,
    .event_open = virtual_event_open,
    .event_close = virtual_event_close,
    .event_record = virtual_event_record,
    .stream_wait = virtual_stream_wait,
    .event_sync = virtual_event_sync,
    .event_passed = virtual_event_passed,
    .copy = virtual_copy,
    .zero = virtual_zero,
    .launch = virtual_launch,
    .host_call = virtual_host_call,
    .mem_open = virtual_mem_open,
    .mem_close = virtual_mem_close,
    .gemm_prepare = virtual_gemm_prepare,
    .conv2d_is_whole = virtual_conv2d_is_whole,
    .props = virtual_cpu_props,
    .wait_begin = virtual_wait_begin,
    .wait_end = virtual_wait_end,
    .waited_ns = virtual_waited_ns,
};
