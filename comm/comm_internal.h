/* comm_internal.h - declarations that the front and the transports share. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_COMM_INTERNAL_H
#define DSC_COMM_COMM_INTERNAL_H

#include <pthread.h>

#include "comm/comm.h"

struct dsc_transport {
    const dsc_comm_ops *ops;
};

#define DSC_COMM_RANKS_MAX 1024
#define DSC_COMM_TIMEOUT_NS INT64_C(600000000000)
#define DSC_COMM_OPEN_TIMEOUT_NS INT64_C(60000000000)
static inline int64_t dsc_comm_timeout_ns(const dsc_comm_options *options)
{
    return options->timeout_ns > 0 ? options->timeout_ns : DSC_COMM_TIMEOUT_NS;
}

static inline int64_t dsc_comm_open_timeout_ns(const dsc_comm_options *options)
{
    return options->open_timeout_ns > 0 ? options->open_timeout_ns : DSC_COMM_OPEN_TIMEOUT_NS;
}

/* front/comm.c: the transport below a fault wrapper. */
dsc_transport *dsc_comm_transport_of(const dsc_comm *comm);

/* opening.c: the user learns at open that ranks are waited for, `text`, and which variables made this job. */
void dsc_comm_log_wait(const dsc_comm_options *options, const char *text);
/* For an open that blocks in a library: the same after DSC_COMM_NOTICE_NS, from a thread of its own, unless closed
 * before. Zeroed at first; an open that fails tells nobody. */
#define DSC_COMM_NOTICE_NS INT64_C(3000000000)
typedef struct dsc_comm_open_watch {
    const dsc_comm_options *options; /* borrowed until close */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool runs, over;
} dsc_comm_open_watch;
void dsc_comm_open_watch_open(dsc_comm_open_watch *watch, const dsc_comm_options *options);
void dsc_comm_open_watch_close(dsc_comm_open_watch *watch);
/* An open has failed: adds to the message of *err the variables that made this job, and the remedy. A job that
 * dsc-launch started, or that no variables made, keeps its message. */
void dsc_comm_add_origin(const dsc_rank_info *info, dsc_error *err);

/* memory.c: the list of a communicator or transport, kept until close. Zeroed at first; need and count are set before
 * open. Close also after an open that failed. */
typedef struct dsc_comm_memory {
    dsc_alloc *alloc;
    dsc_device *device;
    void *owner; /* of needs whose kind asks for one */
    dsc_need need[DSC_COMM_NEEDS_MAX];
    int count;
} dsc_comm_memory;
DSC_MUST_USE dsc_status dsc_comm_memory_open(dsc_comm_memory *memory, const dsc_comm_options *options, dsc_error *err);
void dsc_comm_memory_close(dsc_comm_memory *memory);

/* The sum and the cast that every transport uses; bits as in kernels/exact.h. On a stream they are launches, without
 * one they run on the calling thread, beside the compute team that has the other cores. */
typedef struct dsc_comm_math {
    dsc_kernel_fn fold, cast;
    dsc_cpu_threads team;
} dsc_comm_math;
void dsc_comm_math_init(dsc_comm_math *math);
DSC_MUST_USE dsc_status dsc_comm_cast(const dsc_comm_math *math, void *to, dsc_dtype to_dtype, const float *from,
                                      int64_t count, dsc_stream *stream, dsc_error *err);
/* Casts `rows` runs of `count` elements, which are from_stride apart in `from` and adjacent in `to`. */
DSC_MUST_USE dsc_status dsc_comm_cast_rows(const dsc_comm_math *math, void *to, dsc_dtype to_dtype, const float *from,
                                           int64_t rows, int64_t count, int64_t from_stride, dsc_stream *stream,
                                           dsc_error *err);

/* The leaves of all ranks for one piece: leaf r starts at each[r], or at `at` + r * stride_bytes. */
typedef struct dsc_comm_parts {
    const void *at;
    int64_t stride_bytes;
    const void *const *each; /* not NULL: host addresses, without a stream only */
    dsc_dtype dtype;
    int32_t count;
} dsc_comm_parts;
/* Folded into args->acc, or stored apart, both from element `first` of the slice on. */
DSC_MUST_USE dsc_status dsc_comm_ordered_reduce(const dsc_comm_math *math, const dsc_reduce_scatter_args *args,
                                                const dsc_comm_parts *leaves, int64_t first, int64_t count,
                                                dsc_stream *stream, dsc_error *err);

/* Wraps an open transport so that its n-th call fails (fault.c). *out owns `inner`; on failure the caller keeps it. */
DSC_MUST_USE dsc_status dsc_comm_fault_wrap(dsc_alloc *alloc, dsc_transport *inner, int64_t fault_at,
                                            dsc_transport **out, dsc_error *err);

#endif
