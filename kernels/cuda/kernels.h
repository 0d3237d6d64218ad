/* kernels.h - CUDA launchers: one per kernel id, in one const table. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_KERNELS_H
#define DSC_KERNELS_CUDA_KERNELS_H

#include "base/alloc.h"
#include "kernels/cuda/port.h"
#include "kernels/kernels.h"

typedef struct dsc_cuda_gemm dsc_cuda_gemm;
typedef struct dsc_cuda_attention dsc_cuda_attention;
typedef struct dsc_cuda_conv2d dsc_cuda_conv2d;

/* Every compute stream's workspace has at least this: column sums take it for the sums of parts. */
#define DSC_CUDA_WORKSPACE_BYTES_MIN (INT64_C(8) << 20)

/* Device, stream and libraries of a launch. Plain value. */
typedef struct dsc_cuda_launch {
    cudaStream_t stream;
    int32_t multiprocessors;
    int32_t arch; /* 90 for sm_90 */
    int32_t shared_bytes; /* shared memory that a block may have */
    int32_t l2_bytes;
    dsc_cuda_gemm *gemm;
    dsc_cuda_attention *attention;
    void *workspace; /* device memory of this stream */
    int64_t workspace_bytes;
    void *grouped; /* dsc_cuda_grouped_sm90_find */
    dsc_cuda_conv2d *conv2d;
} dsc_cuda_launch;

/* Checks the argument struct (that of the CPU kernel, with device pointers) and enqueues; never waits, never allocates.
 */
typedef dsc_status (*dsc_cuda_kernel_fn)(const dsc_cuda_launch *at, const void *args, dsc_error *err);
extern const dsc_cuda_kernel_fn dsc_cuda_kernels[DSC_KERNEL_COUNT]; /* by dsc_kernel */

#endif
