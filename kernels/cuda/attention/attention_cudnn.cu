/* attention_cudnn.cu - see attention_cudnn.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/attention.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/plugin.h"

namespace
{

/* ---- the plugin ---- */

void note(attention_cudnn *c, const char *why)
{
    if (c->note[0] == 0)
        snprintf(c->note, sizeof c->note, "%.255s", why);
}

/* The program's own first (the simulator's), then the installation's. */
dsc_status find_table(const dsc_cudnn_plugin **out, dsc_error *err)
{
    static const dsc_plugin plugin = { "dsc.attention",
                                       NULL,
                                       "libdsc_cudnn.so",
                                       "cuDNN's frontend (make deps-cudnn)",
                                       "leave attention to dsc's own kernels",
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

/* Once for a GPU, which is the calling thread's current one. */
void look(attention_cudnn *c, int32_t arch)
{
    dsc_error why = DSC_ERROR_INIT;
    int device = 0;
    if (c->looked)
        return;
    c->looked = true;
    dsc_status status = find_table(&c->table, &why);
    if (status == DSC_OK && cudaGetDevice(&device) != cudaSuccess) {
        (void)cudaGetLastError();
        status = DSC_FAIL(&why, DSC_ERR_DEVICE, "dsc.attention", "the current GPU is not known");
    }
    if (status == DSC_OK)
        status = c->table->open(device, arch, &c->library, &c->number, &why);
    if (status != DSC_OK) {
        c->library = NULL;
        note(c, why.message);
    }
}

/* ---- plans ---- */

/* Log-sum-exps that the caller does not want lie behind the pass's own work space. */
int64_t lse_bytes(const dsc_attention_fwd_args *a)
{
    return dsc_align_up(static_cast<int64_t>(sizeof(float)) * a->batch * a->heads * a->tokens, 256);
}

int64_t workspace_bytes(const dsc_attention_fwd_args *a, const dsc_cudnn_plan_info info[2])
{
    const int64_t forward = dsc_align_up(info[0].workspace_bytes, 256) + lse_bytes(a);
    return dsc_max_i64(forward, dsc_align_up(info[1].workspace_bytes, 256));
}

dsc_status open_pass(attention_cudnn *c, const dsc_attention_fwd_args *a, bool backward, attention_cudnn_plan *out,
                     dsc_cudnn_plan_info *info, dsc_error *err)
{
    DSC_TRY(c->table->plan_open(c->library, a, backward, &out->plan, info, err));
    snprintf(out->name, sizeof out->name, "cudnn %" PRId64 " engine %.*s", c->number, DSC_CUDNN_NAME_BYTES - 1,
             info->name);
    if (info->workspace_bytes >= 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.attention", "cuDNN names no size of its work space");
}

dsc_status open_pair(attention_cudnn *c, const dsc_attention_fwd_args *a, int64_t bytes_most,
                     attention_cudnn_plan out[2], dsc_error *err)
{
    dsc_cudnn_plan_info info[2] = {};
    for (int pass = 0; pass < 2; pass++)
        DSC_TRY(open_pass(c, a, pass == 1, &out[pass], &info[pass], err));
    const int64_t bytes = workspace_bytes(a, info);
    if (bytes > bytes_most)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.attention",
                        "its work space would be %" PRId64 " MiB for %d x %d tokens, and %" PRId64 " MiB are the most "
                        "(\"dsc\": {\"attention\": \"cudnn\"} takes any)",
                        bytes >> 20, static_cast<int>(a->batch), static_cast<int>(a->tokens), bytes_most >> 20);
    c->needed_bytes = dsc_max_i64(c->needed_bytes, bytes);
    return DSC_OK;
}

} // namespace

bool dsc_cuda_attention_cudnn_plan(attention_cudnn *c, int32_t arch, const dsc_attention_fwd_args *shape,
                                   int64_t bytes_most, attention_cudnn_plan out[2])
{
    dsc_error why = DSC_ERROR_INIT;
    out[0].plan = out[1].plan = NULL;
    if (!dsc_cuda_attention_cudnn_fits(shape))
        return false;
    look(c, arch);
    if (c->library == NULL)
        return false;
    if (open_pair(c, shape, bytes_most, out, &why) == DSC_OK)
        return true;
    note(c, why.message);
    for (int pass = 0; pass < 2; pass++)
        dsc_cuda_attention_cudnn_plan_close(c, &out[pass]);
    return false;
}

void dsc_cuda_attention_cudnn_plan_close(attention_cudnn *c, attention_cudnn_plan *plan)
{
    if (plan->plan != NULL)
        c->table->plan_close(plan->plan);
    plan->plan = NULL;
}

void dsc_cuda_attention_cudnn_close(attention_cudnn *c)
{
    if (c->library != NULL)
        c->table->close(c->library);
    c->library = NULL;
}

/* Documents and hidden keys change from step to step and would be masks of all scores there. */
bool dsc_cuda_attention_cudnn_fits(const dsc_attention_fwd_args *a)
{
    const int32_t size = a->head_size;
    return a->dtype == DSC_BF16 && size <= DSC_CUDA_ATTENTION_HEAD_MAX && a->tokens > 1 && a->keys.past == 0 &&
           a->keys.tokens == NULL && a->keys.positions == NULL &&
           dsc_attention_is_plain(&a->keys, &a->logits, a->sinks) &&
           dsc_attention_head_stride(a->head_stride, size) % 8 == 0 && rows_are_aligned(a->q, a->q_stride, size) &&
           rows_are_aligned(a->k, a->k_stride, size) && rows_are_aligned(a->v, a->v_stride, size) &&
           rows_are_aligned(a->out, a->out_stride, size);
}

bool dsc_cuda_attention_cudnn_aligned(const dsc_attention_bwd_args *b)
{
    for (const void *p : { static_cast<const void *>(b->dq), static_cast<const void *>(b->dk),
                           static_cast<const void *>(b->dv), b->d_out, b->out, b->q, b->k, b->v })
        if (!is_aligned(p))
            return false;
    return true;
}

dsc_status dsc_cuda_attention_cudnn_fwd(const attention_cudnn *c, void *plan, cudaStream_t stream,
                                        const dsc_attention_fwd_args *a, dsc_error *err)
{
    dsc_attention_fwd_args args = *a;
    DSC_ASSERT(c->workspace != NULL);
    if (args.lse == NULL)
        args.lse = reinterpret_cast<float *>(static_cast<char *>(c->workspace) + c->needed_bytes - lse_bytes(a));
    return c->table->forward(plan, stream, c->workspace, &args, err);
}

dsc_status dsc_cuda_attention_cudnn_bwd(const attention_cudnn *c, void *plan, cudaStream_t stream,
                                        const dsc_attention_bwd_args *a, dsc_error *err)
{
    DSC_ASSERT(c->workspace != NULL);
    return c->table->backward(plan, stream, c->workspace, a, err);
}
