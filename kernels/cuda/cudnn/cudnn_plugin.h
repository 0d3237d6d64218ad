/* cudnn_plugin.h - contract of lib/dsc/libdsc_cudnn.so: attention and convolutions by cuDNN, as kernels/attention.h and
 * kernels/conv2d.h define them.
 *
 * This is the only interface to cuDNN and its C++ frontend: no exception and none of their types passes it. The plugin
 * opens libcudnn.so.9 at run time. A plan belongs to one shape and one pass. It is made once, and a run of it allocates
 * nothing, so that it may be recorded in a CUDA graph. Calls of one library come one at a time.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_CUDNN_CUDNN_PLUGIN_H
#define DSC_KERNELS_CUDA_CUDNN_CUDNN_PLUGIN_H

#include "base/base.h"
#include "kernels/attention.h"
#include "kernels/conv2d.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Both sides share the argument structs by layout: sizes in words of 4 bytes. */
#define DSC_CUDNN_PLUGIN_VERSION                                                                                       \
    (2u << 24 | (uint32_t)sizeof(dsc_attention_fwd_args) / 4 << 16 |                                                   \
     (uint32_t)sizeof(dsc_attention_bwd_args) / 4 << 8 | (uint32_t)sizeof(dsc_conv2d_args) / 4)
#define DSC_CUDNN_PLUGIN_SYMBOL "dsc_cudnn_plugin_get"
#define DSC_CUDNN_NAME_BYTES 128

typedef struct dsc_cudnn_plan_info {
    int64_t workspace_bytes;         /* device memory of a run, 256-byte aligned */
    char name[DSC_CUDNN_NAME_BYTES]; /* engine and knobs; the same for the same library, GPU and shape */
} dsc_cudnn_plan_info;

typedef struct dsc_cudnn_plugin {
    uint32_t version, table_bytes;
    char build[32];
    /* cuDNN for GPU `device` of the process, of compute capability arch / 10. *number: 91900 for 9.19.0.
     * DSC_ERR_UNSUPPORTED and a reason: it is not installed or too old. */
    dsc_status (*open)(int32_t device, int32_t arch, void **library, int64_t *number, dsc_error *err);
    void (*close)(void *library); /* its plans are closed before */
    /* Pointers in `shape` are ignored: aligned ones are assumed. DSC_ERR_UNSUPPORTED: cuDNN has no deterministic engine
     * for it. */
    dsc_status (*attention_plan_open)(void *library, const dsc_attention_fwd_args *shape, bool backward, void **plan,
                                      dsc_cudnn_plan_info *info, dsc_error *err);
    /* One group, bf16 or fp32. Pointers are ignored, but for whether Y's `add` is a bias. The weight and its
     * gradient are [Cout, kh, kw, Cin] of that dtype; DX adds nothing. cuDNN 9.19 has no engines for sums in DX, and
     * none for gradients in fp32 of operands in bf16. */
    dsc_status (*conv2d_plan_open)(void *library, const dsc_conv2d_args *shape, void **plan, dsc_cudnn_plan_info *info,
                                   dsc_error *err);
    void (*plan_close)(void *plan);
    /* Enqueue on `stream`, a cudaStream_t. a->lse is never NULL; a->scratch is not used. */
    dsc_status (*attention_forward)(void *plan, void *stream, void *workspace, const dsc_attention_fwd_args *a,
                                    dsc_error *err);
    dsc_status (*attention_backward)(void *plan, void *stream, void *workspace, const dsc_attention_bwd_args *a,
                                     dsc_error *err);
    dsc_status (*conv2d)(void *plan, void *stream, void *workspace, const dsc_conv2d_args *a, dsc_error *err);
} dsc_cudnn_plugin;

typedef const dsc_cudnn_plugin *(*dsc_cudnn_plugin_fn)(void);
DSC_API const dsc_cudnn_plugin *dsc_cudnn_plugin_get(void);

#ifdef __cplusplus
}
#endif
#endif
