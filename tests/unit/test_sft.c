/* test_sft.c - instruction data: objects of a file, formats by columns, counted tokens, hostile rows.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/sft_case.h"

#include "engine/data/sft/detect.h"

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
        cmocka_unit_test_setup_teardown(test_detection, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_failing_memory, open_all, close_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
