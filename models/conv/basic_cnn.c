/* basic_cnn.c - the network of PyTorch's MNIST example, for pictures of any size: two convolutions, a pool, two linear
 * layers. SPDX-License-Identifier: Apache-2.0 */
#include "models/conv/conv.h"

static void fill(dsc_conv_config *config, const dsc_conv_architecture *architecture)
{
    dsc_conv_unit layer = { .kind = DSC_CONV_LAYER,
                            .conv = "conv1",
                            .bias = true,
                            .in = config->planes,
                            .out = 32,
                            .kernel = 3,
                            .stride = 1,
                            .activation = DSC_RELU };
    (void)architecture;
    config->plain_first = true;
    config->first = DSC_CONV_FIRST_IN;
    dsc_conv_add(config, &layer, "%s", "");
    layer.conv = "conv2", layer.in = 32, layer.out = 64, layer.pool = layer.pool_stride = 2;
    layer.dropout = config->drop < 0 ? 0.25 : config->drop;
    dsc_conv_add(config, &layer, "%s", "");
    config->classifier = (dsc_conv_classifier) { .name = { "fc1", "fc2" },
                                                 .columns = { 128 },
                                                 .count = 2,
                                                 .whole = true,
                                                 .activation = DSC_RELU,
                                                 .dropout = config->drop < 0 ? 0.5 : config->drop };
}

const dsc_conv_architecture dsc_basic_cnns[] = { { "basic_cnn", fill, 0, false }, { NULL, NULL, 0, false } };
