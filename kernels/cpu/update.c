/* update.c - the table of recipes, and their blocks for the thread pool. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/blocks.h"
#include "kernels/scalar.h"
#include "kernels/cpu/update_range.h"

#define ROW(id, name, count, needs, rest, ...)                                                                   \
    [DSC_RECIPE_##id] = { name, count, { __VA_ARGS__ }, needs, DSC_RECIPE_##rest, DSC_RECIPE_##id, NULL }
const dsc_recipe_info dsc_recipes[DSC_RECIPE_COUNT] = {
    ROW(ADAMW, "adam", 2, DSC_NEEDS_NOTHING, ADAMW, "exp_avg", "exp_avg_sq"),
    ROW(SGD, "sgd", 0, DSC_NEEDS_NOTHING, SGD, NULL),
    ROW(MOMENTUM, "sgd_momentum", 1, DSC_NEEDS_NOTHING, MOMENTUM, "momentum_buffer"),
    ROW(ADAGRAD, "adagrad", 1, DSC_NEEDS_NOTHING, ADAGRAD, "sum"),
    ROW(LION, "lion", 1, DSC_NEEDS_NOTHING, LION, "exp_avg"),
    ROW(LAMB, "lamb", 2, DSC_NEEDS_TENSOR_NORMS, LAMB, "exp_avg", "exp_avg_sq"),
    ROW(MUON, "muon", 1, DSC_NEEDS_WHOLE_MATRIX, ADAMW, "exp_avg", "exp_avg_sq"),
    ROW(ADAFACTOR, "adafactor", 0, DSC_NEEDS_RMS | DSC_NEEDS_ROW_COL_STATS, ADAFACTOR_FLAT, "exp_avg_sq"),
    ROW(ADAFACTOR_FLAT, "adafactor_flat", 1, DSC_NEEDS_RMS, ADAFACTOR_FLAT, "exp_avg_sq"),
    ROW(ADAFACTOR_M, "adafactor_m", 1, DSC_NEEDS_RMS | DSC_NEEDS_ROW_COL_STATS, ADAFACTOR_FLAT_M, "exp_avg",
        "exp_avg_sq"),
    ROW(ADAFACTOR_FLAT_M, "adafactor_flat_m", 2, DSC_NEEDS_RMS, ADAFACTOR_FLAT_M, "exp_avg", "exp_avg_sq"),
    ROW(RMSPROP, "rmsprop", 1, DSC_NEEDS_NOTHING, RMSPROP, "square_avg"),
    ROW(RMSPROP_M, "rmsprop_momentum", 2, DSC_NEEDS_NOTHING, RMSPROP_M, "square_avg", "momentum_buffer"),
    ROW(RMSPROP_C, "rmsprop_centered", 2, DSC_NEEDS_NOTHING, RMSPROP_C, "square_avg", "grad_avg"),
    ROW(RMSPROP_CM, "rmsprop_centered_momentum", 3, DSC_NEEDS_NOTHING, RMSPROP_CM, "square_avg", "grad_avg",
        "momentum_buffer"),
    ROW(LARS, "lars", 1, DSC_NEEDS_TENSOR_NORMS, LARS, "momentum_buffer"),
    [DSC_RECIPE_ONEBIT_LAMB] = { "onebit_lamb",
                                 3,
                                 { "exp_avg", "exp_avg_sq", "exp_avg_sq_fresh" },
                                 DSC_NEEDS_TENSOR_NORMS,
                                 DSC_RECIPE_ONEBIT_LAMB,
                                 DSC_RECIPE_LAMB,
                                 "lamb_coeff" },
};

dsc_recipe dsc_recipe_find(const char *name)
{
    int recipe = 0;
    while (recipe < DSC_RECIPE_COUNT && strcmp(dsc_recipes[recipe].name, name) != 0)
        recipe++;
    return (dsc_recipe)recipe;
}

typedef struct step_of { const dsc_update_ops *ops; dsc_recipe recipe; } step_of;

static void step_blocks(void *ctx, int64_t first, int64_t last)
{
    const dsc_block_job *job = ctx;
    const step_of *step = job->ops;
    step->ops->step[step->recipe](job->args, first * DSC_BLOCK, dsc_blocks_end(job, last));
}

static dsc_status run(const dsc_update_ops *ops, dsc_recipe recipe, const char *name, const void *args,
                      const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_update_args *a = args;
    const step_of step = { ops, recipe };
    if (a->state_dtype != DSC_F32 && a->state_dtype != DSC_BF16 &&
        (a->state_dtype != DSC_U8 || recipe != DSC_RECIPE_ADAMW))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, name, "no states of dtype %d", (int)a->state_dtype);
    if (a->grad_dtype != DSC_F32 && a->grad_dtype != DSC_BF16)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, name, "no sums of dtype %d", (int)a->grad_dtype);
    if (!dsc_dtype_computes(a->round_dtype) || (a->grad_dtype == DSC_BF16 && a->round_dtype != DSC_F32))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, name, "no sums of dtype %d that are rounded to dtype %d",
                        (int)a->grad_dtype, (int)a->round_dtype);
    if (a->master_from != NULL && (dsc_recipes[recipe].needs != DSC_NEEDS_NOTHING || a->state_dtype == DSC_U8 ||
                                   dsc_recipes[recipe].state_count > DSC_UPDATE_STATES_U8))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, name, "its states are updated in place only");
    DSC_ASSERT(a->first >= 0);
    DSC_ASSERT(a->state_dtype != DSC_U8 || (a->absmax[0] != NULL && a->absmax[1] != NULL) || a->count == 0);
    DSC_ASSERT((dsc_recipes[recipe].needs & DSC_NEEDS_ROW_COL_STATS) == 0 || (a->cols >= 1 && a->at >= 0));
    DSC_ASSERT(a->direction == NULL || dsc_recipes[recipe].needs != DSC_NEEDS_NOTHING);
    DSC_ASSERT(a->param_half == NULL || dsc_dtype_is_half(a->half_dtype));
    dsc_blocks_run(a, a->count, pool, &step, step_blocks);
    return DSC_OK;
}

#define VARIANT(id, isa)                                                                                               \
    static dsc_status run_##id##_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                  \
    {                                                                                                                  \
        return run(&dsc_update_##isa, DSC_RECIPE_##id, #id, args, pool, err);                                          \
    }
#define VARIANTS(isa)                                                                            \
    VARIANT(ADAMW, isa) VARIANT(SGD, isa) VARIANT(MOMENTUM, isa) VARIANT(ADAGRAD, isa) VARIANT(LION, isa) \
    VARIANT(LAMB, isa) VARIANT(MUON, isa) VARIANT(ADAFACTOR, isa) VARIANT(ADAFACTOR_FLAT, isa)   \
    VARIANT(ADAFACTOR_M, isa) VARIANT(ADAFACTOR_FLAT_M, isa)                                     \
    VARIANT(RMSPROP, isa) VARIANT(RMSPROP_M, isa) VARIANT(RMSPROP_C, isa) VARIANT(RMSPROP_CM, isa) \
    VARIANT(LARS, isa)                                                                           \
    static void table_##isa(dsc_kernel_table *table)                                             \
    {                                                                                            \
        table->fn[DSC_KERNEL_ADAMW] = run_ADAMW_##isa;                                           \
        table->fn[DSC_KERNEL_SGD] = run_SGD_##isa;                                               \
        table->fn[DSC_KERNEL_MOMENTUM] = run_MOMENTUM_##isa;                                     \
        table->fn[DSC_KERNEL_ADAGRAD] = run_ADAGRAD_##isa;                                       \
        table->fn[DSC_KERNEL_LION] = run_LION_##isa;                                             \
        table->fn[DSC_KERNEL_LAMB] = run_LAMB_##isa;                                             \
        table->fn[DSC_KERNEL_MUON] = run_MUON_##isa;                                             \
        table->fn[DSC_KERNEL_ADAFACTOR] = run_ADAFACTOR_##isa;                                   \
        table->fn[DSC_KERNEL_ADAFACTOR_FLAT] = run_ADAFACTOR_FLAT_##isa;                         \
        table->fn[DSC_KERNEL_ADAFACTOR_M] = run_ADAFACTOR_M_##isa;                               \
        table->fn[DSC_KERNEL_ADAFACTOR_FLAT_M] = run_ADAFACTOR_FLAT_M_##isa;                     \
        table->fn[DSC_KERNEL_RMSPROP] = run_RMSPROP_##isa;                                       \
        table->fn[DSC_KERNEL_RMSPROP_M] = run_RMSPROP_M_##isa;                                   \
        table->fn[DSC_KERNEL_RMSPROP_C] = run_RMSPROP_C_##isa;                                   \
        table->fn[DSC_KERNEL_RMSPROP_CM] = run_RMSPROP_CM_##isa;                                 \
        table->fn[DSC_KERNEL_LARS] = run_LARS_##isa;                                             \
    }
VARIANTS(ref)
VARIANTS(avx2)
VARIANTS(avx512)

void dsc_update_init(dsc_kernel_table *table, uint32_t caps)
{
    table_ref(table);
    if ((caps & DSC_CPU_AVX2) != 0)
        table_avx2(table);
    if ((caps & DSC_CPU_AVX512) != 0)
        table_avx512(table);
}
