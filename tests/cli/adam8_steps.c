/* adam8_steps.c - AdamW with 8-bit states for adam8_test.py: adam8_steps N STEPS LR BETA1 BETA2 EPS DECAY
 *
 * Standard input: fp32 weights [N], gradients [STEPS][N]. Standard output: weights [N], codes of m and of v [N] each,
 * and their absmax [ceil(N / 256)] each. With BETA1 0 and BETA2 0 the states are the gradient and its square.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/kernels.h"

static void *numbers(int64_t count, size_t each)
{
    void *data = calloc((size_t)count, each);
    if (data == NULL)
        exit(1);
    return data;
}

static void read_floats(float *to, int64_t count)
{
    if (fread(to, sizeof *to, (size_t)count, stdin) != (size_t)count)
        exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 8)
        return 2;
    const int64_t n = atoll(argv[1]), blocks = (n + DSC_Q8_BLOCK - 1) / DSC_Q8_BLOCK;
    const int steps = atoi(argv[2]);
    const double lr = atof(argv[3]), beta1 = atof(argv[4]), beta2 = atof(argv[5]), decay = atof(argv[7]);
    float *p = numbers(n, 4), *g = numbers(n, 4), *absmax[2] = { numbers(blocks, 4), numbers(blocks, 4) };
    uint8_t *code[2] = { numbers(n, 1), numbers(n, 1) };
    const dsc_cpu_threads team = { .threads = 2, .caps = dsc_cpu_caps() };
    dsc_kernel_table table;
    dsc_kernel_table_init(&table, team.caps);
    read_floats(p, n);
    for (int step = 1; step <= steps; step++) {
        read_floats(g, n);
        const dsc_update_args args = { .master = p,
                                       .state = { code[0], code[1] },
                                       .absmax = { absmax[0], absmax[1] },
                                       .grad = g,
                                       .count = n,
                                       .state_dtype = DSC_U8,
                                       .scalars = { .grad_scale = 1,
                                                    .one_minus_beta1 = (float)(1 - beta1),
                                                    .beta2 = (float)beta2,
                                                    .one_minus_beta2 = (float)(1 - beta2),
                                                    .decay = (float)(1 - lr * decay),
                                                    .eps = (float)atof(argv[6]),
                                                    .step_size = (float)(lr / (1 - pow(beta1, step))),
                                                    .inv_sqrt_bias2 = (float)(1 / sqrt(1 - pow(beta2, step))) } };
        if (table.fn[DSC_KERNEL_ADAMW](&args, &team, NULL) != DSC_OK)
            return 1;
    }
    size_t written = fwrite(p, 4, (size_t)n, stdout);
    for (int k = 0; k < 2; k++)
        written += fwrite(code[k], 1, (size_t)n, stdout);
    for (int k = 0; k < 2; k++)
        written += fwrite(absmax[k], 4, (size_t)blocks, stdout);
    return written == (size_t)(3 * n + 2 * blocks) ? 0 : 1;
}
