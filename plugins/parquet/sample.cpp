#include <arrow/array.h>
#include <arrow/builder.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/writer.h>
#include <arrow/record_batch.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <parquet/arrow/writer.h>

#include <cstdint>
#include <memory>
#include <string>

#include "batches.hpp"

namespace parquet_source {
namespace {

constexpr std::int64_t rows_of_part = 20;

/// A text, a number that may be missing, and lists of texts.
std::shared_ptr<arrow::Table> sample_table() {
  arrow::StringBuilder texts;
  arrow::Int64Builder numbers;
  const auto words = std::make_shared<arrow::StringBuilder>();
  arrow::ListBuilder lists(arrow::default_memory_pool(), words);
  for (int i = 0; i < 50; ++i) {
    check(texts.Append("text \"" + std::to_string(i) + "\""));
    check(i % 7 == 0 ? numbers.AppendNull() : numbers.Append(i));
    check(lists.Append());
    for (int k = 0; k < i % 4; ++k) {
      check(words->Append(std::to_string(k)));
    }
  }
  std::shared_ptr<arrow::Array> text;
  std::shared_ptr<arrow::Array> number;
  std::shared_ptr<arrow::Array> list;
  check(texts.Finish(&text));
  check(numbers.Finish(&number));
  check(lists.Finish(&list));
  return arrow::Table::Make(
      arrow::schema({arrow::field("text", text->type()), arrow::field("number", number->type()),
                     arrow::field("words", list->type())}),
      {text, number, list});
}

std::shared_ptr<arrow::io::BufferOutputStream> new_file() {
  auto out = arrow::io::BufferOutputStream::Create();
  check(out.status());
  return *out;
}

std::string bytes_of(arrow::io::BufferOutputStream& out) {
  const auto bytes = out.Finish();
  check(bytes.status());
  return (*bytes)->ToString();
}

}  // namespace

std::string parquet_sample() {
  const auto out = new_file();
  check(
      parquet::arrow::WriteTable(*sample_table(), arrow::default_memory_pool(), out, rows_of_part));
  return bytes_of(*out);
}

std::string arrow_sample() {
  const auto out = new_file();
  const std::shared_ptr<arrow::Table> table = sample_table();
  auto writer = arrow::ipc::MakeFileWriter(out, table->schema());
  check(writer.status());
  check((*writer)->WriteTable(*table, rows_of_part));
  check((*writer)->Close());
  return bytes_of(*out);
}

}  // namespace parquet_source
