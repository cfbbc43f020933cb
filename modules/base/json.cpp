#include "tessera/json.hpp"

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace tessera {
namespace {

using nlohmann::json;

/// Ends the parser from within; nlohmann's parser only skips values when its callback refuses them.
struct Refused {
  std::string problem;
};

/// Watches the parser's events; throws Refused.
class Guard {
 public:
  explicit Guard(const JsonLimits& limits) : limits_(limits) {}

  bool operator()(int depth, json::parse_event_t event, const json& value) {
    using Event = json::parse_event_t;
    if (event == Event::object_end) {
      names_.pop_back();
      return true;
    }
    if (event == Event::array_end) {
      return true;
    }
    if (++values_ > limits_.values) {
      throw Refused{"it holds too many values (at most " + std::to_string(limits_.values) + ")"};
    }
    if (event == Event::object_start || event == Event::array_start) {
      if (static_cast<std::size_t>(depth) >= limits_.depth) {
        throw Refused{"it is nested too deeply (at most " + std::to_string(limits_.depth) +
                      " levels)"};
      }
      if (event == Event::object_start) {
        names_.emplace_back();
      }
    } else if (event == Event::key &&
               !names_.back().insert(value.get_ref<const std::string&>()).second) {
      throw Refused{"the name '" + value.get<std::string>() + "' occurs twice in one object"};
    }
    return true;
  }

 private:
  const JsonLimits& limits_;
  std::size_t values_ = 0;
  std::vector<std::set<std::string>> names_;  // of the objects that are open
};

std::string too_large(std::size_t bytes, const JsonLimits& limits) {
  return "it is too large (expected at most " + std::to_string(limits.bytes) + " bytes, got " +
         std::to_string(bytes) + ")";
}

}  // namespace

ParsedJson parse_json_object(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    return {{}, too_large(text.size(), limits)};
  }
  Guard guard(limits);
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    return guard(depth, event, value);
  };
  try {
    json value = json::parse(text.begin(), text.end(), watch);
    if (!value.is_object()) {
      return {{}, "it is not a JSON object"};
    }
    return {std::move(value), ""};
  } catch (const Refused& refused) {
    return {{}, refused.problem};
  } catch (const json::parse_error& error) {
    return {{}, "it is not JSON in UTF-8, see byte " + std::to_string(error.byte)};
  } catch (const json::exception&) {
    return {{}, "a number in it is out of range"};
  }
}

ParsedJson read_json_object(const std::string& path, const JsonLimits& limits) {
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
  return parse_json_object(text, limits);
}

json parse_json(std::string_view text, bool throws) { return json::parse(text, nullptr, throws); }

nlohmann::ordered_json parse_ordered_json(std::string_view text) {
  return nlohmann::ordered_json::parse(text);
}

std::string json_text(const json& value, int indent) { return value.dump(indent); }

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent);
}

}  // namespace tessera
