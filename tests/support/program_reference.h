/* program_reference.h - a program's ops one by one in double, forward and backward: what compiled programs must give.
 * It shares no code with the compiler; its backward is checked by finite differences.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_PROGRAM_REFERENCE_H
#define DSC_TESTS_PROGRAM_REFERENCE_H

#include "models/program.h"

#define PROGRAM_PARAMS_MAX 160

typedef struct program_reference {
    const dsc_program *program; /* as the builder left it, before it is compiled */
    int64_t batch;
    uint64_t seed; /* of dropout */
    bool training;
    int param_count;
    int64_t param_elements[PROGRAM_PARAMS_MAX];
    double *param[PROGRAM_PARAMS_MAX], *d_param[PROGRAM_PARAMS_MAX];
    double *value[DSC_PROGRAM_VALUES], *d_value[DSC_PROGRAM_VALUES];
} program_reference;

/* The bias of an expert in a buffer of a router. */
static inline float program_reference_bias(int32_t buffer, int32_t expert)
{
    return (float)((buffer * 7 + expert * 5) % 11 - 5) / 32;
}

/* The row of sample b that the k-th of `count` places names, of `rows`. */
static inline int64_t program_reference_place(int64_t b, int64_t k, int64_t count, int64_t rows)
{
    return k + (b + 1) % (rows - count + 1);
}

/* Parameters and the module's input are zero. */
program_reference *program_reference_open(const dsc_program *program, int64_t batch, const int64_t *param_elements,
                                          int param_count);
void program_reference_close(program_reference *reference);
int64_t program_reference_elements(const program_reference *reference, int16_t value);
void program_reference_forward(program_reference *reference);
/* From d_value of the output; sets d_value of the input and d_param. */
void program_reference_backward(program_reference *reference);

#endif
