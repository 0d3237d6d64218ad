/* kernels.c - the CPU's kernel table. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kernels.h"

#include <string.h>

/* An id that nobody filled stays NULL and its launch is an error (kernels/cpu/device_cpu.c). */
void dsc_kernel_table_init(dsc_kernel_table *table, uint32_t caps)
{
    memset(table, 0, sizeof *table);
    dsc_exact_init(table, caps);
    dsc_update_init(table, caps);
    dsc_exact_gemm_init(table, caps);
    dsc_binned_sum_init(table, caps);
    dsc_quant_init(table, caps);
    dsc_fp8_init(table, caps);
    dsc_nf4_init(table, caps);
    dsc_signs_init(table, caps);
    dsc_gemm_init(table, caps);
    dsc_layernorm_init(table, caps);
    dsc_rmsnorm_init(table, caps);
    dsc_gelu_init(table, caps);
    dsc_swiglu_init(table, caps);
    dsc_rope_init(table, caps);
    dsc_scale_init(table, caps);
    dsc_average_init(table, caps);
    dsc_zero_ranges_init(table, caps);
    dsc_fingerprint_init(table, caps);
    dsc_dropout_init(table, caps);
    dsc_dora_init(table, caps);
    dsc_attention_init(table, caps);
    dsc_cross_entropy_init(table, caps);
    dsc_preference_init(table, caps);
    dsc_embedding_init(table, caps);
    dsc_places_init(table, caps);
    dsc_gather_rows_init(table, caps);
    dsc_swiglu_pairs_init(table, caps);
    dsc_expert_bias_init(table, caps);
    dsc_label_loss_init(table, caps);
    dsc_mean_rows_init(table, caps);
    dsc_text_vectors_init(table, caps);
    dsc_heads_init(table, caps);
    dsc_sample_rows_init(table, caps);
    dsc_batch_norm_init(table, caps);
    dsc_pool_init(table, caps);
    dsc_sample_scale_init(table, caps);
    dsc_moe_init(table, caps);
    dsc_moe_balance_init(table);
    dsc_conv_init(table, caps);
    dsc_delta_init(table, caps);
    dsc_lstm_init(table, caps);
    dsc_conv2d_init(table, caps);
    dsc_exchange_init(table, caps);
}
