/* attention_cudnn.cu - see attention_cudnn.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/attention.h"

#include <inttypes.h>

namespace
{

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

dsc_status open_pass(cudnn_library *c, const dsc_attention_fwd_args *a, bool backward, cudnn_plan *out,
                     dsc_cudnn_plan_info *info, dsc_error *err)
{
    DSC_TRY(c->table->attention_plan_open(c->library, a, backward, &out->plan, info, err));
    return dsc_cuda_cudnn_name(c, info, out, err);
}

dsc_status open_pair(cudnn_library *c, const dsc_attention_fwd_args *a, int64_t bytes_most,
                     cudnn_plan out[2], dsc_error *err)
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

bool dsc_cuda_attention_cudnn_plan(cudnn_library *c, int32_t arch, const dsc_attention_fwd_args *shape,
                                   int64_t bytes_most, cudnn_plan out[2])
{
    dsc_error why = DSC_ERROR_INIT;
    out[0].plan = out[1].plan = NULL;
    if (!dsc_cuda_attention_cudnn_fits(shape))
        return false;
    if (!dsc_cuda_cudnn_look(c, arch))
        return false;
    if (open_pair(c, shape, bytes_most, out, &why) == DSC_OK)
        return true;
    dsc_cuda_cudnn_note(c, why.message);
    for (int pass = 0; pass < 2; pass++)
        dsc_cuda_cudnn_plan_close(c, &out[pass]);
    return false;
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

dsc_status dsc_cuda_attention_cudnn_fwd(const cudnn_library *c, void *plan, cudaStream_t stream,
                                        const dsc_attention_fwd_args *a, dsc_error *err)
{
    dsc_attention_fwd_args args = *a;
    DSC_ASSERT(c->workspace != NULL);
    if (args.lse == NULL)
        args.lse = reinterpret_cast<float *>(static_cast<char *>(c->workspace) + c->needed_bytes - lse_bytes(a));
    return c->table->attention_forward(plan, stream, c->workspace, &args, err);
}

dsc_status dsc_cuda_attention_cudnn_bwd(const cudnn_library *c, void *plan, cudaStream_t stream,
                                        const dsc_attention_bwd_args *a, dsc_error *err)
{
    DSC_ASSERT(c->workspace != NULL);
    return c->table->attention_backward(plan, stream, c->workspace, a, err);
}
