/* launch_times.h - the time of a CPU's work by kernel and shape: measured on a real device, read by a virtual one.
 *
 * A GPU's kernels follow from a few rates (costs.c). A CPU's do not: a product's speed depends on its shape, and a pass
 * over memory on the caches. So one rank's launches are measured, and another number of ranks has the same ones but for
 * the lengths of slices. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_VIRTUAL_LAUNCH_TIMES_H
#define DSC_KERNELS_VIRTUAL_LAUNCH_TIMES_H

#include "kernels/virtual/virtual.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DSC_LAUNCH_COPY = DSC_KERNEL_COUNT, /* kinds of work beside kernels */
    DSC_LAUNCH_ZERO,
    DSC_LAUNCH_PULL, /* from another process's memory, by a system call */
    DSC_LAUNCH_KINDS,
    DSC_LAUNCH_SHAPE = 4,    /* numbers of a shape */
    DSC_LAUNCH_SAMPLES = 64, /* of one shape */
    DSC_LAUNCH_TIMES = 4096  /* shapes */
};

#define DSC_LAUNCH_FACTOR 1e6

/* Shape 0 is the amount of work: operations of a product, bytes of other kernels. The others tell products apart. */
typedef struct dsc_launch_time {
    int32_t kind; /* dsc_kernel, or DSC_LAUNCH_COPY and what follows */
    int64_t shape[DSC_LAUNCH_SHAPE];
    double seconds;                   /* median of the samples */
    int64_t count;                    /* launches measured */
    float sample[DSC_LAUNCH_SAMPLES]; /* the newest ones */
} dsc_launch_time;

/* Zeroed, with `inner` set, by the caller. One thread uses it. */
typedef struct dsc_launch_times {
    dsc_device_ops ops;          /* the timed device's table; filled by dsc_launch_times_device */
    const dsc_device_ops *inner; /* the device that works */
    bool measures;               /* off: launches are not timed */
    bool full;                   /* some shape has no row */
    dsc_launch_time *row;        /* [DSC_LAUNCH_TIMES], the caller's */
    int32_t count;
    double seconds; /* of all launches since the caller set it to 0 */
    int64_t launches;
} dsc_launch_times;

/* A device that does `inner`'s work and measures the CPU time of each launch on the calling thread. Its options have
 * `times`. */
const dsc_device_ops *dsc_launch_times_device(dsc_launch_times *times);
/* One more launch, which the caller has measured. */
void dsc_launch_times_add(dsc_launch_times *times, int32_t kind, const int64_t shape[DSC_LAUNCH_SHAPE], double seconds);
/* The medians, after the last measured launch. */
void dsc_launch_times_settle(dsc_launch_times *times);
/* Seconds of that work. A shape that was not measured: by the nearest amount of work of the same kind and, for
 * products, of the same operands, in proportion. More than DSC_LAUNCH_FACTOR times as much: the seconds of so much, and
 * *known = false. A kind that was not measured: 0 and *known = false. */
double dsc_launch_times_get(const dsc_launch_times *times, int32_t kind, const int64_t shape[DSC_LAUNCH_SHAPE],
                            bool *known);
const char *dsc_launch_kind_text(int32_t kind); /* "GEMM", "COPY" */
/* costs.c */
void dsc_launch_shape(dsc_kernel kernel, const void *args, int64_t shape[DSC_LAUNCH_SHAPE]);

#ifdef __cplusplus
}
#endif
#endif
