/* test_families.c - a model of every family but GPT-2 on simulated GPUs: near the CPU as roundings explain, and every
 * stage the same bits. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_models.h"
#include "tests/support/tiny_run.h"

/* Three ranks: slices that end in padding. Precisions take turns, and so do the stages beside stage 0 but for the first
 * model, which has all; `make test-night`: every one, and adapters of experts. */
static void near_the_cpu_at_every_stage(void **state)
{
    const bool night = getenv("DSC_TEST_NIGHT") != NULL;
    const int32_t world = run_most_ranks(3);
    const int64_t steps = world > 1 ? 2 : 4; /* one rank's few samples fall behind chance otherwise */
    for (size_t i = 0; i < DSC_COUNT(tiny_models); i++) {
        if (tiny_models[i].lora == &tiny_expert_lora && !night) /* half a minute */
            continue;
        dsc_model *model = tiny_model_open(tiny_models[i].config, tiny_models[i].lora);
        for (size_t bf16 = 0; bf16 < 2; bf16++) {
            run_result gpu, other;
            /* A router in fp32 chooses another expert where values in bf16 differ before it. */
            const bool routes_in_fp32 = strcmp(tiny_models[i].name, "deepseek v3") == 0;
            if (routes_in_fp32 ? bf16 != 0 : bf16 == i % 2 && !night)
                continue;
            printf("# %s, %s\n", tiny_models[i].name, bf16 != 0 ? "bf16" : "fp32");
            /* Adapters begin at 0, with small gradients. */
            (tiny_models[i].lora != NULL ? tiny_run_beside_the_cpu : tiny_run_near_the_cpu)(
                model, &(tiny_variant){ "cuda", world, 0, 2, bf16 != 0, false, DSC_RECOMPUTE_NONE, NULL }, steps, &gpu);
            for (int32_t stage = 1; stage <= 3; stage++) {
                if (i > 0 && stage != 1 + (int32_t)i % 3 && !night)
                    continue;
                const dsc_recompute again = stage == 2 ? DSC_RECOMPUTE_FULL : DSC_RECOMPUTE_SELECTIVE;
                tiny_run(model, &(tiny_variant){ "cuda", world, stage, 2, bf16 != 0, stage != 2, again, NULL },
                         &(run_options){ .steps = steps }, &other);
                run_expect_same(&gpu, &other);
            }
            const int32_t stage = (int32_t)i % 4;
            tiny_run(model, &(tiny_variant) { "cuda", world, stage, 2, bf16 != 0, true, DSC_RECOMPUTE_KEPT, NULL },
                     &(run_options) { .steps = steps }, &other);
            run_expect_same(&gpu, &other);
            tiny_free_states(&gpu);
        }
        dsc_model_close(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_the_cpu_at_every_stage),
    };
    return cmocka_run_group_tests_name("families on simulated GPUs", tests, NULL, NULL);
}
