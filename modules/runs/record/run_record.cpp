module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/json_reading.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <variant>
#include <vector>
module tessera.runs;

import tessera.base;

namespace tessera::runs {
namespace {

namespace fs = std::filesystem;
// Of options, the order of members may have a meaning.
using Json = nlohmann::ordered_json;

constexpr std::int64_t record_version = 1;
constexpr JsonLimits limits{.bytes = 8'000'000, .values = 500'000, .depth = 64};
constexpr std::size_t most_plugins = 1000;
constexpr std::size_t most_words = 1000;

/// A member of a structure, by its name in the JSON.
template <class T>
struct Field {
  const char* name;
  std::variant<std::string T::*, std::int64_t T::*, std::vector<std::string> T::*, JsonText T::*,
               TimeBook T::*, std::vector<RecordedPlugin> T::*>
      member;
};

const std::array<Field<RecordedPlugin>, 3>& fields_of(const RecordedPlugin& /*kind*/) {
  static const std::array<Field<RecordedPlugin>, 3> fields = {
      {{"name", &RecordedPlugin::name},
       {"version", &RecordedPlugin::version},
       {"hash", &RecordedPlugin::hash}}};
  return fields;
}

const std::array<Field<Session>, 18>& fields_of(const Session& /*kind*/) {
  static const std::array<Field<Session>, 18> fields = {{{"from", &Session::from},
                                                         {"to", &Session::to},
                                                         {"begun", &Session::begun},
                                                         {"saved", &Session::saved},
                                                         {"command", &Session::command},
                                                         {"version", &Session::version},
                                                         {"program", &Session::program},
                                                         {"plugins", &Session::plugins},
                                                         {"system", &Session::system},
                                                         {"processor", &Session::processor},
                                                         {"cores", &Session::cores},
                                                         {"machines", &Session::machines},
                                                         {"mesh", &Session::mesh},
                                                         {"device", &Session::device},
                                                         {"threads", &Session::threads},
                                                         {"config", &Session::config},
                                                         {"fingerprint", &Session::fingerprint},
                                                         {"ledger", &Session::ledger}}};
  return fields;
}

template <class T>
Json json_of(const T& value);

Json json_of(const TimeBook& book) {
  Json json = Json::object();
  for (std::size_t i = 0; i < time_use_count; ++i) {
    json[std::string(word_of(static_cast<TimeUse>(i)))] = book.seconds[i];
  }
  return json;
}

template <class T>
Json json_of(const T& value) {
  Json json = Json::object();
  for (const Field<T>& field : fields_of(value)) {
    std::visit(
        [&](const auto& member) {
          const auto& own = value.*member;
          using Own = std::decay_t<decltype(own)>;
          if constexpr (std::is_same_v<Own, JsonText>) {
            json[field.name] = parse_ordered_json(own.text);
          } else if constexpr (std::is_same_v<Own, TimeBook>) {
            json[field.name] = json_of(own);
          } else if constexpr (std::is_same_v<Own, std::vector<RecordedPlugin>>) {
            json[field.name] = Json::array();
            for (const RecordedPlugin& plugin : own) {
              json[field.name].push_back(json_of(plugin));
            }
          } else {
            json[field.name] = own;
          }
        },
        field.member);
  }
  return json;
}

[[noreturn]] void refuse(const std::string& problem) { throw JsonProblem(problem); }

const Json& list_of(const Json& value, const std::string& name, std::size_t most) {
  if (!value.is_array() || value.size() > most) {
    refuse(fmt::format("'{}' is not a list of at most {}", name, most));
  }
  return value;
}

TimeBook book_of(const Json& value) {
  TimeBook book;
  if (!value.is_object()) {
    refuse("'ledger' is not an object");
  }
  for (const auto& [name, seconds] : value.items()) {
    std::size_t use = 0;
    while (use < time_use_count && word_of(static_cast<TimeUse>(use)) != name) {
      ++use;
    }
    if (use == time_use_count) {
      refuse(fmt::format("'ledger' has the unknown member '{}'", shown(name)));
    }
    book.seconds[use] = json_value<double>(seconds, "ledger." + name);
  }
  return book;
}

/// `absent`: members that may be left out.
template <class T>
T structure_of(const Json& value, const std::string& what,
               std::initializer_list<std::string_view> absent = {}) {
  T out{};
  if (!value.is_object()) {
    refuse(fmt::format("'{}' is not an object", what));
  }
  std::size_t known = 0;
  for (const Field<T>& field : fields_of(out)) {
    const auto found = value.find(field.name);
    if (found == value.end()) {
      if (std::ranges::find(absent, field.name) == absent.end()) {
        refuse(fmt::format("'{}' has no member '{}'", what, field.name));
      }
      continue;
    }
    ++known;
    std::visit(
        [&](const auto& member) {
          auto& own = out.*member;
          using Own = std::decay_t<decltype(own)>;
          if constexpr (std::is_same_v<Own, JsonText>) {
            if (!found->is_object()) {
              refuse(fmt::format("'{}' is not an object", field.name));
            }
            own.text = json_text(*found);
          } else if constexpr (std::is_same_v<Own, TimeBook>) {
            own = book_of(*found);
          } else if constexpr (std::is_same_v<Own, std::vector<RecordedPlugin>>) {
            for (const Json& one : list_of(*found, field.name, most_plugins)) {
              own.push_back(structure_of<RecordedPlugin>(one, "plugins"));
            }
          } else if constexpr (std::is_same_v<Own, std::vector<std::string>>) {
            for (const Json& one : list_of(*found, field.name, most_words)) {
              own.push_back(json_value<std::string>(one, field.name));
            }
          } else {
            own = json_value<Own>(*found, field.name);
          }
        },
        field.member);
  }
  if (known != value.size()) {
    for (const auto& [name, ignored] : value.items()) {
      const auto& fields = fields_of(out);
      if (std::ranges::none_of(fields, [&](const Field<T>& f) { return name == f.name; })) {
        refuse(fmt::format("'{}' has the unknown member '{}'", what, shown(name)));
      }
    }
  }
  return out;
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

double number_of(const Json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN()
                         : json_value<double>(value, "curve");
}

CurvePoint point_of(const Json& value) {
  if (!value.is_array() || value.size() < 4 || value.size() > 5) {
    refuse("'curve' has a point that is not [step, loss, grad_norm, lr, validation_loss]");
  }
  CurvePoint point{.step = json_value<std::int64_t>(value[0], "curve"),
                   .loss = number_of(value[1]),
                   .grad_norm = number_of(value[2]),
                   .lr = number_of(value[3])};
  if (value.size() == 5) {
    point.validation_loss = number_of(value[4]);
  }
  return point;
}

void check_order(const RunRecord& record) {
  std::int64_t done = -1;
  for (std::size_t i = 0; i < record.sessions.size(); ++i) {
    const Session& one = record.sessions[i];
    if (one.from < 0 || one.to < one.from) {
      refuse(fmt::format("session {} goes from step {} to step {}", i + 1, one.from, one.to));
    }
    if (done >= 0 && one.from != done && !(i == 1 && record.left_out > 0)) {
      refuse(fmt::format("session {} begins at step {}, and the one before ends at step {}", i + 1,
                         one.from, done));
    }
    done = one.to;
  }
  std::int64_t step = 0;
  for (const CurvePoint& point : record.curve) {
    if (point.step <= step || point.step > record.step()) {
      refuse(
          fmt::format("'curve' has step {} after step {}, of {}", point.step, step, record.step()));
    }
    step = point.step;
  }
}

std::string home_folder() { return environment_variable("HOME").value_or(""); }

/// The rest of a path that is below a folder; nothing for all others.
std::optional<std::string> below(const std::string& path, const std::string& folder) {
  if (folder.size() < 2 || !path.starts_with(folder)) {
    return std::nullopt;
  }
  std::string rest = path.substr(folder.size());
  if (rest.empty() || rest == "/") {
    return "";
  }
  return rest.starts_with('/') ? std::optional(rest.substr(1)) : std::nullopt;
}

void make_public(Json& value) {
  if (value.is_string()) {
    value = public_path(value.get<std::string>());
  } else if (value.is_structured()) {
    for (Json& one : value) {
      make_public(one);
    }
  }
}

/// Sections of a description that say where this machine writes and whom it tells.
constexpr std::array<std::string_view, 4> outputs = {"log", "sinks", "checkpoint", "trace"};

}  // namespace

void thin_curve(std::vector<CurvePoint>& curve) {
  if (curve.empty()) {
    return;
  }
  // Strides depend on the last step, so that thinning early or late leaves the same points.
  constexpr auto most = static_cast<std::int64_t>(most_points);
  const std::int64_t last = curve.back().step;
  std::int64_t steps = 1;
  while (last / steps > most) {
    steps *= 2;
  }
  // Every how many steps is validated: at least so many, where they are not regular.
  std::int64_t gap = last;
  std::int64_t before = 0;
  for (const CurvePoint& point : curve) {
    if (point.validation_loss && point.step != last) {
      gap = std::min(gap, point.step - std::exchange(before, point.step));
    }
  }
  std::int64_t validated = 1;
  const auto kept = [&] {
    return std::ranges::count_if(curve, [&](const CurvePoint& point) {
      return point.validation_loss && point.step % validated == 0;
    });
  };
  while (last / std::lcm(gap, validated) > most || kept() > most) {
    validated *= 2;
  }
  std::erase_if(curve, [&](const CurvePoint& point) {
    return point.step != last && point.step % (point.validation_loss ? validated : steps) != 0;
  });
}

void limit_sessions(RunRecord& record) {
  if (record.sessions.size() > most_sessions) {
    const std::size_t more = record.sessions.size() - most_sessions;
    record.sessions.erase(record.sessions.begin() + 1,
                          record.sessions.begin() + 1 + static_cast<std::ptrdiff_t>(more));
    record.left_out += static_cast<std::int64_t>(more);
  }
}

std::string to_json(const RunRecord& record) {
  Json sessions = Json::array();
  for (std::size_t i = 0; i < record.sessions.size(); ++i) {
    Json one = json_of(record.sessions[i]);
    if (i + 1 < record.sessions.size()) {
      const Session& next = record.sessions[i + 1];
      if (next.config.text == record.sessions[i].config.text) {
        one.erase("config");
      }
      if (next.fingerprint.text == record.sessions[i].fingerprint.text) {
        one.erase("fingerprint");
      }
    }
    sessions.push_back(std::move(one));
  }
  Json curve = Json::array();
  for (const CurvePoint& point : record.curve) {
    Json numbers = {point.step, number(point.loss), number(point.grad_norm), number(point.lr)};
    if (point.validation_loss) {
      numbers.push_back(number(*point.validation_loss));
    }
    curve.push_back(std::move(numbers));
  }
  return json_text(Json{{"version", record_version},
                        {"sessions", std::move(sessions)},
                        {"sessions_left_out", record.left_out},
                        {"curve", std::move(curve)}});
}

ReadRecord read_record(const std::string& json) {
  ReadRecord read;
  const ParsedJson parsed = parse_json_object(json, limits);
  if (!parsed.problem.empty()) {
    read.problem = parsed.problem;
    return read;
  }
  try {
    const Json members = parse_ordered_json(json);
    for (const auto& [name, value] : members.items()) {
      if (name == "version") {
        if (json_value<std::int64_t>(value, name) != record_version) {
          refuse(fmt::format("it is of version {}, and this program knows {}",
                             json_value<std::int64_t>(value, name), record_version));
        }
      } else if (name == "sessions") {
        for (const Json& one : list_of(value, name, most_sessions)) {
          read.record.sessions.push_back(
              structure_of<Session>(one, name, {"config", "fingerprint"}));
        }
      } else if (name == "sessions_left_out") {
        read.record.left_out = json_value<std::int64_t>(value, name);
      } else if (name == "curve") {
        for (const Json& one : list_of(value, name, 2 * most_points + 1)) {
          read.record.curve.push_back(point_of(one));
        }
      } else {
        refuse(fmt::format("it has the unknown member '{}'", shown(name)));
      }
    }
    if (!members.contains("version") || read.record.sessions.empty()) {
      refuse("it has no version or no session");
    }
    for (std::size_t i = read.record.sessions.size(); i-- > 0;) {
      Session& one = read.record.sessions[i];
      const bool last = i + 1 == read.record.sessions.size();
      for (JsonText Session::* member : {&Session::config, &Session::fingerprint}) {
        if ((one.*member).text == JsonText().text) {
          if (last) {
            refuse("its last session has no config or no fingerprint");
          }
          (one.*member).text = (read.record.sessions[i + 1].*member).text;
        }
      }
    }
    check_order(read.record);
  } catch (const Error& error) {
    read = {.record = {}, .problem = error.what()};
  } catch (const std::exception& error) {
    read = {.record = {}, .problem = json_problem(error)};
    if (read.problem.empty()) {
      throw;
    }
  }
  return read;
}

std::string public_path(const std::string& path) {
  if (!path.starts_with('/')) {
    return path;
  }
  std::error_code ignored;
  const std::string working = fs::current_path(ignored).string();
  if (const auto rest = below(path, working); rest && working != home_folder()) {
    return rest->empty() ? "." : *rest;
  }
  if (const auto rest = below(path, home_folder())) {
    return rest->empty() ? "~" : "~/" + *rest;
  }
  return path;
}

std::string own_path(const std::string& path) {
  const std::string home = home_folder();
  return path.starts_with("~/") && !home.empty() ? home + path.substr(1) : path;
}

std::string public_config(const RunSpec& spec) {
  Json config = parse_ordered_json(to_json(spec));
  Json saved = Json::object();  // what determines which tensors a checkpoint has
  for (const char* key : {"every", "weights"}) {
    if (const auto found = config["checkpoint"].find(key); found != config["checkpoint"].end()) {
      saved[key] = *found;
    }
  }
  for (const std::string_view section : outputs) {
    config.erase(std::string(section));
  }
  config["checkpoint"] = std::move(saved);
  make_public(config);
  return json_text(config);
}

std::vector<std::string> public_command(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const std::string section = key.substr(0, key.find_first_of(".["));
    const bool is_output =
        equals != std::string::npos && std::ranges::find(outputs, section) != outputs.end();
    std::string own = is_output                     ? key + "=..."
                      : equals == std::string::npos ? public_path(word)
                                                    : word;
    // "data.text=[\"/home/me/a.txt\"]"
    const std::string home = home_folder() + "/";
    for (std::size_t at = 0; home.size() > 2 && (at = own.find(home, at)) != std::string::npos;) {
      own.replace(at, home.size(), "~/");
    }
    out.push_back(std::move(own));
  }
  return out;
}

}  // namespace tessera::runs
