/* test_model_table.c - a user's own table of modules (dsc/model.h): each member that makes no sense is
 * refused by name. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include <dsc/model.h>

#include "base/base.h"

static dsc_status fake_plan(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                            dsc_module_plan *out, dsc_error *err)
{
    return DSC_OK;
}

static dsc_status fake_run(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    return DSC_OK;
}

typedef struct table {
    dsc_model model;
    dsc_module modules[2];
    dsc_param_spec params[3];
    dsc_batch_spec batch;
} table;

static void fill_table(table *t)
{
    *t = (table){
        .params = { { .name = "a",
                      .dim_count = 2,
                      .dim = { 3, 4 },
                      .init = DSC_INIT_NORMAL,
                      .init_std = 1,
                      .trainable = true,
                      .shared_module = -1,
                      .shared_param = -1 },
                    { .name = "b",
                      .dim_count = 1,
                      .dim = { 4 },
                      .trainable = true,
                      .shared_module = -1,
                      .shared_param = -1 },
                    { .name = "a",
                      .dim_count = 2,
                      .dim = { 3, 4 },
                      .trainable = true,
                      .shared_module = 0,
                      .shared_param = 0 } },
        .batch = { .name = "x", .dtype = DSC_F32, .dim_count = 1, .dim = { 3 } },
    };
    t->modules[0] = (dsc_module){ .struct_bytes = sizeof(dsc_module),
                                  .name = "one",
                                  .param_count = 2,
                                  .params = t->params,
                                  .plan = fake_plan,
                                  .forward = fake_run,
                                  .backward = fake_run };
    t->modules[1] = (dsc_module){ .struct_bytes = sizeof(dsc_module),
                                  .flags = DSC_MODULE_LOSS,
                                  .name = "two",
                                  .param_count = 1,
                                  .params = t->params + 2,
                                  .plan = fake_plan,
                                  .forward = fake_run };
    t->model = (dsc_model){ .struct_bytes = sizeof(dsc_model), .name = "mine", .module_count = 2, .modules = t->modules,
                            .batch_count = 1, .batch = &t->batch, .losses_per_sample = 1 };
}

#define EXPECT_CHECK(change, what)                                                                       \
    do {                                                                                                 \
        table t;                                                                                         \
        dsc_error err = DSC_ERROR_INIT;                                                                  \
        fill_table(&t);                                                                                  \
        assert_int_equal(dsc_model_check(&t.model, &err), DSC_OK);                                       \
        change;                                                                                          \
        assert_int_equal(dsc_model_check(&t.model, &err), DSC_ERR_STATE);                                \
        if (strstr(err.message, (what)) == NULL)                                                         \
            fail_msg(#change ": expected \"%s\", got \"%s\"", (what), err.message);                      \
    } while (0)

static void checks_tables(void **state)
{
    EXPECT_CHECK(t.model.struct_bytes = 8, "struct_bytes");
    EXPECT_CHECK(t.model.name = NULL, "name");
    EXPECT_CHECK(t.model.name = "a\nb", "name");
    EXPECT_CHECK(t.model.module_count = 0, "modules");
    EXPECT_CHECK(t.model.module_count = INT32_MAX, "modules");
    EXPECT_CHECK(t.model.modules = NULL, "modules");
    EXPECT_CHECK(t.model.module_count = 1, "last module must have DSC_MODULE_LOSS");
    EXPECT_CHECK(t.model.batch_count = 0, "batch tensors");
    EXPECT_CHECK(t.batch.dim[0] = 0, "batch tensor 0");
    EXPECT_CHECK(t.batch.dtype = DSC_DTYPE_COUNT, "batch tensor 0");
    EXPECT_CHECK(t.model.losses_per_sample = 0, "losses_per_sample");
    EXPECT_CHECK(t.model.vocab_size = -1, "vocab_size");
    EXPECT_CHECK(t.modules[0].struct_bytes = 4, "struct_bytes");
    EXPECT_CHECK(t.modules[0].name = "", "name");
    EXPECT_CHECK(t.modules[0].flags = DSC_MODULE_LOSS, "only the last");
    EXPECT_CHECK(t.modules[0].flags = 64, "flags");
    EXPECT_CHECK(t.modules[1].flags = 0, "must have DSC_MODULE_LOSS");
    EXPECT_CHECK(t.modules[0].plan = NULL, "are needed");
    EXPECT_CHECK(t.modules[0].forward = NULL, "are needed");
    EXPECT_CHECK(t.modules[0].backward = NULL, "are needed");
    EXPECT_CHECK(t.modules[0].param_count = -1, "parameters");
    EXPECT_CHECK(t.modules[0].params = NULL, "parameters");
    EXPECT_CHECK(t.params[0].name = NULL, "name");
    EXPECT_CHECK(t.params[1].name = "a", "two parameters");
    EXPECT_CHECK(t.params[0].dim_count = 0, "possible size");
    EXPECT_CHECK(t.params[0].dim_count = DSC_DIMS_MAX + 1, "possible size");
    EXPECT_CHECK(t.params[0].dim[1] = -4, "possible size");
    EXPECT_CHECK(t.params[0].dim[1] = INT64_MAX / 4, "possible size");
    EXPECT_CHECK(t.params[0].init = (dsc_init_kind)9, "initialisation");
    EXPECT_CHECK(t.params[0].init_std = NAN, "init_std");
    EXPECT_CHECK(t.params[1].init = DSC_INIT_ROW_NORMS, "norms of parameter -1 of module \"one\", which has 2");
    EXPECT_CHECK((t.params[1].init = DSC_INIT_ROW_NORMS, t.params[1].shared_param = 2), "norms of parameter 2");
    EXPECT_CHECK((t.params[1].init = DSC_INIT_ROW_NORMS, t.params[1].shared_param = 0), "cannot be norms of \"a\"");
    EXPECT_CHECK((t.params[1].init = DSC_INIT_COLUMN_NORMS, t.params[1].shared_param = 1), "cannot be norms of \"b\"");
    EXPECT_CHECK((t.params[1].init = DSC_INIT_COLUMN_NORMS, t.params[1].shared_param = 0, t.params[0].dim[1] = 5,
                  t.params[2].dim[1] = 5),
                 "cannot be norms of \"a\"");
    EXPECT_CHECK(t.params[2].shared_module = 1, "before");
    EXPECT_CHECK(t.params[2].shared_param = 2, "which has 2");
    EXPECT_CHECK(t.params[2].shared_param = -1, "which has 2");
    EXPECT_CHECK(t.params[2].shared_param = 1, "shape");
    EXPECT_CHECK(t.params[2].trainable = false, "trainable");
}

/* Targets that may be masked are one int32 for each loss item. */
static void checks_masked_targets(void **state)
{
    const uint32_t flags = DSC_MODULE_LOSS | DSC_MODULE_MASKS_TARGETS;
    static const dsc_batch_spec good = { .name = DSC_BATCH_TARGETS, .dtype = DSC_I32, .dim_count = 1, .dim = { 3 } };
    (void)state;
    EXPECT_CHECK(t.modules[0].flags = DSC_MODULE_MASKS_TARGETS, "only the last module may have");
    EXPECT_CHECK((t.modules[1].flags = flags, t.model.vocab_size = 5), "needs a vocabulary and an int32 batch tensor");
    EXPECT_CHECK((t.modules[1].flags = flags, t.model.vocab_size = 5, t.batch = good), "losses_per_sample elements");
    EXPECT_CHECK((t.modules[1].flags = flags, t.model.losses_per_sample = 3, t.batch = good), "needs a vocabulary");
    EXPECT_CHECK((t.modules[1].flags = flags, t.model.vocab_size = 5, t.model.losses_per_sample = 3, t.batch = good,
                  t.batch.dtype = DSC_F32),
                 "int32");
    table t;
    dsc_error err = DSC_ERROR_INIT;
    fill_table(&t);
    t.modules[1].flags = flags;
    t.model.vocab_size = 5;
    t.model.losses_per_sample = 3;
    t.batch = good;
    assert_int_equal(dsc_model_check(&t.model, &err), DSC_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checks_tables),
        cmocka_unit_test(checks_masked_targets),
    };
    return cmocka_run_group_tests_name("tables of modules", tests, NULL, NULL);
}
