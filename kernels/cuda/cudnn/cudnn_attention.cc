/* cudnn_attention.cc - attention as a graph of one operation, with tensors [B,H,T,D] of any strides. Gradients ask for
 * the deterministic mode. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/cudnn/cudnn_graph.h"

namespace {

using namespace dsc_cudnn;

enum uid : int64_t { Q = 1, K, V, OUT, LSE, D_OUT, DQ, DK, DV };

/* Rows of [B,T] with `heads` heads each. */
void lay_rows(const tensor &t, const dsc_attention_fwd_args *a, int64_t heads, int64_t stride, int64_t head_stride)
{
    t->set_dim({ a->batch, heads, a->tokens, a->head_size })
        .set_stride({ a->tokens * stride, head_stride, stride, 1 })
        .set_data_type(fe::DataType_t::BFLOAT16);
}

int64_t head_stride_of(const dsc_attention_fwd_args *a)
{
    return dsc_attention_head_stride(a->head_stride, a->head_size);
}

void lay_q(const tensor &t, const dsc_attention_fwd_args *a)
{
    lay_rows(t, a, a->heads, a->q_stride, head_stride_of(a));
}

void lay_k(const tensor &t, const dsc_attention_fwd_args *a)
{
    lay_rows(t, a, a->kv_heads, a->k_stride, head_stride_of(a));
}

void lay_v(const tensor &t, const dsc_attention_fwd_args *a)
{
    lay_rows(t, a, a->kv_heads, a->v_stride, head_stride_of(a));
}

void lay_out(const tensor &t, const dsc_attention_fwd_args *a)
{
    lay_rows(t, a, a->heads, a->out_stride, a->head_size);
}

void lay_lse(const tensor &t, const dsc_attention_fwd_args *a)
{
    const int64_t heads = a->heads, tokens = a->tokens;
    t->set_dim({ a->batch, heads, tokens, 1 })
        .set_stride({ heads * tokens, tokens, 1, 1 })
        .set_data_type(fe::DataType_t::FLOAT);
}

using lay_fn = void (*)(const tensor &, const dsc_attention_fwd_args *);

tensor input(fe::graph::Graph *graph, uid id, const char *name, lay_fn lay, const dsc_attention_fwd_args *a)
{
    fe::graph::Tensor_attributes attributes;
    attributes.set_name(name).set_uid(id);
    const tensor t = graph->tensor(attributes);
    lay(t, a);
    return t;
}

void output(const tensor &t, uid id, const char *name, lay_fn lay, const dsc_attention_fwd_args *a)
{
    t->set_output(true).set_name(name).set_uid(id);
    lay(t, a);
}

/* A left bound of n keeps n keys, the query's own among them, as keys.window does. */
template <class Attributes> void set_keys(Attributes *to, const dsc_attention_keys *keys)
{
    if (keys->all)
        return;
    to->set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    if (keys->window > 0)
        to->set_diagonal_band_left_bound(keys->window);
}

void add_forward(fe::graph::Graph *graph, const dsc_attention_fwd_args *a)
{
    const tensor q = input(graph, Q, "q", lay_q, a), k = input(graph, K, "k", lay_k, a);
    const tensor v = input(graph, V, "v", lay_v, a);
    fe::graph::SDPA_attributes attributes;
    attributes.set_name("attention").set_generate_stats(true).set_attn_scale(a->scale);
    set_keys(&attributes, &a->keys);
    const auto results = graph->sdpa(q, k, v, attributes);
    output(results[0], OUT, "out", lay_out, a);
    output(results[1], LSE, "lse", lay_lse, a);
}

void add_backward(fe::graph::Graph *graph, const dsc_attention_fwd_args *a)
{
    const tensor q = input(graph, Q, "q", lay_q, a), k = input(graph, K, "k", lay_k, a);
    const tensor v = input(graph, V, "v", lay_v, a), out = input(graph, OUT, "out", lay_out, a);
    const tensor d_out = input(graph, D_OUT, "d_out", lay_out, a), lse = input(graph, LSE, "lse", lay_lse, a);
    fe::graph::SDPA_backward_attributes attributes;
    attributes.set_name("gradients").set_attn_scale(a->scale).set_deterministic_algorithm(true);
    set_keys(&attributes, &a->keys);
    const auto results = graph->sdpa_backward(q, k, v, out, d_out, lse, attributes);
    output(results[0], DQ, "dq", lay_q, a);
    output(results[1], DK, "dk", lay_k, a);
    output(results[2], DV, "dv", lay_v, a);
}

} // namespace

dsc_status dsc_cudnn::attention_plan_open(void *opened, const dsc_attention_fwd_args *shape, bool backward, void **out,
                                          dsc_cudnn_plan_info *info, dsc_error *err)
{
    const auto add = [=](fe::graph::Graph *graph) {
        if (backward)
            add_backward(graph, shape);
        else
            add_forward(graph, shape);
    };
    return open_plan(static_cast<library *>(opened), fe::DataType_t::BFLOAT16, {}, add, out, info, err);
}

dsc_status dsc_cudnn::attention_forward(void *opened, void *stream, void *workspace, const dsc_attention_fwd_args *a,
                                        dsc_error *err)
{
    return guarded(DSC_ERR_DEVICE, "a run", err, [=]() -> dsc_status {
        pointers at = { { Q, writable(a->q) }, { K, writable(a->k) }, { V, writable(a->v) }, { OUT, a->out },
                        { LSE, a->lse } };
        return run(static_cast<plan *>(opened), stream, workspace, &at, err);
    });
}

dsc_status dsc_cudnn::attention_backward(void *opened, void *stream, void *workspace, const dsc_attention_bwd_args *a,
                                         dsc_error *err)
{
    return guarded(DSC_ERR_DEVICE, "a run", err, [=]() -> dsc_status {
        pointers at = { { Q, writable(a->q) },     { K, writable(a->k) },         { V, writable(a->v) },
                        { OUT, writable(a->out) }, { LSE, writable(a->lse) },     { D_OUT, writable(a->d_out) },
                        { DQ, a->dq },             { DK, a->dk },                 { DV, a->dv } };
        return run(static_cast<plan *>(opened), stream, workspace, &at, err);
    });
}
