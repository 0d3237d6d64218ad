/* gemm_cublaslt.h - matrix products of one GPU by cuBLASLt, which is opened at run time.
 *
 * A plan is what the library is asked to do for one product: shape, strides, types, epilogue, alignment, and the
 * algorithm. Algorithms that add parts of a sum in an order of their own are left out, and the workspace is fixed, so a
 * plan has one result. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_GEMM_GEMM_CUBLASLT_H
#define DSC_KERNELS_CUDA_GEMM_GEMM_CUBLASLT_H

#include "kernels/cuda/kernels.h"
#include "kernels/device.h"

/* Whether the library can be used: DSC_ERR_UNSUPPORTED with its names and where it was looked for when not. version
 * (may be NULL) gets "cuBLASLt 13.1.0". */
dsc_status dsc_cuda_gemm_library(char *version, size_t version_bytes, dsc_error *err);

/* Handle and plans of the calling thread's current GPU; card ("NVIDIA H200, sm_90, 132 multiprocessors") is what plans
 * depend on beside the library. */
dsc_status dsc_cuda_gemm_open(dsc_alloc *alloc, const char *card, dsc_cuda_gemm **out, dsc_error *err);
void dsc_cuda_gemm_close(dsc_cuda_gemm **gemm);
/* Device memory that a compute stream needs for the library's use, for any shape. */
int64_t dsc_cuda_gemm_workspace_bytes(const dsc_cuda_gemm *gemm);
/* As device.h says of gemm_fuse and gemm_slow. */
void dsc_cuda_gemm_fuse(dsc_cuda_gemm *gemm, uint32_t fused);
bool dsc_cuda_gemm_slow(dsc_cuda_gemm *gemm, int64_t index, char *text, int64_t capacity);
/* Pointers in `shape` are ignored: aligned ones are assumed. */
dsc_status dsc_cuda_gemm_prepare(dsc_cuda_gemm *gemm, const dsc_gemm_args *shape, dsc_error *err);
/* Enqueues the product with its epilogue and sums. *done is false when the library does not have it, or when the
 * epilogue or the sums are chosen to be kernels of their own. */
dsc_status dsc_cuda_gemm_try(const dsc_cuda_launch *at, const dsc_gemm_args *args, bool *done, dsc_error *err);

/* The error of a product in fp8 that the library has not. */
dsc_status dsc_cuda_gemm_no_fp8(const dsc_gemm_args *a, dsc_error *err);

/* gemm_measure.cu: times the algorithms of every prepared product on an idle stream, on operands in `memory`, which
 * it overwrites. If the operands of a product do not fit there, it keeps the library's first choice. */
dsc_status dsc_cuda_gemm_measure(const dsc_cuda_launch *at, void *memory, int64_t memory_bytes, dsc_gemm_choice choice,
                                 dsc_gemm_measured *out, dsc_error *err);

/* gemm_text.cu: as device.h says of gemm_plans_get and gemm_plans_set. */
dsc_status dsc_cuda_gemm_plans_get(dsc_cuda_gemm *gemm, char *text, int64_t capacity, int64_t *bytes, dsc_error *err);
/* Whether the text is of this card and library. */
bool dsc_cuda_gemm_plans_are_mine(const dsc_cuda_gemm *gemm, const char *text);
dsc_status dsc_cuda_gemm_plans_set(dsc_cuda_gemm *gemm, const char *text, int64_t *others, dsc_error *err);

#endif
