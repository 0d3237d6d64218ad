/* text_evaluation.h - figures of an evaluation of vectors of texts: how often a row's positive comes first, and how
 * cosines of scored pairs follow their scores. Rows are in the order of the samples on every rank, so that the numbers
 * depend on the data and on the micro-batch alone. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_EVALUATION_H
#define DSC_ENGINE_TEXT_EVALUATION_H

#include <dsc/model.h>

#include "base/base.h"

/* A pair's score and the cosine of its two texts. */
typedef struct dsc_scored_pair {
    double score, cosine;
} dsc_scored_pair;

typedef struct dsc_text_evaluation {
    dsc_scored_pair *pair, *ranks; /* [room] each, the caller's */
    int64_t pairs, room;
    int64_t rows, first;      /* rows without a score; of them, the positive comes before all others there are */
    int64_t triplets, right;  /* those that have negatives; the positive comes before the row's own */
    double loss;              /* the sum over rows; behind _finish the mean */
    double pearson, spearman; /* behind _finish; NaN: fewer than two pairs, or equal numbers */
} dsc_text_evaluation;

/* Adds the samples of a micro-batch: losses[count] as the head writes them (kernels/text_vectors.h), and targets[count,
 * 2]. A score makes a row a scored one. The loss of those is (cosine - score)^2, or that of the order. DSC_ERR_STATE:
 * more scored pairs than there is room for. */
DSC_MUST_USE dsc_status dsc_text_evaluation_add(dsc_text_evaluation *evaluation, dsc_label_kind kind, double scale,
                                                const double *losses, const double *targets, int64_t count,
                                                dsc_error *err);
DSC_MUST_USE dsc_status dsc_text_evaluation_finish(dsc_text_evaluation *evaluation, dsc_error *err);

/* Pearson's correlation of scores and cosines, NaN where one of them does not vary. And Spearman's, which is that of
 * their ranks, equal numbers having the mean of their ranks; ranks[count] is written, and the pairs are sorted. */
double dsc_pearson(const dsc_scored_pair *pair, int64_t count);
double dsc_spearman(dsc_scored_pair *pair, dsc_scored_pair *ranks, int64_t count);

#endif
