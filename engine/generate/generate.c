/* generate.c - lets a language model continue a text, with the training engine's own forward pass.
 *
 * One row of a micro-batch holds the last T tokens; the loss module writes the logits of the last of them. Every rank
 * runs the same forward (stage 3 gathers as usual) and draws the same counter-based number, so all agree.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/rng.h"
#include "engine/batch_transfer.h"
#include "engine/device.h"
#include "engine/fp8.h"
#include "engine/generate/sample.h"
#include "engine/internal.h"

static dsc_status next_logits(dsc_engine *engine, int64_t row, dsc_error *err)
{
    const int32_t last = engine->model->module_count - 1;
    DSC_TRY(dsc_engine_give_batch(engine, 0, (const void *const *)engine->work.eval_data, err));
    dsc_engine_fp8_changed(engine);
    DSC_TRY(dsc_stages_enter(engine, err));
    for (int32_t m = 0; m <= last; m++) {
        DSC_TRY(dsc_zero_acquire(engine->zero, m, m, engine->work.param, err));
        if (m == last && !dsc_stages_has_loss(&engine->stages))
            continue;
        dsc_module_ctx ctx = {
            .struct_bytes = (uint32_t)sizeof ctx,
            .stream = engine->compute,
            .dtype = dsc_engine_dtype(engine),
            .batch = engine->config.train_micro_batch_size_per_gpu,
            .param = engine->work.param,
            .grad = engine->work.grad,
            .batch_data = engine->work.batch[0],
            .in = m > 0 ? engine->work.out[m - 1] : dsc_stages_input(engine, 0),
            .out = m < last ? engine->work.out[m] : NULL,
            .saved = engine->work.saved[m],
            .scratch = engine->work.scratch_buf.ptr,
            .loss_scale = 1.0f,
            .losses = m == last ? engine->work.losses : NULL,
            .logits = m == last ? engine->work.logits : NULL,
            .logits_row = row,
            .rebuilt = engine->work.rebuilt[m],
            .chunk_bytes = engine->plan.chunk_bytes,
            .fp8 = dsc_engine_fp8(engine, m, 0, DSC_FP8_ALONE),
            .buffer = dsc_engine_buffer_values(engine, m),
            .group = dsc_tensor_group(engine),
        };
        DSC_TRY(engine->model->modules[m].forward(&engine->model->modules[m], &ctx, err));
    }
    DSC_TRY(dsc_stages_leave(engine, err));
    DSC_TRY(dsc_engine_fetch_logits(engine, err));
    DSC_TRY(dsc_stages_share_logits(engine, err));
    return dsc_zero_sync(engine->zero, err);
}

dsc_status dsc_engine_generate(dsc_engine *engine, const int32_t *tokens, int64_t token_count, int64_t new_count,
                               double temperature, uint64_t seed, int32_t *out, dsc_error *err)
{
    const dsc_engine_progress *at = &engine->progress;
    if (engine->failed || engine->zero == NULL || at->phase != DSC_PHASE_IDLE || at->micro_step != 0)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "generate needs a working engine with a model, at a step boundary");
    const int64_t sequence = engine->model->seq_length, vocab = engine->model->vocab_size;
    if (dsc_model_predictions(engine->model) > 0)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "model %s predicts masked tokens, and does not continue a text",
                        engine->model->name);
    if (vocab <= 0 || sequence <= 0 || engine->model->losses_per_sample != sequence ||
        engine->model->labels.kind != DSC_LABELS_NONE)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "model %s cannot generate text (not a causal language model)",
                        engine->model->name);
    if (token_count < 1 || new_count < 0 || !(temperature >= 0))
        return DSC_FAIL(err, DSC_ERR_STATE, "",
                        "generate needs a prompt of at least one token and a temperature of 0 or more");
    for (int64_t i = 0; i < token_count; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return DSC_FAIL(err, DSC_ERR_INPUT, "prompt", "token %d at %lld is outside the vocabulary of %lld",
                            (int)tokens[i], (long long)i, (long long)vocab);
    DSC_TRY(dsc_engine_need_values(engine, err));
    const dsc_sample_options options = { .temperature = temperature, .top_p = 1 };
    const float *logits = engine->work.host_logits;
    int32_t *row = engine->work.eval_data[0];
    if (engine->model->batch_count == 3 && strcmp(engine->model->batch[2].name, DSC_BATCH_POSITIONS) == 0)
        for (int64_t t = 0; t < engine->config.train_micro_batch_size_per_gpu * sequence; t++)
            ((int32_t *)engine->work.eval_data[2])[t] = (int32_t)(t % sequence); /* the text is one document */
    int64_t filled = dsc_min_i64(token_count, sequence);
    memset(row, 0, (size_t)(engine->config.train_micro_batch_size_per_gpu * sequence) * sizeof *row);
    memcpy(row, tokens + token_count - filled, (size_t)filled * sizeof *row);
    for (int64_t i = 0; i < new_count; i++) {
        const dsc_status status = next_logits(engine, filled - 1, err);
        if (status != DSC_OK)
            return dsc_engine_fail(engine, status, err);
        const double uniform = dsc_rng_u32(seed, dsc_rng_stream(DSC_RNG_SAMPLE, 0), (uint64_t)i) / 4294967296.0;
        out[i] = dsc_sample(logits, vocab, &options, uniform, NULL);
        if (filled == sequence)
            memmove(row, row + 1, (size_t)(--filled) * sizeof *row);
        row[filled++] = out[i];
    }
    return DSC_OK;
}
