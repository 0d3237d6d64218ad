/* test_sft_pack.c - samples of instruction data: packing, pairs, files of samples, and threads that write them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/sft_case.h"

#define T 8

typedef struct taken {
    uint32_t words[64][T];
    int count;
} taken;

static dsc_status take(void *user, const uint32_t *words, dsc_error *err)
{
    taken *t = user;
    (void)err;
    memcpy(t->words[t->count++], words, sizeof t->words[0]);
    return DSC_OK;
}

/* An example of `count` tokens, all of the value `id`; those from `counted` on count. */
static void add(dsc_sft_pack *pack, int32_t id, int64_t count, int64_t counted)
{
    int32_t ids[64], marks[64];
    for (int64_t i = 0; i < count; i++) {
        ids[i] = id;
        marks[i] = i >= counted;
    }
    const dsc_sft_example example = { .ids = ids, .counted = marks, .count = count };
    assert_int_equal(dsc_sft_pack_add(pack, &example, &error), DSC_OK);
}

static dsc_sft_pack *open_pack(taken *t, bool packing, bool drop)
{
    const dsc_sft_pack_options options = {
        .alloc = alloc, .sequence = T, .packing = packing, .drop_long = drop, .take = take, .user = t
    };
    dsc_sft_pack *pack = NULL;
    memset(t, 0, sizeof *t);
    assert_int_equal(dsc_sft_pack_open(&options, &pack, &error), DSC_OK);
    return pack;
}

/* Ids of a sample, with | before an example. */
static const char *sample_text(const uint32_t *words)
{
    static char out[100];
    char *at = out;
    for (int i = 0; i < T; i++)
        at += sprintf(at, "%s%u", (words[i] & DSC_SAMPLE_BEGINS) != 0 ? "|" : "", words[i] & DSC_SAMPLE_ID);
    return out;
}

static void test_packing(void **state)
{
    taken t;
    (void)state;
    dsc_sft_pack *pack = open_pack(&t, true, false);
    add(pack, 1, 3, 1);
    add(pack, 2, 5, 1);
    add(pack, 3, 4, 1);
    add(pack, 4, 2, 1);
    add(pack, 5, 9, 1); /* cut at T */
    add(pack, 6, 4, 4); /* nothing counts */
    add(pack, 7, 3, 0);
    assert_int_equal(t.count, 0);
    assert_int_equal(dsc_sft_pack_end(pack, &error), DSC_OK);
    assert_int_equal(t.count, 4);
    assert_string_equal(sample_text(t.words[0]), "|55555555");
    assert_string_equal(sample_text(t.words[1]), "|22222|111");
    assert_string_equal(sample_text(t.words[2]), "|3333|777|0");
    assert_string_equal(sample_text(t.words[3]), "|44|000000");
    const dsc_sample_summary *s = dsc_sft_pack_summary(pack);
    assert_int_equal(s->examples, 6);
    assert_int_equal(s->tokens, 25);
    assert_int_equal(s->counted, 2 + 4 + 3 + 1 + 7 + 2);
    assert_int_equal(s->truncated, 1);
    assert_int_equal(s->uncounted, 1);
    dsc_sft_pack_close(&pack);
}

static void test_packing_settings(void **state)
{
    taken t;
    (void)state;
    dsc_sft_pack *pack = open_pack(&t, false, true);
    add(pack, 1, 3, 1);
    add(pack, 2, 9, 1);
    add(pack, 3, 8, 1);
    assert_int_equal(dsc_sft_pack_end(pack, &error), DSC_OK);
    assert_int_equal(t.count, 2);
    assert_string_equal(sample_text(t.words[0]), "|111|00000");
    assert_string_equal(sample_text(t.words[1]), "|33333333");
    assert_int_equal(dsc_sft_pack_summary(pack)->dropped, 1);
    dsc_sft_pack_close(&pack);
}

/* An example of a pair. */
static void add_side(dsc_sft_pack *pack, dsc_sft_side side, int32_t id, int64_t count, int64_t counted)
{
    int32_t ids[64], mask[64];
    for (int64_t i = 0; i < count; i++) {
        ids[i] = id;
        mask[i] = i >= count - counted;
    }
    const dsc_sft_example example = {
        .ids = ids, .counted = mask, .count = count, .counted_count = counted, .side = side
    };
    assert_int_equal(dsc_sft_pack_add(pack, &example, &error), DSC_OK);
}

static void add_pair(dsc_sft_pack *pack, int32_t id, int64_t chosen, int64_t rejected)
{
    add_side(pack, DSC_SFT_CHOSEN, id, chosen, 2);
    add_side(pack, DSC_SFT_REJECTED, id + 1, rejected, 2);
}

/* The first token of each sample. */
static dsc_status take_first(void *user, const uint32_t *words, dsc_error *err)
{
    char *out = user;
    (void)err;
    assert_true((words[0] & DSC_SAMPLE_BEGINS) != 0);
    sprintf(out + strlen(out), "%c", (char)(words[0] & DSC_SAMPLE_ID));
    return DSC_OK;
}

/* A pair's samples follow each other, the chosen one first, whatever their lengths; a pair is left out whole. */
static void test_pairs(void **state)
{
    (void)state;
    for (int drop = 0; drop < 2; drop++) {
        char order[64] = "";
        dsc_sft_pack *pack = NULL;
        const dsc_sft_pack_options options = {
            .alloc = alloc, .sequence = 8, .packing = true, .drop_long = drop == 1, .take = take_first, .user = order
        };
        assert_int_equal(dsc_sft_pack_open(&options, &pack, &error), DSC_OK);
        add_pair(pack, 'a', 3, 5);
        add_pair(pack, 'c', 5, 3);
        add_pair(pack, 'e', 3, 9);  /* cut at 8, one counted token is left */
        add_pair(pack, 'g', 12, 3); /* no counted token is left on one side */
        add_side(pack, DSC_SFT_CHOSEN, 'i', 3, 0);
        add_side(pack, DSC_SFT_REJECTED, 'j', 3, 2);
        add_pair(pack, 'k', 8, 8);
        assert_int_equal(dsc_sft_pack_end(pack, &error), DSC_OK);
        const dsc_sample_summary *s = dsc_sft_pack_summary(pack);
        assert_string_equal(order, drop == 1 ? "abcdkl" : "abcdefkl");
        assert_int_equal(s->pairs, drop == 1 ? 3 : 4);
        assert_int_equal(s->samples, 2 * s->pairs);
        assert_int_equal(s->examples, s->pairs);
        assert_int_equal(s->truncated, drop == 1 ? 0 : 1);
        assert_int_equal(s->dropped, drop == 1 ? 2 : 0);
        assert_int_equal(s->uncounted, drop == 1 ? 1 : 2);
        dsc_sft_pack_close(&pack);
    }
}

static void test_targets(void **state)
{
    static const uint32_t words[T] = { 5 | DSC_SAMPLE_BEGINS,
                                       6,
                                       7 | DSC_SAMPLE_COUNTED,
                                       8 | DSC_SAMPLE_COUNTED,
                                       9 | DSC_SAMPLE_BEGINS | DSC_SAMPLE_COUNTED,
                                       10 | DSC_SAMPLE_COUNTED,
                                       DSC_SAMPLE_BEGINS,
                                       0 };
    static const int32_t want_tokens[T] = { 5, 6, 7, 8, 9, 10, 0, 0 },
                         want_targets[T] = { -1, 7, 8, -1, 10, -1, -1, -1 };
    static const int32_t want_places[T] = { 0, 1, 2, 3, 0, 1, 0, 1 };
    int32_t tokens[T], targets[T], places[T];
    (void)state;
    dsc_sample_unpack(words, T, tokens, targets, places);
    assert_memory_equal(tokens, want_tokens, sizeof tokens);
    assert_memory_equal(targets, want_targets, sizeof targets); /* no example predicts the first token of the next */
    assert_memory_equal(places, want_places, sizeof places);
    dsc_sample_unpack(words, T, tokens, targets, NULL);
    assert_memory_equal(targets, want_targets, sizeof targets);
}

static void test_many_examples(void **state)
{
    taken t;
    int64_t tokens = 0;
    (void)state;
    dsc_sft_pack *pack = open_pack(&t, true, false);
    for (int i = 0; i < 60; i++)
        add(pack, i, 1 + i % 7 + 1, 0);
    assert_int_equal(dsc_sft_pack_end(pack, &error), DSC_OK);
    for (int i = 0; i < t.count; i++)
        for (int j = 0; j < T; j++)
            tokens += (t.words[i][j] & DSC_SAMPLE_COUNTED) != 0;
    assert_int_equal(tokens, dsc_sft_pack_summary(pack)->tokens);
    dsc_sft_pack_close(&pack);
}

static void test_sample_files(void **state)
{
    const dsc_sft_section section = DSC_SFT_SECTION_INIT;
    const dsc_sft_options data = {
        .alloc = alloc, .path = FILE_PATH, .tokenizer_path = folder, .tokenizer = tokenizer, .section = &section
    };
    const char *text = "{\"prompt\":\"ab\",\"completion\":\"cd\"}\n{\"prompt\":\"e\",\"completion\":\"f\"}\n";
    dsc_sample_file file;
    uint32_t words[T];
    char whole[DSC_SAMPLE_HEADER_BYTES + 4 * T];
    (void)state;
    write_file(FILE_PATH, text, strlen(text));
    assert_int_equal(dsc_sft_pack_write(&data, T, "a.samples", &error), DSC_OK);
    assert_int_not_equal(access("a.samples.tmp", F_OK), 0);
    assert_int_equal(dsc_sample_file_open(NULL, "a.samples", &file, &error), DSC_OK);
    assert_int_equal(file.summary.samples, 1);
    assert_int_equal(file.summary.examples, 2);
    assert_int_equal(file.summary.counted, 5);
    assert_string_equal(file.summary.description, "format prompt_completion");
    assert_int_equal(dsc_sample_file_read(NULL, &file, 0, words, &error), DSC_OK);
    assert_string_equal(sample_text(words), "|979899100258|101102258");
    dsc_sample_file_close(NULL, &file);

    FILE *from = fopen("a.samples", "rb");
    assert_int_equal(fread(whole, 1, sizeof whole, from), sizeof whole);
    fclose(from);
    for (size_t cut = 0; cut < sizeof whole; cut += 97) { /* truncated anywhere */
        write_file("b.samples", whole, cut);
        assert_int_equal(dsc_sample_file_open(NULL, "b.samples", &file, &error), DSC_ERR_INPUT);
        dsc_sample_file_close(NULL, &file);
    }
    for (size_t at = 0; at < 24; at++) { /* magic, length and number */
        whole[at] ^= 0x40;
        write_file("b.samples", whole, sizeof whole);
        assert_int_equal(dsc_sample_file_open(NULL, "b.samples", &file, &error), DSC_ERR_INPUT);
        dsc_sample_file_close(NULL, &file);
        whole[at] ^= 0x40;
    }
    write_file(FILE_PATH, "[]", 2);
    assert_int_equal(dsc_sft_pack_write(&data, T, "c.samples", &error), DSC_ERR_INPUT);
    assert_non_null(strstr(error.message, "no examples"));
    assert_int_not_equal(access("c.samples", F_OK), 0);
    assert_int_not_equal(access("c.samples.tmp", F_OK), 0);
}

/* `rows` rows of different lengths; the one of number `bad` has an unknown role. */
static void write_rows(int rows, int bad)
{
    char *text = malloc((size_t)rows * 160), *at = text;
    for (int i = 0; i < rows; i++)
        at += sprintf(
            at, "{\"messages\":[{\"role\":\"%s\",\"content\":\"%.*s\"},{\"role\":\"assistant\",\"content\":\"%d\"}]}\n",
            i == bad ? "nobody" : "user", i % 40, "a question of some characters, all of them", i);
    write_file(FILE_PATH, text, (size_t)(at - text));
    free(text);
}

/* The same for pairs; `side` of row `bad` has an unknown role. */
static void write_pairs(int rows, int bad, dsc_sft_side side)
{
    char *text = malloc((size_t)rows * 240), *at = text;
    for (int i = 0; i < rows; i++) {
        at += sprintf(at, "{\"prompt\":[{\"role\":\"user\",\"content\":\"%.*s\"}]", i % 40,
                      "a question of some characters, all of them");
        for (dsc_sft_side s = DSC_SFT_CHOSEN; s <= DSC_SFT_REJECTED; s++)
            at += sprintf(at, ",\"%s\":[{\"role\":\"%s\",\"content\":\"%d\"}]", dsc_sft_side_text(s),
                          i == bad && s == side ? "nobody" : "assistant", 2 * i + (int)s);
        at += sprintf(at, "}\n");
    }
    write_file(FILE_PATH, text, (size_t)(at - text));
    free(text);
}

static void test_threads_keep_pairs(void **state)
{
    dsc_sft_section section = DSC_SFT_SECTION_INIT;
    dsc_sft_options data = {
        .alloc = alloc, .path = FILE_PATH, .tokenizer_path = folder, .tokenizer = tokenizer, .section = &section
    };
    char text[3][400];
    (void)state;
    section.pairs = true;
    write_pairs(1601, -1, DSC_SFT_ONLY);
    for (data.threads = 1; data.threads <= 8; data.threads += data.threads == 1 ? 1 : 6) {
        dsc_sample_file file;
        snprintf(text[0], sizeof text[0], "%d.samples", (int)data.threads);
        assert_int_equal(dsc_sft_pack_write(&data, 128, text[0], &error), DSC_OK);
        assert_int_equal(dsc_sample_file_open(NULL, text[0], &file, &error), DSC_OK);
        assert_int_equal(file.summary.pairs, 1601);
        assert_int_equal(file.summary.samples, 3202);
        dsc_sample_file_close(NULL, &file);
    }
    assert_int_equal(system("cmp 1.samples 2.samples && cmp 1.samples 8.samples"), 0);
    for (int bad = 0; bad < 1601; bad += 533) { /* either side; 32 rows are a job */
        static const int32_t threads[3] = { 1, 2, 8 };
        write_pairs(1601, bad, bad % 2 == 0 ? DSC_SFT_CHOSEN : DSC_SFT_REJECTED);
        for (int i = 0; i < 3; i++) {
            data.threads = threads[i];
            assert_int_equal(dsc_sft_pack_write(&data, 128, "bad.samples", &error), DSC_ERR_INPUT);
            dsc_error_format(&error, text[i], sizeof text[i]);
            assert_string_equal(text[i], text[0]);
        }
        snprintf(text[1], sizeof text[1], "line %d:", bad + 1);
        assert_non_null(strstr(text[0], text[1]));
    }
}

static void test_threads_change_nothing(void **state)
{
    const dsc_sft_section section = DSC_SFT_SECTION_INIT;
    dsc_sft_options data = {
        .alloc = alloc, .path = FILE_PATH, .tokenizer_path = folder, .tokenizer = tokenizer, .section = &section
    };
    char one[400], many[400];
    (void)state;
    write_rows(3000, -1);
    for (data.threads = 1; data.threads <= 5; data.threads += 2) {
        snprintf(one, sizeof one, "%d.samples", (int)data.threads);
        assert_int_equal(dsc_sft_pack_write(&data, 256, one, &error), DSC_OK);
    }
    assert_int_equal(system("cmp 1.samples 3.samples && cmp 1.samples 5.samples"), 0);
    for (int bad = 0; bad < 3000; bad += 997) { /* the first faulty row is the one that is reported */
        write_rows(3000, bad);
        data.threads = 1;
        assert_int_equal(dsc_sft_pack_write(&data, 256, "bad.samples", &error), DSC_ERR_INPUT);
        dsc_error_format(&error, one, sizeof one);
        data.threads = 4;
        assert_int_equal(dsc_sft_pack_write(&data, 256, "bad.samples", &error), DSC_ERR_INPUT);
        dsc_error_format(&error, many, sizeof many);
        assert_string_equal(one, many);
    }
    write_file(FILE_PATH, "{\"text\":\"a\"}\n{\"text\":", 21); /* a file that ends too early */
    assert_int_equal(dsc_sft_pack_write(&data, 256, "bad.samples", &error), DSC_ERR_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_packing, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_packing_settings, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_pairs, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_targets, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_many_examples, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_sample_files, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_threads_change_nothing, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_threads_keep_pairs, open_all, close_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
