/* attention_sm90.h - the attention kernels that only compute capability 9.0 has. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_ATTENTION_ATTENTION_SM90_H
#define DSC_KERNELS_CUDA_ATTENTION_ATTENTION_SM90_H

#include "kernels/attention.h"
#include "kernels/cuda/kernels.h"

/* A pass's kernels: of warps, which all GPUs have, and of warpgroups. WARPGROUPS is what runs take, one of those behind
 * it: each pass knows the fastest for narrow and for wide heads. Those behind it are named for comparisons.
 *   IN_TURN: tiles of 64 keys forward, which add up as those of warps. Gradients wait for the products of a tile before
 *            they ask for the next one's.
 *   AHEAD:   tiles of 128 keys forward. Gradients ask for the next tile's products before they wait.
 *   STAYING: the kernels of AHEAD in blocks that stay for many pieces of the work.
 *   STORED:  gradients only; those of scores are computed once and stored, and WARPGROUPS where these do not fit.
 * All kinds of gradients add up in the same order. */
typedef enum dsc_attention_kind {
    DSC_ATTENTION_WARPS,
    DSC_ATTENTION_WARPGROUPS,
    DSC_ATTENTION_WARPGROUPS_IN_TURN,
    DSC_ATTENTION_WARPGROUPS_AHEAD,
    DSC_ATTENTION_WARPGROUPS_STAYING,
    DSC_ATTENTION_WARPGROUPS_STORED,
    DSC_ATTENTION_CUDNN, /* attention_cudnn.h */
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
