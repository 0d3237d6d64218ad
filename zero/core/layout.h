/* layout.h - positions of tensors' elements: flat groups, slices, spans. Pure arithmetic, no memory moves.
 *
 * Each module has up to two flat groups, trainable and frozen. Matrices, or those of hidden layers, with their own
 * recipe form a third, and frozen weights that a run keeps packed (kernels/nf4.h) a fourth. Weights that are gathered
 * in fp8 have groups apart from the others of their kind. Tensors follow each other in declaration order, those that
 * are laid late behind the others, each starting at a multiple of 128 elements (256 bytes in bf16, 512 in fp32). With
 * moments in U8 it is a multiple of 256, so that a block of moments is of one tensor and of one rank. The group is
 * padded so that every rank's slice is a multiple of 1024 elements. Rank r owns elements [r * slice, (r + 1) * slice)
 * at every stage. Offsets of tensors do not depend on the world size; only the padding at the end does.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_CORE_LAYOUT_H
#define DSC_ZERO_CORE_LAYOUT_H

#include <dsc/model.h>

#include "base/alloc.h"
#include "kernels/nf4.h"
#include "kernels/update.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_LAYOUT_TENSOR_ALIGN 128 /* elements; tensor_align of a layout may be more */
#define DSC_LAYOUT_SLICE_ALIGN 1024 /* elements */

typedef struct dsc_layout_tensor {
    const dsc_param_spec *spec; /* borrowed from the model */
    int32_t module, param;      /* the module that declares it */
    int32_t group;
    int32_t number; /* index if tensors stood in the order of the module's list */
    int64_t offset; /* elements from the start of the group */
    int64_t drawn;  /* the same if none was laid late: random roundings are drawn by it, whatever lies where */
    int64_t count;  /* elements */
    int64_t fp8_count;    /* in a group in fp8: elements of the matrix with one scale that begins here; 0: none does */
    bool uncounted;       /* another rank of the job stands for it in the norm (dsc_param_part) */
    int32_t update_class; /* which of an update's scalars are its own: 0 with weight decay, 1 without, unless the
                             engine has put it elsewhere */
} dsc_layout_tensor;

typedef struct dsc_layout_group {
    int32_t module;
    bool trainable;
    bool matrices; /* which a recipe for them updates */
    dsc_nf4 packed; /* how its parameters are stored, frozen ones alone; windows have them unpacked */
    bool fp8;       /* stage 3 gathers it as matrices in fp8 (zero/fp8_gather.h) */
    bool uncounted; /* some of its tensors are */
    int32_t first_tensor, tensor_count; /* in layout.tensor */
    int64_t elements;                   /* end of the last tensor */
    int64_t padded;                     /* world_size * slice */
    int64_t slice;
    int64_t position; /* first element's index over all groups, without paddings; equal for each W */
} dsc_layout_group;

/* One module's parameter as the module sees it. */
typedef struct dsc_layout_param {
    int32_t tensor;  /* index in layout.tensor; shared parameters point at their owner's */
    bool shared;     /* owned by another module */
} dsc_layout_param;

typedef struct dsc_layout {
    dsc_alloc *alloc;
    int32_t world_size;
    int64_t tensor_align; /* elements */
    int32_t group_count, tensor_count, module_count, param_count;
    dsc_layout_group *group;
    dsc_layout_tensor *tensor;
    dsc_layout_param *param;     /* module m has param[module_first_param[m] .. module_first_param[m + 1]) */
    int32_t *module_first_param; /* [module_count + 1] */
    int32_t *module_first_use;   /* [module_count + 1] into use_group */
    int32_t *use_group;          /* groups module m reads: own trainable, own frozen, then owners of shared ones */
    int64_t parameter_count, trainable_count; /* elements of tensors, shared ones once */
} dsc_layout;

/* Facts that a layout depends on, beside its model. */
typedef struct dsc_layout_rules {
    dsc_recipe recipe; /* of the update */
    dsc_dtype moment_dtype;
    int32_t world_size;
    dsc_nf4 packed; /* storage of frozen matrices of hidden layers, which linear layers have */
    bool experts;   /* frozen experts are stored like that too */
    /* [parameters of all modules] elements of the matrix in fp8 that begins with each parameter, -1 for one that
     * continues a matrix, 0 for others. NULL: 0 for all. */
    const int64_t *fp8;
    int32_t first_module, whole_modules; /* the modules are those from the first one on, of so many; 0: they are all */
} dsc_layout_rules;

/* The model has passed dsc_model_check. Owned; close frees what it points to. */
DSC_MUST_USE dsc_status dsc_layout_open(dsc_alloc *alloc, const dsc_model *model, const dsc_layout_rules *rules,
                                        dsc_layout *out, dsc_error *err);
void dsc_layout_close(dsc_layout *layout);
/* The recipe that updates a trainable group in a run of `recipe`. */
static inline dsc_recipe dsc_layout_recipe(const dsc_layout *layout, int32_t group, dsc_recipe recipe)
{
    DSC_ASSERT(group >= 0);
    DSC_ASSERT(group < layout->group_count);
    return layout->group[group].matrices ? recipe : dsc_recipes[recipe].rest;
}
/* A tensor as a matrix: dimensions from the second on are one. */
static inline int64_t dsc_layout_rows(const dsc_layout_tensor *tensor)
{
    DSC_ASSERT(tensor->count % tensor->spec->dim[0] == 0); /* whole rows */
    return tensor->spec->dim[0];
}
static inline int64_t dsc_layout_cols(const dsc_layout_tensor *tensor)
{
    DSC_ASSERT(tensor->count >= tensor->spec->dim[0]);
    return tensor->count / tensor->spec->dim[0];
}

/* Elements of each rank's slice of a group. */
static inline int64_t dsc_layout_slice(int64_t elements, int32_t world_size)
{
    DSC_ASSERT(world_size >= 1);
    return dsc_align_up(dsc_div_ceil(elements, world_size), DSC_LAYOUT_SLICE_ALIGN);
}

/* Bytes of a slice of a packed group: whole units, and then up to the alignment of what follows. */
#define DSC_LAYOUT_PACKED_ALIGN 256
static inline int64_t dsc_layout_packed_bytes(const dsc_layout_group *group)
{
    DSC_ASSERT(group->packed != DSC_NF4_NONE && !group->trainable);
    return dsc_align_up(dsc_nf4_bytes(group->packed, group->slice), DSC_LAYOUT_PACKED_ALIGN);
}

/* The part of a tensor inside elements [first, first + count) of its group: *tensor_first is the offset inside the
 * tensor. Returns the number of elements, 0 when they do not meet. */
int64_t dsc_layout_span(const dsc_layout_tensor *tensor, int64_t first, int64_t count, int64_t *tensor_first);

#ifdef __cplusplus
}
#endif
#endif
