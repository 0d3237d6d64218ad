/* text_evaluation.c - see text_evaluation.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text_evaluation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Correlations ---- */

double dsc_pearson(const dsc_scored_pair *pair, int64_t count)
{
    double score = 0, cosine = 0, both = 0, scores = 0, cosines = 0;
    for (int64_t i = 0; i < count; i++) {
        score += pair[i].score;
        cosine += pair[i].cosine;
    }
    score /= (double)count;
    cosine /= (double)count;
    for (int64_t i = 0; i < count; i++) {
        const double x = pair[i].score - score, y = pair[i].cosine - cosine;
        both += x * y;
        scores += x * x;
        cosines += y * y;
    }
    return scores > 0 && cosines > 0 ? both / (sqrt(scores) * sqrt(cosines)) : NAN;
}

static int compare_numbers(double a, double b) { return (a > b) - (a < b); }

static int by_score(const void *a, const void *b)
{
    const dsc_scored_pair *const x = a, *const y = b;
    const int order = compare_numbers(x->score, y->score);
    return order != 0 ? order : compare_numbers(x->cosine, y->cosine);
}

static int by_cosine(const void *a, const void *b)
{
    const dsc_scored_pair *const x = a, *const y = b;
    const int order = compare_numbers(x->cosine, y->cosine);
    return order != 0 ? order : compare_numbers(x->score, y->score);
}

/* The number that is ranked of pair i of an array of doubles. */
static double *number_of(dsc_scored_pair *pair, int64_t i, bool cosine)
{
    return cosine ? &pair[i].cosine : &pair[i].score;
}

/* Replaces the sorted numbers by their ranks. */
static void rank(dsc_scored_pair *pair, int64_t count, bool cosine)
{
    for (int64_t first = 0, end; first < count; first = end) {
        const double number = *number_of(pair, first, cosine);
        for (end = first + 1; end < count && *number_of(pair, end, cosine) == number; end++)
            continue;
        for (int64_t i = first; i < end; i++)
            *number_of(pair, i, cosine) = (double)(first + end - 1) / 2;
    }
}

double dsc_spearman(dsc_scored_pair *pair, dsc_scored_pair *ranks, int64_t count)
{
    if (count < 2)
        return NAN;
    qsort(pair, (size_t)count, sizeof *pair, by_score);
    memcpy(ranks, pair, (size_t)count * sizeof *ranks);
    rank(ranks, count, false);
    qsort(ranks, (size_t)count, sizeof *ranks, by_cosine);
    rank(ranks, count, true);
    return dsc_pearson(ranks, count);
}

/* ---- Rows ---- */

static dsc_status add_pair(dsc_text_evaluation *e, double score, double cosine, dsc_error *err)
{
    if (e->pairs == e->room)
        return DSC_FAIL(err, DSC_ERR_STATE, "eval data",
                        "more than %lld scored pairs: there is room for those of dsc.eval_data; name the data there",
                        (long long)e->room);
    e->pair[e->pairs++] = (dsc_scored_pair) { score, cosine };
    return DSC_OK;
}

/* The loss of an order, over the pairs from `first` on: one of all. */
static double order_loss(const dsc_text_evaluation *e, int64_t first, double scale)
{
    double most = 0, sum = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = first; i < e->pairs; i++)
            for (int64_t j = first; j < e->pairs; j++) {
                const double apart = scale * (e->pair[i].cosine - e->pair[j].cosine);
                if (e->pair[i].score >= e->pair[j].score)
                    continue;
                most = pass == 0 ? fmax(most, apart) : most;
                sum += pass == 1 ? exp(apart - most) : 0;
            }
    return log(exp(-most) + sum) + most;
}

static void add_row(dsc_text_evaluation *e, const double *losses, int64_t texts)
{
    double most = -HUGE_VAL;
    for (int64_t k = 2; k < texts; k++)
        most = fmax(most, losses[k]);
    e->rows++;
    e->first += !signbit(losses[0]);
    e->loss += fabs(losses[0]);
    e->triplets += texts > 2;
    e->right += texts > 2 && losses[1] > most;
}

dsc_status dsc_text_evaluation_add(dsc_text_evaluation *e, dsc_label_kind kind, double scale, const double *losses,
                                   const double *targets, int64_t count, dsc_error *err)
{
    const int64_t first = e->pairs;
    DSC_ASSERT(dsc_label_kind_pairs(kind));
    for (int64_t i = 0, texts; i + 1 < count; i += texts) {
        texts = 1;
        while (i + texts < count && targets[2 * (i + texts)] == (double)texts)
            texts++;
        if (targets[2 * i] != 0 || texts < 2)
            continue;
        const double score = targets[2 * i + 1];
        if (!isfinite(score)) {
            add_row(e, losses + i, texts);
            continue;
        }
        DSC_TRY(add_pair(e, score, losses[i + 1], err));
        if (kind != DSC_LABELS_ORDER)
            e->loss += (losses[i + 1] - score) * (losses[i + 1] - score);
    }
    if (kind == DSC_LABELS_ORDER)
        e->loss += order_loss(e, first, scale) * (double)(e->pairs - first);
    return DSC_OK;
}

dsc_status dsc_text_evaluation_finish(dsc_text_evaluation *e, dsc_error *err)
{
    if (e->rows + e->pairs == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "eval data", "has no whole row: an anchor, and its positive behind it");
    e->loss /= (double)(e->rows + e->pairs);
    e->pearson = e->pairs > 1 ? dsc_pearson(e->pair, e->pairs) : NAN;
    e->spearman = dsc_spearman(e->pair, e->ranks, e->pairs);
    return DSC_OK;
}
