// parquet_plugin.cc - lib/dsc/libdsc_parquet.so: Apache Arrow behind parquet_api.h. No exception leaves a function of
// the table. SPDX-License-Identifier: Apache-2.0
#include <arrow/api.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

#include "engine/text/parquet_api.h"

namespace {

constexpr int64_t kBatchBytes = 4 << 20;   // decoded rows, as the file's totals promise
constexpr int64_t kTextBytes = 1 << 20;    // a call returns no more rows from here on
constexpr int64_t kRowBytes = 64 << 20;    // a row as JSON
constexpr int64_t kRowsMax = 256;          // rows of a batch
constexpr int64_t kMetadataBytes = 16 << 20;
constexpr int kDepthMax = 32;
constexpr int64_t kIntegerMax = INT64_C(1) << 53;

// Arrow's own pool, up to a limit.
class LimitedPool : public arrow::MemoryPool {
public:
    explicit LimitedPool(int64_t most) : most_(most) {}

    using MemoryPool::Allocate;
    using MemoryPool::Free;
    using MemoryPool::Reallocate;
    arrow::Status Allocate(int64_t size, int64_t alignment, uint8_t **out) override
    {
        ARROW_RETURN_NOT_OK(Take(size));
        const arrow::Status status = own_->Allocate(size, alignment, out);
        if (!status.ok())
            used_ -= size;
        return status;
    }
    arrow::Status Reallocate(int64_t old_size, int64_t new_size, int64_t alignment, uint8_t **ptr) override
    {
        ARROW_RETURN_NOT_OK(Take(new_size));
        const arrow::Status status = own_->Reallocate(old_size, new_size, alignment, ptr);
        used_ -= status.ok() ? old_size : new_size;
        return status;
    }
    void Free(uint8_t *buffer, int64_t size, int64_t alignment) override
    {
        own_->Free(buffer, size, alignment);
        used_ -= size;
    }
    int64_t bytes_allocated() const override { return used_; }
    int64_t total_bytes_allocated() const override { return own_->total_bytes_allocated(); }
    int64_t num_allocations() const override { return own_->num_allocations(); }
    int64_t max_memory() const override { return own_->max_memory(); }
    std::string backend_name() const override { return own_->backend_name(); }

private:
    arrow::Status Take(int64_t size)
    {
        if (size < 0 || size > most_ - used_.load())
            return arrow::Status::OutOfMemory("a page or a row needs more than ", most_ >> 20, " MiB");
        used_ += size;
        return arrow::Status::OK();
    }
    arrow::MemoryPool *own_ = arrow::system_memory_pool();
    const int64_t most_;
    std::atomic<int64_t> used_{ 0 };
};

void PutText(std::string *out, std::string_view text)
{
    out->push_back('"');
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out->push_back('\\');
            out->push_back(c);
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escape[8];
            snprintf(escape, sizeof escape, "\\u%04x", c);
            out->append(escape);
        } else {
            out->push_back(c);
        }
    }
    out->push_back('"');
}

template <typename T> void PutInteger(std::string *out, T value)
{
    const bool wide = value > static_cast<T>(std::min<uint64_t>(kIntegerMax, std::numeric_limits<T>::max())) ||
                      static_cast<int64_t>(value) < -kIntegerMax;
    out->append(wide ? "\"" : "").append(std::to_string(value)).append(wide ? "\"" : "");
}

template <typename T> void PutReal(std::string *out, T value)
{
    char text[64];
    if (!std::isfinite(value)) {
        out->append("null");
        return;
    }
    const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
    const std::string_view written(text, end.ptr - text);
    out->append(written);
    if (written.find_first_of(".e") == std::string_view::npos)
        out->append(".0");
}

// Columns of bytes, such as images, are left out.
bool IsText(const arrow::DataType &type)
{
    switch (type.id()) {
    case arrow::Type::BINARY:
    case arrow::Type::LARGE_BINARY:
    case arrow::Type::BINARY_VIEW:
    case arrow::Type::FIXED_SIZE_BINARY:
    case arrow::Type::NA: return false;
    case arrow::Type::DICTIONARY: return IsText(*static_cast<const arrow::DictionaryType &>(type).value_type());
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST: return IsText(*type.field(0)->type());
    default: return true;
    }
}

int DepthOf(const arrow::DataType &type, int depth)
{
    int most = depth;
    for (int i = 0; depth <= kDepthMax && i < type.num_fields(); i++)
        most = std::max(most, DepthOf(*type.field(i)->type(), depth + 1));
    return most;
}

arrow::Status Put(std::string *out, const arrow::Array &array, int64_t i);

arrow::Status PutItems(std::string *out, const arrow::Array &values, int64_t first, int64_t count)
{
    out->push_back('[');
    for (int64_t k = 0; k < count; k++) {
        if (k > 0)
            out->push_back(',');
        ARROW_RETURN_NOT_OK(Put(out, values, first + k));
    }
    out->push_back(']');
    return arrow::Status::OK();
}

// A null has no member.
arrow::Status PutMember(std::string *out, bool *first, std::string_view name, const arrow::Array &values, int64_t i)
{
    if (values.IsNull(i) || !IsText(*values.type()))
        return arrow::Status::OK();
    if (!*first)
        out->push_back(',');
    *first = false;
    PutText(out, name);
    out->push_back(':');
    return Put(out, values, i);
}

arrow::Status PutStruct(std::string *out, const arrow::StructArray &array, int64_t i)
{
    bool first = true;
    out->push_back('{');
    for (int k = 0; k < array.num_fields(); k++)
        ARROW_RETURN_NOT_OK(PutMember(out, &first, array.type()->field(k)->name(), *array.field(k), i));
    out->push_back('}');
    return arrow::Status::OK();
}

arrow::Status PutMap(std::string *out, const arrow::MapArray &array, int64_t i)
{
    if (array.keys()->type_id() != arrow::Type::STRING)
        return arrow::Status::Invalid("a map with keys that are not texts");
    const auto &keys = static_cast<const arrow::StringArray &>(*array.keys());
    bool first = true;
    out->push_back('{');
    for (int64_t k = array.value_offset(i); k < array.value_offset(i + 1); k++)
        ARROW_RETURN_NOT_OK(PutMember(out, &first, keys.GetView(k), *array.items(), k));
    out->push_back('}');
    return arrow::Status::OK();
}

template <typename A> const A &As(const arrow::Array &array) { return static_cast<const A &>(array); }

arrow::Status PutOther(std::string *out, const arrow::Array &array, int64_t i)
{
    ARROW_ASSIGN_OR_RAISE(const std::shared_ptr<arrow::Scalar> scalar, array.GetScalar(i));
    PutText(out, scalar->ToString());
    return arrow::Status::OK();
}

arrow::Status PutNested(std::string *out, const arrow::Array &array, int64_t i)
{
    switch (array.type_id()) {
    case arrow::Type::LIST: {
        const auto &list = As<arrow::ListArray>(array);
        return PutItems(out, *list.values(), list.value_offset(i), list.value_length(i));
    }
    case arrow::Type::LARGE_LIST: {
        const auto &list = As<arrow::LargeListArray>(array);
        return PutItems(out, *list.values(), list.value_offset(i), list.value_length(i));
    }
    case arrow::Type::FIXED_SIZE_LIST: {
        const auto &list = As<arrow::FixedSizeListArray>(array);
        return PutItems(out, *list.values(), list.value_offset(i), list.value_length(i));
    }
    case arrow::Type::STRUCT: return PutStruct(out, As<arrow::StructArray>(array), i);
    case arrow::Type::MAP: return PutMap(out, As<arrow::MapArray>(array), i);
    case arrow::Type::DICTIONARY: {
        const auto &dictionary = As<arrow::DictionaryArray>(array);
        return Put(out, *dictionary.dictionary(), dictionary.GetValueIndex(i));
    }
    default: return PutOther(out, array, i);
    }
}

arrow::Status Put(std::string *out, const arrow::Array &array, int64_t i)
{
    if (static_cast<int64_t>(out->size()) > kRowBytes)
        return arrow::Status::Invalid("a row of more than ", kRowBytes >> 20, " MiB");
    if (array.IsNull(i)) {
        out->append("null");
        return arrow::Status::OK();
    }
    switch (array.type_id()) {
    case arrow::Type::BOOL: out->append(As<arrow::BooleanArray>(array).Value(i) ? "true" : "false"); break;
    case arrow::Type::INT8: PutInteger(out, int64_t{ As<arrow::Int8Array>(array).Value(i) }); break;
    case arrow::Type::INT16: PutInteger(out, int64_t{ As<arrow::Int16Array>(array).Value(i) }); break;
    case arrow::Type::INT32: PutInteger(out, int64_t{ As<arrow::Int32Array>(array).Value(i) }); break;
    case arrow::Type::INT64: PutInteger(out, int64_t{ As<arrow::Int64Array>(array).Value(i) }); break;
    case arrow::Type::UINT8: PutInteger(out, int64_t{ As<arrow::UInt8Array>(array).Value(i) }); break;
    case arrow::Type::UINT16: PutInteger(out, int64_t{ As<arrow::UInt16Array>(array).Value(i) }); break;
    case arrow::Type::UINT32: PutInteger(out, int64_t{ As<arrow::UInt32Array>(array).Value(i) }); break;
    case arrow::Type::UINT64: PutInteger(out, uint64_t{ As<arrow::UInt64Array>(array).Value(i) }); break;
    case arrow::Type::FLOAT: PutReal(out, As<arrow::FloatArray>(array).Value(i)); break;
    case arrow::Type::DOUBLE: PutReal(out, As<arrow::DoubleArray>(array).Value(i)); break;
    case arrow::Type::STRING: PutText(out, As<arrow::StringArray>(array).GetView(i)); break;
    case arrow::Type::LARGE_STRING: PutText(out, As<arrow::LargeStringArray>(array).GetView(i)); break;
    case arrow::Type::STRING_VIEW: PutText(out, As<arrow::StringViewArray>(array).GetView(i)); break;
    default: return PutNested(out, array, i);
    }
    return arrow::Status::OK();
}

// One line, cut at a character.
void Say(char *why, std::string text)
{
    std::replace(text.begin(), text.end(), '\n', ' ');
    size_t bytes = std::min<size_t>(text.size(), DSC_PARQUET_TEXT - 60);
    while (bytes > 0 && bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80)
        bytes--;
    snprintf(why, DSC_PARQUET_TEXT, "%.*s", static_cast<int>(bytes), text.c_str());
}

} // namespace

struct dsc_parquet_file {
    explicit dsc_parquet_file(int64_t memory_bytes) : pool(memory_bytes) {}

    LimitedPool pool; // outlives what is allocated from it
    std::unique_ptr<parquet::arrow::FileReader> reader;
    std::unique_ptr<arrow::RecordBatchReader> batches;
    std::shared_ptr<arrow::RecordBatch> batch;
    int64_t at = 0, done = 0;
    std::string text;

    arrow::Status Open(const char *path, int64_t *rows)
    {
        parquet::ReaderProperties properties(&pool);
        properties.enable_buffered_stream();
        properties.set_buffer_size(1 << 18);
        properties.set_thrift_string_size_limit(kMetadataBytes);
        properties.set_thrift_container_size_limit(1000000);
        parquet::arrow::FileReaderBuilder builder;
        ARROW_RETURN_NOT_OK(builder.OpenFile(path, false, properties));
        const std::shared_ptr<parquet::FileMetaData> metadata = builder.raw_reader()->metadata();
        *rows = metadata->num_rows();
        int64_t bytes = 0;
        for (int i = 0; i < metadata->num_row_groups(); i++)
            bytes += std::clamp<int64_t>(metadata->RowGroup(i)->total_byte_size(), 0, INT64_C(1) << 40);
        parquet::ArrowReaderProperties arrow_properties(false);
        arrow_properties.set_pre_buffer(false);
        const double fitting = static_cast<double>(kBatchBytes) * static_cast<double>(*rows) / (bytes + 1.0);
        arrow_properties.set_batch_size(static_cast<int64_t>(std::clamp(fitting, 1.0, static_cast<double>(kRowsMax))));
        ARROW_RETURN_NOT_OK(builder.memory_pool(&pool)->properties(arrow_properties)->Build(&reader));
        std::shared_ptr<arrow::Schema> schema;
        ARROW_RETURN_NOT_OK(reader->GetSchema(&schema));
        for (const std::shared_ptr<arrow::Field> &field : schema->fields())
            if (DepthOf(*field->type(), 1) > kDepthMax)
                return arrow::Status::Invalid("column ", field->name(), " has more than ", kDepthMax, " levels");
        ARROW_ASSIGN_OR_RAISE(batches, reader->GetRecordBatchReader());
        return arrow::Status::OK();
    }

    arrow::Status PutRow()
    {
        bool first = true;
        std::string row = "{";
        for (int k = 0; k < batch->num_columns(); k++)
            ARROW_RETURN_NOT_OK(PutMember(&row, &first, batch->schema()->field(k)->name(), *batch->column(k), at));
        text.append(row).append("}\n");
        at++;
        done++;
        return arrow::Status::OK();
    }

    arrow::Status Next()
    {
        text.clear();
        while (static_cast<int64_t>(text.size()) < kTextBytes) {
            while (batch == nullptr || at == batch->num_rows()) {
                at = 0;
                batch = nullptr;
                ARROW_RETURN_NOT_OK(batches->ReadNext(&batch));
                if (batch == nullptr)
                    return arrow::Status::OK();
            }
            ARROW_RETURN_NOT_OK(PutRow());
        }
        return arrow::Status::OK();
    }
};

// Calls f() and makes its failure, or its exception, a line.
template <typename F> static int Guard(char *why, F f)
{
    try {
        const arrow::Status status = f();
        if (status.ok())
            return 0;
        Say(why, status.message());
    } catch (const std::exception &error) {
        Say(why, error.what());
    } catch (...) {
        Say(why, "an unknown exception");
    }
    return 1;
}

static void close_file(dsc_parquet_file *file) { delete file; }

static int open_file(const char *path, int64_t memory_bytes, dsc_parquet_file **out, int64_t *rows, char *why)
{
    *out = nullptr;
    const int code = Guard(why, [&] {
        *out = new dsc_parquet_file(memory_bytes);
        return (*out)->Open(path, rows);
    });
    if (code != 0) {
        close_file(*out);
        *out = nullptr;
    }
    return code;
}

static int next_rows(dsc_parquet_file *file, const char **text, int64_t *bytes, int64_t *done, char *why)
{
    const int code = Guard(why, [&] { return file->Next(); });
    *text = file->text.data();
    *bytes = code == 0 ? static_cast<int64_t>(file->text.size()) : 0;
    *done = file->done;
    return code;
}

extern "C" __attribute__((visibility("default"))) const void *dsc_parquet_api_get(void)
{
    static const dsc_parquet_api api = { DSC_PARQUET_API_VERSION, sizeof api, DSC_VERSION_TEXT,
                                         open_file, next_rows, close_file };
    return &api;
}
