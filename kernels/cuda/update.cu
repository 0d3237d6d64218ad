/* update.cu - the recipes of update.h, an operation a line as in update_ref.c. Compiled as exact.cu is: every operation
 * rounds once, and an FMA is one only where it is written. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/stochastic_round.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace {

/* Inputs of a recipe besides the element's own numbers. */
enum { NOTHING, ARRAY, FACTORS };

__device__ __forceinline__ void adam_moments(const dsc_update_scalars &s, float g, float (&state)[2])
{
    state[0] = fmaf(s.one_minus_beta1, g - state[0], state[0]);
    state[1] = fmaf(s.one_minus_beta2 * g, g, s.beta2 * state[1]);
}

/* From the gradient, weight and states of an element to the new ones. */
struct adamw {
    enum { STATES = 2, ALONG = NOTHING };
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p, float (&state)[2])
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
                                                      float (&state)[2])
    {
        adam_moments(s, g, state);
        const float d = sqrtf(state[1] + s.eps_root) + s.eps;
        return fmaf(s.decay, p, state[0] / d);
    }
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p, float (&state)[2])
    {
        p = fmaf(-s.step_size, direction(s, g, 0, p, state), p);
    }
};

struct sgd {
    enum { STATES = 0, ALONG = NOTHING };
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p, float (&)[2])
    {
        p = fmaf(-s.step_size, g, p);
    }
};

struct momentum {
    enum { STATES = 1, ALONG = NOTHING };
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p, float (&state)[2])
    {
        const float b = fmaf(s.beta1, state[0], s.one_minus_beta1 * g);
        const float d = s.nesterov != 0 ? fmaf(s.beta1, b, g) : b;
        p = fmaf(-s.step_size, d, p);
        state[0] = b;
    }
};

struct adagrad {
    enum { STATES = 1, ALONG = NOTHING };
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p, float (&state)[2])
    {
        const float sum = fmaf(g, g, state[0]);
        const float d = sqrtf(sum) + s.eps;
        p = fmaf(-s.step_size, g / d, p);
        state[0] = sum;
    }
};

struct lion {
    enum { STATES = 1, ALONG = NOTHING };
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p, float (&state)[2])
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
                                                      float (&state)[2])
    {
        state[0] = fmaf(s.one_minus_beta1, g - state[0], state[0]);
        return s.nesterov != 0 ? fmaf(-s.one_minus_beta1, state[0] - g, state[0]) : state[0];
    }
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float along, float &p,
                                               float (&state)[2])
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
                                                      float (&)[2])
    {
        return g * fminf(along, s.factor_most);
    }
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float along, float &p,
                                               float (&state)[2])
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
                                                      float (&state)[2])
    {
        const float q = fmaf(g, g, s.eps);
        state[MOMENTS] = fmaf(s.one_minus_beta2, q - state[MOMENTS], state[MOMENTS]);
        return g / sqrtf(fmaxf(state[MOMENTS], s.eps_root));
    }
    static __device__ __forceinline__ void one(const dsc_update_scalars &s, float g, float, float &p, float (&state)[2])
    {
        const float u = direction(s, g, 0, p, state);
        if (MOMENTS != 0)
            step_by_moment(s, u, p, state[0]);
        else
            step_along(s, u, p);
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
    known beside;
    Half *param_half;
    uint64_t seed, stream;
    int64_t first;
    dsc_update_scalars s;

    template <int W> __device__ __forceinline__ void round(float (&x)[W][2], int64_t i) const
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
                x[j][k] = up_or_down(x[j][k], bits >> 16 * k & 0xffffu);
        }
    }

    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float p[W], g[W], along[W] = {}, kept[W], x[W][2] = {};
        load<W>(p, master + i);
        load<W>(g, grad + i);
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
    float *direction;
    known beside;
    dsc_update_scalars s;

    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float p[W], g[W], along[W] = {}, first[W] = {}, second[W] = {};
        load<W>(p, master + i);
        load<W>(g, grad + i);
        if (static_cast<int>(Recipe::STATES) > 0)
            load<W>(first, state[0] + i);
        if (static_cast<int>(Recipe::STATES) > 1)
            load<W>(second, state[1] + i);
        if (static_cast<int>(Recipe::ALONG) == FACTORS)
            beside.take<FACTORS>(along, i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            float x[2] = { first[j], second[j] }, scaled = g[j] * s.grad_scale;
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
        a->grad,      a->direction,
        beside_of(a), a->scalars
    };
    each<4>(at, op, a->count,
            is_aligned(a->master) && is_aligned(a->state[0]) && is_aligned(a->state[1]) && is_aligned(a->grad) &&
                is_aligned(a->direction));
}

template <class Recipe, class Half, class State> void update(const dsc_cuda_launch *at, const dsc_update_args *a)
{
    const update_op<Recipe, Half, State> op = { a->master,
                                                { static_cast<State *>(a->state[0]),
                                                  static_cast<State *>(a->state[1]) },
                                                a->grad,
                                                beside_of(a),
                                                reinterpret_cast<Half *>(a->param_half),
                                                a->seed,
                                                a->stream,
                                                a->first,
                                                a->scalars };
    each<4>(at, op, a->count,
            is_aligned(a->master) && is_aligned(a->state[0]) && is_aligned(a->state[1]) && is_aligned(a->grad) &&
                is_aligned(a->along) && is_aligned(a->param_half) && a->first % 4 == 0);
}

template <class Recipe, class State> void update_copy(const dsc_cuda_launch *at, const dsc_update_args *a)
{
    DSC_CUDA_FOR_DTYPE(a->param_half != NULL ? a->half_dtype : DSC_F32, T, update<Recipe, T, State>(at, a));
}

dsc_status states_check(const dsc_update_args *a, const char *name, dsc_error *err)
{
    DSC_ASSERT(a->first >= 0);
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
    return step<adamw>(at, args, "ADAMW", err);
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
