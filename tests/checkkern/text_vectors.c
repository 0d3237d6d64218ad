/* text_vectors.c - vectors of texts against sums in double, and losses against their formulas and against differences
 * of losses. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

/* ---- Vectors ---- */

/* The pooled channel c of text b, and the sum of the terms' sizes. */
static double pooled(const dsc_text_vectors_args *a, int64_t b, int64_t c, double *size)
{
    const int64_t count = a->place[b] + 1, first = a->mean ? 0 : count - 1;
    double sum = 0;
    *size = 0;
    for (int64_t t = first; t < count; t++) {
        const double x = ck_start(a->rows, (b * a->tokens + t) * a->channels + c);
        sum += x / (double)(count - first);
        *size += fabs(x) / (double)(count - first);
    }
    return sum;
}

/* The fp32 sums of a mean have an error of so many roundings for each term. */
static void verify_fwd(const void *args)
{
    const dsc_text_vectors_args *a = args;
    for (int64_t b = 0; b < a->batch; b++) {
        double squares = 0, size = 0, most = 0;
        for (int64_t c = 0; c < a->channels; c++) {
            const double p = pooled(a, b, c, &size);
            squares += p * p;
            most = fmax(most, size);
        }
        const double length = a->unit ? fmax(sqrt(squares), DSC_VECTOR_LENGTH_MIN) : 1;
        const double off = (double)(a->place[b] + 2) * 0x1p-24 * most * sqrt((double)a->channels);
        if (a->unit)
            ck_near(a->lengths, b, length, off + ck_spacing(DSC_F32, length));
        for (int64_t c = 0; c < a->channels; c++)
            ck_near(a->vectors, b * a->channels + c, pooled(a, b, c, &size) / length, 2 * off / length + 0x1p-22);
    }
    ck_same_on_cpu(a->vectors);
}

static void verify_bwd(const void *args)
{
    const dsc_text_vectors_args *a = args;
    for (int64_t b = 0; b < a->batch; b++) {
        const int64_t end = a->place[b] + 1, begin = a->mean ? 0 : end - 1;
        const float *v = a->vectors + b * a->channels, *d = a->d_vectors + b * a->channels;
        double along = 0;
        for (int64_t c = 0; c < a->channels; c++)
            along += (double)v[c] * (double)d[c];
        for (int64_t i = 0; i < a->tokens * a->channels; i++) {
            const int64_t t = i / a->channels, c = i % a->channels;
            const double part = ((double)d[c] - (double)v[c] * along) / (double)a->lengths[b] / (double)(end - begin);
            const double expected = t >= begin && t < end ? part : 0;
            ck_near(a->rows, b * a->tokens * a->channels + i, expected,
                    ck_spacing(DSC_F32, expected) + ck_rounding(a->dtype, expected) + 1e-12);
        }
    }
    ck_same_on_cpu(a->rows);
}

static void check_vectors(const int64_t shape[3], dsc_dtype dtype, bool mean, bool back)
{
    const int64_t batch = shape[0], tokens = shape[1], channels = shape[2];
    if (!ck_case("text_vectors_%s %s %s B=%lld T=%lld C=%lld", back ? "bwd" : "fwd", mean ? "mean" : "one",
                 ck_dtype_text(dtype), (long long)batch, (long long)tokens, (long long)channels))
        return;
    void *rows = ck_buf(back ? CK_OUT : CK_IN, dtype, batch * tokens * channels, "rows");
    float *vectors = ck_buf(back ? CK_IN : CK_OUT, DSC_F32, batch * channels, "vectors");
    float *lengths = ck_buf(back ? CK_IN : CK_OUT, DSC_F32, batch, "lengths");
    float *d_vectors = ck_buf(CK_IN, DSC_F32, batch * channels, "d_vectors");
    int32_t *place = ck_buf(CK_IN, DSC_I32, batch, "place");
    ck_int(place, 0, (int32_t)tokens - 1);
    ck_normal(d_vectors, 0, 1);
    if (back) {
        ck_normal(vectors, 0, 0.2);
        ck_normal(lengths, 3, 0.2);
    } else {
        ck_normal(rows, 0, 1);
    }
    const dsc_text_vectors_args args = { .rows = rows,
                                         .vectors = vectors,
                                         .lengths = lengths,
                                         .d_vectors = d_vectors,
                                         .place = place,
                                         .batch = batch,
                                         .tokens = tokens,
                                         .channels = channels,
                                         .mean = mean,
                                         .unit = true,
                                         .dtype = dtype };
    ck_kernel(back ? DSC_KERNEL_TEXT_VECTORS_BWD : DSC_KERNEL_TEXT_VECTORS_FWD, &args, sizeof args,
              back ? verify_bwd : verify_fwd);
}

/* ---- Losses ---- */

static bool begins(const dsc_text_loss_args *a, int64_t i)
{
    return i + 1 < a->samples && a->targets[2 * i] == 0 && a->targets[2 * i + 2] == 1;
}

/* s[i,j] as it was given, with one element that is `by` larger. */
typedef struct changed {
    const dsc_text_loss_args *a;
    int64_t at;
    double by;
} changed;

static double cosine(const changed *s, int64_t i, int64_t j)
{
    const int64_t at = i * s->a->stride + j;
    return ck_start(s->a->matrix, at) + (at == s->at ? s->by : 0);
}

/* The loss of row i, or of all rows. */
static double loss_of(const changed *s, int64_t i)
{
    const dsc_text_loss_args *a = s->a;
    const double scale = (double)a->scale;
    double sum = a->kind == DSC_LABELS_ORDER ? 1 : 0;
    if (a->kind == DSC_LABELS_COSINE)
        return pow(cosine(s, i, i + 1) - (double)a->targets[2 * i + 1], 2);
    for (int64_t j = 0; j < a->samples && a->kind == DSC_LABELS_RANKED; j++)
        sum += a->targets[2 * j] >= 1 ? exp(scale * cosine(s, i, j)) : 0;
    if (a->kind == DSC_LABELS_RANKED)
        return log(sum) - scale * cosine(s, i, i + 1);
    for (int64_t j = 0; j < a->samples; j++)
        for (int64_t k = 0; k < a->samples; k++)
            if (begins(a, j) && begins(a, k) && a->targets[2 * j + 1] < a->targets[2 * k + 1])
                sum += exp(scale * (cosine(s, j, j + 1) - cosine(s, k, k + 1)));
    return log(sum);
}

/* The mean of rows. */
static double mean_of(const changed *s)
{
    double sum = 0, count = 0;
    for (int64_t i = 0; i < s->a->samples; i++)
        if (begins(s->a, i)) {
            sum += loss_of(s, i);
            count++;
        }
    return count > 0 ? sum / count : 0;
}

static bool is_wrong(const dsc_text_loss_args *a, int64_t i)
{
    const changed s = { a, -1, 0 };
    bool wrong = false;
    for (int64_t j = 0; j < a->samples; j++)
        wrong = wrong || (a->targets[2 * j] >= 1 && j != i + 1 && cosine(&s, i, j) >= cosine(&s, i, i + 1));
    return wrong;
}

static void verify_row(const dsc_text_loss_args *a, int64_t i)
{
    const changed s = { a, -1, 0 };
    const double loss = loss_of(&s, i), off = 1e-5 * (1 + fabs(loss));
    const bool ranked = a->kind == DSC_LABELS_RANKED;
    const double said = !a->evaluate ? loss : !ranked ? 0 : is_wrong(a, i) ? -loss : loss;
    ck_near(a->losses, i, said, off);
    for (int64_t k = 1; i + k < a->samples && a->targets[2 * (i + k)] == (float)k; k++)
        ck_near(a->losses, i + k, a->evaluate ? cosine(&s, i, i + k) : loss, off);
}

static void verify_loss(const void *args)
{
    const dsc_text_loss_args *a = args;
    const double h = 1e-4;
    for (int64_t i = 0; i < a->samples; i++) {
        if (begins(a, i))
            verify_row(a, i);
        else if (a->targets[2 * i] == 0)
            ck_near(a->losses, i, 0, 0);
        for (int64_t j = 0; j < a->samples && a->write_gradient; j++) {
            const changed more = { a, i * a->stride + j, h }, less = { a, i * a->stride + j, -h };
            const double slope = (mean_of(&more) - mean_of(&less)) / (2 * h), d = slope * (double)a->factor;
            ck_near(a->matrix, i * a->stride + j, d, 1e-5 + 1e-4 * fabs(d));
        }
    }
    ck_same_on_cpu(a->losses);
    if (a->write_gradient)
        ck_same_on_cpu(a->matrix);
}

/* Rows of `texts` samples, and anchors alone behind the last whole one. */
static void check_loss(int64_t samples, int64_t texts, dsc_label_kind kind, bool gradient)
{
    static const char *const names[] = { "ranked", "cosine", "order" };
    if (!ck_case("text_loss %s B=%lld texts=%lld%s", names[kind - DSC_LABELS_RANKED], (long long)samples,
                 (long long)texts, gradient ? " gradient" : ""))
        return;
    const int64_t stride = dsc_align_up(samples, 16), rows = samples / texts;
    float *matrix = ck_buf(gradient ? CK_INOUT : CK_IN, DSC_F32, samples * stride, "matrix");
    float *losses = ck_buf(CK_OUT, DSC_F32, samples, "losses");
    float *targets = ck_buf(CK_IN, DSC_F32, 2 * samples, "targets");
    ck_normal(matrix, 0, 0.3);
    ck_gaps(matrix, samples, samples, stride);
    ck_normal(targets, 0, 1);
    for (int64_t i = 0; i < samples; i++) {
        targets[2 * i] = i < rows * texts ? (float)(i % texts) : 0;
        targets[2 * i + 1] = (float)((i / texts * 5) % 4) / 4;
    }
    const dsc_text_loss_args args = { .matrix = matrix,
                                      .losses = losses,
                                      .targets = targets,
                                      .samples = samples,
                                      .stride = stride,
                                      .scale = 8,
                                      .factor = 0.5f,
                                      .write_gradient = gradient,
                                      .evaluate = !gradient,
                                      .kind = kind };
    ck_kernel(DSC_KERNEL_TEXT_LOSS, &args, sizeof args, verify_loss);
}

void ck_text_vectors(void)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 }, { 3, 20, 7 }, { 2, 64, 300 }, { 5, 33, 64 }, { 0, 8, 16 } };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
        for (size_t s = 0; s < DSC_COUNT(shapes); s++)
            for (int i = 0; i < 4; i++)
                check_vectors(shapes[s], dtype, i % 2 != 0, i / 2 != 0);
    static const int64_t sizes[][2] = { { 2, 2 },  { 8, 2 }, { 9, 2 }, { 13, 3 },
                                        { 12, 4 }, { 1, 2 }, { 0, 2 }, { 40, 2 } };
    for (dsc_label_kind kind = DSC_LABELS_RANKED; kind <= DSC_LABELS_ORDER; kind++)
        for (size_t s = 0; s < DSC_COUNT(sizes); s++)
            for (int gradient = 0; gradient < 2; gradient++)
                check_loss(sizes[s][0], sizes[s][1], kind, gradient != 0);
}
