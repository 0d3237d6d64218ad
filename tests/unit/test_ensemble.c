/* test_ensemble.c - ensembles: what is carried from module to module, names of tensors, and configs that are refused.
 *
 * The mean of two equal networks is one of them, without rounding. So an ensemble of these has the bits of one, and
 * halves of its gradients. tests/cli/test_convnets.sh compares with PyTorch. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/model_folder.h"
#include "tests/support/modelrun.h"

enum { SIDE = 12, CLASSES = 3, BATCH = 2, MODULES = 3 /* modules of a basic_cnn */ };

static dsc_model *open_network(const char *architecture)
{
    char text[300];
    snprintf(text, sizeof text,
             "{%s, \"num_classes\": %d, \"num_channels\": 1, \"image_size\": %d, \"drop_rate\": 0.0}", architecture,
             CLASSES, SIDE);
    mf_write("net.json", text);
    return mf_open(mf_path("net.json"), NULL);
}

static float noise(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (float)((double)(*state >> 11) / 9007199254740992.0 - 0.5);
}

/* Values follow from `seed` and the parameter's number in its network. */
static void set_params(modelrun *run, const dsc_model *model, int32_t first_module, uint64_t seed)
{
    for (int32_t m = 0; m < MODULES; m++)
        for (int32_t p = 0; p < model->modules[first_module + m].param_count; p++) {
            const int64_t count = modelrun_elements(&model->modules[first_module + m].params[p]);
            float *values = malloc((size_t)count * sizeof *values);
            assert_non_null(values);
            uint64_t state = 1000 * seed + 10 * (uint64_t)m + (uint64_t)p;
            for (int64_t i = 0; i < count; i++)
                values[i] = 0.2f * noise(&state);
            modelrun_set_param(run, first_module + m, p, values);
            free(values);
        }
}

static void set_pictures(modelrun *run)
{
    float pixels[BATCH * SIDE * SIDE];
    const int32_t classes[BATCH] = { 2, 0 };
    uint64_t state = 7;
    for (size_t i = 0; i < DSC_COUNT(pixels); i++)
        pixels[i] = 2 * noise(&state);
    modelrun_set_tokens(run, pixels, classes);
}

static modelrun *open_run(const dsc_model *model, int members, const uint64_t *seed, modelrun_options options)
{
    options.batch = BATCH, options.threads = 1, options.loss_scale = 1;
    modelrun *run = modelrun_open(model, &options);
    for (int k = 0; k < members; k++)
        set_params(run, model, k * MODULES, seed[k]);
    set_pictures(run);
    return run;
}

static void two_equal_members_are_one_network(void **state)
{
    static const uint64_t seed[] = { 5, 5 };
    dsc_model *one = open_network("\"architecture\": \"basic_cnn\"");
    modelrun *alone = open_run(one, 1, seed, (modelrun_options) { .dtype = DSC_F32 });
    const double wanted = modelrun_step(alone);
    dsc_model *two = open_network("\"architecture\": \"ensemble\", \"members\": [\"basic_cnn\", \"basic_cnn\"]");
    assert_int_equal(one->module_count, MODULES);
    assert_int_equal(two->module_count, 2 * MODULES);
    for (int in_place = 0; in_place < 2; in_place++) {
        modelrun *run = open_run(two, 2, seed, (modelrun_options) { .dtype = DSC_F32, .in_place = in_place });
        assert_true(modelrun_step(run) == wanted);
        for (int32_t m = 0; m < 2 * MODULES; m++)
            for (int32_t p = 0; p < two->modules[m].param_count; p++) {
                const float *got = modelrun_grad(run, m, p), *whole = modelrun_grad(alone, m % MODULES, p);
                for (int64_t i = 0; i < modelrun_elements(&two->modules[m].params[p]); i++)
                    if (got[i] != 0.5f * whole[i])
                        fail_msg("%s, element %d: gradient %g, expected half of %g", two->modules[m].params[p].name,
                                 (int)i, (double)got[i], (double)whole[i]);
            }
        modelrun_close(run);
    }
    modelrun_close(alone);
    dsc_model_close(&one);
    dsc_model_close(&two);
}

/* Every memory of what is carried: in place, computed again, kept, rebuilt. */
static void all_ways_of_memory_have_the_same_bits(void **state)
{
    static const uint64_t seed[] = { 1, 2, 3 };
    static const modelrun_options modes[] = { { .keep = true },
                                              { .in_place = true },
                                              { .recompute = true },
                                              { .recompute = true, .in_place = true },
                                              { .rebuild = true } };
    dsc_model *model =
        open_network("\"architecture\": \"ensemble\", \"members\": [\"basic_cnn\", \"basic_cnn\", \"basic_cnn\"]");
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const dsc_dtype dtype = bf16 != 0 ? DSC_BF16 : DSC_F32;
        modelrun *plain = open_run(model, 3, seed, (modelrun_options) { .dtype = dtype });
        const double wanted = modelrun_step(plain);
        for (size_t i = 0; i < DSC_COUNT(modes); i++) {
            modelrun_options options = modes[i];
            options.dtype = dtype;
            modelrun *run = open_run(model, 3, seed, options);
            assert_true(modelrun_step(run) == wanted);
            for (int32_t m = 0; m < model->module_count; m++)
                for (int32_t p = 0; p < model->modules[m].param_count; p++)
                    assert_memory_equal(modelrun_grad(run, m, p), modelrun_grad(plain, m, p),
                                        (size_t)modelrun_elements(&model->modules[m].params[p]) * sizeof(float));
            modelrun_close(run);
        }
        modelrun_close(plain);
    }
    dsc_model_close(&model);
}

static void members_have_the_names_of_torchvision(void **state)
{
    static const char *const members[] = { "resnet18", "vgg11_bn" };
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.network.members = members, options.network.member_count = 2;
    options.network.height = options.network.width = 32;
    dsc_model *model = mf_open("ensemble", &options);
    assert_string_equal(model->modules[0].params[0].name, "members.0.conv1.weight");
    assert_string_equal(model->modules[0].buffers[0].name, "members.0.bn1.running_mean");
    assert_string_equal(model->modules[9].params[0].name, "members.0.fc.weight");
    assert_string_equal(model->modules[10].params[0].name, "members.1.features.0.weight");
    assert_string_equal(model->modules[model->module_count - 1].params[5].name, "members.1.classifier.6.bias");
    mf_write("again.json", model->config_json);
    dsc_model *again = mf_open(mf_path("again.json"), NULL);
    assert_int_equal(again->module_count, model->module_count);
    assert_int_equal(again->batch[0].dim[1], 32);
    dsc_model_close(&again);
    dsc_model_close(&model);
    model = mf_open("ensemble", NULL);
    assert_non_null(strstr(model->config_json, "\"members\": [\"mobilenet_v2\", \"efficientnet_b0\", \"resnet18\"]"));
    dsc_model_close(&model);
}

static void configs_are_refused_by_name(void **state)
{
    static const char *const unknown[] = { "resnet18", "resnet\": 19" };
    static const struct {
        const char *config;
        dsc_status status;
        const char *says;
    } cases[] = {
        { "\"architecture\": \"ensemble\"", DSC_ERR_INPUT, "\"members\"" },
        { "\"architecture\": \"ensemble\", \"members\": []", DSC_ERR_INPUT, "\"members\"" },
        { "\"architecture\": \"ensemble\", \"members\": [\"vit_b_16\"]", DSC_ERR_UNSUPPORTED, "\"vit_b_16\"" },
        { "\"architecture\": \"ensemble\", \"members\": [\"ensemble\"]", DSC_ERR_UNSUPPORTED, "\"ensemble\"" },
        { "\"architecture\": \"ensemble\", \"members\": [18]", DSC_ERR_UNSUPPORTED, "resnet18" },
        { "\"architecture\": \"ensemble\", \"image_size\": 16, \"members\": [\"resnet18\", \"vgg11\"]", DSC_ERR_INPUT,
          "too small for vgg11" },
        { "\"architecture\": \"ensemble\", \"members\": [\"resnet18\"], \"num_classes\": 1", DSC_ERR_UNSUPPORTED,
          "num_classes" },
    };
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    char text[300];
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        snprintf(text, sizeof text, "{%s}", cases[i].config);
        mf_write("net.json", text);
        mf_expect_refusal(mf_path("net.json"), NULL, cases[i].status, cases[i].says);
    }
    options.network.members = unknown, options.network.member_count = 1;
    mf_expect_refusal("resnet18", &options, DSC_ERR_INPUT, "dsc.ensemble");
    mf_expect_refusal("bert-base", &options, DSC_ERR_INPUT, "dsc.ensemble");
    options.network.member_count = 2;
    mf_expect_refusal("ensemble", &options, DSC_ERR_INPUT, "resnet\": 19");
    options.network.member_count = 9;
    mf_expect_refusal("ensemble", &options, DSC_ERR_INPUT, "9 members");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_equal_members_are_one_network),
        cmocka_unit_test(all_ways_of_memory_have_the_same_bits),
        cmocka_unit_test(members_have_the_names_of_torchvision),
        cmocka_unit_test(configs_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, mf_setup, mf_teardown);
}
