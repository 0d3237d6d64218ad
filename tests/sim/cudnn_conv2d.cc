/* cudnn_conv2d.cc - convolutions of the simulator's cuDNN, by plain loops in fp32 over channels, then taps. Weights and
 * their gradient are [Cout, kh, kw, Cin]. SPDX-License-Identifier: Apache-2.0 */
#include <cstring>
#include <cuda_bf16.h>

#include "tests/sim/cudnn.h"

namespace {

using namespace cusim;

struct conv2d_plan : cudnn_plan {
    dsc_conv2d_args shape;
};

struct call {
    dsc_conv2d_args a;
    void *workspace;
    int64_t workspace_bytes;
    cusim_cudnn quirk;
    int run_number;

    const dsc_conv2d_shape &s() const { return a.shape; }
    int64_t down() const { return dsc_conv2d_out(&a.shape, 0); }
    int64_t across() const { return dsc_conv2d_out(&a.shape, 1); }
    int64_t x_count() const { return s().batch * s().height * s().width * s().in; }
    int64_t y_count() const { return s().batch * down() * across() * s().out; }
    int64_t out_count() const
    {
        return a.pass == DSC_CONV2D_Y ? y_count() : a.pass == DSC_CONV2D_DX ? x_count() : dsc_conv2d_weights(&a.shape);
    }

    void touch() const;
    float sum_at(int64_t i) const;
    float sum_y(int64_t i) const;
    float sum_dx(int64_t i) const;
    float sum_dw(int64_t i) const;
    float get(const void *p, int64_t i) const;
    void put(int64_t i, float v) const;
    void run() const;
};

float call::get(const void *p, int64_t i) const
{
    return a.dtype == DSC_F32 ? static_cast<const float *>(p)[i]
                              : __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]);
}

void call::put(int64_t i, float v) const
{
    if (a.dtype == DSC_F32)
        static_cast<float *>(a.out)[i] = v;
    else
        static_cast<__nv_bfloat16 *>(a.out)[i] = __float2bfloat16_rn(v);
}

float call::sum_y(int64_t i) const
{
    const int64_t o = i % s().out, row = i / s().out, b = row / across() / down(), taps = dsc_conv2d_taps(&a.shape);
    float sum = 0;
    for (int64_t t = 0; t < taps; t++) {
        const int64_t h = dsc_conv2d_input(&a.shape, 0, row / across() % down(), t / s().kernel[1]);
        const int64_t w = dsc_conv2d_input(&a.shape, 1, row % across(), t % s().kernel[1]);
        for (int64_t c = 0; c < s().in && h >= 0 && w >= 0; c++)
            sum += get(a.in, ((b * s().height + h) * s().width + w) * s().in + c) *
                   get(a.with, (o * taps + t) * s().in + c);
    }
    return sum;
}

float call::sum_dx(int64_t i) const
{
    const int64_t c = i % s().in, row = i / s().in, b = row / s().width / s().height, taps = dsc_conv2d_taps(&a.shape);
    float sum = 0;
    for (int64_t t = 0; t < taps; t++) {
        const int64_t h = dsc_conv2d_output(&a.shape, 0, row / s().width % s().height, t / s().kernel[1]);
        const int64_t w = dsc_conv2d_output(&a.shape, 1, row % s().width, t % s().kernel[1]);
        for (int64_t o = 0; o < s().out && h >= 0 && w >= 0; o++)
            sum += get(a.in, ((b * down() + h) * across() + w) * s().out + o) *
                   get(a.with, (o * taps + t) * s().in + c);
    }
    return sum;
}

float call::sum_dw(int64_t i) const
{
    const int64_t c = i % s().in, taps = dsc_conv2d_taps(&a.shape), t = i / s().in % taps, o = i / s().in / taps;
    float sum = 0;
    for (int64_t row = 0; row < s().batch * down() * across(); row++) {
        const int64_t h = dsc_conv2d_input(&a.shape, 0, row / across() % down(), t / s().kernel[1]);
        const int64_t w = dsc_conv2d_input(&a.shape, 1, row % across(), t % s().kernel[1]);
        if (h >= 0 && w >= 0)
            sum += get(a.in, ((row / across() / down() * s().height + h) * s().width + w) * s().in + c) *
                   get(a.with, row * s().out + o);
    }
    return sum;
}

/* With the bias, not rounded in between. */
float call::sum_at(int64_t i) const
{
    if (a.pass != DSC_CONV2D_Y)
        return a.pass == DSC_CONV2D_DX ? sum_dx(i) : sum_dw(i);
    return a.add == nullptr ? sum_y(i) : sum_y(i) + get(a.add, i % s().out);
}

void call::touch() const
{
    const size_t each = dsc_dtype_bytes(a.dtype), weights = static_cast<size_t>(dsc_conv2d_weights(&a.shape));
    const size_t x = static_cast<size_t>(x_count()), y = static_cast<size_t>(y_count());
    track_range(running_now, a.in, each * (a.pass == DSC_CONV2D_DX ? y : x), false);
    track_range(running_now, a.with, each * (a.pass == DSC_CONV2D_DW ? y : weights), false);
    if (a.pass == DSC_CONV2D_Y && a.add != nullptr)
        track_range(running_now, a.add, each * static_cast<size_t>(s().out), false);
    track_range(running_now, a.out, dsc_dtype_bytes(a.dtype) * static_cast<size_t>(out_count()), true);
    track_range(running_now, workspace, static_cast<size_t>(workspace_bytes), true);
}

void call::run() const
{
    touch();
    memset(workspace, 0xff, static_cast<size_t>(workspace_bytes));
    for (int64_t i = 0; i < out_count(); i++)
        put(i, sum_at(i) + (quirk == CUSIM_CUDNN_WRONG && i == 0 ? 1.0f : 0.0f));
    if (quirk == CUSIM_CUDNN_UNSTEADY)
        static_cast<uint16_t *>(a.out)[0] = static_cast<uint16_t>(static_cast<uint16_t *>(a.out)[0] ^ (run_number & 1));
}

} // namespace

namespace cusim {

dsc_status cudnn_conv2d_plan_open(void *, const dsc_conv2d_args *shape, void **out, dsc_cudnn_plan_info *info,
                                  dsc_error *err)
{
    static const char *const engines[] = { "eng10_k0=1", "eng11_k0=1", "eng12_k0=1" };
    const cusim_cudnn is = static_cast<cusim_cudnn>(sim().cudnn.load());
    if (is == CUSIM_CUDNN_REFUSES && shape->pass == DSC_CONV2D_DW)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "cuDNN", "cuDNN: the graph: no engine for it");
    if (is == CUSIM_CUDNN_NARROW && (shape->shape.in % 8 != 0 || shape->shape.out % 8 != 0))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "cuDNN", "cuDNN: heuristics: no engine for the shape");
    conv2d_plan *p = new conv2d_plan;
    p->shape = *shape;
    p->workspace_bytes = is == CUSIM_CUDNN_LARGE ? static_cast<int64_t>(1) << 40 : is == CUSIM_CUDNN_BARE ? 0 : 512;
    info->workspace_bytes = p->workspace_bytes;
    snprintf(info->name, sizeof info->name, "%s", engines[shape->pass]);
    *out = static_cast<cudnn_plan *>(p);
    return DSC_OK;
}

/* The plan has its shape, whatever the call says. */
dsc_status cudnn_conv2d_run(void *opened, void *stream_given, void *workspace, const dsc_conv2d_args *a, dsc_error *)
{
    conv2d_plan *p = static_cast<conv2d_plan *>(static_cast<cudnn_plan *>(opened));
    cudaStream_t stream = static_cast<cudaStream_t>(stream_given);
    const bool adds = a->pass == DSC_CONV2D_Y && (a->add == nullptr) != (p->shape.add == nullptr);
    if (a->pass != p->shape.pass || a->dtype != p->shape.dtype || adds ||
        memcmp(&a->shape, &p->shape.shape, sizeof a->shape) != 0)
        fail("cuDNN: a call is not of its plan's shape");
    guard held(sim().lock);
    device_state &device = *stream->device;
    const call c = { *a, workspace, p->workspace_bytes, static_cast<cusim_cudnn>(sim().cudnn.load()), p->runs++ };
    cudnn_check(device, "in", a->in, 2);
    cudnn_check(device, "with", a->with, 2);
    cudnn_check(device, "out", a->out, static_cast<size_t>(c.out_count()) * dsc_dtype_bytes(c.a.dtype));
    if (a->pass == DSC_CONV2D_Y && a->add != nullptr)
        cudnn_check(device, "bias", a->add, 2);
    cudnn_check(device, "the work space", workspace, static_cast<size_t>(p->workspace_bytes));
    cudnn_enqueue(held, stream, "cudnn_conv2d", [c] { c.run(); });
    return DSC_OK;
}

} // namespace cusim
