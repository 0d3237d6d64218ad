/* cudnn_library.h - cuDNN as one part of a GPU's kernels has it: the optional plugin (kernels/cuda/cudnn), and the work
 * space of the plans. Attention and convolutions have one each. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_CUDNN_LIBRARY_H
#define DSC_KERNELS_CUDA_CUDNN_LIBRARY_H

#include "kernels/cuda/cudnn/cudnn_plugin.h"
#include "kernels/cuda/port.h"

/* State of one GPU; all zero: not looked for yet. */
typedef struct cudnn_library {
    const dsc_cudnn_plugin *table;
    void *library;        /* NULL: none */
    int64_t number;       /* 91900 for 9.19.0 */
    int64_t needed_bytes; /* size of a work space for all plans */
    void *workspace;      /* the caller's, of at least so many bytes before a run */
    bool looked;
    char note[256]; /* why a shape that asked for cuDNN goes without it; the first reason */
} cudnn_library;

typedef struct cudnn_plan {
    void *plan;                           /* NULL: none */
    char name[DSC_CUDNN_NAME_BYTES + 32]; /* "cudnn 91900 engine eng6_k2=1" */
} cudnn_plan;

/* Whether cuDNN is there. Once for a GPU, which is the calling thread's current one. */
bool dsc_cuda_cudnn_look(cudnn_library *c, int32_t arch);
void dsc_cuda_cudnn_note(cudnn_library *c, const char *why);
/* Names a plan that was just opened; an error if cuDNN names no size of its work space. */
dsc_status dsc_cuda_cudnn_name(const cudnn_library *c, const dsc_cudnn_plan_info *info, cudnn_plan *plan,
                               dsc_error *err);
/* The most bytes of a work space: any where the user named cuDNN, or a part of the card's memory. */
int64_t dsc_cuda_cudnn_workspace_most(bool named);
/* False: `memory` of so many bytes is too small, which becomes the note. */
bool dsc_cuda_cudnn_set_workspace(cudnn_library *c, void *memory, int64_t bytes);
void dsc_cuda_cudnn_plan_close(cudnn_library *c, cudnn_plan *plan);
/* After its plans. */
void dsc_cuda_cudnn_close(cudnn_library *c);

#endif
