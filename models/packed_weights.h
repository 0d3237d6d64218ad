/* packed_weights.h - weights of a folder that bitsandbytes has put in NF4, as transformers saves them.
 *
 * Beside the codes in "NAME" are "NAME.absmax" (scales), "NAME.quant_map" (the 16 numbers), and a JSON text in
 * "NAME.quant_state.bitsandbytes__nf4". With double quantization also "NAME.nested_absmax" and "NAME.nested_quant_map".
 * kernels/nf4.h has the formulas. Inside models/ only. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_PACKED_WEIGHTS_H
#define DSC_MODELS_PACKED_WEIGHTS_H

#include <dsc/model.h>

#include "models/weights.h"

/* A weight [rows,cols] in 4 bits; codes is NULL where a weight is not. Borrowed from the weights. */
typedef struct dsc_packed_weight {
    const dsc_weight *codes, *scales, *tops; /* no tops: scales are fp32 */
    float offset;
    int64_t count; /* elements */
    int64_t turned; /* 0, or the rows of the files' matrix, which the model has transposed */
} dsc_packed_weight;

/* Where a part of a parameter begins in a tensor, or the tensor in 4 bits that it is. */
typedef struct dsc_weight_part {
    const dsc_weight *of;
    int64_t first;            /* its first element */
    dsc_packed_weight packed; /* codes: NULL: it is not in 4 bits */
} dsc_weight_part;

/* Whether a weight has the tensors of one in 4 bits beside it. */
bool dsc_packed_weight_is(const dsc_weights *weights, const dsc_weight *weight);
/* Checks all of its tensors against the shape that the model needs, and marks them in used[], which has an entry for
 * each tensor of the weights. DSC_ERR_UNSUPPORTED for other formats of bitsandbytes. */
DSC_MUST_USE dsc_status dsc_packed_weight_open(const dsc_weights *weights, dsc_alloc *alloc, const dsc_weight *weight,
                                               int64_t rows, int64_t cols, dsc_packed_weight *out, bool *used,
                                               dsc_error *err);
/* out <- bytes [first, first + bytes) of a part; fp32 numbers that are not finite are refused. */
DSC_MUST_USE dsc_status dsc_packed_weight_read(const dsc_packed_weight *packed, dsc_packed_part part, int64_t first,
                                               int64_t bytes, void *out, dsc_error *err);
/* Elements [first, first + count) as the model has them, unpacked. */
DSC_MUST_USE dsc_status dsc_packed_weight_read_f32(const dsc_packed_weight *packed, int64_t first, int64_t count,
                                                   float *out, dsc_error *err);

#endif
