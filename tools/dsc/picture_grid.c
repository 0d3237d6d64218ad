/* picture_grid.c - see picture_grid.h. The PNG file is not compressed. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/picture_grid.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/io.h"

enum {
    SIDE = PICTURE_GRID_SIDE,
    EDGE = 4,
    LINE = 12,
    CELL_WIDTH = SIDE + 2 * EDGE,
    CELL_HEIGHT = SIDE + EDGE + 2 * LINE
};
enum { GLYPH_ROWS = 5, GLYPH_COLUMNS = 3, GLYPH_STEP = 4, SIZES = 2, STORED_MAX = 65535 };

void picture_cell_fill(picture_cell *cell, const float *levels, int64_t planes, int64_t height, int64_t width)
{
    for (int64_t y = 0; y < SIDE; y++)
        for (int64_t x = 0; x < SIDE; x++)
            for (int64_t c = 0; c < 3; c++) {
                const int64_t plane = planes >= 3 ? c : 0;
                const float level = levels[(plane * height + y * height / SIDE) * width + x * width / SIDE];
                cell->rgb[(y * SIDE + x) * 3 + c] = (uint8_t)(level < 0 ? 0 : level > 255 ? 255 : level + 0.5F);
            }
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* Rows of a letter, an octal digit each, whose bits are pixels from left to right. */
static const char *glyph(char letter)
{
    static const char *const letters[] = { "25755", "65656", "34443", "65556", "74747", "74744", "34553",
                                           "55755", "72227", "11152", "55655", "44447", "57755", "65555",
                                           "25552", "65644", "25573", "65655", "34216", "72222", "55557",
                                           "55552", "55775", "55255", "55222", "71247" };
    static const char *const digits[] = { "75557", "26227", "71747", "71717", "55711",
                                          "74717", "74757", "71122", "75757", "75717" };
    const int upper = toupper((unsigned char)letter);
    if (upper >= 'A' && upper <= 'Z')
        return letters[upper - 'A'];
    if (letter >= '0' && letter <= '9')
        return digits[letter - '0'];
    return letter == ' '   ? "00000"
           : letter == '-' ? "00700"
           : letter == '_' ? "00007"
           : letter == '.' ? "00002"
                           : "71202";
}

typedef struct canvas {
    uint8_t *rows; /* [height][1 + 3 * width]: each row begins with PNG's filter, 0 */
    int64_t width, height;
} canvas;

static uint8_t *pixel(const canvas *c, int64_t x, int64_t y) { return c->rows + y * (1 + 3 * c->width) + 1 + 3 * x; }

/* A word longer than a cell is cut. */
static void write_word(const canvas *c, int64_t left, int64_t top, const char *word, const uint8_t colour[3])
{
    const int64_t most = SIDE / (GLYPH_STEP * SIZES);
    for (int64_t k = 0; word[k] != 0 && k < most; k++)
        for (int64_t y = 0; y < GLYPH_ROWS * SIZES; y++)
            for (int64_t x = 0; x < GLYPH_COLUMNS * SIZES; x++)
                if (((glyph(word[k])[y / SIZES] - '0') >> (GLYPH_COLUMNS - 1 - x / SIZES) & 1) != 0)
                    memcpy(pixel(c, left + k * GLYPH_STEP * SIZES + x, top + y), colour, 3);
}

static void draw_cell(const canvas *c, const picture_cell *cell, int64_t left, int64_t top)
{
    static const uint8_t right[3] = { 40, 130, 40 }, wrong[3] = { 200, 30, 30 }, plain[3] = { 70, 70, 70 };
    const bool known = cell->truth[0] != 0;
    for (int64_t y = 0; y < SIDE; y++)
        memcpy(pixel(c, left + EDGE, top + EDGE + y), cell->rgb + 3 * SIDE * y, 3 * SIDE);
    write_word(c, left + EDGE, top + EDGE + SIDE + 1, cell->said,
               !known                                 ? plain
               : strcmp(cell->said, cell->truth) == 0 ? right
                                                      : wrong);
    write_word(c, left + EDGE, top + EDGE + SIDE + 1 + LINE, cell->truth, plain);
}

/* ---- PNG --------------------------------------------------------------------------------------------------------- */

typedef struct png {
    uint8_t *bytes;
    int64_t count;
} png;

static void put(png *out, const void *bytes, int64_t count)
{
    memcpy(out->bytes + out->count, bytes, (size_t)count);
    out->count += count;
}

static void put_be32(png *out, uint32_t value)
{
    const uint8_t bytes[] = { (uint8_t)(value >> 24), (uint8_t)(value >> 16), (uint8_t)(value >> 8), (uint8_t)value };
    put(out, bytes, 4);
}

/* A chunk's bytes lie behind its length and kind, which begin at `start`. */
static void end_chunk(png *out, int64_t start)
{
    const int64_t bytes = out->count - start - 8;
    const uint32_t sum = dsc_crc32(0, out->bytes + start + 4, (size_t)bytes + 4);
    png length = { out->bytes + start, 0 };
    put_be32(&length, (uint32_t)bytes);
    put_be32(out, sum);
}

static int64_t begin_chunk(png *out, const char *kind)
{
    const int64_t start = out->count;
    put_be32(out, 0);
    put(out, kind, 4);
    return start;
}

static uint32_t adler32(const uint8_t *bytes, int64_t count)
{
    uint32_t a = 1, b = 0;
    for (int64_t i = 0; i < count; i++) {
        a = (a + bytes[i]) % 65521;
        b = (b + a) % 65521;
    }
    return b << 16 | a;
}

/* Stored blocks of zlib's format. */
static void put_stored(png *out, const uint8_t *bytes, int64_t count)
{
    put(out, "\x78\x01", 2);
    for (int64_t at = 0; at < count; at += STORED_MAX) {
        const int64_t some = dsc_min_i64(STORED_MAX, count - at);
        const uint8_t head[] = { at + some == count, (uint8_t)some, (uint8_t)(some >> 8), (uint8_t)~some,
                                 (uint8_t)(~some >> 8) };
        put(out, head, sizeof head);
        put(out, bytes + at, some);
    }
    put_be32(out, adler32(bytes, count));
}

static dsc_status save_png(const char *path, const canvas *c, dsc_error *err)
{
    static const uint8_t kind[] = { 8, 2, 0, 0, 0 }; /* 8 bits of RGB */
    const int64_t bytes = c->height * (1 + 3 * c->width);
    png out = { malloc((size_t)(bytes + bytes / STORED_MAX * 5 + 200)), 0 };
    if (out.bytes == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, path, "out of host memory");
    put(&out, "\x89PNG\r\n\x1a\n", 8);
    int64_t start = begin_chunk(&out, "IHDR");
    put_be32(&out, (uint32_t)c->width);
    put_be32(&out, (uint32_t)c->height);
    put(&out, kind, sizeof kind);
    end_chunk(&out, start);
    start = begin_chunk(&out, "IDAT");
    put_stored(&out, c->rows, bytes);
    end_chunk(&out, start);
    end_chunk(&out, begin_chunk(&out, "IEND"));
    const dsc_status status = dsc_io_write_all_atomic(NULL, path, (const char *)out.bytes, out.count, err);
    free(out.bytes);
    return status;
}

dsc_status picture_grid_save(const char *path, const picture_cell *cell, int64_t count, dsc_error *err)
{
    const int64_t columns = dsc_min_i64(PICTURE_GRID_COLUMNS, count),
                  rows = (count + columns - 1) / dsc_max_i64(1, columns);
    canvas c = { NULL, columns * CELL_WIDTH, rows * CELL_HEIGHT };
    DSC_ASSERT(count >= 1 && count <= PICTURE_GRID_MAX);
    c.rows = malloc((size_t)(c.height * (1 + 3 * c.width)));
    if (c.rows == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, path, "out of host memory");
    memset(c.rows, 255, (size_t)(c.height * (1 + 3 * c.width)));
    for (int64_t y = 0; y < c.height; y++)
        pixel(&c, 0, y)[-1] = 0;
    for (int64_t i = 0; i < count; i++)
        draw_cell(&c, &cell[i], i % columns * CELL_WIDTH, i / columns * CELL_HEIGHT);
    const dsc_status status = save_png(path, &c, err);
    free(c.rows);
    return status;
}

/* ---- a terminal -------------------------------------------------------------------------------------------------- */

enum { BESIDE = 4, TEXT_COLUMNS = 16, TEXT_ROWS = 8 };

/* Mean level of the pixels of one place. */
static double lightness(const picture_cell *cell, int64_t column, int64_t row)
{
    enum { WIDE = SIDE / TEXT_COLUMNS, HIGH = SIDE / TEXT_ROWS };
    int64_t sum = 0;
    for (int64_t y = 0; y < HIGH; y++)
        for (int64_t x = 0; x < WIDE * 3; x++)
            sum += cell->rgb[((row * HIGH + y) * SIDE + column * WIDE) * 3 + x];
    return (double)sum / (HIGH * WIDE * 3);
}

/* From the darkest to the lightest place of the picture. */
static void print_row(const picture_cell *cell, int64_t row)
{
    static const char ramp[] = " .:-=+*#%@";
    double low = 255, high = 0;
    for (int64_t i = 0; i < TEXT_COLUMNS * TEXT_ROWS; i++) {
        const double value = lightness(cell, i % TEXT_COLUMNS, i / TEXT_COLUMNS);
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    for (int64_t column = 0; column < TEXT_COLUMNS; column++)
        putchar(ramp[(int)((lightness(cell, column, row) - low) / (high - low + 1) * (sizeof ramp - 1))]);
}

void picture_grid_print(const picture_cell *cell, int64_t count)
{
    for (int64_t first = 0; first < count; first += BESIDE) {
        const int64_t end = dsc_min_i64(count, first + BESIDE);
        for (int64_t row = 0; row < TEXT_ROWS; row++)
            for (int64_t i = first; i < end; i++) {
                printf("  ");
                print_row(&cell[i], row);
                printf(i + 1 < end ? "  " : "\n");
            }
        for (int64_t i = first; i < end; i++) {
            char words[2 * PICTURE_GRID_WORD + 8];
            const bool wrong = cell[i].truth[0] != 0 && strcmp(cell[i].said, cell[i].truth) != 0;
            snprintf(words, sizeof words, wrong ? "%s (%s)" : "%s", cell[i].said, cell[i].truth);
            printf(i + 1 < end ? "  %-*.*s  " : "  %-*.*s\n\n", TEXT_COLUMNS, TEXT_COLUMNS, words);
        }
    }
}
