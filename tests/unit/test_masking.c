/* test_masking.c - samples of masked language models: how many tokens are predicted, which, and what is seen instead.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/base.h"
#include "engine/data/masking.h"

enum { T = 40, V = 50, K = 6, MASK = 49, SAMPLES = 4000 };

typedef struct made { int32_t text[T], tokens[T], targets[T], predicted[T]; } made;

/* Texts of tokens below 40, each fifth a special one. */
static void make(const dsc_masking *masking, dsc_mask_key key, made *out)
{
    int32_t order[T];
    for (int t = 0; t < T; t++)
        out->text[t] = t % 5 == 4 ? 45 + t / 5 % 2 : (int32_t)((key.sample * 7 + (uint64_t)t * 3) % 40);
    memcpy(out->tokens, out->text, sizeof out->text);
    const dsc_mask_sample sample = { out->tokens, out->targets, out->predicted, order, T, V };
    dsc_mask(masking, key, &sample);
}

static const dsc_masking usual = { .predictions = K, .mask_token = MASK, .special = { 45, 46 }, .special_count = 2 };

static void predicts_tokens_of_texts(void **state)
{
    for (uint64_t s = 0; s < 200; s++) {
        made m;
        make(&usual, (dsc_mask_key){ 3, s, 0 }, &m);
        for (int k = 0; k < K; k++) {
            const int32_t place = m.predicted[k];
            assert_true(place >= 0 && place < T && (k == 0 || place > m.predicted[k - 1]));
            assert_int_equal(m.targets[k], m.text[place]);
            assert_true(m.text[place] < 40);
            m.tokens[place] = m.text[place];
        }
        assert_memory_equal(m.tokens, m.text, sizeof m.text); /* all others are what they were */
    }
}

/* Eight tenths, one, one (and a fiftieth of any tokens is the one that was there), within five deviations; every place
 * of a text as often. */
static void shares_are_those_of_bert(void **state)
{
    double masked = 0, same = 0, other = 0, at[T] = { 0 };
    const double all = (double)SAMPLES * K;
    for (uint64_t s = 0; s < SAMPLES; s++) {
        made m;
        make(&usual, (dsc_mask_key){ 11, s, 2 }, &m);
        for (int k = 0; k < K; k++) {
            const int32_t place = m.predicted[k], seen = m.tokens[place];
            at[place]++;
            masked += seen == MASK;
            same += seen == m.text[place];
            other += seen != MASK && seen != m.text[place];
        }
    }
    assert_true(fabs(masked / all - (0.8 + 0.1 / V)) < 5 * sqrt(0.16 / all));
    assert_true(fabs(same / all - (0.1 + 0.1 / V)) < 5 * sqrt(0.09 / all));
    assert_true(fabs(other / all - 0.1 * (V - 2) / V) < 5 * sqrt(0.09 / all));
    for (int t = 0; t < T; t++)
        assert_true(t % 5 == 4 ? at[t] == 0 : fabs(at[t] - all / 32) < 5 * sqrt(all / 32));
}

static void depends_on_seed_epoch_and_sample_only(void **state)
{
    static const dsc_mask_key keys[] = { { 1, 5, 0 }, { 1, 5, 1 }, { 2, 5, 0 } };
    made first, again, each;
    make(&usual, keys[0], &first);
    make(&usual, keys[0], &again);
    assert_memory_equal(&first.tokens, &again.tokens, sizeof first.tokens);
    assert_memory_equal(&first.predicted, &again.predicted, K * sizeof(int32_t));
    for (size_t i = 1; i < DSC_COUNT(keys); i++) {
        make(&usual, keys[i], &each);
        assert_true(memcmp(first.predicted, each.predicted, K * sizeof(int32_t)) != 0);
    }
}

/* All of the text, and then the first of what is none, as they are. */
static void too_little_text(void **state)
{
    dsc_masking most = usual;
    most.predictions = 34;
    made m;
    make(&most, (dsc_mask_key){ 1, 1, 0 }, &m);
    for (int k = 0, t = 0; k < 34; k++, t++) {
        t += t % 5 == 4 && t > 9;
        assert_int_equal(m.predicted[k], t);
        assert_int_equal(m.targets[k], m.text[t]);
        if (t % 5 == 4)
            assert_int_equal(m.tokens[t], m.text[t]);
    }
}

static void reads_a_tokenizer(void **state)
{
    static const char text[] = "{\"added_tokens\": [{\"id\": 3, \"content\": \"[CLS]\", \"special\": true}, "
                               "{\"id\": 9, \"content\": \"[MASK]\", \"special\": true}, "
                               "{\"id\": 8, \"content\": \"word\", \"special\": false}], \"model\": {}}";
    char path[] = "/tmp/dsc-masking-XXXXXX";
    const int fd = mkstemp(path);
    dsc_alloc *alloc = NULL;
    dsc_masking masking = { .mask_token = -1 };
    dsc_error err = DSC_ERROR_INIT;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    assert_int_equal(dsc_alloc_open(&alloc, &err), DSC_OK);
    assert_int_equal(dsc_masking_read(&masking, NULL, alloc, path, &err), DSC_OK);
    assert_int_equal(masking.mask_token, 9);
    assert_int_equal(masking.special_count, 2);
    assert_int_equal(masking.special[0], 3);
    assert_int_equal(ftruncate(fd, 20), 0);
    assert_int_equal(dsc_masking_read(&masking, NULL, alloc, path, &err), DSC_ERR_INPUT);
    close(fd);
    unlink(path);
    dsc_alloc_close(&alloc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predicts_tokens_of_texts),
        cmocka_unit_test(shares_are_those_of_bert),
        cmocka_unit_test(depends_on_seed_epoch_and_sample_only),
        cmocka_unit_test(too_little_text),
        cmocka_unit_test(reads_a_tokenizer),
    };
    return cmocka_run_group_tests_name("masking", tests, NULL, NULL);
}
