/* text_vectors.h - one vector for each text, and losses that compare the vectors of a micro-batch. The losses are those
 * of sentence-transformers (Reimers and Gurevych 2019): MultipleNegativesRankingLoss, CosineSimilarityLoss, CoSENTLoss.
 * reference, the only CPU variant: cpu/text_vectors.c   check: tests/checkkern/text_vectors.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_TEXT_VECTORS_H
#define DSC_KERNELS_TEXT_VECTORS_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* The least divisor of a vector, as PyTorch's normalize has it. */
#define DSC_VECTOR_LENGTH_MIN 1e-12

/* Sample b has n = place[b] + 1 tokens.
 *
 *     pooled   p[b] = (rows[b,0] + ... + rows[b,n-1]) / n, summed in fp32 in this order; not `mean`: rows[b, n-1]
 *     forward  vectors[b] = p[b] / lengths[b]    lengths[b] = max(sqrt(sum_c p[b,c]^2), 1e-12); not `unit`: p[b]
 *     backward d_p[b] = (d_vectors[b] - vectors[b] (vectors[b] . d_vectors[b])) / lengths[b]; rows get d_p / n, or the
 *              one of the place d_p, and 0 elsewhere. `unit` is given.
 *
 * Sums over channels are in double. Each result is rounded once. */
typedef struct dsc_text_vectors_args {
    void *rows;                      /* [B,T,C] of the dtype; backward writes all of them */
    float *vectors;                  /* [B,C] written by forward */
    float *lengths;                  /* [B] likewise, with `unit` */
    const float *d_vectors;          /* [B,C] backward alone */
    const int32_t *place;            /* [B], 0 <= place < T */
    int64_t batch, tokens, channels; /* B, T, C */
    bool mean, unit;
    dsc_dtype dtype;
} dsc_text_vectors_args;

/* Samples are the texts of rows: an anchor of place 0, its positive of place 1, which follows it, then its negatives of
 * places 2, 3 and so on. s[i,j] is the cosine of samples i and j. An anchor without a positive behind it is in no row,
 * and N is the number of rows. A row's anchor is sample a.
 *
 *     ranked  loss = log(sum_j exp(scale s[a,j])) - scale s[a,a+1], over all j of a place above 0; d of their mean
 *     cosine  loss = (s[a,a+1] - score)^2; d of their mean
 *     order   loss = log(1 + sum over rows a, b with score_a < score_b of exp(scale (s[a,a+1] - s[b,b+1]))), one of all
 *
 * losses[i] is the loss of the sample's row; 0: it is in none. With write_gradient the matrix becomes the gradients of
 * s, times the factor, and 0 in other places. With `evaluate`, and no gradient, the losses of a row's other samples are
 * their cosines with its anchor. That of the anchor is `ranked` the loss, with a minus sign where a cosine exceeds or
 * equals that of the positive, and else 0. */
typedef struct dsc_text_loss_args {
    float *matrix;        /* [B, stride] s */
    float *losses;        /* [B] written */
    const float *targets; /* [B,2]: place, score */
    int64_t samples, stride;
    float scale, factor;
    bool write_gradient, evaluate;
    dsc_label_kind kind; /* DSC_LABELS_RANKED and further */
} dsc_text_loss_args;

#ifdef __cplusplus
}
#endif
#endif
