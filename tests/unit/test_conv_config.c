/* test_conv_config.c - networks for pictures by the names of torchvision, timm and transformers: names of tensors, new
 * classifiers, and configs that are refused.
 *
 * Names and numbers of tensors are those of timm 1.0.31 and transformers 5.24. tests/cli/test_convnets.sh compares
 * values.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/support/model_folder.h"

/* Parameters and buffers of that name. */
static int32_t count_named(const dsc_model *model, const char *name, int32_t *all)
{
    int32_t found = 0;
    *all = 0;
    for (int32_t m = 0; m < model->module_count; m++) {
        for (int32_t p = 0; p < model->modules[m].param_count; p++, ++*all)
            found += strcmp(model->modules[m].params[p].name, name) == 0;
        for (int32_t b = 0; b < model->modules[m].buffer_count; b++, ++*all)
            found += strcmp(model->modules[m].buffers[b].name, name) == 0;
    }
    return found;
}

static void names_of_tensors_are_those_of_the_folder(void **state)
{
    static const struct {
        const char *config;
        int32_t tensors;
        const char *name[6];
    } cases[] = {
        { "{\"architecture\": \"mobilenetv2_100\"}",
          314,
          { "conv_stem.weight", "bn1.running_var", "blocks.0.0.conv_pw.weight", "blocks.5.0.conv_pwl.weight",
            "blocks.6.0.bn3.bias", "classifier.bias" } },
        { "{\"architecture\": \"mobilenetv3_small_100\"}",
          244,
          { "blocks.0.0.se.conv_reduce.bias", "blocks.1.0.conv_pwl.weight", "blocks.4.2.conv_dw.weight",
            "blocks.5.0.conv.weight", "conv_head.weight", "classifier.weight" } },
        { "{\"architecture\": \"mobilenetv3_large_100\"}",
          312,
          { "blocks.0.0.conv_dw.weight", "blocks.3.3.bn3.weight", "blocks.5.2.se.conv_expand.weight",
            "blocks.6.0.bn1.running_mean", "conv_head.bias", "classifier.bias" } },
        { "{\"architecture\": \"efficientnet_b0\", \"pretrained_cfg\": {\"first_conv\": \"conv_stem\"}}",
          360,
          { "conv_stem.weight", "blocks.0.0.bn2.bias", "blocks.6.0.se.conv_reduce.weight", "conv_head.weight",
            "bn2.num_batches_tracked", "classifier.weight" } },
        { "{\"architecture\": \"efficientnet_b0\"}",
          360,
          { "features.0.0.weight", "features.1.0.block.0.0.weight", "features.7.0.block.2.fc1.bias",
            "features.8.1.running_var", "classifier.1.weight", "classifier.1.bias" } },
        { "{\"architecture\": \"vgg11_bn\", \"pretrained_cfg\": {\"classifier\": \"head.fc\"}}",
          62,
          { "features.0.weight", "features.26.running_mean", "pre_logits.fc1.weight", "pre_logits.fc2.bias",
            "head.fc.weight", "head.fc.bias" } },
        { "{\"architecture\": \"resnet18\", \"model_args\": {\"num_classes\": 1000, \"in_chans\": 3}}",
          122,
          { "conv1.weight", "bn1.bias", "layer2.0.downsample.1.running_var", "layer4.1.bn2.weight", "fc.weight",
            "fc.bias" } },
        { "{\"architecture\": \"cnn_lstm\", \"num_layers\": 2}",
          28,
          { "conv1.weight", "bn3.running_var", "lstm.weight_ih_l0", "lstm.weight_hh_l1", "lstm.bias_ih_l1",
            "fc.bias" } },
        { "{\"architecture\": \"vit_b_16\"}",
          152,
          { "class_token", "conv_proj.weight", "encoder.pos_embedding",
            "encoder.layers.encoder_layer_11.self_attention.in_proj_weight",
            "encoder.layers.encoder_layer_0.self_attention.in_proj_bias", "heads.head.weight" } },
        { "{\"model_type\": \"resnet\"}",
          320,
          { "resnet.embedder.embedder.convolution.weight", "resnet.embedder.embedder.normalization.running_mean",
            "resnet.encoder.stages.0.layers.0.shortcut.convolution.weight",
            "resnet.encoder.stages.3.layers.2.layer.2.normalization.bias", "classifier.1.weight",
            "classifier.1.bias" } },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        mf_write("net.json", cases[i].config);
        dsc_model *model = mf_open(mf_path("net.json"), NULL);
        int32_t all = 0;
        for (size_t n = 0; n < DSC_COUNT(cases[i].name); n++)
            if (count_named(model, cases[i].name[n], &all) != 1)
                fail_msg("%s has no tensor %s", cases[i].config, cases[i].name[n]);
        assert_int_equal(all, cases[i].tensors);
        dsc_model_close(&model);
    }
}

static void other_classes_and_sizes_are_in_the_config(void **state)
{
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.network = (struct dsc_network_options) { .height = 64, .width = 48, .classes = 5 };
    mf_write("net.json", "{\"architecture\": \"resnet18\", \"num_classes\": 9, \"label_names\": [\"a\"],"
                         " \"model_args\": {\"num_classes\": 9}, \"pretrained_cfg\": {\"num_classes\": 9}}");
    dsc_model *model = mf_open(mf_path("net.json"), &options);
    assert_int_equal(model->vocab_size, 5);
    assert_int_equal(model->batch[0].dim[1], 64);
    assert_int_equal(model->batch[0].dim[2], 48);
    assert_null(strstr(model->config_json, "label_names"));
    assert_null(strchr(model->config_json, '9'));
    mf_write("again.json", model->config_json);
    dsc_model_close(&model);
    model = mf_open(mf_path("again.json"), NULL);
    assert_int_equal(model->vocab_size, 5);
    assert_int_equal(model->batch[0].dim[2], 48);
    dsc_model_close(&model);
    mf_write("net.json", "{\"model_type\": \"resnet\", \"depths\": [1], \"hidden_sizes\": [16]}");
    model = mf_open(mf_path("net.json"), &options);
    assert_non_null(strstr(model->config_json, "LABEL_4"));
    assert_null(strstr(model->config_json, "LABEL_5"));
    dsc_model_close(&model);
}

/* Sizes and classes of the data change nothing of a folder. */
static void sizes_of_the_data_leave_a_folder_as_it_is(void **state)
{
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.network = (struct dsc_network_options) {
        .planes = 1, .height = 64, .width = 48, .classes = 5, .size_by_data = true, .classes_by_data = true
    };
    mf_write("net.json", "{\"architecture\": \"resnet18\", \"num_classes\": 9}");
    dsc_model *model = mf_open(mf_path("net.json"), &options);
    assert_int_equal(model->vocab_size, 9);
    assert_int_equal(model->batch[0].dim[0], 3);
    assert_int_equal(model->batch[0].dim[1], 224);
    dsc_model_close(&model);
}

static void configs_are_refused_by_name(void **state)
{
    static const struct {
        const char *config;
        dsc_status status;
        const char *says;
    } cases[] = {
        { "\"model_type\": \"resnet\", \"depths\": []", DSC_ERR_UNSUPPORTED, "\"depths\"" },
        { "\"model_type\": \"resnet\", \"depths\": [40, 40]", DSC_ERR_UNSUPPORTED, "at most 63" },
        { "\"model_type\": \"resnet\", \"depths\": [1, 1]", DSC_ERR_INPUT, "\"hidden_sizes\"" },
        { "\"model_type\": \"resnet\", \"hidden_sizes\": [2, 2, 2, 2]", DSC_ERR_INPUT, "4 or more" },
        { "\"model_type\": \"resnet\", \"hidden_act\": \"gelu\"", DSC_ERR_UNSUPPORTED, "hidden_act" },
        { "\"model_type\": \"resnet\", \"layer_type\": \"wide\"", DSC_ERR_UNSUPPORTED, "layer_type" },
        { "\"architecture\": \"vit_b_16\", \"image_size\": 28", DSC_ERR_INPUT, "multiples of its patches" },
        { "\"architecture\": \"vit_b_16\", \"num_classes\": 1", DSC_ERR_UNSUPPORTED, "num_classes" },
        { "\"architecture\": \"cnn_lstm\", \"frames\": 5", DSC_ERR_INPUT, "dsc.image_frames" },
        { "\"architecture\": \"cnn_lstm\", \"frames\": 16, \"image_size\": 32", DSC_ERR_INPUT, "frames of 2 by 32" },
        { "\"architecture\": \"cnn_lstm\", \"num_layers\": 9", DSC_ERR_INPUT, "num_layers" },
        { "\"architecture\": \"vit_b_16\", \"frames\": 4", DSC_ERR_UNSUPPORTED, "frames" },
        { "\"architecture\": \"resnet18\", \"frames\": 4", DSC_ERR_UNSUPPORTED, "frames" },
        { "\"architecture\": \"resnet18\", \"model_args\": {\"in_chans\": 4}", DSC_ERR_UNSUPPORTED, "in_chans" },
        { "\"architecture\": \"resnet18\", \"model_args\": {\"width\": 4}", DSC_ERR_UNSUPPORTED, "width" },
    };
    char text[300];
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        snprintf(text, sizeof text, "{%s}", cases[i].config);
        mf_write("net.json", text);
        mf_expect_refusal(mf_path("net.json"), NULL, cases[i].status, cases[i].says);
    }
}

static void classes_and_sizes_that_no_model_has_are_refused(void **state)
{
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.network.classes = 1;
    mf_write("net.json", "{\"architecture\": \"resnet18\"}");
    mf_expect_refusal(mf_path("net.json"), &options, DSC_ERR_INPUT, "expected 2 to");
    options.network = (struct dsc_network_options) { .planes = 1 };
    mf_expect_refusal(mf_path("net.json"), &options, DSC_ERR_INPUT, "a folder says its planes itself");
    options.network = (struct dsc_network_options) { .frames = 2 };
    mf_expect_refusal(mf_path("net.json"), &options, DSC_ERR_INPUT, "dsc.image_frames");
    mf_expect_refusal("bert-base", &options, DSC_ERR_INPUT, "dsc.image_frames");
    mf_expect_refusal("resnet18", &options, DSC_ERR_UNSUPPORTED, "frames");
    options.network = (struct dsc_network_options) { .classes = 4 };
    mf_expect_refusal("bert-base", &options, DSC_ERR_INPUT, "dsc.image_classes");
    options.network = (struct dsc_network_options) { .height = 32, .width = 32 };
    mf_write("net.json", "{\"model_type\": \"vit\"}");
    mf_expect_refusal(mf_path("net.json"), &options, DSC_ERR_INPUT, "dsc.image_size");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_tensors_are_those_of_the_folder),
        cmocka_unit_test(other_classes_and_sizes_are_in_the_config),
        cmocka_unit_test(sizes_of_the_data_leave_a_folder_as_it_is),
        cmocka_unit_test(configs_are_refused_by_name),
        cmocka_unit_test(classes_and_sizes_that_no_model_has_are_refused),
    };
    return cmocka_run_group_tests(tests, mf_setup, mf_teardown);
}
