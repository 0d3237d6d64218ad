/* types.h - scalar types, dtypes and tensor descriptors shared by every public header.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TYPES_H
#define DSC_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define DSC_RESTRICT __restrict__
#else
#define DSC_RESTRICT restrict
#endif

#if defined(__GNUC__)
#define DSC_MUST_USE __attribute__((warn_unused_result))
#define DSC_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define DSC_API __attribute__((visibility("default")))
#else
#define DSC_MUST_USE
#define DSC_PRINTF(fmt, args)
#define DSC_API
#endif

typedef enum dsc_dtype {
    DSC_F32 = 0,
    DSC_BF16 = 1, /* the upper 16 bits of an fp32, round to nearest even */
    DSC_F16 = 2,
    DSC_F64 = 3,
    DSC_I32 = 4,
    DSC_I64 = 5,
    DSC_U8 = 6,
    DSC_DTYPE_COUNT
} dsc_dtype;

/* Bytes of one element; 0 for a value that is not a dtype. */
static inline size_t dsc_dtype_bytes(dsc_dtype dtype)
{
    switch (dtype) {
    case DSC_F32: case DSC_I32: return 4;
    case DSC_BF16: case DSC_F16: return 2;
    case DSC_F64: case DSC_I64: return 8;
    case DSC_U8: return 1;
    default: return 0;
    }
}

#define DSC_DIMS_MAX 6

/* Labels of a sample: none; one class, as an int32; numbers that are predicted, or a set of classes (1: in the set, 0:
 * not), each as fp32. A model that makes a vector of each text: the loss that compares the texts of rows
 * (kernels/text_vectors.h), whose samples have two fp32 numbers. */
typedef enum dsc_label_kind {
    DSC_LABELS_NONE,
    DSC_LABELS_CLASS,
    DSC_LABELS_NUMBERS,
    DSC_LABELS_SET,
    DSC_LABELS_RANKED, /* an anchor's positive before all other texts of the micro-batch */
    DSC_LABELS_COSINE, /* a pair's cosine is its score */
    DSC_LABELS_ORDER   /* the cosines of pairs are in the order of their scores */
} dsc_label_kind;
static inline bool dsc_label_kind_pairs(dsc_label_kind kind) { return kind >= DSC_LABELS_RANKED; }

/* Shape of a dense row-major tensor (the last index is fastest). */
typedef struct dsc_tensor_desc {
    dsc_dtype dtype;
    int32_t dim_count; /* 0..DSC_DIMS_MAX; 0 is a scalar */
    int64_t dim[DSC_DIMS_MAX];
} dsc_tensor_desc;

#ifdef __cplusplus
}
#endif
#endif
