/* test_checkpoint_hostile.c - manifests by a hostile hand: their own hash is right, what they say is not. Refused with
 * the place, within 2 s and 256 MiB, whatever their size.
 *
 * A checkpoint of a small run is the base. Each case edits its manifest, seals it again, and is verified in a process
 * of its own, whose time and memory are measured. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/checkpoint/manifest.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/sanitizer.h"
#include "tests/support/toy_model.h"

#define BOUNDED (!SANITIZE_ADDRESS && !SANITIZE_THREAD) /* their shadow takes memory and time of its own */
#define REFUSE_S_MAX 2.0
#define REFUSE_RSS_KB_MAX (256 << 10)

static char *dir, *body; /* the manifest up to its seal */
static size_t body_bytes;
static char victim[512], manifest[600];
static dsc_model *model;

static dsc_status save_step(cw_rank *rank, dsc_error *err)
{
    DSC_TRY(cw_train(rank, 1, err));
    return dsc_engine_save(rank->engine, rank->user, err);
}

static int setup(void **state)
{
    dir = cw_memory_tmp_open();
    model = toy_model_open(3, 40, 1, true);
    const cw_options options = { .world = 2, .stage = 2, .bf16 = true, .model = model };
    cw_run_well(&options, save_step, cw_path(dir, "a"));
    snprintf(victim, sizeof victim, "%s/victim", dir);
    snprintf(manifest, sizeof manifest, "%s/manifest.json", victim);
    cw_copy_dir(cw_path(dir, "a/step-1"), victim);
    body = cw_read(manifest, &body_bytes);
    char *seal = body;
    for (char *next = body; next != NULL; next = strstr(next + 1, "\"sha256\":\""))
        seal = next;
    body_bytes = (size_t)(seal - body);
    *seal = 0;
    return seal == body ? -1 : 0;
}

static int teardown(void **state)
{
    free(body);
    toy_model_close(model);
    cw_tmp_close(dir);
    return 0;
}

/* ---- one case ---- */

static void write_sealed(const char *text, size_t bytes)
{
    uint8_t digest[32];
    char hex[65];
    char *whole = malloc(bytes + 128);
    CW_CHECK(whole != NULL);
    memcpy(whole, text, bytes);
    dsc_ckpt_sha256(text, (int64_t)bytes, digest);
    dsc_hex(hex, digest, sizeof digest);
    const int seal = snprintf(whole + bytes, 128, "\"sha256\":\"%s\"}\n", hex);
    cw_write(manifest, whole, bytes + (size_t)seal);
    free(whole);
}

static double seconds_of(const struct timeval *t) { return (double)t->tv_sec + (double)t->tv_usec * 1e-6; }

typedef struct verdict {
    dsc_status status;
    dsc_error error;
} verdict;

/* In a child, so that its memory is its own. */
static verdict verify_apart(const char *what)
{
    verdict v = { .error = DSC_ERROR_INIT };
    struct rusage usage;
    int ends[2], status = 0;
    CW_CHECK(pipe(ends) == 0);
    const pid_t child = fork();
    CW_CHECK(child >= 0);
    if (child == 0) {
        dsc_alloc *alloc = NULL;
        CW_OK(dsc_alloc_open(&alloc, &v.error), &v.error);
        v.status = dsc_ckpt_verify(NULL, alloc, victim, &v.error);
        dsc_alloc_close(&alloc);
        _exit(write(ends[1], &v, sizeof v) == (ssize_t)sizeof v ? 0 : 1);
    }
    close(ends[1]);
    const bool whole = read(ends[0], &v, sizeof v) == (ssize_t)sizeof v;
    close(ends[0]);
    CW_CHECK(wait4(child, &status, 0, &usage) == child);
    if (!whole || status != 0)
        cw_fail("the reader died", __FILE__, __LINE__, what);
    /* Time of the processor: a machine may be busy with other things. */
    const double seconds = seconds_of(&usage.ru_utime) + seconds_of(&usage.ru_stime);
    if (BOUNDED && (seconds > REFUSE_S_MAX || usage.ru_maxrss > REFUSE_RSS_KB_MAX)) {
        fprintf(stderr, "%ld KiB, %.2f s\n", usage.ru_maxrss, seconds);
        cw_fail("more than 2 s or 256 MiB", __FILE__, __LINE__, what);
    }
    return v;
}

static void expect_refusal(const char *what, const char *words)
{
    const verdict v = verify_apart(what);
    if (v.status != DSC_ERR_INPUT || v.error.where[0] == 0 || strstr(v.error.message, words) == NULL)
        cw_fail(v.status == DSC_OK ? "accepted" : v.error.message, __FILE__, __LINE__, what);
    for (const unsigned char *at = (const unsigned char *)v.error.message; *at != 0; at++)
        CW_CHECK(*at >= 0x20);
}

/* The first `from` becomes `to`. */
static void edit(const char *from, const char *to)
{
    const char *at = strstr(body, from);
    if (at == NULL)
        cw_fail("not in the manifest", __FILE__, __LINE__, from);
    const size_t start = (size_t)(at - body), rest = strlen(at + strlen(from));
    char *text = malloc(body_bytes + strlen(to) + 1);
    CW_CHECK(text != NULL);
    memcpy(text, body, start);
    memcpy(text + start, to, strlen(to));
    memcpy(text + start + strlen(to), at + strlen(from), rest);
    write_sealed(text, start + strlen(to) + rest);
    free(text);
}

/* ---- members ---- */

static void the_base_is_good(void **state)
{
    write_sealed(body, body_bytes);
    assert_int_equal(verify_apart("base").status, DSC_OK);
    edit("\"seed\":5", "\"seed\":-5");
    assert_int_equal(verify_apart("negative seed").status, DSC_OK);
    edit("\"seed\":5,", "\"seed\":5,\"later\":{\"versions\":[\"may add\"]},");
    assert_int_equal(verify_apart("unknown member").status, DSC_OK);
}

/* Text of a member of the manifest: "name": up to the comma. */
static void member_text(const char *name, char *out, size_t out_bytes)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(body, key);
    if (at == NULL)
        cw_fail("not in the manifest", __FILE__, __LINE__, key);
    const char *value = at + strlen(key);
    const size_t value_bytes = *value == '"' ? strcspn(value + 1, "\"") + 2 : strcspn(value, ",}");
    snprintf(out, out_bytes, "%.*s", (int)((value - at) + (ptrdiff_t)value_bytes), at);
}

static void every_member_is_checked(void **state)
{
    static const char *const members[] = {
        "format", "version", "step", "update_count", "next_sample", "seed", "train_batch_size", "micro_batch",
        "accumulation_steps", "world_size", "samples_per_epoch", "seq_length", "zero_stage", "compute_dtype",
        "world_size_reproducible", "shuffle", "cpu_level", "versions", "bytes", "head_bytes", "name", "file", "dtype",
        "elements", "blocks",
    };
    static const char *const values[] = { "null", "{}", "[]", "1.5", "-9007199254740993", "9007199254740993", "1e400",
                                          "1e308", "\"\\u0000\"", "\"\\u001b[2J\"", "\"../x\"", "-1e9" };
    for (size_t m = 0; m < DSC_COUNT(members); m++) {
        char from[400], to[900], name[64];
        member_text(members[m], from, sizeof from);
        snprintf(name, sizeof name, "\"%s\":", members[m]);
        for (size_t i = 0; i < DSC_COUNT(values); i++) {
            if (strcmp(members[m], "seed") == 0 && strcmp(values[i], "-1e9") == 0)
                continue; /* any whole number is a seed */
            if ((strcmp(members[m], "cpu_level") == 0 || strcmp(members[m], "versions") == 0) && i == 8)
                continue; /* an empty text has no effect */
            if ((strcmp(members[m], "cpu_level") == 0 || strcmp(members[m], "versions") == 0) && i == 10)
                continue; /* only ever printed */
            snprintf(to, sizeof to, "%s%s", name, values[i]);
            edit(from, to);
            expect_refusal(to, "");
        }
        snprintf(to, sizeof to, "%s,%s", from, from);
        edit(from, to);
        expect_refusal(to, "");
        snprintf(to, sizeof to, "\"x%s", from + 1);
        edit(from, to);
        expect_refusal(to, "");
    }
}

/* Members that only some runs have. */
static void members_of_some_runs_are_checked(void **state)
{
#define MEANS "\"count\":4},\"norm\":{\"mean\":1,\"variance\":0,\"count\":4}}"
    static const char *const bad[] = {
        "\"skips\":{}", "\"skips\":[1]", "\"skips\":[{\"after_step\":3}]",
        "\"skips\":[{\"after_step\":3,\"batches\":0}]", "\"skips\":[{\"after_step\":-1,\"batches\":2}]",
        "\"skips\":[{\"after_step\":3,\"batches\":1099511627777}]",
        "\"skips\":[{\"after_step\":3,\"batches\":1},{\"after_step\":2,\"batches\":1}]",
        "\"spikes\":[]", "\"spikes\":{\"loss\":{}}",
        "\"spikes\":{\"loss\":{\"mean\":1e999,\"variance\":0," MEANS,
        "\"spikes\":{\"loss\":{\"mean\":1,\"variance\":-1," MEANS,
        "\"spikes\":{\"loss\":{\"mean\":\"1\",\"variance\":0," MEANS,
        "\"outer_momentum\":1",
    };
    char to[4096];
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        snprintf(to, sizeof to, "\"seed\":5,%s", bad[i]);
        edit("\"seed\":5", to);
        expect_refusal(to, "");
    }
    size_t used = (size_t)snprintf(to, sizeof to, "\"seed\":5,\"skips\":[");
    for (int i = 0; i < 65; i++) /* one more than a run can have */
        used += (size_t)snprintf(to + used, sizeof to - used, "%s{\"after_step\":%d,\"batches\":1}", i > 0 ? "," : "",
                                 i);
    snprintf(to + used, sizeof to - used, "]");
    edit("\"seed\":5", to);
    expect_refusal(to, "");
    edit("\"seed\":5", "\"seed\":5,\"skips\":[{\"after_step\":3,\"batches\":7}],"
                       "\"spikes\":{\"loss\":{\"mean\":1,\"variance\":0," MEANS);
    assert_int_equal(verify_apart("members of some runs").status, DSC_OK);
#undef MEANS
}

/* Statements about one tensor or file that contradict the files. */
static void contradictions_are_refused(void **state)
{
    static const struct { const char *from, *to; } cases[] = {
        { "\"step\":1", "\"step\":2" },
        { "\"update_count\":1", "\"update_count\":2" },
        { "\"version\":1", "\"version\":2" },
        { "\"zero_stage\":2", "\"zero_stage\":4" },
        { "\"compute_dtype\":\"bf16\"", "\"compute_dtype\":\"fp32\"" },
        { "\"compute_dtype\":\"bf16\"", "\"compute_dtype\":\"fp16\"" },
        { "\"moment_dtype\":\"fp32\"", "\"moment_dtype\":\"bf16\"" },
        { "\"moment_dtype\":\"fp32\"", "\"moment_dtype\":\"fp16\"" },
        { "\"moment_dtype\":\"fp32\"", "\"moment_dtype\":\"8bit\"" },
        { "\"compute_dtype\":\"bf16\"", "\"compute_dtype\":\"8bit\"" },
        { "\"model.safetensors\":{", "\"../a/step-1/model.safetensors\":{" },
        { "\"model.safetensors\":{", "\"/etc/passwd\":{" },
        { "\"model.safetensors\":{", "\"./model.safetensors\":{" },
        { "\"model.safetensors\":{", "\"model.safetensors\\u0000x\":{" },
        { "\"model.safetensors\":{", "\"optimizer.safetensors\":{" },
        { "\"file\":\"model.safetensors\"", "\"file\":\"optimizer.safetensors\"" },
        { "\"file\":\"model.safetensors\"", "\"file\":\"ds_config.json\"" },
        { "\"file\":\"model.safetensors\"", "\"file\":\"../victim/model.safetensors\"" },
        { "\"name\":\"input.weight\"", "\"name\":\"input.weigh\"" },
        { "\"name\":\"input.weight\"", "\"name\":\"\"" },
        { "\"name\":\"input.weight\"", "\"name\":\"__metadata__\"" },
        { "\"name\":\"block.0.weight\"", "\"name\":\"input.weight\"" },
        { "\"dtype\":\"BF16\"", "\"dtype\":\"F32\"" },
        { "\"dtype\":\"BF16\"", "\"dtype\":\"F16\"" },
        { "\"dtype\":\"BF16\"", "\"dtype\":\"U8\"" },
        { "\"elements\":120", "\"elements\":119" },
        { "\"elements\":120", "\"elements\":121" },
        { "\"elements\":120", "\"elements\":0" },
        { "\"elements\":120", "\"elements\":9007199254740992" },
        { "\"cuts\":[]", "\"cuts\":[0]" },
        { "\"cuts\":[]", "\"cuts\":[1]" },
        { "\"cuts\":[]", "\"cuts\":[120]" },
        { "\"cuts\":[]", "\"cuts\":[9007199254740992]" },
        { "\"cuts\":[]", "\"cuts\":[5,4]" },
        { "\"cuts\":[]", "\"cuts\":[\"1\"]" },
        { "\"cuts\":[]", "\"cuts\":{}" },
        { "\"blocks\":\"", "\"blocks\":\"00" },
        { "\"blocks\":\"", "\"blocks\":\"G" },
        { "\"blocks\":\"", "\"blocks\":\"00000000000000000000000000000000" },
        { "\"tensors\":[\n{", "\"tensors\":[\n{}, {" },
        { "\"tensors\":[\n{", "\"tensors\":[\n[], {" },
        { "\"tensors\":[\n{", "\"tensors\":[\n], \"rest\":[{" },
        { "{\"format\"", "[{\"format\"" },
        { "{\"format\"", "{\"format\":\"dsc-checkpoint\",\"format\"" },
        { "{\"format\"", "\xef\xbb\xbf{\"format\"" },
        { "{\"format\"", "{/* */\"format\"" },
        { "\"versions\":\"", "\"versions\":\"\xff" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        edit(cases[i].from, cases[i].to);
        expect_refusal(cases[i].to, "");
    }
}

/* Lines about matrix products, which a run on a CPU does not write and only a GPU reads (tests/sim/test_gemm_plans.c).
 * */
static void lines_about_products_are_checked(void **state)
{
    static const char *const good[] = { "[]", "[\"\"]", "[\"a card\", \"16x16x16: 00\"]" };
    static const char *const bad[] = { "null", "{}", "1", "\"a card\"", "[1]", "[null]", "[[]]", "[\"a\", {}]",
                                       "[\"\\u001b[2J\"]", "[\"two\\nlines\"]", "[\"\\u0000\"]" };
    enum { LINES = 2200, LINE_BYTES = 500 };
    char to[1024];
    for (size_t i = 0; i < DSC_COUNT(good) + DSC_COUNT(bad); i++) {
        const bool is_good = i < DSC_COUNT(good);
        snprintf(to, sizeof to, "\"gemm_plans\":%s,\"seed\":5", is_good ? good[i] : bad[i - DSC_COUNT(good)]);
        edit("\"seed\":5", to);
        if (is_good)
            assert_int_equal(verify_apart(to).status, DSC_OK);
        else
            expect_refusal(to, "");
    }
    snprintf(to, sizeof to, "\"gemm_plans\":[\"%0513d\"],\"seed\":5", 0); /* one byte more than a line may have */
    edit("\"seed\":5", to);
    expect_refusal("a long line", "");
    char *many = malloc(LINES * (LINE_BYTES + 3) + 64), *at = many;
    CW_CHECK(many != NULL);
    at += sprintf(at, "\"gemm_plans\":[");
    for (int i = 0; i < LINES; i++)
        at += sprintf(at, "%s\"%0*d\"", i > 0 ? "," : "", LINE_BYTES, i);
    sprintf(at, "],\"seed\":5");
    edit("\"seed\":5", many);
    expect_refusal("more than a megabyte of lines", "");
    free(many);
}

static void settings_are_checked(void **state)
{
    static const char *const good[] = { "{}", "{\"a\":\"\"}", "{\"a.b\":\"[1,2]\",\"c\":\"d e\"}" };
    static const char *const bad[] = {
        "null", "[]", "1", "\"a\"", "{\"a\":1}", "{\"a\":null}", "{\"a\":{}}", "{\"\":\"b\"}", "{\"a\":\"\\u001b[2J\"}",
        "{\"a\":\"b\\nc\"}", "{\"a\":\"b\\tc\"}", "{\"a\\tb\":\"c\"}", "{\"a\":\"b\",\"a\":\"c\"}",
    };
    char to[1024], settings[800];
    const char *at = strstr(body, "\"settings\":{");
    assert_non_null(at);
    char *own = strndup(at, strcspn(at, "}") + 1);
    for (size_t i = 0; i < DSC_COUNT(good) + DSC_COUNT(bad); i++) {
        const bool is_good = i < DSC_COUNT(good);
        snprintf(to, sizeof to, "\"settings\":%s", is_good ? good[i] : bad[i - DSC_COUNT(good)]);
        edit(own, to);
        if (is_good)
            assert_int_equal(verify_apart(to).status, DSC_OK);
        else
            expect_refusal(to, "");
    }
    snprintf(settings, sizeof settings, "\"settings\":{\"a\":\"%0600d\"}", 0); /* longer than a line may be */
    edit(own, settings);
    expect_refusal("a long value", "");
    free(own);
}

/* ---- sizes ---- */

/* text: head, then `unit` as often as fits into `bytes`, then tail. */
static void grown(const char *what, const char *head, const char *unit, size_t bytes, const char *tail)
{
    const size_t head_bytes = strlen(head), unit_bytes = strlen(unit), tail_bytes = strlen(tail);
    char *text = malloc(head_bytes + bytes + tail_bytes + 1);
    CW_CHECK(text != NULL);
    memcpy(text, head, head_bytes);
    size_t at = head_bytes;
    for (; at + unit_bytes <= head_bytes + bytes; at += unit_bytes)
        memcpy(text + at, unit, unit_bytes);
    memcpy(text + at, tail, tail_bytes);
    write_sealed(text, at + tail_bytes);
    free(text);
    expect_refusal(what, "");
}

/* Many members with own names or values. */
static void counted(const char *what, const char *head, const char *unit, int count, const char *tail)
{
    const size_t room = strlen(head) + (strlen(unit) + 16) * (size_t)count + strlen(tail) + 1;
    char *text = malloc(room);
    CW_CHECK(text != NULL);
    size_t at = (size_t)snprintf(text, room, "%s", head);
    for (int i = 0; i < count; i++)
        at += (size_t)sprintf(text + at, unit, i + 1);
    at += (size_t)snprintf(text + at, room - at, "%s", tail);
    write_sealed(text, at);
    free(text);
    expect_refusal(what, "");
}

/* The manifest up to and with `end`. */
static char *up_to(const char *end)
{
    const char *at = strstr(body, end);
    CW_CHECK(at != NULL);
    char *text = strndup(body, (size_t)(at - body) + strlen(end));
    CW_CHECK(text != NULL);
    return text;
}

static void size_is_no_weapon(void **state)
{
    const size_t largest = (size_t)DSC_CKPT_MANIFEST_BYTES_MAX - 4096;
    char *cuts = up_to("\"cuts\":["), *tensors = up_to("\"tensors\":["),
         *members = up_to("\"format\":\"dsc-checkpoint\","), *file_list = up_to("\"files\":{"),
         *versions = up_to("\"versions\":\"");
    grown("deep arrays", "{\"a\":", "[", largest, "");
    grown("one byte too many", body, " ", (size_t)DSC_CKPT_MANIFEST_BYTES_MAX, "");
    grown("a long text", versions, "[{", largest - 8192, "\",");
    grown("a long text of escapes", versions, "\\u00e9", largest - 8192, "\",");
    char vast[8192];
    snprintf(vast, sizeof vast, "%s{\"name\":\"t\",\"file\":\"model.safetensors\",\"dtype\":\"F32\","
             "\"elements\":9007199254740992,\"cuts\":[],\"blocks\":\"", tensors);
    grown("many hashes", vast, "00000000000000000000000000000000", largest - 16384, "\"}],");
    grown("many empty tensors", tensors, "{},", largest - 8192, "{}],");
    grown("blanks", body, " ", largest - body_bytes, ",");
    counted("many cuts", cuts, "%d,", 900000, "1]}],");
    counted("many members", members, "\"m%d\":0,", 900000, "");
    counted("one member twice", members, "\"m%d\":0,", 900000, "\"m7\":1,");
    counted("many files", file_list, "\"f%d\":{},", 400000, "\"g\":{}},");
    counted("many tensors", tensors,
            "{\"name\":\"t%d\",\"file\":\"model.safetensors\",\"dtype\":\"F32\",\"elements\":1,\"cuts\":[],"
            "\"blocks\":\"00000000000000000000000000000000\"},", 140000,
            "{\"name\":\"t\",\"file\":\"model.safetensors\",\"dtype\":\"F32\",\"elements\":1,\"cuts\":[],"
            "\"blocks\":\"00000000000000000000000000000000\"}],");
    free(cuts);
    free(tensors);
    free(members);
    free(file_list);
    free(versions);
}

/* Files of a terabyte that take no space, with a manifest that says so. */
static void holes_are_no_weapon(void **state)
{
    static const char *const names[] = { "model.safetensors", "optimizer.safetensors", "ds_config.json" };
    static const long long sizes[] = { 1LL << 30, 1LL << 40 };
    for (size_t f = 0; f < DSC_COUNT(names); f++)
        for (size_t s = 0; s < DSC_COUNT(sizes); s++)
            for (int head = 0; head < 3; head++) {
                char from[200], to[200];
                const char *path = cw_path(victim, names[f]);
                cw_copy_dir(cw_path(dir, "a/step-1"), victim);
                const int fd = open(path, O_RDWR | O_CLOEXEC);
                CW_CHECK(fd >= 0);
                const bool made = ftruncate(fd, sizes[s]) == 0;
                const uint64_t length = 1ull << 39; /* length of the safetensors header */
                CW_CHECK(head < 2 || pwrite(fd, &length, 8, 0) == 8);
                close(fd);
                if (!made)
                    continue; /* not on this file system */
                snprintf(from, sizeof from, "\"%s\":{\"bytes\":", names[f]);
                const char *at = strstr(body, from);
                CW_CHECK(at != NULL);
                const size_t old_bytes = (size_t)(strstr(at, ",\"sha256\"") - at);
                snprintf(from, sizeof from, "%.*s", (int)old_bytes, at);
                snprintf(to, sizeof to, "\"%s\":{\"bytes\":%lld,\"head_bytes\":%lld", names[f], sizes[s],
                         head == 0 ? 64 : sizes[s]);
                edit(from, to);
                expect_refusal(to, "");
            }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_base_is_good),
        TEST(every_member_is_checked),
        TEST(members_of_some_runs_are_checked),
        TEST(contradictions_are_refused),
        TEST(lines_about_products_are_checked),
        TEST(settings_are_checked),
        TEST(size_is_no_weapon),
        TEST(holes_are_no_weapon),
    };
    return cmocka_run_group_tests_name("checkpoint_hostile", tests, NULL, NULL);
}
