/* update.cu - the recipes of update.h, an operation a line as in update_ref.c. Compiled as exact.cu is: every operation
 * rounds once, and an FMA is one only where it is written. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/stochastic_round.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"
#include "kernels/q8_tables.h"

namespace {

/* Inputs of a recipe besides the element's own numbers. */
enum { NOTHING, ARRAY, FACTORS };
enum { HELD = DSC_UPDATE_STATES_MAX }; /* registers of states; a recipe leaves the last ones alone */

template <int N>
__device__ __forceinline__ void adam_moments(const dsc_update_scalars &s, float g, float (&state)[N])
{
    state[0] = fmaf(s.one_minus_beta1, g - state[0], state[0]);
    state[1] = fmaf(s.one_minus_beta2 * g, g, s.beta2 * state[1]);
}

/* From the gradient, weight and states of an element to the new ones. */
struct adamw {
    enum { STATES = 2, ALONG = NOTHING };
    template <int N>
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p,
                                               float (&state)[N])
    {
        p = p * s.decay;
        adam_moments(s, g, state);
        const float d = fmaf(sqrtf(state[1]), s.inv_sqrt_bias2, s.eps);
        p = fmaf(-s.step_size, state[0] / d, p);
    }
};

struct lamb {
    enum { STATES = 2, ALONG = NOTHING };
    static __device__ __forceinline__ float direction(const dsc_update_scalars &s, float g, float, float p,
                                                      float (&state)[HELD])
    {
        adam_moments(s, g, state);
        const float d = sqrtf(state[1] + s.eps_root) + s.eps;
        return fmaf(s.decay, p, state[0] / d);
    }
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p,
                                               float (&state)[HELD])
    {
        p = fmaf(-s.step_size, direction(s, g, 0, p, state), p);
    }
};

struct sgd {
    enum { STATES = 0, ALONG = NOTHING };
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p, float (&)[HELD])
    {
        p = fmaf(-s.step_size, g, p);
    }
};

struct momentum {
    enum { STATES = 1, ALONG = NOTHING };
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p,
                                               float (&state)[HELD])
    {
        const float b = fmaf(s.beta1, state[0], s.one_minus_beta1 * g);
        const float d = s.nesterov != 0 ? fmaf(s.beta1, b, g) : b;
        p = fmaf(-s.step_size, d, p);
        state[0] = b;
    }
};

struct adagrad {
    enum { STATES = 1, ALONG = NOTHING };
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p,
                                               float (&state)[HELD])
    {
        const float sum = fmaf(g, g, state[0]);
        const float d = sqrtf(sum) + s.eps;
        p = fmaf(-s.step_size, g / d, p);
        state[0] = sum;
    }
};

struct lion {
    enum { STATES = 1, ALONG = NOTHING };
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p,
                                               float (&state)[HELD])
    {
        const float m = state[0];
        const float c = fmaf(s.beta1, m, s.one_minus_beta1 * g);
        p = p * s.decay;
        p = p - (c > 0.0f ? s.step_size : c < 0.0f ? -s.step_size : c == 0.0f ? 0.0f : c);
        state[0] = fmaf(s.beta2, m, s.one_minus_beta2 * g);
    }
};

/* Its step is along an array, after the moment and the decay. */
struct muon {
    enum { STATES = 1, ALONG = ARRAY };
    static __device__ __forceinline__ float direction(const dsc_update_scalars &s, float g, float, float,
                                                      float (&state)[HELD])
    {
        state[0] = fmaf(s.one_minus_beta1, g - state[0], state[0]);
        return s.nesterov != 0 ? fmaf(-s.one_minus_beta1, state[0] - g, state[0]) : state[0];
    }
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float along, float &p,
                                               float (&state)[HELD])
    {
        direction(s, g, 0, 0, state);
        p = p * s.decay;
        p = fmaf(-s.step_size, along, p);
    }
};

__device__ __forceinline__ void step_along(const dsc_update_scalars &s, float u, float &p)
{
    p = p * s.decay;
    p = fmaf(-s.shrink, p, p);
    p = fmaf(-s.step_size, u, p);
}

__device__ __forceinline__ void step_by_moment(const dsc_update_scalars &s, float u, float &p, float &m)
{
    const float w = s.step_size * u;
    m = fmaf(s.beta1, m, s.one_minus_beta1 * w);
    p = p * s.decay;
    p = fmaf(-s.shrink, p, p);
    p = p - m;
}

/* A matrix's: `along` is the product of its row's and its column's factor. */
template <int MOMENTS> struct adafactor {
    enum { STATES = MOMENTS, ALONG = FACTORS };
    static __device__ __forceinline__ float direction(const dsc_update_scalars &s, float g, float along, float,
                                                      float (&)[HELD])
    {
        return g * fminf(along, s.factor_most);
    }
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float along, float &p,
                                               float (&state)[HELD])
    {
        const float u = direction(s, g, along, p, state);
        if (MOMENTS != 0)
            step_by_moment(s, u, p, state[0]);
        else
            step_along(s, u, p);
    }
};

/* All else: its second moment is behind the first one, if that is kept. */
template <int MOMENTS> struct adafactor_flat {
    enum { STATES = MOMENTS + 1, ALONG = NOTHING };
    static __device__ __forceinline__ float direction(const dsc_update_scalars &s, float g, float, float,
                                                      float (&state)[HELD])
    {
        const float q = fmaf(g, g, s.eps);
        state[MOMENTS] = fmaf(s.one_minus_beta2, q - state[MOMENTS], state[MOMENTS]);
        return g / sqrtf(fmaxf(state[MOMENTS], s.eps_root));
    }
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p,
                                               float (&state)[HELD])
    {
        const float u = direction(s, g, 0, p, state);
        if (MOMENTS != 0)
            step_by_moment(s, u, p, state[0]);
        else
            step_along(s, u, p);
    }
};

/* States: v, then the mean of gradients if centered, then the momentum if there is one. */
template <int CENTERED, int MOMENTUM> struct rmsprop {
    enum { STATES = 1 + CENTERED + MOMENTUM, ALONG = NOTHING };
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p,
                                               float (&state)[HELD])
    {
        state[0] = fmaf(s.one_minus_beta2 * g, g, s.beta2 * state[0]);
        float below = state[0];
        if (CENTERED != 0) {
            state[1] = fmaf(s.one_minus_beta2, g - state[1], state[1]);
            below = state[0] - state[1] * state[1];
            below = 0.0f > below ? 0.0f : below;
        }
        float u = g / (sqrtf(below) + s.eps);
        if (MOMENTUM != 0)
            u = state[1 + CENTERED] = fmaf(s.beta1, state[1 + CENTERED], u);
        p = fmaf(-s.step_size, u, p);
    }
};

struct lars {
    enum { STATES = 1, ALONG = NOTHING };
    static __device__ __forceinline__ float direction(const dsc_update_scalars &, float g, float, float,
                                                      float (&)[HELD])
    {
        return g;
    }
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p,
                                               float (&state)[HELD])
    {
        const float w = s.shrink * fmaf(s.decay, p, g);
        const float b = fmaf(s.beta1, state[0], w);
        const float d = s.nesterov != 0 ? fmaf(s.beta1, b, w) : b;
        p = fmaf(-s.step_size, d, p);
        state[0] = b;
    }
};

/* Arrays of these inputs in a launch. */
struct known {
    const float *along, *row, *col;
    int64_t at, cols;

    template <int KIND, int W> __device__ __forceinline__ void take(float (&x)[W], int64_t i) const
    {
        if (KIND == ARRAY)
            load<W>(x, along + i);
        if (KIND != FACTORS)
            return;
        int64_t r = (at + i) / cols, c = at + i - r * cols;
#pragma unroll
        for (int j = 0; j < W; j++) {
            x[j] = row[r] * col[c];
            c = c + 1;
            if (c == cols) {
                c = 0;
                r = r + 1;
            }
        }
    }
};

/* Half: of the copy; float where there is none. first % 4 == 0 where W is 4: such a run is one random block's. */
template <class Recipe, class Half, class State> struct update_op {
    float *master;
    State *state[DSC_UPDATE_STATES_MAX];
    const float *grad;
    dsc_dtype round_dtype;
    known beside;
    Half *param_half;
    uint64_t seed, stream;
    int64_t first;
    dsc_update_scalars s;

    template <int W> __device__ __forceinline__ void round(float (&x)[W][HELD], int64_t i) const
    {
        static_assert(W == 4 || W == 1, "a block has 4 words");
        const uint64_t n = static_cast<uint64_t>(first + i);
        uint32_t word[4];
        philox(word, seed, stream, n / 4);
#pragma unroll
        for (int j = 0; j < W; j++) {
            const uint32_t at = W == 4 ? static_cast<uint32_t>(j) : static_cast<uint32_t>(n % 4);
            const uint32_t bits = at == 0 ? word[0] : at == 1 ? word[1] : at == 2 ? word[2] : word[3];
#pragma unroll
            for (int k = 0; k < Recipe::STATES; k++)
                x[j][k] = up_or_down(x[j][k], bits >> (k == 2 ? 8 : 16 * k) & 0xffffu);
        }
    }

    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float p[W], g[W], along[W] = {}, kept[W], x[W][HELD] = {};
        load<W>(p, master + i);
        load<W>(g, grad + i);
        round_to(g, round_dtype);
        beside.take<static_cast<int>(Recipe::ALONG)>(along, i);
#pragma unroll
        for (int k = 0; k < Recipe::STATES; k++) {
            load<W>(kept, state[k] + i);
#pragma unroll
            for (int j = 0; j < W; j++)
                x[j][k] = kept[j];
        }
#pragma unroll
        for (int j = 0; j < W; j++) {
            float scaled = g[j] * s.grad_scale;
            if (s.l2 != 0.0f)
                scaled = fmaf(s.l2, p[j], scaled);
            Recipe::one(s, scaled, along[j], p[j], x[j]);
        }
        if (sizeof(State) == 2 && Recipe::STATES > 0)
            round<W>(x, i);
        store<W>(master + i, p);
#pragma unroll
        for (int k = 0; k < Recipe::STATES; k++) {
#pragma unroll
            for (int j = 0; j < W; j++)
                kept[j] = x[j][k];
            store<W>(state[k] + i, kept);
        }
        if (sizeof(Half) == 2)
            store<W>(param_half + i, p);
    }
};

template <class Recipe, class State> struct direction_op {
    const float *master;
    const State *state[2];
    const float *grad;
    dsc_dtype round_dtype;
    float *direction;
    known beside;
    dsc_update_scalars s;

    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float p[W], g[W], along[W] = {}, first[W] = {}, second[W] = {};
        load<W>(p, master + i);
        load<W>(g, grad + i);
        round_to(g, round_dtype);
        if (static_cast<int>(Recipe::STATES) > 0)
            load<W>(first, state[0] + i);
        if (static_cast<int>(Recipe::STATES) > 1)
            load<W>(second, state[1] + i);
        if (static_cast<int>(Recipe::ALONG) == FACTORS)
            beside.take<FACTORS>(along, i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            float x[HELD] = { first[j], second[j] }, scaled = g[j] * s.grad_scale;
            if (s.l2 != 0.0f)
                scaled = fmaf(s.l2, p[j], scaled);
            p[j] = Recipe::direction(s, scaled, along[j], p[j], x);
        }
        store<W>(direction + i, p);
    }
};

known beside_of(const dsc_update_args *a) { return { a->along, a->row, a->col, a->at, a->cols }; }

template <class Recipe, class State> void directions(const dsc_cuda_launch *at, const dsc_update_args *a)
{
    const direction_op<Recipe, State> op = {
        a->master,    { static_cast<const State *>(a->state[0]), static_cast<const State *>(a->state[1]) },
        a->grad,      a->round_dtype,
        a->direction, beside_of(a),
        a->scalars
    };
    each<4>(at, op, a->count,
            is_aligned(a->master) && is_aligned(a->state[0]) && is_aligned(a->state[1]) && is_aligned(a->grad) &&
                is_aligned(a->direction));
}

template <class Recipe, class Half, class State> void update(const dsc_cuda_launch *at, const dsc_update_args *a)
{
    const update_op<Recipe, Half, State> op = { a->master,
                                                { static_cast<State *>(a->state[0]), static_cast<State *>(a->state[1]),
                                                  static_cast<State *>(a->state[2]) },
                                                a->grad,
                                                a->round_dtype,
                                                beside_of(a),
                                                reinterpret_cast<Half *>(a->param_half),
                                                a->seed,
                                                a->stream,
                                                a->first,
                                                a->scalars };
    each<4>(at, op, a->count,
            is_aligned(a->master) && is_aligned(a->state[0]) && is_aligned(a->state[1]) &&
                is_aligned(a->state[2]) && is_aligned(a->grad) && is_aligned(a->along) && is_aligned(a->param_half) &&
                a->first % 4 == 0);
}

template <class Recipe, class State> void update_copy(const dsc_cuda_launch *at, const dsc_update_args *a)
{
    DSC_CUDA_FOR_DTYPE(a->param_half != NULL ? a->half_dtype : DSC_F32, T, update<Recipe, T, State>(at, a));
}

/* ---- U8 states: a warp has a block of DSC_Q8_BLOCK elements ---- */

enum { Q8_THREADS = 256, Q8_WARPS = Q8_THREADS / 32, Q8_EACH = DSC_Q8_BLOCK / 32, Q8_DECADES = 6 };
/* Blocks of threads on a multiprocessor: the tables are loaded once by each. */
enum { Q8_RESIDENT = 8 };

__device__ const float q8_signed_map[256] = DSC_Q8_SIGNED_MAP, q8_signed_middles[256] = DSC_Q8_SIGNED_MIDDLES;
__device__ const float q8_unsigned_map[256] = DSC_Q8_UNSIGNED_MAP, q8_unsigned_middles[256] = DSC_Q8_UNSIGNED_MIDDLES;

struct q8_tables {
    float map[2][256], middles[2][256];
};

/* As codes_16 of update_v16.h: the code or the one below it by a product, then one comparison. */
template <int K> __device__ __forceinline__ uint32_t q8_code(float y, const float *middles)
{
    constexpr float decade[Q8_DECADES] = { 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f };
    const float size = fabsf(y), below = K == 0 ? 0.0f : 1.0f;
    float n = K == 0 ? 1.0f : 2.0f, scale = 1e6f;
    float per_one = n * scale / 0.9f, offset = n - below - n / 9.0f - 0.25f;
#pragma unroll
    for (int d = 0; d < Q8_DECADES; d++) {
        n *= 2.0f;
        scale *= 0.1f;
        per_one = size >= decade[d] ? n * scale / 0.9f : per_one;
        offset = size >= decade[d] ? n - below - n / 9.0f - 0.25f : offset;
    }
    int code = static_cast<int>(floorf(fmaf(size, per_one, offset)));
    if (K == 0)
        code = (__float_as_uint(y) >> 31) != 0 ? 126 - code : 127 + code;
    return static_cast<uint32_t>(code + (middles[code + 1] < y ? 1 : 0));
}

/* From the block's largest bits of |x| to its absmax, and what elements are multiplied with. */
__device__ __forceinline__ float q8_inverse(uint32_t top, float &absmax)
{
    absmax = __uint_as_float(top >= 0x7f800000u ? 0x7fc00000u : top);
    return top >= 0x7f800000u ? 0.0f : 1.0f / (absmax > 1e-38f ? absmax : 1e-38f);
}

__device__ __forceinline__ uint32_t warp_top(uint32_t top)
{
#pragma unroll
    for (int width = 16; width >= 1; width /= 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, top, width);
        top = other > top ? other : top;
    }
    return top;
}

template <int W> struct codes;
template <> struct codes<4> {
    typedef uint32_t word;
};
template <> struct codes<1> {
    typedef uint8_t word;
};

template <class Half> struct q8_step {
    float *master;
    uint8_t *state[2];
    float *absmax[2];
    const float *grad;
    dsc_dtype round_dtype;
    Half *param_half;
    int64_t count;
    dsc_update_scalars s;

    /* Element j of a lane. With W = 1 a block may be short. */
    template <int W> static __device__ __forceinline__ int64_t place(int64_t block, int lane, int j)
    {
        return block * DSC_Q8_BLOCK + j / W * 32 * W + lane * W + j % W;
    }

    template <int W, int K>
    __device__ __forceinline__ void quantize(const float (&x)[Q8_EACH][2], int64_t block, int lane,
                                             const q8_tables &t) const
    {
        uint32_t top = 0;
#pragma unroll
        for (int j = 0; j < Q8_EACH; j++) {
            const uint32_t bits = __float_as_uint(x[j][K]) & 0x7fffffffu;
            top = bits > top ? bits : top;
        }
        float largest;
        const float inverse = q8_inverse(warp_top(top), largest);
        if (lane == 0)
            absmax[K][block] = largest;
#pragma unroll
        for (int j = 0; j < Q8_EACH; j += W) {
            uint32_t word = 0;
#pragma unroll
            for (int i = 0; i < W; i++)
                word |= q8_code<K>(inverse == 0.0f ? 0.0f : x[j + i][K] * inverse, t.middles[K]) << (8 * i);
            const int64_t at = place<W>(block, lane, j);
            if (W == 4 || at < count)
                *reinterpret_cast<typename codes<W>::word *>(state[K] + at) =
                    static_cast<typename codes<W>::word>(word);
        }
    }

    template <int W> __device__ __forceinline__ void run(int64_t block, int lane, const q8_tables &t) const
    {
        float p[Q8_EACH / W][W] = {}, g[Q8_EACH / W][W] = {}, x[Q8_EACH][2];
        uint32_t word[2][Q8_EACH / W] = {};
        const float scale[2] = { absmax[0][block], absmax[1][block] };
#pragma unroll
        for (int c = 0; c < Q8_EACH / W; c++) {
            const int64_t at = place<W>(block, lane, c * W);
            if (W == 1 && at >= count)
                continue;
            load<W>(p[c], master + at);
            load<W>(g[c], grad + at);
            round_to(g[c], round_dtype);
            word[0][c] = *reinterpret_cast<const typename codes<W>::word *>(state[0] + at);
            word[1][c] = *reinterpret_cast<const typename codes<W>::word *>(state[1] + at);
        }
#pragma unroll
        for (int c = 0; c < Q8_EACH / W; c++) {
            const int64_t at = place<W>(block, lane, c * W);
            const bool inside = W == 4 || at < count;
#pragma unroll
            for (int i = 0; i < W; i++) {
                float(&own)[2] = x[c * W + i];
                own[0] = inside ? t.map[0][word[0][c] >> (8 * i) & 0xffu] * scale[0] : 0.0f;
                own[1] = inside ? t.map[1][word[1][c] >> (8 * i) & 0xffu] * scale[1] : 0.0f;
                float scaled = g[c][i] * s.grad_scale;
                if (s.l2 != 0.0f)
                    scaled = fmaf(s.l2, p[c][i], scaled);
                if (inside)
                    adamw::one(s, scaled, 0, p[c][i], own);
            }
            if (!inside)
                continue;
            store<W>(master + at, p[c]);
            if (sizeof(Half) == 2)
                store<W>(param_half + at, p[c]);
        }
        __syncwarp(); /* every lane has read the scales that lane 0 replaces */
        quantize<W, 0>(x, block, lane, t);
        quantize<W, 1>(x, block, lane, t);
    }
};

template <class Half, int W> __global__ void __launch_bounds__(Q8_THREADS) adamw_q8_kernel(const q8_step<Half> a)
{
    __shared__ q8_tables t;
    const int lane = static_cast<int>(threadIdx.x % 32);
    t.map[0][threadIdx.x] = q8_signed_map[threadIdx.x];
    t.map[1][threadIdx.x] = q8_unsigned_map[threadIdx.x];
    t.middles[0][threadIdx.x] = q8_signed_middles[threadIdx.x];
    t.middles[1][threadIdx.x] = q8_unsigned_middles[threadIdx.x];
    __syncthreads();
    const int64_t blocks = (a.count + DSC_Q8_BLOCK - 1) / DSC_Q8_BLOCK;
    for (int64_t b = static_cast<int64_t>(blockIdx.x) * Q8_WARPS + threadIdx.x / 32; b < blocks;
         b += static_cast<int64_t>(gridDim.x) * Q8_WARPS)
        a.template run<W>(b, lane, t);
}

template <class Half> void update_q8(const dsc_cuda_launch *at, const dsc_update_args *a)
{
    const q8_step<Half> op = { a->master,
                               { static_cast<uint8_t *>(a->state[0]), static_cast<uint8_t *>(a->state[1]) },
                               { a->absmax[0], a->absmax[1] },
                               a->grad,
                               a->round_dtype,
                               reinterpret_cast<Half *>(a->param_half),
                               a->count,
                               a->scalars };
    if (a->count == 0)
        return;
    const int64_t most = static_cast<int64_t>(at->multiprocessors) * Q8_RESIDENT;
    const unsigned grid = grid_size(dsc_min_i64(dsc_div_ceil(a->count, DSC_Q8_BLOCK * Q8_WARPS), most));
    if (a->count % DSC_Q8_BLOCK == 0 && is_aligned(a->master) && is_aligned(a->grad) && is_aligned(a->param_half) &&
        is_aligned(a->state[0]) && is_aligned(a->state[1]))
        DSC_CUDA_LAUNCH((adamw_q8_kernel<Half, 4>), grid, Q8_THREADS, 0, at->stream, op);
    else
        DSC_CUDA_LAUNCH((adamw_q8_kernel<Half, 1>), grid, Q8_THREADS, 0, at->stream, op);
}

void update_copy_q8(const dsc_cuda_launch *at, const dsc_update_args *a)
{
    DSC_CUDA_FOR_DTYPE(a->param_half != NULL ? a->half_dtype : DSC_F32, T, update_q8<T>(at, a));
}

/* Only the host's kernels read bf16 sums, or write elsewhere than they read. */
dsc_status places_check(const dsc_update_args *a, const char *name, dsc_error *err)
{
    if (a->grad_dtype != DSC_F32 || a->master_from != NULL)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, name, "a GPU updates states in place, from sums in fp32");
    return dtype_check(name, a->round_dtype, err);
}

dsc_status states_check(const dsc_update_args *a, const char *name, dsc_error *err)
{
    DSC_ASSERT(a->first >= 0);
    DSC_TRY(places_check(a, name, err));
    if (a->state_dtype != DSC_F32 && a->state_dtype != DSC_BF16)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, name, "no states of dtype %d", static_cast<int>(a->state_dtype));
    return DSC_OK;
}

template <class Recipe>
dsc_status step(const dsc_cuda_launch *at, const void *args, const char *name, dsc_error *err)
{
    const dsc_update_args *a = static_cast<const dsc_update_args *>(args);
    DSC_TRY(states_check(a, name, err));
    if (a->state_dtype == DSC_F32 || static_cast<int>(Recipe::STATES) == 0)
        update_copy<Recipe, float>(at, a);
    else
        update_copy<Recipe, uint16_t>(at, a);
    return DSC_OK;
}

template <class Recipe>
dsc_status step_or_direction(const dsc_cuda_launch *at, const void *args, const char *name, dsc_error *err)
{
    const dsc_update_args *a = static_cast<const dsc_update_args *>(args);
    if (a->direction == NULL)
        return step<Recipe>(at, args, name, err);
    DSC_TRY(states_check(a, name, err));
    if (a->state_dtype == DSC_F32)
        directions<Recipe, float>(at, a);
    else
        directions<Recipe, uint16_t>(at, a);
    return DSC_OK;
}

} // namespace

dsc_status dsc_cuda_run_ADAMW(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_update_args *a = static_cast<const dsc_update_args *>(args);
    if (a->state_dtype != DSC_U8)
        return step<adamw>(at, args, "ADAMW", err);
    DSC_TRY(places_check(a, "ADAMW", err));
    update_copy_q8(at, a);
    return DSC_OK;
}

dsc_status dsc_cuda_run_SGD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step<sgd>(at, args, "SGD", err);
}

dsc_status dsc_cuda_run_MOMENTUM(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step<momentum>(at, args, "MOMENTUM", err);
}

dsc_status dsc_cuda_run_ADAGRAD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step<adagrad>(at, args, "ADAGRAD", err);
}

dsc_status dsc_cuda_run_LION(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step<lion>(at, args, "LION", err);
}

dsc_status dsc_cuda_run_LAMB(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step_or_direction<lamb>(at, args, "LAMB", err);
}

dsc_status dsc_cuda_run_MUON(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step_or_direction<muon>(at, args, "MUON", err);
}

dsc_status dsc_cuda_run_ADAFACTOR(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step_or_direction<adafactor<0>>(at, args, "ADAFACTOR", err);
}

dsc_status dsc_cuda_run_ADAFACTOR_FLAT(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step_or_direction<adafactor_flat<0>>(at, args, "ADAFACTOR_FLAT", err);
}

dsc_status dsc_cuda_run_ADAFACTOR_M(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step_or_direction<adafactor<1>>(at, args, "ADAFACTOR_M", err);
}

dsc_status dsc_cuda_run_ADAFACTOR_FLAT_M(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step_or_direction<adafactor_flat<1>>(at, args, "ADAFACTOR_FLAT_M", err);
}

dsc_status dsc_cuda_run_RMSPROP(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step<rmsprop<0, 0>>(at, args, "RMSPROP", err);
}

dsc_status dsc_cuda_run_RMSPROP_M(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step<rmsprop<0, 1>>(at, args, "RMSPROP_M", err);
}

dsc_status dsc_cuda_run_RMSPROP_C(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step<rmsprop<1, 0>>(at, args, "RMSPROP_C", err);
}

dsc_status dsc_cuda_run_RMSPROP_CM(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step<rmsprop<1, 1>>(at, args, "RMSPROP_CM", err);
}

dsc_status dsc_cuda_run_LARS(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return step_or_direction<lars>(at, args, "LARS", err);
}
