/* plan_speed.c - see plan_speed.h. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/plan_speed.h"

#include "base/clock.h"
#include "engine/plan.h"
#include "kernels/update.h"

#define UPDATE_ELEMENTS (INT64_C(4) << 20) /* 64 MiB of states: more than caches hold */
#define FILE_BYTES (INT64_C(256) << 20)
#define FILE_PIECE (INT64_C(32) << 20)
#define ROUNDS 3

typedef struct work { /* one round of a measurement */
    dsc_alloc *alloc;
    dsc_stream *compute;
    char *memory;
    dsc_swap_op *op;
    bool write;
    dsc_dtype moments;
    dsc_recipe recipe;
} work;

/* The fastest of some rounds. */
static dsc_status time_it(const work *w, dsc_status (*run)(const work *w, dsc_error *err), double *seconds,
                          dsc_error *err)
{
    *seconds = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        const int64_t start = dsc_clock_ns();
        DSC_TRY(run(w, err));
        const double now = (double)dsc_max_i64(1, dsc_clock_ns() - start) * 1e-9;
        *seconds = now < *seconds ? now : *seconds;
    }
    return DSC_OK;
}

static dsc_status run_update(const work *w, dsc_error *err)
{
    float *at = (float *)(void *)w->memory;
    const dsc_update_args args = { .master = at,
                                   .state = { at + UPDATE_ELEMENTS, at + 2 * UPDATE_ELEMENTS },
                                   .grad = at + 3 * UPDATE_ELEMENTS,
                                   .count = UPDATE_ELEMENTS,
                                   .state_dtype = w->moments,
                                   .absmax = { at + 3 * UPDATE_ELEMENTS / 2, at + 5 * UPDATE_ELEMENTS / 2 },
                                   .scalars = { .decay = 1, .eps = 1e-8f, .step_size = 1e-3f, .inv_sqrt_bias2 = 1 } };
    DSC_TRY(dsc_launch(w->compute, dsc_recipe_kernel(w->recipe), &args, (int64_t)sizeof args, err));
    return dsc_stream_sync(w->compute, err);
}

static dsc_status run_copy(const work *w, dsc_error *err)
{
    const int64_t half = UPDATE_ELEMENTS * 8;
    DSC_TRY(dsc_copy(w->compute, w->memory, w->memory + half, half, err));
    return dsc_stream_sync(w->compute, err);
}

static dsc_status run_file(const work *w, dsc_error *err)
{
    for (int64_t at = 0; at < FILE_BYTES; at += FILE_PIECE) {
        if (w->write)
            dsc_swap_write(w->op, w->memory, FILE_PIECE, at);
        else
            dsc_swap_read(w->op, w->memory, FILE_PIECE, at);
        DSC_TRY(dsc_swap_wait(w->op, err));
    }
    return DSC_OK;
}

static dsc_status time_swap(work *w, dsc_swap *swap, plan_speed *out, dsc_error *err)
{
    double seconds;
    dsc_status status = DSC_OK;
    DSC_TRY(dsc_swap_op_open(swap, NULL, FILE_PIECE, &w->op, err));
    w->write = true;
    DSC_TRY_OUT(time_it(w, run_file, &seconds, err));
    out->file_written_per_s = (double)FILE_BYTES / seconds;
    w->write = false;
    DSC_TRY_OUT(time_it(w, run_file, &seconds, err));
    out->file_read_per_s = (double)FILE_BYTES / seconds;
out:
    dsc_swap_op_close(&w->op);
    return status;
}

/* In the folder of the states, or of the parameters when those are all. */
static dsc_status time_files(work *w, const dsc_engine_planned *planned, plan_speed *out, dsc_error *err)
{
    dsc_zero_swap plan = { 0 };
    dsc_swap *swap = NULL;
    dsc_aio *aio = NULL;
    dsc_plan_swap(planned->config, &plan);
    const bool states = plan.state_folder_count > 0;
    if (!states && plan.param_folder_count == 0)
        return DSC_OK;
    plan.aio.alloc = w->alloc;
    DSC_TRY(dsc_aio_open(&plan.aio, &aio, err));
    const dsc_swap_options options = { .alloc = w->alloc,
                                       .aio = aio,
                                       .tag = DSC_TAG_IO,
                                       .folders = states ? plan.state_folders : plan.param_folders,
                                       .folder_count = states ? plan.state_folder_count : plan.param_folder_count,
                                       .bytes = FILE_BYTES };
    dsc_status status = dsc_swap_open(&options, &swap, err);
    if (status == DSC_OK)
        status = time_swap(w, swap, out, err);
    dsc_swap_close(&swap);
    dsc_aio_close(&aio);
    return status;
}

static dsc_status measure(work *w, const dsc_engine_planned *planned, plan_speed *out, dsc_error *err)
{
    double seconds;
    DSC_TRY(time_it(w, run_update, &seconds, err));
    out->updates_per_s = (double)UPDATE_ELEMENTS / seconds;
    DSC_TRY(time_it(w, run_copy, &seconds, err));
    out->copied_per_s = (double)UPDATE_ELEMENTS * 8 / seconds;
    return time_files(w, planned, out, err);
}

dsc_status plan_speed_measure(const dsc_engine_planned *planned, plan_speed *out, dsc_error *err)
{
    const dsc_precision precision = planned->config->precision;
    const char *const bf16 = precision == DSC_PRECISION_BF16 ? "true" : "false";
    const char *const fp16 = precision == DSC_PRECISION_FP16 ? "true" : "false";
    const dsc_override overrides[] = { { "bf16.enabled", bf16, "dsc plan" },
                                       { "fp16.enabled", fp16, "dsc plan" },
                                       { "dsc.device", "\"cpu\"", "dsc plan" } };
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    work w = { .moments = planned->config->own.moments, .recipe = planned->config->optimizer.recipe };
    dsc_engine *engine = NULL;
    dsc_engine_planned own;
    dsc_buf buf = { 0 };
    options.flags = DSC_ENGINE_NO_MODEL;
    options.overrides = overrides;
    options.override_count = DSC_COUNT(overrides);
    *out = (plan_speed){ 0 };
    if (!planned->host_visible)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc plan", "times are predicted for CPU ranks only");
    DSC_TRY(dsc_engine_open(&engine, &options, err));
    dsc_engine_planned_get(engine, &own);
    w.alloc = own.alloc;
    w.compute = own.compute;
    dsc_status status = dsc_buf_open(w.alloc, DSC_TAG_SCRATCH, DSC_TIER_HOST, UPDATE_ELEMENTS * 16, &buf, err);
    w.memory = buf.ptr;
    if (status == DSC_OK)
        status = dsc_engine_peak_flops(engine, &out->flops_per_s, err);
    if (status == DSC_OK)
        status = measure(&w, planned, out, err);
    dsc_buf_close(&buf);
    dsc_engine_close(&engine);
    return status;
}

static double quotient(double work_amount, double per_s) { return work_amount > 0 ? work_amount / per_s : 0; }

static double larger(double a, double b) { return a > b ? a : b; }

/* Passes hide their files behind compute and the update hides its own; where it has any, the first forward pass, a
 * third of a micro-step, runs beside it. Ranks of one host share everything. */
void plan_speed_predict(const dsc_engine_planned *planned, const plan_speed *speed, plan_time *out)
{
    const dsc_zero_traffic *t = &planned->traffic;
    const double ranks = (double)planned->local_size;
    const double micro_steps = (double)planned->config->gradient_accumulation_steps;
    out->compute_s = quotient(ranks * micro_steps * planned->flops_per_micro_batch, speed->flops_per_s);
    out->wire_s = quotient(ranks * (double)t->wire_bytes, speed->copied_per_s);
    out->update_s = quotient(ranks * (double)t->updated_elements, speed->updates_per_s);
    out->pass_files_s = quotient(ranks * (double)t->pass_read_bytes, speed->file_read_per_s) +
                        quotient(ranks * (double)t->pass_written_bytes, speed->file_written_per_s);
    out->update_files_s = quotient(ranks * (double)t->update_read_bytes, speed->file_read_per_s) +
                          quotient(ranks * (double)t->update_written_bytes, speed->file_written_per_s);
    const double hidden_s = out->update_files_s > 0 ? out->compute_s / (3 * micro_steps) : 0;
    out->step_s = larger(out->compute_s - hidden_s, out->pass_files_s) + out->wire_s +
                  larger(hidden_s, larger(out->update_s, out->update_files_s));
}
