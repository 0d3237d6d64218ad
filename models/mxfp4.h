/* mxfp4.h - experts' matrices of a folder in MXFP4, as GPT-OSS is published.
 *
 * A parameter [E, in, out] is two tensors of bytes in files: "NAME_blocks" [E, out, in / 32, 16] and "NAME_scales"
 * [E, out, in / 32]. A byte of blocks has two codes, the lower four bits first; code c of a group of 32 inputs is the
 * E2M1 number dsc_mxfp4_values[c] times 2^(scale - 127).
 * source: OCP Microscaling Formats (MX) 1.0, and convert_moe_packed_tensors of transformers 5.24
 * Inside models/ only. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_MXFP4_H
#define DSC_MODELS_MXFP4_H

#include <dsc/model.h>

#include "models/weights.h"

typedef struct dsc_mxfp4 dsc_mxfp4;

extern const float dsc_mxfp4_values[16];

/* For parameters 0 .. count - 1, none of which is in MXFP4 at first. */
DSC_MUST_USE dsc_status dsc_mxfp4_open(dsc_mxfp4 **out, dsc_alloc *alloc, int64_t count, dsc_error *err);
void dsc_mxfp4_close(dsc_mxfp4 **mxfp4); /* safe on NULL */
/* Parameter i has these tensors, which stay the weights'. DSC_ERR_INPUT: another dtype than U8, or other sizes than the
 * parameter's three dimensions need. */
DSC_MUST_USE dsc_status dsc_mxfp4_add(dsc_mxfp4 *mxfp4, int64_t i, const dsc_weight *blocks, const dsc_weight *scales,
                                      const dsc_param_spec *spec, dsc_error *err);
bool dsc_mxfp4_has(const dsc_mxfp4 *mxfp4, int64_t i);
/* Elements [first, first + count) of parameter i as fp32; one that is not finite is DSC_ERR_INPUT. Threads may call it
 * at once. */
DSC_MUST_USE dsc_status dsc_mxfp4_read(dsc_mxfp4 *mxfp4, int64_t i, int64_t first, int64_t count, float *out,
                                       dsc_error *err);

#endif
