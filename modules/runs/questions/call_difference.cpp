module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <tessera/base64.hpp>
#include <tessera/json.hpp>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.tensor;
import tessera.program;

namespace tessera::runs {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t most_calls = 20'000'000;  // of a rank
constexpr std::size_t most_line = 64'000'000;    // bytes: an operator has all parameters as a list
constexpr std::size_t most_unmatched = 5;        // that are told
constexpr JsonLimits of_line = {.bytes = most_line, .values = 5'000'000, .depth = 8};

[[noreturn]] void damaged(const std::string& file, const std::string& why) {
  fail_input({.thing = file, .wrong = "it is not the recording of a step: " + why});
}

/// Whether this program can have written it.
Json object_of(const std::string& file, const std::string& line) {
  ParsedJson parsed = parse_json_object(line, of_line);
  if (!parsed.problem.empty()) {
    damaged(file, parsed.problem);
  }
  return std::move(parsed.value);
}

double number_of(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number() ? found->get<double>() : 0;
}

RecordedTensor tensor_of(const Json& json) {
  RecordedTensor tensor;
  if (!json.is_object()) {
    return tensor;
  }
  tensor.type = json.at("type").get<std::string>();
  tensor.shape = json.at("shape").get<std::vector<std::int64_t>>();
  tensor.parameter = json.value("parameter", "");
  tensor.hash = json.value("hash", "");
  tensor.norm = number_of(json, "norm");
  tensor.largest = number_of(json, "largest");
  tensor.odd = json.value("odd", std::int64_t{0});
  if (const std::optional<std::string> raw = from_base64(json.value("sketch", ""));
      raw && raw->size() == sketch_size * sizeof(float)) {
    tensor.sketch.resize(sketch_size);
    std::memcpy(tensor.sketch.data(), raw->data(), raw->size());
  }
  return tensor;
}

RecordedCall call_of(const std::string& file, const std::string& line, int rank) {
  const Json json = object_of(file, line);
  try {
    RecordedCall call{.place = {.rank = rank, .number = json.at("call").get<std::int64_t>()},
                      .step = json.at("step").get<std::int64_t>(),
                      .phase = json.at("phase").get<std::string>(),
                      .module = json.at("module").get<std::string>(),
                      .op = json.at("op").get<std::string>(),
                      .arguments = json.at("arguments").get<std::string>(),
                      .communicates = json.value("communicates", false)};
    std::ranges::transform(json.at("in"), std::back_inserter(call.in), tensor_of);
    std::ranges::transform(json.at("out"), std::back_inserter(call.out), tensor_of);
    return call;
  } catch (const Json::exception& error) {
    damaged(file, error.what());
  }
}

std::string key_of(const RecordedCall& call) {
  return fmt::format("{}\n{}\n{}\n{}", call.step, call.phase, call.module, call.op);
}

/// The calls of a file, one after the other.
class CallReader {
 public:
  CallReader(std::string file, int rank)
      : name_(std::move(file)), rank_(rank), file_(name_, std::ios::binary) {
    if (!file_) {
      fail_input({.thing = name_, .wrong = "the recording is missing"});
    }
  }
  /// None: there are no more.
  std::optional<RecordedCall> next() {
    std::string line;
    if (!std::getline(file_, line)) {
      return std::nullopt;
    }
    if (++count_ > most_calls) {
      damaged(name_, fmt::format("it has more than {} calls", most_calls));
    }
    RecordedCall call = call_of(name_, line, rank_);
    call.turn = turns_[key_of(call)]++;
    return call;
  }

 private:
  std::string name_;
  int rank_;
  std::ifstream file_;
  std::int64_t count_ = 0;
  std::unordered_map<std::string, std::int64_t> turns_;
};

/// How many ranks have written a recording.
int ranks_in(const std::string& folder) {
  int ranks = 0;
  std::error_code ignored;
  while (std::filesystem::exists(recording_file(folder, ranks), ignored)) {
    ++ranks;
  }
  return ranks;
}

/// The calls of one or several files, by what they belong together by.
class CallTable {
 public:
  void read(const std::string& folder, int rank) {
    CallReader reader(recording_file(folder, rank), rank);
    while (std::optional<RecordedCall> call = reader.next()) {
      std::string key = fmt::format("{}\n{}", key_of(*call), call->turn);
      calls_.try_emplace(std::move(key), std::move(*call));
    }
  }
  const RecordedCall* find(const RecordedCall& call) {
    const auto found = calls_.find(fmt::format("{}\n{}", key_of(call), call.turn));
    if (found == calls_.end()) {
      return nullptr;
    }
    used_ = std::max(used_, found->second.place.number);
    matched_.insert(found->second.place.number);
    return &found->second;
  }
  /// Calls before the last one that was found, that were not.
  std::vector<const RecordedCall*> left_out() const {
    std::vector<const RecordedCall*> all;
    for (const auto& [key, call] : calls_) {
      if (call.place.number < used_ && !matched_.contains(call.place.number)) {
        all.push_back(&call);
      }
    }
    std::ranges::sort(all, {}, [](const RecordedCall* call) { return call->place.number; });
    return all;
  }

 private:
  std::unordered_map<std::string, RecordedCall> calls_;
  std::set<std::int64_t> matched_;
  std::int64_t used_ = -1;
};

bool same_form(const RecordedTensor& a, const RecordedTensor& b) {
  return a.type == b.type && a.shape == b.shape;
}

/// Tensors by which calls differ, and how far.
struct TensorDifferences {
  std::vector<std::size_t> which = {};
  double distance = 0;
  std::int64_t other_shapes = 0;
};

/// The largest norm among operands. What is small beside them may be their rounding only.
double largest_norm(const std::vector<RecordedTensor>& operands) {
  double largest = 0;
  for (const RecordedTensor& operand : operands) {
    largest = std::max(largest, operand.norm);
  }
  return largest;
}

/// `beside`: a norm beside which differences count too: that of the operands.
TensorDifferences differences(const std::vector<RecordedTensor>& a,
                              const std::vector<RecordedTensor>& b, double tolerance,
                              double beside = 0) {
  constexpr double rounding = 1e-3;  // a part of the tolerance
  TensorDifferences found;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!a[i].has_values() || !b[i].has_values()) {
      continue;
    }
    if (a[i].shape != b[i].shape || (a[i].type != b[i].type && a[i].sketch.empty())) {
      ++found.other_shapes;
      continue;
    }
    const double distance = distance_of(a[i], b[i]);
    const bool is_rounding =
        distance * std::max(a[i].norm, b[i].norm) <= rounding * tolerance * beside;
    if (tolerance > 0 ? distance > tolerance && !is_rounding
                      : a[i].hash != b[i].hash || !same_form(a[i], b[i])) {
      found.which.push_back(i);
      found.distance = std::max(found.distance, distance);
    }
  }
  return found;
}

std::string unmatched_text(const char* whose, const RecordedCall& call) {
  return fmt::format("{}: {} in {} ({})", whose, call.op,
                     call.module.empty() ? "no module" : call.module, call.phase);
}

/// Compares the calls of one rank, or of the ranks that tell the global values.
class RankComparison {
 public:
  explicit RankComparison(double tolerance) : tolerance_(tolerance) {}

  void read_second(const std::string& folder, int rank) { table_.read(folder, rank); }

  void compare(const std::string& folder, int rank, RecordingComparison& into) {
    CallReader reader(recording_file(folder, rank), rank);
    std::vector<std::string> alone;
    while (const std::optional<RecordedCall> call = reader.next()) {
      const RecordedCall* const other = table_.find(*call);
      if (other == nullptr) {
        ++into.only_first;
        if (alone.size() == most_unmatched) {
          alone.erase(alone.begin());
        }
        alone.push_back(unmatched_text("first", *call));
        continue;
      }
      ++into.compared;
      const TensorDifferences results =
          differences(call->out, other->out, tolerance_,
                      std::max(largest_norm(call->in), largest_norm(other->in)));
      into.other_shapes += results.other_shapes;
      if (results.which.empty()) {
        continue;
      }
      const TensorDifferences bits = differences(call->in, other->in, 0);
      const TensorDifferences operands = differences(call->in, other->in, tolerance_);
      if (tolerance_ > 0 && !operands.which.empty() &&
          call->phase == name_of(Phase::gradient_norm)) {
        continue;  // layouts add the terms of the norm in their own order
      }
      found_ = CallDifference{.first = *call,
                              .second = *other,
                              .results = results.which,
                              .operands = bits.which,
                              .distance = results.distance,
                              .before = bits.distance,
                              .other_arguments = call->arguments != other->arguments,
                              .begins_here = operands.which.empty(),
                              .unmatched = std::move(alone)};
      break;
    }
    const std::vector<const RecordedCall*> left = table_.left_out();
    into.only_second += static_cast<std::int64_t>(left.size());
    if (found_) {
      const std::size_t told = std::min(left.size(), most_unmatched);
      for (std::size_t i = left.size() - told; i < left.size(); ++i) {
        found_->unmatched.push_back(unmatched_text("second", *left[i]));
      }
    }
  }

  const std::optional<CallDifference>& found() const { return found_; }

 private:
  double tolerance_;
  CallTable table_;
  std::optional<CallDifference> found_;
};

/// Whether a difference says more of its cause than another one.
bool is_earlier(const CallDifference& a, const CallDifference& b) {
  const auto order = [](const CallDifference& x) {
    // Where a collective brought it here, it began on another rank.
    const bool arrived = x.first.communicates && x.begins_here;
    return std::tuple(x.first.step, x.first.place.number, !x.begins_here, arrived);
  };
  return order(a) < order(b);
}

std::optional<RowDifference> row_difference(const std::string& first, const std::string& second) {
  const auto rows_of = [](const std::string& folder) {
    const std::string file = rows_file(folder);
    ParsedJson parsed = read_json_object(file);
    if (!parsed.problem.empty() || !parsed.value.contains("rows")) {
      damaged(file, parsed.problem.empty() ? "it has no rows" : parsed.problem);
    }
    return std::move(parsed.value["rows"]);
  };
  const Json a = rows_of(first);
  const Json b = rows_of(second);
  try {
    for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      if (i >= a.size() || i >= b.size() || a[i].at("hash") != b[i].at("hash")) {
        const Json& known = i < a.size() ? a[i] : b[i];
        const auto place = [i](const Json& rows) {
          return i < rows.size() ? rows[i].at("place").get<std::string>() : "no row";
        };
        return RowDifference{.step = known.at("step").get<std::int64_t>(),
                             .row = known.at("row").get<std::int64_t>(),
                             .first = place(a),
                             .second = place(b)};
      }
    }
  } catch (const Json::exception& error) {
    damaged(rows_file(first), error.what());
  }
  return std::nullopt;
}

}  // namespace

double distance_of(const RecordedTensor& a, const RecordedTensor& b) {
  if (a.hash == b.hash) {
    return 0;
  }
  if (a.sketch.size() != sketch_size || b.sketch.size() != sketch_size || a.odd != b.odd) {
    return std::numeric_limits<double>::infinity();
  }
  double squares = 0;
  for (std::size_t i = 0; i < sketch_size; ++i) {
    const double apart = static_cast<double>(a.sketch[i]) - static_cast<double>(b.sketch[i]);
    squares += apart * apart;
  }
  const double norm = std::max(a.norm, b.norm);
  return norm > 0 ? std::sqrt(squares) / norm : 0;
}

RecordingComparison compare_recordings(const std::string& first, const std::string& second,
                                       double tolerance) {
  RecordingComparison all;
  all.row = row_difference(first, second);
  const int ranks = ranks_in(first);
  const int others = ranks_in(second);
  if (ranks == 0 || others == 0) {
    fail_input({.thing = recording_file(ranks == 0 ? first : second, 0),
                .wrong = "the recording is missing"});
  }
  const auto take = [&](const RankComparison& comparison) {
    if (comparison.found() && (!all.call || is_earlier(*comparison.found(), *all.call))) {
      all.call = comparison.found();
    }
  };
  if (ranks == others) {
    for (int rank = 0; rank < ranks; ++rank) {
      RankComparison comparison(tolerance);
      comparison.read_second(second, rank);
      comparison.compare(first, rank, all);
      take(comparison);
    }
    return all;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    std::error_code ignored;
    if (std::filesystem::file_size(recording_file(first, rank), ignored) == 0) {
      continue;  // others tell its values
    }
    RankComparison comparison(tolerance);
    for (int other = 0; other < others; ++other) {
      comparison.read_second(second, other);
    }
    comparison.compare(first, rank, all);
    take(comparison);
  }
  return all;
}

namespace {

/// The tensors of a call that a recording has stored whole.
class StoredValues {
 public:
  explicit StoredValues(const std::string& folder) : name_(values_file(folder)) {
    std::ifstream file(name_, std::ios::binary);
    std::string line;
    if (!file || !std::getline(file, line)) {
      fail_input({.thing = name_, .wrong = "the tensors of the call are missing"});
    }
    const Json json = object_of(name_, line);
    try {
      for (const char* const side : {"in", "out"}) {
        for (const Json& one : json.at(side)) {
          (side[0] == 'i' ? in : out).push_back(read(file, one));
        }
      }
    } catch (const Json::exception& error) {
      damaged(name_, error.what());
    }
  }

  std::vector<Tensor> in = {};
  std::vector<Tensor> out = {};

 private:
  Tensor read(std::ifstream& file, const Json& json) const {
    if (!json.is_object()) {
      return {};
    }
    const std::optional<DType> type = dtype_from_name(json.at("type").get<std::string>());
    const auto shape = json.at("shape").get<std::vector<std::int64_t>>();
    std::error_code ignored;
    std::uintmax_t bytes = type ? size_of(*type) : 0;
    const std::uintmax_t most = std::filesystem::file_size(name_, ignored);
    for (const std::int64_t extent : shape) {
      bytes = extent < 0 || bytes > most ? most + 1 : bytes * static_cast<std::uintmax_t>(extent);
    }
    if (!type || bytes > most || shape.size() > 16) {
      damaged(name_, "a tensor is larger than the file");
    }
    Dims dims;
    for (const std::int64_t extent : shape) {
      dims.push_back(extent);
    }
    Tensor x = empty(dims, *type);
    if (bytes > 0) {
      file.read(static_cast<char*>(x.raw_data()), static_cast<std::streamsize>(bytes));
    }
    if (!file) {
      damaged(name_, "it ends too early");
    }
    return x;
  }

  std::string name_;
};

ElementDifference element_difference(const Tensor& a, const Tensor& b) {
  ElementDifference difference{.elements = a.numel()};
  if (!(a.shape() == b.shape())) {
    difference.problem =
        fmt::format("the shapes are {} and {}", to_string(a.shape()), to_string(b.shape()));
    return difference;
  }
  if (is_stored_only(a.dtype()) || is_stored_only(b.dtype())) {
    const std::size_t bytes = static_cast<std::size_t>(a.numel()) * size_of(a.dtype());
    const bool same = a.dtype() == b.dtype() && std::memcmp(a.raw_data(), b.raw_data(), bytes) == 0;
    difference.problem = same ? "" : "codes that are only stored differ";
    return difference;
  }
  const std::vector<double> first = to_doubles(a);
  const std::vector<double> second = to_doubles(b);
  const bool one_type = a.dtype() == b.dtype();
  const std::size_t size = size_of(a.dtype());
  double furthest = -1;
  std::size_t place = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const auto* const x = static_cast<const char*>(a.raw_data());
    const auto* const y = static_cast<const char*>(b.raw_data());
    const bool same =
        one_type ? std::memcmp(x + i * size, y + i * size, size) == 0 : first[i] == second[i];
    if (same) {
      continue;
    }
    ++difference.differing;
    const double apart = std::abs(first[i] - second[i]);
    const double far = std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart;
    if (far > furthest) {
      furthest = far;
      place = i;
    }
  }
  if (difference.differing > 0) {
    difference.first = first[place];
    difference.second = second[place];
    auto rest = static_cast<std::int64_t>(place);
    difference.place.resize(static_cast<std::size_t>(a.dims()));
    for (int dim = a.dims() - 1; dim >= 0; --dim) {
      difference.place[static_cast<std::size_t>(dim)] = rest % a.size(dim);
      rest /= a.size(dim);
    }
  }
  return difference;
}

}  // namespace

std::vector<ElementDifference> compare_values(const std::string& first, const std::string& second) {
  const StoredValues a(first);
  const StoredValues b(second);
  std::vector<ElementDifference> all;
  const auto add = [&](const std::vector<Tensor>& x, const std::vector<Tensor>& y, bool result) {
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!x[i] || !y[i]) {
        continue;
      }
      ElementDifference one = element_difference(x[i], y[i]);
      one.is_result = result;
      one.tensor = i;
      if (one.differing > 0 || !one.problem.empty()) {
        all.push_back(std::move(one));
      }
    }
  };
  add(a.in, b.in, false);
  add(a.out, b.out, true);
  return all;
}

}  // namespace tessera::runs
