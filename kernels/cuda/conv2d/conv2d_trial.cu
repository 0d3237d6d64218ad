/* conv2d_trial.cu - see conv2d_trial.h.
 *
 * Inputs lie in [-1, 1), and every number of both results is compared. cuDNN runs twice, and both results must have the
 * same bits. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/conv2d/conv2d_trial.h"
#include "kernels/cuda/conv2d/conv2d_cudnn.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/trial.h"

#include "kernels/conv2d_products.h"

namespace {

/* ---- operands ---- */

/* A difference has two bounds, which are added. One is a part of the number, for roundings to the dtype. The other is a
 * part of the deviation of a sum of products, for roundings of partial sums. */
constexpr float NEAR_BF16 = 1.0f / 128, NEAR_F32 = 1.0f / 4096;
constexpr float SUM_BF16 = 1.0f / 256, SUM_F32 = 1.0f / 65536;

template <class T> struct fill_op {
    T *to;
    uint64_t seed;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
#pragma unroll
        for (int k = 0; k < W; k++)
            to[i + k] = element<T>::from(random_of(seed + static_cast<uint64_t>(i + k)));
    }
};

typedef struct operands {
    char *in, *with, *add, *scratch;
    char *out[2];
    unsigned *found;
    int64_t in_count, with_count, out_count, add_count;
    dsc_dtype out_dtype;
    float terms; /* of a sum */
} operands;

int64_t scratch_bytes(const conv2d_trial *t)
{
    const dsc_conv2d_args *a = &t->shape;
    return dsc_max_i64(dsc_conv2d_gpu_scratch(&a->shape, a->add != NULL, a->dtype),
                       dsc_conv2d_products_scratch(&a->shape, a->pass, a->dtype, t->chunk_bytes));
}

void count(const dsc_conv2d_args *a, operands *o)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t x = s->batch * s->height * s->width * s->in, weights = dsc_conv2d_weights(s);
    const int64_t y = dsc_conv2d_rows(s, DSC_CONV2D_Y) * s->out;
    const bool gradient = a->pass == DSC_CONV2D_DW, back = a->pass == DSC_CONV2D_DX;
    o->in_count = back ? y : x, o->with_count = gradient ? y : weights;
    o->out_count = back ? x : gradient ? weights : y;
    o->add_count = a->add == NULL ? 0 : back ? x : s->out;
    o->out_dtype = gradient ? DSC_F32 : a->dtype;
    o->terms = static_cast<float>(gradient ? dsc_conv2d_rows(s, DSC_CONV2D_Y)
                                           : dsc_conv2d_taps(s) * (back ? s->out : s->in));
}

/* False: the memory is too small. */
bool lay_out(const conv2d_trial *t, operands *o)
{
    const int64_t each_in = static_cast<int64_t>(dsc_dtype_bytes(t->shape.dtype));
    char *at = t->memory;
    *o = {};
    if (at == NULL)
        return false;
    count(&t->shape, o);
    const int64_t each_out = static_cast<int64_t>(dsc_dtype_bytes(o->out_dtype));
    o->in = cut<char>(&at, o->in_count * each_in);
    o->with = cut<char>(&at, o->with_count * each_in);
    o->add = cut<char>(&at, o->add_count * each_in);
    for (int i = 0; i < 2; i++)
        o->out[i] = cut<char>(&at, o->out_count * each_out);
    o->scratch = cut<char>(&at, scratch_bytes(t));
    o->found = cut<unsigned>(&at, 1);
    return at - t->memory <= t->memory_bytes;
}

template <class T> void fill_one(const conv2d_trial *t, char *to, uint64_t seed, int64_t elements)
{
    each<16 / static_cast<int>(sizeof(T))>(t->at, fill_op<T>{ reinterpret_cast<T *>(to), seed << 40 }, elements, true);
}

/* Counts need not be whole vectors, but each operand ends at a multiple of 256 bytes. */
template <class T> void fill(const conv2d_trial *t, const operands *o)
{
    fill_one<T>(t, o->in, 1, o->in_count);
    fill_one<T>(t, o->with, 2, o->with_count);
    fill_one<T>(t, o->add, 3, o->add_count);
}

/* ---- one run ---- */

dsc_status cuda_try(cudaError_t error, const char *what, dsc_error *err)
{
    return measure_try("CONV2D", error, what, err);
}

dsc_status launch(void *user, dsc_kernel kernel, const void *args, int64_t args_bytes, dsc_error *err)
{
    (void)args_bytes;
    return dsc_cuda_kernels[kernel](static_cast<const dsc_cuda_launch *>(user), args, err);
}

/* The result goes to the first or the second place. */
dsc_status run(const conv2d_trial *t, const operands *o, bool by_cudnn, int place, dsc_error *err)
{
    const dsc_conv2d_launcher launcher = { launch, const_cast<dsc_cuda_launch *>(t->at) };
    dsc_conv2d_args a = t->shape;
    a.out = o->out[place], a.in = o->in, a.with = o->with, a.add = o->add, a.scratch = o->scratch;
    DSC_TRY(by_cudnn ? dsc_cuda_conv2d_cudnn_run(t->at, t->cudnn, t->plan, &a, err)
                     : dsc_conv2d_products_run(&launcher, &a, t->chunk_bytes, err));
    return cuda_try(cudaGetLastError(), "a launch", err);
}

int64_t out_bytes(const operands *o) { return o->out_count * static_cast<int64_t>(dsc_dtype_bytes(o->out_dtype)); }

/* Elements that a kernel leaves unwritten are NaN. */
dsc_status run_alone(const conv2d_trial *t, const operands *o, bool by_cudnn, int place, dsc_error *err)
{
    DSC_TRY(cuda_try(cudaMemsetAsync(o->out[place], 0xff, static_cast<size_t>(out_bytes(o)), t->at->stream), "filling",
                     err));
    DSC_TRY(run(t, o, by_cudnn, place, err));
    return trial_wait(t->at->stream, "CONV2D", by_cudnn ? "conv2d of cuDNN" : "conv2d",
                      by_cudnn ? "; \"dsc\": {\"convolutions\": \"own\"} does without it" : "", err);
}

/* ---- both ---- */

template <class T>
__global__ void compare_kernel(const T *x, const T *y, int64_t elements, float near, float sum, unsigned *found)
{
    const int64_t step = static_cast<int64_t>(gridDim.x) * COMPARE_THREADS;
    unsigned mine = 0;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * COMPARE_THREADS + threadIdx.x; i < elements; i += step) {
        const float a = to_f32(x[i]), b = to_f32(y[i]);
        mine += is_far(a, b, sum + near * fmaxf(fabsf(a), fabsf(b)));
    }
    add_found(found, mine);
}

template <class T> void compare(const conv2d_trial *t, const operands *o)
{
    const bool wide = t->shape.dtype == DSC_F32;
    DSC_CUDA_LAUNCH((compare_kernel<T>), COMPARE_BLOCKS, COMPARE_THREADS, 0, t->at->stream,
                    reinterpret_cast<const T *>(o->out[0]), reinterpret_cast<const T *>(o->out[1]), o->out_count,
                    wide ? NEAR_F32 : NEAR_BF16, (wide ? SUM_F32 : SUM_BF16) * sqrtf(o->terms), o->found);
}

dsc_status count_far(const conv2d_trial *t, const operands *o, unsigned *far, dsc_error *err)
{
    DSC_TRY(cuda_try(cudaMemsetAsync(o->found, 0, sizeof *o->found, t->at->stream), "filling", err));
    if (o->out_dtype == DSC_F32)
        compare<float>(t, o);
    else
        compare<uint16_t>(t, o);
    return fetch_found("CONV2D", t->at->stream, o->found, far, err);
}

/* The second place has cuDNN's result; its next run goes to the first. */
dsc_status run_again(const conv2d_trial *t, const operands *o, unsigned *unlike, dsc_error *err)
{
    DSC_TRY(run_alone(t, o, true, 0, err));
    DSC_TRY(cuda_try(cudaMemsetAsync(o->found, 0, sizeof *o->found, t->at->stream), "filling", err));
    DSC_CUDA_LAUNCH(compare_words_kernel, COMPARE_BLOCKS, COMPARE_THREADS, 0, t->at->stream,
                    reinterpret_cast<const uint16_t *>(o->out[0]), reinterpret_cast<const uint16_t *>(o->out[1]),
                    out_bytes(o) / 2, o->found);
    return fetch_found("CONV2D", t->at->stream, o->found, unlike, err);
}

dsc_status rounds(const conv2d_trial *t, const operands *o, const stopwatch *watch, float best[2], dsc_error *err)
{
    for (int round = 0; round < MEASURE_ROUNDS; round++)
        for (int which = 0; which < 2; which++) {
            float ms = 0;
            DSC_TRY(cuda_try(watch_start(watch, t->at->stream), "an event", err));
            DSC_TRY(run(t, o, which == 1, which, err));
            DSC_TRY(cuda_try(watch_stop(watch, t->at->stream, &ms), "a kernel", err));
            best[which] = round == 0 || ms < best[which] ? ms : best[which];
        }
    return DSC_OK;
}

dsc_status race(const conv2d_trial *t, const operands *o, float best[2], dsc_error *err)
{
    stopwatch watch;
    dsc_status status = cuda_try(watch_open(&watch), "an event", err);
    if (status == DSC_OK)
        status = rounds(t, o, &watch, best, err);
    watch_close(&watch);
    return status;
}

} // namespace

dsc_status dsc_cuda_conv2d_try(const conv2d_trial *t, conv2d_found *out, dsc_error *err)
{
    operands o;
    *out = {};
    if (!lay_out(t, &o))
        return DSC_OK;
    if (t->shape.dtype == DSC_F32)
        fill<float>(t, &o);
    else
        fill<uint16_t>(t, &o);
    DSC_TRY(run_alone(t, &o, false, 0, err));
    DSC_TRY(run_alone(t, &o, true, 1, err));
    out->fits = true;
    DSC_TRY(count_far(t, &o, &out->far, err));
    if (out->far == 0)
        DSC_TRY(run_again(t, &o, &out->unlike, err));
    return t->timed && out->far == 0 && out->unlike == 0 ? race(t, &o, out->ms, err) : DSC_OK;
}
