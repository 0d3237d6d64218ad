/* device.h - streams, events, memory and kernel launches of a device, behind one const ops table.
 *
 * A kernel is an id (kernels.def) and a plain argument struct. One `launch` hook starts every kernel, so launches can
 * be counted, traced, simulated and made to fail in one place. The cpu device runs the compute stream on the calling
 * thread with an OpenMP thread pool. Every other stream is a FIFO with one thread of its own; events are real. CUDA
 * maps each id to a launch.
 *
 * Errors of a stream's work are sticky: they come out of the next call on it and of dsc_stream_sync, and later work in
 * its queue is skipped. A wait (dsc_stream_wait, dsc_event_sync) for work that failed fails with the same error. A host
 * call may use any stream but its own. One thread at a time calls a stream; different streams are independent.
 *
 * Memory has three kinds (base/alloc.h's tiers). Only work on streams may touch DEVICE memory unless the table says
 * host_visible. PINNED is host memory that copies and kernels use in place while the host goes on. HOST is plain
 * memory. Scalars travel by value in argument structs. A copy brings results for the host to PINNED memory, and an
 * event or a sync reports that they are there.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_DEVICE_H
#define DSC_KERNELS_DEVICE_H

#include "base/alloc.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_DEVICE_OPS_VERSION 12u
#define DSC_LAUNCH_ARGS_MAX 256 /* bytes of a kernel's or host call's argument struct */
/* Scratch for products that a GPU's compute stream has: what cuBLASLt itself takes by default on sm_90. */
#define DSC_GPU_GEMM_WORKSPACE_BYTES (INT64_C(32) << 20)

typedef struct dsc_device dsc_device;
typedef struct dsc_stream dsc_stream;
typedef struct dsc_event dsc_event;

typedef enum dsc_stream_kind {
    DSC_STREAM_COMPUTE, /* cpu: inline on the calling thread, in order */
    DSC_STREAM_ASYNC,   /* cpu: a FIFO with one thread; in order inside the stream */
    DSC_STREAM_BEHIND   /* GPUs alone: takes what streams of the other kinds leave of the card */
} dsc_stream_kind;

/* Runs on the stream in order; `args` points at a copy of the bytes given. A failure becomes the stream's. */
typedef dsc_status (*dsc_host_fn)(void *args, dsc_error *err);

/* Which algorithm a product takes, where a library has several. Also which kernel an attention and a product of experts
 * take, where there are two. */
typedef enum dsc_gemm_choice {
    DSC_GEMM_SAME_BITS, /* the fastest of those with the bits of the first choice */
    DSC_GEMM_FASTEST,   /* the fastest that gives the same bits each time it runs; of own attentions as SAME_BITS */
    DSC_GEMM_FIRST      /* the library's first choice, or the kernel that all GPUs have; nothing is measured */
} dsc_gemm_choice;

/* A GPU's attentions or convolutions take dsc's own kernels, or cuDNN's where cuDNN is installed, has the shape and
 * gives no wrong number. */
typedef enum dsc_cudnn_use {
    /* cuDNN's on sm_90 for attentions with heads of 64 and more, and for convolutions in bf16; with DSC_GEMM_FASTEST
     * wherever it is faster */
    DSC_CUDNN_AUTO,
    DSC_CUDNN_NEVER,
    DSC_CUDNN_ALWAYS /* for every shape that it has, and without a trial with DSC_GEMM_FIRST */
} dsc_cudnn_use;

struct dsc_virtual_clock;
typedef struct dsc_device_options {
    dsc_alloc *alloc;  /* borrowed until close */
    int32_t threads;   /* compute threads of this rank, >= 1 */
    uint32_t caps;     /* dsc_cpu_caps() or fewer bits, to test variants */
    int32_t index;     /* which of the process's devices; cpu: not read */
    int64_t planned_bytes; /* planned: free memory of the GPU; others: not read */
    dsc_cudnn_use attention;        /* cuda */
    dsc_gemm_choice plans;          /* cuda: what gemm_measure will be asked for */
    struct dsc_virtual_clock *clock; /* virtual: borrowed until close; others: not read */
    struct dsc_launch_times *times;  /* timed (kernels/virtual): borrowed until close; others: not read */
    dsc_cudnn_use convolutions;      /* cuda, virtual */
} dsc_device_options;

typedef struct dsc_device_props {
    char name[96];           /* "NVIDIA H200"; "cpu" */
    char pci[16];            /* where it is, as "0000:1b:00.0"; "": the host itself, or a slice of a card */
    int32_t index;           /* as in the options; -1: the host itself */
    int32_t arch;            /* 90 for sm_90; 0: not a GPU */
    int32_t multiprocessors;
    int64_t total_bytes, free_bytes; /* device memory; INT64_MAX: it is the host's */
    double peak_flops;       /* dense bf16 products a second by the data sheet; 0: unknown */
    double peak_bytes;       /* device memory traffic per second, from clock and bus width; 0: unknown */
    char versions[160];      /* versions that bits depend on, besides the arch: "CUDA 13.0, cuBLASLt 13.1.0" */
} dsc_device_props;

/* Epilogues and sums of products that a GPU's library computes with the product, where it has them. The others run as
 * kernels of their own, which may round otherwise. */
typedef enum dsc_gemm_fused {
    DSC_GEMM_FUSED_NONE = 0,
    DSC_GEMM_FUSED_GELU = 1,  /* BIAS_GELU with `aux` */
    DSC_GEMM_FUSED_DGELU = 2, /* DGELU */
    DSC_GEMM_FUSED_SUMS = 4,  /* `sums_of`: the gradient of a bias */
    DSC_GEMM_FUSED_ALL = 7,
    /* Whatever gemm_measure with FASTEST finds faster of those beside this bit; without it the default. */
    DSC_GEMM_FUSED_BY_TIME = 8,
    DSC_GEMM_FUSED_DEFAULT = DSC_GEMM_FUSED_DGELU
} dsc_gemm_fused;

/* Passes of prepared attentions or convolutions for which cuDNN has a plan. Some of them use it now (taken). In others
 * it gave a wrong result, or another result each time, or it was slower, or a trial had no memory. Passes with a choice
 * from a text do not count. */
typedef struct dsc_cudnn_tried {
    int32_t shapes, taken, wrong, slower, untried;
    int64_t number; /* 91900 for 9.19.0 */
    char note[256]; /* why a shape for which cuDNN is wanted goes without it; "": no such shape */
} dsc_cudnn_tried;

/* Numbers of passes of prepared attentions that have two kernels (a forward and its gradients are two passes; passes
 * with a choice from a text do not count). In order: all of them; those whose kernels were compared; of these, passes
 * that use the second kernel now, and passes that do not because it gave a wrong result. cannot_start: the second
 * kernels were compiled for fewer registers than they share out, and there is no choice. */
typedef struct dsc_attention_tried {
    int32_t shapes, tried, changed, wrong;
    bool cannot_start;
    int32_t stored_tried, stored_taken, stored_wrong;
    dsc_cudnn_tried cudnn;
} dsc_attention_tried;

typedef struct dsc_gemm_measured {
    /* Prepared and not taken over from a text; of these timed; of these not the library's first choice now. Last: of
     * the timed ones those whose sums differ between two runs, and are computed apart. */
    int32_t products, measured, changed, unrepeatable;
    dsc_attention_tried attention;
    dsc_cudnn_tried convolutions;
} dsc_gemm_measured;

/* Looks whether waiting still makes sense (a peer that died leaves work that never ends) when the host has waited
 * `waited_ns`; an error ends the wait. */
typedef dsc_status (*dsc_watch_fn)(void *user, int64_t waited_ns, dsc_error *err);

typedef struct dsc_device_ops {
    const char *name; /* "cpu", "cuda", "sim" */
    uint32_t version; /* DSC_DEVICE_OPS_VERSION */
    bool host_visible; /* the host may use DEVICE memory in place while no stream works on it */

    /* Optional: how many devices options.index may name, at least 1; what is wrong when none can be used. NULL: one. */
    dsc_status (*count)(int32_t *count, dsc_error *err);

    dsc_status (*open)(dsc_device **out, const dsc_device_options *options, dsc_error *err);
    void (*close)(dsc_device *device); /* its streams, events and buffers must be closed before */

    dsc_status (*stream_open)(dsc_device *device, dsc_stream_kind kind, const char *name, dsc_stream **out,
                              dsc_error *err);
    void (*stream_close)(dsc_stream *stream); /* runs what is queued, then ends */
    dsc_status (*stream_sync)(dsc_stream *stream, dsc_error *err);

    dsc_status (*event_open)(dsc_device *device, dsc_event **out, dsc_error *err);
    void (*event_close)(dsc_event *event);
    /* As CUDA: a wait captures the latest record at the time of the call; waiting on an event never recorded is none.
     */
    dsc_status (*event_record)(dsc_event *event, dsc_stream *stream, dsc_error *err);
    dsc_status (*stream_wait)(dsc_stream *stream, dsc_event *event, dsc_error *err);
    dsc_status (*event_sync)(dsc_event *event, dsc_error *err);
    /* Without waiting: would a sync return at once? Also for work that failed, which only a sync tells. */
    bool (*event_passed)(dsc_event *event);

    /* No overlap. Both buffers are borrowed until the stream passes. */
    dsc_status (*copy)(dsc_stream *stream, void *to, const void *from, int64_t bytes, dsc_error *err);
    dsc_status (*zero)(dsc_stream *stream, void *to, int64_t bytes, dsc_error *err);
    /* `args` is copied; every buffer in it is borrowed until the stream passes. */
    dsc_status (*launch)(dsc_stream *stream, dsc_kernel kernel, const void *args, int64_t args_bytes, dsc_error *err);
    dsc_status (*host_call)(dsc_stream *stream, dsc_host_fn fn, const void *args, int64_t args_bytes, dsc_error *err);

    /* Zeroed. `tier` is DEVICE or PINNED; plain host memory comes from dsc_buf_open. */
    dsc_status (*mem_open)(dsc_device *device, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_buf *out,
                           dsc_error *err);
    void (*mem_close)(dsc_device *device, dsc_buf *buf);

    /* Prepares a GEMM of this shape (pointers in it are ignored). Reports the library scratch that all prepared
     * shapes together need, so that step 1 allocates nothing. */
    dsc_status (*gemm_prepare)(dsc_device *device, const dsc_gemm_args *shape, dsc_error *err);

    void (*props)(dsc_device *device, dsc_device_props *out);
    /* Optional: one arena of DEVICE memory, taken at once and before anything of the plan; later mem_opens are cut from
     * it while they fit. Called at most once. NULL: every buffer is its own. */
    dsc_status (*reserve)(dsc_device *device, int64_t bytes, dsc_error *err);
    /* Optional: chooses the algorithms of the products, by time, and the kernels of the attentions and convolutions,
     * the second where it gives no wrong result. Only what was prepared and has none from a text. After `reserve` and
     * before the first part is cut: the products work in the arena. chunk_bytes: that of the calls (dsc/model.h). The
     * stream is COMPUTE and idle; the host waits. NULL: there is nothing to choose. */
    dsc_status (*gemm_measure)(dsc_stream *stream, dsc_gemm_choice choice, int64_t chunk_bytes, dsc_gemm_measured *out,
                               dsc_error *err);
    /* With gemm_measure. get: card, library and the prepared products' algorithms as lines of text, NUL after them;
     * *bytes without it is what they take, and nothing is written beyond capacity. set: takes them over where the card,
     * the library and a line agree; *others: prepared products that keep what they had. Any text is safe. */
    dsc_status (*gemm_plans_get)(dsc_device *device, char *text, int64_t capacity, int64_t *bytes, dsc_error *err);
    dsc_status (*gemm_plans_set)(dsc_device *device, const char *text, int64_t *others, dsc_error *err);
    /* Optional: which epilogues the library computes with products that are prepared from now on, of dsc_gemm_fused.
     * NULL: there is no library that does. */
    void (*gemm_fuse)(dsc_device *device, uint32_t fused);
    /* Optional: names a large prepared product that no library computes, and why ("MxNxK ...: reason"), by its number
     * from 0 on; false after the last. */
    bool (*gemm_slow)(dsc_device *device, int64_t index, char *text, int64_t capacity);
    /* Optional: names an attention (pointers in it are ignored) for whose forward pass and gradients gemm_measure
     * may choose a kernel each. NULL: there is only one. */
    dsc_status (*attention_prepare)(dsc_device *device, const dsc_attention_fwd_args *shape, dsc_error *err);
    /* Optional: (fn, user) is asked every few milliseconds while the host waits for a stream or an event, in
     * addition to functions set earlier. (NULL, user) removes the function of that user, (NULL, NULL) removes all.
     * Call it only while the host does not wait. NULL hook: the device's work ends by itself. */
    void (*watch)(dsc_device *device, dsc_watch_fn fn, void *user);
    /* Optional: the library's own stream (a cudaStream_t) for transports that enqueue. */
    void *(*native)(dsc_stream *stream);
    /* Optional: makes the device the calling thread's current one, for libraries that ask. */
    dsc_status (*bind)(dsc_device *device, dsc_error *err);
    /* Optional: sections of a COMPUTE stream, numbered 0..count-1; opened at most once. Launches, copies and zeroing
     * between begin and end may be deferred until the end. They may then start as one, if all arguments equal those
     * of an earlier time. Any other call on the stream in between first ends the section. `run` false drops the
     * deferred work. NULL: begin and end do nothing. */
    dsc_status (*sections_open)(dsc_stream *stream, int32_t count, dsc_error *err);
    dsc_status (*section_begin)(dsc_stream *stream, int32_t section, dsc_error *err);
    dsc_status (*section_end)(dsc_stream *stream, bool run, dsc_error *err);
    /* Optional: opens the device that computes in this one's pinned memory. NULL: it is the cpu device. */
    dsc_status (*open_host)(dsc_device *device, const dsc_device_options *options, dsc_device **out, dsc_error *err);
    /* Optional, all three or none: the time of a COMPUTE stream between begin and end counts as a wait. Neither makes
     * the host wait, and a device that cannot take the time leaves it out. `waited_ns` is the sum since the stream's
     * opening, of those ends that the stream has passed. NULL: the time is unknown. */
    void (*wait_begin)(dsc_stream *stream);
    void (*wait_end)(dsc_stream *stream);
    int64_t (*waited_ns)(dsc_stream *stream);
    /* Optional: names a pass of a convolution of one group that gathers windows (of the pointers only Y's `add`
     * counts: whether there is a bias), for which gemm_measure may choose cuDNN. NULL: there is no choice. */
    dsc_status (*conv2d_prepare)(dsc_device *device, const dsc_conv2d_args *shape, dsc_error *err);
    /* Optional: whether CONV2D has a kernel for the pass on this stream; NULL: for none. */
    bool (*conv2d_is_whole)(dsc_stream *stream, const dsc_conv2d_args *args);
} dsc_device_ops;

/* Every device, stream and event struct starts with its ops, so that callers never name a backend. */
struct dsc_device { const dsc_device_ops *ops; };
struct dsc_stream {
    const dsc_device_ops *ops;
    uint64_t calls; /* launches, copies, zeroing, host calls and waits so far: whether anything else ran meanwhile */
};
struct dsc_event { const dsc_device_ops *ops; };

extern const dsc_device_ops dsc_device_cpu;
extern const dsc_device_ops dsc_device_planned; /* a GPU that need not be here: counts, and runs nothing */

/* The table for a device name: "cpu" or "cuda". A program that exports dsc_cuda_plugin_get brings the table of
 * "cuda" itself. Otherwise it comes from libdsc_cuda.so in $DSC_PLUGIN_DIR, when set, else in dsc/ and ../lib/dsc/
 * beside this library. DSC_ERR_UNSUPPORTED: the device cannot be used here. The error names the reason: no driver,
 * no GPU, a driver too old, no plugin, a plugin of another build or a missing library. *count: devices that may be
 * opened. */
DSC_MUST_USE dsc_status dsc_device_find(const char *name, const dsc_device_ops **out, int32_t *count, dsc_error *err);

/* Callers use these, never the table. */
DSC_MUST_USE dsc_status dsc_device_open(const dsc_device_ops *ops, dsc_device **out, const dsc_device_options *options,
                                        dsc_error *err);
/* The device that computes in the pinned memory of `device`. It is closed before `device`. */
DSC_MUST_USE dsc_status dsc_device_open_host(dsc_device *device, const dsc_device_options *options, dsc_device **out,
                                             dsc_error *err);
void dsc_device_close(dsc_device **device);
DSC_MUST_USE dsc_status dsc_stream_open(dsc_device *device, dsc_stream_kind kind, const char *name, dsc_stream **out,
                                        dsc_error *err);
void dsc_stream_close(dsc_stream **stream);
DSC_MUST_USE dsc_status dsc_stream_sync(dsc_stream *stream, dsc_error *err);
DSC_MUST_USE dsc_status dsc_event_open(dsc_device *device, dsc_event **out, dsc_error *err);
void dsc_event_close(dsc_event **event);
DSC_MUST_USE dsc_status dsc_event_record(dsc_event *event, dsc_stream *stream, dsc_error *err);
DSC_MUST_USE dsc_status dsc_stream_wait(dsc_stream *stream, dsc_event *event, dsc_error *err);
DSC_MUST_USE dsc_status dsc_event_sync(dsc_event *event, dsc_error *err);
/* Later work of `after` runs behind all work that `before` was given so far. `mark` is recorded for it, unless both are
 * one stream; it may be used again at once. */
DSC_MUST_USE dsc_status dsc_stream_order(dsc_event *mark, dsc_stream *before, dsc_stream *after, dsc_error *err);
bool dsc_event_passed(dsc_event *event);
/* From any kind of memory to any kind. Plain host memory may make the call wait for the stream. */
DSC_MUST_USE dsc_status dsc_copy(dsc_stream *stream, void *to, const void *from, int64_t bytes, dsc_error *err);
DSC_MUST_USE dsc_status dsc_fill_zero(dsc_stream *stream, void *to, int64_t bytes, dsc_error *err);
DSC_MUST_USE dsc_status dsc_launch(dsc_stream *stream, dsc_kernel kernel, const void *args, int64_t args_bytes,
                                   dsc_error *err);
DSC_MUST_USE dsc_status dsc_host_call(dsc_stream *stream, dsc_host_fn fn, const void *args, int64_t args_bytes,
                                      dsc_error *err);
DSC_MUST_USE dsc_status dsc_mem_open(dsc_device *device, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_buf *out,
                                     dsc_error *err);
void dsc_mem_close(dsc_device *device, dsc_buf *buf);
DSC_MUST_USE dsc_status dsc_gemm_prepare(dsc_device *device, const dsc_gemm_args *shape, dsc_error *err);
DSC_MUST_USE dsc_status dsc_attention_prepare(dsc_device *device, const dsc_attention_fwd_args *shape, dsc_error *err);
DSC_MUST_USE dsc_status dsc_conv2d_prepare(dsc_device *device, const dsc_conv2d_args *shape, dsc_error *err);
static inline bool dsc_conv2d_is_whole(dsc_stream *stream, const dsc_conv2d_args *args)
{
    return stream->ops->conv2d_is_whole != NULL && stream->ops->conv2d_is_whole(stream, args);
}
static inline bool dsc_gemm_has_plans(const dsc_device *device) { return device->ops->gemm_measure != NULL; }
DSC_MUST_USE dsc_status dsc_gemm_measure(dsc_stream *stream, dsc_gemm_choice choice, int64_t chunk_bytes,
                                         dsc_gemm_measured *out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_gemm_plans_get(dsc_device *device, char *text, int64_t capacity, int64_t *bytes,
                                           dsc_error *err);
DSC_MUST_USE dsc_status dsc_gemm_plans_set(dsc_device *device, const char *text, int64_t *others, dsc_error *err);
static inline void dsc_gemm_fuse(dsc_device *device, uint32_t fused)
{
    if (device->ops->gemm_fuse != NULL)
        device->ops->gemm_fuse(device, fused);
}
static inline bool dsc_gemm_slow(dsc_device *device, int64_t index, char *text, int64_t capacity)
{
    return device->ops->gemm_slow != NULL && device->ops->gemm_slow(device, index, text, capacity);
}
void dsc_device_props_get(dsc_device *device, dsc_device_props *out);
DSC_MUST_USE dsc_status dsc_device_reserve(dsc_device *device, int64_t bytes, dsc_error *err);
void dsc_device_watch(dsc_device *device, dsc_watch_fn fn, void *user);
void *dsc_stream_native(dsc_stream *stream); /* NULL: none */
DSC_MUST_USE dsc_status dsc_device_bind(dsc_device *device, dsc_error *err);
/* Without sections_open before, or where the device has none: begin and end do nothing. */
DSC_MUST_USE dsc_status dsc_sections_open(dsc_stream *stream, int32_t count, dsc_error *err);
DSC_MUST_USE dsc_status dsc_section_begin(dsc_stream *stream, int32_t section, dsc_error *err);
DSC_MUST_USE dsc_status dsc_section_end(dsc_stream *stream, bool run, dsc_error *err);
/* Without nesting. On an ASYNC stream both do nothing. */
static inline void dsc_wait_begin(dsc_stream *stream)
{
    if (stream->ops->wait_begin != NULL)
        stream->ops->wait_begin(stream);
}
static inline void dsc_wait_end(dsc_stream *stream)
{
    if (stream->ops->wait_end != NULL)
        stream->ops->wait_end(stream);
}
static inline int64_t dsc_waited_ns(dsc_stream *stream)
{
    return stream->ops->waited_ns != NULL ? stream->ops->waited_ns(stream) : 0;
}
static inline bool dsc_device_host_visible(const dsc_device *device) { return device->ops->host_visible; }

/* Typed launches: DSC_RUN(stream, ADAMW, &adamw_args, err). The static type of the struct is checked. */
#define DSC_RUN(stream, id, args, err) \
    dsc_launch((stream), DSC_KERNEL_##id, (1 ? (args) : (dsc_kernel_args_##id *)0), (int64_t)sizeof *(args), (err))

#ifdef __cplusplus
}
#endif
#endif
