/* test_named_models.c - models that a name opens: the published numbers of parameters, no warnings, and plans.
 *
 * The numbers are those of the makers' safetensors files on Hugging Face, and also what transformers 5.24 counts for
 * the same config.json. A table that head and embedding share counts once; masked models have their head. Networks for
 * pictures have the numbers of torchvision 0.29.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "models/named_models.h"
#include "tests/support/model_folder.h"
#include "tests/support/sanitizer.h"

static const struct {
    const char *name;
    int64_t params;
} published[] = {
    { "llama-2-13b", INT64_C(13015864320) },
    { "llama-2-70b", INT64_C(68976648192) },
    { "llama-3-8b", INT64_C(8030261248) },
    { "llama-3.1-70b", INT64_C(70553706496) },
    { "llama-3.2-3b", INT64_C(3212749824) },
    { "tinyllama-1.1b", INT64_C(1100048384) },
    { "smollm2-135m", INT64_C(134515008) },
    { "smollm2-360m", INT64_C(361821120) },
    { "smollm2-1.7b", INT64_C(1711376384) },
    { "mistral-nemo-12b", INT64_C(12247782400) },
    { "mistral-small-24b", INT64_C(23572403200) },
    { "qwen2.5-1.5b", INT64_C(1543714304) },
    { "qwen2.5-3b", INT64_C(3085938688) },
    { "qwen2.5-7b", INT64_C(7615616512) },
    { "qwen2.5-14b", INT64_C(14770033664) },
    { "qwen2.5-32b", INT64_C(32763876352) },
    { "qwen2.5-72b", INT64_C(72706203648) },
    { "qwen3-1.7b", INT64_C(1720574976) },
    { "qwen3-4b", INT64_C(4022468096) },
    { "qwen3-8b", INT64_C(8190735360) },
    { "qwen3-14b", INT64_C(14768307200) },
    { "qwen3-32b", INT64_C(32762123264) },
    { "gemma-2b", INT64_C(2506172416) },
    { "gemma-7b", INT64_C(8537680896) },
    { "gemma-2-2b", INT64_C(2614341888) },
    { "gemma-2-9b", INT64_C(9241705984) },
    { "gemma-2-27b", INT64_C(27227128320) },
    { "gemma-3-270m", INT64_C(268098176) },
    { "gemma-3-1b", INT64_C(999885952) },
    { "phi-1.5", INT64_C(1418270720) },
    { "phi-2", INT64_C(2779683840) },
    { "phi-3-mini", INT64_C(3821079552) },
    { "phi-3-medium", INT64_C(13960238080) },
    { "phi-4", INT64_C(14659507200) },
    { "smollm3-3b", INT64_C(3075098624) },
    { "granite-3.1-2b", INT64_C(2533531648) },
    { "granite-3.1-8b", INT64_C(8170848256) },
    { "olmo-2-1b", INT64_C(1484916736) },
    { "olmo-2-7b", INT64_C(7298617344) },
    { "olmo-2-13b", INT64_C(13716198400) },
    { "olmo-2-32b", INT64_C(32234279936) },
    { "stablelm-3b", INT64_C(2795443200) },
    { "stablelm-2-1.6b", INT64_C(1644515328) },
    { "starcoder2-3b", INT64_C(3030371328) },
    { "starcoder2-7b", INT64_C(7173923840) },
    { "starcoder2-15b", INT64_C(15957889024) },
    { "glm-4-9b", INT64_C(9399951360) },
    { "glm-4-9b-0414", INT64_C(9400279040) },
    { "command-r7b", INT64_C(8028033024) },
    { "seed-oss-36b", INT64_C(36151104512) },
    { "ernie-4.5-0.3b", INT64_C(360748032) },
    { "pythia-70m", INT64_C(70426624) },
    { "pythia-160m", INT64_C(162322944) },
    { "pythia-410m", INT64_C(405334016) },
    { "pythia-1b", INT64_C(1011781632) },
    { "pythia-1.4b", INT64_C(1414647808) },
    { "pythia-2.8b", INT64_C(2775208960) },
    { "pythia-6.9b", INT64_C(6857302016) },
    { "pythia-12b", INT64_C(11846072320) },
    { "opt-125m", INT64_C(125239296) },
    { "opt-1.3b", INT64_C(1315758080) },
    { "opt-2.7b", INT64_C(2651596800) },
    { "opt-6.7b", INT64_C(6658473984) },
    { "bloom-560m", INT64_C(559214592) },
    { "bloom-1b1", INT64_C(1065314304) },
    { "bloom-3b", INT64_C(3002557440) },
    { "bloom-7b1", INT64_C(7069016064) },
    { "falcon-7b", INT64_C(6921720704) },
    { "falcon-40b", INT64_C(41303293952) },
    { "gptj-6b", INT64_C(6050882784) },
    { "mpt-7b", INT64_C(6649286656) },
    { "mixtral-8x7b", INT64_C(46702792704) },
    { "mixtral-8x22b", INT64_C(140620634112) },
    { "olmoe-1b-7b", INT64_C(6919161856) },
    { "qwen3-30b-a3b", INT64_C(30532122624) },
    { "qwen3-235b-a22b", INT64_C(235093634560) },
    { "bert-base", INT64_C(109514298) },
    { "bert-large", INT64_C(335174458) },
    { "bert-base-multilingual", INT64_C(177974523) },
    { "distilbert-base", INT64_C(66985530) },
    { "roberta-base", INT64_C(124697433) },
    { "roberta-large", INT64_C(355412057) },
    { "xlm-roberta-base", INT64_C(278295186) },
    { "xlm-roberta-large", INT64_C(560142482) },
    { "modernbert-base", INT64_C(149655232) },
    { "modernbert-large", INT64_C(395881664) },
    { "basic_cnn", INT64_C(1199882) },
    { "cnn_lstm", INT64_C(745736) },
    { "cnn-lstm", INT64_C(745736) },
    { "resnet18", INT64_C(11689512) },
    { "resnet34", INT64_C(21797672) },
    { "resnet50", INT64_C(25557032) },
    { "resnet101", INT64_C(44549160) },
    { "resnet152", INT64_C(60192808) },
    { "resnet18_cifar", INT64_C(11681832) },
    { "resnet", INT64_C(25557032) },
    { "vgg11", INT64_C(132863336) },
    { "vgg13", INT64_C(133047848) },
    { "vgg16", INT64_C(138357544) },
    { "vgg19", INT64_C(143667240) },
    { "vgg11_bn", INT64_C(132868840) },
    { "vgg13_bn", INT64_C(133053736) },
    { "vgg16_bn", INT64_C(138365992) },
    { "vgg19_bn", INT64_C(143678248) },
    { "vgg", INT64_C(138357544) },
    { "mobilenet_v2", INT64_C(3504872) },
    { "mobilenet_v3_small", INT64_C(2542856) },
    { "mobilenet_v3_large", INT64_C(5483032) },
    { "mobilenet", INT64_C(3504872) },
    { "efficientnet_b0", INT64_C(5288548) },
    { "ensemble", INT64_C(3504872) + INT64_C(5288548) + INT64_C(11689512) }, /* of the three */
    { "efficientnet_b1", INT64_C(7794184) },
    { "efficientnet_b2", INT64_C(9109994) },
    { "efficientnet_b3", INT64_C(12233232) },
    { "efficientnet_b4", INT64_C(19341616) },
    { "efficientnet_b5", INT64_C(30389784) },
    { "efficientnet_b6", INT64_C(43040704) },
    { "efficientnet_b7", INT64_C(66347960) },
    { "efficientnet", INT64_C(5288548) },
    { "vit_b_16", INT64_C(86567656) },
    { "vit_b_32", INT64_C(88224232) },
    { "vit_l_16", INT64_C(304326632) },
    { "vit_l_32", INT64_C(306535400) },
    { "vit_h_14", INT64_C(632045800) },
};

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void numbers_of_parameters_are_the_published_ones(void **state)
{
    (void)state;
    size_t count = 0;
    for (; dsc_named_model_at((int32_t)count) != NULL; count++) {
        const char *name = dsc_named_model_at((int32_t)count)->name;
        size_t at = 0;
        while (at < DSC_COUNT(published) && strcmp(published[at].name, name) != 0)
            at++;
        if (at == DSC_COUNT(published))
            fail_msg("%s has no published number here", name);
        const double began = seconds();
        dsc_model *model = mf_open(name, NULL);
        assert_string_equal(model->name, name);
        if (mf_elements(model) != published[at].params)
            fail_msg("%s has %lld parameters, published are %lld", name, (long long)mf_elements(model),
                     (long long)published[at].params);
        if (model->warnings != NULL)
            fail_msg("%s: %s", name, model->warnings);
        if (strcmp(model->batch[0].name, DSC_BATCH_PIXELS) == 0)
            assert_int_equal(model->seq_length, 0);
        else
            assert_in_range(model->seq_length, 512, DSC_NAMED_SEQUENCE);
        dsc_model_close(&model);
        assert_true(seconds() - began < test_patience() * 1.0);
    }
    assert_int_equal(count, DSC_COUNT(published));
    assert_null(dsc_named_model_at(-1));
}

static void names_differ_and_are_listed(void **state)
{
    (void)state;
    int32_t count = 0;
    for (const char *name; (name = dsc_model_builtin_name(count)) != NULL; count++)
        for (int32_t i = 0; i < count; i++)
            assert_string_not_equal(name, dsc_model_builtin_name(i));
    assert_true(count > (int32_t)DSC_COUNT(published));
}

/* Texts of config.json have a head for labels as folders do; the older built-in names refuse one. */
static void a_name_may_have_a_head_for_labels(void **state)
{
    (void)state;
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *model = NULL;
    options.labels.wanted = true;
    options.labels.kind = DSC_LABELS_CLASS;
    options.labels.count = 3;
    if (dsc_model_open(&model, "bert-base", &options, &err) != DSC_OK)
        fail_msg("%s", err.message);
    assert_int_equal(model->labels.count, 3);
    dsc_model_close(&model);
    assert_int_equal(dsc_model_open(&model, "gpt2-nano", &options, &err), DSC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "a head for labels is not built"));
}

/* A network takes the sizes that are asked for, and says them in its config.json; other models refuse them. */
static void a_network_has_the_sizes_that_are_asked_for(void **state)
{
    (void)state;
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *model = NULL;
    options.network = (struct dsc_network_options) { .planes = 1, .height = 40, .width = 36, .classes = 11 };
    if (dsc_model_open(&model, "resnet18", &options, &err) != DSC_OK)
        fail_msg("%s", err.message);
    assert_int_equal(model->batch[0].dim[0], 1);
    assert_int_equal(model->batch[0].dim[1], 40);
    assert_int_equal(model->batch[0].dim[2], 36);
    assert_int_equal(model->vocab_size, 11);
    assert_string_equal(model->config_json, "{\"architecture\": \"resnet18\", \"num_channels\": 1, "
                                            "\"image_size\": [40, 36], \"num_classes\": 11}");
    dsc_model_close(&model);
    options.network.frames = 8;
    if (dsc_model_open(&model, "cnn_lstm", &options, &err) != DSC_OK)
        fail_msg("%s", err.message);
    assert_non_null(strstr(model->config_json, "\"frames\": 8"));
    dsc_model_close(&model);
    options.network.frames = 0;
    const char *const others[] = { "bert-base", "gpt2-nano" };
    for (size_t i = 0; i < DSC_COUNT(others); i++) {
        assert_int_equal(dsc_model_open(&model, others[i], &options, &err), DSC_ERR_INPUT);
        assert_non_null(strstr(err.message, "dsc.image_size"));
    }
    options.network.size_by_data = options.network.classes_by_data = true;
    assert_int_equal(dsc_model_open(&model, "gpt2-nano", &options, &err), DSC_OK);
    dsc_model_close(&model);
    options.network = (struct dsc_network_options) { .height = 4, .width = 4 };
    assert_int_equal(dsc_model_open(&model, "vgg11", &options, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "too small"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_parameters_are_the_published_ones),
        cmocka_unit_test(names_differ_and_are_listed),
        cmocka_unit_test(a_name_may_have_a_head_for_labels),
        cmocka_unit_test(a_network_has_the_sizes_that_are_asked_for),
    };
    return cmocka_run_group_tests(tests, mf_setup, mf_teardown);
}
