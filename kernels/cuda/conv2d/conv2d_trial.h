/* conv2d_trial.h - a pass of a convolution by cuDNN and by products of windows, on the same random input: whether they
 * agree, and how long they take. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_CONV2D_CONV2D_TRIAL_H
#define DSC_KERNELS_CUDA_CONV2D_CONV2D_TRIAL_H

#include "kernels/conv2d.h"
#include "kernels/cuda/cudnn_library.h"
#include "kernels/cuda/kernels.h"

typedef struct conv2d_trial {
    const dsc_cuda_launch *at;
    const cudnn_library *cudnn;
    void *plan;            /* for this pass */
    dsc_conv2d_args shape; /* pointers are ignored, but for whether `add` is one */
    int64_t chunk_bytes;   /* limit of the windows, as in a step */
    bool timed;
    char *memory; /* overwritten; 256-byte aligned */
    int64_t memory_bytes;
} conv2d_trial;

typedef struct conv2d_found {
    bool fits;       /* in the memory; else nothing of this is known */
    unsigned far;    /* numbers that differ by more than rounding explains */
    unsigned unlike; /* words of two runs of cuDNN that differ in a bit */
    float ms[2];     /* timed and neither far nor unlike: the best of some rounds of the products and of cuDNN */
} conv2d_found;

dsc_status dsc_cuda_conv2d_try(const conv2d_trial *t, conv2d_found *out, dsc_error *err);

#endif
