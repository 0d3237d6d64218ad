/* ckpt.c - `dsc ckpt`: checkpoints without a model or a run. ls, verify and hash; the other verbs have their own files.
 *
 * Changes nothing. ls reads manifests and headers, verify every byte, hash what two runs must agree on.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/dsc/ckpt.h"

#define PATH_BYTES CKPT_TOOL_PATH_BYTES
#define PART_TEXT 160

/* ---- ls ---- */

typedef struct step_list {
    char **name; /* borrowed from the folder's list */
    int64_t count, unfinished;
} step_list;

/* By number: step-10 comes after step-9. */
static int by_step(const void *a, const void *b)
{
    const long long x = atoll(*(char *const *)a + 5), y = atoll(*(char *const *)b + 5);
    return (x > y) - (x < y);
}

static void keep_steps(char **names, int64_t count, step_list *out)
{
    *out = (step_list){ .name = names };
    for (int64_t i = 0; i < count; i++) {
        char *const name = names[i];
        out->unfinished += dsc_ckpt_is_unfinished_name(name);
        if (!dsc_ckpt_is_step_name(name))
            continue;
        /* A swap, so that every name stays in the list that is freed. */
        names[i] = names[out->count];
        names[out->count++] = name;
    }
    if (out->count > 1) /* an empty folder has no list at all */
        qsort(names, (size_t)out->count, sizeof *names, by_step);
}

static void print_row(dsc_alloc *alloc, const char *step_dir, const char *name, const char *mark)
{
    dsc_run_state state;
    dsc_error err = DSC_ERROR_INIT;
    int64_t bytes;
    char text[sizeof err.where + sizeof err.message + 4], part[PART_TEXT];
    if (dsc_ckpt_summary(NULL, alloc, step_dir, &state, &bytes, &err) == DSC_OK &&
        dsc_ckpt_part(NULL, alloc, step_dir, part, sizeof part, &err) == DSC_OK)
        printf("%-16s %10.2f MiB  %s, %lld rank%s, ZeRO stage %d, %s%s%s%s\n", name, (double)bytes / 1048576.0,
               dsc_dtype_text(state.compute_dtype), (long long)state.world_size,
               state.world_size == 1 ? "" : "s", (int)state.zero_stage, state.versions, part[0] != 0 ? ", " : "", part,
               mark);
    else
        printf("%-16s does not load: %s%s\n", name, dsc_error_format(&err, text, sizeof text), mark);
}

/* The checkpoints that `latest` and `best` of a folder name. */
typedef struct named {
    char latest[64]; /* "": none */
    dsc_ckpt_best best;
    bool found_latest, found_best;
    char wrong[2][600]; /* why `latest` and `best` cannot be read; "": they can */
} named;

static dsc_status read_names(dsc_alloc *alloc, const char *dir, named *out, dsc_error *err)
{
    char path[PATH_BYTES];
    dsc_error wrong = DSC_ERROR_INIT;
    DSC_TRY(dsc_path_join(path, sizeof path, dir, "latest", err));
    if (dsc_io_kind(path) != DSC_PATH_MISSING &&
        dsc_ckpt_read_latest(NULL, alloc, path, out->latest, &wrong) != DSC_OK) {
        out->latest[0] = 0;
        snprintf(out->wrong[0], sizeof out->wrong[0], "%s", wrong.message);
    }
    if (dsc_ckpt_read_best(NULL, alloc, dir, &out->best, &wrong) != DSC_OK)
        snprintf(out->wrong[1], sizeof out->wrong[1], "%s", wrong.message);
    return DSC_OK;
}

static void list_row(dsc_alloc *alloc, const char *step_dir, const char *name, named *n)
{
    const bool latest = strcmp(name, n->latest) == 0, best = n->best.step >= 0 && strcmp(name, n->best.name) == 0;
    char mark[120] = "";
    n->found_latest |= latest;
    n->found_best |= best;
    if (best)
        snprintf(mark, sizeof mark, "  (%sbest, validation loss %.6g)", latest ? "latest, " : "", n->best.loss);
    else if (latest)
        snprintf(mark, sizeof mark, "  (latest)");
    print_row(alloc, step_dir, name, mark);
}

static dsc_status list_steps(dsc_alloc *alloc, const char *dir, char **names, int64_t count, dsc_error *err)
{
    char path[PATH_BYTES];
    step_list steps;
    named n = { .best = { .step = -1 } };
    keep_steps(names, count, &steps);
    DSC_TRY(read_names(alloc, dir, &n, err));
    for (int64_t i = 0; i < steps.count && !ferror(stdout); i++) {
        DSC_TRY(dsc_path_join(path, sizeof path, dir, steps.name[i], err));
        list_row(alloc, path, steps.name[i], &n);
    }
    if (steps.count == 0)
        printf("no checkpoints\n");
    if (steps.unfinished > 0)
        printf("%lld unfinished: a save that is running, or was cut short\n", (long long)steps.unfinished);
    if (n.wrong[0][0] != 0)
        printf("latest: %s\n", n.wrong[0]);
    else if (n.latest[0] != 0 && !n.found_latest)
        printf("latest: names %s, which is not there\n", n.latest);
    if (n.wrong[1][0] != 0)
        printf("best: %s\n", n.wrong[1]);
    else if (n.best.step >= 0 && !n.found_best)
        printf("best: names %s, which is not there\n", n.best.name);
    return DSC_OK;
}

static dsc_status ckpt_ls(dsc_alloc *alloc, const char *dir, dsc_error *err)
{
    char path[PATH_BYTES];
    char **names = NULL;
    int64_t count = 0;
    DSC_TRY(dsc_path_join(path, sizeof path, dir, "manifest.json", err));
    if (dsc_io_kind(path) == DSC_PATH_FILE) {
        print_row(alloc, dir, dir, "");
        return DSC_OK;
    }
    if (dsc_io_kind(dir) != DSC_PATH_DIR)
        return DSC_FAIL(err, DSC_ERR_INPUT, dir, "%s",
                        dsc_io_kind(dir) == DSC_PATH_MISSING ? "no such checkpoint folder" : "is not a folder");
    DSC_TRY(dsc_io_list(NULL, alloc, dir, &names, &count, err));
    const dsc_status status = list_steps(alloc, dir, names, count, err);
    dsc_io_list_free(alloc, names, count);
    return status;
}

/* ---- verify and hash ---- */

static dsc_status ckpt_verify(dsc_alloc *alloc, const char *dir, dsc_error *err)
{
    char step_dir[PATH_BYTES], part[PART_TEXT];
    dsc_run_state state;
    int64_t bytes;
    DSC_TRY(dsc_ckpt_find(NULL, alloc, dir, step_dir, sizeof step_dir, err));
    DSC_TRY(dsc_ckpt_summary(NULL, alloc, step_dir, &state, &bytes, err));
    DSC_TRY(dsc_ckpt_verify(NULL, alloc, step_dir, err));
    DSC_TRY(dsc_ckpt_part(NULL, alloc, step_dir, part, sizeof part, err));
    printf("%s: good, step %lld, %.2f MiB\n", step_dir, (long long)state.step, (double)bytes / 1048576.0);
    if (part[0] != 0)
        printf("only %s was looked at; the others are on the other hosts' disks, and make a whole with it: dsc ckpt "
               "merge PART... --out FOLDER\n", part);
    return DSC_OK;
}

static dsc_status ckpt_hash(dsc_alloc *alloc, const char *dir, dsc_error *err)
{
    char step_dir[PATH_BYTES], hex[65];
    DSC_TRY(dsc_ckpt_find(NULL, alloc, dir, step_dir, sizeof step_dir, err));
    DSC_TRY(dsc_ckpt_hash(NULL, alloc, step_dir, hex, err));
    printf("%s\n", hex);
    return DSC_OK;
}

typedef struct dir_args { const char *dir; } dir_args;

static const dsc_positional dirs[] = {
    { "DIR", "folder with checkpoints, DIR/step-N or DIR/best", "folder", offsetof(dir_args, dir), 1, 1 },
};
#define EXIT_CODES "0 done; 1 failed; 2 wrong command line, or no whole checkpoint"
static const dsc_flag_command ls_page = {
    .name = "dsc ckpt ls", .description = "Lists the checkpoints of a folder, by their manifests and headers.",
    .positionals = dirs, .positional_count = 1, .exit_codes = EXIT_CODES,
};
static const dsc_flag_command verify_page = {
    .name = "dsc ckpt verify", .description = "Reads every byte of a checkpoint and compares the checksums.",
    .positionals = dirs, .positional_count = 1, .exit_codes = EXIT_CODES,
};
static const dsc_flag_command hash_page = {
    .name = "dsc ckpt hash",
    .description = "Prints one SHA-256 of master weights, moments and step; equal for runs with equal bits.",
    .positionals = dirs, .positional_count = 1, .exit_codes = EXIT_CODES,
};

static int look(const dsc_flag_command *page, dsc_status (*show)(dsc_alloc *, const char *, dsc_error *), int argc,
                char **argv)
{
    dir_args args = { 0 };
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    const int code = dsc_tool_parse(page, argc, argv, &args);
    if (code >= 0)
        return code;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    const dsc_status status = show(alloc, args.dir, &err);
    dsc_alloc_close(&alloc);
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}

static int run_ls(int argc, char **argv) { return look(&ls_page, ckpt_ls, argc, argv); }
static int run_verify(int argc, char **argv) { return look(&verify_page, ckpt_verify, argc, argv); }
static int run_hash(int argc, char **argv) { return look(&hash_page, ckpt_hash, argc, argv); }

int dsc_cmd_ckpt(int argc, char **argv)
{
    static const dsc_tool_verb verbs[] = {
        { &ls_page, run_ls },
        { &verify_page, run_verify },
        { &hash_page, run_hash },
        { &dsc_tool_ckpt_diff_page, dsc_tool_ckpt_diff },
        { &dsc_tool_ckpt_prune_page, dsc_tool_ckpt_prune },
        { &dsc_tool_ckpt_export_page, dsc_tool_ckpt_export },
        { &dsc_tool_ckpt_merge_page, dsc_tool_ckpt_merge },
    };
    return dsc_tool_run_verb("dsc ckpt", "Works on checkpoints without a model or a run.", verbs,
                             (int32_t)DSC_COUNT(verbs), argc, argv);
}
