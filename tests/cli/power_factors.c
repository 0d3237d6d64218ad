/* power_factors.c - prints the first factors of PowerSGD: power_factors SEED TENSOR COUNT.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    const int64_t count = atoll(argv[3]);
    float *values = malloc((size_t)count * sizeof *values);
    if (values == NULL)
        return 3;
    const uint64_t stream = dsc_rng_stream(DSC_RNG_FACTORS, (uint32_t)atoi(argv[2]));
    dsc_rng_normal(strtoull(argv[1], NULL, 10), stream, 0, count, 0, 1, values);
    for (int64_t i = 0; i < count; i++)
        printf("%.9g\n", (double)values[i]);
    free(values);
    return 0;
}
