/* attention_sm90.h - the attention kernels that only compute capability 9.0 has. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_ATTENTION_ATTENTION_SM90_H
#define DSC_KERNELS_CUDA_ATTENTION_ATTENTION_SM90_H

#include "kernels/attention.h"
#include "kernels/cuda/kernels.h"

/* A pass's kernels: of warps, which all GPUs have, and of warpgroups. IN_TURN is there for comparison. Its forward pass
 * has tiles of 64 keys instead of 128 and adds up as that of warps. Its gradients wait for the products of a tile
 * before they ask for the next one's; all kinds of gradients add up in the same order. */
typedef enum dsc_attention_kind {
    DSC_ATTENTION_WARPS,
    DSC_ATTENTION_WARPGROUPS,
    DSC_ATTENTION_WARPGROUPS_IN_TURN,
    DSC_ATTENTION_KINDS
} dsc_attention_kind;

/* The driver's way to describe a tensor, cuTensorMapEncodeTiled; NULL: this one has none. */
void *dsc_cuda_attention_sm90_find(void);
/* Whether the kernels, as compiled, can start on the calling thread's current GPU. */
bool dsc_cuda_attention_fwd_sm90_starts(void);
bool dsc_cuda_attention_bwd_sm90_starts(void);
/* Whether the kernels have this shape; pointers are looked at for their alignment, NULL has any. */
bool dsc_cuda_attention_fwd_sm90_fits(const dsc_attention_fwd_args *a);
bool dsc_cuda_attention_bwd_sm90_fits(const dsc_attention_bwd_args *a);
/* Enqueues; `encode` is what was found, `kind` one of warpgroups. */
dsc_status dsc_cuda_attention_fwd_sm90(const dsc_cuda_launch *at, const dsc_attention_fwd_args *a, void *encode,
                                       dsc_attention_kind kind, dsc_error *err);
dsc_status dsc_cuda_attention_bwd_sm90(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode,
                                       dsc_attention_kind kind, dsc_error *err);

#endif
