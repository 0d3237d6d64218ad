/* value_trace.c - see value_trace.h. SPDX-License-Identifier: Apache-2.0
 *
 * A value is copied to the host in pieces and reduced there in the order of its elements, in double. So the numbers of
 * one value are equal on all devices. Rank 0 reports every value; the others those with elements that are not finite,
 * because only rank 0's notes are shown. */
#include "engine/value_trace.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/f16.h"
#include "kernels/device.h"

enum { PIECE_BYTES = 1 << 20 };

struct dsc_value_trace {
    bool *wanted; /* [module_count] */
    char *piece;  /* [PIECE_BYTES] */
    dsc_value_sink sink;
    char call[160];   /* text of the call that is under way */
    int64_t reported; /* values of this call */
};

/* ---- which modules ---- */

static bool entry_fits(const char *entry, size_t bytes, const char *name)
{
    char pattern[128];
    if (bytes >= sizeof pattern)
        return false;
    memcpy(pattern, entry, bytes);
    pattern[bytes] = 0;
    return strcmp(pattern, "1") == 0 || fnmatch(pattern, name, 0) == 0;
}

static dsc_status choose(const dsc_engine *engine, const char *text, bool *wanted, dsc_error *err)
{
    const dsc_model *model = engine->model;
    for (const char *entry = text; entry != NULL;) {
        const char *const comma = strchr(entry, ',');
        const size_t bytes = comma != NULL ? (size_t)(comma - entry) : strlen(entry);
        int32_t count = 0;
        for (int32_t m = 0; m < model->module_count; m++)
            if (entry_fits(entry, bytes, model->modules[m].name)) {
                wanted[m] = true;
                count++;
            }
        if (count == 0)
            return DSC_FAIL(err, DSC_ERR_CONFIG, "DSC_TRACE_VALUES",
                            "\"%.*s\" fits no module of the model; expected 1 for all, or names and patterns as in "
                            "\"%.40s,h.*\"; its modules are \"%.40s\" to \"%.40s\" (dsc model show lists them)",
                            (int)(bytes < 60 ? bytes : 60), entry, model->modules[0].name, model->modules[0].name,
                            model->modules[model->module_count - 1].name);
        entry = comma != NULL ? comma + 1 : NULL;
    }
    return DSC_OK;
}

/* ---- one value ---- */

typedef struct numbers {
    double squares, largest;
    int64_t not_finite;
} numbers;

static double element_of(const char *at, dsc_dtype dtype, int64_t i)
{
    uint16_t half;
    float single;
    if (dtype == DSC_F32) {
        memcpy(&single, at + 4 * i, sizeof single);
        return (double)single;
    }
    memcpy(&half, at + 2 * i, sizeof half);
    return (double)(dtype == DSC_BF16 ? dsc_f32_from_bf16(half) : dsc_f32_from_f16(half));
}

/* Whether element i of the memory from the value's first element on is one of the value's. */
static bool is_part(const dsc_traced_value *value, int64_t i)
{
    const int64_t column = i % value->stride;
    return value->apart == 0 ? column < value->columns : column % value->apart < value->width;
}

static void add_piece(const dsc_traced_value *value, const char *piece, int64_t first, int64_t count, numbers *out)
{
    for (int64_t i = 0; i < count; i++) {
        if (!is_part(value, first + i))
            continue;
        const double x = element_of(piece, value->dtype, i);
        if (!isfinite(x)) {
            out->not_finite++;
            continue;
        }
        out->squares += x * x;
        out->largest = fmax(out->largest, fabs(x));
    }
}

static dsc_status reduce(dsc_stream *stream, char *piece, const dsc_traced_value *value, numbers *out, dsc_error *err)
{
    const int64_t element = (int64_t)dsc_dtype_bytes(value->dtype), most = PIECE_BYTES / element;
    const int64_t heads = value->apart > 0 ? value->columns / value->width : 1;
    const int64_t row = value->apart > 0 ? (heads - 1) * value->apart + value->width : value->columns;
    const int64_t count = value->rows > 0 ? (value->rows - 1) * value->stride + row : 0;
    *out = (numbers) { 0 };
    for (int64_t first = 0; first < count; first += most) {
        const int64_t now = dsc_min_i64(most, count - first);
        DSC_TRY(dsc_copy(stream, piece, (const char *)value->at + first * element, now * element, err));
        DSC_TRY(dsc_stream_sync(stream, err));
        add_piece(value, piece, first, now, out);
    }
    return DSC_OK;
}

static dsc_status report(void *user, dsc_stream *stream, const dsc_traced_value *value, dsc_error *err)
{
    const dsc_engine *engine = user;
    struct dsc_value_trace *trace = engine->output.values;
    numbers of;
    char number[16] = "";
    DSC_TRY(reduce(stream, trace->piece, value, &of, err));
    trace->reported++;
    if (engine->place.rank > 0 && of.not_finite == 0)
        return DSC_OK;
    if (value->number >= 0)
        snprintf(number, sizeof number, ".%d", (int)value->number);
    dsc_log_printf(&engine->log, engine->place.rank > 0 ? DSC_LOG_WARNING : DSC_LOG_INFO,
                   "values: rank %d, %s: %s%s%s [%lld,%lld]: norm %.9g, largest %.9g, not finite %lld",
                   (int)engine->place.rank, trace->call, value->gradient ? "gradient of " : "", value->name, number,
                   (long long)value->rows, (long long)value->columns, sqrt(of.squares), of.largest,
                   (long long)of.not_finite);
    return DSC_OK;
}

/* ---- one call ---- */

void dsc_value_trace_begin(dsc_engine *engine, int32_t module, int32_t mb, dsc_pass pass, dsc_module_ctx *ctx)
{
    struct dsc_value_trace *trace = engine->output.values;
    const bool again = pass == DSC_PASS_FORWARD && engine->progress.phase == DSC_PHASE_FORWARD_DONE;
    const char *const what = !ctx->training             ? "evaluation"
                             : again                    ? "forward again"
                             : pass == DSC_PASS_FORWARD ? "forward"
                             : pass == DSC_PASS_REBUILD ? "rebuild"
                                                        : "backward";
    snprintf(trace->call, sizeof trace->call, "step %lld, micro-step %lld, %.60s %s",
             (long long)engine->progress.step + 1, (long long)engine->progress.micro_step + mb + 1,
             engine->model->modules[module].name, what);
    trace->reported = 0;
    ctx->values = &trace->sink;
}

/* Elements in one row, of what a module made that reports no values itself. */
static dsc_status report_row(dsc_engine *engine, const char *name, bool gradient, const void *at, dsc_dtype dtype,
                             int64_t count, dsc_error *err)
{
    const dsc_traced_value value = { .name = name,
                                     .number = -1,
                                     .gradient = gradient,
                                     .at = at,
                                     .dtype = dtype,
                                     .rows = 1,
                                     .columns = count,
                                     .stride = count,
                                     .width = count };
    return at != NULL && count > 0 ? report(engine, engine->compute, &value, err) : DSC_OK;
}

/* A value of the size of module m's output. */
static dsc_status report_out(dsc_engine *engine, int32_t m, const char *name, bool gradient, const void *at,
                             const dsc_module_ctx *ctx, dsc_error *err)
{
    const dsc_module *module = &engine->models.now->modules[m];
    const dsc_plan_sink none = { 0 };
    dsc_module_plan plan = { 0 };
    DSC_TRY(module->plan(module, ctx->batch, ctx->dtype, &none, &plan, err));
    return report_row(engine, name, gradient, at, ctx->dtype, plan.out_elements, err);
}

static dsc_status report_gradients(dsc_engine *engine, const dsc_module *module, const dsc_module_ctx *ctx,
                                   dsc_error *err)
{
    for (int32_t p = 0; p < module->param_count; p++) {
        const dsc_param_spec *spec = &module->params[p];
        int64_t count = 1;
        for (int32_t d = 0; d < spec->dim_count; d++)
            count *= spec->dim[d];
        DSC_TRY(report_row(engine, spec->name, true, ctx->grad[p], DSC_F32, count, err));
    }
    return DSC_OK;
}

dsc_status dsc_value_trace_end(dsc_engine *engine, int32_t m, dsc_pass pass, const dsc_module_ctx *ctx, dsc_error *err)
{
    const dsc_module *module = &engine->models.now->modules[m];
    const bool by_itself = engine->output.values->reported > 0, loss = (module->flags & DSC_MODULE_LOSS) != 0;
    const bool backward = pass == DSC_PASS_BACKWARD || (loss && ctx->save);
    if (pass == DSC_PASS_FORWARD && !by_itself && !loss)
        DSC_TRY(report_out(engine, m, "out", false, ctx->out, ctx, err));
    if (loss)
        DSC_TRY(report_row(engine, "losses", false, ctx->losses, DSC_F32,
                           ctx->batch * engine->models.now->losses_per_sample, err));
    if (!backward)
        return DSC_OK;
    if (!by_itself && m > 0)
        DSC_TRY(report_out(engine, m - 1, "in", true, ctx->d_in, ctx, err));
    return report_gradients(engine, module, ctx, err);
}

bool dsc_value_trace_wants(const dsc_engine *engine, int32_t module)
{
    return engine->output.values != NULL && engine->output.values->wanted[module];
}

/* ---- the run ---- */

dsc_status dsc_value_trace_open(dsc_engine *engine, dsc_error *err)
{
    const char *text = getenv("DSC_TRACE_VALUES");
    struct dsc_value_trace *trace = NULL;
    if (text == NULL || text[0] == 0 || strcmp(text, "0") == 0)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, 1, sizeof *trace, &trace, err));
    engine->output.values = trace;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, engine->model->module_count, sizeof *trace->wanted,
                             &trace->wanted, err));
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, PIECE_BYTES, 1, &trace->piece, err));
    trace->sink = (dsc_value_sink) { report, engine };
    return choose(engine, text, trace->wanted, err);
}

void dsc_value_trace_close(dsc_engine *engine)
{
    struct dsc_value_trace *trace = engine->output.values;
    if (trace == NULL)
        return;
    dsc_alloc_free(engine->alloc, trace->piece);
    dsc_alloc_free(engine->alloc, trace->wanted);
    dsc_alloc_free(engine->alloc, trace);
    engine->output.values = NULL;
}
