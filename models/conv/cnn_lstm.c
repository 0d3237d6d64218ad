/* cnn_lstm.c - an LSTM over the frames of a picture, which lie below one another. Three convolutions run over each
 * frame, and the LSTM reads the means of the last maps. SPDX-License-Identifier: Apache-2.0 */
#include "models/conv/conv.h"

enum { FRAMES = 4, FRAMES_MAX = 1 << 14, HIDDEN = 256, HIDDEN_MAX = 1 << 16 };

dsc_status dsc_conv_read_sequence(dsc_hf_config *reader, dsc_conv_config *config)
{
    dsc_conv_classifier *c = &config->classifier;
    DSC_TRY(dsc_hf_int(reader, "frames", FRAMES_MAX, FRAMES, &config->frames));
    DSC_TRY(dsc_hf_int(reader, "hidden_size", HIDDEN_MAX, HIDDEN, &c->hidden));
    DSC_TRY(dsc_hf_int(reader, "num_layers", DSC_PROGRAM_LSTM_LAYERS, 1, &c->lstm_layers));
    if (config->height % config->frames != 0)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "a picture has %lld rows, which are not a multiple of %lld frames; give other \"frames\" "
                             "(dsc.image_frames) or another \"image_size\"",
                             (long long)config->height, (long long)config->frames);
    return DSC_OK;
}

static void fill(dsc_conv_config *config, const dsc_conv_architecture *architecture)
{
    static const char *const names[][2] = { { "conv1", "bn1" }, { "conv2", "bn2" }, { "conv3", "bn3" } };
    int64_t in = config->planes;
    (void)architecture;
    config->eps = 1e-5, config->momentum = 0.1;
    config->plain_first = true;
    config->first = DSC_CONV_FIRST_IN;
    for (int i = 0; i < 3; i++) {
        const dsc_conv_unit layer = { .kind = DSC_CONV_LAYER,
                                      .conv = names[i][0],
                                      .norm = names[i][1],
                                      .in = in,
                                      .out = (int64_t)32 << i,
                                      .kernel = 3,
                                      .stride = 1,
                                      .padding = 1,
                                      .activation = DSC_RELU,
                                      .pool = i < 2 ? 2 : 0,
                                      .pool_stride = 2 };
        in = dsc_conv_add(config, &layer, "%s", "")->out;
    }
    config->classifier = (dsc_conv_classifier) { .name = { "fc" },
                                                 .count = 1,
                                                 .lstm = "lstm",
                                                 .hidden = config->classifier.hidden,
                                                 .lstm_layers = config->classifier.lstm_layers,
                                                 .dropout = config->drop < 0 ? 0 : config->drop };
}

const dsc_conv_architecture dsc_cnn_lstms[] = { { "cnn_lstm", fill, 0, false }, { NULL, NULL, 0, false } };
