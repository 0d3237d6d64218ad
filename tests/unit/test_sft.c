/* test_sft.c - instruction data: objects of a file, formats by columns, counted tokens, hostile rows.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/data/sft/detect.h"
#include "engine/data/sft/pack.h"

#define FILE_PATH "test_sft.tmp"

static dsc_alloc *alloc;
static dsc_tokenizer *tokenizer;
static dsc_error error;
static char folder[64];

static void write_file(const char *path, const char *text, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    fclose(file);
}

/* A byte-level tokenizer without merges: the id of a byte is the byte, and 256 to 258 are special tokens. */
static void write_tokenizer(const char *path, const char *normalizer)
{
    FILE *file = fopen(path, "w");
    int other = 256;
    assert_non_null(file);
    fprintf(file, "{\"added_tokens\":[");
    const char *const special[] = { "<|im_start|>", "<|im_end|>", "<eos>" };
    for (int i = 0; i < 3; i++)
        fprintf(file, "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                "\"normalized\":false,\"special\":true}", i > 0 ? "," : "", 256 + i, special[i]);
    fprintf(file, "],\"normalizer\":%s,", normalizer);
    fprintf(file, "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                  "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int b = 0; b < 256; b++) {
        const bool printed = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        fprintf(file, "%s\"\\u%04x\":%d", b > 0 ? "," : "", printed ? b : other++, b);
    }
    fprintf(file, "}}}");
    fclose(file);
}

static int open_all(void **state)
{
    char path[128];
    (void)state;
    error = (dsc_error)DSC_ERROR_INIT;
    snprintf(folder, sizeof folder, "/tmp/dsc_test_sft_XXXXXX");
    if (mkdtemp(folder) == NULL || chdir(folder) != 0 || dsc_alloc_open(&alloc, NULL) != DSC_OK)
        return -1;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    write_tokenizer(path, "null");
    return dsc_tokenizer_open(&tokenizer, path, &error) == DSC_OK ? 0 : -1;
}

static int close_all(void **state)
{
    char command[128];
    (void)state;
    dsc_tokenizer_close(&tokenizer);
    dsc_alloc_close(&alloc); /* asserts that nothing is left */
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

/* ---- Objects of a file ---- */

/* The member "n" of all objects as one text, or the error. */
static dsc_status read_records(const char *text, size_t bytes, char *out)
{
    dsc_records *records = NULL;
    const cJSON *row = NULL;
    write_file(FILE_PATH, text, bytes);
    error = (dsc_error)DSC_ERROR_INIT;
    *out = 0;
    dsc_status status = dsc_records_open(NULL, alloc, FILE_PATH, &records, &error);
    while (status == DSC_OK && (status = dsc_records_next(records, &row, &error)) == DSC_OK && row != NULL) {
        const cJSON *n = cJSON_GetObjectItemCaseSensitive(row, "n");
        sprintf(out + strlen(out), "%s%d", cJSON_IsString(n) ? n->valuestring : "", (int)dsc_records_line(records));
    }
    dsc_records_close(&records);
    return status;
}

static void test_forms(void **state)
{
    static const struct { const char *text, *want; } cases[] = {
        { "{\"n\":\"a\"}\n{\"n\":\"b\"}", "a1b2" },
        { "\n\n{\"n\":\"a\"}\r\n  \n{\"n\":\"b\"}\n\n", "a3b5" },
        { "[{\"n\":\"a\"},{\"n\":\"b\"}]", "a1b1" },
        { "[\n {\"n\":\n \"a\"},\n {\"n\": \"]}\\\"{\"}\n]\n", "a2]}\"{4" },
        { "\xef\xbb\xbf[{\"n\":\"a\"}]", "a1" },
        { "[{\"n\":\"\\\\\"},{\"n\":\"b\"}]", "\\1b1" },
        { "[]", "" },
    };
    char got[200];
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        assert_int_equal(read_records(cases[i].text, strlen(cases[i].text), got), DSC_OK);
        assert_string_equal(got, cases[i].want);
    }
}

static void test_hostile_files(void **state)
{
    static const struct { const char *text, *want; } cases[] = {
        { "{\"n\":\"a\"}\n{\"n\":", "line 2" },
        { "{\"n\":\"a\"}\n[1]\n", "expected an object" },
        { "{\"n\":1}\n5\n", "expected an object" },
        { "{\n \"n\": 1\n}", "over several lines" },
        { "[{\"n\":1}", "expected a comma" },
        { "[{\"n\":1} {\"n\":2}]", "expected a comma" },
        { "[{\"n\":1},", "expected an object" },
        { "[{\"n\":1},]", "expected an object" },
        { "[1,2]", "expected an object" },
        { "[{\"n\":\"a", "the file ends inside" },
        { "[{\"n\":\"a\\", "the file ends inside" },
        { "[{\"n\":1}]{", "behind the end of the list" },
        { "[{\"n\":1]}", "" },
        { "{\"n\":\"\xff\"}", "line 1" },
        { "{\"n\":1,\"n\":2}", "line 1" },
    };
    char got[200];
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        assert_int_equal(read_records(cases[i].text, strlen(cases[i].text), got), DSC_ERR_INPUT);
        char whole[800];
        dsc_error_format(&error, whole, sizeof whole);
        if (strstr(whole, cases[i].want) == NULL)
            fail_msg("case %zu: %s", i, whole);
    }
    assert_int_equal(read_records("{\"n\":1}\n\0", 9, got), DSC_ERR_INPUT);
}

static void test_records_beyond_a_buffer(void **state)
{
    const size_t each = 3000, count = 1500; /* 4.5 MB */
    char *text = malloc(each * count + 2), *at = text;
    dsc_records *records = NULL;
    const cJSON *row = NULL;
    int64_t found = 0;
    (void)state;
    *at++ = '[';
    for (size_t i = 0; i < count; i++) {
        memset(at, ' ', each);
        memcpy(at, "{\"n\":\"", 6);
        memset(at + 6, i % 2 == 0 ? 'a' : '{', each - 10);
        memcpy(at + each - 4, "\"}\n,", 4);
        at += each;
    }
    at[-1] = ']';
    write_file(FILE_PATH, text, (size_t)(at - text));
    assert_int_equal(dsc_records_open(NULL, alloc, FILE_PATH, &records, &error), DSC_OK);
    while (dsc_records_next(records, &row, &error) == DSC_OK && row != NULL) {
        found++;
        assert_int_equal(strlen(cJSON_GetObjectItemCaseSensitive(row, "n")->valuestring), each - 10);
    }
    assert_int_equal(found, count);
    dsc_records_close(&records);
    free(text);
}

/* ---- Examples ---- */

/* An example, its uncounted tokens and its counted ones as text with [ and ] around these. Returns the text's end. */
static char *write_example(const dsc_sft_example *example, char *out)
{
    bool inside = false;
    for (int64_t i = 0; i < example->count; i++) {
        const int32_t id = example->ids[i];
        if ((example->counted[i] != 0) != inside)
            *out++ = inside ? ']' : '[';
        inside = example->counted[i] != 0;
        out += id < 256 ? sprintf(out, "%c", id == '\n' ? '/' : (char)id)
                        : sprintf(out, "%s",
                                  id == 256   ? "<S>"
                                  : id == 257 ? "<E>"
                                              : "<eos>");
    }
    if (inside)
        *out++ = ']';
    *out = 0;
    return out;
}

/* The first example; of a row of preferences both, with | between them. */
static dsc_status read_example(const dsc_sft_section *section, const char *text, char *out)
{
    const dsc_sft_options options = { .alloc = alloc, .path = FILE_PATH, .tokenizer_path = folder,
                                      .tokenizer = tokenizer, .section = section };
    dsc_sft_reader *reader = NULL;
    dsc_sft_example example = { .side = DSC_SFT_CHOSEN };
    bool found = true;
    write_file(FILE_PATH, text, strlen(text));
    error = (dsc_error)DSC_ERROR_INIT;
    *out = 0;
    dsc_status status = dsc_sft_reader_open(&options, &reader, &error);
    for (int i = 0; status == DSC_OK && found && example.side == DSC_SFT_CHOSEN; i++) {
        status = dsc_sft_reader_next(reader, &found, &example, &error);
        if (status != DSC_OK || !found)
            continue;
        if (i > 0)
            *out++ = '|';
        out = write_example(&example, out);
    }
    dsc_sft_reader_close(&reader);
    return status;
}

static void expect(const dsc_sft_section *section, const char *text, const char *want)
{
    char got[4000];
    if (read_example(section, text, got) != DSC_OK)
        fail_msg("%s: %s", error.where, error.message);
    assert_string_equal(got, want);
}

#define TURNS "{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"yes\"}"

static void test_formats(void **state)
{
    const dsc_sft_section section = DSC_SFT_SECTION_INIT;
    (void)state;
    expect(&section, "{\"messages\":[" TURNS "]}", "<S>user/hi<E>/<S>assistant/[yes<E>]/");
    expect(&section, "{\"messages\":[" TURNS "," TURNS "]}",
           "<S>user/hi<E>/<S>assistant/[yes<E>]/<S>user/hi<E>/<S>assistant/[yes<E>]/");
    expect(&section, "{\"system\":\"s\",\"conversations\":[{\"from\":\"human\",\"value\":\"hi\"},"
           "{\"from\":\"gpt\",\"value\":\"yes\"}]}", "<S>system/s<E>/<S>user/hi<E>/<S>assistant/[yes<E>]/");
    expect(&section, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\"]},"
           "{\"role\":\"assistant\",\"content\":\"c\"}]}", "<S>user/ab<E>/<S>assistant/[c<E>]/");
    expect(&section, "{\"prompt\":\"1+1=\",\"completion\":\"2\"}", "1+1=[2<eos>]");
    expect(&section, "{\"prompt\":[{\"role\":\"user\",\"content\":\"hi\"}],\"completion\":\"yes\"}",
           "<S>user/hi<E>/<S>assistant/[yes<E>]/");
    expect(&section, "{\"prompt\":[" TURNS ",{\"role\":\"user\",\"content\":\"x\"}],"
           "\"completion\":[{\"role\":\"assistant\",\"content\":\"y\"}]}",
           "<S>user/hi<E>/<S>assistant/yes<E>/<S>user/x<E>/<S>assistant/[y<E>]/");
    expect(&section, "{\"input_ids\":[97,98,99],\"labels\":[-100,98,-100]}", "a[b]c");
    expect(&section, "{\"text\":\"abc\"}", "[abc<eos>]");
    expect(&section, "{\"instruction\":\"do\",\"input\":null,\"output\":\"done\"}",
           "Below is an instruction that describes a task. Write a response that appropriately completes the request."
           "//### Instruction:/do//### Response:[done<eos>]");
}

#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ANSWER(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"

static void test_preferences(void **state)
{
    static const char pair[] = "<S>user/hi<E>/<S>assistant/[yes<E>]/|<S>user/hi<E>/<S>assistant/[no<E>]/";
    dsc_sft_section section = DSC_SFT_SECTION_INIT;
    (void)state;
    for (int i = 0; i < 2; i++) { /* found by its columns, and asked for */
        section.pairs = i == 1;
        expect(&section, "{\"prompt\":[" USER("hi") "],\"chosen\":[" ANSWER("yes") "],\"rejected\":[" ANSWER("no") "]}",
               pair);
        expect(&section, "{\"prompt\":[" USER("hi") "],\"chosen\":\"yes\",\"rejected\":\"no\"}", pair);
        expect(&section,
               "{\"chosen\":[" USER("hi") "," ANSWER("yes") "],\"rejected\":[" USER("hi") "," ANSWER("no") "]}", pair);
        expect(&section,
               "{\"prompt\":\"hi\",\"chosen\":[" USER("hi") "," ANSWER("yes") "],\"rejected\":[" USER("hi") "," ANSWER(
                   "no") "]}",
               pair);
        expect(&section, "{\"prompt\":\"hi\",\"chosen\":[" ANSWER("yes") "],\"rejected\":[" ANSWER("no") "]}", pair);
        expect(&section, "{\"prompt\":\"1+1=\",\"chosen\":\"2\",\"rejected\":\"3\"}", "1+1=[2<eos>]|1+1=[3<eos>]");
    }
    /* earlier answers that both have are the prompt; answers that differ count from the first one on */
    expect(&section,
           "{\"chosen\":[" TURNS "," USER("a") "," ANSWER("b") "],\"rejected\":[" TURNS
                                                               "," USER("a") "," ANSWER("c") "]}",
           "<S>user/hi<E>/<S>assistant/yes<E>/<S>user/a<E>/<S>assistant/[b<E>]/|"
           "<S>user/hi<E>/<S>assistant/yes<E>/<S>user/a<E>/<S>assistant/[c<E>]/");
    expect(&section,
           "{\"chosen\":[" USER("a") "," ANSWER("b") "," USER("c") "," ANSWER("d") "],\"rejected\":[" USER(
               "a") "," ANSWER("e") "]}",
           "<S>user/a<E>/<S>assistant/[b<E>]/<S>user/c<E>/<S>assistant/[d<E>]/|<S>user/a<E>/<S>assistant/[e<E>]/");
    /* the same on both sides: the last message is no prompt */
    expect(&section, "{\"chosen\":[" TURNS "],\"rejected\":[" TURNS "]}",
           "<S>user/hi<E>/<S>assistant/[yes<E>]/|<S>user/hi<E>/<S>assistant/[yes<E>]/");
    /* columns of other formats do not matter with dsc.dpo */
    expect(&section, "{\"messages\":[" TURNS "],\"chosen\":\"ab\",\"rejected\":\"ac\"}", "a[b<eos>]|a[c<eos>]");
    section.pairs = false;
    expect(&section, "{\"messages\":[" TURNS "],\"chosen\":\"ab\",\"rejected\":\"ac\"}",
           "<S>user/hi<E>/<S>assistant/[yes<E>]/");
    expect(&section, "{\"chosen\":\"who? me\",\"rejected\":\"who? you\"}", "who?[ me<eos>]|who?[ you<eos>]");
    expect(&section, "{\"chosen\":\"ab\",\"rejected\":\"abc\"}", "a[b<eos>]|a[bc<eos>]");
    expect(&section, "{\"chosen\":\"\u00e9\",\"rejected\":\"\u00e8\"}", "[\xc3\xa9<eos>]|[\xc3\xa8<eos>]");
    expect(&section, "{\"chosen\":\"\",\"rejected\":\"b\"}", "[<eos>]|[b<eos>]");
    section.end_token = false;
    expect(&section, "{\"chosen\":\"xa\",\"rejected\":\"xb\"}", "x[a]<eos>|x[b]<eos>");
}

/* The config may say the format, so that no row shows it. */
static void test_missing_sides(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "{\"chosen\":[" TURNS "]}", "\"rejected\" is missing" },
        { "{\"chosen\":[" TURNS "],\"rejected\":null}", "\"rejected\" is missing" },
        { "{\"chosen\":[" TURNS "],\"rejected\":5}", "\"rejected\" is of another type" },
        { "{\"rejected\":[" TURNS "]}", "\"chosen\" is missing" },
        { "{\"chosen\":\"a\"}", "\"rejected\" is missing" },
    };
    dsc_sft_section section = DSC_SFT_SECTION_INIT;
    char got[4000];
    (void)state;
    section.format = DSC_SFT_PREFERENCE;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        assert_int_equal(read_example(&section, cases[i].text, got), DSC_ERR_INPUT);
        if (strstr(error.message, cases[i].want) == NULL)
            fail_msg("case %zu: %s", i, error.message);
    }
}

#define LEVELS 50

/* An answer that both sides have does not belong to the pair. A comparison that looks at each level twice would take
 * 2^50 steps. */
static void test_deep_messages_are_compared(void **state)
{
    static const char form[] =
        "{\"chosen\":[{\"role\":\"assistant\",\"content\":\"a\",\"x\":%s}," ANSWER("yes") "],"
        "\"rejected\":[{\"x\":%s,\"content\":\"a\",\"role\":\"assistant\"}," ANSWER("no") "]}";
    const dsc_sft_section section = DSC_SFT_SECTION_INIT;
    char deep[6 * LEVELS + 16] = "", other[sizeof deep], text[3 * sizeof deep];
    (void)state;
    for (int i = 0; i < LEVELS; i++)
        strcat(deep, "{\"y\":");
    strcat(deep, "1");
    for (int i = 0; i < LEVELS; i++)
        strcat(deep, "}");
    snprintf(text, sizeof text, form, deep, deep);
    expect(&section, text, "<S>assistant/a<E>/<S>assistant/[yes<E>]/|<S>assistant/a<E>/<S>assistant/[no<E>]/");
    snprintf(other, sizeof other, "%s", deep);
    *strchr(other, '1') = '2';
    snprintf(text, sizeof text, form, deep, other);
    expect(&section, text, "<S>assistant/[a<E>]/<S>assistant/[yes<E>]/|<S>assistant/[a<E>]/<S>assistant/[no<E>]/");
}

/* The example of a table in a file of that name, or the error. */
static dsc_status read_table(const char *path, const char *text, char *out)
{
    const dsc_sft_section section = DSC_SFT_SECTION_INIT;
    const dsc_sft_options options = {
        .alloc = alloc, .path = path, .tokenizer_path = folder, .tokenizer = tokenizer, .section = &section
    };
    dsc_sft_reader *reader = NULL;
    dsc_sft_example example;
    bool found = true;
    write_file(path, text, strlen(text));
    error = (dsc_error)DSC_ERROR_INIT;
    *out = 0;
    dsc_status status = dsc_sft_reader_open(&options, &reader, &error);
    while (status == DSC_OK && (status = dsc_sft_reader_next(reader, &found, &example, &error)) == DSC_OK && found)
        out += sprintf(out, "%d:%.*s|", (int)example.line, (int)example.text_bytes, example.text);
    dsc_sft_reader_close(&reader);
    return status;
}

static void test_tables(void **state)
{
    static const struct {
        const char *path, *text, *want;
    } cases[] = {
        { "t.csv", "prompt,completion\na,b\n\"x,\"\"y\",\"line 1\nline 2\"\r\n\nc,d",
          "2:ab|3:x,\"yline 1\nline 2|6:cd|" },
        { "t.tsv", "completion\tid\tprompt\nb\t1\ta,\n", "2:a,b|" },
        { "t.csv", "prompt;completion\na;b,\n", "2:ab,|" },
        { "t.csv", "\xef\xbb\xbf,prompt,completion\n0,a,b\n", "2:ab|" }, /* the mark of Windows, the index of pandas */
        { "t.csv", "text\n\"\"\"quoted\"\"\"\nplain\n", "2:\"quoted\"|3:plain|" },
        { "t.csv", "instruction,input,output\ndo,,done\n",
          "2:Below is an instruction that describes a task. Write a response "
          "that appropriately completes the request.\n\n### Instruction:\ndo\n\n### Response:done|" },
        { "t.csv", "prompt,chosen,rejected\n1+1=,2,3\na,b,c\n", "2:1+1=2|2:1+1=3|3:ab|3:ac|" },
        { "t.csv", "prompt,completion\n", "" },
    };
    static const struct {
        const char *text, *want;
    } bad[] = {
        { "prompt,completion\na,b\nc\n", "t.csv, line 3: a row of 1 cells; the header has 2" },
        { "prompt,completion\na,\"b\n", "t.csv, line 2: a cell in quotes without its end" },
        { "prompt,prompt\na,b\n", "t.csv, line 2" },
        { "question,answer\na,b\n", "columns without a known format: question, answer" },
        { "prompt,completion\na,\xff\n", "byte 20 is not UTF-8 text" },
    };
    char got[1000];
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        if (read_table(cases[i].path, cases[i].text, got) != DSC_OK)
            fail_msg("case %zu: %s", i, error.message);
        assert_string_equal(got, cases[i].want);
    }
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        assert_int_equal(read_table("t.csv", bad[i].text, got), DSC_ERR_INPUT);
        dsc_error_format(&error, got, sizeof got);
        if (strstr(got, bad[i].want) == NULL)
            fail_msg("case %zu: %s", i, got);
    }
}

static void test_settings(void **state)
{
    dsc_sft_section section = DSC_SFT_SECTION_INIT;
    (void)state;
    section.end_token = false;
    expect(&section, "{\"messages\":[" TURNS "]}", "<S>user/hi<E>/<S>assistant/[yes]<E>/");
    expect(&section, "{\"prompt\":\"a\",\"completion\":\"b\"}", "a[b]<eos>");
    section.end_token = true;
    snprintf(section.system, sizeof section.system, "be brief");
    expect(&section, "{\"messages\":[" TURNS "]}", "<S>system/be brief<E>/<S>user/hi<E>/<S>assistant/[yes<E>]/");
    section.system[0] = 0;
    snprintf(section.train_on[section.train_on_count++], DSC_SFT_ROLE_BYTES, "user");
    expect(&section, "{\"messages\":[" TURNS "]}", "[<S>user/hi<E>]/<S>assistant/yes<E>/");
    section.train_on_count = 0;
    snprintf(section.column[DSC_SFT_COLUMN_MESSAGES], sizeof section.column[0], "dialog");
    expect(&section, "{\"dialog\":[" TURNS "]}", "<S>user/hi<E>/<S>assistant/[yes<E>]/");
    section.column[DSC_SFT_COLUMN_MESSAGES][0] = 0;
    expect(&section, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"no\","
           "\"weight\":0}," TURNS "]}",
           "<S>user/hi<E>/<S>assistant/no<E>/<S>user/hi<E>/<S>assistant/[yes<E>]/");
}

static void write_template(dsc_sft_section *section, const char *text)
{
    snprintf(section->template_file, sizeof section->template_file, "t.jinja");
    write_file("t.jinja", text, strlen(text));
}

static void test_templates(void **state)
{
    dsc_sft_section section = DSC_SFT_SECTION_INIT;
    (void)state;
    write_template(&section, "{% for m in messages %}<|im_start|>{{ m.role }}:{% if m.role == 'assistant' %}"
                   "{% generation %}{{ m.content }}<|im_end|>!{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
                   "{% endfor %}");
    expect(&section, "{\"messages\":[" TURNS "," TURNS "]}", "<S>user:hi<S>assistant:[yes<E>!]<S>user:hi<S>assistant:"
           "[yes<E>!]");
    expect(&section, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"no\","
           "\"train\":false}," TURNS "]}", "<S>user:hi<S>assistant:no<E>!<S>user:hi<S>assistant:[yes<E>!]");
    /* Earlier answers have no [think]: a prefix of the conversation does not begin the whole text. */
    write_template(&section, "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' and loop.last %}"
                   "(t){% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant:"
                   "{% endif %}");
    expect(&section, "{\"messages\":[" TURNS "," TURNS "]}",
           "user:hi<E>/assistant:[yes<E>]/user:hi<E>/assistant:[(t)yes<E>]/");
    /* The generation prompt is not a prefix of the answer. */
    write_template(&section, "{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
                   "{% if add_generation_prompt %}assistant:<think>{% endif %}");
    expect(&section, "{\"messages\":[" TURNS "]}", "user:hi<E>assistant:[yes<E>]");
}

static void test_members_as_in_transformers(void **state)
{
    dsc_sft_section section = DSC_SFT_SECTION_INIT;
    (void)state;
    write_template(&section,
                   "{% for m in messages %}{{ m.role }}({{ m.keys() | join(',') }}){{ m.content }}{{ m.thinking }}"
                   "{{ m.reasoning_content }}<|im_end|>{% endfor %}");
    expect(&section, "{\"messages\":[{\"role\":\"ipython\",\"content\":\"r\",\"name\":null}]}",
           "ipython(role,content)r<E>");
    expect(&section,
           "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[1],\"reasoning\":\"w\","
           "\"train\":false},{\"role\":\"user\",\"content\":\"a\"}]}",
           "assistant(role,tool_calls,reasoning,reasoning_content,thinking)ww<E>user(role,content)a<E>");
    assert_int_equal(
        read_example(&section, "{\"messages\":[{\"role\":\"user\",\"tool_calls\":null}]}", (char[400]) { 0 }),
        DSC_ERR_INPUT);
}

static void test_parts_of_contents(void **state)
{
    static const char *const row =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\" a \"},"
        "{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":\"c\"}]}";
    dsc_sft_section section = DSC_SFT_SECTION_INIT;
    (void)state;
    write_template(&section,
                   "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content "
                   "%}<{{ p.text | trim }}>{% endfor %}{% endif %}<|im_end|>{% endfor %}");
    expect(&section, row, "<a><b><E>[c<E>]");
    write_template(&section, "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"); /* would print the list */
    expect(&section, row, " a b<E>[c<E>]");
}

/* A decomposed accent becomes another character, so the tokens do not spell the text. */
static void test_encoded_in_parts(void **state)
{
    static const char row[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"e\u0301\"},"
                              "{\"role\":\"assistant\",\"content\":\"yes e\u0301\"}]}";
    dsc_sft_section section = DSC_SFT_SECTION_INIT;
    char path[128];
    (void)state;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    write_tokenizer(path, "{\"type\":\"NFC\"}");
    dsc_tokenizer_close(&tokenizer);
    assert_int_equal(dsc_tokenizer_open(&tokenizer, path, &error), DSC_OK);
    expect(&section, row, "<S>user/\xc3\xa9<E>/<S>assistant/[yes \xc3\xa9<E>]/");
    section.end_token = false;
    expect(&section, row, "<S>user/\xc3\xa9<E>/<S>assistant/[yes \xc3\xa9]<E>/");
    section.end_token = true;
    write_template(&section, "{% for m in messages %}{{ m.role }}:{% if loop.last %}(t){% endif %}{{ m.content }}"
                             "<|im_end|>/{% endfor %}");
    expect(&section, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"e\u0301\"}," TURNS "]}",
           "assistant:[\xc3\xa9<E>]/user:hi<E>/assistant:(t)[yes<E>]/");
}

static void test_hostile_rows(void **state)
{
    static const struct { const char *text, *want;
    } cases[] = {
        { "{}", "columns without a known format: none" },
        { "{\"question\":\"a\",\"answer\":\"b\"}", "question, answer" },
        { "{\"messages\":[]}", "a list of messages" },
        { "{\"messages\":{}}", "a list of messages" },
        { "{\"messages\":[5]}", "message 1 has no role" },
        { "{\"messages\":[{\"role\":\"user\"}]}", "message 1 has no content" },
        { "{\"messages\":[{\"role\":\"asistant\",\"content\":\"a\"}]}", "the role \"asistant\"" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "the content of message 1" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "part of type \"image_url\"" },
        { "{\"messages\":[" TURNS "],\"tools\":5}", "\"tools\" is of another type" },
        { "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\"}]}]}", "calls of tools" },
        { "{\"prompt\":\"a\",\"completion\":[]}", "\"completion\" is of another type" },
        { "{\"prompt\":5,\"completion\":\"b\"}", "\"prompt\" is of another type" },
        { "{\"input_ids\":[1],\"labels\":[2]}", "labels are not shifted" },
        { "{\"input_ids\":[1,2],\"labels\":[1]}", "token 1 has no label" },
        { "{\"input_ids\":[1],\"labels\":[1,1]}", "more labels" },
        { "{\"input_ids\":[1.5]}", "token 0 is not an id" },
        { "{\"input_ids\":[-1]}", "token 0 is not an id" },
        { "{\"input_ids\":[259]}", "the tokenizer has 259 tokens" },
        { "{\"instruction\":\"a\",\"input\":5,\"output\":\"b\"}", "\"input\" is of another type" },
        { "{\"text\":5}", "\"text\" is of another type" },
        { "{\"chosen\":\"a\"}", "columns without a known format: chosen" },
        { "{\"chosen\":5,\"rejected\":\"b\"}", "\"chosen\" is of another type" },
        { "{\"chosen\":\"a\",\"rejected\":[" USER("x") "]}", "\"rejected\" is of another type" },
        { "{\"chosen\":[" USER("x") "],\"rejected\":[]}", "\"rejected\" is of another type" },
        { "{\"chosen\":[],\"rejected\":[]}", "\"chosen\" is of another type" },
        { "{\"prompt\":5,\"chosen\":\"a\",\"rejected\":\"b\"}", "\"prompt\" is of another type" },
        { "{\"prompt\":5,\"chosen\":[" USER("x") "],\"rejected\":[" USER("x") "]}", "\"prompt\" is of another type" },
        { "{\"prompt\":\"who\",\"chosen\":[" TURNS "],\"rejected\":[" TURNS "]}", "no user message of both" },
        { "{\"chosen\":[5,6],\"rejected\":[5,7]}", "message 1 has no role" },
    };
    const dsc_sft_section section = DSC_SFT_SECTION_INIT;
    char got[4000], whole[800];
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        assert_int_not_equal(read_example(&section, cases[i].text, got), DSC_OK);
        dsc_error_format(&error, whole, sizeof whole);
        if (strstr(whole, cases[i].want) == NULL || strstr(whole, FILE_PATH ", line 1") == NULL)
            fail_msg("case %zu: %s", i, whole);
    }
}

static void test_hostile_templates(void **state)
{
    static const struct { const char *text, *want; } cases[] = {
        { "{% for %}", "t.jinja" },
        { "{{ raise_exception('not so') }}", "not so" },
        { "nothing of the messages", "message 2 is not found" },
        { "{% for m in messages %}{{ m.content|upper }}{{ loop.length }}{{ m.content }}{% endfor %}", "is not found" },
        { "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "" },
    };
    dsc_sft_section section = DSC_SFT_SECTION_INIT;
    char got[4000], whole[800];
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        write_template(&section, cases[i].text);
        assert_int_not_equal(read_example(&section, "{\"messages\":[" TURNS "]}", got), DSC_OK);
        dsc_error_format(&error, whole, sizeof whole);
        if (strstr(whole, cases[i].want) == NULL)
            fail_msg("case %zu: %s", i, whole);
    }
    snprintf(section.template_file, sizeof section.template_file, "missing.jinja");
    assert_int_equal(read_example(&section, "{\"messages\":[" TURNS "]}", got), DSC_ERR_INPUT);
}

/* ---- Samples ---- */

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

static void test_detection(void **state)
{
    static const struct {
        const char *text;
        dsc_rows rows;
    } cases[] = {
        { "{\"text\":\"a\"}", DSC_ROWS_DOCUMENTS },
        { "{\"text\":\"a\",\"instruction\":\"b\",\"output\":\"c\"}", DSC_ROWS_EXAMPLES },
        { "[{\"messages\":[]}]", DSC_ROWS_EXAMPLES },
        { "{\"unknown\":1}", DSC_ROWS_EXAMPLES },
        { "plain", DSC_ROWS_NONE },
    };
    dsc_sft_section section = DSC_SFT_SECTION_INIT;
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        write_file("noname", cases[i].text, strlen(cases[i].text));
        assert_int_equal(dsc_sft_detect(NULL, alloc, "noname", &section, NULL), cases[i].rows);
    }
    write_file("noname", cases[1].text, strlen(cases[1].text));
    assert_int_equal(dsc_sft_detect(NULL, alloc, "noname", &section, "text"), DSC_ROWS_DOCUMENTS);
    write_file("noname", "{\"body\":\"a\",\"prompt\":\"\",\"completion\":\"\"}", 40);
    assert_int_equal(dsc_sft_detect(NULL, alloc, "noname", &section, "body"), DSC_ROWS_DOCUMENTS);
    section.enabled = true;
    assert_int_equal(dsc_sft_detect(NULL, alloc, "noname", &section, "body"), DSC_ROWS_EXAMPLES);
    section.enabled = false;
    write_file("a.csv", "id,text\n1,a\n", 12);
    assert_int_equal(dsc_sft_detect(NULL, alloc, "a.csv", &section, NULL), DSC_ROWS_DOCUMENTS);
    write_file("a.csv", "prompt,completion\na,b\n", 22);
    assert_int_equal(dsc_sft_detect(NULL, alloc, "a.csv", &section, NULL), DSC_ROWS_EXAMPLES);
    write_file("a.csv", "question,answer\na,b\n", 20);
    assert_int_equal(dsc_sft_detect(NULL, alloc, "a.csv", &section, NULL), DSC_ROWS_DOCUMENTS);
}

static void test_failing_memory(void **state)
{
    const dsc_sft_section section = DSC_SFT_SECTION_INIT;
    dsc_alloc_stats before, after;
    char got[4000];
    (void)state;
    dsc_alloc_stats_get(alloc, &before);
    expect(&section, "{\"messages\":[" TURNS "," TURNS "]}",
           "<S>user/hi<E>/<S>assistant/[yes<E>]/<S>user/hi<E>/<S>assistant/[yes<E>]/");
    dsc_alloc_stats_get(alloc, &after);
    for (int64_t i = 1; i <= after.call_count - before.call_count; i++) {
        dsc_alloc_stats now;
        dsc_alloc_stats_get(alloc, &now);
        dsc_alloc_fail_at(alloc, now.call_count + i, true);
        assert_int_not_equal(read_example(&section, "{\"messages\":[" TURNS "," TURNS "]}", got), DSC_OK);
        dsc_alloc_fail_at(alloc, 0, false);
    }
    dsc_alloc_stats_get(alloc, &after);
    assert_int_equal(after.live_count, before.live_count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_forms, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_hostile_files, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_records_beyond_a_buffer, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_formats, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_preferences, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_missing_sides, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_deep_messages_are_compared, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_tables, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_settings, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_templates, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_members_as_in_transformers, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_parts_of_contents, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_encoded_in_parts, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_hostile_rows, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_hostile_templates, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_packing, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_packing_settings, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_pairs, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_targets, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_many_examples, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_sample_files, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_threads_change_nothing, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_threads_keep_pairs, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_detection, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_failing_memory, open_all, close_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
