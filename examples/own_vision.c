/* own_vision.c - a vision transformer of one's own, described to the builder, and trained on pictures from a callback.
 *
 *     examples/own_vision [steps]     or     dsc-launch --num_gpus=2 examples/own_vision [steps]
 *
 * A picture has a bright bar in noise; its class is whether the bar stands, lies or leans. docs/own_model.md explains
 * the calls. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dsc/dsc.h>
#include <dsc/program.h>

enum {
    SIDE = 16,
    PATCH = 4,
    WIDTH = 64,
    HEADS = 4,
    BLOCKS = 2,
    CLASSES = 4,
    ROWS = 1 + (SIDE / PATCH) * (SIDE / PATCH)
};

/* x + attention(norm(x)), then x + mlp(norm(x)); all rows of a picture see each other. */
static dsc_node block(dsc_builder *b, dsc_node x, int64_t number, void *user)
{
    dsc_build_attention_options attention = DSC_BUILD_ATTENTION_OPTIONS_INIT;
    attention.heads = HEADS, attention.all = true;
    (void)number, (void)user;
    dsc_node n = dsc_build_norm(b, x, "norm1", DSC_BUILD_LAYER_NORM, 1, 1e-6);
    dsc_node q = dsc_build_linear(b, n, "q", WIDTH, true), k = dsc_build_linear(b, n, "k", WIDTH, true);
    dsc_node y = dsc_build_attention(b, q, k, dsc_build_linear(b, n, "v", WIDTH, true), &attention);
    x = dsc_build_add(b, x, dsc_build_linear(b, y, "out", WIDTH, true));
    n = dsc_build_norm(b, x, "norm2", DSC_BUILD_LAYER_NORM, 1, 1e-6);
    y = dsc_build_activation(b, dsc_build_linear(b, n, "fc", 2 * WIDTH, true), DSC_BUILD_GELU);
    return dsc_build_add(b, x, dsc_build_linear(b, y, "proj", WIDTH, true));
}

static dsc_status build(dsc_model **model, dsc_error *err)
{
    dsc_build_options options = DSC_BUILD_OPTIONS_INIT;
    dsc_builder *b = NULL;
    options.name = "bars";
    options.tokens = ROWS, options.vocabulary = CLASSES, options.channels = WIDTH;
    options.data = (dsc_batch_spec) { DSC_BATCH_PIXELS, DSC_F32, 3, { 1, SIDE, SIDE } };
    DSC_TRY(dsc_build_open(&b, &options, err));
    dsc_build_begin_first(b); /* patches, a class token before them, positions */
    dsc_node x = dsc_build_linear(b, dsc_build_patches(b, PATCH), "patch", WIDTH, true);
    dsc_build_end(b, dsc_build_positions(b, dsc_build_prepend(b, x, "class", 1), "place"));
    dsc_build_blocks(b, BLOCKS, block, NULL);
    x = dsc_build_rows(b, dsc_build_begin_last(b), 0, 1); /* the class token's row */
    x = dsc_build_norm(b, x, "norm", DSC_BUILD_LAYER_NORM, 1, 1e-6);
    dsc_build_end(b, dsc_build_linear(b, x, "classifier", CLASSES, true));
    return dsc_build_finish(&b, NULL, model, err);
}

/* Sample i depends on i alone, so that every number of ranks sees the same pictures. */
static dsc_status fill(void *user, int64_t first, int64_t count, void *const *batch, dsc_error *err)
{
    float *pixels = batch[0];
    int32_t *classes = batch[1];
    (void)err;
    for (int64_t i = first + *(const int64_t *)user; count-- > 0; i++, pixels += SIDE * SIDE) {
        uint64_t bits = (uint64_t)i * 0x9e3779b97f4a7c15u + 1;
        for (int p = 0; p < SIDE * SIDE; p++) {
            bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
            pixels[p] = (float)(bits >> 40) * 0x1p-24f - 0.5f;
        }
        const int kind = (int)(bits % CLASSES), at = 3 + (int)(bits >> 8 & 0xff) % (SIDE - 6);
        for (int t = 0; t < SIDE; t++) {
            const int lean = (t + at / 4) % SIDE;
            pixels[kind == 0   ? t * SIDE + at
                   : kind == 1 ? at * SIDE + t
                   : kind == 2 ? t * SIDE + lean
                               : (SIDE - 1 - t) * SIDE + lean] += 2;
        }
        *classes++ = kind;
    }
    return DSC_OK;
}

/* The engine's notes have the accuracy of an evaluation. */
static void print(void *user, dsc_log_level level, const char *line)
{
    (void)user;
    if (level != DSC_LOG_INFO || strstr(line, "accuracy") != NULL)
        printf("%s\n", line);
}

static dsc_status train(long steps, dsc_model **model, dsc_engine **engine, dsc_error *err)
{
    static int64_t from[2] = { 0, INT64_C(1) << 32 }; /* other samples for the evaluation */
    const dsc_data_source pictures = { fill, &from[0], 0 }, others = { fill, &from[1], 1000 };
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    dsc_step_result result = DSC_STEP_RESULT_INIT;
    double loss = 0;
    DSC_TRY(build(model, err));
    options.config_text = "{ \"train_batch_size\": 64, \"zero_optimization\": { \"stage\": 3 },"
                          "  \"optimizer\": { \"type\": \"AdamW\", \"params\": { \"lr\": 0.003 } } }";
    options.model = *model, options.data = pictures, options.log = (dsc_log) { print, NULL };
    DSC_TRY(dsc_engine_open(engine, &options, err));
    while (result.step < steps) {
        DSC_TRY(dsc_engine_train_batch(*engine, &result, err));
        if (dsc_engine_rank(*engine) == 0 && (result.step == 1 || result.step % 20 == 0))
            printf("step %3lld  loss %.4f\n", (long long)result.step, result.loss);
    }
    DSC_TRY(dsc_engine_evaluate(*engine, &others, 0, &loss, err));
    if (dsc_engine_rank(*engine) == 0)
        printf("of other pictures: loss %.4f\n", loss);
    return DSC_OK;
}

int main(int argc, char **argv)
{
    dsc_model *model = NULL;
    dsc_engine *engine = NULL;
    dsc_error err = DSC_ERROR_INIT;
    char text[1024];
    const dsc_status status = train(argc > 1 ? strtol(argv[1], NULL, 10) : 100, &model, &engine, &err);
    if (status != DSC_OK)
        fprintf(stderr, "own_vision: %s\n", dsc_error_format(&err, text, sizeof text));
    dsc_engine_close(&engine);
    dsc_model_close(&model);
    return dsc_status_exit_code(status);
}
