/* conv.c - emits the units of convolutional networks. SPDX-License-Identifier: Apache-2.0 */
#include "models/conv/conv.h"

#include <math.h>

/* The program in hand, with the config of its network. */
typedef struct conv_net {
    dsc_program *program;
    const dsc_conv_config *config;
    int64_t module; /* its number in the model, from 0 */
} conv_net;

/* A convolution with square windows. */
typedef struct conv_shape {
    int64_t out, kernel, stride, padding, groups;
    bool bias;
} conv_shape;

static const dsc_conv_config *config_of(const dsc_lm_config *lm) { return (const dsc_conv_config *)(const void *)lm; }

/* Dropouts of a model are apart by these: one of a unit, those of the classifier, and the drop path of a unit. */
static uint32_t stream_of(int64_t module, int32_t number) { return (uint32_t)(4 * (module + 1) + number); }

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* The parameters of a layer that was just added begin uniformly: up to this in the weight, and in the bias or 0. */
static void begin_uniformly(dsc_program *program, bool bias, double bound, double bias_bound)
{
    if (program->status != DSC_OK)
        return;
    dsc_program_param *weight = &program->param[program->param_count - 1 - bias];
    weight->init = DSC_INIT_UNIFORM, weight->std = bound;
    if (bias && bias_bound > 0)
        weight[1].init = DSC_INIT_UNIFORM, weight[1].std = bias_bound;
}

static int16_t convolve(const conv_net *net, int16_t x, const char *name, const conv_shape *shape)
{
    const int64_t window = shape->kernel * shape->kernel;
    const dsc_program_conv2d_args args = { .name = name,
                                           .out = shape->out,
                                           .groups = shape->groups,
                                           .kernel = { shape->kernel, shape->kernel },
                                           .stride = { shape->stride, shape->stride },
                                           .padding = { shape->padding, shape->padding },
                                           .bias = shape->bias,
                                           .std = sqrt(2.0 / (double)(shape->out * window)) };
    if (net->program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    const int64_t in = net->program->value[x].columns / shape->groups;
    const int16_t y = dsc_program_conv2d(net->program, x, &args);
    const double bound = 1 / sqrt((double)(in * window));
    if (net->config->plain_first)
        begin_uniformly(net->program, shape->bias, bound, bound);
    return y;
}

static int16_t normalise(const conv_net *net, int16_t x, const char *name)
{
    const dsc_program_batch_norm_args args = { .name = name,
                                               .eps = net->config->eps,
                                               .momentum = net->config->momentum };
    return dsc_program_batch_norm(net->program, x, &args);
}

/* A convolution without a bias, and its norm. */
static int16_t layer(const conv_net *net, int16_t x, const char *conv, const char *norm, const conv_shape *shape)
{
    return normalise(net, convolve(net, x, conv, shape), norm);
}

/* `windows`: the weight has the two dimensions of a window of one pixel too. */
static int16_t linear(const conv_net *net, int16_t x, const char *name, int64_t out, bool windows)
{
    if (net->program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    const double in = (double)net->program->value[x].columns;
    const int64_t dims[4] = { out, net->program->value[x].columns, 1, 1 };
    const dsc_program_linear_args args = { .name = name,
                                           .shape = { .out = out, .out_in = true },
                                           .bias = true,
                                           .whole = true,
                                           .no_adapter = true,
                                           .dims = windows ? dims : NULL,
                                           .dim_count = windows ? 4 : 0,
                                           .std = 0.01 };
    const int16_t y = dsc_program_linear(net->program, x, &args);
    if (net->config->first == DSC_CONV_FIRST_IN)
        begin_uniformly(net->program, true, 1 / sqrt(in), 1 / sqrt(in));
    if (net->config->first == DSC_CONV_FIRST_OUT)
        begin_uniformly(net->program, true, 1 / sqrt((double)out), 0);
    return y;
}

/* ---- units ------------------------------------------------------------------------------------------------------- */

static int16_t emit_layer(const conv_net *net, const dsc_conv_unit *unit, int16_t x)
{
    const conv_shape shape = { unit->out, unit->kernel, unit->stride, unit->padding, 1, unit->bias };
    x = convolve(net, x, unit->conv, &shape);
    if (unit->norm != NULL)
        x = normalise(net, x, unit->norm);
    x = dsc_program_activation(net->program, x, unit->activation);
    if (unit->pool > 0) {
        const dsc_op_pool pool = { .kernel = unit->pool, .stride = unit->pool_stride, .padding = unit->pool_padding };
        x = dsc_program_max_pool(net->program, x, &pool);
    }
    return unit->dropout > 0 ? dsc_program_dropout(net->program, x, unit->dropout, stream_of(net->module, 0)) : x;
}

/* Names of a convolution and its norm. */
typedef struct layer_names {
    const char *conv, *norm;
} layer_names;

/* Those of a residual block, the last ones beside its branch. */
static const layer_names *residual_names(const conv_net *net)
{
    static const layer_names usual[] = {
        { "conv1", "bn1" }, { "conv2", "bn2" }, { "conv3", "bn3" }, { "downsample.0", "downsample.1" }
    };
    static const layer_names of_transformers[] = { { "layer.0.convolution", "layer.0.normalization" },
                                                   { "layer.1.convolution", "layer.1.normalization" },
                                                   { "layer.2.convolution", "layer.2.normalization" },
                                                   { "shortcut.convolution", "shortcut.normalization" } };
    return net->config->naming == DSC_CONV_TRANSFORMERS ? of_transformers : usual;
}

/* The term beside the branch of a residual block: its input, or that through a convolution where sizes differ. */
static int16_t shortcut(const conv_net *net, const dsc_conv_unit *unit, int16_t x)
{
    const layer_names *names = residual_names(net);
    const conv_shape shape = { unit->out, 1, unit->stride, 0, 1, false };
    if (unit->stride == 1 && unit->in == unit->out)
        return x;
    return layer(net, x, names[3].conv, names[3].norm, &shape);
}

static int16_t emit_residual(const conv_net *net, const dsc_conv_unit *unit, int16_t x)
{
    dsc_program *program = net->program;
    const bool basic = unit->kind == DSC_CONV_BASIC;
    const layer_names *names = residual_names(net);
    const int64_t first = unit->early_stride ? unit->stride : 1, later = unit->early_stride ? 1 : unit->stride;
    const conv_shape narrow = { unit->inner, 1, first, 0, 1, false };
    const conv_shape middle = { unit->inner, unit->kernel, later, unit->padding, 1, false };
    const conv_shape second = { unit->out, unit->kernel, 1, unit->padding, 1, false };
    const conv_shape wide = { unit->out, 1, 1, 0, 1, false };
    int16_t y = layer(net, x, names[0].conv, names[0].norm, basic ? &middle : &narrow);
    y = dsc_program_activation(program, y, unit->activation);
    y = layer(net, y, names[1].conv, names[1].norm, basic ? &second : &middle);
    if (!basic) {
        y = dsc_program_activation(program, y, unit->activation);
        y = layer(net, y, names[2].conv, names[2].norm, &wide);
    }
    y = dsc_program_add(program, y, shortcut(net, unit, x));
    return dsc_program_activation(program, y, unit->activation);
}

/* Names of an inverted residual: wider, by channel, narrower, and the two layers of squeeze and excitation. */
typedef struct inverted_names {
    layer_names wide, each, narrow;
    const char *down, *up;
} inverted_names;

/* torchvision counts the parts that a block has. timm numbers norms alone, and names the last convolution otherwise in
 * a block that does not begin wider. */
static inverted_names name_inverted(const conv_net *net, const dsc_conv_unit *unit)
{
    static const char *const conv[] = { "0.0", "1.0", "2.0", "3.0" }, *const norm[] = { "0.1", "1.1", "2.1", "3.1" };
    static const char *const down[] = { "1.fc1", "2.fc1" }, *const up[] = { "1.fc2", "2.fc2" };
    const bool wide = unit->inner != unit->in;
    const int32_t at = wide, last = at + 1 + (unit->squeeze > 0);
    if (net->config->naming == DSC_CONV_TIMM)
        return (inverted_names) { .wide = { "conv_pw", "bn1" },
                                  .each = { "conv_dw", wide ? "bn2" : "bn1" },
                                  .narrow = { wide ? "conv_pwl" : "conv_pw", wide ? "bn3" : "bn2" },
                                  .down = "se.conv_reduce",
                                  .up = "se.conv_expand" };
    return (inverted_names) { .wide = { conv[0], norm[0] },
                              .each = { conv[at], norm[at] },
                              .narrow = { unit->flat_names ? dsc_conv_digits(last) : conv[last],
                                          unit->flat_names ? dsc_conv_digits(last + 1) : norm[last] },
                              .down = down[at],
                              .up = up[at] };
}

/* The map times a factor for each channel of a sample, which two layers make of the channels' means. */
static int16_t excite(const conv_net *net, const dsc_conv_unit *unit, int16_t x, const inverted_names *names)
{
    const conv_shape down = { unit->squeeze, 1, 1, 0, 1, true }, up = { unit->inner, 1, 1, 0, 1, true };
    int16_t y = dsc_program_mean_pool(net->program, x, 1, 1);
    y = convolve(net, y, names->down, &down);
    y = dsc_program_activation(net->program, y, unit->silu_squeeze ? DSC_SILU : DSC_RELU);
    y = convolve(net, y, names->up, &up);
    y = dsc_program_activation(net->program, y, unit->silu_squeeze ? DSC_SIGMOID : DSC_HARD_SIGMOID);
    return dsc_program_scale_rows(net->program, x, y);
}

static int16_t emit_inverted(const conv_net *net, const dsc_conv_unit *unit, int16_t x)
{
    const inverted_names names = name_inverted(net, unit);
    const conv_shape wide = { unit->inner, 1, 1, 0, 1, false }, narrow = { unit->out, 1, 1, 0, 1, false };
    const conv_shape each = { unit->inner, unit->kernel, unit->stride, unit->padding, unit->inner, false };
    int16_t y = x;
    if (unit->inner != unit->in)
        y = dsc_program_activation(net->program, layer(net, y, names.wide.conv, names.wide.norm, &wide),
                                   unit->activation);
    y = dsc_program_activation(net->program, layer(net, y, names.each.conv, names.each.norm, &each), unit->activation);
    if (unit->squeeze > 0)
        y = excite(net, unit, y, &names);
    y = layer(net, y, names.narrow.conv, names.narrow.norm, &narrow);
    if (unit->stride != 1 || unit->in != unit->out)
        return y;
    if (unit->drop_path > 0)
        y = dsc_program_drop_path(net->program, y, unit->drop_path, stream_of(net->module, 1));
    return dsc_program_add(net->program, y, x);
}

static int16_t emit_unit(const conv_net *net, const dsc_conv_unit *unit, int16_t x)
{
    switch (unit->kind) {
    case DSC_CONV_LAYER:
        return emit_layer(net, unit, x);
    case DSC_CONV_BASIC:
    case DSC_CONV_BOTTLENECK:
        return emit_residual(net, unit, x);
    case DSC_CONV_INVERTED:
        return emit_inverted(net, unit, x);
    }
    return x;
}

/* ---- the classifier ---------------------------------------------------------------------------------------------- */

/* A linear layer over a map, whose columns torch flattens from [C, height, width], is a convolution with one window
 * of the map's size. Its weight has two dimensions. */
static int16_t flatten(const conv_net *net, int16_t x, const char *name, int64_t out)
{
    dsc_program *program = net->program;
    const dsc_value *map = &program->value[x];
    const int64_t in = map->rows * map->columns;
    const dsc_program_conv2d_args args = {
        .name = name, .out = out, .kernel = { map->height, map->width }, .bias = true, .std = 0.01
    };
    const int16_t y = dsc_program_conv2d(program, x, &args);
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    dsc_program_param *weight = &program->param[program->param_count - 2];
    weight->dim_count = 2;
    weight->dim[1] = in, weight->dim[2] = weight->dim[3] = 0;
    if (net->config->first == DSC_CONV_FIRST_IN)
        begin_uniformly(program, true, 1 / sqrt((double)in), 1 / sqrt((double)in));
    return y;
}

/* A layer of the classifier that is a convolution: the first one over windows of a map that is as large at least, the
 * others over single pixels. */
static int16_t convolve_map(const conv_net *net, int16_t x, const char *name, int64_t out, bool first)
{
    dsc_program *program = net->program;
    const int64_t side = first ? net->config->classifier.kernel : 1;
    const conv_shape shape = { out, side, 1, 0, 1, true };
    if (program->status != DSC_OK)
        return DSC_PROGRAM_NONE;
    const dsc_value *map = &program->value[x];
    if (map->height < side || map->width < side)
        x = dsc_program_mean_pool(program, x, dsc_max_i64(side, map->height), dsc_max_i64(side, map->width));
    return convolve(net, x, name, &shape);
}

static int16_t emit_linear(const conv_net *net, const dsc_conv_classifier *c, int32_t i, int16_t x, int64_t out)
{
    if (i == 0 && (c->whole || c->grid > 0))
        return flatten(net, x, c->name[i], out);
    if (c->kernel > 1 && i + 1 < c->count)
        return convolve_map(net, x, c->name[i], out, i == 0);
    return linear(net, x, c->name[i], out, c->kernel > 0 && i + 1 < c->count);
}

/* y of the last frame. */
static int16_t read_frames(const conv_net *net, int16_t x)
{
    const dsc_conv_classifier *c = &net->config->classifier;
    const dsc_program_lstm_args args = {
        .name = c->lstm, .hidden = c->hidden, .layers = (int32_t)c->lstm_layers, .bias = true
    };
    return dsc_program_pick(net->program, dsc_program_lstm(net->program, x, &args), net->config->frames - 1, 1, false);
}

static int16_t emit_classifier(const conv_net *net, int64_t classes, int16_t x)
{
    dsc_program *program = net->program;
    const dsc_conv_classifier *c = &net->config->classifier;
    if (!c->whole && c->kernel < 2)
        x = dsc_program_mean_pool(program, x, c->grid > 0 ? c->grid : 1, c->grid > 0 ? c->grid : 1);
    if (c->lstm != NULL)
        x = read_frames(net, x);
    for (int32_t i = 0; i < c->count && program->status == DSC_OK; i++) {
        const bool last = i + 1 == c->count;
        if (last && c->kernel > 1)
            x = dsc_program_mean_pool(program, x, 1, 1);
        if (c->dropout > 0 && (i > 0 || c->count == 1))
            x = dsc_program_dropout(program, x, c->dropout, stream_of(net->module, i));
        x = emit_linear(net, c, i, x, last ? classes : c->columns[i]);
        if (!last)
            x = dsc_program_activation(program, x, c->activation);
    }
    return x;
}

/* ---- parts of a network ------------------------------------------------------------------------------------------ */

void dsc_conv_begin_part(dsc_program *program, const dsc_conv_config *config, int64_t part)
{
    const dsc_conv_unit *last = &config->unit[config->unit_count - 1];
    int64_t height, width;
    DSC_ASSERT(part > 0);
    if (part < config->unit_count) {
        const dsc_conv_unit *unit = &config->unit[part];
        dsc_program_begin_pictures(program, config->frames, unit->height, unit->width, unit->in);
        return;
    }
    dsc_conv_size(last, &height, &width);
    dsc_program_begin_pictures(program, config->frames, height, width, last->out);
}

int16_t dsc_conv_emit_part(dsc_program *program, const dsc_conv_part *part)
{
    const dsc_conv_config *config = part->config;
    const conv_net net = { program, config, part->module };
    const dsc_op_data pixels = { DSC_LM_TOKENS, config->planes, config->height, config->width, 1, config->frames };
    const int16_t x = part->number == 0 ? dsc_program_patches(program, &pixels) : program->input;
    return part->number < config->unit_count ? emit_unit(&net, &config->unit[part->number], x)
                                             : emit_classifier(&net, part->classes, x);
}

/* ---- modules of a network by itself ------------------------------------------------------------------------------ */

void dsc_conv_begin(dsc_program *program, const dsc_lm_config *lm, int64_t layer)
{
    dsc_conv_begin_part(program, config_of(lm), 1 + layer);
}

void dsc_conv_emit_block(dsc_program *program, const dsc_lm_config *lm, int64_t layer)
{
    const dsc_conv_part part = { config_of(lm), 1 + layer, 1 + layer, lm->vocab };
    dsc_program_end(program, dsc_conv_emit_part(program, &part));
}

void dsc_conv_emit_first(dsc_program *program, const dsc_lm_config *lm) { dsc_conv_emit_block(program, lm, -1); }

void dsc_conv_emit_last(dsc_program *program, const dsc_lm_config *lm) { dsc_conv_emit_block(program, lm, lm->layers); }
