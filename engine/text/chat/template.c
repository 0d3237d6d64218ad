/* template.c - opens, renders and closes a template. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"
#include "engine/text/unicode.h"

#define PARSE_MEMORY_BYTES_MAX (128 << 20)

/* The text with "\n" as line ends and without the last one, as jinja2 reads it. */
static dsc_status copy_source(chat_run *r, const char *text, int64_t bytes)
{
    char *source = NULL;
    int64_t to = 0;
    DSC_TRY(chat_new_text(r, bytes + 1, &source));
    for (int64_t i = 0; i < bytes; i++) {
        if (text[i] == '\r' && i + 1 < bytes && text[i + 1] == '\n')
            continue;
        source[to++] = text[i] == '\r' ? '\n' : text[i];
    }
    DSC_ASSERT(to <= bytes);
    to -= to > 0 && source[to - 1] == '\n';
    r->source = source;
    r->source_bytes = to;
    return DSC_OK;
}

static dsc_status read_template(dsc_chat_template *chat, const char *text, int64_t bytes)
{
    chat_run *r = &chat->parse;
    chat_token *token = NULL;
    if (bytes < 0 || bytes > DSC_CHAT_TEMPLATE_BYTES_MAX)
        return chat_fail(r, DSC_ERR_INPUT, "the template has %lld bytes, and the limit is %d", (long long)bytes,
                         DSC_CHAT_TEMPLATE_BYTES_MAX);
    if (!dsc_utf8_is_valid(text, bytes))
        return chat_fail(r, DSC_ERR_INPUT, "the template is not valid UTF-8");
    DSC_TRY(copy_source(r, text, bytes));
    DSC_TRY(chat_lex(r, &token));
    return chat_parse(r, token, &chat->body);
}

dsc_status dsc_chat_template_open(dsc_alloc *alloc, const char *text, int64_t bytes, dsc_chat_template **out,
                                  dsc_error *err)
{
    dsc_chat_template *chat = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, 1, sizeof *chat, &chat, err));
    chat->parse.alloc = alloc;
    chat->parse.err = err;
    chat->parse.source = "";
    chat->parse.memory_limit = PARSE_MEMORY_BYTES_MAX;
    const dsc_status status = read_template(chat, text, bytes);
    chat->parse.err = NULL;
    if (status != DSC_OK)
        dsc_chat_template_close(&chat);
    *out = chat;
    return status;
}

void dsc_chat_template_close(dsc_chat_template **chat)
{
    if (*chat == NULL)
        return;
    dsc_alloc *alloc = (*chat)->parse.alloc;
    chat_run_free(&(*chat)->parse);
    dsc_alloc_free(alloc, *chat);
    *chat = NULL;
}

void dsc_chat_output_free(dsc_chat_output *output)
{
    if (output->span != NULL)
        dsc_alloc_free(output->text.alloc, output->span);
    output->span = NULL;
    output->span_count = output->span_capacity = 0;
    dsc_text_free(&output->text);
}

/* ---- Render ---- */

static void set_global(chat_run *r, const char *text, int64_t bytes, chat_value value)
{
    const chat_name *name = chat_find_name(&r->chat->parse, text, bytes);
    if (name != NULL) /* else the template does not use it */
        r->global[name->id] = value;
}

static dsc_status set_defaults(chat_run *r)
{
    DSC_TRY(chat_new(r, r->chat->parse.name_count, sizeof *r->global, &r->global));
    for (int b = 0; b < CHAT_NAME_BUCKETS; b++)
        for (const chat_name *name = r->chat->parse.bucket[b]; name != NULL; name = name->next) {
            const int function = chat_find_function(name->text, name->bytes);
            DSC_ASSERT(name->id < r->chat->parse.name_count);
            r->global[name->id] = function >= 0 ? (chat_value){ .kind = CHAT_FUNCTION, .id = function }
                                                : chat_undefined(CHAT_NO_NAME, name->text, name->bytes, CHAT_UNDEFINED);
        }
    set_global(r, "tools", 5, chat_none());
    set_global(r, "documents", 9, chat_none());
    set_global(r, "add_generation_prompt", 21, chat_bool(false));
    return DSC_OK;
}

static dsc_status read_context(chat_run *r, const dsc_chat_text *context, int32_t count)
{
    chat_value variables;
    DSC_ASSERT(count >= 0);
    for (int32_t i = 0; i < count; i++) {
        DSC_TRY(chat_read_json(r, context[i].text, context[i].bytes, &variables));
        if (variables.kind != CHAT_DICT)
            return DSC_FAIL(r->err, DSC_ERR_INPUT, "chat context:1:1", "the variables of a template must be an object");
        for (int64_t j = 0; j < variables.dict->count; j++) {
            const chat_entry *entry = &variables.dict->entry[j];
            set_global(r, entry->key.text, entry->key.bytes, entry->value);
        }
    }
    return DSC_OK;
}

static dsc_status render(chat_run *r, const dsc_chat_text *context, int32_t count)
{
    chat_scope *root = NULL;
    int jump = CHAT_GO_ON;
    DSC_TRY(set_defaults(r));
    r->seed = (uint64_t)(uintptr_t)r->block; /* hashes cannot be foreseen */
    DSC_TRY(read_context(r, context, count));
    DSC_TRY(chat_new(r, 1, sizeof *root, &root));
    r->out = &r->root;
    DSC_TRY(chat_run_list(r, r->chat->body, root, &jump));
    DSC_ASSERT(jump == CHAT_GO_ON && r->depth == 0 && r->out == &r->root);
    return dsc_text_add(&r->output->text, r->root.ptr != NULL ? r->root.ptr : "", r->root.bytes, r->err);
}

dsc_status dsc_chat_template_render(const dsc_chat_template *chat, const dsc_chat_text *context, int32_t count,
                                    const dsc_chat_options *options, dsc_chat_output *output, dsc_error *err)
{
    dsc_error failure = DSC_ERROR_INIT; /* a deferred error may be set and never raised */
    chat_run r = {
        .alloc = output->text.alloc, .err = &failure, .source = chat->parse.source,
        .source_bytes = chat->parse.source_bytes, .memory_limit = options->limits.memory_bytes,
        .steps = options->limits.steps, .depth_limit = options->limits.depth, .chat = chat, .options = options,
        .output = output
    };
    output->text.bytes = 0;
    output->span_count = 0;
    DSC_ASSERT(r.alloc != NULL && r.steps > 0 && r.depth_limit > 0);
    const dsc_status status = render(&r, context, count);
    chat_run_free(&r);
    if (status != DSC_OK)
        output->text.bytes = output->span_count = 0;
    if (status != DSC_OK && err != NULL)
        *err = failure;
    return status;
}
