/* program_random.h - random programs of every kind of op, and runs of compiled ones on the cpu device.
 *
 * A run's buffers have exactly the planned bytes between red zones and are full of NaN before the call that must write
 * them. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_PROGRAM_RANDOM_H
#define DSC_TESTS_PROGRAM_RANDOM_H

#include "tests/support/program_reference.h"

enum { PROGRAM_GATHERS_MAX = 32 };

typedef struct program_random {
    dsc_program source; /* as built; compiled copies are the caller's */
    dsc_rope rope;
    int64_t batch;
    int param_count;
    int64_t param_elements[PROGRAM_PARAMS_MAX];
    dsc_param_spec spec[PROGRAM_PARAMS_MAX];
    struct {
        int64_t count, rows;
    } gathered[PROGRAM_GATHERS_MAX]; /* [gathers] sizes of the batch tensors of places */
    int32_t gathers;
    uint64_t seed, drawn;
} program_random;

/* 5 to about 30 ops. */
void program_random_make(program_random *out, uint64_t seed);
int64_t program_random_draw(program_random *random, int64_t below);
void program_random_take_params(program_random *random); /* those that the source has and `random` not yet */
/* Small values, around 1 for the weights of norms. */
void program_random_fill(program_random *random, program_reference *reference);

typedef struct program_mode {
    dsc_dtype dtype;
    bool recompute, rebuild, keep, in_place; /* as modelrun.h's */
    const dsc_value_sink *values;            /* or NULL */
    bool evaluate;                           /* not in training */
    const float *const *buffer;              /* of the module; NULL: without */
    float *const *statistic;                 /* likewise, which the first forward fills */
} program_mode;

typedef struct program_result {
    int64_t out_elements, param_count;
    float *out, *d_in, *d_param[PROGRAM_PARAMS_MAX];
} program_result;

/* One forward and backward with the reference's parameters, input and gradient of the output. */
program_result *program_random_run(const program_random *random, const dsc_program *compiled,
                                   const program_reference *reference, program_mode mode);
void program_result_free(program_result *result);
bool program_result_equals(const program_random *random, const program_result *a, const program_result *b);
/* The largest difference of any tensor from the reference's, in units of the tensor's root mean square. */
double program_result_error(const program_random *random, const program_result *result,
                            const program_reference *reference);

#endif
