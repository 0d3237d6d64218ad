/* test_chat_template.c - chat templates: golden conversations, tables of constructs, refusals, limits, failing memory.
 *
 * The expected texts are jinja2's: chat/expected.txt comes from tests/golden/make_chat.py. tests/cli/chat_test.py
 * compares random conversations and expressions with jinja2 itself. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/io.h"
#include "engine/text/chat/chat.h"

#define NOW INT64_C(1764201600) /* 2025-11-27, as in make_chat.py */

static dsc_alloc *alloc;
static dsc_error error;
static dsc_chat_output output;

static int open_alloc(void **state)
{
    (void)state;
    error = (dsc_error)DSC_ERROR_INIT;
    if (dsc_alloc_open(&alloc, NULL) != DSC_OK)
        return -1;
    output = (dsc_chat_output){ .text = { .alloc = alloc } };
    return 0;
}

static int close_alloc(void **state)
{
    (void)state;
    dsc_chat_output_free(&output);
    dsc_alloc_close(&alloc); /* asserts that nothing is left */
    return 0;
}

/* Opens, renders and closes; the result is in output and error. */
static dsc_status render_with(const char *text, int64_t bytes, const dsc_chat_text *context,
                              const dsc_chat_options *options)
{
    dsc_chat_template *chat = NULL;
    error = (dsc_error)DSC_ERROR_INIT;
    dsc_status status = dsc_chat_template_open(alloc, text, bytes, &chat, &error);
    assert_true((status == DSC_OK) == (chat != NULL));
    if (status == DSC_OK)
        status = dsc_chat_template_render(chat, context, 1, options, &output, &error);
    dsc_chat_template_close(&chat);
    assert_true(status == DSC_OK || (error.status == status && error.message[0] != 0));
    return status;
}

static dsc_status render(const char *text, const char *context)
{
    const dsc_chat_text variables = { context, (int64_t)strlen(context) };
    const dsc_chat_options options = { DSC_CHAT_LIMITS_DEFAULT, NOW };
    return render_with(text, (int64_t)strlen(text), &variables, &options);
}

static bool is_output(const char *expected, int64_t bytes)
{
    return output.text.bytes == bytes && (bytes == 0 || memcmp(output.text.ptr, expected, (size_t)bytes) == 0);
}

static void expect_output(const char *text, const char *expected)
{
    static const char context[] =
        "{\"m\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"tool\"}], \"n\": null, \"f\": 1.0, "
        "\"i\": 1, \"s\": \" a b \", \"d\": {\"k\": \"v\", \"items\": 3}}";
    if (render(text, context) != DSC_OK)
        fail_msg("%s: %s: %s", text, error.where, error.message);
    if (!is_output(expected, (int64_t)strlen(expected)))
        fail_msg("%s: '%.*s' and not '%s'", text, (int)output.text.bytes, output.text.ptr, expected);
}

static void expect_error(const char *text, dsc_status status, const char *where, const char *message)
{
    const dsc_status found = render(text, "{}");
    if (found != status || strcmp(error.where, where) != 0 || strstr(error.message, message) == NULL)
        fail_msg("%s: status %d, %s: %s", text, (int)found, error.where, error.message);
    assert_int_equal(output.text.bytes, 0);
}

/* ---- Golden conversations ---- */

static char *read_golden(const char *name, int64_t *bytes)
{
    char path[128];
    char *text = NULL;
    snprintf(path, sizeof path, "tests/golden/chat/%s", name);
    assert_int_equal(dsc_io_read_all(NULL, alloc, path, 1 << 20, &text, bytes, &error), DSC_OK);
    return text;
}

/* One case of expected.txt at `at`; returns the next one. */
static const char *check_case(const char *at)
{
    char name[64];
    long long context_bytes, output_bytes;
    int status, used;
    int64_t template_bytes = 0;
    assert_int_equal(sscanf(at, "%63s %d %lld %lld%n", name, &status, &context_bytes, &output_bytes, &used), 4);
    const char *numbers = at + used, *context = strchr(at, '\n') + 1, *expected = context + context_bytes + 1;
    const dsc_chat_text variables = { context, context_bytes };
    const dsc_chat_options options = { DSC_CHAT_LIMITS_DEFAULT, NOW };
    char *text = read_golden(name, &template_bytes);
    const dsc_status found = render_with(text, template_bytes, &variables, &options);
    dsc_alloc_free(alloc, text);
    if ((int)found != status)
        fail_msg("%s: %s: %s\n%.*s", name, error.where, error.message, (int)context_bytes, context);
    if (!is_output(expected, output_bytes))
        fail_msg("%s: '%.*s' and not '%.*s'", name, (int)output.text.bytes, output.text.ptr, (int)output_bytes,
            expected);
    for (int64_t i = 0; i < output.span_count; i++) {
        long long begin, end;
        assert_int_equal(sscanf(numbers, " %lld %lld%n", &begin, &end, &used), 2);
        assert_int_equal(output.span[i].begin, begin);
        assert_int_equal(output.span[i].end, end);
        numbers += used;
    }
    assert_int_equal(*numbers, '\n');
    return expected + output_bytes + 1;
}

static void golden_conversations_render(void **state)
{
    int64_t bytes = 0;
    int count = 0;
    (void)state;
    char *text = read_golden("expected.txt", &bytes);
    for (const char *at = text; at < text + bytes; count++)
        at = check_case(at);
    assert_int_equal(count, 48);
    dsc_alloc_free(alloc, text);
}

/* ---- Tables: {template, output} ---- */

typedef struct row {
    const char *text, *output;
} row;

static void check_rows(const row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        expect_output(rows[i].text, rows[i].output);
}

static void blanks_follow_the_signs(void **state)
{
    static const row rows[] = {
        { "a\n{% if i %}\n  b\n{% endif %}\nc\n", "a\n  b\nc" }, /* trim_blocks; the last line end goes */
        { "a\n\n", "a\n" },
        { "  {% if i %}x{% endif %}", "x" }, /* lstrip_blocks */
        { "b {% if i %}x{% endif %}", "b x" },
        { "  {{ i }}\n", "  1" }, /* not before an expression */
        { "  {%+ if i %}x{% endif +%}\ny", "  x\ny" },
        { "a \n {%- if i -%} \n b \n {%- endif -%} \n c", "abc" },
        { "a \n {{- i -}} \n c", "a1c" },
        { "a {#- c -#} b", "ab" }, { "a\n  {# c #}\nb", "a\nb" }, { "a{# c +#}\nb", "a\nb" },
        { "{% raw %}{{ x }}{% endraw %}", "{{ x }}" }, { "{% raw -%} \n a {%- endraw %} b", "a b" },
        { "{{ '}}' }}{{ {'a': {}}.a }}", "}}{}" }, { "{{-1}}{{- 1 -1}}", "10" },
        { "a\r\nb\rc{{ '\\r' }}", "a\nb\nc\r" }, { "\xc2\xa0{%- if i %}\xe3\x80\x80{%- endif %}", "" },
        { "{% if i %}\r\nx{% endif %}", "x" }, { "", "" }, { "{", "{" }, { "{ {", "{ {" },
    };
    (void)state;
    check_rows(rows, DSC_COUNT(rows));
}

static void expressions_follow_python(void **state)
{
    static const row rows[] = {
        { "{{ 1 + 2 * 3 ** 2 // 4 % 3 }}",
          "2" }, { "{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 // -2 }} {{ 7 % -3 }}", "-4 2 -4 -2" },
        { "{{ 7 / 2 }} {{ 4 / 2 }} {{ -7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** -1 }}", "3.5 2.0 -4.0 0.5 0.5" },
        { "{{ f }} {{ i }} {{ f == i }} {{ 1e16 }} {{ 1e15 }} {{ 1e-5 }} {{ 0.0001 }}",
          "1.0 1 True 1e+16 1000000000000000.0 1e-05 0.0001" },
        { "{{ 0.1 + 0.2 }} {{ 1.0 / 3 }} {{ 5e-324 }} {{ -0.0 }}",
          "0.30000000000000004 0.3333333333333333 5e-324 -0.0" },
        { "{{ 0x1f }} {{ 1_000 }} {{ 0b11 }} {{ 0o17 }} {{ 1_0.5 }}", "31 1000 3 15 10.5" },
        { "{{ true }} {{ True }} {{ none }} {{ true + 1 }} {{ not none }}", "True True None 2 True" },
        { "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }}", "True False True True" },
        { "{{ 'a' ~ 1 ~ none ~ u }} {{ 'a' + 'b' * 2 }} {{ [1] * 2 + [2] }}", "a1None abb [1, 1, 2]" },
        { "{{ '' or 'x' }} {{ 0 and 1 }} {{ 'a' if 0 }}{{ 'a' if 0 else 'b' }}", "x 0 b" },
        { "{{ 'b' in 'abc' }} {{ 'k' in d }} {{ 3 not in [1, 2] }} {{ 'x' in u }}", "True True True False" },
        { "{{ 'abc'[1] }}{{ 'abc'[-1] }}{{ 'abc'[1:] }}{{ 'abcd'[::-1] }}{{ 'abcd'[-1:0:-2] }}{{ 'abc'[7] }}",
          "bcbcdcbadb" },
        { "{{ 'h\xc3\xa9y'[1] }}{{ 'h\xc3\xa9y'|length }}{{ 'h\xc3\xa9y'[::-1] }}", "\xc3\xa9" "3y\xc3\xa9h" },
        { "{{ [1, 'a', \"it's\", none, 1.5, (1,), {'k': u}] }}",
          "[1, 'a', \"it's\", None, 1.5, (1,), {'k': Undefined}]" },
        { "{{ '\\n\\t\\\\\\x00\\u200b\xc3\xa9\\q' }}|{{ ['\\n\\\\\\x00\\u200b\xc3\xa9'] }}", "\n\t\\" },
        { "{{ d.k }} {{ d['k'] }} {{ d.items() }} {{ d['items'] }} {{ d.nothing }}|{{ m[0].role }} {{ m.0.role }}",
          "v v dict_items([('k', 'v'), ('items', 3)]) 3 |user user" },
        { "{{ d.get('x') }} {{ d.get('x', 2) }} {{ d.keys() | list }} {{ d.values() | list }}",
          "None 2 ['k', 'items'] ['v', 3]" },
        { "{{ {}['items'] is defined }} {{ [].append is defined }} {{ u is defined }} {{ n.x is defined }}",
          "True False False False" },
        { "{{ '%s-%d%%' % ('a', 2) }} {{ '{}{}{x}'.format(1, 2, x=3) }}", "a-2% 123" },
        { "{{ ' a,b '.strip().split(',') }} {{ 'a b c'.rsplit(' ', 1) }} {{ ' a  b'.split() }} {{ "
          "'a--b'.partition('--') }}",
          "['a', 'b'] ['a b', 'c'] ['a', 'b'] ('a', '--', 'b')" },
        { "{{ 'xxabxx'.strip('x') }} {{ 'ab'.startswith(('b', 'a')) }} {{ 'a\\nb\\r\\nc'.splitlines() }}",
          "ab True ['a', 'b', 'c']" },
        { "{{ 'a.b.a'.replace('a', 'x', 1) }} {{ ','.join(['p', 'q']) }} {{ 'ab'.find('b') }} {{ 'aXbX'.count('X') }}",
          "x.b.a p,q 1 2" },
        { "{{ 'stra\xc3\x9f" "e'.upper() }} {{ '\xce\x9f\xce\xa3'.lower() }} {{ 'they\\'re x-y'.title() }} {{ "
          "'aBC'.capitalize() }}",
          "STRASSE \xce\xbf\xcf\x82 They'Re X-Y Abc" },
        { "{{ range(3) | list }} {{ range(5, 0, -2) | list }} {{ dict(a=1, **{'b': 2}) }} {{ namespace(a=1) }}",
          "[0, 1, 2] [5, 3, 1] {'a': 1, 'b': 2} <Namespace {'a': 1}>" },
        { "{{ strftime_now('%d %b %Y %H:%M %A %-d %j') }}", "27 Nov 2025 00:00 Thursday 27 331" },
        { "{{ range(0, 5, 2) }} {{ range(3) }} {{ range(3, 1) }}", "range(0, 5, 2) range(0, 3) range(3, 1)" },
        { "{{ range(9223372036854775806, 9223372036854775807, 10) }}",
          "range(9223372036854775806, 9223372036854775807, 10)" },
        { "{{ [1, 2, 3][1::9223372036854775807] }}{{ 'abc'[2::9223372036854775807] }}", "[2]c" },
    };
    (void)state;
    check_rows(rows, 14);
    check_rows(rows + 15, DSC_COUNT(rows) - 15);
    assert_int_equal(render(rows[14].text, "{}"), DSC_OK); /* its output has a NUL */
    static const char expected[] = "\n\t\\\0\xe2\x80\x8b\xc3\xa9\\q|['\\n\\\\\\x00\\u200b\xc3\xa9']";
    assert_int_equal(output.text.bytes, sizeof expected - 1);
    assert_memory_equal(output.text.ptr, expected, sizeof expected - 1);
}

static void filters_and_tests_work(void **state)
{
    static const row rows[] = {
        { "{{ s | trim }}{{ 5 | trim }}{{ u | trim }}{{ 'xax' | trim('x') }}", "a b5a" },
        { "{{ {'a': [1, 1.0, none, '\xc3\xa9<\"']} | tojson }}", "{\"a\": [1, 1.0, null, \"\xc3\xa9<\\\"\"]}" },
        { "{{ {'b': 1, 'a': []} | tojson(indent=2, sort_keys=true) }}", "{\n  \"a\": [],\n  \"b\": 1\n}" },
        { "{{ [1, {'a': 2}] | tojson(separators=(',', ':')) }} {{ '\xc3\xa9\xf0\x9f\x99\x82' | "
          "tojson(ensure_ascii=true) }}",
          "[1,{\"a\":2}] \"\\u00e9\\ud83d\\ude42\"" },
        { "{{ [3, 1, 2] | sort }} {{ ['b', 'A'] | sort }} {{ ['b', 'A'] | sort(case_sensitive=true, reverse=true) }}",
          "[1, 2, 3] ['A', 'b'] ['b', 'A']" },
        { "{{ {'b': 1, 'A': 2} | dictsort }} {{ [1, 1, 2] | unique | list }} {{ [1, 2] | reverse | list }} {{ 'ab' | "
          "reverse }}",
          "[('A', 2), ('b', 1)] [1, 2] [2, 1] ba" },
        { "{{ m | map(attribute='role') | join(',') }} {{ m | selectattr('content', 'defined') | list | length }}",
          "user,tool 1" },
        { "{{ m | rejectattr('role', 'equalto', 'tool') | map(attribute='content') | first }} {{ [0, 1] | select | "
          "list }}", "hi [1]" },
        { "{{ [1, 2, 3] | select('odd') | map('string') | list }} {{ ['a'] | map('upper') | join }}", "['1', '3'] A" },
        { "{% set g = [1, 2] | select %}{{ g | list }}{{ g | list }}{{ 1 if g }}", "[1, 2][]1" }, /* read once */
        { "{{ u | default('x') }} {{ '' | default('x') }} {{ '' | d('x', true) }} {{ n | default('x') }}",
          "x  x None" },
        { "{{ '3.7' | int }} {{ 'x' | int(9) }} {{ '1_0' | int }} {{ 3.9 | int }} {{ '2.5' | float }} {{ 'x' | float "
          "}}", "3 9 10 3 2.5 0.0" },
        { "{{ 'a\\n\\nb' | indent }}|{{ 'a\\nb' | indent(1, first=true) }}", "a\n\n    b| a\n b" },
        { "{{ 'hello wORLD-x (y' | title }} {{ [1, 2] | sum }} {{ [2, 1] | min }} {{ [2, 1] | max }} {{ -2 | abs }}",
          "Hello World-X (Y 3 1 2 2" },
        { "{{ ('<' | safe) + '<' }} {{ ('<' | safe) ~ '<' }}", "<&lt; <<" },
        { "{{ d | items | list }} {{ u | items | list }} {{ [] | first is undefined }} {{ 'abc' | last }}",
          "[('k', 'v'), ('items', 3)] [] True c" },
        { "{{ 1 is number }} {{ true is number }} {{ true is integer }} {{ 1.0 is float }} {{ 's' is sequence }} {{ "
          "d is mapping }}",
          "True True False True True True" },
        { "{{ 1 is odd }} {{ 4 is divisibleby 2 }} {{ 1 is in [1] }} {{ 2 is not even }} {{ u is iterable }} {{ n is "
          "none }}",
          "True True True False True True" },
        { "{{ d is iterable and d is not string }} {{ range is callable }} {{ 1 is sameas true }} {{ true is true }}",
          "True True False True" },
    };
    (void)state;
    check_rows(rows, DSC_COUNT(rows));
}

static void statements_follow_jinja(void **state)
{
    static const row rows[] = {
        { "{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last "
          "}};{% endfor %}",
          "103TrueFalse;212FalseFalse;321FalseTrue;" },
        { "{% for x in [1, 2, 3] if x != 2 %}{{ x }}{{ loop.length }}{{ loop.nextitem }}{{ loop.previtem }};{% "
          "endfor %}", "123;321;" },
        { "{% for k, v in d.items() %}{{ k }}={{ v }}{{ ',' if not loop.last }}{% endfor %}", "k=v,items=3" },
        { "{% for x in [] %}x{% else %}none{% endfor %}{% for x in [1] %}{{ x }}{% else %}none{% endfor %}", "none1" },
        { "{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13" },
        { "{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1" },
        { "{% for x in [1] %}{% break %}{% else %}else{% endfor %}", "else" }, /* the body never came to its end */
        { "{% set x = 1 %}{% for y in [1, 2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}", "15151" },
        { "{% set ns = namespace(n=0) %}{% for x in [1, 2] %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}", "3" },
        { "{% set ns = namespace(on=true) %}{% for x in [1, 2, 3] if ns.on %}{{ x }}{% set ns.on = x < 2 %}{% endfor "
          "%}", "12" },
        { "{% set a, (b, c) = 1, [2, 3] %}{{ a }}{{ b }}{{ c }}{% set t = 1, %}{{ t }}", "123(1,)" },
        { "{% set x %}  b{{ i }}  {% endset %}[{{ x }}]{% set y | trim | upper %} q {% endset %}{{ y }}",
          "[  b1  ]Q" },
        { "{% if n %}a{% elif i %}b{% else %}c{% endif %}{% if n %}a{% else %}c{% endif %}", "bc" },
        { "{% macro f(a, b=a, c='z') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, c=2) }} {{ f() }}",
          "11z 112 z" },
        { "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "3210" },
        { "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, a=2) }}", "(1,){'a': 2}" },
        { "{% macro f(x) %}[{{ caller(x) }}]{% endmacro %}{% call(y) f(1) %}<{{ y }}>{% endcall %}", "[<1>]" },
        { "{% macro f() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ f() }}{% for x in [2] %}{{ f() }}{% endfor %}",
          "11" },
        { "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "3False" },
        { "{% filter upper %}ab{{ i }}{% endfilter %}", "AB1" },
        { "{% for x in 'ab' %}{% for y in [1] %}{{ loop.last }}{% endfor %}{{ loop.cycle('p', 'q') }}{% endfor %}",
          "TruepTrueq" },
        { "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}", "1False" },
        { "{% for m in m: %}{{ m.role }}{% endfor %}", "usertool" },
    };
    (void)state;
    check_rows(rows, DSC_COUNT(rows));
}

static void generation_blocks_have_spans(void **state)
{
    (void)state;
    expect_output("\xc3\xa9{% for x in 'ab' %}u{% generation %}{{ x }}\xc3\xa9{% endgeneration %}{% endfor %}!",
                  "\xc3\xa9ua\xc3\xa9ub\xc3\xa9!");
    assert_int_equal(output.span_count, 2);
    assert_int_equal(output.span[0].begin, 3);
    assert_int_equal(output.span[0].end, 6);
    assert_int_equal(output.span[1].begin, 7);
    assert_int_equal(output.span[1].end, 10);
    expect_output("none", "none");
    assert_int_equal(output.span_count, 0);
}

/* ---- Refusals ---- */

static void refusals_have_names_and_places(void **state)
{
    static const struct { const char *text; dsc_status status; const char *where, *message;
    } rows[] = {
        { "a\n{{ x | xmlattr }}", DSC_ERR_UNSUPPORTED, "chat template:2:8",
          "filter 'xmlattr' is not supported; supported filters are trim," },
        { "{{ x is lower }}", DSC_ERR_UNSUPPORTED, "chat template:1:9",
          "test 'lower' is not supported; supported tests are defined," },
        { "{% include 'x' %}", DSC_ERR_UNSUPPORTED, "chat template:1:4",
          "tag 'include' is not supported; supported tags are if," },
        { "{% for x in y recursive %}{% endfor %}", DSC_ERR_UNSUPPORTED, "chat template:1:15", "recursive" },
        { "\xc3\xa9{{ 'a'.encode() }}", DSC_ERR_UNSUPPORTED, "chat template:1:9",
          "the member 'encode' of a str is not supported" },
        { "{{ x.__class__ }}", DSC_ERR_UNSUPPORTED, "chat template:1:6", "'__class__'" },
        { "{{ 99999999999999999999 }}", DSC_ERR_UNSUPPORTED, "chat template:1:4", "beyond 64 bits" },
        { "{{ cycler(1) }}", DSC_ERR_UNSUPPORTED, "chat template:1:10", "supported functions are" },
        { "{{ [1].append(2) }}", DSC_ERR_INPUT, "chat template:1:14", "may not change values" },
        { "{% if x %}", DSC_ERR_INPUT, "chat template:1:11", "expected endif, found the end" },
        { "{% endif %}", DSC_ERR_INPUT, "chat template:1:4", "no open tag" },
        { "{{ 1 + }}", DSC_ERR_INPUT, "chat template:1:8", "expected an expression, found }}" },
        { "{{ 'a }}", DSC_ERR_INPUT, "chat template:1:4", "closing quote" },
        { "{{ (1 }}", DSC_ERR_INPUT, "chat template:1:7", "closing bracket" },
        { "{# x", DSC_ERR_INPUT, "chat template:1:1", "comment" },
        { "{{ 1 ? }}", DSC_ERR_INPUT, "chat template:1:6", "character" },
        { "{% break %}", DSC_ERR_INPUT, "chat template:1:4", "for loop" },
        { "{% set 1 = 2 %}", DSC_ERR_INPUT, "chat template:1:8", "name of a variable" },
        { "\xff", DSC_ERR_INPUT, "chat template:1:1", "UTF-8" },
        { "{{ u.x }}", DSC_ERR_INPUT, "chat template:1:6", "'u' is undefined" },
        { "{{ raise_exception('why') }}", DSC_ERR_INPUT, "chat template:1:19",
          "the template refuses the conversation: why" },
        { "{{ 1 + 'a' }}", DSC_ERR_INPUT, "chat template:1:6", "+ does not combine" },
        { "{{ 1 / 0 }}", DSC_ERR_INPUT, "chat template:1:6", "division by zero" },
        { "{{ none | tojson(1, 2, 3, 4, 5) }}", DSC_ERR_INPUT, "chat template:1:11", "at most 4" },
        { "{% set x.y = 1 %}", DSC_ERR_INPUT, "chat template:1:8", "not a namespace" },
        { "{{ namespace(_x=1) }}", DSC_ERR_INPUT, "chat template:1:13", "a namespace cannot store '_x'" },
        { "{% set ns = namespace() %}{% set ns._x = 1 %}", DSC_ERR_INPUT, "chat template:1:34", "cannot store '_x'" },
        { "{% for a, b in [1] %}{% endfor %}", DSC_ERR_INPUT, "chat template:1:4", "no items" },
        { "{{ range(100001) }}", DSC_ERR_INPUT, "chat template:1:9", "range" },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(rows); i++)
        expect_error(rows[i].text, rows[i].status, rows[i].where, rows[i].message);
}

static void contexts_are_checked(void **state)
{
    static const struct { const char *context, *where, *message; } rows[] = {
        { "[1]", "chat context:1:1", "object" },
        { "{\"a\": \n 01}", "chat context:2:2", "must not start with 0" },
        { "{\"a\": NaN}", "chat context:1:7", "a number" },
        { "{\"a\": \"\\ud800\"}", "chat context:1:8", "surrogate" },
        { "{\"a\": \"\\u0000\"}", "chat context:1:8", "NUL" },
        { "{\"a\": 9007199254740993}", "chat context:1:7", "above 2^53" },
        { "{\"a\": -9007199254740993}", "chat context:1:7", "above 2^53" },
        { "{\"a\": 1e999}", "chat context:1:7", "double" },
        { "{\"a\": \"\n\"}", "chat context:1:8", "the line ends" },
        { "{\"a\": 1", "chat context:1:8", "the end of the text" },
        { "{\"a\": 1, \"a\": 2}", "chat context:1:10", "duplicate key" },
        { "{} x", "chat context:1:4", "the end of the text" },
        { "", "chat context:1:1", "is empty" },
        { "{\"\xff\": 1}", "chat context:1:3", "UTF-8" },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(rows); i++) {
        const dsc_status status = render("x", rows[i].context);
        if (status != DSC_ERR_INPUT || strcmp(error.where, rows[i].where) != 0 ||
            strstr(error.message, rows[i].message) == NULL)
            fail_msg("%s: status %d, %s: %s", rows[i].context, (int)status, error.where, error.message);
    }
    assert_int_equal(render("{{ a }} {{ b }} {{ c }} {{ d }} {{ e }}", "{\"a\": -9007199254740992, \"b\": 1.50, \"c\": "
        "\"\\ud83d\\ude42\", \"d\": -0, \"e\": 1.0}"), DSC_OK);
    assert_int_equal(output.text.bytes, 32);
    assert_memory_equal(output.text.ptr, "-9007199254740992 1.5 \xf0\x9f\x99\x82 0 1.0", 32);
}

static void later_objects_replace_variables(void **state)
{
    static const char text[] = "{{ a }}{{ b }}{{ tools }}{{ add_generation_prompt }}{{ range }}";
    const dsc_chat_text context[] = { { "{\"a\": 1, \"b\": 2}", 16 }, { "{\"b\": 3, \"range\": 4}", 20 } };
    const dsc_chat_options options = DSC_CHAT_OPTIONS_DEFAULT;
    dsc_chat_template *chat = NULL;
    (void)state;
    assert_int_equal(dsc_chat_template_open(alloc, text, sizeof text - 1, &chat, &error), DSC_OK);
    for (int i = 0; i < 2; i++) { /* a template is not changed by a render */
        assert_int_equal(dsc_chat_template_render(chat, context, 2, &options, &output, &error), DSC_OK);
        assert_int_equal(output.text.bytes, 12);
        assert_memory_equal(output.text.ptr, "13NoneFalse4", 12);
    }
    dsc_chat_template_close(&chat);
}

/* ---- Limits ---- */

static char *repeated(const char *start, const char *part, int count, const char *end)
{
    char *text = malloc(strlen(start) + strlen(part) * (size_t)count + strlen(end) + 1);
    assert_non_null(text);
    char *at = stpcpy(text, start);
    for (int i = 0; i < count; i++)
        at = stpcpy(at, part);
    strcpy(at, end);
    return text;
}

static void expect_limit(const char *text, const char *message)
{
    const dsc_status status = render(text, "{}");
    dsc_alloc_stats stats;
    if ((status != DSC_ERR_INPUT && status != DSC_ERR_UNSUPPORTED) || strstr(error.message, message) == NULL)
        fail_msg("%.60s: status %d, %s: %s", text, (int)status, error.where, error.message);
    dsc_alloc_stats_get(alloc, &stats);
    assert_true(stats.tier_peak_bytes[DSC_TIER_HOST] < 256 << 20);
}

static void hostile_templates_end(void **state)
{
    static const struct { const char *text, *message; } rows[] = {
        { "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "steps" },
        { "{% for a in range(100000) %}{% for b in range(100000) %}{{ b }}{% endfor %}{% endfor %}", "limit" },
        { "{{ 'x' * 10 ** 9 }}", "limit of memory" }, { "{{ 'x' * 10 ** 18 }}", "limit of memory" },
        { "{{ [1] * 10 ** 9 }}", "limit" }, { "{{ ([1] * 10 ** 5) * 10 ** 5 }}", "limit" },
        { "{{ 2 ** 64 }}", "64 bits" }, { "{{ 9 ** 9 ** 9 }}", "64 bits" }, { "{{ 2 ** 63 - 1 }}", "64 bits" },
        { "{{ 9223372036854775807 + 1 }}", "64 bits" }, { "{{ (-9223372036854775807 - 1) // -1 }}", "64 bits" },
        { "{% set ns = namespace(s='xx') %}{% for a in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
          "limit" },
        { "{% set ns = namespace(l=[]) %}{% for a in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
          "nested" },
        { "{% set ns = namespace(l=[]) %}{% for a in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | "
          "tojson }}", "nested" },
        { "{% set ns = namespace(l=[], k=[]) %}{% for a in range(5000) %}{% set ns.l = [ns.l] %}{% set ns.k = [ns.k] "
          "%}{% endfor %}{{ ns.l == ns.k }}", "nested" },
        { "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested" },
        { "{% macro f(n) %}{% for i in range(9) %}{{ f(n) if n }}{% endfor %}{% endmacro %}{{ f(1) }}", "nested" },
        { "{% set s = 'ab' * 10 ** 6 %}{% for i in range(100000) %}{{ 'c' in s }}{% endfor %}", "steps" },
        { "{% set s = 'ab' * 10 ** 6 %}{% for i in range(100000) %}{{ s[i] }}{% endfor %}", "steps" },
        { "{% set s = 'ab' * 10 ** 6 %}{% for i in range(100000) %}{{ s.rfind('ba' * 1000 ~ 'c') }}{% endfor %}",
          "limit" },
        { "{{ ('a' * 10 ** 6).replace('', 'b' * 10 ** 6) }}", "limit" },
        { "{{ 'x' * 10 ** 8 }}", "limit" }, { "{{ range(9223372036854775807) }}", "range" },
        { "{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807) | list | sum }}{{ "
          "'a'[::-9223372036854775807] }}{{ 2 ** 62 * 2 }}", "64 bits" },
        { "{{ [3, 2, 1] * 30000 | sort }}{% for i in range(100000) %}{{ (range(100000) | sort) }}{% endfor %}", "" },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(rows); i++)
        expect_limit(rows[i].text, rows[i].message);
}

/* A lazy filter keeps its error for later, but not one that leaves a macro's output or a loop half done. */
static void errors_inside_of_lazy_filters_end_the_render(void **state)
{
    static const char refusing[] = "{% macro f(x) %}{{ raise_exception('two') if x == 2 }}y{% endmacro %}"
                                   "{% for i in [1, 2] if f(i) %}{% set z = [loop] | map('length') %}text{% endfor %}";
    (void)state;
    expect_limit(refusing, "the template refuses the conversation: two");
    expect_limit("{% for i in [1, 'a'] if i + 1 %}{% set z = [loop] | map('length') %}text{% endfor %}",
                 "+ does not combine");
    expect_output("{% set z = [1] | map('items') %}text", "text");
}

static void deep_templates_are_refused(void **state)
{
    static const struct { const char *start, *part, *end, *message; } rows[] = {
        { "{{ ", "(", "", "brackets" }, { "{{ ", "[", "", "brackets" }, { "{{ ", "not ", "1 }}", "nested" },
        { "{{ ",
          "-", "1 }}", "nested" }, { "{{ ", "1 if 1 else ", "1 }}", "nested" }, { "", "{% if 1 %}", "", "nested" },
        { "",
          "{% for x in y %}", "", "nested" }, { "{{ 1", " + 1", " }}", "nested" }, { "{{ a", ".b", " }}", "nested" },
        { "{{ 1", " | string", " }}", "nested" }, { "{{ 1", " and 1", " }}", "nested" },
        { "{{ [", "1, ", "1] }}", "tokens" }, { "{% set ", "(", "x = 1 %}", "brackets" },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(rows); i++) {
        char *text = repeated(rows[i].start, rows[i].part, strcmp(rows[i].message, "tokens") == 0 ? 150000 : 5000,
            rows[i].end);
        expect_limit(text, rows[i].message);
        free(text);
    }
    char *chain = repeated("{% if 0 %}", "{% elif 0 %}", 20000, "{% else %}x{% endif %}"); /* long, but not deep */
    expect_output(chain, "x");
    free(chain);
    char *long_text = repeated("", "0123456789", 110000, "");
    expect_limit(long_text, "bytes");
    free(long_text);
    char *deep = repeated("", "[", 5000, "");
    assert_int_equal(render("x", deep), DSC_ERR_INPUT);
    assert_non_null(strstr(error.message, "nested deeper than 100 levels"));
    free(deep);
}

static void limits_of_options_hold(void **state)
{
    static const char text[] = "{% for i in range(100) %}{{ 'abc' }}{% endfor %}";
    const dsc_chat_text context = { "{}", 2 };
    const dsc_chat_limits good = DSC_CHAT_LIMITS_DEFAULT;
    dsc_chat_options options = { good, NOW };
    (void)state;
    options.limits.output_bytes = 300;
    assert_int_equal(render_with(text, sizeof text - 1, &context, &options), DSC_OK);
    options.limits.output_bytes = 299;
    assert_int_equal(render_with(text, sizeof text - 1, &context, &options), DSC_ERR_INPUT);
    options.limits = good;
    options.limits.steps = 200;
    assert_int_equal(render_with(text, sizeof text - 1, &context, &options), DSC_ERR_INPUT);
    options.limits = good;
    options.limits.memory_bytes = 1000;
    assert_int_equal(render_with(text, sizeof text - 1, &context, &options), DSC_ERR_INPUT);
    options.limits = good;
    options.limits.depth = 1;
    assert_int_equal(render_with(text, sizeof text - 1, &context, &options), DSC_ERR_INPUT);
}

static void every_allocation_may_fail(void **state)
{
    static const char text[] = "{% for m in m %}{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}{{ "
        "'x' * 100000 }}";
    const dsc_chat_text context = { "{\"m\": [{\"a\": 1}, 2]}", 20 };
    const dsc_chat_options options = { DSC_CHAT_LIMITS_DEFAULT, NOW };
    dsc_alloc_stats stats;
    dsc_status status = DSC_ERR_NOMEM;
    int failures = 0;
    (void)state;
    for (int n = 1; status != DSC_OK; n++, failures++) {
        dsc_alloc_stats_get(alloc, &stats);
        dsc_alloc_fail_at(alloc, stats.call_count + n, false);
        status = render_with(text, sizeof text - 1, &context, &options);
        assert_true(status == DSC_OK || status == DSC_ERR_NOMEM);
        dsc_chat_output_free(&output);
        output.text.alloc = alloc;
        assert_true(n < 100);
    }
    assert_true(failures > 4);
    dsc_alloc_fail_at(alloc, 0, false);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_alloc, close_alloc)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(golden_conversations_render),
        TEST(blanks_follow_the_signs),
        TEST(expressions_follow_python),
        TEST(filters_and_tests_work),
        TEST(statements_follow_jinja),
        TEST(generation_blocks_have_spans),
        TEST(refusals_have_names_and_places),
        TEST(contexts_are_checked),
        TEST(later_objects_replace_variables),
        TEST(hostile_templates_end),
        TEST(errors_inside_of_lazy_filters_end_the_render),
        TEST(deep_templates_are_refused),
        TEST(limits_of_options_hold),
        TEST(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
