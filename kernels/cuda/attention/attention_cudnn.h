/* attention_cudnn.h - attention by cuDNN: the plugin that has it, its plans and their work space.
 *
 * The plugin (kernels/cuda/cudnn) is optional. A shape has a plan for its forward pass and one for its gradients, or
 * none: both passes agree on what a log-sum-exp is, as kernels/attention.h says. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_ATTENTION_ATTENTION_CUDNN_H
#define DSC_KERNELS_CUDA_ATTENTION_ATTENTION_CUDNN_H

#include "kernels/cuda/cudnn/cudnn_plugin.h"
#include "kernels/cuda/port.h"

/* State of one GPU; all zero: not looked for yet. */
typedef struct attention_cudnn {
    const dsc_cudnn_plugin *table;
    void *library;        /* NULL: none */
    int64_t number;       /* 91900 for 9.19.0 */
    int64_t needed_bytes; /* size of a work space for all plans */
    void *workspace;      /* the caller's, of at least so many bytes before a run */
    bool looked;
    char note[256]; /* why a shape that asked for cuDNN goes without it; the first reason */
} attention_cudnn;

/* One pass of a shape. */
typedef struct attention_cudnn_plan {
    void *plan;                           /* NULL: none */
    char name[DSC_CUDNN_NAME_BYTES + 32]; /* "cudnn 91900 engine eng6_k2=1" */
} attention_cudnn_plan;

/* Both passes; false: there is no plan, and c->note says why. A work space of more than `bytes_most` is refused. */
bool dsc_cuda_attention_cudnn_plan(attention_cudnn *c, int32_t arch, const dsc_attention_fwd_args *shape,
                                   int64_t bytes_most, attention_cudnn_plan out[2]);
void dsc_cuda_attention_cudnn_plan_close(attention_cudnn *c, attention_cudnn_plan *plan);
/* After its plans. */
void dsc_cuda_attention_cudnn_close(attention_cudnn *c);

/* Whether cuDNN may have this call; pointers are looked at for their alignment, NULL has any. */
bool dsc_cuda_attention_cudnn_fits(const dsc_attention_fwd_args *a);
/* Whether the pointers of a call that fits otherwise are aligned. */
bool dsc_cuda_attention_cudnn_aligned(const dsc_attention_bwd_args *b);
/* Enqueue; calls of one GPU come one at a time. */
dsc_status dsc_cuda_attention_cudnn_fwd(const attention_cudnn *c, void *plan, cudaStream_t stream,
                                        const dsc_attention_fwd_args *a, dsc_error *err);
dsc_status dsc_cuda_attention_cudnn_bwd(const attention_cudnn *c, void *plan, cudaStream_t stream,
                                        const dsc_attention_bwd_args *a, dsc_error *err);

#endif
