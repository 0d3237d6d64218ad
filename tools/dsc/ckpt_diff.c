/* ckpt_diff.c - `dsc ckpt diff A B`: where two checkpoints differ. Like diff: exit 0 when they hold the same tensors, 1
 * when not. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "tools/dsc/ckpt.h"

static void print_row(void *user, const dsc_ckpt_diff_row *row)
{
    (void)user;
    if (row->what != NULL)
        printf("%s: %s: %s\n", row->tensor, row->plane, row->what);
    else
        printf("%s: %s: %lld elements differ, by at most %.3g\n", row->tensor, row->plane, (long long)row->differing,
               row->largest);
}

static void print_number(const char *name, int64_t a, int64_t b)
{
    if (a != b)
        printf("%s: %lld and %lld\n", name, (long long)a, (long long)b);
}

static void print_text(const char *name, const char *a, const char *b)
{
    if (strcmp(a, b) != 0)
        printf("%s: %s and %s\n", name, a, b);
}

/* How the runs differ: not what decides the exit code. */
static void print_states(const dsc_run_state *a, const dsc_run_state *b)
{
    print_number("step", a->step, b->step);
    print_number("update_count", a->update_count, b->update_count);
    print_number("next_sample", a->next_sample, b->next_sample);
    print_number("seed", a->seed, b->seed);
    print_number("train_batch_size", a->train_batch_size, b->train_batch_size);
    print_number("micro_batch", a->micro_batch, b->micro_batch);
    print_number("accumulation_steps", a->accumulation_steps, b->accumulation_steps);
    print_number("world_size", a->world_size, b->world_size);
    print_number("tensor_ranks", a->tensor_ranks, b->tensor_ranks);
    print_number("samples_per_epoch", a->samples_per_epoch, b->samples_per_epoch);
    print_number("seq_length", a->seq_length, b->seq_length);
    print_number("document_end", a->document_end, b->document_end);
    print_number("zero_stage", a->zero_stage, b->zero_stage);
    print_text("optimizer", dsc_recipes[a->recipe].name, dsc_recipes[b->recipe].name);
    print_text("moments", dsc_dtype_text(a->moment_dtype), dsc_dtype_text(b->moment_dtype));
    print_text("precision", dsc_dtype_text(a->compute_dtype), dsc_dtype_text(b->compute_dtype));
    print_text("shuffle", a->shuffle ? "true" : "false", b->shuffle ? "true" : "false");
    print_text("reproducible", a->world_size_reproducible ? "world_size" : "plan",
               b->world_size_reproducible ? "world_size" : "plan");
    print_text("cpu_level", a->cpu_level, b->cpu_level);
    print_text("versions", a->versions, b->versions);
}

static dsc_status diff(dsc_alloc *alloc, const char *const *dir, int64_t *differing, dsc_error *err)
{
    char step_dir[2][CKPT_TOOL_PATH_BYTES];
    dsc_run_state state[2];
    int64_t bytes;
    for (int s = 0; s < 2; s++) {
        DSC_TRY(dsc_ckpt_find(NULL, alloc, dir[s], step_dir[s], sizeof step_dir[s], err));
        DSC_TRY(dsc_ckpt_summary(NULL, alloc, step_dir[s], &state[s], &bytes, err));
    }
    print_states(&state[0], &state[1]);
    const char *const pair[2] = { step_dir[0], step_dir[1] };
    const dsc_ckpt_diff_sink sink = { print_row, NULL };
    return dsc_ckpt_diff(NULL, alloc, pair, &sink, differing, err);
}

typedef struct diff_args { const char *dir[2]; } diff_args;

static const dsc_positional dirs[] = {
    { "DIR/step-N", "one checkpoint", "checkpoint", offsetof(diff_args, dir[0]), 1, 1 },
    { "DIR/step-N", "the other checkpoint", "checkpoint", offsetof(diff_args, dir[1]), 1, 1 },
};
const dsc_flag_command dsc_tool_ckpt_diff_page = {
    .name = "dsc ckpt diff", .description = "Prints the tensors and run values in which two checkpoints differ.",
    .positionals = dirs, .positional_count = DSC_COUNT(dirs),
    .exit_codes = "0 equal tensors; 1 different tensors, or failed; 2 wrong command line, or no whole checkpoint",
};

int dsc_tool_ckpt_diff(int argc, char **argv)
{
    diff_args args = { 0 };
    const int wrong = dsc_tool_parse(&dsc_tool_ckpt_diff_page, argc, argv, &args);
    if (wrong >= 0)
        return wrong;
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    int64_t differing = 0;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    const dsc_status status = diff(alloc, args.dir, &differing, &err);
    dsc_alloc_close(&alloc);
    if (status != DSC_OK)
        return dsc_tool_fail(&err);
    printf(differing == 0 ? "the same tensors\n" : "%lld differences\n", (long long)differing);
    const int code = dsc_tool_end();
    return code != 0 ? code : differing > 0;
}
