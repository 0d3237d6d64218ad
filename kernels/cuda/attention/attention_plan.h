/* attention_plan.h - which of its kernels the attention of a shape takes, and which its gradients.
 *
 * GPUs of compute capability 9.0 have two of each: by warps' products (attention_fwd.cu and attention_bwd.cu, as all
 * others) and by warpgroups' (attention_fwd_sm90.cu and attention_bwd_sm90.cu). The second is taken where its results
 * were compared with the first one's and none is wrong; what was not prepared or not tried takes the first. cuDNN
 * (attention_cudnn.h), where it is installed and wanted, is a third, compared in the same way. Gradients by warpgroups
 * have one kernel more, which stores those of scores and is chosen by time.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_ATTENTION_ATTENTION_PLAN_H
#define DSC_KERNELS_CUDA_ATTENTION_ATTENTION_PLAN_H

#include "kernels/attention.h"
#include "kernels/cuda/attention/attention_sm90.h"
#include "kernels/cuda/kernels.h"
#include "kernels/device.h"

/* Plans of the calling thread's current GPU. Safe on NULL. */
dsc_status dsc_cuda_attention_open(const dsc_device_options *options, int32_t arch, dsc_cuda_attention **out,
                                   dsc_error *err);
void dsc_cuda_attention_close(dsc_cuda_attention **attention);
/* Prepares the plans of a forward pass, and of its gradients with the same strides. Pointers in `shape` are ignored:
 * aligned ones are assumed. Of a shape that is prepared again, the last stored_bytes hold. */
void dsc_cuda_attention_prepare(dsc_cuda_attention *attention, const dsc_attention_fwd_args *shape);
/* Work space that cuDNN's plans need together, and the memory for it. bytes 0: there is none, and the plans go. */
int64_t dsc_cuda_attention_workspace_bytes(const dsc_cuda_attention *attention);
void dsc_cuda_attention_set_workspace(dsc_cuda_attention *attention, void *memory, int64_t bytes);
/* The kernel for this call. */
dsc_attention_kind dsc_cuda_attention_fwd_chosen(dsc_cuda_attention *attention, const dsc_attention_fwd_args *a);
dsc_attention_kind dsc_cuda_attention_bwd_chosen(dsc_cuda_attention *attention, const dsc_attention_bwd_args *a);
/* Argument of dsc_cuda_attention_fwd_sm90 and _bwd_sm90; NULL where only warps' kernels can be chosen. */
void *dsc_cuda_attention_encode(const dsc_cuda_attention *attention);
/* Enqueues by cuDNN where it is chosen for this call; *done is false when not. */
dsc_status dsc_cuda_attention_fwd_library(const dsc_cuda_launch *at, const dsc_attention_fwd_args *a, bool *done,
                                          dsc_error *err);
dsc_status dsc_cuda_attention_bwd_library(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, bool *done,
                                          dsc_error *err);
/* As device.h says of gemm_measure. `memory` is overwritten; a shape of which no sample fits there is not tried. */
dsc_status dsc_cuda_attention_choose(const dsc_cuda_launch *at, void *memory, int64_t memory_bytes,
                                     dsc_gemm_choice choice, dsc_attention_tried *out, dsc_error *err);
/* As device.h says of gemm_plans_get and gemm_plans_set: lines after those of products. set: `text` is of this card, or
 * NULL. */
void dsc_cuda_attention_plans_get(dsc_cuda_attention *attention, char *text, int64_t capacity, int64_t *bytes);
void dsc_cuda_attention_plans_set(dsc_cuda_attention *attention, const char *text, int64_t *others);

/* attention_fwd.cu, attention_bwd.cu: by products of warps. */
dsc_status dsc_cuda_attention_fwd_warps(const dsc_cuda_launch *at, const dsc_attention_fwd_args *a, dsc_error *err);
dsc_status dsc_cuda_attention_bwd_warps(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, dsc_error *err);

#endif
