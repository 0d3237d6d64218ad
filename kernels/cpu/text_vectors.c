/* text_vectors.c - plain C for every CPU: a text has few channels beside its layers' work.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"
#include "kernels/text_vectors.h"

/* ---- Vectors: a block is a sample. ---- */

static void pool(const dsc_text_vectors_args *a, int64_t b)
{
    const int64_t count = a->place[b] + (int64_t)1, first = a->mean ? 0 : count - 1;
    float *const out = a->vectors + b * a->channels;
    DSC_ASSERT(count >= 1);
    DSC_ASSERT(count <= a->tokens);
    for (int64_t c = 0; c < a->channels; c++)
        out[c] = 0;
    for (int64_t t = first; t < count; t++)
        for (int64_t c = 0; c < a->channels; c++)
            out[c] += dsc_get(a->rows, (b * a->tokens + t) * a->channels + c, a->dtype);
    for (int64_t c = 0; c < a->channels && a->mean; c++)
        out[c] /= (float)count;
}

static void make_vectors(const void *args, int64_t first, int64_t last)
{
    const dsc_text_vectors_args *a = args;
    for (int64_t b = first; b < last; b++) {
        float *const out = a->vectors + b * a->channels;
        double squares = 0;
        pool(a, b);
        if (!a->unit)
            continue;
        for (int64_t c = 0; c < a->channels; c++)
            squares += (double)out[c] * (double)out[c];
        const double length = fmax(sqrt(squares), DSC_VECTOR_LENGTH_MIN);
        a->lengths[b] = (float)length;
        for (int64_t c = 0; c < a->channels; c++)
            out[c] = (float)((double)out[c] / length);
    }
}

static void spread_gradients(const void *args, int64_t first, int64_t last)
{
    const dsc_text_vectors_args *a = args;
    for (int64_t b = first; b < last; b++) {
        const int64_t end = a->place[b] + (int64_t)1, begin = a->mean ? 0 : end - 1;
        const float *const v = a->vectors + b * a->channels, *const d = a->d_vectors + b * a->channels;
        double along = 0;
        for (int64_t c = 0; c < a->channels; c++)
            along += (double)v[c] * (double)d[c];
        const double share = 1 / ((double)a->lengths[b] * (double)(end - begin));
        for (int64_t t = 0; t < a->tokens; t++)
            for (int64_t c = 0; c < a->channels; c++) {
                const float part = (float)(((double)d[c] - (double)v[c] * along) * share);
                dsc_put(a->rows, (b * a->tokens + t) * a->channels + c, a->dtype, t >= begin && t < end ? part : 0);
            }
    }
}

static dsc_status forward(const void *args, const dsc_cpu_threads *pool_of, dsc_error *err)
{
    const dsc_text_vectors_args *a = args;
    DSC_TRY(dsc_range_dtype_check("TEXT_VECTORS_FWD", a->dtype, err));
    dsc_range_run(pool_of, a->batch, make_vectors, a);
    return DSC_OK;
}

static dsc_status backward(const void *args, const dsc_cpu_threads *pool_of, dsc_error *err)
{
    const dsc_text_vectors_args *a = args;
    DSC_ASSERT(a->unit);
    DSC_TRY(dsc_range_dtype_check("TEXT_VECTORS_BWD", a->dtype, err));
    dsc_range_run(pool_of, a->batch, spread_gradients, a);
    return DSC_OK;
}

/* ---- Losses ---- */

/* The arguments, and N. */
typedef struct text_rows {
    const dsc_text_loss_args *args;
    int64_t count;
} text_rows;

static float place_of(const dsc_text_loss_args *a, int64_t i) { return a->targets[2 * i]; }

/* Whether sample i is the anchor of a row. */
static bool begins_row(const dsc_text_loss_args *a, int64_t i)
{
    return i + 1 < a->samples && place_of(a, i) == 0 && place_of(a, i + 1) == 1;
}

/* The samples of a row behind its anchor. */
static int64_t others_of(const dsc_text_loss_args *a, int64_t anchor)
{
    int64_t count = 1;
    while (anchor + count + 1 < a->samples && place_of(a, anchor + count + 1) == (float)(count + 1))
        count++;
    return count;
}

/* The losses of a row's samples; the matrix still has cosines where these are asked for. */
static void give_losses(const dsc_text_loss_args *a, int64_t anchor, double loss)
{
    const int64_t others = others_of(a, anchor);
    a->losses[anchor] = (float)loss;
    for (int64_t k = 1; k <= others; k++)
        a->losses[anchor + k] = a->evaluate ? a->matrix[anchor * a->stride + anchor + k] : (float)loss;
}

static void rank_row(const text_rows *r, int64_t i)
{
    const dsc_text_loss_args *a = r->args;
    float *const s = a->matrix + i * a->stride;
    const double scale = (double)a->scale, own = (double)s[i + 1], share = scale * (double)a->factor / (double)r->count;
    double most = own, sum = 0;
    bool wrong = false;
    for (int64_t j = 0; j < a->samples; j++) {
        if (place_of(a, j) < 1)
            continue;
        most = fmax(most, (double)s[j]);
        wrong = wrong || (j != i + 1 && s[j] >= s[i + 1]);
    }
    for (int64_t j = 0; j < a->samples; j++)
        sum += place_of(a, j) >= 1 ? exp(scale * ((double)s[j] - most)) : 0;
    const double loss = log(sum) + scale * (most - own);
    give_losses(a, i, a->evaluate && wrong ? -loss : loss);
    for (int64_t j = 0; j < a->samples && a->write_gradient; j++) {
        const double p = place_of(a, j) >= 1 ? exp(scale * ((double)s[j] - most)) / sum : 0;
        s[j] = (float)((p - (j == i + 1)) * share);
    }
}

static void clear_row(const dsc_text_loss_args *a, int64_t i)
{
    for (int64_t j = 0; j < a->samples && a->write_gradient; j++)
        a->matrix[i * a->stride + j] = 0;
}

static void score_row(const text_rows *r, int64_t i)
{
    const dsc_text_loss_args *a = r->args;
    const double off = (double)a->matrix[i * a->stride + i + 1] - (double)a->targets[2 * i + 1];
    give_losses(a, i, a->evaluate ? 0 : off * off);
    clear_row(a, i);
    if (a->write_gradient)
        a->matrix[i * a->stride + i + 1] = (float)(2 * off * (double)a->factor / (double)r->count);
}

static void compare_rows(const void *args, int64_t first, int64_t last)
{
    const text_rows *r = args;
    const dsc_text_loss_args *a = r->args;
    for (int64_t i = first; i < last; i++) {
        if (begins_row(a, i) && a->kind == DSC_LABELS_RANKED)
            rank_row(r, i);
        else if (begins_row(a, i))
            score_row(r, i);
        else
            clear_row(a, i);
    }
}

/* The exponent of a pair of rows. */
static double exponent(const dsc_text_loss_args *a, int64_t less, int64_t more)
{
    return (double)a->scale *
           ((double)a->matrix[less * a->stride + less + 1] - (double)a->matrix[more * a->stride + more + 1]);
}

static bool is_less(const dsc_text_loss_args *a, int64_t i, int64_t j)
{
    return begins_row(a, j) && a->targets[2 * i + 1] < a->targets[2 * j + 1];
}

/* The losses' array holds a row's gradient until all are known. */
static void order_rows(const dsc_text_loss_args *a)
{
    double most = 0, sum = 0;
    for (int64_t i = 0; i < a->samples; i++)
        for (int64_t j = 0; begins_row(a, i) && j < a->samples; j++)
            if (is_less(a, i, j))
                most = fmax(most, exponent(a, i, j));
    for (int64_t i = 0; i < a->samples; i++)
        for (int64_t j = 0; begins_row(a, i) && j < a->samples; j++)
            if (is_less(a, i, j))
                sum += exp(exponent(a, i, j) - most);
    sum += exp(-most);
    for (int64_t i = 0; i < a->samples && a->write_gradient; i++) {
        double d = 0;
        for (int64_t j = 0; begins_row(a, i) && j < a->samples; j++) {
            if (is_less(a, i, j))
                d += exp(exponent(a, i, j) - most);
            else if (begins_row(a, j) && a->targets[2 * j + 1] < a->targets[2 * i + 1])
                d -= exp(exponent(a, j, i) - most);
        }
        a->losses[i] = (float)(d / sum * (double)a->scale * (double)a->factor);
    }
    for (int64_t i = 0; i < a->samples; i++) {
        clear_row(a, i);
        if (a->write_gradient && begins_row(a, i))
            a->matrix[i * a->stride + i + 1] = a->losses[i];
    }
    for (int64_t i = 0; i < a->samples; i++)
        a->losses[i] = 0;
    for (int64_t i = 0; i < a->samples; i++)
        if (begins_row(a, i))
            give_losses(a, i, a->evaluate ? 0 : log(sum) + most);
}

static dsc_status compare(const void *args, const dsc_cpu_threads *pool_of, dsc_error *err)
{
    const dsc_text_loss_args *a = args;
    text_rows rows = { .args = a };
    (void)err;
    DSC_ASSERT(dsc_label_kind_pairs(a->kind));
    DSC_ASSERT(a->stride >= a->samples);
    DSC_ASSERT(!(a->evaluate && a->write_gradient));
    if (a->kind == DSC_LABELS_ORDER) {
        order_rows(a);
        return DSC_OK;
    }
    for (int64_t i = 0; i < a->samples; i++) {
        rows.count += begins_row(a, i);
        a->losses[i] = 0;
    }
    dsc_range_run(pool_of, a->samples, compare_rows, &rows);
    return DSC_OK;
}

void dsc_text_vectors_init(dsc_kernel_table *table, uint32_t caps)
{
    (void)caps;
    table->fn[DSC_KERNEL_TEXT_VECTORS_FWD] = forward;
    table->fn[DSC_KERNEL_TEXT_VECTORS_BWD] = backward;
    table->fn[DSC_KERNEL_TEXT_LOSS] = compare;
}
