/* attention_trial.h - two kernels of an attention, or of its gradients, on the same random input: whether they agree,
 * and how long they take. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_ATTENTION_ATTENTION_TRIAL_H
#define DSC_KERNELS_CUDA_ATTENTION_ATTENTION_TRIAL_H

#include "kernels/attention.h"
#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/kernels.h"

typedef struct attention_trial {
    const dsc_cuda_launch *at;
    dsc_attention_kind candidate; /* compared with the kernel of warps, or the plain one of wide heads */
    dsc_attention_kind own;       /* timed beside it */
    bool timed, same_bits;        /* same_bits: not timed where bits differ */
    void *encode; /* of dsc_cuda_attention_sm90_find */
    const cudnn_library *cudnn;
    void *cudnn_plan; /* for this shape and pass */
    char *memory; /* overwritten; 256-byte aligned */
    int64_t memory_bytes;
    dsc_attention_fwd_args shape; /* pointers are ignored */
    bool backward;                /* its gradients */
    bool hides, documents;        /* keys are hidden; positions are given */
} attention_trial;

typedef struct attention_found {
    bool fits;       /* in the memory; else nothing of this is known */
    unsigned far;    /* numbers of the two kernels that differ by more than rounding explains */
    unsigned unlike; /* numbers that differ in a bit: of two runs of cuDNN, or of STORED and `own` */
    float ms[2];     /* timed: the best of some rounds of `own` and of the candidate */
} attention_found;

dsc_status dsc_cuda_attention_try(const attention_trial *t, attention_found *out, dsc_error *err);

/* The gradients of an attention, with its pointers and no others. */
static inline dsc_attention_bwd_args dsc_cuda_attention_gradients_of(const dsc_attention_fwd_args *a)
{
    dsc_attention_bwd_args b = {};
    b.out = a->out, b.lse = a->lse, b.q = a->q, b.k = a->k, b.v = a->v;
    b.q_stride = a->q_stride, b.k_stride = a->k_stride, b.v_stride = a->v_stride, b.out_stride = a->out_stride;
    b.head_stride = a->head_stride;
    b.batch = a->batch, b.tokens = a->tokens, b.heads = a->heads, b.kv_heads = a->kv_heads;
    b.head_size = a->head_size, b.scale = a->scale, b.keys = a->keys, b.dtype = a->dtype;
    b.logits = a->logits, b.sinks = a->sinks;
    return b;
}

#endif
