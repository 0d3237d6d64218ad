/* attention_trial.cu - see attention_trial.h.
 *
 * Inputs are made so that a few keys decide each row, and each number of both results is compared. The allowed
 * difference is the rounding of probabilities, score gradients and results to bf16, computed for each number from its
 * terms. A library's kernel runs twice, and its results must have the same bits.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention/attention_trial.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/attention_sm90.h"
#include "kernels/cuda/trial.h"

#include <stdio.h>

namespace {

/* ---- operands ---- */

/* Rounding to bf16 moves a number by at most 2^-8 of it in each of both kernels: probabilities and score gradients as
 * terms of sums, and results. */
constexpr float NEAR = 1.0f / 128;
/* Log-sum-exps are fp32; scores of up to some hundreds of terms of at most 8. */
constexpr float LSE_NEAR = 1.0f / 1024;
/* Queries in [-8, 8), all others in [-1, 1): with a scale of 1 / sqrt(D), a row's few largest scores decide. */
constexpr float QUERY_RANGE = 8;

struct fill_op {
    uint16_t *to;
    uint64_t seed;
    float range;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
#pragma unroll
        for (int k = 0; k < W; k++)
            to[i + k] = element<uint16_t>::from(range * random_of(seed + static_cast<uint64_t>(i + k)));
    }
};

struct ones_op {
    uint16_t *to;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
#pragma unroll
        for (int k = 0; k < W; k++)
            to[i + k] = element<uint16_t>::from(1.0f);
    }
};

/* A quarter of the keys is hidden, and never a sample's first. */
struct hide_op {
    int32_t *to;
    int32_t tokens, hidden;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
#pragma unroll
        for (int k = 0; k < W; k++)
            to[i + k] = (i + k) % tokens != 0 && random_of(static_cast<uint64_t>(i + k)) > 0.5f ? hidden : hidden ^ 1;
    }
};

/* Documents of 96 tokens. */
struct place_op {
    int32_t *to;
    int32_t tokens;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
#pragma unroll
        for (int k = 0; k < W; k++)
            to[i + k] = static_cast<int32_t>((i + k) % tokens) % 96;
    }
};

/* A result of both kernels, [rows, heads, size]. */
typedef struct result {
    uint16_t *of[2];
    int64_t count, rows, stride, head_stride;
    int32_t heads, size;
    /* Bound of the difference of two numbers x: near * weight + NEAR * |x|; no weights: 1. */
    float near;
    const uint16_t *weight;
    int64_t weight_stride;
} result;

typedef struct operands {
    uint16_t *q, *k, *v, *d_out, *weight;
    uint16_t *out; /* gradients: of the kernel of warps */
    float *lse[2]; /* gradients: [0] only */
    void *scratch; /* of gradients */
    int64_t stored_bytes; /* of scratch */
    result results[3]; /* out; or dv, dk, dq */
    int32_t *tokens, *positions; /* of dsc_attention_keys */
    unsigned *found;
    int64_t q_count, k_count, v_count, out_count, lse_count, token_count, position_count;
    int results_count;
} operands;

void cut_result(operands *o, char **at, int64_t count, int64_t stride, int64_t head_stride, int32_t heads,
                const dsc_attention_fwd_args *a, float near, const uint16_t *weight)
{
    result *r = &o->results[o->results_count++];
    *r = { { cut<uint16_t>(at, count), cut<uint16_t>(at, count) }, count, static_cast<int64_t>(a->batch) * a->tokens,
           stride, head_stride, heads, a->head_size, near, weight, a->v_stride };
}

/* Gradients of a score are p (dp - delta) scale. dp is a sum of D products of two numbers in [-1, 1), whose
 * deviation is sqrt(D) / 3, and delta a mean of such. Six deviations of each do not occur. A query's p add up to 1,
 * a key's to its weight. */
void cut_gradients(const attention_trial *t, operands *o, char **at)
{
    const dsc_attention_fwd_args *a = &t->shape;
    const int64_t head_stride = dsc_attention_head_stride(a->head_stride, a->head_size);
    const float slope = 4 * sqrtf(static_cast<float>(a->head_size)) * a->scale;
    o->d_out = cut<uint16_t>(at, o->out_count);
    o->out = cut<uint16_t>(at, o->out_count);
    o->weight = cut<uint16_t>(at, o->v_count);
    if (t->candidate == DSC_ATTENTION_WARPGROUPS_STORED || t->own == DSC_ATTENTION_WARPGROUPS_STORED)
        o->stored_bytes = dsc_attention_stored_bytes(a, a->stored_bytes);
    o->scratch = cut<char>(at, dsc_attention_stored_at(a->batch, a->tokens, a->heads, a->head_size) + o->stored_bytes);
    cut_result(o, at, o->v_count, a->v_stride, head_stride, a->kv_heads, a, NEAR, o->weight);
    cut_result(o, at, o->k_count, a->k_stride, head_stride, a->kv_heads, a, NEAR * slope * QUERY_RANGE, o->weight);
    cut_result(o, at, o->q_count, a->q_stride, head_stride, a->heads, a, NEAR * slope, NULL);
}

/* False: there is no room. */
bool lay_out(const attention_trial *t, operands *o)
{
    const dsc_attention_fwd_args *a = &t->shape;
    const int64_t rows = static_cast<int64_t>(a->batch) * a->tokens;
    char *at = t->memory;
    *o = {};
    if (at == NULL)
        return false;
    o->q_count = rows * a->q_stride, o->k_count = rows * a->k_stride, o->v_count = rows * a->v_stride;
    o->out_count = rows * a->out_stride;
    o->lse_count = rows * a->heads, o->token_count = t->hides ? rows : 0;
    o->position_count = t->documents ? rows : 0;
    o->q = cut<uint16_t>(&at, o->q_count);
    o->k = cut<uint16_t>(&at, o->k_count);
    o->v = cut<uint16_t>(&at, o->v_count);
    for (int i = 0; i < 2; i++)
        o->lse[i] = cut<float>(&at, o->lse_count);
    o->tokens = cut<int32_t>(&at, o->token_count);
    o->positions = cut<int32_t>(&at, o->position_count);
    o->found = cut<unsigned>(&at, 1);
    if (t->backward)
        cut_gradients(t, o, &at);
    else
        cut_result(o, &at, o->out_count, a->out_stride, a->head_size, a->heads, a, NEAR, NULL);
    return at - t->memory <= t->memory_bytes;
}

void fill(const attention_trial *t, const operands *o)
{
    const dsc_cuda_launch *at = t->at;
    each<8>(at, fill_op{ o->q, UINT64_C(1) << 40, QUERY_RANGE }, o->q_count, true);
    each<8>(at, fill_op{ o->k, UINT64_C(2) << 40, 1 }, o->k_count, true);
    each<8>(at, fill_op{ o->v, UINT64_C(3) << 40, 1 }, o->v_count, true);
    each<4>(at, hide_op{ o->tokens, t->shape.tokens, t->shape.keys.hidden }, o->token_count, true);
    each<4>(at, place_op{ o->positions, t->shape.tokens }, o->position_count, true);
}

/* ---- one kernel ---- */

dsc_status cuda_try(cudaError_t error, const char *what, dsc_error *err)
{
    return measure_try("ATTENTION", error, what, err);
}

dsc_attention_fwd_args forward_of(const attention_trial *t, const operands *o)
{
    dsc_attention_fwd_args a = t->shape;
    a.q = o->q, a.k = o->k, a.v = o->v, a.out = o->out, a.lse = o->lse[0], a.scratch = NULL;
    a.keys.tokens = o->tokens, a.keys.positions = o->positions;
    return a;
}

dsc_status forward_by(const attention_trial *t, dsc_attention_kind kind, const dsc_attention_fwd_args *a,
                      dsc_error *err)
{
    switch (kind) {
    case DSC_ATTENTION_WARPGROUPS:
    case DSC_ATTENTION_WARPGROUPS_IN_TURN:
    case DSC_ATTENTION_WARPGROUPS_AHEAD:
    case DSC_ATTENTION_WARPGROUPS_STAYING:
    case DSC_ATTENTION_WARPGROUPS_STORED:
        return dsc_cuda_attention_fwd_sm90(t->at, a, t->encode, kind, err);
    case DSC_ATTENTION_CUDNN:
        return dsc_cuda_attention_cudnn_fwd(t->cudnn, t->cudnn_plan, t->at->stream, a, err);
    default:
        return a->head_size > DSC_CUDA_ATTENTION_TENSOR_HEAD_MAX ? dsc_cuda_attention_fwd_plain(t->at, a, err)
                                                                 : dsc_cuda_attention_fwd_warps(t->at, a, err);
    }
}

dsc_status backward_by(const attention_trial *t, dsc_attention_kind kind, const dsc_attention_bwd_args *b,
                       dsc_error *err)
{
    switch (kind) {
    case DSC_ATTENTION_WARPGROUPS:
    case DSC_ATTENTION_WARPGROUPS_IN_TURN:
    case DSC_ATTENTION_WARPGROUPS_AHEAD:
    case DSC_ATTENTION_WARPGROUPS_STAYING:
    case DSC_ATTENTION_WARPGROUPS_STORED:
        return dsc_cuda_attention_bwd_sm90(t->at, b, t->encode, kind, err);
    case DSC_ATTENTION_CUDNN:
        return dsc_cuda_attention_cudnn_bwd(t->cudnn, t->cudnn_plan, t->at->stream, b, err);
    default:
        return b->head_size > DSC_CUDA_ATTENTION_TENSOR_HEAD_MAX ? dsc_cuda_attention_bwd_plain(t->at, b, err)
                                                                 : dsc_cuda_attention_bwd_warps(t->at, b, err);
    }
}

/* Results go to the first or the second place. */
dsc_status run(const attention_trial *t, const operands *o, dsc_attention_kind kind, int place, dsc_error *err)
{
    dsc_attention_fwd_args a = forward_of(t, o);
    if (t->backward) {
        dsc_attention_bwd_args b = dsc_cuda_attention_gradients_of(&a);
        b.d_out = o->d_out, b.scratch = o->scratch, b.stored_bytes = o->stored_bytes;
        b.dv = o->results[0].of[place], b.dk = o->results[1].of[place], b.dq = o->results[2].of[place];
        DSC_TRY(backward_by(t, kind, &b, err));
    } else {
        a.out = o->results[0].of[place], a.lse = o->lse[place];
        DSC_TRY(forward_by(t, kind, &a, err));
    }
    return cuda_try(cudaGetLastError(), "a launch", err);
}

dsc_status run_forward(const attention_trial *t, const operands *o, dsc_error *err)
{
    const dsc_attention_fwd_args a = forward_of(t, o);
    return forward_by(t, DSC_ATTENTION_WARPS, &a, err);
}

/* Inputs of the gradients: results of the forward pass, and keys' weights, which are dv where d_out is 1. */
dsc_status begin_gradients(const attention_trial *t, const operands *o, dsc_error *err)
{
    DSC_TRY(run_forward(t, o, err));
    each<8>(t->at, ones_op{ o->d_out }, o->out_count, true);
    DSC_TRY(run(t, o, DSC_ATTENTION_WARPS, 0, err));
    DSC_TRY(cuda_try(cudaMemcpyAsync(o->weight, o->results[0].of[0], static_cast<size_t>(2 * o->v_count),
                                     cudaMemcpyDeviceToDevice, t->at->stream),
                     "a copy", err));
    each<8>(t->at, fill_op{ o->d_out, UINT64_C(4) << 40, 1 }, o->out_count, true);
    return cuda_try(cudaGetLastError(), "a launch", err);
}

/* ---- both ---- */

__global__ void compare_kernel(const result r, unsigned *found)
{
    const int64_t first = static_cast<int64_t>(blockIdx.x) * COMPARE_THREADS + threadIdx.x;
    const int64_t step = static_cast<int64_t>(gridDim.x) * COMPARE_THREADS;
    unsigned mine = 0;
    for (int64_t i = first; i < r.rows * r.heads * r.size; i += step) {
        const int64_t row = i / r.size / r.heads, column = i / r.size % r.heads * r.head_stride + i % r.size;
        const int64_t at = row * r.stride + column;
        const float a = to_f32(r.of[0][at]), b = to_f32(r.of[1][at]),
                    weight = r.weight != NULL ? to_f32(r.weight[row * r.weight_stride + column]) : 1;
        mine += is_far(a, b, r.near * weight + NEAR * fmaxf(fabsf(a), fabsf(b)));
    }
    add_found(found, mine);
}

__global__ void compare_lse_kernel(const float *x, const float *y, int64_t count, unsigned *found)
{
    const int64_t step = static_cast<int64_t>(gridDim.x) * COMPARE_THREADS;
    unsigned mine = 0;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * COMPARE_THREADS + threadIdx.x; i < count; i += step)
        mine += is_far(x[i], y[i], LSE_NEAR);
    add_found(found, mine);
}

/* Elements that a kernel leaves unwritten are NaN. */
dsc_status poison(const attention_trial *t, void *x, int64_t bytes, dsc_error *err)
{
    return cuda_try(cudaMemsetAsync(x, 0xff, static_cast<size_t>(bytes), t->at->stream), "filling", err);
}

dsc_status wait(const attention_trial *t, dsc_attention_kind kind, dsc_error *err)
{
    const bool is_cudnn = kind == DSC_ATTENTION_CUDNN, is_own = kind == DSC_ATTENTION_WARPS;
    const char *const without = is_own     ? ""
                                : is_cudnn ? "; \"dsc\": {\"attention\": \"own\"} does without it"
                                           : "; \"dsc\": {\"gemm_plans\": \"first\"} does without it";
    char kernel[48];
    snprintf(kernel, sizeof kernel, "%s%s", t->backward ? "attention_bwd" : "attention_fwd",
             is_own ? "" : is_cudnn ? " of cuDNN" : "_sm90");
    return trial_wait(t->at->stream, "ATTENTION", kernel, without, err);
}

/* A run whose results are all that is in its place. */
dsc_status run_alone(const attention_trial *t, const operands *o, dsc_attention_kind kind, int place, dsc_error *err)
{
    for (int i = 0; i < o->results_count; i++)
        DSC_TRY(poison(t, o->results[i].of[place], 2 * o->results[i].count, err));
    if (!t->backward)
        DSC_TRY(poison(t, o->lse[place], 4 * o->lse_count, err));
    DSC_TRY(run(t, o, kind, place, err));
    return wait(t, kind, err);
}

dsc_status compare_both(const attention_trial *t, const operands *o, unsigned *found, dsc_error *err)
{
    const cudaStream_t stream = t->at->stream;
    DSC_TRY(cuda_try(cudaMemsetAsync(o->found, 0, sizeof *o->found, stream), "filling", err));
    for (int i = 0; i < o->results_count; i++)
        DSC_CUDA_LAUNCH(compare_kernel, COMPARE_BLOCKS, COMPARE_THREADS, 0, stream, o->results[i], o->found);
    if (!t->backward)
        DSC_CUDA_LAUNCH(compare_lse_kernel, COMPARE_BLOCKS, COMPARE_THREADS, 0, stream, o->lse[0], o->lse[1],
                        o->lse_count, o->found);
    return fetch_found("ATTENTION", stream, o->found, found, err);
}

/* ---- two runs, bit by bit ---- */

/* The second place has the candidate's results, and the first gets those of `other`. */
dsc_status compare_bits(const attention_trial *t, const operands *o, dsc_attention_kind other, unsigned *unlike,
                        dsc_error *err)
{
    const cudaStream_t stream = t->at->stream;
    DSC_TRY(run_alone(t, o, other, 0, err));
    DSC_TRY(cuda_try(cudaMemsetAsync(o->found, 0, sizeof *o->found, stream), "filling", err));
    for (int i = 0; i < o->results_count; i++)
        DSC_CUDA_LAUNCH(compare_words_kernel, COMPARE_BLOCKS, COMPARE_THREADS, 0, stream, o->results[i].of[0],
                        o->results[i].of[1], o->results[i].count, o->found);
    if (!t->backward)
        DSC_CUDA_LAUNCH(compare_words_kernel, COMPARE_BLOCKS, COMPARE_THREADS, 0, stream,
                        reinterpret_cast<const uint16_t *>(o->lse[0]), reinterpret_cast<const uint16_t *>(o->lse[1]),
                        2 * o->lse_count, o->found);
    return fetch_found("ATTENTION", stream, o->found, unlike, err);
}

/* ---- times ---- */

dsc_status rounds(const attention_trial *t, const operands *o, const stopwatch *watch, float best[2], dsc_error *err)
{
    for (int round = 0; round < MEASURE_ROUNDS; round++)
        for (int which = 0; which < 2; which++) {
            float ms = 0;
            DSC_TRY(cuda_try(watch_start(watch, t->at->stream), "an event", err));
            DSC_TRY(run(t, o, which == 0 ? t->own : t->candidate, which, err));
            DSC_TRY(cuda_try(watch_stop(watch, t->at->stream, &ms), "a kernel", err));
            best[which] = round == 0 || ms < best[which] ? ms : best[which];
        }
    return DSC_OK;
}

dsc_status race(const attention_trial *t, const operands *o, float best[2], dsc_error *err)
{
    stopwatch watch;
    dsc_status status = cuda_try(watch_open(&watch), "an event", err);
    if (status == DSC_OK)
        status = rounds(t, o, &watch, best, err);
    watch_close(&watch);
    return status;
}

} // namespace

dsc_status dsc_cuda_attention_try(const attention_trial *t, attention_found *out, dsc_error *err)
{
    operands o;
    *out = {};
    if (!lay_out(t, &o))
        return DSC_OK;
    fill(t, &o);
    if (t->backward)
        DSC_TRY(begin_gradients(t, &o, err));
    DSC_TRY(run_alone(t, &o, DSC_ATTENTION_WARPS, 0, err));
    DSC_TRY(run_alone(t, &o, t->candidate, 1, err));
    out->fits = true;
    DSC_TRY(compare_both(t, &o, &out->far, err));
    if (out->far == 0 && t->candidate == DSC_ATTENTION_CUDNN)
        DSC_TRY(compare_bits(t, &o, t->candidate, &out->unlike, err));
    if (out->far == 0 && t->candidate == DSC_ATTENTION_WARPGROUPS_STORED)
        DSC_TRY(compare_bits(t, &o, t->own, &out->unlike, err));
    return t->timed && out->far == 0 && (out->unlike == 0 || !t->same_bits) ? race(t, &o, out->ms, err) : DSC_OK;
}
