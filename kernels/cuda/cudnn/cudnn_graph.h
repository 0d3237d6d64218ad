/* cudnn_graph.h - shared by the plugin's graphs: their library, errors, engines and runs.
 *
 * A graph gets the first engine that cuDNN's heuristics name, so a plan follows from library, GPU and shape.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_CUDNN_CUDNN_GRAPH_H
#define DSC_KERNELS_CUDA_CUDNN_CUDNN_GRAPH_H

#include "kernels/cuda/cudnn/cudnn_plugin.h"

#include <cudnn_frontend.h>

namespace dsc_cudnn
{

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

dsc_status fail(dsc_error *err, dsc_status status, const char *what, const char *why);

#define FE_TRY(status, what, call)                                                                                     \
    do {                                                                                                               \
        fe::error_t fe_error_ = (call);                                                                                \
        if (fe_error_.is_bad())                                                                                        \
            return fail(err, status, what, fe_error_.get_message().c_str());                                           \
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

template <class T> void *writable(const T *p) { return const_cast<T *>(p); }

dsc_status enter(const library *lib, dsc_error *err);

/* Engines with one of `without` are left out. */
dsc_status find_engine(plan *p, const std::vector<fe::NumericalNote_t> &without, dsc_cudnn_plan_info *info,
                       dsc_error *err);

/* A plan whose graph `add` fills. */
template <class Add>
dsc_status open_plan(library *lib, fe::DataType_t io, const std::vector<fe::NumericalNote_t> &without, Add add,
                     void **out, dsc_cudnn_plan_info *info, dsc_error *err)
{
    return guarded(DSC_ERR_UNSUPPORTED, "planning", err, [&]() -> dsc_status {
        DSC_TRY(enter(lib, err));
        std::unique_ptr<plan> p(new plan { lib, {} });
        p->graph.set_io_data_type(io)
            .set_intermediate_data_type(fe::DataType_t::FLOAT)
            .set_compute_data_type(fe::DataType_t::FLOAT)
            .set_sm_version(lib->arch);
        add(&p->graph);
        DSC_TRY(find_engine(p.get(), without, info, err));
        *out = p.release();
        return DSC_OK;
    });
}

dsc_status run(plan *p, void *stream, void *workspace, pointers *at, dsc_error *err);

/* Entries of the plugin's table. */
dsc_status attention_plan_open(void *opened, const dsc_attention_fwd_args *shape, bool backward, void **out,
                               dsc_cudnn_plan_info *info, dsc_error *err);
dsc_status attention_forward(void *opened, void *stream, void *workspace, const dsc_attention_fwd_args *a,
                             dsc_error *err);
dsc_status attention_backward(void *opened, void *stream, void *workspace, const dsc_attention_bwd_args *a,
                              dsc_error *err);
dsc_status conv2d_plan_open(void *opened, const dsc_conv2d_args *shape, void **out, dsc_cudnn_plan_info *info,
                            dsc_error *err);
dsc_status conv2d_run(void *opened, void *stream, void *workspace, const dsc_conv2d_args *a, dsc_error *err);

} // namespace dsc_cudnn

#endif
