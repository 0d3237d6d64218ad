/* evaluate.c - mean loss of samples without gradients. SPDX-License-Identifier: Apache-2.0 */
#include "engine/batch_transfer.h"
#include "engine/device.h"
#include "engine/internal.h"
#include "engine/report.h"

static dsc_status evaluate(dsc_engine *engine, const dsc_data_source *source, int64_t max_batches, double *loss,
                           dsc_error *err)
{
    const int64_t batch = engine->config.train_micro_batch_size_per_gpu, size = engine->place.size;
    int64_t rounds = source->sample_count / (batch * size);
    if (source->sample_count == 0 && max_batches == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "eval data", "an endless source needs max_batches");
    if (max_batches > 0)
        rounds = source->sample_count == 0 ? dsc_div_ceil(max_batches, size)
                                           : dsc_min_i64(rounds, dsc_div_ceil(max_batches, size));
    if (rounds == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "eval data",
                        "%lld samples are fewer than one micro-batch of %lld for each of %lld ranks",
                        (long long)source->sample_count, (long long)batch, (long long)size);
    double sum = 0;
    for (int64_t i = 0; i < rounds; i++) {
        DSC_TRY(source->fill(source->user, (i * size + engine->place.rank) * batch, batch, engine->work.eval_data,
                             err));
        DSC_TRY(dsc_engine_give_batch(engine, 0, (const void *const *)engine->work.eval_data, err));
        DSC_TRY(dsc_engine_forward_only(engine, err));
        DSC_TRY(dsc_engine_fetch_losses(engine, 0, err));
        DSC_TRY(dsc_stream_sync(engine->compute, err));
        const double mean = dsc_engine_mean_loss(engine, 0);
        DSC_TRY(dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, engine->work.step_stat_count, &mean, 1,
                                    DSC_F64, NULL, err));
        for (int64_t r = 0; r < size; r++)
            sum += engine->work.step_stat_count[r];
    }
    *loss = sum / (double)(rounds * size);
    return DSC_OK;
}

dsc_status dsc_engine_evaluate(dsc_engine *engine, const dsc_data_source *source, int64_t max_batches, double *loss,
                               dsc_error *err)
{
    DSC_TRY(dsc_engine_check_idle(engine, "evaluate", err));
    dsc_data_source own = { NULL, NULL, 0 };
    if (source == NULL || source->fill == NULL) {
        if (engine->input.eval == NULL)
            return DSC_FAIL(err, DSC_ERR_STATE, "dsc.eval_data", "no evaluation data is given");
        own = dsc_data_as_source(engine->input.eval);
        source = &own;
    }
    DSC_TRY(dsc_engine_need_values(engine, err));
    const int64_t start = dsc_engine_span_start(engine, DSC_SPAN_EVALUATE, -1);
    const dsc_status status = evaluate(engine, source, max_batches, loss, err);
    dsc_engine_span_end(engine, DSC_SPAN_EVALUATE, -1, start);
    if (status == DSC_OK)
        dsc_engine_report_evaluation(engine, *loss);
    return dsc_engine_fail(engine, status, err);
}
