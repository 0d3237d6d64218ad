/* attention_cudnn.h - attention by cuDNN: its plans and runs.
 *
 * A shape has a plan for its forward pass and one for its gradients, or
 * none: both passes agree on what a log-sum-exp is, as kernels/attention.h says. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_ATTENTION_ATTENTION_CUDNN_H
#define DSC_KERNELS_CUDA_ATTENTION_ATTENTION_CUDNN_H

#include "kernels/cuda/cudnn_library.h"

/* Both passes; false: there is no plan, and c->note says why. A work space of more than `bytes_most` is refused. */
bool dsc_cuda_attention_cudnn_plan(cudnn_library *c, int32_t arch, const dsc_attention_fwd_args *shape,
                                   int64_t bytes_most, cudnn_plan out[2]);

/* Whether cuDNN may have this call; pointers are looked at for their alignment, NULL has any. */
bool dsc_cuda_attention_cudnn_fits(const dsc_attention_fwd_args *a);
/* Whether the pointers of a call that fits otherwise are aligned. */
bool dsc_cuda_attention_cudnn_aligned(const dsc_attention_bwd_args *b);
/* Enqueue; calls of one GPU come one at a time. */
dsc_status dsc_cuda_attention_cudnn_fwd(const cudnn_library *c, void *plan, cudaStream_t stream,
                                        const dsc_attention_fwd_args *a, dsc_error *err);
dsc_status dsc_cuda_attention_cudnn_bwd(const cudnn_library *c, void *plan, cudaStream_t stream,
                                        const dsc_attention_bwd_args *a, dsc_error *err);

#endif
