/* test_gemm_plans.c - which algorithms matrix products take: measured by rank 0, the same on all ranks, kept by
 * checkpoints.
 *
 * The simulator's cuBLASLt has two algorithms of the same bits, one that adds up in another order, and one that is
 * not repeatable; tests say which are fast. On a real GPU (tests/gpu/real.c) nobody can say, and only what must hold
 * there too is tested.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/cusim.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/tiny_gpt.h"

#define TEXT_BYTES 65536

static dsc_model *model;

typedef struct look {
    const char *load, *save; /* NULL: none */
    const char *named;       /* more of the config's "dsc", beginning with a comma; NULL: nothing */
    char log[8192];          /* rank 0's lines about matrix products */
    char attention[1024];    /* its lines about attention */
    char plans[8][TEXT_BYTES]; /* plans of each rank's device after its steps */
} look;

static dsc_status before(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const look *l = user;
    return l->load != NULL ? dsc_engine_load(engine, l->load, err) : DSC_OK;
}

static dsc_status after(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    look *l = user;
    int64_t bytes;
    DSC_TRY(dsc_gemm_plans_get(dsc_probe_device(engine), l->plans[rank], TEXT_BYTES, &bytes, err));
    DSC_ASSERT(bytes < TEXT_BYTES);
    return l->save != NULL ? dsc_engine_save(engine, l->save, err) : DSC_OK;
}

static void keep_line(void *user, dsc_log_level level, const char *text)
{
    look *l = user;
    const size_t used = strlen(l->log);
    if (strstr(text, "matrix products") != NULL)
        snprintf(l->log + used, sizeof l->log - used, "%s\n", text);
    if (strncmp(text, "attention: ", 11) == 0)
        snprintf(l->attention, sizeof l->attention, "%s", text);
}

static void run(const char *plans, int32_t world, int32_t stage, int64_t steps, look *l, run_result *out)
{
    char config[1024];
    l->log[0] = l->attention[0] = 0;
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true},"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},"
             " \"zero_optimization\": {\"stage\": %d, \"reduce_bucket_size\": 20000},"
             " \"dsc\": {\"threads\": 1, \"device\": \"cuda\", \"comm_timeout_s\": 60, \"gemm_plans\": \"%s\"%s}}",
             (int)stage, plans, l->named != NULL ? l->named : "");
    const run_options options = { .world = world, .steps = steps, .model = model, .config = config,
                                  .data = tiny_gpt_data(model, 1 << 20), .before = before, .after = after, .user = l,
                                  .log = { keep_line, l },
                                  .fault_rank = -1 };
    run_well(&options, out);
    for (int32_t r = 1; r < world; r++)
        assert_string_equal(l->plans[0], l->plans[r]);
}

static int count_text(const char *text, const char *what)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++)
        count++;
    return count;
}

/* How many products take the simulator's algorithm `id`; all of them with 0. */
static int count_plans(const char *text, int id)
{
    char algorithm[32];
    snprintf(algorithm, sizeof algorithm, ": %016d", id);
    return id == 0 ? count_text(text, ": ") - count_text(text, ": apart") : count_text(text, algorithm);
}

static void all_take(const look *l, int id)
{
    assert_true(count_plans(l->plans[0], 0) > 5);
    assert_int_equal(count_plans(l->plans[0], id), count_plans(l->plans[0], 0));
}

static const unsigned first_is_fast[4] = { 100, 200, 200, 1 }, second_is_fast[4] = { 200, 100, 20, 1 },
                      third_is_fast[4] = { 200, 150, 50, 1 }, nearly_equal[4] = { 100, 99, 98, 1 };

/* Whatever is fast, a run that keeps the bits has them; one that takes the fastest has others when that adds up in
 * another order. */
static void same_bits_whatever_is_fast(void **state)
{
    static look one, two, three;
    run_result first, second, third;
    const int32_t world = run_most_ranks(4);
    const int64_t steps = world > 1 ? 2 : 8; /* few numbers may round alike in another order */
    cusim_set_product_ticks(first_is_fast);
    run("same_bits", world, 0, steps, &one, &first);
    cusim_set_product_ticks(second_is_fast);
    run("same_bits", world, world > 1 ? 3 : 0, steps, &two, &second);
    assert_string_equal(first.hash, second.hash);
    assert_memory_equal(first.loss, second.loss, sizeof first.loss);
    if (!cusim_present())
        return; /* "first" has another attention, whose products may add up otherwise */
    run("first", world, 1, steps, &three, &third);
    assert_string_equal(first.hash, third.hash);
    all_take(&one, 1);
    all_take(&two, 2);
    all_take(&three, 1);
    run("fastest", world, 1, steps, &three, &third);
    all_take(&three, 3); /* not 4, which is faster */
    assert_string_not_equal(first.hash, third.hash);
    cusim_set_product_ticks(nearly_equal);
    run("fastest", 1, 0, 1, &three, &third);
    all_take(&three, 1); /* a difference that may be noise */
}

/* How many products with an epilogue or an addend take algorithm `id`; all such with 0. */
static int count_ending(const char *text, int id)
{
    static const char *const ends[] = { " epilogue 1", " epilogue 3", " epilogue 4", " epilogue 5", " added " };
    char line[512], algorithm[32];
    int count = 0;
    snprintf(algorithm, sizeof algorithm, ": %016d", id);
    for (const char *at = text; *at != 0; at = strchr(at, '\n') + 1) {
        bool has_end = false;
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        for (size_t i = 0; i < DSC_COUNT(ends); i++)
            has_end = has_end || strstr(line, ends[i]) != NULL;
        count += has_end && (id == 0 || strstr(line, algorithm) != NULL);
    }
    return count;
}

/* The faster algorithm has the order of the first choice, but rounds sums to bf16 before it adds or multiplies. */
static void same_bits_sees_a_sum_that_is_rounded_early(void **state)
{
    static look one, two, three;
    run_result first, second, third;
    if (!cusim_present())
        skip();
    cusim_set_product_ticks(first_is_fast);
    run("same_bits", 1, 0, 2, &one, &first);
    cusim_set_product_ticks(second_is_fast);
    cusim_set_quirk(CUSIM_EARLY_ROUNDING);
    run("same_bits", 1, 0, 2, &two, &second);
    run("first", 1, 0, 2, &three, &third);
    cusim_set_quirk(CUSIM_AS_DOCUMENTED);
    /* Sums that end in fp32 have nothing to round. */
    assert_int_equal(count_ending(two.plans[0], 1), 5);
    assert_int_equal(count_ending(two.plans[0], 2), count_ending(two.plans[0], 0) - 5);
    assert_true(count_plans(two.plans[0], 2) > 5); /* whatever has no epilogue */
    assert_string_equal(first.hash, second.hash);
    assert_string_equal(first.hash, third.hash);
    assert_memory_equal(first.loss, second.loss, sizeof first.loss);
}

/* Measured again, the resumed run would take other algorithms: the checkpoint's count. */
static void a_resumed_run_keeps_its_algorithms(void **state)
{
    static look whole, part, rest, other;
    run_result all, begin, end, fresh;
    char *dir = cw_tmp_open();
    const int32_t world = run_most_ranks(2);
    cusim_set_product_ticks(third_is_fast);
    run("fastest", world, 1, 4, &whole, &all);
    part.save = dir;
    run("fastest", world, 3, 2, &part, &begin);
    cusim_set_product_ticks(first_is_fast);
    rest.load = dir;
    run("fastest", world, 2, 2, &rest, &end);
    assert_string_equal(part.plans[0], rest.plans[0]);
    if (cusim_present()) {
        all_take(&rest, 3);
        assert_string_equal(all.hash, end.hash);
        assert_memory_equal(&all.loss[2], &end.loss[0], 2 * sizeof(double));
        run("fastest", world, 2, 4, &other, &fresh);
        assert_string_not_equal(all.hash, fresh.hash); /* so the test can fail */
    }
    cw_tmp_close(dir);
}

static int lines_of(const char *text)
{
    int lines = 0;
    for (; *text != 0; text++)
        lines += *text == '\n';
    return lines;
}

/* Plans of the same card are reused without a measurement, plans of another card are measured anew: one line says
 * which. */
static void a_checkpoint_spares_measuring(void **state)
{
    static look first, named, restarted, other_card, unread;
    run_result result;
    char *dir = cw_tmp_open(), text[300], again[300];
    if (!cusim_present())
        skip();
    cusim_set_product_ticks(third_is_fast);
    cusim_times_taken();
    first.save = dir;
    run("fastest", 2, 1, 1, &first, &result);
    assert_true(cusim_times_taken() > 0);
    cusim_set_product_ticks(first_is_fast);
    snprintf(text, sizeof text, ", \"load\": \"%s\"", dir);
    named.named = text;
    named.load = dir;
    run("fastest", 2, 2, 1, &named, &result);
    cusim_times_taken(); /* two ranks time their waits for each other; the log says that no product was */
    assert_string_equal(first.plans[0], named.plans[0]);
    assert_int_equal(lines_of(named.log), 1);
    assert_non_null(strstr(named.log, "with the algorithms of "));
    assert_non_null(strstr(named.log, "none measured"));
    snprintf(again, sizeof again, ", \"load\": \"auto\", \"save\": \"%s\"", dir);
    restarted.named = again;
    restarted.load = dir;
    run("fastest", 1, 0, 1, &restarted, &result);
    assert_int_equal(cusim_times_taken(), 0);
    assert_string_equal(first.plans[0], restarted.plans[0]);
    cusim_set_arch(0, 80);
    other_card.named = text;
    run("fastest", 2, 1, 1, &other_card, &result);
    cusim_set_arch(0, 90);
    assert_true(cusim_times_taken() > 0);
    all_take(&other_card, 1);
    assert_int_equal(lines_of(other_card.log), 1);
    assert_non_null(strstr(other_card.log, "not for this GPU, cuBLASLt and shapes in "));
    assert_null(strstr(other_card.plans[0], "attention")); /* it has one kernel */
    assert_string_equal(other_card.attention, "");
    unread.named = ", \"load\": \"/nowhere\"";
    run("fastest", 1, 0, 1, &unread, &result); /* the load reports an unreadable checkpoint */
    assert_true(cusim_times_taken() > 0);
    cw_tmp_close(dir);
}

/* Whether the attention's forward pass, or its gradients, take this kernel. */
static void attention_is(const look *l, bool backward, const char *kind)
{
    const char *at = strstr(l->plans[0], backward ? "\nattention backward 2x16 " : "\nattention 2x16 ");
    char end[64];
    assert_non_null(at);
    snprintf(end, sizeof end, " causal window 0 by %s\n", kind);
    const char *found = strstr(at, end);
    if (found == NULL || found > strchr(at + 1, '\n'))
        fail_msg("not%s: %s; %s", end, l->plans[0], l->attention);
}

static void attentions_are(const look *l, const char *kind)
{
    attention_is(l, false, kind);
    attention_is(l, true, kind);
}

/* The model's attention has two kernels of each pass on this card. Neither times nor the bits of sums choose, so that
 * fresh runs agree. */
static void attention_takes_warpgroups_whatever_is_fast(void **state)
{
    static look warps, warpgroups;
    run_result first, second;
    if (!cusim_present())
        skip();
    cusim_set_product_ticks(first_is_fast);
    run("first", 2, 1, 2, &warps, &first);
    attentions_are(&warps, "warps");
    assert_string_equal(warps.attention, "");
    for (int slow = 0; slow < 3; slow++) {
        const char *const kernels[] = { NULL, "fwd_kernel<", "sm90_kernel<" };
        cusim_set_kernel_ticks(kernels[slow], 100);
        run(slow == 1 ? "fastest" : "same_bits", 2, slow, 2, &warpgroups, &second);
        attentions_are(&warpgroups, "warpgroups");
        assert_string_equal(warpgroups.attention, "attention: 2 of 2 passes tried, 2 take the kernel of warpgroups");
        assert_memory_equal(first.loss, second.loss, sizeof first.loss); /* in the simulator both add up alike */
    }
    cusim_set_kernel_ticks(NULL, 0);
    cusim_set_quirk(CUSIM_OTHER_ORDER);
    run("same_bits", 1, 0, 1, &warpgroups, &second);
    cusim_set_quirk(CUSIM_AS_DOCUMENTED);
    attentions_are(&warpgroups, "warpgroups");
}

/* Gradients that store those of scores have the bits of the others, so times may choose them. */
static void attention_stores_score_gradients_where_that_is_faster(void **state)
{
    static look before, stored, kept, without_room;
    run_result first, second, third;
    char *dir = cw_tmp_open();
    if (!cusim_present())
        skip();
    cusim_set_product_ticks(first_is_fast);
    run("same_bits", 2, 1, 2, &before, &first);
    attentions_are(&before, "warpgroups");
    cusim_set_kernel_ticks("dq_sm90_kernel<", 100);
    stored.save = dir;
    run("same_bits", 2, 1, 2, &stored, &second);
    attention_is(&stored, false, "warpgroups");
    attention_is(&stored, true, "warpgroups-stored");
    assert_string_equal(stored.attention, "attention: 1 of 1 backward passes are faster with stored score gradients");
    assert_memory_equal(first.loss, second.loss, sizeof first.loss);
    assert_string_equal(first.hash, second.hash);
    cusim_set_kernel_ticks("dkv_sm90_kernel<", 100); /* both have it */
    kept.load = dir;
    run("same_bits", 1, 0, 1, &kept, &third);
    attention_is(&kept, true, "warpgroups-stored");
    run("first", 1, 0, 1, &kept, &third); /* without trials no memory is planned for them */
    attention_is(&kept, true, "warpgroups");
    without_room.named = ", \"head_chunk_bytes\": 1";
    run("same_bits", 1, 0, 1, &without_room, &third);
    attention_is(&without_room, true, "warpgroups");
    run("fastest", 2, 1, 2, &before, &second);
    attentions_are(&before, "warpgroups");
    cusim_set_kernel_ticks(NULL, 0);
    cw_tmp_close(dir);
}

static void attention_keeps_the_recorded_kernels(void **state)
{
    static look recorded, kept;
    run_result result;
    if (!cusim_present())
        skip();
    for (int kind = 0; kind < 2; kind++) {
        char *dir = cw_tmp_open();
        recorded.save = kept.load = dir;
        run(kind == 0 ? "first" : "same_bits", 2, 1, 1, &recorded, &result);
        run(kind == 0 ? "same_bits" : "first", 1, 0, 1, &kept, &result);
        attentions_are(&kept, kind == 0 ? "warps" : "warpgroups");
        cw_tmp_close(dir);
    }
}

static void attention_never_takes_a_wrong_kernel(void **state)
{
    static look warps, wrong;
    run_result first, second;
    if (!cusim_present())
        skip();
    run("first", 2, 1, 2, &warps, &first);
    cusim_set_quirk(CUSIM_STRAIGHT_COPIES);
    run("same_bits", 2, 1, 2, &wrong, &second);
    cusim_set_quirk(CUSIM_AS_DOCUMENTED);
    attentions_are(&wrong, "warps");
    assert_non_null(strstr(wrong.attention, "gives wrong numbers on this GPU for 2 of 2 passes"));
    assert_memory_equal(first.loss, second.loss, sizeof first.loss);
}

/* ---- epilogues with products, or apart ---- */

/* The config's choice of epilogues holds for every world, stage and speed, and for a resumed run: equal bits. */
static void a_fixed_choice_gives_fixed_bits(void **state)
{
    static look one, two, part, rest, other;
    run_result first, second, begin, end, third;
    char *dir = cw_tmp_open();
    const int32_t world = run_most_ranks(2);
    one.named = two.named = part.named = rest.named = ", \"gemm_fused\": \"all\"";
    cusim_set_product_ticks(first_is_fast);
    run("same_bits", world, 0, 4, &one, &first);
    cusim_set_product_ticks(second_is_fast);
    cusim_set_kernel_ticks("each_kernel<W", 100);
    run("same_bits", world, world > 1 ? 3 : 0, 4, &two, &second);
    assert_string_equal(first.hash, second.hash);
    assert_memory_equal(first.loss, second.loss, sizeof first.loss);
    part.save = dir;
    run("same_bits", world, 1, 2, &part, &begin);
    rest.load = dir;
    run("same_bits", world, 2, 2, &rest, &end);
    assert_string_equal(first.hash, end.hash);
    cusim_set_kernel_ticks(NULL, 0);
    if (cusim_present()) {
        all_take(&one, 1);
        all_take(&two, 2);
        assert_int_equal(count_text(one.plans[0], " sums b "), 4);
        assert_int_equal(count_text(one.plans[0], " epilogue 2 bias "), 1);
        assert_int_equal(count_text(one.plans[0], ": apart"), 0);
        other.named = ", \"gemm_fused\": \"dgelu+bias\"";
        run("same_bits", world, 0, 4, &other, &third);
        assert_int_equal(count_text(other.plans[0], " epilogue 2 bias "), 0);
        assert_string_not_equal(first.hash, third.hash); /* GELU of the rounded sums */
    }
    cw_tmp_close(dir);
}

/* The library's sums differ from run to run, or it has none: kernels compute them, as they do by default. */
static void sums_that_the_library_cannot_repeat_are_apart(void **state)
{
    static look plain, unsteady, none;
    run_result first, second, third;
    if (!cusim_present())
        skip();
    cusim_set_product_ticks(first_is_fast);
    plain.named = ", \"gemm_fused\": \"measured\""; /* same_bits measures no such thing */
    run("same_bits", 2, 1, 2, &plain, &first);
    assert_int_equal(count_text(plain.plans[0], " sums "), 0);
    unsteady.named = ", \"gemm_fused\": \"dgelu+bias\"";
    cusim_set_quirk(CUSIM_UNSTEADY_SUMS);
    run("same_bits", 2, 3, 2, &unsteady, &second);
    assert_int_equal(count_text(unsteady.plans[0], ": apart"), 4);
    assert_non_null(strstr(unsteady.log, "4 give other bias gradients each time"));
    assert_string_equal(first.hash, second.hash);
    cusim_set_quirk(CUSIM_FEW_EPILOGUES);
    none.named = ", \"gemm_fused\": \"all\"";
    run("same_bits", 2, 0, 2, &none, &third);
    cusim_set_quirk(CUSIM_AS_DOCUMENTED);
    assert_int_equal(count_text(none.plans[0], " sums "), 0);
    assert_string_equal(first.hash, third.hash);
}

/* Each is measured both ways, and all ranks and a resumed run take the faster one. */
static void the_faster_way_with_fastest(void **state)
{
    static look fused, apart, kept;
    run_result first, second, third;
    char *dir = cw_tmp_open();
    if (!cusim_present())
        skip();
    fused.named = apart.named = kept.named = ", \"gemm_fused\": \"measured\"";
    cusim_set_product_ticks(first_is_fast);
    cusim_set_kernel_ticks("each_kernel<W", 100);
    run("fastest", 2, 1, 2, &fused, &first);
    assert_int_equal(count_text(fused.plans[0], ": apart"), 4); /* column sums take nothing here */
    cusim_set_kernel_ticks("part", 100);
    run("fastest", 1, 0, 1, &apart, &second);
    assert_int_equal(count_text(apart.plans[0], ": apart"), 1); /* GELU is apart unless that is slower */
    cusim_set_kernel_ticks("each_kernel<W", 100);
    apart.save = dir;
    run("fastest", 2, 1, 1, &apart, &second);
    cusim_set_kernel_ticks("part", 100);
    kept.load = dir;
    run("fastest", 2, 2, 1, &kept, &third);
    cusim_set_kernel_ticks(NULL, 0);
    assert_string_equal(apart.plans[0], kept.plans[0]);
    assert_string_equal(first.hash, third.hash);
    cw_tmp_close(dir);
}

/* ---- a file of plans ---- */

static void read_text(const char *path, char text[TEXT_BYTES])
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    text[fread(text, 1, TEXT_BYTES - 1, file)] = 0;
    fclose(file);
}

static void write_text(const char *path, const char *text, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    fclose(file);
}

static int count_files(const char *dir)
{
    int count = 0;
    DIR *open = opendir(dir);
    assert_non_null(open);
    for (const struct dirent *entry; (entry = readdir(open)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(open);
    return count;
}

/* Measured once for the card: a fresh run of any world takes the file, also where it would choose otherwise now. */
static void a_file_spares_fresh_runs_measuring(void **state)
{
    static look first, second, third, other_card;
    static char text[TEXT_BYTES], again[TEXT_BYTES];
    run_result one, two, three;
    char *dir = cw_tmp_open(), path[300], named[400];
    if (!cusim_present())
        skip();
    snprintf(path, sizeof path, "%s/H200.plans", dir);
    snprintf(named, sizeof named, ", \"gemm_plans_file\": \"%s\"", path);
    first.named = second.named = third.named = other_card.named = named;
    cusim_set_product_ticks(third_is_fast);
    run("fastest", 2, 1, 2, &first, &one);
    read_text(path, text);
    assert_string_equal(text, first.plans[0]);
    cusim_set_product_ticks(first_is_fast);
    cusim_times_taken();
    run("same_bits", 1, 0, 2, &second, &two);
    assert_int_equal(cusim_times_taken(), 0);
    assert_non_null(strstr(second.log, "with the algorithms of "));
    assert_int_equal(count_plans(second.plans[0], 3), count_plans(first.plans[0], 3));
    run("first", 2, 3, 2, &third, &three);
    assert_string_equal(one.hash, three.hash);
    /* A line that is missing is measured and added, and lines of other products stay. */
    char *const line = strchr(text, '\n') + 1, *const next = strchr(line, '\n') + 1;
    const int bytes = snprintf(again, sizeof again, "%.*s7x7x7 of another model: 1234\n%s", (int)(line - text), text,
                               next);
    write_text(path, again, (size_t)bytes);
    run("fastest", 2, 1, 1, &second, &two);
    assert_true(cusim_times_taken() > 0);
    read_text(path, again);
    assert_int_equal(lines_of(again), lines_of(text) + 1);
    assert_non_null(strstr(again, "\n7x7x7 of another model: 1234\n"));
    /* Another card's file stays as it is. */
    cusim_set_arch(0, 80);
    run("fastest", 1, 0, 1, &other_card, &three);
    cusim_set_arch(0, 90);
    assert_non_null(strstr(other_card.log, "H200.plans is for \""));
    read_text(path, text);
    assert_string_equal(text, again);
    cw_tmp_close(dir);
}

/* A folder has a file for each card and library, and one config serves all of them. */
static void a_folder_has_a_file_for_each_card(void **state)
{
    static look first, second, old_card;
    run_result result;
    char *dir = cw_tmp_open(), named[400];
    if (!cusim_present())
        skip();
    snprintf(named, sizeof named, ", \"gemm_plans_file\": \"%s/new/\"", dir);
    first.named = second.named = old_card.named = named;
    run("same_bits", 1, 0, 1, &first, &result);
    assert_non_null(strstr(first.log, "measured in"));
    cusim_times_taken();
    run("same_bits", 1, 0, 1, &second, &result);
    assert_int_equal(cusim_times_taken(), 0);
    assert_non_null(strstr(second.log, ".plans, none measured"));
    cusim_set_arch(0, 80);
    run("same_bits", 1, 0, 1, &old_card, &result);
    cusim_set_arch(0, 90);
    assert_null(strstr(old_card.log, "stays as it is"));
    assert_int_equal(count_files(cw_path(dir, "new")), 2);
    cw_tmp_close(dir);
}

static void a_file_that_is_no_text_is_refused(void **state)
{
    run_result result;
    char *dir = cw_tmp_open(), path[300], config[600];
    if (!cusim_present())
        skip();
    snprintf(path, sizeof path, "%s/plans", dir);
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"dsc\": {\"device\": \"cuda\", \"threads\": 1,"
             " \"gemm_plans_file\": \"%s\"}}", path);
    const run_options options = { .world = 2, .steps = -1, .model = model, .config = config,
                                  .data = tiny_gpt_data(model, 64), .fault_rank = -1 };
    write_text(path, "a\0b", 3);
    run_world(&options, &result);
    assert_int_equal(result.status, DSC_ERR_INPUT);
    assert_non_null(strstr(result.error.message, "/plans is not a file of algorithms; name one that a run wrote"));
    snprintf(path, sizeof path, "%s", dir);
    snprintf(config, sizeof config, "{\"train_micro_batch_size_per_gpu\": 2, \"dsc\": {\"device\": \"cuda\","
             " \"threads\": 1, \"gemm_plans_file\": \"%s\"}}", dir);
    run_world(&options, &result);
    assert_int_not_equal(result.status, DSC_OK);
    cw_tmp_close(dir);
}

/* The head's product is large and the library has none of its width: one line for each shape. */
static void a_slow_product_is_told(void **state)
{
    static look l;
    run_result result;
    if (!cusim_present())
        skip();
    dsc_model *wide = tiny_gpt_open(&(tiny_gpt){ .vocab = 4096, .sequence = 512, .heads = 1, .layers = 1 });
    const run_options options = {
        .world = 2, .steps = -1, .model = wide, .data = tiny_gpt_data(wide, 64), .user = &l,
        .config = "{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true},"
                  " \"dsc\": {\"device\": \"cuda\", \"threads\": 1, \"gemm_plans\": \"first\"}}",
        .log = { keep_line, &l }, .fault_rank = -1 };
    l.log[0] = 0;
    cusim_set_quirk(CUSIM_NO_WIDE_PRODUCTS);
    run_world(&options, &result);
    cusim_set_quirk(CUSIM_AS_DOCUMENTED);
    dsc_model_close(&wide);
    assert_int_equal(result.status, DSC_OK);
    const char *at = strstr(l.log, "a plain kernel, tens of times slower than cuBLASLt, computes 1024x4096x64 ");
    assert_non_null(at);
    assert_non_null(strstr(at, "bf16 to bf16 epilogue 0: cuBLASLt has no algorithm for it"));
    assert_int_equal(lines_of(l.log), 1);
}

/* ---- text that is not ours ---- */

typedef struct forged {
    const char *text; /* NULL: the device's own, with `from` replaced by `to` */
    const char *from, *to;
    int64_t others; /* products and attentions that keep what they had; -1: all */
} forged;

static dsc_status set_forged(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    static char own[TEXT_BYTES], now[TEXT_BYTES], changed[TEXT_BYTES];
    const forged *f = user;
    int64_t bytes, others;
    DSC_TRY(dsc_gemm_plans_get(dsc_probe_device(engine), own, TEXT_BYTES, &bytes, err));
    if (f->text == NULL) {
        const char *at = strstr(own, f->from);
        DSC_ASSERT(at != NULL);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - own), own, f->to, at + strlen(f->from));
    } else {
        snprintf(changed, sizeof changed, "%s", f->text);
    }
    DSC_TRY(dsc_gemm_plans_set(dsc_probe_device(engine), changed, &others, err));
    DSC_TRY(dsc_gemm_plans_get(dsc_probe_device(engine), now, TEXT_BYTES, &bytes, err));
    if (strcmp(own, now) != 0 || others != (f->others >= 0 ? f->others : lines_of(own) - 1))
        return DSC_FAIL(err, DSC_ERR_INTERNAL, "", "%lld others", (long long)others);
    return DSC_OK;
}

/* No byte of a text reaches the library: an algorithm that it did not name is none. */
static void forged_texts_choose_nothing(void **state)
{
    static const forged texts[] = {
        { "", NULL, NULL, -1 },
        { "\n\n\n", NULL, NULL, -1 },
        { "simulated GPU", NULL, NULL, -1 },
        { NULL, "cuBLASLt", "cuBLASLt 1", -1 },      /* another library */
        { NULL, "\n", "", -1 },                      /* one line of two */
        { NULL, ": 0000000000000001", ": ffffffffffffffff", 1 },
        { NULL, ": 0000000000000001", ": 0000000000000004", 1 }, /* not repeatable */
        { NULL, ": 0000000000000001", ": ", 1 },
        { NULL, "\n", "\n\n", 0 },
    };
    run_result result;
    if (!cusim_present())
        skip();
    cusim_set_product_ticks(first_is_fast);
    for (size_t i = 0; i < DSC_COUNT(texts); i++) {
        const run_options options = {
            .world = 1, .steps = -1, .model = model, .data = tiny_gpt_data(model, 64), .before = set_forged,
            .config = "{\"train_micro_batch_size_per_gpu\": 2, \"dsc\": {\"device\": \"cuda\", \"threads\": 1}}",
            .user = &(forged){ texts[i].text, texts[i].from, texts[i].to, texts[i].others }, .fault_rank = -1 };
        run_world(&options, &result);
        if (result.status != DSC_OK)
            print_error("text %zu: %s\n", i, result.error.message);
        assert_int_equal(result.status, DSC_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_whatever_is_fast),
        cmocka_unit_test(same_bits_sees_a_sum_that_is_rounded_early),
        cmocka_unit_test(a_resumed_run_keeps_its_algorithms),
        cmocka_unit_test(a_checkpoint_spares_measuring),
        cmocka_unit_test(attention_takes_warpgroups_whatever_is_fast),
        cmocka_unit_test(attention_stores_score_gradients_where_that_is_faster),
        cmocka_unit_test(attention_keeps_the_recorded_kernels),
        cmocka_unit_test(attention_never_takes_a_wrong_kernel),
        cmocka_unit_test(a_fixed_choice_gives_fixed_bits),
        cmocka_unit_test(sums_that_the_library_cannot_repeat_are_apart),
        cmocka_unit_test(the_faster_way_with_fastest),
        cmocka_unit_test(a_file_spares_fresh_runs_measuring),
        cmocka_unit_test(a_folder_has_a_file_for_each_card),
        cmocka_unit_test(a_file_that_is_no_text_is_refused),
        cmocka_unit_test(a_slow_product_is_told),
        cmocka_unit_test(forged_texts_choose_nothing),
    };
    model = tiny_gpt_open(&(tiny_gpt){ .vocab = 61, .sequence = 16, .heads = 1, .layers = 1 });
    const int failed = cmocka_run_group_tests_name("plans of matrix products", tests, NULL, NULL);
    dsc_model_close(&model);
    return failed;
}
