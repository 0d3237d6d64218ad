/* device_cuda.h - shared by the files of the cuda device. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_DEVICE_DEVICE_CUDA_H
#define DSC_KERNELS_CUDA_DEVICE_DEVICE_CUDA_H

#include <pthread.h>

#include "kernels/cuda/kernels.h"
#include "kernels/device.h"

enum {
    DSC_CUDA_HOST_CALLS = 64, /* host calls of one stream on their way; the next one waits for it */
    DSC_CUDA_WATCHES = 32     /* communicators over one device's memory, say */
};

extern "C" const dsc_device_ops dsc_device_cuda;

struct cuda_stream;
struct cuda_sections;
struct cuda_waits;

/* Work that a stream is asked for, by value: what is not used is 0, so that two of the same bytes are the same work.
 * HOST is none: `args` are bytes of host memory that the launch before it reads. */
typedef enum cuda_call_kind {
    CUDA_CALL_LAUNCH = 1,
    CUDA_CALL_COPY,
    CUDA_CALL_ZERO,
    CUDA_CALL_HOST
} cuda_call_kind;
typedef struct cuda_call {
    int32_t kind;
    int32_t kernel; /* LAUNCH: a dsc_kernel */
    int64_t bytes;  /* size of args, or of the copy */
    void *to;
    const void *from;
    alignas(16) unsigned char args[DSC_LAUNCH_ARGS_MAX];
} cuda_call;

/* A host call on its way: filled by the caller, run and given back by a thread of the driver. */
typedef struct cuda_host_call {
    struct cuda_stream *stream;
    dsc_host_fn fn;
    bool busy; /* under the device's lock */
    alignas(16) unsigned char args[DSC_LAUNCH_ARGS_MAX];
} cuda_host_call;

typedef struct cuda_device {
    dsc_device base;
    dsc_alloc *alloc;
    int index, arch, multiprocessors;
    int shared_bytes; /* shared memory that a block may have */
    int l2_bytes;
    char name[96], pci[16];
    double peak_flops;
    double peak_bytes;
    dsc_cuda_gemm *gemm;
    dsc_cuda_attention *attention;
    dsc_cuda_conv2d *conv2d;
    void *grouped;               /* dsc_cuda_grouped_sm90_find */
    dsc_buf cudnn_workspace;     /* for the plans of attentions and convolutions, of the compute stream */
    cudaStream_t setup; /* zeroes new memory */
    uint64_t plans_chosen; /* how often: what was recorded before has other algorithms */
    struct { dsc_watch_fn fn; void *user; } watch[DSC_CUDA_WATCHES];
    int watch_count;
    struct { /* cut from the front; begins again when all parts are closed */
        char *base;
        int64_t bytes, used, part_count;
    } arena;
    pthread_mutex_t lock; /* what follows */
    bool failed; /* an error of the device is an error of all its streams: CUDA's are the whole context's */
    dsc_error error;
    bool hangs; /* a kernel that does not end: nothing may wait for the device any more, and its memory stays */
    int64_t stream_count, event_count, buffer_count;
} cuda_device;

typedef struct cuda_stream {
    dsc_stream base;
    cuda_device *device;
    cudaStream_t handle;
    char name[32];
    dsc_kernel last_kernel; /* for the words about a failure; DSC_KERNEL_COUNT: none yet */
    dsc_buf workspace;
    cuda_host_call *calls; /* [DSC_CUDA_HOST_CALLS] */
    uint64_t call_count;
    struct cuda_sections *sections; /* sections_cuda.cu; NULL: none */
    struct cuda_waits *waits;       /* waits_cuda.cu; NULL: not a COMPUTE stream */
} cuda_stream;

typedef struct cuda_event {
    dsc_event base;
    cuda_device *device;
    cudaEvent_t handle;
    bool recorded;
} cuda_event;

/* The device becomes the calling thread's; a failure that the device already had comes out again. */
dsc_status dsc_cuda_enter(cuda_device *device, dsc_error *err);
/* Turns a CUDA error into the device's failure and returns it; `what` was being done. cudaSuccess is DSC_OK. */
dsc_status dsc_cuda_check(cuda_device *device, cudaError_t error, const char *what, dsc_error *err);
/* Reports an error without making it the device's: for failures that leave the device usable (out of memory). */
dsc_status dsc_cuda_refused(const cuda_device *device, cudaError_t error, const char *what, dsc_error *err);
/* The first failure of the device stays. */
void dsc_cuda_note_failure(cuda_device *device, const dsc_error *why);

/* memory_cuda.cu */
dsc_status dsc_cuda_reserve(dsc_device *device, int64_t bytes, dsc_error *err);
dsc_status dsc_cuda_mem_open(dsc_device *device, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_buf *out,
                             dsc_error *err);
void dsc_cuda_mem_close(dsc_device *device, dsc_buf *buf);
void dsc_cuda_arena_close(cuda_device *device);

/* stream_cuda.cu */
dsc_status dsc_cuda_stream_open(dsc_device *device, dsc_stream_kind kind, const char *name, dsc_stream **out,
                                dsc_error *err);
void dsc_cuda_stream_close(dsc_stream *stream);
dsc_status dsc_cuda_stream_sync(dsc_stream *stream, dsc_error *err);
dsc_status dsc_cuda_event_open(dsc_device *device, dsc_event **out, dsc_error *err);
void dsc_cuda_event_close(dsc_event *event);
dsc_status dsc_cuda_event_record(dsc_event *event, dsc_stream *stream, dsc_error *err);
dsc_status dsc_cuda_stream_wait(dsc_stream *stream, dsc_event *event, dsc_error *err);
dsc_status dsc_cuda_event_sync(dsc_event *event, dsc_error *err);
bool dsc_cuda_event_passed(dsc_event *event);
dsc_status dsc_cuda_copy(dsc_stream *stream, void *to, const void *from, int64_t bytes, dsc_error *err);
dsc_status dsc_cuda_zero(dsc_stream *stream, void *to, int64_t bytes, dsc_error *err);
dsc_status dsc_cuda_do_launch(dsc_stream *stream, dsc_kernel kernel, const void *args, int64_t args_bytes,
                              dsc_error *err);
dsc_status dsc_cuda_measure(dsc_stream *stream, dsc_gemm_choice choice, int64_t chunk_bytes, dsc_gemm_measured *out,
                            dsc_error *err);
dsc_status dsc_cuda_host_call(dsc_stream *stream, dsc_host_fn fn, const void *args, int64_t args_bytes,
                              dsc_error *err);
/* Enqueues it now. */
dsc_status dsc_cuda_call_run(cuda_stream *stream, const cuda_call *call, dsc_error *err);
/* Turns a CUDA error of the stream's work into the device's failure, with the stream and its last kernel. */
dsc_status dsc_cuda_stream_check(cuda_stream *stream, cudaError_t error, dsc_error *err);

bool dsc_cuda_stream_conv2d_is_whole(dsc_stream *stream, const dsc_conv2d_args *args);

/* waits_cuda.cu */
void dsc_cuda_wait_begin(dsc_stream *stream);
void dsc_cuda_wait_end(dsc_stream *stream);
int64_t dsc_cuda_waited_ns(dsc_stream *stream);
dsc_status dsc_cuda_waits_open(cuda_stream *stream, dsc_error *err);
void dsc_cuda_waits_close(cuda_stream *stream);

/* sections_cuda.cu */
dsc_status dsc_cuda_sections_open(dsc_stream *stream, int32_t count, dsc_error *err);
void dsc_cuda_sections_close(cuda_stream *stream);
dsc_status dsc_cuda_section_begin(dsc_stream *stream, int32_t section, dsc_error *err);
dsc_status dsc_cuda_section_end(dsc_stream *stream, bool run, dsc_error *err);
/* Puts the call off to the section's end, or enqueues it now where no section is open. */
dsc_status dsc_cuda_section_call(cuda_stream *stream, const cuda_call *call, dsc_error *err);
/* Ends an open section, enqueuing what was put off: something else is asked of the stream. */
dsc_status dsc_cuda_section_leave(cuda_stream *stream, dsc_error *err);

#endif
