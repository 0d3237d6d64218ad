/* cudnn_plugin.cc - see cudnn_plugin.h.
 *
 * cuDNN gets an attention as a graph of one operation, with tensors [B,H,T,D] of any strides. It builds the first
 * engine that its heuristics name, so a plan follows from library, GPU and shape. Gradients ask for the deterministic
 * mode. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/cudnn/cudnn_plugin.h"
#include "kernels/cuda/cudnn/cudnn_calls.h"

#include <cudnn_frontend.h>
#include <stdio.h>
#include <string.h>

namespace {

namespace fe = cudnn_frontend;
using tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using pointers = std::unordered_map<int64_t, void *>;

struct library {
    cudnnHandle_t handle;
    int device, arch;
};

struct plan {
    library *of;
    fe::graph::Graph graph;
};

enum uid : int64_t { Q = 1, K, V, OUT, LSE, D_OUT, DQ, DK, DV };

/* ---- errors ---- */

dsc_status fail(dsc_error *err, dsc_status status, const char *what, const char *why)
{
    return DSC_FAIL(err, status, "dsc.attention", "cuDNN: %s: %.300s", what, why);
}

#define FE_TRY(status, what, call)                                               \
    do {                                                                         \
        fe::error_t fe_error_ = (call);                                          \
        if (fe_error_.is_bad())                                                  \
            return fail(err, status, what, fe_error_.get_message().c_str()); \
    } while (0)

/* The frontend reports most failures by a value and some by an exception. */
template <class Call> dsc_status guarded(dsc_status status, const char *what, dsc_error *err, Call call)
{
    try {
        return call();
    } catch (const std::bad_alloc &) {
        return fail(err, DSC_ERR_NOMEM, what, "out of host memory");
    } catch (const std::exception &e) {
        return fail(err, status, what, e.what());
    } catch (...) {
        return fail(err, status, what, "unknown failure");
    }
}

dsc_status enter(const library *lib, dsc_error *err)
{
    const cudaError_t error = cudaSetDevice(lib->device);
    return error == cudaSuccess ? DSC_OK : fail(err, DSC_ERR_DEVICE, "cudaSetDevice", cudaGetErrorString(error));
}

/* ---- the graph of a pass ---- */

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

dsc_status build(plan *p, const dsc_attention_fwd_args *a, bool backward, dsc_cudnn_plan_info *info, dsc_error *err)
{
    fe::graph::Graph *graph = &p->graph;
    std::string name;
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT)
        .set_sm_version(p->of->arch);
    if (backward)
        add_backward(graph, a);
    else
        add_forward(graph, a);
    FE_TRY(DSC_ERR_UNSUPPORTED, "the shape", graph->validate());
    FE_TRY(DSC_ERR_UNSUPPORTED, "the graph", graph->build_operation_graph(p->of->handle));
    FE_TRY(DSC_ERR_UNSUPPORTED, "looking for an engine", graph->create_execution_plans({ fe::HeurMode_t::A }));
    FE_TRY(DSC_ERR_UNSUPPORTED, "looking for an engine", graph->check_support());
    FE_TRY(DSC_ERR_UNSUPPORTED, "building the engine", graph->build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE));
    FE_TRY(DSC_ERR_UNSUPPORTED, "the workspace", graph->get_workspace_size(info->workspace_bytes));
    FE_TRY(DSC_ERR_UNSUPPORTED, "the engine's name", graph->get_plan_name(name));
    snprintf(info->name, sizeof info->name, "%s", name.c_str());
    for (char *c = info->name; *c != 0; c++)
        *c = *c > ' ' && *c < 127 ? *c : '_';
    return DSC_OK;
}

/* ---- the table ---- */

dsc_status library_open(int32_t device, int32_t arch, void **out, int64_t *number, dsc_error *err)
{
    cudnnHandle_t handle = NULL;
    DSC_TRY(dsc_cudnn_find(err));
    library *lib = new (std::nothrow) library{ NULL, device, arch };
    if (lib == NULL)
        return fail(err, DSC_ERR_NOMEM, "opening it", "out of host memory");
    dsc_status status = enter(lib, err);
    if (status == DSC_OK) {
        const cudnnStatus_t created = cudnnCreate(&handle);
        if (created != CUDNN_STATUS_SUCCESS)
            status = fail(err, DSC_ERR_UNSUPPORTED, "cudnnCreate", cudnnGetErrorString(created));
    }
    if (status != DSC_OK) {
        delete lib;
        return status;
    }
    lib->handle = handle;
    *number = static_cast<int64_t>(cudnnGetVersion());
    *out = lib;
    return DSC_OK;
}

void library_close(void *opened)
{
    library *lib = static_cast<library *>(opened);
    (void)cudaSetDevice(lib->device);
    (void)cudnnDestroy(lib->handle);
    delete lib;
}

dsc_status plan_open(void *opened, const dsc_attention_fwd_args *shape, bool backward, void **out,
                     dsc_cudnn_plan_info *info, dsc_error *err)
{
    library *lib = static_cast<library *>(opened);
    return guarded(DSC_ERR_UNSUPPORTED, "planning", err, [=]() -> dsc_status {
        DSC_TRY(enter(lib, err));
        std::unique_ptr<plan> p(new plan{ lib, {} });
        DSC_TRY(build(p.get(), shape, backward, info, err));
        *out = p.release();
        return DSC_OK;
    });
}

void plan_close(void *opened)
{
    plan *p = static_cast<plan *>(opened);
    (void)cudaSetDevice(p->of->device);
    delete p;
}

template <class T> void *writable(const T *p) { return const_cast<T *>(p); }

dsc_status run(plan *p, void *stream, void *workspace, pointers *at, dsc_error *err)
{
    DSC_TRY(enter(p->of, err));
    const cudnnStatus_t set = cudnnSetStream(p->of->handle, static_cast<cudaStream_t>(stream));
    if (set != CUDNN_STATUS_SUCCESS)
        return fail(err, DSC_ERR_DEVICE, "cudnnSetStream", cudnnGetErrorString(set));
    FE_TRY(DSC_ERR_DEVICE, "a run", p->graph.execute(p->of->handle, *at, workspace));
    return DSC_OK;
}

dsc_status forward(void *opened, void *stream, void *workspace, const dsc_attention_fwd_args *a, dsc_error *err)
{
    return guarded(DSC_ERR_DEVICE, "a run", err, [=]() -> dsc_status {
        pointers at = { { Q, writable(a->q) }, { K, writable(a->k) }, { V, writable(a->v) }, { OUT, a->out },
                        { LSE, a->lse } };
        return run(static_cast<plan *>(opened), stream, workspace, &at, err);
    });
}

dsc_status backward(void *opened, void *stream, void *workspace, const dsc_attention_bwd_args *a, dsc_error *err)
{
    return guarded(DSC_ERR_DEVICE, "a run", err, [=]() -> dsc_status {
        pointers at = { { Q, writable(a->q) },     { K, writable(a->k) },         { V, writable(a->v) },
                        { OUT, writable(a->out) }, { LSE, writable(a->lse) },     { D_OUT, writable(a->d_out) },
                        { DQ, a->dq },             { DK, a->dk },                 { DV, a->dv } };
        return run(static_cast<plan *>(opened), stream, workspace, &at, err);
    });
}

const dsc_cudnn_plugin table = { DSC_CUDNN_PLUGIN_VERSION, static_cast<uint32_t>(sizeof(dsc_cudnn_plugin)),
                                 DSC_VERSION_TEXT, library_open, library_close, plan_open, plan_close, forward,
                                 backward };

} // namespace

const dsc_cudnn_plugin *dsc_cudnn_plugin_get(void) { return &table; }
