/* export_nf4.h - weights of an export in 4 bits, as bitsandbytes and transformers save them. For export.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_EXPORT_NF4_H
#define DSC_ENGINE_CHECKPOINT_EXPORT_NF4_H

#include "engine/checkpoint/internal.h"

#define DSC_CKPT_NF4_PARTS_MAX 6
#define DSC_CKPT_NF4_STATE_BYTES 256

/* Tensors of a weight; the codes, which have its own name, come first. */
typedef struct dsc_ckpt_nf4_part {
    const char *suffix; /* behind the weight's name */
    dsc_tensor_desc desc;
    int64_t bytes;
    const void *data; /* NULL: not packed yet */
} dsc_ckpt_nf4_part;

typedef struct dsc_ckpt_nf4_weight {
    dsc_nf4 kind;
    dsc_dtype dtype; /* values of x are in it, and readers unpack to it */
    int64_t rows, cols; /* [out,in], as it is packed */
    bool transposed;    /* the checkpoint has it as [in,out] */
    dsc_ckpt_nf4_part part[DSC_CKPT_NF4_PARTS_MAX];
    int32_t part_count;
    char state[DSC_CKPT_NF4_STATE_BYTES];
    float *x; /* [rows * cols] the values */
    uint8_t *codes, *scale_codes;
    float *scales, *tops;
} dsc_ckpt_nf4_weight;

/* Whether transformers packs it: a matrix of a block, "*.NUMBER.*.weight", or one of a few linear layers elsewhere. */
bool dsc_ckpt_nf4_is(const dsc_safetensors_entry *weight);
/* Names, shapes and bytes of the parts. `transposed`: the weight is stored [in,out]. */
void dsc_ckpt_nf4_parts(dsc_nf4 kind, const dsc_safetensors_entry *weight, dsc_dtype dtype, bool transposed,
                        dsc_ckpt_nf4_weight *out);
/* Place in x of element i as the checkpoint stores it. */
static inline int64_t dsc_ckpt_nf4_place(const dsc_ckpt_nf4_weight *weight, int64_t i)
{
    return weight->transposed ? i % weight->rows * weight->cols + i / weight->rows : i;
}
/* Memory of x and of what is packed. To be closed also after a failure. */
DSC_MUST_USE dsc_status dsc_ckpt_nf4_open(dsc_ckpt_nf4_weight *weight, dsc_alloc *alloc, dsc_error *err);
/* Packs x, which is finite. The parts' data stay until close. */
void dsc_ckpt_nf4_pack(dsc_ckpt_nf4_weight *weight);
void dsc_ckpt_nf4_close(dsc_ckpt_nf4_weight *weight, dsc_alloc *alloc);

/* Refuses a config.json of a family whose layers transformers does not keep as this program does. *transposed: it keeps
 * them [out,in], and the checkpoint has them [in,out]. */
DSC_MUST_USE dsc_status dsc_ckpt_nf4_check_config(dsc_alloc *alloc, const char *path, const char *text, int64_t bytes,
                                                  bool *transposed, dsc_error *err);
/* *out <- the text of a checked config.json with "quantization_config". Owned by the caller. */
DSC_MUST_USE dsc_status dsc_ckpt_nf4_config(dsc_alloc *alloc, const char *text, int64_t bytes, dsc_nf4 kind,
                                            dsc_dtype dtype, char **out, int64_t *out_bytes, dsc_error *err);

#endif
