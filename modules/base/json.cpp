#include "tessera/json.hpp"

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tessera/json_reading.hpp"
#include "tessera/shown.hpp"

namespace tessera {
namespace {

using nlohmann::json;

/// Ends the parser from within.
struct RefusedJson {
  std::string problem;
};

/// Builds the value from the parser's events; throws RefusedJson. nlohmann's own parser with a
/// callback looks at all members of an object again for each object among them.
template <class Json>
class Builder final : public nlohmann::json_sax<Json> {
 public:
  using typename nlohmann::json_sax<Json>::number_integer_t;
  using typename nlohmann::json_sax<Json>::number_unsigned_t;
  using typename nlohmann::json_sax<Json>::number_float_t;
  using typename nlohmann::json_sax<Json>::string_t;
  using typename nlohmann::json_sax<Json>::binary_t;

  /// `exact`: whole numbers of more than 64 bits are refused; else they become inexact.
  explicit Builder(const JsonLimits& limits, bool exact = false) : limits_(limits), exact_(exact) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (exact_ && text.find_first_of(".eE") == string_t::npos) {
      throw RefusedJson{"the whole number " + shown(text, 60) + " has more than 64 bits"};
    }
    return add(value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(Json::binary(std::move(value))); }
  bool start_object(std::size_t /*elements*/) override { return open(Json::object()); }
  bool start_array(std::size_t /*elements*/) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    count();
    auto& members = open_.back().value->template get_ref<typename Json::object_t&>();
    if constexpr (is_ordered) {
      // Its own emplace compares the name with those of all members.
      if (!open_.back().names.insert(name).second) {
        refuse_second(name);
      }
      members.emplace_back(std::move(name), nullptr);
      member_ = &members.back().second;
    } else {
      const auto [at, fresh] = members.emplace(std::move(name), nullptr);
      if (!fresh) {
        refuse_second(at->first);
      }
      member_ = &at->second;
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    if (dynamic_cast<const json::parse_error*>(&error) != nullptr) {
      throw RefusedJson{"it is not JSON in UTF-8, see byte " + std::to_string(position)};
    }
    throw RefusedJson{"a number in it is out of range"};
  }

 private:
  static constexpr bool is_ordered = std::is_same_v<Json, nlohmann::ordered_json>;

  /// An object or a list that is not complete.
  struct OpenValue {
    Json* value = nullptr;
    std::unordered_set<std::string> names = {};  // of an ordered object's members
  };

  [[noreturn]] static void refuse_second(const std::string& name) {
    throw RefusedJson{"the name '" + shown(name) + "' occurs twice in one object"};
  }
  void count() {
    if (++values_ > limits_.values) {
      throw RefusedJson{"it holds too many values (at most " + std::to_string(limits_.values) +
                        ")"};
    }
  }
  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& inside = *open_.back().value;
    if (inside.is_array()) {
      inside.template get_ref<typename Json::array_t&>().push_back(std::move(value));
      return &inside.back();
    }
    *member_ = std::move(value);
    return member_;
  }
  bool add(Json value) {
    count();
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    count();
    if (open_.size() >= limits_.depth) {
      throw RefusedJson{"it is nested too deeply (at most " + std::to_string(limits_.depth) +
                        " levels)"};
    }
    open_.push_back({place(std::move(value))});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  bool exact_;
  std::size_t values_ = 0;
  Json root_;
  Json* member_ = nullptr;  // whose name was read last
  // Each grows only while it is the last of them, so the addresses of what is in it stay.
  std::vector<OpenValue> open_;
};

std::string too_large(std::size_t bytes, const JsonLimits& limits) {
  return "it is too large (expected at most " + std::to_string(limits.bytes) + " bytes, got " +
         std::to_string(bytes) + ")";
}

template <class Json>
ParseResult<Json> parse(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    return {{}, too_large(text.size(), limits)};
  }
  Builder<Json> builder(limits);
  try {
    Json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const RefusedJson& refused) {
    return {{}, refused.problem};
  }
  Json value = builder.take();
  if (!value.is_object()) {
    return {{}, "it is not a JSON object"};
  }
  return {std::move(value), ""};
}

template <class Json>
ParseResult<Json> read(const std::string& path, const JsonLimits& limits) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error || !std::filesystem::is_regular_file(status)) {
    return {{},
            "it cannot be read (" + (error ? error.message() : "it is not a regular file") + ")"};
  }
  const std::size_t size = std::filesystem::file_size(path, error);
  if (!error && size > limits.bytes) {
    return {{}, too_large(size, limits)};
  }
  std::string text(error ? 0 : size, '\0');
  std::ifstream stream(path, std::ios::binary);
  errno = 0;
  if (error || !stream || !stream.read(text.data(), static_cast<std::streamsize>(size))) {
    const std::error_code reason = error ? error : std::error_code(errno, std::generic_category());
    return {{}, "it cannot be read (" + reason.message() + ")"};
  }
  return parse<Json>(text, limits);
}

}  // namespace

ParsedJson parse_json_object(std::string_view text, const JsonLimits& limits) {
  return parse<json>(text, limits);
}

ParsedJson read_json_object(const std::string& path, const JsonLimits& limits) {
  return read<json>(path, limits);
}

ParsedOrderedJson read_ordered_json_object(const std::string& path, const JsonLimits& limits) {
  return read<nlohmann::ordered_json>(path, limits);
}

json parse_json(std::string_view text, bool throws) { return json::parse(text, nullptr, throws); }

nlohmann::ordered_json parse_ordered_json(std::string_view text) {
  constexpr std::size_t any = std::numeric_limits<std::size_t>::max();
  constexpr JsonLimits no_limits{.bytes = any, .values = any, .depth = any};
  Builder<nlohmann::ordered_json> builder(no_limits, true);
  try {
    nlohmann::ordered_json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const RefusedJson& refused) {
    refuse_json("JSON", refused.problem, "");
  }
  return builder.take();
}

std::string json_text(const json& value, int indent) { return value.dump(indent); }

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent);
}

std::string json_problem(const std::exception& error) {
  if (dynamic_cast<const JsonProblem*>(&error) != nullptr) {
    return shown(error.what());
  }
  if (dynamic_cast<const json::exception*>(&error) == nullptr) {
    return "";
  }
  // "[json.exception.type_error.302] type must be number, but is string"
  const std::string_view text = error.what();
  const std::size_t end = text.find("] ");
  return shown(text.substr(end == std::string_view::npos ? 0 : end + 2));
}

}  // namespace tessera
