/* test_name_regex.c - regular expressions over names: the matches of Python's re.fullmatch, what is refused, and that
 * no pattern takes long. The cases with their results are Python 3's. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/base.h"
#include "base/name_regex.h"

static const char *const names[] = { "",
                                     "lm_head",
                                     "model.layers.0.self_attn.q_proj",
                                     "model.layers.11.mlp.up_proj",
                                     "model.layers.1.self_attn.qq_proj",
                                     "transformer.h.3.attn.c_attn",
                                     "a-b c\t{2}" };

/* matches: '1' for each of the names that Python's re.fullmatch matches. */
static const struct {
    const char *pattern, *matches;
} cases[] = {
    { "", "1000000" },
    { ".*", "1111111" },
    { ".*q_proj", "0010100" },
    { ".*\\.q_proj", "0010000" },
    { "q_proj", "0000000" },
    { ".*(q|v)_proj", "0010100" },
    { ".*\\.(?:q|up)_proj$", "0011000" },
    { "^model\\..*", "0011100" },
    { "(.*\\.)?(q_proj)$", "0010000" },
    { "(.*\\.)?([a-z]+_proj)$", "0011100" },
    { ".*layers\\.(0|1[0-9])\\..*", "0011000" },
    { "model\\.layers\\.[\\d]{1,}\\.(?:self_attn|mlp)\\.(?:q_proj|up_proj)", "0011000" },
    { "\\bmodel\\.layers\\.\\d+\\.\\w+\\.\\w+", "0011100" },
    { "(?!.*mlp).*proj", "0010100" },
    { "(?=.*attn)(?!.*qq).*", "0010010" },
    { ".*\\.\\d{2}\\..*", "0001000" },
    { ".*\\d{1,2}?\\..*", "0011110" },
    { "\\A\\w+\\Z", "0100000" },
    { "[^.]*", "1100001" },
    { "[^.]+(\\.[^.]+){4}", "0011110" },
    { "[\\w.]+", "0111110" },
    { "[]a]*", "1000000" },
    { "[a\\-b ]+.*", "0000001" },
    { ".*\\{2\\}", "0000001" },
    { "a-b\\sc\\t\\{2}", "0000001" },
    { "(|lm_head)", "1100000" },
    { "(lm_)?head", "0100000" },
    { "lm_hea\\Bd", "0100000" },
    { "lm_head\\b", "0100000" },
    { ".*(?:.*?(?:language|text|attn).*?(?:q_proj|c_attn)?).*?", "0010110" },
    { "(a|b|-|\\s|.){9}", "0000001" },
    { "(?P<all>.*)proj", "0011100" },
    { ".*\\D\\.\\S+", "0011110" },
    { "(.*)*", "1111111" },
    { "(x*)*lm.*", "0100000" },
    { "(lm|head|_){3}", "0100000" },
    { "(lm|head|_){,3}", "1100000" },
    { "(lm|head|_){2}", "0000000" },
    { "l?m?_{0,1}[^x]{4}", "0100000" },
    { ".*[0-9]+.*|lm_head", "0111111" },
    { "\\.|lm[_]head", "0100000" },
    { "lm_head|", "1100000" },
    { "(^lm|head$|_)+", "0100000" },
    { "[+--]*|.*\\ .*", "1000001" },
    { "^$", "1000000" },
};

static dsc_status match(const char *pattern, const char *name, bool *matches, dsc_error *err)
{
    int64_t steps = 100000;
    return dsc_name_regex_match(pattern, name, "test", &steps, matches, err);
}

static void matches_as_python(void **state)
{
    for (size_t i = 0; i < DSC_COUNT(cases); i++)
        for (size_t n = 0; n < DSC_COUNT(names); n++) {
            bool matches = false;
            dsc_error err = DSC_ERROR_INIT;
            if (match(cases[i].pattern, names[n], &matches, &err) != DSC_OK)
                fail_msg("\"%s\": %s", cases[i].pattern, err.message);
            if (matches != (cases[i].matches[n] == '1'))
                fail_msg("\"%s\" on \"%s\": %d", cases[i].pattern, names[n], matches);
        }
}

static void refuses(void **state)
{
    static const struct {
        const char *pattern, *what;
    } wrong[] = {
        { "(", "a group without its ) at its character 2" },
        { "a)", "a ) without its ( at its character 2" },
        { "[a", "a class without its ]" },
        { "[z-a]", "an invalid range of characters" },
        { "*a", "a quantifier behind nothing" },
        { "a**", "two quantifiers" },
        { "a{2}{3}", "two quantifiers" },
        { "a++", "a possessive quantifier" },
        { "a{3,2}", "out of range" },
        { "a{0,1001}", "out of range" },
        { "a\\", "a backslash at its end" },
        { "(a)\\1", "an escape that is not read" },
        { "(?<=a)b", "lookbehind" },
        { "(?i)a", "a flag" },
        { "(?>a)", "an atomic group" },
        { "(?P<n", "a group's name without its end" },
        { "(?P=n)", "a reference" },
        { "caf\xc3\xa9", "a character beyond ASCII" },
        { "a|(b", "a group without its )" },
        { "(?!a", "a group without its )" },
    };
    for (size_t i = 0; i < DSC_COUNT(wrong); i++) {
        bool matches = true;
        dsc_error err = DSC_ERROR_INIT;
        assert_int_not_equal(match(wrong[i].pattern, "a", &matches, &err), DSC_OK);
        assert_false(matches);
        assert_string_equal(err.where, "test");
        if (strstr(err.message, wrong[i].what) == NULL)
            fail_msg("\"%s\": %s", wrong[i].pattern, err.message);
    }
}

/* Exponential for programs that try one way after another. */
static void takes_no_time(void **state)
{
    static const char *const patterns[] = { "(a*)*b", "(a|aa)+b", "(a?){200}a{200}", "(.*)(.*)(.*)(.*)(.*)x",
                                            "((a+)+)+b" };
    char name[201], deep[1000] = "";
    bool matches;
    dsc_error err = DSC_ERROR_INIT;
    memset(name, 'a', 200);
    name[200] = 0;
    for (size_t i = 0; i < DSC_COUNT(patterns); i++) {
        assert_int_equal(match(patterns[i], name, &matches, &err), DSC_OK);
        assert_int_equal(matches, i == 2);
    }
    for (int i = 0; i < 40; i++)
        strcat(deep, "(");
    assert_int_equal(match(deep, "a", &matches, &err), DSC_ERR_UNSUPPORTED);
    deep[0] = 0;
    for (int i = 0; i < 20; i++)
        strcat(deep, "(");
    strcat(deep, "a");
    for (int i = 0; i < 20; i++)
        strcat(deep, "){900}");
    assert_int_equal(match(deep, name, &matches, &err), DSC_OK);
    assert_false(matches);
    assert_int_equal(match("((((.{0,900}){0,900}){0,900}(?!.*x)){0,900}){900}y", name, &matches, &err),
                     DSC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "too many repetitions"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_as_python),
        cmocka_unit_test(refuses),
        cmocka_unit_test(takes_no_time),
    };
    return cmocka_run_group_tests_name("name_regex", tests, NULL, NULL);
}
