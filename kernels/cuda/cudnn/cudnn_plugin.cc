/* cudnn_plugin.cc - see cudnn_plugin.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/cudnn/cudnn_calls.h"
#include "kernels/cuda/cudnn/cudnn_graph.h"

#include <stdio.h>
#include <string.h>

using namespace dsc_cudnn;

/* ---- what graphs have in common ---- */

dsc_status dsc_cudnn::fail(dsc_error *err, dsc_status status, const char *what, const char *why)
{
    return DSC_FAIL(err, status, "cuDNN", "cuDNN: %s: %.300s", what, why);
}

dsc_status dsc_cudnn::enter(const library *lib, dsc_error *err)
{
    const cudaError_t error = cudaSetDevice(lib->device);
    return error == cudaSuccess ? DSC_OK : fail(err, DSC_ERR_DEVICE, "cudaSetDevice", cudaGetErrorString(error));
}

dsc_status dsc_cudnn::find_engine(plan *p, const std::vector<fe::NumericalNote_t> &without, dsc_cudnn_plan_info *info,
                                  dsc_error *err)
{
    fe::graph::Graph *graph = &p->graph;
    std::string name;
    FE_TRY(DSC_ERR_UNSUPPORTED, "the shape", graph->validate());
    FE_TRY(DSC_ERR_UNSUPPORTED, "the graph", graph->build_operation_graph(p->of->handle));
    FE_TRY(DSC_ERR_UNSUPPORTED, "looking for an engine", graph->create_execution_plans({ fe::HeurMode_t::A }));
    graph->deselect_numeric_notes(without);
    FE_TRY(DSC_ERR_UNSUPPORTED, "looking for an engine", graph->check_support());
    FE_TRY(DSC_ERR_UNSUPPORTED, "building the engine", graph->build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE));
    FE_TRY(DSC_ERR_UNSUPPORTED, "the workspace", graph->get_workspace_size(info->workspace_bytes));
    FE_TRY(DSC_ERR_UNSUPPORTED, "the engine's name", graph->get_plan_name(name));
    snprintf(info->name, sizeof info->name, "%s", name.c_str());
    for (char *c = info->name; *c != 0; c++)
        *c = *c > ' ' && *c < 127 ? *c : '_';
    return DSC_OK;
}

dsc_status dsc_cudnn::run(plan *p, void *stream, void *workspace, pointers *at, dsc_error *err)
{
    DSC_TRY(enter(p->of, err));
    const cudnnStatus_t set = cudnnSetStream(p->of->handle, static_cast<cudaStream_t>(stream));
    if (set != CUDNN_STATUS_SUCCESS)
        return fail(err, DSC_ERR_DEVICE, "cudnnSetStream", cudnnGetErrorString(set));
    FE_TRY(DSC_ERR_DEVICE, "a run", p->graph.execute(p->of->handle, *at, workspace));
    return DSC_OK;
}

/* ---- the table ---- */

namespace {

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

void plan_close(void *opened)
{
    plan *p = static_cast<plan *>(opened);
    (void)cudaSetDevice(p->of->device);
    delete p;
}

const dsc_cudnn_plugin table = { DSC_CUDNN_PLUGIN_VERSION, static_cast<uint32_t>(sizeof(dsc_cudnn_plugin)),
                                 DSC_VERSION_TEXT, library_open, library_close, attention_plan_open, conv2d_plan_open,
                                 plan_close, attention_forward, attention_backward, conv2d_run };

} // namespace

const dsc_cudnn_plugin *dsc_cudnn_plugin_get(void) { return &table; }
