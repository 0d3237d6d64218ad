/* kernels.h - the list of kernels, their argument structs, and the CPU's table of variants.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_KERNELS_H
#define DSC_KERNELS_KERNELS_H

#include "base/base.h"
#include "kernels/attention.h"
#include "kernels/average.h"
#include "kernels/batch_norm.h"
#include "kernels/conv.h"
#include "kernels/conv2d.h"
#include "kernels/cross_entropy.h"
#include "kernels/delta.h"
#include "kernels/dora.h"
#include "kernels/dropout.h"
#include "kernels/embedding.h"
#include "kernels/exchange.h"
#include "kernels/expert_bias.h"
#include "kernels/exact.h"
#include "kernels/binned_sum.h"
#include "kernels/fingerprint.h"
#include "kernels/fp8.h"
#include "kernels/gelu.h"
#include "kernels/gemm.h"
#include "kernels/layernorm.h"
#include "kernels/gather_rows.h"
#include "kernels/label_loss.h"
#include "kernels/lstm.h"
#include "kernels/mean_rows.h"
#include "kernels/heads.h"
#include "kernels/exact_gemm.h"
#include "kernels/places.h"
#include "kernels/moe.h"
#include "kernels/moe_balance.h"
#include "kernels/pool.h"
#include "kernels/preference.h"
#include "kernels/nf4.h"
#include "kernels/quant.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/sample_rows.h"
#include "kernels/sample_scale.h"
#include "kernels/scale.h"
#include "kernels/signs.h"
#include "kernels/swiglu.h"
#include "kernels/swiglu_pairs.h"
#include "kernels/text_vectors.h"
#include "kernels/update.h"
#include "kernels/zero_ranges.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_kernel {
#define X(id, args) DSC_KERNEL_##id,
#include "kernels/kernels.def"
#undef X
    DSC_KERNEL_COUNT
} dsc_kernel;

#define X(id, args) typedef args dsc_kernel_args_##id;
#include "kernels/kernels.def"
#undef X

const char *dsc_kernel_text(dsc_kernel kernel); /* "ADAMW" */
/* The kernel of a recipe's step; they are in the same order. Its arguments are dsc_update_args. */
static inline dsc_kernel dsc_recipe_kernel(dsc_recipe recipe)
{
    return (dsc_kernel)((int)DSC_KERNEL_ADAMW + (int)dsc_recipes[recipe].step);
}

/* Capabilities of the CPU. 0 is the portable C reference. Higher bits include the lower ones. With AMX all bf16
 * products are the library's, which uses it; the bit may also be set on a CPU without AMX. */
enum { DSC_CPU_AVX2 = 1u, DSC_CPU_AVX512 = 2u, DSC_CPU_AVX512_BF16 = 4u, DSC_CPU_AMX_BF16 = 8u };
uint32_t dsc_cpu_caps(void);
/* A virtual machine may offer AMX and leave out how large its tiles are: it counts as none. */
bool dsc_cpu_hides_tiles(void);

/* A thread pool for compute; passed to every CPU kernel. */
typedef struct dsc_cpu_threads {
    int32_t threads;               /* size of each OpenMP parallel region, >= 1; results never depend on it */
    uint32_t caps;
    struct dsc_gemm_store *gemm;   /* may be NULL where no GEMM runs; prepared GEMMs of this device (cpu/gemm.c) */
} dsc_cpu_threads;

/* `args` is the kernel's own struct. Runs to completion on the calling thread and its pool. */
typedef dsc_status (*dsc_kernel_fn)(const void *args, const dsc_cpu_threads *pool, dsc_error *err);

typedef struct dsc_kernel_table { dsc_kernel_fn fn[DSC_KERNEL_COUNT]; } dsc_kernel_table;

/* Writes the reference of every kernel, then for each set bit of caps the variants it allows. */
void dsc_kernel_table_init(dsc_kernel_table *table, uint32_t caps);
/* One per op file; called by dsc_kernel_table_init. */
void dsc_exact_init(dsc_kernel_table *table, uint32_t caps);      /* CAST CAST_STOCHASTIC ORDERED_REDUCE ADD SUMSQ */
void dsc_average_init(dsc_kernel_table *table, uint32_t caps);
void dsc_zero_ranges_init(dsc_kernel_table *table, uint32_t caps);
void dsc_fingerprint_init(dsc_kernel_table *table, uint32_t caps);
void dsc_update_init(dsc_kernel_table *table, uint32_t caps);     /* ADAMW SGD MOMENTUM ... */
void dsc_exact_gemm_init(dsc_kernel_table *table, uint32_t caps);
void dsc_binned_sum_init(dsc_kernel_table *table, uint32_t caps); /* MATRIX_SQUARES */
void dsc_quant_init(dsc_kernel_table *table, uint32_t caps);      /* QUANTIZE DEQUANTIZE ORDERED_REDUCE_QUANTIZED */
void dsc_fp8_init(dsc_kernel_table *table, uint32_t caps);        /* CAST_FP8 */
void dsc_nf4_init(dsc_kernel_table *table, uint32_t caps);        /* NF4_UNPACK */
void dsc_signs_init(dsc_kernel_table *table, uint32_t caps);      /* SIGNS_* */
void dsc_gemm_init(dsc_kernel_table *table, uint32_t caps);       /* GEMM COLSUM */
void dsc_layernorm_init(dsc_kernel_table *table, uint32_t caps);
void dsc_rmsnorm_init(dsc_kernel_table *table, uint32_t caps);
void dsc_gelu_init(dsc_kernel_table *table, uint32_t caps);
void dsc_swiglu_init(dsc_kernel_table *table, uint32_t caps);
void dsc_swiglu_pairs_init(dsc_kernel_table *table, uint32_t caps);
void dsc_rope_init(dsc_kernel_table *table, uint32_t caps);
void dsc_scale_init(dsc_kernel_table *table, uint32_t caps);
void dsc_dropout_init(dsc_kernel_table *table, uint32_t caps);
void dsc_dora_init(dsc_kernel_table *table, uint32_t caps); /* DORA_* */
void dsc_attention_init(dsc_kernel_table *table, uint32_t caps);
void dsc_cross_entropy_init(dsc_kernel_table *table, uint32_t caps);
void dsc_preference_init(dsc_kernel_table *table, uint32_t caps);
void dsc_embedding_init(dsc_kernel_table *table, uint32_t caps);
void dsc_places_init(dsc_kernel_table *table, uint32_t caps);
void dsc_gather_rows_init(dsc_kernel_table *table, uint32_t caps);
void dsc_expert_bias_init(dsc_kernel_table *table, uint32_t caps);
void dsc_label_loss_init(dsc_kernel_table *table, uint32_t caps);
void dsc_mean_rows_init(dsc_kernel_table *table, uint32_t caps);
void dsc_text_vectors_init(dsc_kernel_table *table, uint32_t caps); /* TEXT_* */
void dsc_heads_init(dsc_kernel_table *table, uint32_t caps);
void dsc_sample_rows_init(dsc_kernel_table *table, uint32_t caps); /* ROWS_* PATCHES */
void dsc_batch_norm_init(dsc_kernel_table *table, uint32_t caps); /* BATCH_* */
void dsc_pool_init(dsc_kernel_table *table, uint32_t caps);
void dsc_sample_scale_init(dsc_kernel_table *table, uint32_t caps); /* SAMPLE_* */
void dsc_moe_init(dsc_kernel_table *table, uint32_t caps); /* MOE_* GROUPED_GEMM */
void dsc_moe_balance_init(dsc_kernel_table *table);        /* MOE_TALLY MOE_BALANCE_BWD */
void dsc_conv_init(dsc_kernel_table *table, uint32_t caps); /* COPY_COLUMNS CONV_* */
void dsc_delta_init(dsc_kernel_table *table, uint32_t caps);
void dsc_lstm_init(dsc_kernel_table *table, uint32_t caps);   /* LSTM_* */
void dsc_conv2d_init(dsc_kernel_table *table, uint32_t caps); /* WINDOWS CONV2D_WEIGHT DEPTHWISE_* */
void dsc_exchange_init(dsc_kernel_table *table, uint32_t caps); /* EXCHANGE_* */

#ifdef __cplusplus
}
#endif
#endif
