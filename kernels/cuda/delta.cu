/* delta.cu - the gated delta rule, a block for each head: of values in forward, of keys in backward, whose heads of
 * values it goes through one after another. The steps and the letters are those of cpu/delta_range.h; a thread makes an
 * element by itself, in scratch, and a barrier stands between steps. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/delta_internal.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum { THREADS = 256, CHUNK = DSC_DELTA_CHUNK };

/* fn(i) for each i below count, by all threads of the block, which meet behind it. */
template <class F> __device__ __forceinline__ void each_of(int64_t count, F fn)
{
#pragma unroll 1
    for (int64_t i = threadIdx.x; i < count; i += THREADS)
        fn(i);
    __syncthreads();
}

/* sum over n of x[n * x_step] * y[n * y_step] */
__device__ __forceinline__ float dot(const float *x, int64_t x_step, const float *y, int64_t y_step, int64_t count)
{
    float sum = 0;
    for (int64_t n = 0; n < count; n++)
        sum = fmaf(x[n * x_step], y[n * y_step], sum);
    return sum;
}

__device__ __forceinline__ float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

template <class T> struct delta_of {
    const T *qkv, *b, *a, *a_log, *dt_bias;
    const int32_t *positions;
    dsc_delta_shape shape;
};

/* Rows of unit length and their inverse lengths, times `factor`. */
template <class T>
__device__ void get_unit_rows(float *out, float *inverse, const delta_of<T> &in, const delta_span &s, int64_t column,
                              float factor)
{
    const int64_t n = in.shape.key_size;
    each_of(s.count, [&](int64_t i) {
        const T *row = in.qkv + (s.row + i) * s.columns + column;
        float sum = 0;
        for (int64_t c = 0; c < n; c++)
            sum = fmaf(to_f32(row[c]), to_f32(row[c]), sum);
        inverse[i] = 1.0f / sqrtf(sum + 1e-6f);
    });
    each_of(s.count * n, [&](int64_t i) {
        out[i] = to_f32(in.qkv[(s.row + i / n) * s.columns + column + i % n]) * inverse[i / n] * factor;
    });
}

template <class T>
__device__ void get_keys(const delta_of<T> &in, const delta_span &s, int64_t head, const delta_chunk &w)
{
    const int64_t dk = in.shape.key_size;
    get_unit_rows(w.q, w.q_inverse, in, s, head * dk, 1.0f / sqrtf(static_cast<float>(dk)));
    get_unit_rows(w.k, w.k_inverse, in, s, (in.shape.key_heads + head) * dk, 1.0f);
}

/* beta and the decays. */
template <class T> __device__ void get_gates(const delta_of<T> &in, const delta_span &s, int64_t h, delta_chunk &w)
{
    const float rate = -expf(to_f32(in.a_log[h])), bias = to_f32(in.dt_bias[h]);
    each_of(s.count, [&](int64_t i) {
        const int64_t at = (s.row + i) * in.shape.value_heads + h;
        const float x = to_f32(in.a[at]) + bias;
        const bool start = in.positions != nullptr && in.positions[s.row + i] == 0;
        w.beta[i] = 1.0f / (1.0f + expf(-to_f32(in.b[at])));
        w.slope[i] = start ? 0.0f : rate / (1.0f + expf(-x));
        w.log_decay[i] = start ? 0.0f : rate * softplus(x);
        w.document[i] = start ? 1.0f : 0.0f;
    });
    each_of(1, [&](int64_t) {
        float sum = 0, document = 0;
        for (int64_t i = 0; i < s.count; i++) {
            sum = sum + w.log_decay[i];
            document = document + w.document[i];
            w.sum[i] = sum;
            w.document[i] = document;
        }
    });
    each_of(s.count, [&](int64_t i) {
        const float sum = w.sum[s.count - 1], document = w.document[s.count - 1];
        w.gamma[i] = w.document[i] == 0 ? expf(w.sum[i]) : 0.0f;
        w.delta[i] = w.document[i] == document ? expf(sum - w.sum[i]) : 0.0f;
        if (i == 0)
            w.whole = document == 0 ? expf(sum) : 0.0f;
    });
}

template <class T>
__device__ void get_chunk(const delta_of<T> &in, const delta_span &s, int64_t h, const float *state, delta_chunk &w)
{
    const int64_t dk = in.shape.key_size, dv = in.shape.value_size;
    const int64_t values = 2 * static_cast<int64_t>(in.shape.key_heads) * dk + h * dv;
    get_gates(in, s, h, w);
    each_of(s.count * s.count, [&](int64_t at) {
        const int64_t i = at / s.count, j = at % s.count;
        if (j > i)
            return;
        const float decay = w.document[i] == w.document[j] ? expf(w.sum[i] - w.sum[j]) : 0.0f;
        w.decay[i * CHUNK + j] = decay;
        w.kk[i * CHUNK + j] = decay * dot(w.k + i * dk, 1, w.k + j * dk, 1, dk);
        w.qk[i * CHUNK + j] = decay * dot(w.q + i * dk, 1, w.k + j * dk, 1, dk);
    });
    each_of(s.count * dv, [&](int64_t at) {
        const int64_t i = at / dv, c = at % dv;
        w.v[at] = to_f32(in.qkv[(s.row + i) * s.columns + values + c]);
        w.ks[at] = dot(w.k + i * dk, 1, state + c, dv, dk);
        w.r[at] = w.beta[i] * (w.v[at] - w.gamma[i] * w.ks[at]);
    });
    each_of(dv, [&](int64_t c) { /* a column does not depend on the others */
                                 for (int64_t i = 1; i < s.count; i++)
                                     w.r[i * dv + c] =
                                         w.r[i * dv + c] - w.beta[i] * dot(w.kk + i * CHUNK, 1, w.r + c, dv, i);
    });
}

/* ---- forward ---- */

template <class T> struct delta_fwd {
    delta_of<T> in;
    T *out;
    float *states, *state, *scratch;
    bool resume;
};

template <class T> __global__ void __launch_bounds__(THREADS, 1) delta_fwd_kernel(const delta_fwd<T> a)
{
    const dsc_delta_shape of = a.in.shape;
    const int64_t unit = blockIdx.x, b = unit / of.value_heads, h = unit % of.value_heads;
    const int64_t dk = of.key_size, dv = of.value_size, elements = dk * dv, chunks = dsc_delta_chunks(of.tokens);
    __shared__ delta_chunk w; /* pointers, too many for registers */
    each_of(1, [&](int64_t) { w = delta_chunk_of(a.scratch + unit * dsc_delta_fwd_unit(&of), &of, false); });
    float *state = a.states + (b * chunks * of.value_heads + h) * elements;
    float *kept = a.state != nullptr ? a.state + unit * elements : nullptr;
    each_of(elements, [&](int64_t i) { state[i] = a.resume ? kept[i] : 0.0f; });
    for (int64_t c = 0; c < chunks; c++) {
        const delta_span s = delta_span_of(&of, b, c);
        float *next = c + 1 < chunks ? state + of.value_heads * elements : kept;
        get_keys(a.in, s, h / (of.value_heads / of.key_heads), w);
        get_chunk(a.in, s, h, state, w);
        each_of(s.count * dv, [&](int64_t at) {
            const int64_t i = at / dv, column = at % dv;
            const float o = w.gamma[i] * dot(w.q + i * dk, 1, state + column, dv, dk) +
                            dot(w.qk + i * CHUNK, 1, w.r + column, dv, i + 1);
            a.out[((s.row + i) * of.value_heads + h) * dv + column] = element<T>::from(o);
        });
        if (next == nullptr)
            break;
        each_of(elements, [&](int64_t at) {
            const int64_t d = at / dv, column = at % dv;
            float sum = w.whole * state[at];
            for (int64_t i = 0; i < s.count; i++)
                sum = fmaf(w.delta[i] * w.k[i * dk + d], w.r[i * dv + column], sum);
            next[at] = sum;
        });
        state = next;
    }
}

template <class T> void fwd(const dsc_cuda_launch *at, const dsc_delta_fwd_args *a)
{
    const delta_fwd<T> args = { { static_cast<const T *>(a->qkv), static_cast<const T *>(a->b),
                                  static_cast<const T *>(a->a), static_cast<const T *>(a->a_log),
                                  static_cast<const T *>(a->dt_bias), a->positions, a->shape },
                                static_cast<T *>(a->out),
                                a->states,
                                a->state,
                                static_cast<float *>(a->scratch),
                                a->resume };
    DSC_CUDA_LAUNCH((delta_fwd_kernel<T>), grid_size(static_cast<int64_t>(a->shape.batch) * a->shape.value_heads),
                    THREADS, 0, at->stream, args);
}

/* ---- backward ---- */

template <class T> struct delta_bwd {
    delta_of<T> in;
    T *d_qkv, *d_b, *d_a;
    const T *d_out;
    const float *states;
    float *scratch, *sums;
};

/* w.dr and w.kd: the gradients of what tokens wrote. */
__device__ __forceinline__ void written_bwd(const dsc_delta_shape &of, const delta_span &s, const float *d_state,
                                            const delta_chunk &w)
{
    const int64_t dk = of.key_size, dv = of.value_size;
    each_of(s.count * dv, [&](int64_t at) {
        const int64_t j = at / dv, c = at % dv;
        w.kd[at] = dot(w.k + j * dk, 1, d_state + c, dv, dk);
        w.dr[at] = w.delta[j] * w.kd[at] + dot(w.qk + j * CHUNK + j, CHUNK, w.d_out + j * dv + c, dv, s.count - j);
    });
    each_of(dv, [&](int64_t c) {
        for (int64_t j = s.count - 2; j >= 0; j--) {
            float sum = w.dr[j * dv + c];
            for (int64_t i = j + 1; i < s.count; i++)
                sum = sum - w.beta[i] * w.kk[i * CHUNK + j] * w.dr[i * dv + c];
            w.dr[j * dv + c] = sum;
        }
    });
}

/* Gradients of pairs. `along`, the decays' part, goes where the decay was, and then into sums by row and column. */
__device__ __forceinline__ void pairs_bwd(const dsc_delta_shape &of, const delta_span &s, const delta_chunk &w)
{
    const int64_t dv = of.value_size;
    each_of(s.count * s.count, [&](int64_t pair) {
        const int64_t i = pair / s.count, j = pair % s.count, at = i * CHUNK + j;
        if (j > i)
            return;
        const float *r = w.r + j * dv;
        const float dp = dot(w.d_out + i * dv, 1, r, 1, dv), da = j < i ? -dot(w.dr + i * dv, 1, r, 1, dv) : 0.0f;
        const float kk = w.kk[at], decay = w.decay[at];
        w.decay[at] = j < i ? dp * w.qk[at] + w.beta[i] * da * kk : 0.0f;
        w.decay[j * CHUNK + i] = j < i ? da * kk : w.decay[at]; /* above the diagonal: beta's part */
        w.kk[at] = da * w.beta[i] * decay;
        w.qk[at] = dp * decay;
    });
    each_of(s.count, [&](int64_t i) {
        float sum = 0, beta = 0;
        for (int64_t j = 0; j < i; j++) {
            sum = sum + w.decay[i * CHUNK + j];
            beta = beta + w.decay[j * CHUNK + i];
        }
        for (int64_t j = i + 1; j < s.count; j++)
            sum = sum - w.decay[j * CHUNK + i];
        w.d_sum[i] = sum;
        w.d_beta[i] = beta;
    });
}

/* Through the state in front of the chunk, and then between tokens. Rows of so and sr: S d_out and S dr. */
__device__ __forceinline__ void tokens_bwd(const dsc_delta_shape &of, const delta_span &s, const float *state,
                                           const float *d_state, const delta_chunk &w, float *so, float *sr)
{
    const int64_t dk = of.key_size, dv = of.value_size;
    each_of(s.count * dk, [&](int64_t at) {
        const int64_t i = at / dk, d = at % dk;
        so[at] = dot(state + d * dv, 1, w.d_out + i * dv, 1, dv);
        sr[at] = dot(state + d * dv, 1, w.dr + i * dv, 1, dv);
        const float from_state = w.delta[i] * dot(d_state + d * dv, 1, w.r + i * dv, 1, dv);
        w.dq[at] = w.dq[at] + w.gamma[i] * so[at] + dot(w.qk + i * CHUNK, 1, w.k + d, dk, i + 1);
        w.dk[at] = w.dk[at] + from_state - w.beta[i] * w.gamma[i] * sr[at] + dot(w.kk + i * CHUNK, 1, w.k + d, dk, i) +
                   dot(w.kk + (i + 1) * CHUNK + i, CHUNK, w.k + (i + 1) * dk + d, dk, s.count - 1 - i) +
                   dot(w.qk + i * CHUNK + i, CHUNK, w.q + i * dk + d, dk, s.count - i);
    });
    each_of(s.count, [&](int64_t i) {
        const float d_gamma =
            dot(w.q + i * dk, 1, so + i * dk, 1, dk) - w.beta[i] * dot(w.k + i * dk, 1, sr + i * dk, 1, dk);
        const float end = w.delta[i] * dot(w.kd + i * dv, 1, w.r + i * dv, 1, dv);
        float left = 0;
        for (int64_t c = 0; c < dv; c++)
            left = fmaf(w.dr[i * dv + c], w.v[i * dv + c] - w.gamma[i] * w.ks[i * dv + c], left);
        w.d_beta[i] = w.d_beta[i] + left;
        w.d_sum[i] = w.d_sum[i] + w.gamma[i] * d_gamma - end;
        w.document[i] = end; /* no longer read */
    });
}

/* Gradients of b, a and v; sums[0] and sums[1] grow by those of a_log and dt_bias. */
template <class T>
__device__ void put_gates(const delta_bwd<T> &a, const delta_span &s, int64_t h, const delta_chunk &w, float *sums)
{
    const dsc_delta_shape &of = a.in.shape;
    const int64_t dv = of.value_size, values = 2 * static_cast<int64_t>(of.key_heads) * of.key_size + h * dv;
    each_of(1, [&](int64_t) {
        float behind = w.d_whole;
        for (int64_t i = 0; i < s.count; i++)
            behind = behind + w.document[i];
        for (int64_t i = s.count - 1; i >= 0; i--) {
            behind = behind + w.d_sum[i];
            w.d_sum[i] = behind;
            sums[0] = sums[0] + behind * w.log_decay[i];
            sums[1] = sums[1] + behind * w.slope[i];
        }
    });
    each_of(s.count, [&](int64_t i) {
        const int64_t at = (s.row + i) * of.value_heads + h;
        a.d_b[at] = element<T>::from(w.d_beta[i] * w.beta[i] * (1.0f - w.beta[i]));
        a.d_a[at] = element<T>::from(w.d_sum[i] * w.slope[i]);
    });
    each_of(s.count * dv, [&](int64_t at) {
        a.d_qkv[(s.row + at / dv) * s.columns + values + at % dv] = element<T>::from(w.beta[at / dv] * w.dr[at]);
    });
}

template <class T>
__device__ void value_head_bwd(const delta_bwd<T> &a, const delta_span &s, int64_t h, const float *state,
                               float *d_state, delta_chunk &w, float *more, float *sums)
{
    const dsc_delta_shape &of = a.in.shape;
    const int64_t dk = of.key_size, dv = of.value_size;
    get_chunk(a.in, s, h, state, w);
    each_of(s.count * dv, [&](int64_t at) {
        w.d_out[at] = to_f32(a.d_out[((s.row + at / dv) * of.value_heads + h) * dv + at % dv]);
    });
    /* <S, dS>, in parts by rows, then in order */
    each_of(dk, [&](int64_t d) { more[d] = dot(state + d * dv, 1, d_state + d * dv, 1, dv); });
    each_of(1, [&](int64_t) {
        float sum = 0;
        for (int64_t d = 0; d < dk; d++)
            sum = sum + more[d];
        w.d_whole = sum * w.whole;
    });
    written_bwd(of, s, d_state, w);
    pairs_bwd(of, s, w);
    tokens_bwd(of, s, state, d_state, w, more, more + CHUNK * dk);
    each_of(dk * dv, [&](int64_t at) {
        const int64_t d = at / dv, c = at % dv;
        float sum = w.whole * d_state[at];
        for (int64_t i = 0; i < s.count; i++) {
            sum = fmaf(w.gamma[i] * w.q[i * dk + d], w.d_out[i * dv + c], sum);
            sum = fmaf(-w.beta[i] * w.gamma[i] * w.k[i * dk + d], w.dr[i * dv + c], sum);
        }
        d_state[at] = sum;
    });
    put_gates(a, s, h, w, sums);
}

template <class T>
__device__ void put_unit_rows(const delta_bwd<T> &a, const delta_span &s, int64_t column, const float *unit,
                              const float *d_unit, const float *inverse, float factor, float *along)
{
    const int64_t n = a.in.shape.key_size;
    each_of(s.count, [&](int64_t i) { along[i] = dot(unit + i * n, 1, d_unit + i * n, 1, n) / (factor * factor); });
    each_of(s.count * n, [&](int64_t at) {
        const int64_t i = at / n;
        const float d = inverse[i] * factor * (d_unit[at] - unit[at] * along[i]);
        a.d_qkv[(s.row + i) * s.columns + column + at % n] = element<T>::from(d);
    });
}

template <class T> __global__ void __launch_bounds__(THREADS, 1) delta_bwd_kernel(const delta_bwd<T> a)
{
    const dsc_delta_shape of = a.in.shape;
    const int64_t unit = blockIdx.x, b = unit / of.key_heads, head = unit % of.key_heads;
    const int64_t dk = of.key_size, elements = dk * of.value_size, chunks = dsc_delta_chunks(of.tokens);
    const int64_t group = of.value_heads / of.key_heads;
    float *d_state = a.scratch + unit * dsc_delta_bwd_unit(&of);
    __shared__ delta_chunk w;
    each_of(1, [&](int64_t) { w = delta_chunk_of(d_state + group * elements, &of, true); });
    float *sums = a.sums + 2 * (b * of.value_heads + head * group);
    float *more = d_state + dsc_delta_bwd_unit(&of) - 2 * CHUNK * dk; /* two pieces of [64, Dk] behind the chunk */
    each_of(group * elements, [&](int64_t i) { d_state[i] = 0; });
    each_of(2 * group, [&](int64_t i) { sums[i] = 0; });
    for (int64_t c = chunks - 1; c >= 0; c--) {
        const delta_span s = delta_span_of(&of, b, c);
        get_keys(a.in, s, head, w);
        each_of(CHUNK * dk, [&](int64_t i) { w.dq[i] = w.dk[i] = 0; });
        for (int64_t g = 0; g < group; g++) {
            const int64_t h = head * group + g;
            const float *state = a.states + ((b * chunks + c) * of.value_heads + h) * elements;
            value_head_bwd(a, s, h, state, d_state + g * elements, w, more, sums + 2 * g);
        }
        put_unit_rows(a, s, head * dk, w.q, w.dq, w.q_inverse, 1.0f / sqrtf(static_cast<float>(dk)), w.d_sum);
        put_unit_rows(a, s, (of.key_heads + head) * dk, w.k, w.dk, w.k_inverse, 1.0f, w.d_beta);
    }
}

/* Samples in order. */
__global__ void __launch_bounds__(THREADS)
    delta_sums_kernel(float *d_a_log, float *d_dt_bias, const float *sums, int64_t batch, int64_t heads)
{
    const int64_t h = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    float rate = 0, bias = 0;
    if (h >= heads)
        return;
    for (int64_t b = 0; b < batch; b++) {
        rate = rate + sums[2 * (b * heads + h)];
        bias = bias + sums[2 * (b * heads + h) + 1];
    }
    if (d_a_log != nullptr)
        d_a_log[h] = rate;
    if (d_dt_bias != nullptr)
        d_dt_bias[h] = bias;
}

template <class T> void bwd(const dsc_cuda_launch *at, const dsc_delta_bwd_args *a)
{
    const delta_bwd<T> args = { { static_cast<const T *>(a->qkv), static_cast<const T *>(a->b),
                                  static_cast<const T *>(a->a), static_cast<const T *>(a->a_log),
                                  static_cast<const T *>(a->dt_bias), a->positions, a->shape },
                                static_cast<T *>(a->d_qkv),
                                static_cast<T *>(a->d_b),
                                static_cast<T *>(a->d_a),
                                static_cast<const T *>(a->d_out),
                                a->states,
                                static_cast<float *>(a->scratch),
                                dsc_delta_sums(a) };
    DSC_CUDA_LAUNCH((delta_bwd_kernel<T>), grid_size(static_cast<int64_t>(a->shape.batch) * a->shape.key_heads),
                    THREADS, 0, at->stream, args);
    DSC_CUDA_LAUNCH(delta_sums_kernel, grid_size(dsc_div_ceil(a->shape.value_heads, THREADS)), THREADS, 0, at->stream,
                    a->d_a_log, a->d_dt_bias, dsc_delta_sums(a), static_cast<int64_t>(a->shape.batch),
                    static_cast<int64_t>(a->shape.value_heads));
}

} // namespace

dsc_status dsc_cuda_run_DELTA_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_delta_fwd_args *a = static_cast<const dsc_delta_fwd_args *>(args);
    DSC_ASSERT(a->shape.tokens >= 1 && a->shape.value_heads % a->shape.key_heads == 0);
    DSC_ASSERT(!a->resume || a->state != nullptr);
    DSC_TRY(dtype_check("DELTA_FWD", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, fwd<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_DELTA_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_delta_bwd_args *a = static_cast<const dsc_delta_bwd_args *>(args);
    DSC_ASSERT(a->shape.tokens >= 1 && a->shape.value_heads % a->shape.key_heads == 0);
    DSC_TRY(dtype_check("DELTA_BWD", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, bwd<T>(at, a));
    return DSC_OK;
}
