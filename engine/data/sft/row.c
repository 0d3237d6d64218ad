/* row.c - see row.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/sft/row.h"

#include <string.h>

#include "base/formats/json.h"
#include "engine/data/sft/json_out.h"

#define MESSAGES_MAX 10000

void dsc_sft_row_open(dsc_alloc *alloc, dsc_sft_row *out)
{
    *out = (dsc_sft_row){ .json = { .alloc = alloc }, .tools = { .alloc = alloc }, .prompt = { .alloc = alloc },
                          .completion = { .alloc = alloc }, .ids = { .alloc = alloc }, .counted = { .alloc = alloc } };
}

void dsc_sft_row_close(dsc_sft_row *row)
{
    if (row->message != NULL)
        dsc_alloc_free(row->json.alloc, row->message);
    row->message = NULL;
    row->message_count = row->message_room = 0;
    dsc_text_free(&row->json);
    dsc_text_free(&row->tools);
    dsc_text_free(&row->prompt);
    dsc_text_free(&row->completion);
    dsc_ids_free(&row->ids);
    dsc_ids_free(&row->counted);
}

/* A row that is being read. */
typedef struct row_reader {
    const dsc_sft_section *section;
    const char *where;
    const cJSON *object;
    dsc_sft_row *row;
    dsc_error *err;
} row_reader;

static const cJSON *column(const row_reader *r, dsc_sft_column which)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(r->object, dsc_sft_column_name(r->section, which));
    return cJSON_IsNull(value) ? NULL : value;
}

static dsc_status refuse_column(const row_reader *r, dsc_sft_column which, const char *expected)
{
    const char *name = dsc_sft_column_name(r->section, which);
    return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "\"%.60s\" is %s; expected %s (format %s)", name,
                    column(r, which) == NULL ? "missing" : "of another type", expected,
                    dsc_sft_format_text(r->row->format));
}

static dsc_status text_column(const row_reader *r, dsc_sft_column which, const char **out)
{
    const cJSON *value = column(r, which);
    if (!cJSON_IsString(value))
        return refuse_column(r, which, "a text");
    *out = value->valuestring;
    return DSC_OK;
}

/* "" where the column is missing. */
static dsc_status optional_text(const row_reader *r, dsc_sft_column which, const char **out)
{
    *out = "";
    return column(r, which) == NULL ? DSC_OK : text_column(r, which, out);
}

/* ---- Messages ---- */

static dsc_status new_message(const row_reader *r, dsc_sft_message **out)
{
    dsc_sft_row *row = r->row;
    if (row->message_count == MESSAGES_MAX)
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "more than %d messages in a conversation; split it",
                        MESSAGES_MAX);
    if (row->message_count == row->message_room) {
        dsc_sft_message *more = NULL;
        const int64_t room = dsc_max_i64(16, 2 * row->message_room);
        DSC_TRY(dsc_alloc_zeroed(row->json.alloc, DSC_TAG_DATA, room, sizeof *more, &more, r->err));
        if (row->message_count > 0)
            memcpy(more, row->message, (size_t)row->message_count * sizeof *more);
        dsc_alloc_free(row->json.alloc, row->message);
        row->message = more;
        row->message_room = room;
    }
    *out = &row->message[row->message_count++];
    **out = (dsc_sft_message){ .begin = row->json.bytes };
    return DSC_OK;
}

/* Neither the first nor the last visible character of a content. */
static char other_character(const char *text, int64_t bytes)
{
    int64_t first = 0, last = bytes - 1;
    while (first < bytes && (unsigned char)text[first] <= ' ')
        first++;
    while (last > first && (unsigned char)text[last] <= ' ')
        last--;
    for (const char *c = "@%~^"; *c != 0; c++)
        if (first >= bytes || (text[first] != *c && text[last] != *c))
            return *c;
    return '@';
}

static dsc_status add_content(const row_reader *r, dsc_sft_message *message, const char *text, int64_t bytes)
{
    DSC_TRY(dsc_json_out_raw(&r->row->json, ",\"content\":", r->err));
    message->content_begin = r->row->json.bytes;
    message->other = other_character(text, bytes);
    DSC_TRY(dsc_json_out_text(&r->row->json, text, bytes, r->err));
    message->content_end = r->row->json.bytes;
    return DSC_OK;
}

/* Parts of a content: joined, or as they are for a template that reads parts. */
static dsc_status add_parts(const row_reader *r, dsc_sft_message *message, const cJSON *parts)
{
    dsc_text *const joined = &r->row->prompt; /* conversations have no other use for it */
    joined->bytes = 0;
    for (const cJSON *part = parts->child; part != NULL; part = part->next) {
        const cJSON *text = cJSON_IsObject(part) ? cJSON_GetObjectItemCaseSensitive(part, "text") : part;
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(part, "type");
        if (!cJSON_IsString(text) || (cJSON_IsString(type) && strcmp(type->valuestring, "text") != 0))
            return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "message %lld has a part of type \"%.40s\"; expected "
                            "parts {\"type\": \"text\", \"text\": ...}", (long long)r->row->message_count,
                            cJSON_IsString(type) ? type->valuestring : "?");
        DSC_TRY(dsc_text_add(joined, text->valuestring, (int64_t)strlen(text->valuestring), r->err));
    }
    if (!r->row->keeps_parts)
        return add_content(r, message, joined->ptr != NULL ? joined->ptr : "", joined->bytes);
    DSC_TRY(dsc_json_out_raw(&r->row->json, ",\"content\":", r->err));
    message->content_begin = r->row->json.bytes;
    message->other = other_character(joined->ptr != NULL ? joined->ptr : "", joined->bytes);
    DSC_TRY(dsc_json_out_value(&r->row->json, parts, r->err));
    message->content_end = r->row->json.bytes;
    return DSC_OK;
}

static dsc_status add_any_content(const row_reader *r, dsc_sft_message *message, const cJSON *content)
{
    if (cJSON_IsString(content))
        return add_content(r, message, content->valuestring, (int64_t)strlen(content->valuestring));
    if (cJSON_IsArray(content))
        return add_parts(r, message, content);
    return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "the content of message %lld is of another type; expected a text "
                    "or a list of text parts", (long long)r->row->message_count);
}

/* The role as templates call it; NULL: unknown. */
static const char *known_role(const dsc_sft_section *section, const char *role)
{
    static const struct { const char *name, *role; } names[] = {
        { "system", "system" }, { "user", "user" }, { "assistant", "assistant" }, { "tool", "tool" },
        { "developer", "developer" }, { "human", "user" }, { "gpt", "assistant" }, { "chatgpt", "assistant" },
        { "bing", "assistant" }, { "bard", "assistant" }, { "model", "assistant" }, { "observation", "tool" },
        { "function_response", "tool" }, { "ipython", "ipython" }, { "function", "function" } };
    for (size_t i = 0; i < DSC_COUNT(names); i++)
        if (strcmp(names[i].name, role) == 0)
            return names[i].role;
    for (int i = 0; i < section->train_on_count; i++)
        if (strcmp(section->train_on[i], role) == 0)
            return role;
    return NULL;
}

/* The number or truth of a member that says whether a message counts; `counts` where there is none. */
static bool says_counts(const cJSON *message, const char *member, bool counts)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(message, member);
    if (cJSON_IsBool(value))
        return counts && cJSON_IsTrue(value);
    return counts && (!cJSON_IsNumber(value) || value->valuedouble != 0);
}

static dsc_status begin_message(const row_reader *r, const char *role, dsc_sft_message **out)
{
    dsc_text *json = &r->row->json;
    DSC_TRY(new_message(r, out));
    DSC_TRY(dsc_json_out_raw(json, "{\"role\":", r->err));
    return dsc_json_out_text(json, role, (int64_t)strlen(role), r->err);
}

static dsc_status end_message(const row_reader *r, dsc_sft_message *message)
{
    DSC_TRY(dsc_json_out_raw(&r->row->json, "}", r->err));
    message->end = r->row->json.bytes;
    return DSC_OK;
}

static dsc_status add_turn(const row_reader *r, const char *role, const char *text, bool counts)
{
    dsc_sft_message *message = NULL;
    DSC_TRY(begin_message(r, role, &message));
    DSC_TRY(add_content(r, message, text, (int64_t)strlen(text)));
    message->counts = counts && dsc_sft_role_counts(r->section, role);
    return end_message(r, message);
}

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names != NULL; names++)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

static const cJSON *member(const cJSON *object, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNull(value) ? NULL : value;
}

static dsc_status add_member(const row_reader *r, const char *name, const cJSON *value)
{
    DSC_TRY(dsc_json_out_raw(&r->row->json, ",", r->err));
    DSC_TRY(dsc_json_out_text(&r->row->json, name, (int64_t)strlen(name), r->err));
    DSC_TRY(dsc_json_out_raw(&r->row->json, ":", r->err));
    return dsc_json_out_value(&r->row->json, value, r->err);
}

/* A reasoning has three names. Templates read reasoning_content or thinking, and get both, as in transformers. */
static dsc_status add_reasoning(const row_reader *r, const cJSON *from)
{
    static const char *const names[] = { "reasoning_content", "thinking", "reasoning" };
    const cJSON *reasoning = NULL, *thinking = member(from, "thinking");
    for (size_t i = 0; i < DSC_COUNT(names) && reasoning == NULL; i++)
        reasoning = member(from, names[i]);
    if (reasoning == NULL)
        return DSC_OK;
    DSC_TRY(add_member(r, "reasoning_content", reasoning));
    return add_member(r, "thinking", thinking != NULL ? thinking : reasoning);
}

/* Other members, such as tool_calls, are the template's. A null is no member, as in transformers: tables write one
 * where a message has no value. */
static dsc_status add_members(const row_reader *r, const cJSON *from)
{
    static const char *const own[] = { "role", "from", "content", "value", "weight", "train", "reasoning_content",
                                       "thinking", NULL };
    for (const cJSON *each = from->child; each != NULL; each = each->next)
        if (!cJSON_IsNull(each) && !is_one_of(each->string, own))
            DSC_TRY(add_member(r, each->string, each));
    return add_reasoning(r, from);
}

static dsc_status add_message(const row_reader *r, const cJSON *from, bool counts)
{
    const cJSON *role = member(from, "role"), *content = cJSON_GetObjectItemCaseSensitive(from, "content");
    const long long number = (long long)r->row->message_count + 1;
    dsc_sft_message *message = NULL;
    role = role != NULL ? role : member(from, "from");
    content = content != NULL ? content : cJSON_GetObjectItemCaseSensitive(from, "value");
    if (!cJSON_IsObject(from) || !cJSON_IsString(role))
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "message %lld has no role; expected {\"role\": ..., "
                        "\"content\": ...} or {\"from\": ..., \"value\": ...}", number);
    const char *name = known_role(r->section, role->valuestring);
    if (name == NULL)
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "message %lld has the role \"%.40s\"; expected system, user, "
                        "assistant or tool", number, role->valuestring);
    if (content == NULL && member(from, "tool_calls") == NULL)
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "message %lld has no content; expected a text", number);
    DSC_TRY(begin_message(r, name, &message));
    if (content != NULL && !cJSON_IsNull(content))
        DSC_TRY(add_any_content(r, message, content));
    DSC_TRY(add_members(r, from));
    message->counts = counts && dsc_sft_role_counts(r->section, name);
    message->counts = says_counts(from, "train", says_counts(from, "weight", message->counts));
    return end_message(r, message);
}

static dsc_status add_messages(const row_reader *r, const cJSON *list, bool counts)
{
    for (const cJSON *each = list->child; each != NULL; each = each->next)
        DSC_TRY(add_message(r, each, counts));
    return DSC_OK;
}

/* ---- Conversations ---- */

static bool begins_with_system(const cJSON *list)
{
    const cJSON *role = list != NULL ? cJSON_GetObjectItemCaseSensitive(list->child, "role") : NULL;
    if (role == NULL && list != NULL)
        role = cJSON_GetObjectItemCaseSensitive(list->child, "from");
    return cJSON_IsString(role) &&
           (strcmp(role->valuestring, "system") == 0 || strcmp(role->valuestring, "developer") == 0);
}

/* The system prompt of the row or of the config, and the tools. */
static dsc_status begin_conversation(const row_reader *r, const cJSON *first)
{
    const cJSON *tools = column(r, DSC_SFT_COLUMN_TOOLS);
    const char *system = "";
    r->row->conversation = true;
    DSC_TRY(optional_text(r, DSC_SFT_COLUMN_SYSTEM, &system));
    system = *system != 0 ? system : r->section->system;
    if (*system != 0 && !begins_with_system(first))
        DSC_TRY(add_turn(r, "system", system, false));
    if (cJSON_IsArray(tools))
        return dsc_json_out_value(&r->row->tools, tools, r->err);
    if (cJSON_IsString(tools) && (*tools->valuestring == 0 || *tools->valuestring == '['))
        return dsc_json_out_raw(&r->row->tools, tools->valuestring, r->err);
    return tools == NULL ? DSC_OK : refuse_column(r, DSC_SFT_COLUMN_TOOLS, "a list of tools, or its JSON as a text");
}

static dsc_status read_messages(const row_reader *r, dsc_sft_column which)
{
    const cJSON *list = column(r, which);
    if (!cJSON_IsArray(list) || list->child == NULL)
        return refuse_column(r, which, "a list of messages");
    DSC_TRY(begin_conversation(r, list));
    return add_messages(r, list, true);
}

static dsc_status add_text(const row_reader *r, dsc_text *out, const char *text)
{
    return dsc_text_add(out, text, (int64_t)strlen(text), r->err);
}

/* A prompt, and its completion in the column `which`. */
static dsc_status read_completion(const row_reader *r, dsc_sft_column which)
{
    const cJSON *prompt = column(r, DSC_SFT_COLUMN_PROMPT), *completion = column(r, which);
    if (cJSON_IsArray(prompt)) {
        DSC_TRY(begin_conversation(r, prompt));
        DSC_TRY(add_messages(r, prompt, false));
        if (cJSON_IsString(completion))
            return add_turn(r, "assistant", completion->valuestring, true);
        return cJSON_IsArray(completion) ? add_messages(r, completion, true)
                                         : refuse_column(r, which, "messages or a text");
    }
    if (!cJSON_IsString(prompt))
        return refuse_column(r, DSC_SFT_COLUMN_PROMPT, "a text or a list of messages");
    if (!cJSON_IsString(completion))
        return refuse_column(r, which, "a text, as the prompt is one");
    DSC_TRY(add_text(r, &r->row->prompt, prompt->valuestring));
    return add_text(r, &r->row->completion, completion->valuestring);
}

/* ---- Preferences ---- */

static const char *role_of(const row_reader *r, const cJSON *message)
{
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
    role = role != NULL ? role : cJSON_GetObjectItemCaseSensitive(message, "from");
    const char *known = cJSON_IsString(role) ? known_role(r->section, role->valuestring) : NULL;
    return known != NULL ? known : "";
}

/* Whether one of the messages before `end` is this question. */
static bool has_question(const row_reader *r, const cJSON *list, const cJSON *end, const char *question)
{
    for (const cJSON *each = list->child; each != NULL && each != end; each = each->next) {
        const cJSON *content = cJSON_GetObjectItemCaseSensitive(each, "content");
        content = content != NULL ? content : cJSON_GetObjectItemCaseSensitive(each, "value");
        if (strcmp(role_of(r, each), "user") == 0 && cJSON_IsString(content) &&
            strcmp(content->valuestring, question) == 0)
            return true;
    }
    return false;
}

/* Whole conversations. The messages that both begin with are the prompt; the last one of a side never is. */
static dsc_status read_shared_messages(const row_reader *r, const cJSON *own, const cJSON *other, const char *question)
{
    const cJSON *answer = own->child, *beside = other->child;
    while (answer->next != NULL && beside->next != NULL && dsc_json_equal(answer, beside)) {
        answer = answer->next;
        beside = beside->next;
    }
    if (question != NULL && !has_question(r, own, answer, question))
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where,
                        "\"%.60s\" is a text that is no user message of both conversations; expected that message, a "
                        "list of messages, or no prompt (format preference)",
                        dsc_sft_column_name(r->section, DSC_SFT_COLUMN_PROMPT));
    bool counts = false;
    DSC_TRY(begin_conversation(r, own));
    for (const cJSON *each = own->child; each != NULL; each = each->next) {
        counts = counts || each == answer;
        DSC_TRY(add_message(r, each, counts));
    }
    return DSC_OK;
}

/* Lists of messages, beside a prompt that is a text or missing. */
static dsc_status read_message_side(const row_reader *r, const cJSON *own, const cJSON *other)
{
    const cJSON *prompt = column(r, DSC_SFT_COLUMN_PROMPT);
    if (prompt != NULL && !cJSON_IsString(prompt))
        return refuse_column(r, DSC_SFT_COLUMN_PROMPT, "a text or a list of messages");
    if (prompt == NULL || strcmp(role_of(r, own->child), "assistant") != 0)
        return read_shared_messages(r, own, other, prompt != NULL ? prompt->valuestring : NULL);
    DSC_TRY(begin_conversation(r, NULL));
    DSC_TRY(add_turn(r, "user", prompt->valuestring, false));
    return add_messages(r, own, true);
}

/* Bytes that both texts begin with: whole characters, never the last one of a text, and no blank before the rest. */
static int64_t shared_bytes(const char *own, const char *other)
{
    int64_t at = 0;
    while (own[at] != 0 && own[at] == other[at])
        at++;
    if (at > 0 && (own[at] == 0 || other[at] == 0))
        at--;
    while (at > 0 && ((unsigned char)own[at] & 0xC0) == 0x80)
        at--;
    return at > 0 && own[at - 1] == ' ' ? at - 1 : at;
}

static dsc_status read_side(const row_reader *r, dsc_sft_column which, dsc_sft_column beside)
{
    static const char expected[] = "a text or a list of messages, as the other one is";
    const cJSON *own = column(r, which), *other = column(r, beside), *prompt = column(r, DSC_SFT_COLUMN_PROMPT);
    if (cJSON_IsArray(prompt))
        return read_completion(r, which);
    if (!cJSON_IsString(own) && (!cJSON_IsArray(own) || own->child == NULL))
        return refuse_column(r, which, expected);
    if (cJSON_IsString(own) != cJSON_IsString(other) ||
        (cJSON_IsArray(own) && (!cJSON_IsArray(other) || other->child == NULL)))
        return refuse_column(r, beside, expected);
    if (cJSON_IsArray(own))
        return read_message_side(r, own, other);
    if (prompt != NULL)
        return read_completion(r, which);
    const int64_t shared = shared_bytes(own->valuestring, other->valuestring);
    DSC_TRY(dsc_text_add(&r->row->prompt, own->valuestring, shared, r->err));
    return add_text(r, &r->row->completion, own->valuestring + shared);
}

/* ---- Alpaca ---- */

/* Earlier questions and answers: [[question, answer], ...]. */
static dsc_status add_history(const row_reader *r)
{
    const cJSON *history = cJSON_GetObjectItemCaseSensitive(r->object, "history");
    for (const cJSON *pair = cJSON_IsArray(history) ? history->child : NULL; pair != NULL; pair = pair->next) {
        const cJSON *question = cJSON_GetArrayItem(pair, 0), *answer = cJSON_GetArrayItem(pair, 1);
        if (!cJSON_IsString(question) || !cJSON_IsString(answer))
            return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "\"history\" has another form; expected [[question, "
                            "answer], ...]");
        DSC_TRY(add_turn(r, "user", question->valuestring, true));
        DSC_TRY(add_turn(r, "assistant", answer->valuestring, true));
    }
    return DSC_OK;
}

static dsc_status read_alpaca(const row_reader *r, bool templated)
{
    const char *instruction = "", *input = "", *output = "";
    dsc_text *prompt = &r->row->prompt;
    DSC_TRY(text_column(r, DSC_SFT_COLUMN_INSTRUCTION, &instruction));
    DSC_TRY(optional_text(r, DSC_SFT_COLUMN_INPUT, &input));
    DSC_TRY(text_column(r, DSC_SFT_COLUMN_OUTPUT, &output));
    if (!templated) { /* as in Stanford's Alpaca */
        DSC_TRY(add_text(r, prompt, *input != 0 ? "Below is an instruction that describes a task, paired with an input "
                         "that provides further context. Write a response that appropriately completes the request.\n\n"
                         "### Instruction:\n" : "Below is an instruction that describes a task. Write a response that "
                         "appropriately completes the request.\n\n### Instruction:\n"));
        DSC_TRY(add_text(r, prompt, instruction));
        DSC_TRY(add_text(r, prompt, *input != 0 ? "\n\n### Input:\n" : ""));
        DSC_TRY(add_text(r, prompt, input));
        DSC_TRY(add_text(r, prompt, "\n\n### Response:"));
        return add_text(r, &r->row->completion, output);
    }
    DSC_TRY(begin_conversation(r, NULL));
    DSC_TRY(add_history(r));
    DSC_TRY(add_text(r, prompt, instruction));
    DSC_TRY(add_text(r, prompt, *input != 0 ? "\n" : ""));
    DSC_TRY(dsc_text_add(prompt, input, (int64_t)strlen(input) + 1, r->err)); /* with its NUL */
    DSC_TRY(add_turn(r, "user", prompt->ptr, true));
    prompt->bytes = 0;
    return add_turn(r, "assistant", output, true);
}

/* ---- Tokens ---- */

static dsc_status read_tokens(const row_reader *r)
{
    const cJSON *ids = column(r, DSC_SFT_COLUMN_INPUT_IDS), *labels = column(r, DSC_SFT_COLUMN_LABELS);
    if (!cJSON_IsArray(ids) || ids->child == NULL)
        return refuse_column(r, DSC_SFT_COLUMN_INPUT_IDS, "a list of token ids");
    if (labels != NULL && !cJSON_IsArray(labels))
        return refuse_column(r, DSC_SFT_COLUMN_LABELS, "a list of as many labels, -100 where a token does not count");
    const cJSON *label = labels != NULL ? labels->child : NULL;
    for (const cJSON *each = ids->child; each != NULL; each = each->next) {
        int64_t id, want = 0;
        const long long at = (long long)r->row->ids.count;
        if (!dsc_json_integer(each, 0, INT32_MAX, &id))
            return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "token %lld is not an id; expected an integer from 0 on",
                            at);
        if (labels != NULL && (label == NULL || !dsc_json_integer(label, -100, INT32_MAX, &want)))
            return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "token %lld has no label; expected -100 or the token's id",
                            at);
        const bool counts = labels == NULL || want >= 0;
        if (counts && labels != NULL && want != id)
            return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "token %lld is %lld and its label %lld; expected -100 or "
                            "the token's own id: labels are not shifted", at, (long long)id, (long long)want);
        DSC_TRY(dsc_ids_add(&r->row->ids, (int32_t)id, r->err));
        DSC_TRY(dsc_ids_add(&r->row->counted, counts, r->err));
        label = label != NULL ? label->next : NULL;
    }
    if (label != NULL)
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "more labels than the %lld tokens; expected one for each",
                        (long long)r->row->ids.count);
    return DSC_OK;
}

/* ---- A row ---- */

static void clear_row(dsc_sft_row *row, dsc_sft_format format, bool conversation)
{
    row->format = format;
    row->conversation = conversation;
    row->message_count = 0;
    row->json.bytes = row->tools.bytes = row->prompt.bytes = row->completion.bytes = 0;
    row->ids.count = row->counted.count = 0;
}

dsc_status dsc_sft_row_read(const dsc_sft_section *section, dsc_sft_format format, bool templated, const char *where,
                            const cJSON *object, dsc_sft_row *row, dsc_error *err)
{
    const row_reader r = { section, where, object, row, err };
    const char *text = "";
    DSC_ASSERT(format != DSC_SFT_PREFERENCE);
    clear_row(row, format, false);
    switch (format) {
    case DSC_SFT_MESSAGES: return read_messages(&r, DSC_SFT_COLUMN_MESSAGES);
    case DSC_SFT_CONVERSATIONS: return read_messages(&r, DSC_SFT_COLUMN_CONVERSATIONS);
    case DSC_SFT_PROMPT_COMPLETION:
        return read_completion(&r, DSC_SFT_COLUMN_COMPLETION);
    case DSC_SFT_ALPACA: return read_alpaca(&r, templated);
    case DSC_SFT_TOKENS: return read_tokens(&r);
    default:
        DSC_TRY(text_column(&r, DSC_SFT_COLUMN_TEXT, &text));
        return add_text(&r, &row->completion, text);
    }
}

dsc_status dsc_sft_row_read_side(const dsc_sft_section *section, dsc_sft_side side, const char *where,
                                 const cJSON *object, dsc_sft_row *row, dsc_error *err)
{
    const row_reader r = { section, where, object, row, err };
    DSC_ASSERT(side != DSC_SFT_ONLY);
    clear_row(row, DSC_SFT_PREFERENCE, false);
    return side == DSC_SFT_CHOSEN ? read_side(&r, DSC_SFT_COLUMN_CHOSEN, DSC_SFT_COLUMN_REJECTED)
                                  : read_side(&r, DSC_SFT_COLUMN_REJECTED, DSC_SFT_COLUMN_CHOSEN);
}

void dsc_sft_row_begin(dsc_sft_row *row) { clear_row(row, DSC_SFT_MESSAGES, true); }

dsc_status dsc_sft_row_add(dsc_sft_row *row, const char *role, const char *text, int64_t bytes, dsc_error *err)
{
    const row_reader r = { .where = "the conversation", .row = row, .err = err };
    dsc_sft_message *message = NULL;
    DSC_ASSERT(row->conversation);
    DSC_TRY(begin_message(&r, role, &message));
    DSC_TRY(add_content(&r, message, text, bytes));
    message->counts = strcmp(role, "assistant") == 0;
    return end_message(&r, message);
}
