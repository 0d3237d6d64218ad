/* signs_formula.h - optimizers whose ranks exchange signs, beside their papers' formulas in double: on gradients that a
 * program gives, update by update. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_SIGNS_FORMULA_H
#define DSC_TESTS_SIGNS_FORMULA_H

#include <stdint.h>

#define SIGNS_UPDATES 120
#define SIGNS_RANKS 4
#define SIGNS_TENSORS 5
#define SIGNS_ELEMENTS (3000 + 5 + 1 + 129 + 2048) /* of these */

typedef struct signs_formula {
    int32_t world;
    double p[SIGNS_ELEMENTS], m[SIGNS_ELEMENTS], v[SIGNS_ELEMENTS];
    double at[SIGNS_RANKS][SIGNS_ELEMENTS]; /* each rank's weights after an update; step functions give them */
    double own[SIGNS_RANKS][SIGNS_ELEMENTS], sum[SIGNS_ELEMENTS]; /* compression errors of ranks and of owners */
    /* Optimizers with local steps: momentum, local updates and sums of rates. */
    double moment[SIGNS_RANKS][SIGNS_ELEMENTS], local_update[SIGNS_RANKS][SIGNS_ELEMENTS], rates, decays;
    /* Of 1-bit LAMB: the variance that goes on, and of each tensor the average of its coefficients, and its factor. */
    double fresh[SIGNS_ELEMENTS], coeff[SIGNS_TENSORS], factor[SIGNS_TENSORS];
} signs_formula;

/* Elements of a tensor, and where among all elements they begin. */
int64_t signs_tensor(int32_t tensor, int64_t *first);

double signs_mean(double of[SIGNS_RANKS][SIGNS_ELEMENTS], int32_t world, int64_t i);
/* The exchange of zero/optimizer/sign_compress.c: C[x] is the signs of x times the root of its mean square; ranks
 * send C[mine + error],
 * owners C[mean + error] of their slices. 0 where v is. */
void signs_exchange(signs_formula *f, double mine[SIGNS_RANKS][SIGNS_ELEMENTS], double to[SIGNS_ELEMENTS]);
/* Compression errors are 0 again. */
void signs_forget(signs_formula *f);

typedef void (*signs_step)(signs_formula *f, int64_t update, double grads[SIGNS_RANKS][SIGNS_ELEMENTS]);
/* One to SIGNS_RANKS ranks take SIGNS_UPDATES steps with that optimizer (JSON); after each, every rank's weights are
 * those of `step` to 1e-6. Gradients are those of the weights that a rank has, so that no small difference grows; some
 * elements have none in the first `quiet` updates. */
void signs_beside_formula(const char *optimizer, int64_t quiet, signs_step step);

#endif
