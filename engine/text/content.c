/* content.c - see content.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/content.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/formats/utf8.h"
#include "engine/text/table.h"

#define PROBE_BYTES (1 << 16)

/* ---- Binary formats ---- */

#define PYTHON(code) "python3 -c \"" code "\""
#define TO_LINES "to_json('%2$s.jsonl', orient='records', lines=True)"
#define PANDAS(reader) PYTHON("import pandas; pandas." reader "('%1$s')." TO_LINES)

static const struct mark {
    const char *format, *remedy;
    int64_t at;
    int bytes;
    const char *mark;
} marks[] = {
    { "Parquet", PANDAS("read_parquet"), 0, 4, "PAR1" },
    { "Arrow (a file of IPC)", PANDAS("read_feather"), 0, 6, "ARROW1" },
    { "Arrow (a stream of IPC)",
      PYTHON("import datasets; datasets.Dataset.from_file('%1$s').to_json('%2$s.jsonl')"), 0, 4,
      "\xff\xff\xff\xff" },
    { "Feather", PANDAS("read_feather"), 0, 4, "FEA1" },
    { "Avro", NULL, 0, 4, "Obj\1" },
    { "ORC", PANDAS("read_orc"), 0, 3, "ORC" },
    { "gzip", "gzip -dc '%1$s' > '%2$s'", 0, 3, "\x1f\x8b\x08" },
    { "zstd", "zstd -dc '%1$s' > '%2$s'", 0, 4, "\x28\xb5\x2f\xfd" },
    { "bzip2", "bzip2 -dc '%1$s' > '%2$s'", 0, 3, "BZh" },
    { "xz", "xz -dc '%1$s' > '%2$s'", 0, 6, "\xfd" "7zXZ\0" },
    { "lz4", "lz4 -dc '%1$s' > '%2$s'", 0, 4, "\x04\x22\x4d\x18" },
    { "zip", "unzip '%1$s'", 0, 4, "PK\3\4" },
    { "7z", "7z x '%1$s'", 0, 6, "7z\xbc\xaf\x27\x1c" },
    { "RAR", "unrar x '%1$s'", 0, 4, "Rar!" },
    { "tar", "tar -xf '%1$s'", 257, 5, "ustar" },
    { "NumPy", PYTHON("import numpy; numpy.load('%1$s').astype('uint16').tofile('%2$s.bin')"), 0, 6, "\x93NUMPY" },
    { "HDF5", NULL, 0, 8, "\x89HDF\r\n\x1a\n" },
    { "SQLite", NULL, 0, 16, "SQLite format 3" },
    { "PDF", "pdftotext '%1$s' '%2$s.txt'", 0, 5, "%PDF-" },
    { "GGUF", NULL, 0, 4, "GGUF" },
    { "ELF", NULL, 0, 4, "\x7f" "ELF" },
    { "PNG", NULL, 0, 8, "\x89PNG\r\n\x1a\n" },
    { "JPEG", NULL, 0, 3, "\xff\xd8\xff" },
    { "pickle", NULL, 0, 2, "\x80\x02" },
    { "pickle", NULL, 0, 2, "\x80\x03" },
    { "pickle", NULL, 0, 2, "\x80\x04" },
    { "pickle", NULL, 0, 2, "\x80\x05" },
    { "UTF-32 text", "iconv -f UTF-32 -t UTF-8 '%1$s' > '%2$s.utf8'", 0, 4, "\xff\xfe\0\0" },
    { "UTF-16 text", "iconv -f UTF-16 -t UTF-8 '%1$s' > '%2$s.utf8'", 0, 2, "\xff\xfe" },
    { "UTF-16 text", "iconv -f UTF-16 -t UTF-8 '%1$s' > '%2$s.utf8'", 0, 2, "\xfe\xff" },
    { "Megatron's index", "mv '%1$s' '%2$s.idx'", 0, 9, "MMIDIDX\0\0" },
    { "llm.c's token file", "mv '%1$s' '%2$s.bin'", 0, 4, "\x88\xd8\x34\x01" },
    { "llm.c's token file", "mv '%1$s' '%2$s.bin'", 0, 4, "\xa1\xd9\x34\x01" },
};

/* Marks that lists of ids begin with as well: two bytes are one id, and the largest id may come twice. */
static bool may_be_ids(const struct mark *m) { return m->bytes < 3 || m->mark[0] == '\xff'; }

bool dsc_content_has_mark(const void *bytes, int64_t count, bool ids, dsc_content *out)
{
    for (size_t i = 0; i < DSC_COUNT(marks); i++)
        if (!(ids && may_be_ids(&marks[i])) && count >= marks[i].at + marks[i].bytes &&
            memcmp((const char *)bytes + marks[i].at, marks[i].mark, (size_t)marks[i].bytes) == 0) {
            *out = (dsc_content){ .kind = DSC_CONTENT_OTHER, .format = marks[i].format, .remedy = marks[i].remedy,
                                  .byte = -1 };
            return true;
        }
    return false;
}

/* ---- Forms of text ---- */

/* The first bytes of a file. */
typedef struct probe {
    const char *text;
    int64_t bytes;
    bool whole; /* the file has no more */
} probe;

static bool ends_with(const char *path, const char *end)
{
    const size_t a = strlen(path), b = strlen(end);
    return a > b && strcasecmp(path + a - b, end) == 0;
}

static bool has_json_name(const char *path)
{
    static const char *const endings[] = { ".json", ".jsonl", ".jsonlines", ".ndjson", ".ldjson" };
    for (size_t i = 0; i < DSC_COUNT(endings); i++)
        if (ends_with(path, endings[i]))
            return true;
    return false;
}

static int64_t skip_blanks(const probe *p, int64_t at)
{
    while (at < p->bytes && p->text[at] != 0 && strchr(" \t\r\n", p->text[at]) != NULL)
        at++;
    return at;
}

/* Whether an object begins here: {} or a brace, a string and a colon. Few texts that are not JSON begin so. */
static bool is_object(const probe *p, int64_t at)
{
    if (at >= p->bytes || p->text[at] != '{')
        return false;
    at = skip_blanks(p, at + 1);
    if (at < p->bytes && p->text[at] == '}')
        return true;
    if (at >= p->bytes || p->text[at++] != '"')
        return false;
    while (at < p->bytes && p->text[at] != '"' && p->text[at] != '\n')
        at += p->text[at] == '\\' ? 2 : 1;
    at = skip_blanks(p, at + 1);
    return at < p->bytes && p->text[at] == ':';
}

static bool find_json(const char *path, const probe *p, int64_t start, dsc_content *out)
{
    const int64_t at = skip_blanks(p, start);
    const bool named = has_json_name(path), list = at < p->bytes && p->text[at] == '[';
    if (!(list && is_object(p, skip_blanks(p, at + 1))) && !is_object(p, at) && !named)
        return false;
    out->kind = list ? DSC_CONTENT_JSON_LIST : DSC_CONTENT_JSON_LINES;
    out->start = start;
    return true;
}

/* A header that has the field, and a row with as many cells: by commas, semicolons or tabs. */
static bool find_table(const char *path, const probe *p, int64_t start, const char *field, dsc_content *out)
{
    static const char delimiters[] = { ',', '\t', ';' };
    const bool csv = ends_with(path, ".csv"), tsv = ends_with(path, ".tsv");
    out->kind = DSC_CONTENT_TABLE;
    out->start = start;
    for (size_t i = 0; i < DSC_COUNT(delimiters); i++) {
        dsc_table_row header, row;
        dsc_table_read(p->text + start, p->bytes - start, delimiters[i], field, &header);
        if (header.column < 0 || (header.cells < 2 && !csv && !tsv))
            continue;
        dsc_table_read(p->text + start + header.bytes, p->bytes - start - header.bytes, delimiters[i], field, &row);
        out->delimiter = delimiters[i];
        if (csv || tsv || (row.whole && row.cells == header.cells))
            return true;
    }
    out->delimiter = tsv ? '\t' : ',';
    return csv || tsv;
}

/* The first byte that is not UTF-8 text, -1: none. A character that the probe cuts is none. */
static int64_t find_no_text(const probe *p)
{
    for (int64_t at = 0; at < p->bytes;) {
        const int length = dsc_utf8_char_bytes(p->text + at, p->text + p->bytes);
        if (p->text[at] == 0 || (length == 0 && (p->whole || p->bytes - at >= 4)))
            return at;
        at += length > 0 ? length : p->bytes - at;
    }
    return -1;
}

/* x.jsonl.gz -> x.jsonl; cut where `out` ends, as no ending lies there. */
static const char *name_unpacked(const char *path, bool packed, char *out, size_t out_bytes)
{
    static const char *const endings[] = { ".gz", ".gzip", ".zst", ".zstd" };
    for (size_t i = 0; packed && i < DSC_COUNT(endings); i++)
        if (ends_with(path, endings[i]) && strlen(path) < out_bytes) {
            snprintf(out, out_bytes, "%.*s", (int)(strlen(path) - strlen(endings[i])), path);
            return out;
        }
    return path;
}

static void detect(const char *path, const probe *p, const char *field, dsc_content *out)
{
    const int64_t start = p->bytes >= 3 && memcmp(p->text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    *out = (dsc_content){ .kind = DSC_CONTENT_EMPTY, .byte = -1 };
    if (p->whole && skip_blanks(p, start) == p->bytes)
        return;
    const int64_t no_text = find_no_text(p); /* marks of letters also begin texts */
    if (no_text >= 0 && dsc_content_has_mark(p->text, p->bytes, false, out))
        return;
    if (no_text >= 0) {
        *out = (dsc_content){ .kind = DSC_CONTENT_OTHER, .byte = no_text };
        return;
    }
    if (find_json(path, p, start, out) || find_table(path, p, start, field, out))
        return;
    *out = (dsc_content){ .kind = DSC_CONTENT_TEXT, .byte = -1 };
}

dsc_status dsc_content_detect(const dsc_io *io, const char *path, const char *field, dsc_content *out, dsc_error *err)
{
    dsc_source source = DSC_SOURCE_INIT;
    probe p = { NULL, 0, true };
    char name[1024];
    char *text = malloc(PROBE_BYTES);
    if (text == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, path, "no memory to read its first bytes");
    p.text = text;
    dsc_status status = dsc_source_open(io, path, &source, err);
    if (status == DSC_OK)
        status = dsc_source_read(&source, text, PROBE_BYTES, &p.bytes, err);
    p.whole = source.ended;
    const bool packed = source.unpacker != NULL; /* Parquet is a format, with or without compression in it */
    (void)dsc_source_close(&source, NULL);
    if (status == DSC_OK) {
        detect(name_unpacked(path, packed, name, sizeof name), &p, field, out);
        out->packed = packed;
    }
    free(text);
    return status;
}

/* ---- Refusing ---- */

/* The command with the file's name, or "" where the command is longer than `out`, or a shell changes the name. */
static void write_remedy(const char *remedy, const char *path, char *out, size_t out_bytes)
{
    const char *const slash = strrchr(path, '/'), *const name = slash != NULL ? slash + 1 : path;
    const char *const dot = strrchr(name, '.');
    const size_t stem = dot != NULL && dot > name ? (size_t)(dot - path) : strlen(path);
    char without[120];
    out[0] = 0;
    if (remedy == NULL || strlen(path) >= sizeof without || strpbrk(path, "'\"`$\\\n") != NULL)
        return;
    snprintf(without, sizeof without, "%.*s", (int)stem, path);
    DSC_ASSERT(strlen(without) < sizeof without);
    size_t used = 0;
    while (*remedy != 0 && used + 1 < out_bytes) {
        if (strncmp(remedy, "%1$s", 4) != 0 && strncmp(remedy, "%2$s", 4) != 0) {
            out[used++] = *remedy++;
            out[used] = 0;
            continue;
        }
        used += (size_t)snprintf(out + used, out_bytes - used, "%s", remedy[1] == '1' ? path : without);
        remedy += 4;
    }
    if (*remedy != 0 || used >= out_bytes) /* a part of a command would do something else */
        out[0] = 0;
}

dsc_status dsc_content_refuse_encoding(const char *path, int64_t byte, dsc_error *err)
{
    char command[200];
    const bool packed = ends_with(path, ".gz") || ends_with(path, ".zst"); /* iconv reads neither */
    write_remedy(packed ? NULL : "iconv -f ISO-8859-1 -t UTF-8 '%1$s' > '%2$s.utf8'", path, command, sizeof command);
    return DSC_FAIL(err, DSC_ERR_INPUT, path, "byte %lld is not UTF-8 text; Latin-1 is converted by %s, and "
                    "token files are named *.bin", (long long)byte,
                    command[0] != 0 ? command : "iconv -f ISO-8859-1 -t UTF-8");
}

dsc_status dsc_content_refuse(const dsc_content *content, const char *path, dsc_error *err)
{
    char command[256];
    if (content->kind != DSC_CONTENT_OTHER)
        return DSC_OK;
    if (content->byte >= 0)
        return dsc_content_refuse_encoding(path, content->byte, err);
    /* Only tar, of the proposed commands, reads a compressed file. */
    const bool usable = !content->packed || strcmp(content->format, "tar") == 0;
    write_remedy(usable ? content->remedy : NULL, path, command, sizeof command);
    return DSC_FAIL(err, DSC_ERR_INPUT, path,
                    "the content is %s%s, and text, JSON, CSV or a token file is expected%s%s",
                    content->packed ? "a compressed file of " : "", content->format,
                    command[0] != 0 ? "; convert it: " : "; convert it to one of them", command);
}
