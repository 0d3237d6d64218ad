/* fp8_cache.h - matrices of a run in fp8: which of them are cast already, and where.
 *
 * A product of two activations or gradients and one of weights read matrices that were cast before. Products that
 * follow each other often share one: three read one input, and a gradient is read by two. So the last few casts are
 * kept while nothing but such products runs on the stream. Weights are cast once for each update of the parameters, or
 * at each use. Where a call has room for it, inputs of layers are kept from forward to backward, transposed, as the
 * weights' gradients read them. The cache belongs to one compute stream. It launches casts and never allocates.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_FP8_CACHE_H
#define DSC_KERNELS_FP8_CACHE_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which products may keep sums with fewer bits (dsc_gemm_args.fast_sums). */
typedef enum dsc_fp8_fast { DSC_FP8_FAST_FORWARD, DSC_FP8_FAST_ALWAYS, DSC_FP8_FAST_NEVER } dsc_fp8_fast;

typedef struct dsc_fp8_options {
    dsc_fp8 gradients; /* format of gradients of activations; weights and activations are E4M3 */
    dsc_fp8_fast fast;
    bool blocks;        /* scales of blocks: rows of activations and gradients, squares of weights */
    bool keeps_weights; /* from one update to the next; else each use casts them */
} dsc_fp8_options;

/* Memory of a run's matrices. Parameters are numbered over all modules. */
typedef struct dsc_fp8_plan {
    dsc_fp8_options options;
    int64_t *weight_at;                        /* [parameters of all modules] offset of a kept weight; -1: none */
    int32_t first, count;                      /* parameters of the module that is planned */
    int64_t operand_elements, weight_elements; /* the largest */
    int64_t operand_steps, weight_steps;       /* bytes of the steps of blocks, likewise */
    int64_t weight_bytes;                      /* all kept weights */
    int64_t input_bytes;                       /* room for the inputs of the module's layers in one call */
    int64_t input_sum;                         /* of the layers so far */
    int32_t last_weight;
    int64_t *layer_numbers; /* [parameters of all modules] elements of the weight of each layer, where its first
                               parameter is; NULL: they are not listed */
} dsc_fp8_plan;

/* The layers that follow are of the module with these parameters. */
void dsc_fp8_plan_module(dsc_fp8_plan *plan, int32_t first, int32_t count);

typedef struct dsc_fp8_layer {
    int32_t weight; /* its parameter in the module; layers come in this order */
    int64_t rows, in, out;
    bool keeps_input; /* backward reads the input, and no layer before has the same one */
} dsc_fp8_layer;

/* A layer of the module: products of [rows, in] and [rows, out] with a weight. The layer may be added again for other
 * rows. */
void dsc_fp8_plan_layer(dsc_fp8_plan *plan, const dsc_fp8_layer *layer);
int64_t dsc_fp8_plan_bytes(const dsc_fp8_plan *plan); /* device memory; 0 without a layer */

/* A matrix [m, n] in fp8 as it is and transposed, each where it was asked for. */
typedef struct dsc_fp8_matrix {
    const uint8_t *rows, *columns;
    const dsc_fp8_scale *scale; /* of a matrix without blocks */
    dsc_fp8 format;
    dsc_fp8_blocks blocks;
    const float *row_steps, *column_steps; /* of blocks of `rows` and `columns` */
} dsc_fp8_matrix;

#define DSC_FP8_SLOTS 4 /* the input and three gradients of layers that share it */

typedef struct dsc_fp8_slot {
    const void *from; /* NULL: free */
    int64_t row_count, col_count;
    dsc_fp8_matrix matrix;
    uint64_t used;
} dsc_fp8_slot;

/* A module's call: a pass over one micro-batch. */
typedef struct dsc_fp8_call {
    int32_t first, count;   /* the module's parameters among all */
    bool saves;             /* forward, and a backward follows */
    dsc_fp8_matrix *inputs; /* [parameters of all modules] of this micro-batch: what is kept; NULL: nothing is */
    char *room;             /* 256-byte aligned, for kept inputs */
    int64_t room_bytes;
} dsc_fp8_call;

typedef struct dsc_fp8_cache {
    dsc_fp8_options options;
    const int64_t *weight_at; /* borrowed */
    bool *is_cast;            /* [parameters of all modules] borrowed; whether a kept weight is up to date */
    /* [parameters of all modules] borrowed: scales of weights that are given as E4M3 numbers, not in bf16, or NULL for
     * the others. NULL: all are in bf16. */
    const dsc_fp8_scale *const *gathered;
    char *operands, *weight_work, *weights;
    int64_t operand_elements, weight_elements, operand_steps, weight_steps;
    dsc_fp8_call call;
    int64_t room_used;
    dsc_fp8_slot slot[DSC_FP8_SLOTS];
    uint64_t clock, seen; /* `seen`: calls of the stream after the last product */
} dsc_fp8_cache;

/* `memory`: dsc_fp8_plan_bytes, 256-byte aligned. */
void dsc_fp8_cache_open(dsc_fp8_cache *cache, const dsc_fp8_plan *plan, void *memory, bool *is_cast);
/* The parameters have new values. count: of all modules. */
void dsc_fp8_new_weights(dsc_fp8_cache *cache, int32_t count);
/* A module's call begins: memory that was cast before may have other contents. */
void dsc_fp8_begin(dsc_fp8_cache *cache, const dsc_fp8_call *call);

typedef enum dsc_fp8_side { DSC_FP8_ROWS = 1, DSC_FP8_COLUMNS = 2, DSC_FP8_BOTH = 3 } dsc_fp8_side;

/* An activation or a gradient, bf16. The result is valid until the cache's next call but one. */
DSC_MUST_USE dsc_status dsc_fp8_operand(dsc_fp8_cache *cache, dsc_stream *stream, const dsc_cast_fp8_args *what,
                                        dsc_fp8_side side, dsc_fp8_matrix *out, dsc_error *err);
/* The input of a layer in forward, as it is; it is kept where there is room. */
DSC_MUST_USE dsc_status dsc_fp8_input(dsc_fp8_cache *cache, dsc_stream *stream, int32_t weight,
                                      const dsc_cast_fp8_args *what, dsc_fp8_matrix *out, dsc_error *err);
/* The same input in backward, transposed; false: it was not kept. */
bool dsc_fp8_kept_input(const dsc_fp8_cache *cache, int32_t weight, dsc_fp8_matrix *out);
/* Whether parameter `weight` of the module is given as numbers of fp8. */
bool dsc_fp8_is_gathered(const dsc_fp8_cache *cache, int32_t weight);
/* Parameter `weight` of the module, whose value is what->from: bf16, or the numbers of a gathered one. */
DSC_MUST_USE dsc_status dsc_fp8_weight(dsc_fp8_cache *cache, dsc_stream *stream, int32_t weight,
                                       const dsc_cast_fp8_args *what, dsc_fp8_side side, dsc_fp8_matrix *out,
                                       dsc_error *err);
/* After a launch of a layer's own: it wrote [to, to + bytes) and nothing else. */
void dsc_fp8_wrote(dsc_fp8_cache *cache, const dsc_stream *stream, const void *to, int64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
