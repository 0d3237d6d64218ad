/* costs.c - the time of a kernel from its arguments and the card's rates. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/conv2d_products.h"
#include "kernels/virtual/launch_times.h"

/* Output tiles of cuBLASLt's kernels for large products on sm_90. */
#define TILE_ROWS 128
#define TILE_COLS 256
/* Products with few tiles are cut along K too, in parts of this many elements at least. */
#define SPLIT_K 1024

/* Products in fp8, in rates of bf16; the tensor cores' own factor is 2. They follow from steps of Llama 2 7B on an H200
 * (bench/cards/H200.json). */
#define FP8_RATE 1.75
#define FP8_RATE_FAST_SUMS 2.0

static double each(dsc_dtype dtype) { return (double)dsc_dtype_bytes(dtype); }

/* The part of the multiprocessors that have work, over all rounds of tiles, with the best cut along K. */
static double fill_of(const dsc_card_rates *rates, int64_t m, int64_t n, int64_t k)
{
    const double tiles = (double)(dsc_div_ceil(m, TILE_ROWS) * dsc_div_ceil(n, TILE_COLS));
    double best = 0;
    for (int64_t cuts = 1; cuts == 1 || (cuts <= 16 && k / cuts >= SPLIT_K); cuts++) {
        const double work = tiles * (double)cuts, rounds = ceil(work / rates->multiprocessors);
        best = fmax(best, work / (rounds * rates->multiprocessors));
    }
    return best;
}

/* Passes over C beside the product's own write: kernels of their own where the library has no such epilogue. */
static double epilogue_passes(const dsc_gemm_args *a)
{
    switch (a->epilogue) {
    case DSC_EPILOGUE_NONE:
        return a->accumulate ? 1 : 0;
    case DSC_EPILOGUE_BIAS:
        return 0;
    case DSC_EPILOGUE_BIAS_GELU:
    case DSC_EPILOGUE_BIAS_ACTIVATION:
    case DSC_EPILOGUE_ACTIVATION:
        return 2; /* the activation reads the product and writes */
    case DSC_EPILOGUE_DGELU:
        return 2; /* reads `aux`, and the fused kernel is slower */
    case DSC_EPILOGUE_SLOPE:
        return 3; /* reads the product and `aux`, and writes */
    case DSC_EPILOGUE_BIAS_ADD:
    case DSC_EPILOGUE_ADD:
        return 1;
    }
    return 0;
}

static double gemm_s(const dsc_card_rates *rates, const dsc_gemm_args *a)
{
    const double m = (double)a->m, n = (double)a->n, k = (double)a->k;
    const bool fp8 = a->a_fp8 != DSC_FP8_NONE;
    const double factor = !fp8 ? 1 : a->fast_sums ? FP8_RATE_FAST_SUMS : FP8_RATE;
    const double operand = fp8 ? 1 : each(a->ab_dtype);
    const double flops = a->ab_dtype == DSC_F32 ? rates->product_flops_f32 : rates->product_flops * factor;
    const double product = 2 * m * n * k / (flops * fill_of(rates, a->m, a->n, a->k));
    const double moved = ((m * k + k * n) * operand + m * n * each(a->c_dtype)) / rates->kernel_bytes;
    double more = epilogue_passes(a) * m * n * each(a->c_dtype);
    if (a->sums_of != DSC_GEMM_NO_SUMS)
        more += k * (a->sums_of == DSC_GEMM_SUMS_OF_A ? m : n) * each(a->ab_dtype);
    return fmax(product, moved) + more / rates->kernel_bytes;
}

/* Pairs of a query and a key that it sees, of one head of one sample. */
static double pairs_seen(int32_t tokens, const dsc_attention_keys *keys)
{
    const double t = tokens, w = keys->window;
    if (keys->all)
        return w > 0 && w < t ? t * (w + 1) : t * t;
    if (w > 0 && w < t)
        return w * (w + 1) / 2 + (t - w) * w;
    return t * (t + 1) / 2 + t * keys->past;
}

static double attention_s(int32_t batch, int32_t tokens, int32_t heads, int32_t size, const dsc_attention_keys *keys,
                          const double rate[2], double products)
{
    const double flops = products * 2 * batch * (double)heads * size * pairs_seen(tokens, keys);
    return flops / rate[size > 64];
}

double dsc_virtual_own_gradients_s(const dsc_card_rates *rates, const dsc_attention_bwd_args *a)
{
    const int64_t group = a->heads / a->kv_heads * dsc_attention_stored_head_bytes(a->tokens, a->keys.all);
    const double seven =
        attention_s(a->batch, a->tokens, a->heads, a->head_size, &a->keys, rates->attention_own_flops, 7);
    const double one = seven / 7;
    const double moved = 2 * a->batch * (double)a->heads * pairs_seen(a->tokens, &a->keys) / rates->kernel_bytes;
    /* The first kernel writes beside its products, and the second one does little but read. */
    const double five = fmax(4 * one, moved) + fmax(one, moved) + rates->kernel_s;
    return rates->kernel_s + (a->stored_bytes >= group && five < seven ? five : seven);
}

static double update_bytes(dsc_kernel kernel, const dsc_update_args *a)
{
    const int32_t states = dsc_recipes[kernel - DSC_KERNEL_ADAMW].state_count;
    const double param = a->param_half != NULL ? 2 : 0;
    return (double)a->count * (each(a->grad_dtype) + 8 + param + 2 * states * each(a->state_dtype));
}

static double reduce_bytes(const dsc_ordered_reduce_args *a)
{
    const double parts = (double)a->grad_part_count * each(a->leaf_dtype);
    return (double)a->count * (parts + (a->overwrite ? 4 : 8));
}

static double rows_bytes(int64_t rows, int64_t cols, dsc_dtype dtype, int passes)
{
    return (double)rows * (double)cols * each(dtype) * passes;
}

static double norm_bytes(dsc_kernel kernel, const void *args)
{
    switch (kernel) {
    case DSC_KERNEL_LAYERNORM_FWD: {
        const dsc_layernorm_fwd_args *a = args;
        return rows_bytes(a->rows, a->channels, a->dtype, a->add != NULL ? 4 : 2);
    }
    case DSC_KERNEL_LAYERNORM_BWD: {
        const dsc_layernorm_bwd_args *a = args;
        return rows_bytes(a->rows, a->channels, a->dtype, a->d_residual != NULL ? 4 : 3);
    }
    case DSC_KERNEL_RMSNORM_FWD: {
        const dsc_rmsnorm_fwd_args *a = args;
        return rows_bytes(a->rows, a->channels, a->dtype, a->add != NULL ? 4 : 2);
    }
    case DSC_KERNEL_BATCH_STATS: {
        const dsc_batch_stats_args *a = args;
        return a->running_mean != NULL ? 0 : rows_bytes(a->rows, a->channels, a->dtype, 1);
    }
    case DSC_KERNEL_BATCH_NORM_FWD: {
        const dsc_batch_norm_fwd_args *a = args;
        return rows_bytes(a->rows, a->channels, a->dtype, a->add != NULL ? 3 : 2);
    }
    case DSC_KERNEL_BATCH_NORM_BWD: { /* what a sum reads is read again by the second pass */
        const dsc_batch_norm_bwd_args *a = args;
        const int reads = a->activates && a->add != NULL ? 3 : 2, writes = a->d_add != NULL ? 2 : 1;
        const int passes = a->joined || a->d_x == NULL ? 1 : 2;
        return rows_bytes(a->rows, a->channels, a->dtype, passes * reads + (a->d_x != NULL ? writes : 0));
    }
    case DSC_KERNEL_BATCH_NORM_JOIN: {
        const dsc_batch_norm_join_args *a = args;
        return rows_bytes(2 * a->ranks * a->each, a->channels, DSC_F32, 1);
    }
    default: {
        const dsc_rmsnorm_bwd_args *a = args;
        return rows_bytes(a->rows, a->channels, a->dtype, a->d_residual != NULL ? 4 : 3);
    }
    }
}

static double activation_bytes(dsc_kernel kernel, const void *args)
{
    switch (kernel) {
    case DSC_KERNEL_GELU_FWD: {
        const dsc_gelu_fwd_args *a = args;
        return rows_bytes(1, a->count, a->dtype, 2);
    }
    case DSC_KERNEL_GELU_BWD: {
        const dsc_gelu_bwd_args *a = args;
        return rows_bytes(1, a->count, a->dtype, 3);
    }
    case DSC_KERNEL_SWIGLU_FWD: {
        const dsc_swiglu_fwd_args *a = args;
        return rows_bytes(a->rows, a->cols, a->dtype, 3);
    }
    case DSC_KERNEL_SWIGLU_BWD: {
        const dsc_swiglu_bwd_args *a = args;
        return rows_bytes(a->rows, a->cols, a->dtype, a->out != NULL ? 6 : 5);
    }
    case DSC_KERNEL_SWIGLU_PAIRS_FWD: {
        const dsc_swiglu_pairs_fwd_args *a = args;
        return rows_bytes(a->rows, a->cols, a->dtype, 3);
    }
    case DSC_KERNEL_SWIGLU_PAIRS_BWD: {
        const dsc_swiglu_pairs_bwd_args *a = args;
        return rows_bytes(a->rows, a->cols, a->dtype, 5);
    }
    case DSC_KERNEL_LSTM_FWD: { /* gates, y, and cells in fp32 */
        const dsc_lstm_fwd_args *a = args;
        return rows_bytes(a->shape.samples, a->shape.hidden, a->dtype, 9) +
               rows_bytes(a->shape.samples, a->shape.hidden, DSC_F32, dsc_lstm_is_first(&a->shape) ? 1 : 6);
    }
    case DSC_KERNEL_LSTM_BWD: {
        const dsc_lstm_bwd_args *a = args;
        return rows_bytes(a->shape.samples, a->shape.hidden, a->dtype, 11) +
               rows_bytes(a->shape.samples, a->shape.hidden, DSC_F32, 5);
    }
    case DSC_KERNEL_ROPE: {
        const dsc_rope_args *a = args;
        return rows_bytes(a->rows, (int64_t)a->heads * a->head_size, a->dtype, 2);
    }
    default: {
        const dsc_dropout_args *a = args;
        return rows_bytes(1, a->count, a->dtype, a->add ? 3 : 2);
    }
    }
}

static double table_bytes(dsc_kernel kernel, const void *args)
{
    switch (kernel) {
    case DSC_KERNEL_EMBEDDING_FWD: {
        const dsc_embedding_fwd_args *a = args;
        return rows_bytes(a->rows, a->channels, a->dtype, 2);
    }
    case DSC_KERNEL_EMBEDDING_BWD: {
        const dsc_embedding_bwd_args *a = args;
        return rows_bytes(a->rows, a->channels, a->dtype, 1) + 4 * (double)(a->vocab * a->channels);
    }
    case DSC_KERNEL_CROSS_ENTROPY: {
        const dsc_cross_entropy_args *a = args;
        return rows_bytes(a->rows, a->vocab, a->dtype, a->write_gradient ? 2 : 1);
    }
    case DSC_KERNEL_CROSS_ENTROPY_PART:
    case DSC_KERNEL_CROSS_ENTROPY_JOIN: {
        const dsc_cross_entropy_parts_args *a = args;
        const bool both = kernel == DSC_KERNEL_CROSS_ENTROPY_JOIN && a->of.write_gradient;
        return rows_bytes(a->of.rows, a->of.vocab, a->of.dtype, both ? 2 : 1);
    }
    case DSC_KERNEL_LABEL_LOSS: {
        const dsc_label_loss_args *a = args;
        return rows_bytes(a->rows, a->classes, a->dtype, a->write_gradient ? 2 : 1);
    }
    case DSC_KERNEL_MEAN_ROWS_FWD:
    case DSC_KERNEL_MEAN_ROWS_BWD: {
        const dsc_mean_rows_args *a = args;
        return rows_bytes(a->batch * a->tokens, a->channels, a->dtype, 1);
    }
    case DSC_KERNEL_TEXT_VECTORS_FWD:
    case DSC_KERNEL_TEXT_VECTORS_BWD: {
        const dsc_text_vectors_args *a = args;
        return rows_bytes(a->batch * a->tokens, a->channels, a->dtype, 1);
    }
    case DSC_KERNEL_TEXT_LOSS: {
        const dsc_text_loss_args *a = args;
        return rows_bytes(a->samples, a->samples, DSC_F32, a->write_gradient ? 2 : 1);
    }
    case DSC_KERNEL_HEADS_FWD:
    case DSC_KERNEL_HEADS_BWD: {
        const dsc_heads_args *a = args;
        return rows_bytes(a->rows, (int64_t)a->heads * (a->width + a->own_width) + a->shared_width, a->dtype, 1);
    }
    case DSC_KERNEL_COLSUM: {
        const dsc_colsum_args *a = args;
        return rows_bytes(a->rows, a->cols, a->x_dtype, 1);
    }
    case DSC_KERNEL_ROWS_PUT:
    case DSC_KERNEL_ROWS_SUM: {
        const dsc_rows_args *a = args;
        return rows_bytes(a->samples * a->rows, a->channels, a->dtype, 2);
    }
    case DSC_KERNEL_POOL_FWD:
    case DSC_KERNEL_POOL_BWD: {
        const dsc_pool_args *a = args;
        const double in = (double)(a->shape.height * a->shape.width) * each(a->dtype);
        const double out = (double)(a->shape.out_height * a->shape.out_width) *
                           (each(a->dtype) + (a->chosen != NULL ? 4 : 0));
        return (double)(a->samples * a->channels) * (in + out);
    }
    case DSC_KERNEL_SAMPLE_SCALE_FWD:
    case DSC_KERNEL_SAMPLE_SCALE_BWD: {
        const dsc_sample_scale_args *a = args;
        return rows_bytes(a->samples * a->rows, a->channels, a->dtype, 2);
    }
    case DSC_KERNEL_SAMPLE_DROPOUT: {
        const dsc_sample_dropout_args *a = args;
        return rows_bytes(a->samples, a->elements, a->dtype, 2);
    }
    case DSC_KERNEL_PATCHES: {
        const dsc_patches_args *a = args;
        const int64_t elements = dsc_patches_count(a) * dsc_patches_channels(a);
        return (double)a->samples * (double)elements * (each(a->dtype) + each(DSC_F32));
    }
    default: {
        const dsc_gather_rows_args *a = args;
        return rows_bytes(a->batch * a->tokens, a->channels, a->dtype, 1);
    }
    }
}

static double flat_bytes(dsc_kernel kernel, const void *args)
{
    switch (kernel) {
    case DSC_KERNEL_CAST: {
        const dsc_cast_args *a = args;
        return (double)(a->count * dsc_max_i64(1, a->rows)) * (each(a->to_dtype) + each(a->from_dtype));
    }
    case DSC_KERNEL_FP8_PIECE: {
        const dsc_fp8_piece_args *a = args;
        return (double)a->count * (a->work == DSC_FP8_PIECE_CAST ? 3 : a->work == DSC_FP8_PIECE_TOP ? 2 : 0);
    }
    case DSC_KERNEL_CAST_FP8: {
        const dsc_cast_fp8_args *a = args; /* read twice */
        if (a->from_fp8)
            return (double)(a->row_count * a->col_count) * 2;
        return (double)(a->row_count * a->col_count) * (4 + (a->rows != NULL) + (a->columns != NULL));
    }
    case DSC_KERNEL_CAST_STOCHASTIC:
        return (double)((const dsc_cast_stochastic_args *)args)->count * 6;
    case DSC_KERNEL_ORDERED_REDUCE:
        return reduce_bytes(args);
    case DSC_KERNEL_ADD:
        return (double)((const dsc_add_args *)args)->count * 12;
    case DSC_KERNEL_AVERAGE:
        return (double)((const dsc_average_args *)args)->count * 12;
    case DSC_KERNEL_SUMSQ:
        return (double)((const dsc_sumsq_args *)args)->count * 4;
    case DSC_KERNEL_FINGERPRINT:
        return (double)((const dsc_fingerprint_args *)args)->word_count * 4;
    case DSC_KERNEL_SCALE: {
        const dsc_scale_args *a = args;
        return (double)a->count * 2 * each(a->dtype);
    }
    case DSC_KERNEL_NF4_UNPACK: {
        const dsc_nf4_unpack_args *a = args;
        const dsc_nf4 kind = a->tops != NULL ? DSC_NF4_NESTED : DSC_NF4_PLAIN;
        return (double)a->count * (each(a->to_dtype) + (double)dsc_nf4_unit_bytes(kind) / DSC_NF4_UNIT);
    }
    default:
        return 0; /* short ones: their start is what they take */
    }
}

/* The factors read the weight once; A and B stay in the cache. */
static double dora_bytes(dsc_kernel kernel, const void *args)
{
    switch (kernel) {
    case DSC_KERNEL_DORA_FACTORS: {
        const dsc_dora_factors_args *a = args;
        return rows_bytes(a->out, a->in, a->dtype, 1);
    }
    case DSC_KERNEL_DORA_SCALE: {
        const dsc_dora_scale_args *a = args;
        return rows_bytes(a->rows, a->cols, a->dtype, a->add != NULL ? 3 : 2);
    }
    default: {
        const dsc_dora_gradient_args *a = args;
        return rows_bytes(a->rows, a->cols, a->dtype, 2);
    }
    }
}

/* Mixture of experts; a product of all routed rows reads the matrices of all experts. */
static double moe_bytes(dsc_kernel kernel, const void *args)
{
    switch (kernel) {
    case DSC_KERNEL_MOE_ROUTE_FWD: {
        const dsc_moe_route_fwd_args *a = args;
        return rows_bytes(a->tokens, a->rule.experts, a->dtype, 1);
    }
    case DSC_KERNEL_MOE_ROUTE_BWD: {
        const dsc_moe_route_bwd_args *a = args;
        return rows_bytes(a->tokens, a->rule.experts, a->dtype, 1) +
               rows_bytes(a->tokens, a->rule.experts, a->d_dtype, 1);
    }
    case DSC_KERNEL_MOE_ORDER: {
        const dsc_moe_order_args *a = args; /* each expert's block reads all slots, from the cache */
        return 12 * (double)a->slots;
    }
    case DSC_KERNEL_MOE_COMBINE_FWD: {
        const dsc_moe_combine_fwd_args *a = args;
        return rows_bytes(a->tokens * (a->top_k + 1), a->channels, a->dtype, 1);
    }
    case DSC_KERNEL_MOE_COMBINE_BWD: {
        const dsc_moe_combine_bwd_args *a = args;
        return rows_bytes(a->tokens * a->top_k, a->channels, a->dtype, 3);
    }
    case DSC_KERNEL_EXPERT_BIAS_FWD: {
        const dsc_expert_bias_fwd_args *a = args;
        return rows_bytes(a->rows, a->cols, a->dtype, 2);
    }
    case DSC_KERNEL_EXPERT_BIAS_BWD: {
        const dsc_expert_bias_bwd_args *a = args;
        return rows_bytes(a->rows, a->cols, a->dtype, 1);
    }
    case DSC_KERNEL_MOE_TALLY: {
        const dsc_moe_tally_args *a = args;
        return rows_bytes(a->samples * a->length, a->experts, a->dtype, 1);
    }
    case DSC_KERNEL_MOE_BALANCE_BWD: {
        const dsc_moe_balance_bwd_args *a = args;
        return rows_bytes(a->samples * a->length, a->experts, a->dtype, 1) +
               rows_bytes(a->samples * a->length, a->experts, a->d_dtype, 2);
    }
    case DSC_KERNEL_GROUPED_GEMM: {
        const dsc_grouped_gemm_args *a = args;
        const double matrices = (double)a->experts * (double)a->in * (double)a->out;
        return rows_bytes(a->rows, a->in + a->out, a->dtype, 1) +
               matrices * (a->kind == DSC_GROUPED_WEIGHT ? 4 : each(a->dtype));
    }
    default: {
        const dsc_moe_dispatch_args *a = args;
        return rows_bytes(a->tokens * (a->top_k + 1), a->channels, a->dtype, 1);
    }
    }
}

/* Linear attention. The delta rule's products are of 64 tokens and are counted as memory: what its heads read again. */
static double linear_bytes(dsc_kernel kernel, const void *args)
{
    switch (kernel) {
    case DSC_KERNEL_COPY_COLUMNS: {
        const dsc_copy_columns_args *a = args;
        return rows_bytes(a->rows, a->cols, a->dtype, 2);
    }
    case DSC_KERNEL_CONV_FWD: {
        const dsc_conv_fwd_args *a = args;
        return rows_bytes(a->rows, a->channels, a->dtype, 2);
    }
    case DSC_KERNEL_CONV_BWD: {
        const dsc_conv_bwd_args *a = args;
        return rows_bytes(a->rows, a->channels, a->dtype, 3);
    }
    default: {
        const bool forward = kernel == DSC_KERNEL_DELTA_FWD;
        const dsc_delta_shape *of =
            forward ? &((const dsc_delta_fwd_args *)args)->shape : &((const dsc_delta_bwd_args *)args)->shape;
        const double unit = (double)(forward ? dsc_delta_fwd_unit(of) : dsc_delta_bwd_unit(of)) * 4;
        return (double)of->batch * (double)dsc_delta_chunks(of->tokens) * (double)of->value_heads * unit * 2;
    }
    }
}

static double pictures_bytes(const dsc_conv2d_shape *s, dsc_dtype dtype)
{
    return (double)s->batch * each(dtype) *
           ((double)(s->height * s->width * s->in) +
            (double)(dsc_conv2d_out(s, 0) * dsc_conv2d_out(s, 1)) * (double)s->out);
}

/* Convolutions beside their products. Windows are written, and their pixels stay in the cache. */
static double conv2d_bytes(dsc_kernel kernel, const void *args)
{
    switch (kernel) {
    case DSC_KERNEL_WINDOWS: {
        const dsc_windows_args *a = args;
        const int64_t channels = (a->back ? a->shape.out : a->shape.in) / a->shape.groups;
        return rows_bytes(a->rows, dsc_conv2d_taps(&a->shape) * channels, a->dtype, 1);
    }
    case DSC_KERNEL_CONV2D: {
        const dsc_conv2d_args *a = args;
        return pictures_bytes(&a->shape, a->dtype) + rows_bytes(1, dsc_conv2d_weights(&a->shape), a->dtype, 1);
    }
    case DSC_KERNEL_CONV2D_WEIGHT: {
        const dsc_conv2d_weight_args *a = args;
        return rows_bytes(1, dsc_conv2d_weights(&a->shape), a->dtype, 2);
    }
    case DSC_KERNEL_DEPTHWISE_DW: {
        const dsc_depthwise_dw_args *a = args;
        return pictures_bytes(&a->shape, a->dtype);
    }
    default: {
        const dsc_depthwise_args *a = args;
        return pictures_bytes(&a->shape, a->dtype);
    }
    }
}

/* Bytes that a kernel other than products and attention moves. */
static double bytes_of(dsc_kernel kernel, const void *args)
{
    if (kernel >= DSC_KERNEL_ADAMW && kernel <= DSC_KERNEL_LARS)
        return update_bytes(kernel, args);
    switch (kernel) {
    case DSC_KERNEL_LAYERNORM_FWD:
    case DSC_KERNEL_LAYERNORM_BWD:
    case DSC_KERNEL_RMSNORM_FWD:
    case DSC_KERNEL_RMSNORM_BWD:
    case DSC_KERNEL_BATCH_STATS:
    case DSC_KERNEL_BATCH_NORM_FWD:
    case DSC_KERNEL_BATCH_NORM_BWD:
    case DSC_KERNEL_BATCH_NORM_JOIN:
        return norm_bytes(kernel, args);
    case DSC_KERNEL_GELU_FWD:
    case DSC_KERNEL_GELU_BWD:
    case DSC_KERNEL_SWIGLU_FWD:
    case DSC_KERNEL_SWIGLU_BWD:
    case DSC_KERNEL_SWIGLU_PAIRS_FWD:
    case DSC_KERNEL_SWIGLU_PAIRS_BWD:
    case DSC_KERNEL_LSTM_FWD:
    case DSC_KERNEL_LSTM_BWD:
    case DSC_KERNEL_ROPE:
    case DSC_KERNEL_DROPOUT:
        return activation_bytes(kernel, args);
    case DSC_KERNEL_EMBEDDING_FWD:
    case DSC_KERNEL_EMBEDDING_BWD:
    case DSC_KERNEL_LABEL_LOSS:
    case DSC_KERNEL_MEAN_ROWS_FWD:
    case DSC_KERNEL_MEAN_ROWS_BWD:
    case DSC_KERNEL_TEXT_VECTORS_FWD:
    case DSC_KERNEL_TEXT_VECTORS_BWD:
    case DSC_KERNEL_TEXT_LOSS:
    case DSC_KERNEL_CROSS_ENTROPY:
    case DSC_KERNEL_CROSS_ENTROPY_PART:
    case DSC_KERNEL_CROSS_ENTROPY_JOIN:
    case DSC_KERNEL_COLSUM:
    case DSC_KERNEL_GATHER_ROWS_FWD:
    case DSC_KERNEL_GATHER_ROWS_BWD:
    case DSC_KERNEL_HEADS_FWD:
    case DSC_KERNEL_HEADS_BWD:
    case DSC_KERNEL_ROWS_PUT:
    case DSC_KERNEL_ROWS_SUM:
    case DSC_KERNEL_PATCHES:
    case DSC_KERNEL_POOL_FWD:
    case DSC_KERNEL_POOL_BWD:
    case DSC_KERNEL_SAMPLE_SCALE_FWD:
    case DSC_KERNEL_SAMPLE_SCALE_BWD:
    case DSC_KERNEL_SAMPLE_DROPOUT:
        return table_bytes(kernel, args);
    case DSC_KERNEL_DORA_FACTORS:
    case DSC_KERNEL_DORA_SCALE:
    case DSC_KERNEL_DORA_GRADIENT:
        return dora_bytes(kernel, args);
    case DSC_KERNEL_MOE_ROUTE_FWD:
    case DSC_KERNEL_MOE_ROUTE_BWD:
    case DSC_KERNEL_MOE_ORDER:
    case DSC_KERNEL_MOE_DISPATCH_FWD:
    case DSC_KERNEL_MOE_DISPATCH_BWD:
    case DSC_KERNEL_MOE_COMBINE_FWD:
    case DSC_KERNEL_MOE_COMBINE_BWD:
    case DSC_KERNEL_MOE_TALLY:
    case DSC_KERNEL_MOE_BALANCE_BWD:
    case DSC_KERNEL_GROUPED_GEMM:
    case DSC_KERNEL_EXPERT_BIAS_FWD:
    case DSC_KERNEL_EXPERT_BIAS_BWD:
        return moe_bytes(kernel, args);
    case DSC_KERNEL_COPY_COLUMNS:
    case DSC_KERNEL_CONV_FWD:
    case DSC_KERNEL_CONV_BWD:
    case DSC_KERNEL_DELTA_FWD:
    case DSC_KERNEL_DELTA_BWD:
        return linear_bytes(kernel, args);
    case DSC_KERNEL_WINDOWS:
    case DSC_KERNEL_CONV2D:
    case DSC_KERNEL_CONV2D_WEIGHT:
    case DSC_KERNEL_DEPTHWISE_FWD:
    case DSC_KERNEL_DEPTHWISE_DX:
    case DSC_KERNEL_DEPTHWISE_DW:
        return conv2d_bytes(kernel, args);
    default:
        return flat_bytes(kernel, args);
    }
}

/* Leading numbers of a shape that say how much work it is; a product's kind of operands is the last one. */
void dsc_launch_shape(dsc_kernel kernel, const void *args, int64_t shape[DSC_LAUNCH_SHAPE])
{
    static const dsc_card_rates ones = { .attention_forward_flops = { 1, 1 }, .attention_backward_flops = { 1, 1 } };
    dsc_virtual_part part;
    memset(shape, 0, DSC_LAUNCH_SHAPE * sizeof shape[0]);
    if (kernel == DSC_KERNEL_GEMM) {
        const dsc_gemm_args *a = args;
        shape[0] = 2 * a->m * a->n * a->k;
        shape[1] = a->m;
        shape[2] = a->n;
        shape[3] = a->a_transposed | a->b_transposed << 1 | a->accumulate << 2 | (int64_t)a->epilogue << 4 |
                   (int64_t)a->ab_dtype << 8 | (int64_t)a->c_dtype << 12 | (int64_t)a->sums_of << 16 |
                   (int64_t)a->a_fp8 << 20 | (int64_t)a->activation << 24;
    } else if (kernel == DSC_KERNEL_ATTENTION_FWD || kernel == DSC_KERNEL_ATTENTION_BWD) {
        shape[0] = (int64_t)dsc_virtual_kernel_s(&ones, kernel, args, &part);
        shape[1] = kernel == DSC_KERNEL_ATTENTION_FWD ? ((const dsc_attention_fwd_args *)args)->head_size
                                                      : ((const dsc_attention_bwd_args *)args)->head_size;
    } else {
        shape[0] = (int64_t)bytes_of(kernel, args);
    }
}

/* By cuDNN, whose convolutions nobody has timed on these cards: half of a product's rate is an estimate. */
static double conv2d_s(const dsc_card_rates *rates, const dsc_conv2d_args *a)
{
    const double rate = (a->dtype == DSC_F32 ? rates->product_flops_f32 : rates->product_flops) / 2;
    const double pixels = (double)dsc_conv2d_rows(&a->shape, DSC_CONV2D_Y);
    return fmax(2 * pixels * (double)dsc_conv2d_weights(&a->shape) / rate,
                bytes_of(DSC_KERNEL_CONV2D, a) / rates->kernel_bytes);
}

double dsc_virtual_kernel_s(const dsc_card_rates *rates, dsc_kernel kernel, const void *args, dsc_virtual_part *part)
{
    *part = DSC_VIRTUAL_MEMORY_KERNELS;
    if (kernel == DSC_KERNEL_GEMM) {
        *part = DSC_VIRTUAL_PRODUCTS;
        return rates->kernel_s + gemm_s(rates, args);
    }
    if (kernel == DSC_KERNEL_CONV2D) {
        *part = DSC_VIRTUAL_PRODUCTS;
        return rates->kernel_s + conv2d_s(rates, args);
    }
    if (kernel == DSC_KERNEL_GROUPED_GEMM) {
        const dsc_grouped_gemm_args *a = args;
        const double rate = a->dtype == DSC_F32 ? rates->product_flops_f32 : rates->product_flops;
        const double product = 2 * (double)a->rows * (double)a->in * (double)a->out / rate;
        *part = DSC_VIRTUAL_PRODUCTS;
        return rates->kernel_s + fmax(product, bytes_of(kernel, args) / rates->kernel_bytes);
    }
    if (kernel == DSC_KERNEL_ATTENTION_FWD) {
        const dsc_attention_fwd_args *a = args;
        *part = DSC_VIRTUAL_ATTENTION;
        return rates->kernel_s +
               attention_s(a->batch, a->tokens, a->heads, a->head_size, &a->keys, rates->attention_forward_flops, 2);
    }
    if (kernel == DSC_KERNEL_ATTENTION_BWD) {
        const dsc_attention_bwd_args *a = args;
        *part = DSC_VIRTUAL_ATTENTION;
        return rates->kernel_s +
               attention_s(a->batch, a->tokens, a->heads, a->head_size, &a->keys, rates->attention_backward_flops, 5);
    }
    if (kernel >= DSC_KERNEL_ADAMW && kernel <= DSC_KERNEL_LARS)
        *part = DSC_VIRTUAL_UPDATE;
    return rates->kernel_s + bytes_of(kernel, args) / rates->kernel_bytes;
}

double dsc_virtual_host_kernel_s(const dsc_card_rates *rates, dsc_kernel kernel, const void *args)
{
    return bytes_of(kernel, args) / rates->host_update_bytes;
}
