/* cudnn_library.cu - see cudnn_library.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/cudnn_library.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/plugin.h"

namespace {

/* Without the user's word a work space takes at most this part of the card's memory. */
constexpr int64_t WORKSPACE_PART = 16;

/* The program's own first (the simulator's), then the installation's. */
dsc_status find_table(const dsc_cudnn_plugin **out, dsc_error *err)
{
    static const dsc_plugin plugin = { "cuDNN",
                                       NULL,
                                       "libdsc_cudnn.so",
                                       "cuDNN's frontend (make deps-cudnn)",
                                       "leave attention and convolutions to dsc's own kernels",
                                       DSC_CUDNN_PLUGIN_SYMBOL,
                                       DSC_CUDNN_PLUGIN_VERSION,
                                       sizeof(dsc_cudnn_plugin) };
    dsc_cudnn_plugin_fn get;
    const void *found = NULL;
    if (dsc_plugin_find(NULL, DSC_CUDNN_PLUGIN_SYMBOL, &get)) {
        *out = get();
        return DSC_OK;
    }
    DSC_TRY(dsc_plugin_table(&plugin, &found, err));
    *out = static_cast<const dsc_cudnn_plugin *>(found);
    return DSC_OK;
}

} // namespace

void dsc_cuda_cudnn_note(cudnn_library *c, const char *why)
{
    if (c->note[0] == 0)
        snprintf(c->note, sizeof c->note, "%.255s", why);
}

bool dsc_cuda_cudnn_look(cudnn_library *c, int32_t arch)
{
    dsc_error why = DSC_ERROR_INIT;
    int device = 0;
    if (c->looked)
        return c->library != NULL;
    c->looked = true;
    dsc_status status = find_table(&c->table, &why);
    if (status == DSC_OK && cudaGetDevice(&device) != cudaSuccess) {
        (void)cudaGetLastError();
        status = DSC_FAIL(&why, DSC_ERR_DEVICE, "cuDNN", "the current GPU is not known");
    }
    if (status == DSC_OK)
        status = c->table->open(device, arch, &c->library, &c->number, &why);
    if (status == DSC_OK)
        return true;
    c->library = NULL;
    dsc_cuda_cudnn_note(c, why.message);
    return false;
}

dsc_status dsc_cuda_cudnn_name(const cudnn_library *c, const dsc_cudnn_plan_info *info, cudnn_plan *plan,
                               dsc_error *err)
{
    snprintf(plan->name, sizeof plan->name, "cudnn %" PRId64 " engine %.*s", c->number, DSC_CUDNN_NAME_BYTES - 1,
             info->name);
    if (info->workspace_bytes >= 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "cuDNN", "cuDNN names no size of its work space");
}

int64_t dsc_cuda_cudnn_workspace_most(bool named)
{
    size_t free_bytes = 0, total_bytes = 0;
    if (named)
        return INT64_MAX;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
        (void)cudaGetLastError();
    return static_cast<int64_t>(total_bytes) / WORKSPACE_PART;
}

bool dsc_cuda_cudnn_set_workspace(cudnn_library *c, void *memory, int64_t bytes)
{
    c->workspace = memory;
    if (bytes >= c->needed_bytes)
        return true;
    c->needed_bytes = 0;
    snprintf(c->note, sizeof c->note, "the GPU has no memory for its work space");
    return false;
}

void dsc_cuda_cudnn_plan_close(cudnn_library *c, cudnn_plan *plan)
{
    if (plan->plan != NULL)
        c->table->plan_close(plan->plan);
    plan->plan = NULL;
}

void dsc_cuda_cudnn_close(cudnn_library *c)
{
    if (c->library != NULL)
        c->table->close(c->library);
    c->library = NULL;
}
