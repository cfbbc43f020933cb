#include "columns.hpp"

#include <arrow/array.h>
#include <arrow/array/array_dict.h>
#include <arrow/record_batch.h>
#include <arrow/status.h>
#include <arrow/type.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tessera/record_text.hpp>
#include <utility>
#include <vector>

namespace parquet_source {
namespace {

using tessera::sources::RecordText;

constexpr int deepest = 40;  // lists and structures within each other; JSON of records may have 64

bool is_fraction(arrow::Type::type type) {
  return type == arrow::Type::FLOAT || type == arrow::Type::DOUBLE;
}

/// Whether JSON has such values. `fractions`: also lists of fractions.
bool can_be_read(const arrow::DataType& type, bool fractions, int depth = 0) {
  if (depth > deepest) {
    return false;
  }
  switch (type.id()) {
    case arrow::Type::NA:
    case arrow::Type::BOOL:
    case arrow::Type::INT8:
    case arrow::Type::INT16:
    case arrow::Type::INT32:
    case arrow::Type::INT64:
    case arrow::Type::UINT8:
    case arrow::Type::UINT16:
    case arrow::Type::UINT32:
    case arrow::Type::UINT64:
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::STRING_VIEW:
      return true;
    case arrow::Type::FLOAT:
    case arrow::Type::DOUBLE:
      return depth == 0 || fractions;
    case arrow::Type::DICTIONARY:
      return can_be_read(*static_cast<const arrow::DictionaryType&>(type).value_type(), fractions,
                         depth + 1);
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST: {
      const arrow::DataType& value = *static_cast<const arrow::BaseListType&>(type).value_type();
      return (fractions || !is_fraction(value.id())) && can_be_read(value, fractions, depth + 1);
    }
    case arrow::Type::STRUCT:
      return std::ranges::all_of(type.fields(), [&](const std::shared_ptr<arrow::Field>& field) {
        return can_be_read(*field->type(), true, depth + 1);
      });
    default:
      return false;
  }
}

}  // namespace

std::string one_line(std::string_view text) {
  constexpr std::size_t most = 300;
  std::string line;
  for (const char c : text.substr(0, most)) {
    line += static_cast<unsigned char>(c) < 0x20 || c == '\x7f' ? ' ' : c;
  }
  while (!line.empty() && line.back() == ' ') {
    line.pop_back();
  }
  return line;
}

void check(const arrow::Status& status) {
  if (status.ok()) {
    return;
  }
  if (status.IsOutOfMemory()) {
    throw Problem(
        "it needs more memory than a part of a file may (1 GiB); write smaller row groups "
        "or batches");
  }
  throw Problem(one_line(status.message()));
}

Columns columns_of(const arrow::Schema& schema, std::span<const std::string> needed) {
  Columns columns;
  std::set<std::string> names;
  for (int i = 0; i < schema.num_fields(); ++i) {
    const arrow::Field& field = *schema.field(i);
    const std::string type = one_line(field.type()->ToString()).substr(0, 120);
    const bool is_needed = std::ranges::find(needed, field.name()) != needed.end();
    if (!names.insert(field.name()).second) {
      throw Problem("two columns are called '" + one_line(field.name()) + "'");
    }
    if (can_be_read(*field.type(), is_needed)) {
      columns.read.push_back(i);
    } else if (is_needed) {
      throw Problem("the column '" + field.name() + "' has the type " + type +
                    ", which no record has (expected texts, numbers, truths, or lists and "
                    "structures of them)");
    } else {
      columns.left_out.push_back("the column '" + one_line(field.name()).substr(0, 60) + "' (" +
                                 type + ")");
    }
  }
  if (columns.read.empty()) {
    throw Problem("there is no column that a record can have (it has " +
                  std::to_string(schema.num_fields()) + ")");
  }
  return columns;
}

/// A column of a batch, and what is within it.
struct Rows::Column {
  std::shared_ptr<arrow::Array> array;
  arrow::Type::type type = arrow::Type::NA;
  std::vector<std::string> names = {};               // of a structure's members
  std::vector<std::unique_ptr<Column>> within = {};  // members, elements, or values of a dictionary
};

/// Values as JSON.
struct ColumnWriter {
  using Column = Rows::Column;

  static std::unique_ptr<Column> column(std::shared_ptr<arrow::Array> array) {
    auto made = std::make_unique<Column>();
    made->type = array->type_id();
    const auto add = [&](std::shared_ptr<arrow::Array> inner) {
      made->within.push_back(column(std::move(inner)));
    };
    switch (made->type) {
      case arrow::Type::LIST:
        add(static_cast<const arrow::ListArray&>(*array).values());
        break;
      case arrow::Type::LARGE_LIST:
        add(static_cast<const arrow::LargeListArray&>(*array).values());
        break;
      case arrow::Type::FIXED_SIZE_LIST:
        add(static_cast<const arrow::FixedSizeListArray&>(*array).values());
        break;
      case arrow::Type::DICTIONARY:
        add(static_cast<const arrow::DictionaryArray&>(*array).dictionary());
        break;
      case arrow::Type::STRUCT: {
        const auto& all = static_cast<const arrow::StructArray&>(*array);
        for (int i = 0; i < all.num_fields(); ++i) {
          made->names.push_back(all.struct_type()->field(i)->name());
          add(all.field(i));
        }
        break;
      }
      default:
        break;
    }
    made->array = std::move(array);
    return made;
  }

  template <class Array>
  static const Array& as(const Column& column) {
    return static_cast<const Array&>(*column.array);
  }

  template <class Array>
  static void list(const Column& column, std::int64_t i, RecordText& to) {
    const std::int64_t begin = as<Array>(column).value_offset(i);
    const std::int64_t end = begin + as<Array>(column).value_length(i);
    to.open_list();
    for (std::int64_t at = begin; at < end; ++at) {
      value(*column.within[0], at, to);
    }
    to.close_list();
  }

  static void structure(const Column& column, std::int64_t i, RecordText& to) {
    to.open_object();
    for (std::size_t member = 0; member < column.within.size(); ++member) {
      to.name(column.names[member]);
      value(*column.within[member], i, to);
    }
    to.close_object();
  }

  template <class Array>
  static void whole(const Column& column, std::int64_t i, RecordText& to) {
    to.number(static_cast<std::int64_t>(as<Array>(column).Value(i)));
  }

  static void value(const Column& column, std::int64_t i, RecordText& to) {
    if (column.array->IsNull(i)) {
      to.null();
      return;
    }
    switch (column.type) {
      case arrow::Type::BOOL:
        return to.truth(as<arrow::BooleanArray>(column).Value(i));
      case arrow::Type::INT8:
        return whole<arrow::Int8Array>(column, i, to);
      case arrow::Type::INT16:
        return whole<arrow::Int16Array>(column, i, to);
      case arrow::Type::INT32:
        return whole<arrow::Int32Array>(column, i, to);
      case arrow::Type::INT64:
        return whole<arrow::Int64Array>(column, i, to);
      case arrow::Type::UINT8:
        return whole<arrow::UInt8Array>(column, i, to);
      case arrow::Type::UINT16:
        return whole<arrow::UInt16Array>(column, i, to);
      case arrow::Type::UINT32:
        return whole<arrow::UInt32Array>(column, i, to);
      case arrow::Type::UINT64:
        return to.number(std::uint64_t{as<arrow::UInt64Array>(column).Value(i)});
      case arrow::Type::FLOAT:
        return to.number(double{as<arrow::FloatArray>(column).Value(i)});
      case arrow::Type::DOUBLE:
        return to.number(as<arrow::DoubleArray>(column).Value(i));
      case arrow::Type::STRING:
        return to.text(as<arrow::StringArray>(column).GetView(i));
      case arrow::Type::LARGE_STRING:
        return to.text(as<arrow::LargeStringArray>(column).GetView(i));
      case arrow::Type::STRING_VIEW:
        return to.text(as<arrow::StringViewArray>(column).GetView(i));
      case arrow::Type::DICTIONARY:
        return value(*column.within[0], as<arrow::DictionaryArray>(column).GetValueIndex(i), to);
      case arrow::Type::LIST:
        return list<arrow::ListArray>(column, i, to);
      case arrow::Type::LARGE_LIST:
        return list<arrow::LargeListArray>(column, i, to);
      case arrow::Type::FIXED_SIZE_LIST:
        return list<arrow::FixedSizeListArray>(column, i, to);
      case arrow::Type::STRUCT:
        return structure(column, i, to);
      default:
        throw Problem("a value has the type " + one_line(column.array->type()->ToString()));
    }
  }
};

Rows::Rows(std::shared_ptr<arrow::RecordBatch> batch) : batch_(std::move(batch)) {
  for (int i = 0; i < batch_->num_columns(); ++i) {
    columns_.push_back(ColumnWriter::column(batch_->column(i)));
  }
}
Rows::Rows(Rows&&) noexcept = default;
Rows& Rows::operator=(Rows&&) noexcept = default;
Rows::~Rows() = default;

std::int64_t Rows::size() const { return batch_->num_rows(); }

void Rows::write(std::int64_t row, std::string& to) const {
  RecordText text(to);
  try {
    text.open_object();
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (!columns_[i]->array->IsNull(row)) {
        text.name(batch_->column_name(static_cast<int>(i)));
        ColumnWriter::value(*columns_[i], row, text);
      }
    }
    text.close_object();
  } catch (const std::domain_error& error) {
    throw Problem(error.what());
  }
}

}  // namespace parquet_source
