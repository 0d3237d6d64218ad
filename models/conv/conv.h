/* conv.h - convolutional networks that classify pictures, as torchvision has them.
 *
 * A network is a stem (the first module), units (blocks), and a classifier (the last module). The file of a family
 * fills a table of units from the architecture's name when config.json is read; conv.c emits each kind of unit. Names
 * of tensors and first values are those of torchvision. Values are rows of pixels, [height * width, channels] of each
 * sample. Inside models/ only. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_CONV_H
#define DSC_MODELS_CONV_H

#include "models/lm.h"

#define DSC_CONV_UNITS_MAX 64 /* with the stem; EfficientNet-B7 has 57 */

typedef enum dsc_conv_kind {
    DSC_CONV_LAYER,      /* a convolution, a norm or a bias, an activation, a pool */
    DSC_CONV_BASIC,      /* residual: two convolutions of 3 by 3 */
    DSC_CONV_BOTTLENECK, /* residual: 1 by 1, 3 by 3, 1 by 1 */
    DSC_CONV_INVERTED    /* wider, by channel, squeeze and excitation, narrower */
} dsc_conv_kind;

/* Texts are constants, except for the name of a unit. */
typedef struct dsc_conv_unit {
    dsc_conv_kind kind;
    char name[44];           /* before the names of its tensors, without the point: "layer1.0"; "": nothing */
    const char *conv, *norm; /* LAYER: names of its tensors; norm NULL: none */
    bool bias;               /* LAYER: the convolution has one */
    int64_t in, out, inner;  /* channels; of a LAYER without `inner` */
    int64_t height, width;   /* of its input */
    int64_t kernel, stride, padding;
    int64_t squeeze;   /* INVERTED: channels of squeeze and excitation; 0: none */
    bool silu_squeeze; /* SiLU and sigmoid, else ReLU and hard sigmoid */
    bool flat_names;   /* INVERTED: the last convolution is "2" and not "2.0", as torchvision's MobileNetV2 has it */
    bool early_stride; /* BOTTLENECK: the stride is that of the first convolution */
    dsc_activation activation;
    int64_t pool, pool_stride, pool_padding; /* LAYER: maximum of windows; 0: none */
    double dropout;                          /* LAYER: of what the pool gives */
    double drop_path;                        /* INVERTED: probability that a sample leaves the unit as it came */
} dsc_conv_unit;

/* Layers behind the last unit. Each but the last one is followed by the activation and dropout. */
typedef struct dsc_conv_classifier {
    const char *name[3];
    int64_t columns[2]; /* of all but the last one */
    int32_t count;
    int64_t grid; /* the first layer reads grid by grid means of the picture, as [C, grid, grid]; 0: one mean */
    bool whole;   /* or the whole last feature map */
    /* All but the last one are convolutions, whose weights have four dimensions. The first one's windows have this
     * side, and a smaller map is spread to it by means. 0: linear layers. */
    int64_t kernel;
    dsc_activation activation;
    double dropout; /* with one layer before it */
    /* Before these layers: so many layers of an LSTM read the means of the frames in order, and y of the last frame
     * goes on. lstm NULL: none. */
    const char *lstm;
    int64_t hidden, lstm_layers;
} dsc_conv_classifier;

/* First values of linear layers; a bias is 0 unless it is said. */
typedef enum dsc_conv_first {
    DSC_CONV_FIRST_NORMAL, /* standard deviation 0.01 */
    DSC_CONV_FIRST_IN,     /* uniform up to 1 / sqrt(in), as the bias: nn.Linear's own */
    DSC_CONV_FIRST_OUT     /* uniform up to 1 / sqrt(out) */
} dsc_conv_first;

/* Programs whose names of tensors a network has. */
typedef enum dsc_conv_naming { DSC_CONV_TORCHVISION, DSC_CONV_TIMM, DSC_CONV_TRANSFORMERS } dsc_conv_naming;

typedef struct dsc_conv_config {
    dsc_lm_config lm;
    dsc_conv_naming naming;
    int64_t planes, height, width; /* of a picture */
    int64_t frames;                /* that lie below one another in it; units have the size of one */
    double eps, momentum;          /* of batch norms */
    bool plain_first;              /* convolutions begin as nn.Conv2d does, else by Kaiming's rule for their outputs */
    dsc_conv_first first;
    double drop, drop_path; /* rates of the classifier's dropouts, and of the last unit's drop path */
    dsc_conv_classifier classifier;
    int32_t unit_count; /* the stem is the first one */
    dsc_conv_unit unit[DSC_CONV_UNITS_MAX];
} dsc_conv_config;

/* An architecture of a family. `fill` gets the config with names, the picture's size and rates that are -1 where
 * config.json has none, and gives all from `eps` on. Sizes of units follow from dsc_conv_add. */
typedef struct dsc_conv_architecture {
    const char *name;
    void (*fill)(dsc_conv_config *config, const struct dsc_conv_architecture *architecture);
    int32_t variant; /* the family's own */
    bool flag;
} dsc_conv_architecture;
/* The i-th table of a family: architectures up to one without a name. NULL past the end. */
const dsc_conv_architecture *dsc_conv_table(int32_t index);
/* `variant` of names of architectures that timm alone has. */
#define DSC_CONV_OF_TIMM 1
extern const dsc_conv_architecture dsc_resnets[], dsc_vggs[], dsc_mobilenets[], dsc_efficientnets[], dsc_basic_cnns[],
    dsc_cnn_lstms[];

/* size[3] <- planes, height and width: "num_channels" and "image_size", else "input_size" of "pretrained_cfg", else as
 * they were. A size that the run asks for takes the place of both. */
DSC_MUST_USE dsc_status dsc_conv_read_picture(dsc_hf_config *reader, int64_t size[3]);
/* "num_classes" as in timm; "num_labels" or names in "id2label" as in transformers. */
DSC_MUST_USE dsc_status dsc_conv_read_classes(dsc_hf_config *reader, int64_t usual, int64_t *out);
/* ResNet's keys as transformers writes them (resnet.c), with the sizes of pictures set; names are those of
 * transformers. */
DSC_MUST_USE dsc_status dsc_conv_read_resnet(dsc_hf_config *reader, dsc_conv_config *config);

DSC_MUST_USE dsc_status dsc_conv_refuse_frames(dsc_hf_config *reader);
/* The keys of cnn_lstm (cnn_lstm.c): frames, and the LSTM of the classifier. */
DSC_MUST_USE dsc_status dsc_conv_read_sequence(dsc_hf_config *reader, dsc_conv_config *config);

/* Adds a unit: its input is what the last one gives. A unit without a name gets the text of the format. */
dsc_conv_unit *dsc_conv_add(dsc_conv_config *config, const dsc_conv_unit *unit, const char *format, ...)
    DSC_PRINTF(3, 4);
/* Rows and columns of what a unit gives; 0: its input is too small. */
void dsc_conv_size(const dsc_conv_unit *unit, int64_t *height, int64_t *width);
/* The nearest multiple of 8 that is not more than a tenth less, as in torchvision and MobileNet's own code. */
int64_t dsc_conv_round(double channels);
/* "0" to "63" as constants. */
const char *dsc_conv_digits(int64_t number);

/* The architecture of that name, else NULL with the names of all in `list`. */
const dsc_conv_architecture *dsc_conv_find(const char *name, char *list, size_t bytes);
/* Keys that networks of all architectures have; `usual`: what they are without a key. */
typedef struct dsc_conv_usual {
    int64_t planes, side, classes;
} dsc_conv_usual;
DSC_MUST_USE dsc_status dsc_conv_read_keys(dsc_hf_config *reader, const dsc_conv_usual *usual, dsc_conv_config *out);
/* The table of units, of a config with these keys and with names. */
DSC_MUST_USE dsc_status dsc_conv_fill(dsc_hf_config *reader, const dsc_conv_architecture *architecture,
                                      dsc_conv_config *out);

/* conv.c: part `number` of a network is a unit, or behind the last one the classifier, which gives logits. The first
 * one reads the batch's pictures, the others what the program begins with. `module` is the number of the part's module
 * in its model, which keeps dropouts apart. */
typedef struct dsc_conv_part {
    const dsc_conv_config *config;
    int64_t number, module, classes;
} dsc_conv_part;
void dsc_conv_begin_part(dsc_program *program, const dsc_conv_config *config, int64_t part);
int16_t dsc_conv_emit_part(dsc_program *program, const dsc_conv_part *part);

/* The programs of modules of a network by itself, as in dsc_lm_family. */
void dsc_conv_begin(dsc_program *program, const dsc_lm_config *lm, int64_t layer);
void dsc_conv_emit_first(dsc_program *program, const dsc_lm_config *lm);
void dsc_conv_emit_block(dsc_program *program, const dsc_lm_config *lm, int64_t layer);
void dsc_conv_emit_last(dsc_program *program, const dsc_lm_config *lm);

#endif
