/* own_model.c - a transformer of one's own, described to the builder without a backward, and trained on a text.
 *
 *     examples/own_model text.txt [steps]     or     dsc-launch --num_gpus=2 examples/own_model text.txt [steps]
 *
 * docs/own_model.md explains the calls. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include <dsc/dsc.h>
#include <dsc/program.h>

enum { WIDTH = 128, HEADS = 4, TOKENS = 64, BLOCKS = 3 };

/* x + attention(norm(x)), then x + down(silu(gate) * up) of norm(x) */
static dsc_node block(dsc_builder *b, dsc_node x, int64_t number, void *user)
{
    dsc_build_attention_options attention = DSC_BUILD_ATTENTION_OPTIONS_INIT;
    attention.heads = HEADS;
    (void)number, (void)user;
    dsc_node n = dsc_build_norm(b, x, "norm1", DSC_BUILD_RMS_NORM, 1, 1e-5);
    dsc_node q = dsc_build_rope(b, dsc_build_linear(b, n, "q", WIDTH, false), HEADS, WIDTH / HEADS, 10000);
    dsc_node k = dsc_build_rope(b, dsc_build_linear(b, n, "k", WIDTH, false), HEADS, WIDTH / HEADS, 10000);
    dsc_node y = dsc_build_attention(b, q, k, dsc_build_linear(b, n, "v", WIDTH, false), &attention);
    x = dsc_build_add(b, x, dsc_build_linear(b, y, "out", WIDTH, false));
    n = dsc_build_norm(b, x, "norm2", DSC_BUILD_RMS_NORM, 1, 1e-5);
    y = dsc_build_gated(b, dsc_build_linear(b, n, "gate", 3 * WIDTH, false),
                        dsc_build_linear(b, n, "up", 3 * WIDTH, false));
    return dsc_build_add(b, x, dsc_build_linear(b, y, "down", WIDTH, false));
}

static dsc_status build(dsc_model **model, dsc_error *err)
{
    dsc_build_options options = DSC_BUILD_OPTIONS_INIT;
    dsc_build_head_options head = DSC_BUILD_HEAD_OPTIONS_INIT;
    dsc_builder *b = NULL;
    options.name = "own";
    options.tokens = TOKENS, options.vocabulary = 256, options.channels = WIDTH; /* tokens are bytes */
    DSC_TRY(dsc_build_open(&b, &options, err));
    dsc_build_blocks(b, BLOCKS, block, NULL);
    return dsc_build_finish(&b, &head, model, err);
}

static dsc_status train(const char *text, long steps, dsc_model **model, dsc_engine **engine, dsc_error *err)
{
    char quoted[1024];
    snprintf(quoted, sizeof quoted, "\"%s\"", text); /* a path without quotes */
    const dsc_override data = { "dsc.data", quoted, "TEXT" };
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    dsc_step_result result = DSC_STEP_RESULT_INIT;
    DSC_TRY(build(model, err));
    options.config_text = "{ \"train_batch_size\": 16, \"zero_optimization\": { \"stage\": 3 },"
                          "  \"optimizer\": { \"type\": \"AdamW\", \"params\": { \"lr\": 0.003 } } }";
    options.model = *model;
    options.overrides = &data, options.override_count = 1;
    DSC_TRY(dsc_engine_open(engine, &options, err));
    while (result.step < steps) {
        DSC_TRY(dsc_engine_train_batch(*engine, &result, err));
        if (dsc_engine_rank(*engine) == 0 && (result.step == 1 || result.step % 10 == 0))
            printf("step %3lld  loss %.4f\n", (long long)result.step, result.loss);
    }
    return DSC_OK;
}

int main(int argc, char **argv)
{
    dsc_model *model = NULL;
    dsc_engine *engine = NULL;
    dsc_error err = DSC_ERROR_INIT;
    char text[1024];
    if (argc < 2 || argc > 3)
        return fprintf(stderr, "usage: own_model TEXT [STEPS]\n"), 2;
    const dsc_status status = train(argv[1], argc > 2 ? strtol(argv[2], NULL, 10) : 60, &model, &engine, &err);
    if (status != DSC_OK)
        fprintf(stderr, "own_model: %s\n", dsc_error_format(&err, text, sizeof text));
    dsc_engine_close(&engine);
    dsc_model_close(&model);
    return dsc_status_exit_code(status);
}
