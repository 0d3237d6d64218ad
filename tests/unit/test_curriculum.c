/* test_curriculum.c - how long a step's samples are: as DeepSpeed's CurriculumScheduler (0.19.8) says,
 * whose difficulties of steps 1 to 100 the table has. A missing setting of a schedule is an error of the run.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/config_case.h"

#define CHANGES_MAX 9
#define STEPS 100

typedef struct schedule {
    const char *members;
    int64_t change[CHANGES_MAX][2]; /* from this step on, this difficulty; ends with a step 0 */
} schedule;

static const schedule schedules[] = {
    { "\"min_difficulty\": 1, \"max_difficulty\": 128, \"schedule_type\": \"fixed_discrete\", "
      "\"schedule_config\": {\"difficulty\": [16, 128], \"max_step\": [24]}",
      { { 1, 16 }, { 25, 128 } } },
    { "\"min_difficulty\": 64, \"max_difficulty\": 1024, \"schedule_type\": \"fixed_linear\", "
      "\"schedule_config\": {\"total_curriculum_step\": 7, \"difficulty_step\": 1}",
      { { 1, 201 }, { 2, 338 }, { 3, 475 }, { 4, 612 }, { 5, 749 }, { 6, 886 }, { 7, 1024 } } },
    { "\"min_difficulty\": 10, \"max_difficulty\": 1000, \"schedule_type\": \"fixed_discrete\", "
      "\"schedule_config\": {\"difficulty\": [8, 16, 128, 64, 1024], \"max_step\": [54, 1, 38, 29]}",
      { { 1, 8 }, { 30, 1024 } } },
    { "\"min_difficulty\": 8, \"max_difficulty\": 64, \"schedule_type\": \"fixed_root\", "
      "\"schedule_config\": {\"total_curriculum_step\": 30000, \"difficulty_step\": 1, \"root_degree\": 3}",
      { { 1, 9 }, { 2, 10 }, { 5, 11 }, { 11, 12 }, { 22, 13 }, { 37, 14 }, { 59, 15 }, { 88, 16 } } },
    { "\"min_difficulty\": 8, \"max_difficulty\": 64, \"schedule_type\": \"fixed_root\", "
      "\"schedule_config\": {\"total_curriculum_step\": 30000, \"difficulty_step\": 1, \"root_degree\": 2.5}",
      { { 1, 8 }, { 2, 9 }, { 8, 10 }, { 20, 11 }, { 41, 12 }, { 72, 13 } } },
    { "\"min_difficulty\": 64, \"max_difficulty\": 65, \"schedule_type\": \"fixed_root\", "
      "\"schedule_config\": {\"total_curriculum_step\": 7, \"difficulty_step\": 8, \"root_degree\": 1}",
      { { 1, 64 }, { 56, 65 } } },
    { "\"min_difficulty\": 1, \"max_difficulty\": 64, \"schedule_type\": \"fixed_linear\", "
      "\"schedule_config\": {\"total_curriculum_step\": 50, \"difficulty_step\": 8}",
      { { 1, 8 }, { 12, 16 }, { 19, 24 }, { 25, 32 }, { 31, 40 }, { 38, 48 }, { 44, 56 }, { 50, 64 } } },
    { "\"min_difficulty\": 64, \"max_difficulty\": 2048, \"schedule_type\": \"fixed_root\", "
      "\"schedule_config\": {\"total_curriculum_step\": 7, \"difficulty_step\": 1, \"root_degree\": 3}",
      { { 1, 1101 }, { 2, 1370 }, { 3, 1559 }, { 4, 1710 }, { 5, 1837 }, { 6, 1948 }, { 7, 2048 } } },
    { "\"min_difficulty\": 10, \"max_difficulty\": 128, \"schedule_type\": \"fixed_root\", "
      "\"schedule_config\": {\"total_curriculum_step\": 1000, \"difficulty_step\": 2, \"root_degree\": 1}",
      { { 1, 10 }, { 17, 12 }, { 34, 14 }, { 51, 16 }, { 68, 18 }, { 85, 20 } } },
    { "\"min_difficulty\": 1, \"max_difficulty\": 65, \"schedule_type\": \"fixed_root\", "
      "\"schedule_config\": {\"total_curriculum_step\": 7, \"difficulty_step\": 8, \"root_degree\": 1}",
      { { 1, 8 }, { 2, 16 }, { 3, 24 }, { 4, 32 }, { 5, 40 }, { 6, 48 }, { 7, 64 }, { 8, 65 } } },
    { "\"min_difficulty\": 100, \"max_difficulty\": 128, \"schedule_type\": \"fixed_linear\", "
      "\"schedule_config\": {\"total_curriculum_step\": 1000, \"difficulty_step\": 1}",
      { { 1, 100 }, { 36, 101 }, { 72, 102 } } },
    { "\"min_difficulty\": 8, \"max_difficulty\": 65, \"schedule_type\": \"fixed_root\", "
      "\"schedule_config\": {\"total_curriculum_step\": 1, \"difficulty_step\": 2, \"root_degree\": 5}",
      { { 1, 64 }, { 2, 65 } } },
};

static const char *section(const char *members)
{
    static char text[2048];
    snprintf(text, sizeof text, "\"curriculum_learning\":{\"enabled\":true,%s}", members);
    return around(text);
}

static int64_t expected(const schedule *s, int64_t step)
{
    int64_t difficulty = 0;
    for (int i = 0; i < CHANGES_MAX && s->change[i][0] > 0 && s->change[i][0] <= step; i++)
        difficulty = s->change[i][1];
    return difficulty;
}

static void difficulties_are_deepspeeds(void **state)
{
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(schedules); i++) {
        parse_ok(section(schedules[i].members));
        assert_true(config.curriculum.enabled);
        for (int64_t step = 1; step <= STEPS; step++) {
            const int64_t is = dsc_curriculum_difficulty(&config.curriculum, step);
            if (is != expected(&schedules[i], step))
                fail_msg("%s: step %lld has %lld", schedules[i].members, (long long)step, (long long)is);
        }
    }
}

static void samples_have_a_listed_length(void **state)
{
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(schedules); i++)
        for (int64_t longest = 7; longest < 3000; longest = longest * 3 + 11) {
            int64_t length[DSC_CURRICULUM_LENGTHS_MAX];
            parse_ok(section(schedules[i].members));
            const int count = dsc_curriculum_lengths(&config.curriculum, longest, length);
            for (int c = 1; c < count && count <= DSC_CURRICULUM_LENGTHS_MAX; c++)
                assert_true(length[c - 1] < length[c] && length[c] < longest);
            for (int64_t step = 1; step <= 3 * STEPS && count <= DSC_CURRICULUM_LENGTHS_MAX; step++) {
                const int64_t is = dsc_curriculum_length(&config.curriculum, step, longest);
                bool listed = is == longest;
                for (int c = 0; c < count; c++)
                    listed |= length[c] == is;
                assert_true(listed && is <= longest);
            }
        }
    parse_ok(section("\"min_difficulty\":1,\"max_difficulty\":1000,\"schedule_type\":\"fixed_linear\","
                     "\"schedule_config\":{\"total_curriculum_step\":9,\"difficulty_step\":1}"));
    int64_t length[DSC_CURRICULUM_LENGTHS_MAX];
    assert_true(dsc_curriculum_lengths(&config.curriculum, 1024, length) > DSC_CURRICULUM_LENGTHS_MAX);
    assert_int_equal(dsc_curriculum_lengths(&config.curriculum, 257, length), 145); /* 112, ..., 256 */
}

#define METRICS(members) "\"data_efficiency\":{\"enabled\":true,\"data_sampling\":{\"enabled\":true," \
    "\"curriculum_learning\":{\"enabled\":true,\"curriculum_metrics\":" members "}}}"
#define STAIRS "\"min_difficulty\":8,\"max_difficulty\":64,\"schedule_type\":\"fixed_discrete\"," \
    "\"schedule_config\":{\"difficulty\":[8,\"16\",64],\"max_step\":[5,1e1]}"

static void data_efficiency_says_it_too(void **state)
{
    (void)state;
    static const char *const names[] = { "seqlen", "seqlen_truncate" };
    for (size_t i = 0; i < DSC_COUNT(names); i++) {
        char text[1024];
        snprintf(text, sizeof text, METRICS("{\"%s\":{" STAIRS ",\"clustering_type\":\"single_cluster\"}}"),
                 names[i]);
        parse_ok(around(text));
        assert_int_equal(config.unbuilt.status, DSC_OK);
        assert_int_equal(dsc_curriculum_length(&config.curriculum, 6, 64), 16);
    }
    parse_ok(around("\"data_efficiency\":{\"enabled\":false},"
                    "\"curriculum_learning\":{\"enabled\":false," STAIRS "}"));
    assert_int_equal(config.unbuilt.status, DSC_OK);
    assert_false(config.curriculum.enabled);
}

#define ON "\"curriculum_learning\":{\"enabled\":true,"
#define RANGE "\"min_difficulty\":8,\"max_difficulty\":64,\"schedule_type\":"
#define WITH ",\"schedule_config\":"
static const struct { const char *text, *path, *word; } lacking[] = {
    { ON "\"curriculum_type\":\"seqlen\"}", "learning.enabled", "min_difficulty" },
    { ON "\"min_difficulty\":0,\"max_difficulty\":64}", "learning.enabled", "min_difficulty" },
    { ON RANGE "\"fixed_linear\"}", "learning.enabled", "total_curriculum_step" },
    { ON RANGE "\"fixed_linear\"" WITH "[]}", "learning.enabled", "total_curriculum_step" },
    { ON RANGE "\"fixed_linear\"" WITH "{\"total_curriculum_step\":7}}", "learning.enabled", "difficulty_step" },
    { ON RANGE "\"fixed_root\"" WITH "{\"total_curriculum_step\":7,\"difficulty_step\":8,\"root_degree\":0}}",
      "learning.enabled", "root_degree" },
    { ON RANGE "\"fixed_discrete\"" WITH "{\"difficulty\":[8,64],\"max_step\":[5,10]}}", "learning.enabled",
      "one max_step less" },
    { ON RANGE "\"custom\"}", "learning.enabled", "schedule_type" },
    { ON "\"curriculum_type\":\"voc\"," STAIRS "}", "curriculum_type", "seqlen" },
    { METRICS("{}"), "learning.enabled", "one metric" },
    { METRICS("{\"voc\":{" STAIRS "}}"), "learning.enabled", "seqlen" },
    { METRICS("{\"seqlen\":{" STAIRS "},\"voc\":{" STAIRS "}}"), "learning.enabled", "one metric" },
    { METRICS("{\"seqlen\":{" STAIRS ",\"index_to_sample_path\":\"x\"}}"), "learning.enabled", "index" },
    { "\"data_efficiency\":{\"enabled\":true,\"data_sampling\":{\"enabled\":true}}", "data_efficiency.enabled",
      "curriculum" },
};

static void incomplete_curricula_are_refused_by_key(void **state)
{
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(lacking); i++) {
        const dsc_status status = parse_to_run(around(lacking[i].text));
        if (status != DSC_ERR_UNSUPPORTED || strstr(err.message, lacking[i].path) == NULL ||
            strstr(err.message, lacking[i].word) == NULL)
            fail_msg("row %zu: %d %s: %s", i, (int)status, err.where, err.message);
    }
    assert_int_equal(parse(around(METRICS("{\"seqlen\":{" STAIRS "}}") "," ON STAIRS "}")), DSC_ERR_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(difficulties_are_deepspeeds),
        cmocka_unit_test(samples_have_a_listed_length),
        cmocka_unit_test(data_efficiency_says_it_too),
        cmocka_unit_test(incomplete_curricula_are_refused_by_key),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
