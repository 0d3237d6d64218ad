/* test_checkpoint.c - a checkpoint holds the states of memory, and every stage, world size and precision continues
 * from it.
 *
 * Ranks are threads, the model a small one with a tied parameter and a frozen group. Files are compared with memory by
 * the hash of DESIGN section 7, which the test computes from the slices itself. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/formats/safetensors.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/toy_model.h"

static char *dir; /* folder of the running test */
static dsc_alloc *alloc;
static dsc_model *model;

static int setup(void **state)
{
    dir = cw_tmp_open();
    model = toy_model_open(5, 37, 2, true);
    return dsc_alloc_open(&alloc, NULL) == DSC_OK ? 0 : -1;
}

static int teardown(void **state)
{
    dsc_alloc_close(&alloc);
    toy_model_close(model);
    cw_tmp_close(dir);
    return 0;
}

static void run(const cw_options *options, cw_script script, void *user)
{
    cw_rank ranks[CW_RANKS_MAX];
    cw_run(options, script, user, ranks);
    for (int32_t r = 0; r < options->world; r++)
        if (ranks[r].status != DSC_OK)
            fail_msg("rank %d: %s: %s", (int)r, ranks[r].error.where, ranks[r].error.message);
}

/* ---- round trips ---- */

/* A run continues after its save as if there was none, and its files hold the states of memory. Any world size and
 * stage that loads the files has these states and ends with the same result. */
static void every_world_and_stage_goes_on(void **state)
{
    char name[32], hex[65];
    dsc_error err = DSC_ERROR_INIT;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        cw_trip whole = { .save_step = 2, .end_step = 5 };
        run(&(cw_options){ .world = 1, .bf16 = bf16, .model = model }, cw_make_trip, &whole);
        for (int source = 0; source < 12; source++) {
            const int32_t world = 1 + source % 3, stage = source / 3;
            snprintf(name, sizeof name, "from-%d-%d-%d", bf16, (int)world, (int)stage);
            cw_trip saving = { .save = cw_path(dir, name), .save_step = 2, .end_step = 3 };
            run(&(cw_options){ .world = world, .stage = stage, .bf16 = bf16, .model = model }, cw_make_trip, &saving);
            assert_string_equal(saving.saved_hash, whole.saved_hash);
            assert_memory_equal(&saving.loss[1], &whole.loss[1], 3 * sizeof(double));
            char *step_dir = cw_path(saving.save, "step-2");
            assert_int_equal(dsc_ckpt_verify(NULL, alloc, step_dir, &err), DSC_OK);
            assert_int_equal(dsc_ckpt_hash(NULL, alloc, step_dir, hex, &err), DSC_OK);
            assert_string_equal(hex, whole.saved_hash);
        }
        for (int target = 0; target < 12; target++) {
            const int32_t world = 1 + target % 3, stage = target / 3, source = (target * 7 + 5) % 12;
            snprintf(name, sizeof name, "from-%d-%d-%d", bf16, (int)(1 + source % 3), (int)(source / 3));
            cw_trip resumed = { .load = cw_path(dir, name), .save_step = 2, .end_step = 5 };
            run(&(cw_options){ .world = world, .stage = stage, .bf16 = bf16, .model = model }, cw_make_trip, &resumed);
            assert_string_equal(resumed.saved_hash, whole.saved_hash);
            assert_memory_equal(&resumed.loss[3], &whole.loss[3], 3 * sizeof(double));
            assert_string_equal(resumed.end_hash, whole.end_hash);
        }
    }
}

/* The default order of sums: the same world size goes on with the same bits. */
static void each_world_goes_on_with_its_own_sums(void **state)
{
    for (int32_t world = 1; world <= 4; world++) {
        const cw_options options = { .world = world, .stage = world % 4, .bf16 = true, .own_samples = true,
                                     .model = model };
        cw_trip whole = { .save = dir, .save_step = 2, .end_step = 5 }, resumed = { .load = dir, .save_step = 2,
                                                                                 .end_step = 5 };
        run(&options, cw_make_trip, &whole);
        run(&options, cw_make_trip, &resumed);
        assert_string_equal(resumed.end_hash, whole.end_hash);
        assert_memory_equal(&resumed.loss[3], &whole.loss[3], 3 * sizeof(double));
        cw_remove(cw_path(dir, "step-2"));
    }
}

/* A weight of several 1 MiB blocks, cut by slices in other places by each world size. */
static void blocks_and_slices_cut_tensors_differently(void **state)
{
    dsc_model *wide = toy_model_open(3, 540, 1, true);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        char first[65] = "";
        for (int32_t world = 3; world >= 1; world--) {
            cw_trip t = { .save = cw_path(dir, "a"), .save_step = 1, .end_step = 1 };
            cw_trip back = { .load = t.save, .save = cw_path(dir, "b"), .save_step = 1, .end_step = 1 };
            char hex[65];
            dsc_error err = DSC_ERROR_INIT;
            run(&(cw_options){ .world = world, .stage = 3, .bf16 = bf16, .model = wide }, cw_make_trip, &t);
            run(&(cw_options){ .world = 1 + world % 3, .stage = 1, .bf16 = bf16, .model = wide }, cw_make_trip, &back);
            assert_string_equal(back.saved_hash, t.saved_hash);
            assert_int_equal(dsc_ckpt_verify(NULL, alloc, cw_path(back.save, "step-1"), &err), DSC_OK);
            assert_int_equal(dsc_ckpt_hash(NULL, alloc, cw_path(back.save, "step-1"), hex, &err), DSC_OK);
            assert_string_equal(hex, t.saved_hash);
            if (first[0] != 0)
                assert_string_equal(first, hex);
            memcpy(first, hex, 65);
            cw_remove(cw_path(dir, "a"));
            cw_remove(cw_path(dir, "b"));
        }
    }
    toy_model_close(wide);
}

/* ---- warnings ---- */

typedef struct lines {
    int count;
    char text[1024];
} lines;

static void keep_line(void *user, dsc_log_level level, const char *text)
{
    lines *l = user;
    if (level != DSC_LOG_WARNING || strncmp(text, "resume: ", 8) != 0)
        return;
    l->count++;
    snprintf(l->text, sizeof l->text, "%s", text);
}

static void expect_warning(cw_options *options, const char *words)
{
    lines seen = { 0 };
    cw_trip t = { .load = dir, .save_step = 2, .end_step = 3 };
    options->model = model;
    options->log = (dsc_log){ keep_line, &seen };
    run(options, cw_make_trip, &t);
    assert_int_equal(seen.count, words != NULL ? 1 : 0);
    if (words != NULL)
        assert_non_null(strstr(seen.text, words));
}

static void differences_are_one_line_each(void **state)
{
    const cw_options saving = { .world = 2, .stage = 1, .bf16 = true, .model = model };
    cw_trip t = { .save = dir, .save_step = 2, .end_step = 2 };
    run(&saving, cw_make_trip, &t);
    expect_warning(&(cw_options){ .world = 2, .stage = 1, .bf16 = true }, NULL);
    expect_warning(&(cw_options){ .world = 2, .stage = 3, .bf16 = true }, NULL); /* no bit depends on it */
    expect_warning(&(cw_options){ .world = 3, .stage = 1, .bf16 = true }, NULL); /* "reproducible": "world_size" */
    expect_warning(&(cw_options){ .world = 3, .stage = 1, .bf16 = true, .own_samples = true }, "world size");
    expect_warning(&(cw_options){ .world = 2, .stage = 1, .bf16 = true, .seed = 6 },
                   "dsc.seed was 5 in the saved run and is 6; other samples");
    expect_warning(&(cw_options){ .world = 2, .stage = 1, .bf16 = true, .own_samples = true },
                   "dsc.reproducible was world_size in the saved run and is plan; bits may differ");
    expect_warning(&(cw_options){ .world = 2, .stage = 1, .bf16 = true, .own = ", \"gradients\": \"bf16\"" },
                   "dsc.gradients was fp32 in the saved run and is bf16; the run goes on with the new value");
    dsc_model wider = *model;
    wider.config_json = "{\"eps\": 1e-5, \"use_cache\": true}";
    cw_trip eps = { .save = cw_path(dir, "eps"), .save_step = 1, .end_step = 1 };
    run(&(cw_options){ .world = 2, .stage = 1, .bf16 = true, .model = &wider }, cw_make_trip, &eps);
    wider.config_json = "{\"eps\": 1e-6}";
    lines seen = { 0 };
    cw_trip again = { .load = eps.save, .save_step = 1, .end_step = 1 };
    run(&(cw_options){ .world = 2, .stage = 1, .bf16 = true, .model = &wider, .log = { keep_line, &seen } },
        cw_make_trip, &again);
    assert_int_equal(seen.count, 1);
    assert_non_null(strstr(seen.text, "\"eps\" of the model's config.json was 1e-05 in the saved run and is 1e-06"));
    expect_warning(&(cw_options){ .world = 2, .stage = 1, .bf16 = true, .caps_mask = 1u << 31 },
                   "saved on a machine with");
    expect_warning(&(cw_options){ .world = 2, .stage = 1, .bf16 = false }, "saved in bf16, the run goes on in fp32");
    expect_warning(&(cw_options){ .world = 2, .stage = 1, .bf16 = true, .bf16_moments = true },
                   "moments were saved in fp32, the run goes on with bf16");
}

/* bf16 to fp32 keeps every bit of master, m and v; fp32 to bf16 too, as its weights are the masters. */
static void precisions_take_each_other(void **state)
{
    for (int bf16 = 0; bf16 < 2; bf16++) {
        cw_trip t = { .save = cw_path(dir, bf16 ? "low" : "high"), .save_step = 2, .end_step = 2 };
        cw_trip other = { .load = t.save, .save = cw_path(dir, "other"), .save_step = 2, .end_step = 4 };
        cw_trip back = { .load = other.save, .save_step = 2, .end_step = 2 };
        run(&(cw_options){ .world = 2, .stage = 2, .bf16 = bf16, .model = model }, cw_make_trip, &t);
        run(&(cw_options){ .world = 3, .stage = 3, .bf16 = !bf16, .model = model }, cw_make_trip, &other);
        run(&(cw_options){ .world = 1, .stage = 0, .bf16 = bf16, .model = model }, cw_make_trip, &back);
        assert_string_equal(other.saved_hash, t.saved_hash);
        assert_string_equal(back.saved_hash, t.saved_hash);
        cw_remove(other.save);
    }
}

/* Moments in bf16 go on anywhere with the same bits; into fp32 they keep every bit, and back. */
static void moments_in_bf16(void **state)
{
    const cw_options low = { .world = 2, .stage = 1, .bf16 = true, .bf16_moments = true, .model = model };
    cw_trip whole = { .save = cw_path(dir, "low"), .save_step = 2, .end_step = 5 };
    char hex[65];
    dsc_error err = DSC_ERROR_INIT;
    run(&low, cw_make_trip, &whole);
    assert_int_equal(dsc_ckpt_hash(NULL, alloc, cw_path(whole.save, "step-2"), hex, &err), DSC_OK);
    assert_string_equal(hex, whole.saved_hash);
    for (int32_t world = 1; world <= 3; world++) {
        cw_trip resumed = { .load = whole.save, .save_step = 2, .end_step = 5 };
        run(&(cw_options){ .world = world, .stage = 3 - world % 3, .bf16 = true, .bf16_moments = true, .model = model },
            cw_make_trip, &resumed);
        assert_string_equal(resumed.saved_hash, whole.saved_hash);
        assert_string_equal(resumed.end_hash, whole.end_hash);
    }
    cw_trip high = { .load = whole.save, .save = cw_path(dir, "high"), .save_step = 2, .end_step = 5 };
    cw_trip back = { .load = high.save, .save_step = 2, .end_step = 5 };
    run(&(cw_options){ .world = 3, .stage = 2, .bf16 = true, .model = model }, cw_make_trip, &high);
    assert_string_equal(high.saved_hash, whole.saved_hash);
    assert_string_not_equal(high.end_hash, whole.end_hash);
    run(&low, cw_make_trip, &back);
    assert_string_equal(back.end_hash, whole.end_hash);
}

/* ---- what is refused, and leaves everything as it was ---- */

typedef struct refusal {
    const char *load, *save, *where, *words;
} refusal;

static dsc_status meet_refusal(cw_rank *rank, dsc_error *err)
{
    const refusal *r = rank->user;
    char was[65], is[65];
    DSC_TRY(cw_train(rank, 2, err));
    cw_hash(rank, was);
    const dsc_status status = r->load != NULL ? dsc_engine_load(rank->engine, r->load, err)
                                              : dsc_engine_save(rank->engine, r->save, err);
    CW_CHECK(status == DSC_ERR_INPUT);
    if (strstr(err->message, r->words) == NULL || strstr(err->where, r->where) == NULL)
        cw_fail(r->words, __FILE__, __LINE__, err->message);
    cw_hash(rank, is);
    CW_CHECK(strcmp(was, is) == 0);
    /* The engine goes on. */
    return cw_train(rank, 3, err);
}

/* Moments in 8 bits go on anywhere with the same bits, and are not converted into others or from them. */
static void moments_in_8_bits(void **state)
{
    static const char own[] = ", \"moments\": \"8bit\"";
    cw_trip whole = { .save = cw_path(dir, "low"), .save_step = 2, .end_step = 5 };
    cw_trip wide = { .save = cw_path(dir, "wide"), .save_step = 2, .end_step = 2 };
    char hex[65];
    dsc_error err = DSC_ERROR_INIT;
    run(&(cw_options) { .world = 2, .stage = 1, .bf16 = true, .own = own, .model = model }, cw_make_trip, &whole);
    assert_int_equal(dsc_ckpt_hash(NULL, alloc, cw_path(whole.save, "step-2"), hex, &err), DSC_OK);
    assert_string_equal(hex, whole.saved_hash);
    for (int32_t world = 1; world <= 3; world++) {
        cw_trip resumed = { .load = whole.save, .save_step = 2, .end_step = 5 };
        run(&(cw_options) { .world = world, .stage = 3 - world % 3, .bf16 = true, .own = own, .model = model },
            cw_make_trip, &resumed);
        assert_string_equal(resumed.saved_hash, whole.saved_hash);
        assert_string_equal(resumed.end_hash, whole.end_hash);
    }
    cw_trip in_files = { .load = whole.save, .save = cw_path(dir, "again"), .save_step = 5, .end_step = 5 };
    run(&(cw_options) { .world = 2, .stage = 3, .bf16 = true, .own = own, .async = true, .model = model }, cw_make_trip,
        &in_files);
    assert_string_equal(in_files.saved_hash, whole.end_hash);
    refusal to_wide = { .load = whole.save,
                        .where = "optimizer.safetensors",
                        .words = "moments were saved in 8bit, and this run keeps them in fp32" };
    run(&(cw_options) { .world = 2, .stage = 1, .bf16 = true, .model = model }, meet_refusal, &to_wide);
    run(&(cw_options) { .world = 2, .stage = 1, .bf16 = true, .model = model }, cw_make_trip, &wide);
    refusal to_low = { .load = wide.save,
                       .where = "optimizer.safetensors",
                       .words = "moments were saved in fp32, and this run keeps them in 8bit" };
    run(&(cw_options) { .world = 2, .stage = 3, .bf16 = true, .own = own, .model = model }, meet_refusal, &to_low);
}

/* Codes of 0, so that no absmax of a last block comes from behind its tensor. */
static dsc_status load_and_see_padding(cw_rank *rank, dsc_error *err)
{
    const dsc_layout *layout = dsc_probe_layout(rank->engine);
    DSC_TRY(dsc_engine_load(rank->engine, rank->user, err));
    for (int32_t t = 0; t < layout->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &layout->tensor[t];
        dsc_zero_slice slice;
        dsc_zero_slice_get(dsc_probe_zero(rank->engine), tensor->group, &slice);
        const int64_t end = tensor->offset + tensor->count, at = end - slice.first;
        int64_t count = dsc_align_up(end, DSC_Q8_BLOCK) - end;
        if (!slice.trainable || count == 0 || at < 0 || at >= slice.count)
            continue;
        for (int32_t k = 0; k < DSC_UPDATE_STATES_U8; k++) {
            void *code;
            DSC_TRY(dsc_zero_view(dsc_probe_zero(rank->engine), tensor->group, (dsc_plane)(DSC_PLANE_MOMENT1 + k), at,
                                  &count, false, &code, err));
            for (int64_t i = 0; i < count; i++)
                CW_CHECK(((const uint8_t *)code)[i] == DSC_Q8_ZERO(k));
        }
    }
    return DSC_OK;
}

static void padding_behind_8_bit_moments_is_loaded_as_0(void **state)
{
    static const char own[] = ", \"moments\": \"8bit\"";
    cw_trip whole = { .save = cw_path(dir, "low"), .save_step = 2, .end_step = 2 };
    run(&(cw_options){ .world = 2, .stage = 1, .bf16 = true, .own = own, .model = model }, cw_make_trip, &whole);
    for (int32_t world = 1; world <= 3; world++)
        run(&(cw_options){ .world = world, .stage = world, .bf16 = true, .own = own, .model = model },
            load_and_see_padding, cw_path(dir, "low"));
}

static void an_existing_step_is_refused(void **state)
{
    size_t before, after;
    cw_trip t = { .save = dir, .save_step = 2, .end_step = 2 };
    run(&(cw_options){ .world = 2, .model = model }, cw_make_trip, &t);
    char *was = cw_read(cw_path(dir, "step-2/manifest.json"), &before);
    refusal again = { .save = dir, .where = "step-2", .words = "exists already" };
    run(&(cw_options){ .world = 2, .model = model }, meet_refusal, &again);
    run(&(cw_options){ .world = 1, .stage = 3, .bf16 = true, .model = model }, meet_refusal, &again);
    char *is = cw_read(cw_path(dir, "step-2/manifest.json"), &after);
    assert_int_equal(before, after);
    assert_memory_equal(was, is, before);
    free(was);
    free(is);
    assert_false(cw_exists(cw_path(dir, "step-2.tmp")));
    /* Whatever has this name is not ours: a file, an empty folder, a link. */
    cw_remove(cw_path(dir, "step-2"));
    cw_write(cw_path(dir, "step-2"), "", 0);
    run(&(cw_options){ .world = 2, .model = model }, meet_refusal, &again);
    cw_remove(cw_path(dir, "step-2"));
    assert_int_equal(mkdir(cw_path(dir, "step-2"), 0755), 0);
    run(&(cw_options){ .world = 2, .model = model }, meet_refusal, &again);
    cw_remove(cw_path(dir, "step-2"));
    assert_int_equal(symlink("nowhere", cw_path(dir, "step-2")), 0);
    run(&(cw_options){ .world = 2, .model = model }, meet_refusal, &again);
}

static void the_resumed_step_is_kept(void **state)
{
    size_t bytes;
    const cw_options options = { .world = 2, .stage = 2, .bf16 = true, .model = model };
    cw_trip t = { .save = dir, .save_step = 2, .end_step = 2 }, later = { .load = dir, .save = dir, .save_step = 4 };
    run(&options, cw_make_trip, &t);
    run(&options, cw_make_trip, &later);
    /* Loaded as the parent's latest, as one step, with a slash: it is the same folder. */
    char *names[] = { dir, cw_path(dir, ""), cw_path(dir, "step-4"), cw_path(dir, "step-4/") };
    for (size_t i = 0; i < DSC_COUNT(names); i++) {
        cw_trip same = { .load = names[i], .save = i % 2 ? dir : cw_path(dir, ""), .save_step = 4, .end_step = 4 };
        run(&options, cw_make_trip, &same);
    }
    /* Going back makes an older one the latest again. */
    cw_trip back = { .load = cw_path(dir, "step-2"), .save = dir, .save_step = 2, .end_step = 2 };
    run(&options, cw_make_trip, &back);
    char *latest = cw_read(cw_path(dir, "latest"), &bytes);
    assert_string_equal(latest, "step-2\n");
    free(latest);
    /* The folders to keep must still exist. */
    cw_trip other = { .load = cw_path(dir, "step-4"), .save = cw_path(dir, "new/../new/deep"), .save_step = 4 };
    run(&options, cw_make_trip, &other);
    assert_true(cw_exists(cw_path(dir, "new/deep/step-4/manifest.json")));
    assert_true(cw_exists(cw_path(dir, "new/deep/latest")));
}

static void other_models_are_refused(void **state)
{
    cw_trip t = { .save = dir, .save_step = 2, .end_step = 2 };
    run(&(cw_options){ .world = 2, .bf16 = true, .model = model }, cw_make_trip, &t);
    static const struct { int64_t in, width; int32_t blocks; bool frozen; const char *where, *words; } others[] = {
        { 5, 38, 2, true, "model.safetensors", "has the shape [5,37]; the model's is [5,38]" },
        { 5, 37, 3, true, "model.safetensors", "has no \"block.2.weight\"" },
        { 5, 37, 1, true, "model.safetensors", "8 tensors; the model has 5" },
        { 5, 37, 2, false, "optimizer.safetensors", "has no \"master.block.0.scale\"" },
    };
    for (size_t i = 0; i < DSC_COUNT(others); i++) {
        dsc_model *other = toy_model_open(others[i].in, others[i].width, others[i].blocks, others[i].frozen);
        refusal r = { .load = dir, .where = others[i].where, .words = others[i].words };
        run(&(cw_options){ .world = 3, .stage = 3, .bf16 = true, .model = other }, meet_refusal, &r);
        toy_model_close(other);
    }
    refusal none = { .load = cw_path(dir, "nowhere"), .where = "nowhere", .words = "no such checkpoint folder" };
    run(&(cw_options){ .world = 2, .model = model }, meet_refusal, &none);
}

/* ---- the folder's parts ---- */

static void config_files_are_as_given_but_for_the_dtype(void **state)
{
    size_t bytes;
    dsc_run_state saved;
    int64_t file_bytes;
    dsc_error err = DSC_ERROR_INIT;
    dsc_model with_config = *model;
    with_config.config_json = "{\"model_type\": \"toy\"}\n";
    cw_trip t = { .save = cw_path(dir, "deep/er"), .save_step = 2, .end_step = 2 };
    run(&(cw_options){ .world = 2, .stage = 1, .model = &with_config }, cw_make_trip, &t);
    char *step_dir = cw_path(t.save, "step-2");
    char *text = cw_read(cw_path(step_dir, "config.json"), &bytes);
    assert_string_equal(text, "{\n  \"torch_dtype\": \"float32\",\"model_type\": \"toy\"}\n");
    free(text);
    text = cw_read(cw_path(step_dir, "ds_config.json"), &bytes);
    assert_non_null(strstr(text, "\"lr\": 0.01"));
    free(text);
    text = cw_read(cw_path(t.save, "latest"), &bytes);
    assert_string_equal(text, "step-2\n");
    free(text);
    assert_int_equal(dsc_ckpt_summary(NULL, alloc, step_dir, &saved, &file_bytes, &err), DSC_OK);
    assert_int_equal(saved.step, 2);
    assert_int_equal(saved.update_count, 2);
    assert_int_equal(saved.next_sample, 24);
    assert_int_equal(saved.seed, 5);
    assert_int_equal(saved.train_batch_size, 12);
    assert_int_equal(saved.accumulation_steps, 6);
    assert_int_equal(saved.world_size, 2);
    assert_int_equal(saved.zero_stage, 1);
    assert_int_equal(saved.compute_dtype, DSC_F32);
    assert_true(saved.world_size_reproducible);
    struct stat model_file, optimizer_file;
    assert_int_equal(stat(cw_path(step_dir, "model.safetensors"), &model_file), 0);
    assert_int_equal(stat(cw_path(step_dir, "optimizer.safetensors"), &optimizer_file), 0);
    assert_int_equal(file_bytes, model_file.st_size + optimizer_file.st_size);
}

/* Unpadded, tied tensors once, in the dtypes that other programs expect. */
static void files_are_plain_safetensors(void **state)
{
    for (int bf16 = 0; bf16 < 2; bf16++) {
        cw_trip t = { .save = cw_path(dir, bf16 ? "low" : "high"), .save_step = 1, .end_step = 1 };
        dsc_safetensors *st = NULL;
        dsc_error err = DSC_ERROR_INIT;
        run(&(cw_options){ .world = 3, .stage = 3, .bf16 = bf16, .model = model }, cw_make_trip, &t);
        assert_int_equal(dsc_safetensors_open(&st, NULL, alloc, cw_path(t.save, "step-1/model.safetensors"), &err),
                         DSC_OK);
        assert_int_equal(dsc_safetensors_count(st), 8);
        assert_string_equal(dsc_safetensors_metadata(st, "format"), "pt");
        const dsc_safetensors_entry *entry = dsc_safetensors_find(st, "input.weight");
        assert_non_null(entry);
        assert_int_equal(entry->count, 5 * 37);
        assert_int_equal(entry->desc.dtype, bf16 ? DSC_BF16 : DSC_F32);
        dsc_safetensors_close(&st);
        assert_int_equal(dsc_safetensors_open(&st, NULL, alloc, cw_path(t.save, "step-1/optimizer.safetensors"), &err),
                         DSC_OK);
        assert_int_equal(dsc_safetensors_count(st), bf16 ? 18 : 12); /* two frozen tensors have no states */
        entry = dsc_safetensors_find(st, "exp_avg_sq.block.1.weight");
        assert_non_null(entry);
        assert_int_equal(entry->desc.dtype, DSC_F32);
        assert_true((dsc_safetensors_find(st, "master.block.1.weight") != NULL) == (bf16 != 0));
        dsc_safetensors_close(&st);
    }
}

/* ---- memory ---- */

typedef struct measure { int64_t planned, taken; } measure;

static void take_measure(cw_rank *rank, const dsc_alloc_stats *before, bool saves, bool loads)
{
    dsc_alloc_stats after;
    dsc_alloc_stats_get(dsc_probe_alloc(rank->engine), &after);
    CW_CHECK(before->live_count == after.live_count);
    const dsc_dtype dtype = rank->options->bf16 ? DSC_BF16 : DSC_F32;
    const dsc_ckpt_uses uses = { .saves = saves, .loads = loads, .node_local = rank->options->node_local };
    if (rank->rank == 0)
        *(measure *)rank->user =
            (measure) { dsc_ckpt_plan_bytes(dsc_probe_layout(rank->engine), dtype,
                                            dsc_probe_config(rank->engine)->own.moments,
                                            dsc_probe_config(rank->engine)->optimizer.recipe, &uses),
                        after.tier_peak_bytes[DSC_TIER_HOST] - before->tier_current_bytes[DSC_TIER_HOST] };
}

/* The folder of a host that has a disk of its own. */
static const char *host_folder(int32_t host)
{
    char name[32];
    snprintf(name, sizeof name, "host-%d", (int)host);
    return cw_path(dir, name);
}

/* Folders of ranks for saving (the last two ranks are on one host) and for loading (rank 0's host has no file). */
static const char *saves_to(const cw_rank *rank)
{
    const int32_t last = rank->options->world > 1 ? rank->options->world - 2 : 0;
    return rank->options->node_local ? host_folder(rank->rank < last ? rank->rank : last) : dir;
}
static const char *loads_from(const cw_rank *rank)
{
    const int32_t host = rank->options->world > 1 ? rank->rank - 1 : 0;
    return rank->options->node_local ? host_folder(host) : dir;
}

static dsc_status measure_save(cw_rank *rank, dsc_error *err)
{
    dsc_alloc_stats before;
    DSC_TRY(cw_train(rank, 1, err));
    dsc_alloc_stats_get(dsc_probe_alloc(rank->engine), &before);
    DSC_TRY(cw_save(rank, saves_to(rank), err));
    take_measure(rank, &before, true, false);
    return DSC_OK;
}

static dsc_status measure_both(cw_rank *rank, dsc_error *err)
{
    dsc_alloc_stats before;
    DSC_TRY(cw_train(rank, 1, err));
    dsc_alloc_stats_get(dsc_probe_alloc(rank->engine), &before);
    DSC_TRY(dsc_engine_save(rank->engine, saves_to(rank), err));
    DSC_TRY(dsc_engine_load(rank->engine, loads_from(rank), err));
    take_measure(rank, &before, true, true);
    return DSC_OK;
}

/* Rank 0 has the most: the lists of all ranks. The plan is sufficient and close to the memory taken. */
static void memory_is_planned(void **state)
{
    static const struct { int64_t width; int32_t blocks; const char *optimizer; } sizes[] = {
        { 16, 1, "SGD" }, { 16, 14, NULL }, { 600, 14, NULL }, { 16, 14, "SGD" }
    };
    for (size_t i = 0; i < DSC_COUNT(sizes); i++) {
        dsc_model *deep = toy_model_open(3, sizes[i].width, sizes[i].blocks, false);
        for (int bf16 = 0; bf16 < 2; bf16++)
            for (int32_t world = 1; world <= 4; world += 3) {
                /* A save, one beside training, a save and a load; and of parts. */
                for (int how = 0; how < (bf16 && world > 1 ? 6 : 3); how++) {
                    measure m;
                    run(&(cw_options){ .world = world, .stage = 3, .bf16 = bf16, .async = how % 3 == 1, .model = deep,
                                       .optimizer = sizes[i].optimizer, .node_local = how >= 3 },
                        how % 3 == 2 ? measure_both : measure_save, &m);
                    assert_true(m.taken <= m.planned);
                    assert_true(m.taken > m.planned / 2);
                    cw_remove(cw_path(dir, "step-1"));
                    for (int32_t host = 0; host < 4; host++)
                        cw_remove(host_folder(host));
                }
            }
        toy_model_close(deep);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_world_and_stage_goes_on),
        TEST(each_world_goes_on_with_its_own_sums),
        TEST(blocks_and_slices_cut_tensors_differently),
        TEST(differences_are_one_line_each),
        TEST(precisions_take_each_other),
        TEST(moments_in_bf16),
        TEST(moments_in_8_bits),
        TEST(padding_behind_8_bit_moments_is_loaded_as_0),
        TEST(an_existing_step_is_refused),
        TEST(the_resumed_step_is_kept),
        TEST(other_models_are_refused),
        TEST(config_files_are_as_given_but_for_the_dtype),
        TEST(files_are_plain_safetensors),
        TEST(memory_is_planned),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
