/* test_rope.c - rotary positions by kinds of layers: frequencies beside transformers', older keys, and what is refused.
 *
 * The numbers are Gemma3RotaryEmbedding's of transformers 5.24 (Gemma3TextConfig with head_dim 16);
 * tests/cli/test_rope.sh compares random configs with an installed one. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/base.h"
#include "models/rope.h"

enum { HEAD = 16, PAIRS = HEAD / 2 };

/* Gemma 3's kinds. */
static const dsc_rope_layer layers[] = {
    { .name = "full_attention", .theta = "rope_theta", .theta_default = 1e6, .scaled = true },
    { .name = "sliding_attention", .theta = "rope_local_base_freq", .theta_default = 1e4 },
};

static dsc_rope rope[2];
static char message[1024];

static dsc_status read_layers(const char *config, bool neighbours)
{
    static const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    dsc_alloc *alloc = NULL;
    dsc_json *json = NULL;
    dsc_error err = DSC_ERROR_INIT;
    char warnings[64] = "";
    assert_int_equal(dsc_alloc_open(&alloc, &err), DSC_OK);
    assert_int_equal(
        dsc_json_open(alloc, "config.json", config, (int64_t)strlen(config), DSC_JSON_STRICT, &limits, &json, &err),
        DSC_OK);
    const dsc_rope_keys keys = { .partial_default = 1, .positions = 8192, .head_size = HEAD, .neighbours = neighbours };
    dsc_hf_config reader = { .json = json,
                             .object = dsc_json_root(json),
                             .err = &err,
                             .warnings = warnings,
                             .warnings_bytes = sizeof warnings };
    const dsc_status status = dsc_rope_read_layers(&reader, &keys, layers, 2, rope);
    dsc_error_format(&err, message, sizeof message);
    dsc_json_close(&json);
    dsc_alloc_close(&alloc);
    return status;
}

static void expect_frequencies(const dsc_rope *of, const double *expected, double scale)
{
    assert_int_equal(of->pairs, PAIRS);
    for (int i = 0; i < PAIRS; i++)
        assert_true(fabs((double)of->frequency[i] - expected[i]) <= 2e-7 * expected[i]);
    assert_true(fabs((double)of->scale - scale) <= 1e-7 * scale);
}

static const double plain[] = {
    1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005, 0.000316227786
};

static void older_keys_scale_full_attention_alone(void **state)
{
    static const double linear[] = { 0.125,          0.0222284924,   0.00395284733,  0.000702926656,
                                     0.000125000006, 2.22284925e-05, 3.95284678e-06, 7.02926684e-07 };
    (void)state;
    assert_int_equal(read_layers("{\"rope_theta\": 1e6, \"rope_local_base_freq\": 1e4, \"rope_scaling\": "
                                 "{\"rope_type\": \"linear\", \"factor\": 8.0}}",
                                 false),
                     DSC_OK);
    expect_frequencies(&rope[0], linear, 1);
    expect_frequencies(&rope[1], plain, 1);
    assert_false(rope[0].neighbours);
}

static void each_kind_has_its_object(void **state)
{
    static const double yarn[] = {
        1, 0.151502162, 0.0211533923, 0.00250685355, 0.000176776681, 3.42810235e-05, 6.64786967e-06, 1.28917316e-06
    };
    static const double slow[] = {
        1, 0.193922758, 0.0376060307, 0.00729266508, 0.00141421345, 0.000274248188, 5.31829573e-05, 1.03133852e-05
    };
    (void)state;
    assert_int_equal(read_layers("{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\", \"rope_theta\": "
                                 "5e5, \"factor\": 8.0, \"original_max_position_embeddings\": 1024, \"beta_fast\": 32, "
                                 "\"beta_slow\": 1}, \"sliding_attention\": {\"rope_type\": \"default\", "
                                 "\"rope_theta\": 5e5}}, \"rope_scaling\": null}",
                                 true),
                     DSC_OK);
    expect_frequencies(&rope[0], yarn, 1.2079441541679836);
    expect_frequencies(&rope[1], slow, 1);
    assert_true(rope[0].neighbours && rope[1].neighbours);
}

static void kinds_without_an_object_are_plain(void **state)
{
    (void)state;
    assert_int_equal(read_layers("{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e4}, "
                                 "\"sliding_attention\": null}}",
                                 false),
                     DSC_OK);
    expect_frequencies(&rope[0], plain, 1);
    expect_frequencies(&rope[1], plain, 1);
    assert_int_equal(read_layers("{}", false), DSC_OK);
    assert_true(rope[0].theta == 1e6 && rope[1].theta == 1e4);
}

static void refuses_other_descriptions(void **state)
{
    static const struct {
        const char *config, *words;
    } cases[] = {
        { "{\"rope_parameters\": {\"full_attention\": 3}}",
          "\"full_attention\" is not the object of a kind of layers" },
        { "{\"rope_parameters\": {\"chunked_attention\": {}}}", "\"chunked_attention\" is not the object" },
        { "{\"rope_parameters\": {\"rope_type\": \"default\"}}", "\"rope_type\" is not the object" },
        { "{\"rope_parameters\": {\"full_attention\": {\"full_attention\": {}}}}", "of their own for the layers" },
        { "{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": -1}}}", "\"rope_theta\"" },
        { "{\"rope_parameters\": {\"sliding_attention\": {\"rope_type\": \"llama3\", \"factor\": 2}}}",
          "need \"low_freq_factor\"" },
        { "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 1e9}}}", "\"factor\"" },
        { "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2, \"truncate\": false}}", "\"truncate\" false" },
        { "{\"rope_parameters\": []}", "\"rope_parameters\" must be an object" },
        { "{\"rope_local_base_freq\": 0}", "\"rope_local_base_freq\"" },
        { "{\"rope_parameters\": {\"full_attention\": {}}, \"rope_scaling\": {\"factor\": 2}}", "one of the two" },
        { "{\"rope_parameters\": {\"full_attention\": {}}, \"original_max_position_embeddings\": 4}",
          "beside rotary positions by layers" },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        assert_int_not_equal(read_layers(cases[i].config, false), DSC_OK);
        if (strstr(message, cases[i].words) == NULL)
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].config, message, cases[i].words);
        assert_non_null(strstr(message, "config.json:1:"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(older_keys_scale_full_attention_alone),
        cmocka_unit_test(each_kind_has_its_object),
        cmocka_unit_test(kinds_without_an_object_are_plain),
        cmocka_unit_test(refuses_other_descriptions),
    };
    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}
