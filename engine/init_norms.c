/* init_norms.c - first values that are norms of a matrix's rows or columns: the magnitudes of adapters.
 *
 * The matrix is read again from its file, or made again by its initialisation, and rounded to the compute dtype. So the
 * norms are those of the weights that the run computes with. A square of an fp32 number is exact in double.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "engine/device.h"
#include "engine/internal.h"
#include "kernels/scalar.h"

#define PIECE 2048 /* elements on the stack */

/* The tensor that a spec's shared_param names. */
static int32_t matrix_of(const dsc_engine *engine, const dsc_layout_tensor *norms)
{
    for (int32_t t = 0; t < engine->layout.tensor_count; t++)
        if (engine->layout.tensor[t].module == norms->module &&
            engine->layout.tensor[t].param == norms->spec->shared_param)
            return t;
    DSC_ASSERT(false); /* the model's check has seen it */
    return -1;
}

static dsc_status matrix_values(const dsc_engine *engine, int32_t t, int64_t first, int64_t count, float *out,
                                dsc_error *err)
{
    const dsc_layout_tensor *tensor = &engine->layout.tensor[t];
    const dsc_model *model = engine->model;
    const dsc_dtype dtype = dsc_engine_dtype(engine);
    bool found = false;
    DSC_ASSERT(first + count <= tensor->count);
    if (model->load_param != NULL)
        DSC_TRY(model->load_param(model, tensor->module, tensor->param, first, count, out, &found, err));
    if (!found)
        dsc_engine_init_values(engine, t, first, count, out);
    for (int64_t i = 0; dtype != DSC_F32 && i < count; i++)
        out[i] = dsc_rounded(out[i], dtype);
    return DSC_OK;
}

static dsc_status row_norm(const dsc_engine *engine, int32_t t, int64_t row, float *out, dsc_error *err)
{
    const int64_t cols = engine->layout.tensor[t].spec->dim[1];
    float x[PIECE];
    double sum = 0;
    for (int64_t first = 0; first < cols; first += PIECE) {
        const int64_t count = dsc_min_i64(PIECE, cols - first);
        DSC_TRY(matrix_values(engine, t, row * cols + first, count, x, err));
        for (int64_t i = 0; i < count; i++)
            sum += (double)x[i] * (double)x[i];
    }
    *out = (float)sqrt(sum);
    return DSC_OK;
}

/* Of at most PIECE columns. */
static dsc_status column_norms(const dsc_engine *engine, int32_t t, int64_t first, int64_t count, float *out,
                               dsc_error *err)
{
    const int64_t rows = engine->layout.tensor[t].spec->dim[0], cols = engine->layout.tensor[t].spec->dim[1];
    float x[PIECE];
    double sum[PIECE] = { 0 };
    DSC_ASSERT(count <= PIECE);
    for (int64_t row = 0; row < rows; row++) {
        DSC_TRY(matrix_values(engine, t, row * cols + first, count, x, err));
        for (int64_t i = 0; i < count; i++)
            sum[i] += (double)x[i] * (double)x[i];
    }
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)sqrt(sum[i]);
    return DSC_OK;
}

dsc_status dsc_engine_init_norms(const dsc_engine *engine, int32_t t, int64_t first, int64_t count, float *values,
                                 dsc_error *err)
{
    const dsc_layout_tensor *tensor = &engine->layout.tensor[t];
    const int32_t matrix = matrix_of(engine, tensor);
    const bool rows = tensor->spec->init == DSC_INIT_ROW_NORMS;
    DSC_ASSERT(first + count <= tensor->count);
    for (int64_t done = 0, now; done < count; done += now) {
        now = rows ? 1 : dsc_min_i64(PIECE, count - done);
        DSC_TRY(rows ? row_norm(engine, matrix, first + done, values + done, err)
                     : column_norms(engine, matrix, first + done, now, values + done, err));
    }
    return DSC_OK;
}
