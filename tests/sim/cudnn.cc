/* cudnn.cc - the simulator's libdsc_cudnn.so: its table, and attention by plain loops. Every buffer is checked against
 * the device's memory. The work space is filled with NaN, so that its reuse in flight shows. A machine has no cuDNN
 * until a test says so. SPDX-License-Identifier: Apache-2.0 */
#include <cmath>
#include <cstring>
#include <cuda_bf16.h>

#include "tests/sim/cudnn.h"

namespace {

using namespace cusim;

struct library { int device; };

struct plan : cudnn_plan {
    dsc_attention_fwd_args shape;
    bool backward;
};

float load(const void *p, int64_t i) { return __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]); }
void store(void *p, int64_t i, float v) { static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16_rn(v); }

/* ---- one call ---- */

struct call {
    dsc_attention_bwd_args a; /* a forward's results are `out` and `lse` */
    bool backward;
    void *workspace;
    int64_t workspace_bytes;
    cusim_cudnn quirk;
    int run_number;

    int64_t head_stride() const { return dsc_attention_head_stride(a.head_stride, a.head_size); }
    int64_t q_at(int64_t b, int64_t t, int64_t h) const { return (b * a.tokens + t) * a.q_stride + h * head_stride(); }
    int64_t key_head(int64_t h) const { return h / (a.heads / a.kv_heads) * head_stride(); }
    int64_t k_at(int64_t b, int64_t t, int64_t h) const { return (b * a.tokens + t) * a.k_stride + key_head(h); }
    int64_t v_at(int64_t b, int64_t t, int64_t h) const { return (b * a.tokens + t) * a.v_stride + key_head(h); }
    int64_t out_at(int64_t b, int64_t t, int64_t h) const
    {
        return (b * a.tokens + t) * a.out_stride + h * a.head_size;
    }
    int64_t lse_at(int64_t b, int64_t t, int64_t h) const { return (b * a.heads + h) * a.tokens + t; }
    int64_t first_key(int64_t t) const
    {
        return a.keys.all || a.keys.window == 0 || t < a.keys.window ? 0 : t + 1 - a.keys.window;
    }
    int64_t end_of_keys(int64_t t) const { return a.keys.all ? a.tokens : t + 1; }

    float dot(const void *x, int64_t x_at, const void *y, int64_t y_at) const
    {
        float sum = 0;
        for (int64_t d = 0; d < a.head_size; d++)
            sum += load(x, x_at + d) * load(y, y_at + d);
        return sum;
    }

    void touch_rows(const void *p, int64_t stride, int64_t heads, int64_t apart, bool write) const;
    void touch_all() const;
    void forward_row(int64_t b, int64_t t, int64_t h) const;
    void backward_all() const;
    void run() const;
};

void call::touch_rows(const void *p, int64_t stride, int64_t heads, int64_t apart, bool write) const
{
    for (int64_t row = 0; row < static_cast<int64_t>(a.batch) * a.tokens; row++)
        for (int64_t h = 0; h < heads; h++)
            track_range(running_now, static_cast<const uint16_t *>(p) + row * stride + h * apart,
                        2 * static_cast<size_t>(a.head_size), write);
}

void call::touch_all() const
{
    touch_rows(a.q, a.q_stride, a.heads, head_stride(), false);
    touch_rows(a.k, a.k_stride, a.kv_heads, head_stride(), false);
    touch_rows(a.v, a.v_stride, a.kv_heads, head_stride(), false);
    touch_rows(a.out, a.out_stride, a.heads, a.head_size, !backward);
    track_range(running_now, a.lse, 4 * static_cast<size_t>(a.batch) * static_cast<size_t>(a.heads * a.tokens),
                !backward);
    track_range(running_now, workspace, static_cast<size_t>(workspace_bytes), true);
    if (!backward)
        return;
    touch_rows(a.d_out, a.out_stride, a.heads, a.head_size, false);
    touch_rows(a.dq, a.q_stride, a.heads, head_stride(), true);
    touch_rows(a.dk, a.k_stride, a.kv_heads, head_stride(), true);
    touch_rows(a.dv, a.v_stride, a.kv_heads, head_stride(), true);
}

void call::forward_row(int64_t b, int64_t t, int64_t h) const
{
    const int64_t first = first_key(t), end = end_of_keys(t), size = a.head_size;
    std::vector<float> score(static_cast<size_t>(end - first)), sum(static_cast<size_t>(size), 0.0f);
    float most = -INFINITY, total = 0;
    for (int64_t k = first; k < end; k++) {
        const float s = dot(a.q, q_at(b, t, h), a.k, k_at(b, k, h)) * a.scale;
        score[static_cast<size_t>(k - first)] = s;
        most = s > most ? s : most;
    }
    for (int64_t k = first; k < end; k++) {
        const float p = std::exp(score[static_cast<size_t>(k - first)] - most);
        total += p;
        for (int64_t d = 0; d < size; d++)
            sum[static_cast<size_t>(d)] += p * load(a.v, v_at(b, k, h) + d);
    }
    for (int64_t d = 0; d < size; d++)
        store(const_cast<void *>(a.out), out_at(b, t, h) + d, sum[static_cast<size_t>(d)] / total);
    const_cast<float *>(a.lse)[lse_at(b, t, h)] = most + std::log(total);
}

/* In fp32, and rounded once at the end. */
void call::backward_all() const
{
    const size_t rows = static_cast<size_t>(a.batch) * static_cast<size_t>(a.tokens);
    std::vector<float> dq(rows * static_cast<size_t>(a.q_stride)), dk(rows * static_cast<size_t>(a.k_stride));
    std::vector<float> dv(rows * static_cast<size_t>(a.v_stride));
    for (int64_t b = 0; b < a.batch; b++)
        for (int64_t h = 0; h < a.heads; h++)
            for (int64_t t = 0; t < a.tokens; t++) {
                const float delta = dot(a.d_out, out_at(b, t, h), a.out, out_at(b, t, h));
                for (int64_t k = first_key(t); k < end_of_keys(t); k++) {
                    const int64_t q = q_at(b, t, h), key = k_at(b, k, h), value = v_at(b, k, h), o = out_at(b, t, h);
                    const float p = std::exp(dot(a.q, q, a.k, key) * a.scale - a.lse[lse_at(b, t, h)]);
                    const float ds = p * (dot(a.d_out, o, a.v, value) - delta) * a.scale;
                    for (int64_t d = 0; d < a.head_size; d++) {
                        dq[static_cast<size_t>(q + d)] += ds * load(a.k, key + d);
                        dk[static_cast<size_t>(key + d)] += ds * load(a.q, q + d);
                        dv[static_cast<size_t>(value + d)] += p * load(a.d_out, o + d);
                    }
                }
            }
    for (int64_t b = 0; b < a.batch; b++)
        for (int64_t t = 0; t < a.tokens; t++)
            for (int64_t d = 0; d < a.head_size; d++) {
                for (int64_t h = 0; h < a.heads; h++)
                    store(a.dq, q_at(b, t, h) + d, dq[static_cast<size_t>(q_at(b, t, h) + d)]);
                for (int64_t h = 0; h < a.heads; h += a.heads / a.kv_heads) {
                    store(a.dk, k_at(b, t, h) + d, dk[static_cast<size_t>(k_at(b, t, h) + d)]);
                    store(a.dv, v_at(b, t, h) + d, dv[static_cast<size_t>(v_at(b, t, h) + d)]);
                }
            }
}

void call::run() const
{
    touch_all();
    memset(workspace, 0xff, static_cast<size_t>(workspace_bytes));
    if (backward)
        backward_all();
    for (int64_t b = 0; b < a.batch && !backward; b++)
        for (int64_t h = 0; h < a.heads; h++)
            for (int64_t t = 0; t < a.tokens; t++)
                forward_row(b, t, h);
    void *const first = backward ? a.dq : const_cast<void *>(a.out);
    if (quirk == CUSIM_CUDNN_WRONG)
        store(first, 0, load(first, 0) + 1);
    if (quirk == CUSIM_CUDNN_UNSTEADY)
        static_cast<uint16_t *>(first)[0] = static_cast<uint16_t>(static_cast<uint16_t *>(first)[0] ^ (run_number & 1));
}

/* ---- the table ---- */

dsc_status library_open(int32_t device, int32_t, void **out, int64_t *number, dsc_error *err)
{
    const cusim_cudnn is = static_cast<cusim_cudnn>(sim().cudnn.load());
    if (is == CUSIM_CUDNN_NONE)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "cuDNN", "libcudnn.so.9 does not load (not simulated)");
    if (is == CUSIM_CUDNN_OLD)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "cuDNN", "cuDNN 9.1.0 is installed and this build needs "
                        "9.19.0 or a later 9; update it");
    *number = is == CUSIM_CUDNN_LATER ? 92500 : 91900;
    *out = new library{ device };
    things++;
    return DSC_OK;
}

void library_close(void *opened)
{
    delete static_cast<library *>(opened);
    things--;
}

dsc_status plan_open(void *, const dsc_attention_fwd_args *shape, bool backward, void **out, dsc_cudnn_plan_info *info,
                     dsc_error *err)
{
    if (sim().cudnn == CUSIM_CUDNN_REFUSES && backward)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "cuDNN", "cuDNN: the graph: no engine for it");
    if (sim().cudnn == CUSIM_CUDNN_NARROW && (shape->head_size > 128 || shape->tokens < 8))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "cuDNN", "cuDNN: heuristics: no engine for the shape");
    const int64_t square = static_cast<int64_t>(shape->tokens) * shape->tokens;
    info->workspace_bytes = backward ? 2 * square * shape->batch * shape->heads : 256;
    if (sim().cudnn == CUSIM_CUDNN_LARGE)
        info->workspace_bytes = static_cast<int64_t>(1) << 40;
    snprintf(info->name, sizeof info->name, "eng%d_k0=1", backward ? 2 : 1);
    plan *p = new plan;
    p->shape = *shape, p->backward = backward, p->workspace_bytes = info->workspace_bytes;
    *out = static_cast<cudnn_plan *>(p);
    return DSC_OK;
}

void plan_close(void *opened) { delete static_cast<cudnn_plan *>(opened); }

/* The plan has its shape and scale, whatever the call says. */
void enqueue_call(plan *p, void *stream_given, void *workspace, const dsc_attention_bwd_args *a)
{
    cudaStream_t stream = static_cast<cudaStream_t>(stream_given);
    const dsc_attention_fwd_args *s = &p->shape;
    if (a->scale != s->scale || a->batch != s->batch || a->tokens != s->tokens || a->heads != s->heads ||
        a->kv_heads != s->kv_heads || a->head_size != s->head_size || a->q_stride != s->q_stride ||
        a->k_stride != s->k_stride || a->v_stride != s->v_stride || a->out_stride != s->out_stride ||
        a->keys.window != s->keys.window ||
        a->keys.all != s->keys.all || a->keys.positions != nullptr || a->keys.tokens != nullptr || a->keys.past != 0)
        fail("cuDNN: a call is not of its plan's shape");
    guard held(sim().lock);
    device_state &device = *stream->device;
    cudnn_check(device, "q", a->q, 2);
    cudnn_check(device, "k", a->k, 2);
    cudnn_check(device, "v", a->v, 2);
    cudnn_check(device, "out", a->out, 2);
    cudnn_check(device, "lse", a->lse, 4);
    cudnn_check(device, "the work space", workspace, static_cast<size_t>(p->workspace_bytes));
    const call c = { *a, p->backward, workspace, p->workspace_bytes, static_cast<cusim_cudnn>(sim().cudnn.load()),
                     p->runs++ };
    cudnn_enqueue(held, stream, p->backward ? "cudnn_bwd" : "cudnn_fwd", [c] { c.run(); });
}

plan *of(void *opened) { return static_cast<plan *>(static_cast<cudnn_plan *>(opened)); }

dsc_status forward(void *opened, void *stream, void *workspace, const dsc_attention_fwd_args *f, dsc_error *)
{
    dsc_attention_bwd_args a = {};
    a.out = f->out, a.lse = f->lse, a.q = f->q, a.k = f->k, a.v = f->v;
    a.q_stride = f->q_stride, a.k_stride = f->k_stride, a.v_stride = f->v_stride, a.out_stride = f->out_stride;
    a.head_stride = f->head_stride;
    a.batch = f->batch, a.tokens = f->tokens, a.heads = f->heads, a.kv_heads = f->kv_heads;
    a.head_size = f->head_size, a.scale = f->scale, a.keys = f->keys, a.dtype = f->dtype;
    enqueue_call(of(opened), stream, workspace, &a);
    return DSC_OK;
}

dsc_status backward(void *opened, void *stream, void *workspace, const dsc_attention_bwd_args *a, dsc_error *)
{
    enqueue_call(of(opened), stream, workspace, a);
    return DSC_OK;
}

const dsc_cudnn_plugin table = { DSC_CUDNN_PLUGIN_VERSION, static_cast<uint32_t>(sizeof(dsc_cudnn_plugin)),
                                 DSC_VERSION_TEXT, library_open, library_close, plan_open, cudnn_conv2d_plan_open,
                                 plan_close, forward, backward, cudnn_conv2d_run };

} // namespace

namespace cusim {

void cudnn_check(device_state &d, const char *what, const void *p, size_t bytes)
{
    if (const char *wrong = memory_complaint(d, p, bytes, false))
        fail("cuDNN on device %d: %s %p of %zu bytes is %s", d.index, what, p, bytes, wrong);
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0)
        fail("cuDNN on device %d: %s %p is not aligned", d.index, what, p);
}

void cudnn_enqueue(guard &held, cudaStream_t stream, const char *name, std::function<void()> run)
{
    operation op;
    op.kind = COMPUTE;
    op.name = name;
    op.run = std::move(run);
    if (!sim().slow_kernel.empty() && strstr(name, sim().slow_kernel.c_str()) != nullptr)
        op.ticks = sim().slow_ticks;
    sim().cudnn_calls++;
    enqueue(held, stream, std::move(op));
}

} // namespace cusim

extern "C" {

const dsc_cudnn_plugin *dsc_cudnn_plugin_get(void) { return &table; }

void cusim_set_cudnn(cusim_cudnn is) { sim().cudnn = is; }

int64_t cusim_cudnn_calls(void)
{
    guard held(sim().lock);
    const int64_t calls = sim().cudnn_calls;
    sim().cudnn_calls = 0;
    return calls;
}

} // extern "C"
