/* norm.h - shared by the checks of layer norm and RMS norm. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_CHECKKERN_NORM_H
#define DSC_TESTS_CHECKKERN_NORM_H

#include "tests/checkkern/ck.h"

/* The input's rows that are parts of one wider row, 0: none are. Wider rows have unused elements between them. */
extern int32_t ck_norm_parts;
dsc_norm_rows ck_norm_wide(int64_t channels);
int64_t ck_norm_at(int64_t row, int64_t channels, int64_t c); /* the element's place */
void *ck_norm_input(ck_role role, dsc_dtype dtype, int64_t rows, int64_t channels, const char *name);

/* An input's rows of different places and sizes; each fifth one is `constant`. */
void ck_norm_rows(const void *x, int64_t rows, int64_t channels, double constant);

/* Destination of a residual: none, into an array of its own, over the input, over what is added. */
enum { ADD_NONE, ADD_APART, ADD_OVER_IN, ADD_OVER_ADD, ADD_COUNT };
extern const char *const ck_norm_add_text[ADD_COUNT];

/* Weight and bias; a layer norm's weight alone; a factor of 1 + weight without a bias; neither. */
typedef enum ck_norm_trait { NORM_WHOLE, NORM_NO_BIAS, NORM_PLUS_ONE, NORM_BARE, NORM_TRAITS } ck_norm_trait;
const char *ck_norm_trait_text(ck_norm_trait trait); /* and whether rows are parts of wider ones */

/* The residual that comes first: exact in double, so only its one rounding is left. */
void ck_norm_near_sum(const void *sum, const void *in, const void *add, dsc_dtype dtype, int64_t count);
/* Addend of a backward to element i of d_in. */
double ck_norm_residual(const void *d_residual, const void *d_in, int64_t i);

/* One case each: of so many rows and channels; `residual` 0: none, 1: apart, 2: in place; `wide`: both directions,
 * aligned. */
typedef struct ck_norm_cases {
    void (*fwd)(int64_t rows, int64_t channels, dsc_dtype dtype, int add);
    void (*bwd)(int64_t rows, int64_t channels, dsc_dtype dtype, bool weights, int residual);
    void (*wide)(int64_t rows, int64_t channels, dsc_dtype dtype);
} ck_norm_cases;
/* Over these channels, and the shapes that every norm must stand; fewer of them for all traits but the first. */
void ck_norm_shapes(const ck_norm_cases *check, const int64_t *channels, size_t count, ck_norm_trait trait);

#endif
