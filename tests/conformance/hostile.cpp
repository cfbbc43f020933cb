// Every registered operator with integers that no program means: each integer argument in turn is
// replaced by values at the ends of 32 and 64 bits. A call must return at once, with an error that
// names the operator or with a right result: it must not hang, crash, wrap around, or allocate more
// than it needs.
//
// The calls run in a process of their own, whose memory is limited: when one hangs or crashes, its
// text is known and the rest continues in another process.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.conformance;

#include "conformance.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

/// An integer of a call: an argument, an entry of dims, or one of the numbers of a random operator.
struct Place {
  std::string name;  // "shape[1]"
  std::size_t argument = 0;
  std::size_t entry = 0;  // of dims and random numbers
};

/// The numbers in "seed=1 stream=2", each with its name.
std::vector<std::pair<std::string, std::int64_t>> random_numbers(const std::string& text) {
  std::vector<std::pair<std::string, std::int64_t>> numbers;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t equal = word.find('=');
    numbers.emplace_back(word.substr(0, equal),
                         static_cast<std::int64_t>(std::stoull(word.substr(equal + 1))));
  }
  return numbers;
}

std::vector<ArgumentValue> arguments_of(const CallSample& sample) {
  return sample.op->arguments == nullptr ? std::vector<ArgumentValue>()
                                         : sample.op->arguments->values(sample.attributes);
}

/// The integers of a call. Types, flags, numbers and names are not among them.
std::vector<Place> places_of(const CallSample& sample) {
  std::vector<Place> places;
  const std::vector<ArgumentValue> values = arguments_of(sample);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ArgumentField& field = sample.op->arguments->fields[i];
    const std::string name(field.name);
    if (std::holds_alternative<std::int64_t>(values[i])) {
      places.push_back({name, i, 0});
    } else if (const auto* dims = std::get_if<Dims>(&values[i]); dims != nullptr) {
      for (int d = 0; d < dims->size(); ++d) {
        places.push_back({name + "[" + std::to_string(d) + "]", i, static_cast<std::size_t>(d)});
      }
    } else if (field.type == ArgumentType<RandomNumbers>::name) {
      const auto numbers = random_numbers(std::get<std::string>(values[i]));
      for (std::size_t n = 0; n < numbers.size(); ++n) {
        places.push_back({name + "." + numbers[n].first, i, n});
      }
    }
  }
  return places;
}

std::int64_t value_at(const CallSample& sample, const Place& place) {
  const ArgumentValue value = arguments_of(sample)[place.argument];
  if (const auto* dims = std::get_if<Dims>(&value); dims != nullptr) {
    return (*dims)[static_cast<int>(place.entry)];
  }
  if (const auto* text = std::get_if<std::string>(&value); text != nullptr) {
    return random_numbers(*text)[place.entry].second;
  }
  return std::get<std::int64_t>(value);
}

Attributes with_value(const CallSample& sample, const Place& place, std::int64_t changed) {
  std::vector<ArgumentValue> values = arguments_of(sample);
  ArgumentValue& value = values[place.argument];
  if (auto* dims = std::get_if<Dims>(&value); dims != nullptr) {
    (*dims)[static_cast<int>(place.entry)] = changed;
  } else if (auto* text = std::get_if<std::string>(&value); text != nullptr) {
    auto numbers = random_numbers(*text);
    numbers[place.entry].second = changed;
    text->clear();
    for (const auto& [name, number] : numbers) {
      *text += (text->empty() ? "" : " ") + name + "=" +
               std::to_string(static_cast<std::uint64_t>(number));
    }
  } else {
    value = changed;
  }
  return sample.op->arguments->from_values(values);
}

constexpr std::int64_t two_to_31 = std::int64_t{1} << 31;
constexpr std::int64_t two_to_32 = std::int64_t{1} << 32;
constexpr std::int64_t two_to_62 = std::int64_t{1} << 62;

std::vector<std::int64_t> hostile_values(std::int64_t meant) {
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> values{least, -two_to_31, -1, 0, two_to_31, two_to_32, two_to_62, most};
  if (meant >= -two_to_31 && meant < two_to_31) {
    values.push_back(two_to_32 + meant);
  }
  return values;
}

/// What a call did: its error, or its results' values.
struct Outcome {
  std::string error;  // empty: none
  bool refusal = false;
  std::vector<std::vector<double>> values;  // of small results
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

std::vector<Tensor> copies_of(const std::vector<Tensor>& inputs, Device device) {
  std::vector<Tensor> copies;
  for (const Tensor& x : inputs) {
    if (!x) {
      copies.emplace_back();
    } else {
      copies.push_back(device == meta ? empty(x.shape(), x.dtype(), meta) : ops::clone(x));
    }
  }
  return copies;
}

template <class F>
Outcome outcome_of(F f) {
  Outcome outcome;
  try {
    f(outcome);
  } catch (const Error& error) {
    outcome.error = error.what();
    outcome.refusal = true;
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  return outcome;
}

Outcome call_outcome(const CallSample& sample, const Attributes& attributes, Device device) {
  return outcome_of([&](Outcome& outcome) {
    for (const Tensor& x : call(*sample.op, copies_of(sample.inputs, device), attributes)) {
      if (device != meta && x && x.numel() <= 100'000) {
        outcome.values.push_back(to_doubles(x));
      }
    }
  });
}

/// The gradient of all floating results.
Outcome backward_outcome(const CallSample& sample, const Attributes& attributes) {
  return outcome_of([&](Outcome&) {
    std::vector<Tensor> inputs = copies_of(sample.inputs, cpu);
    for (Tensor& x : inputs) {
      if (x && is_floating(x.dtype())) {
        x.set_requires_grad();
      }
    }
    std::vector<Tensor> roots;
    std::vector<Tensor> weights;
    const Tensors out = call(*sample.op, inputs, attributes);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i] && out[i].requires_grad() && i < sample.output_gradients.size() &&
          sample.output_gradients[i]) {
        roots.push_back(out[i]);
        weights.push_back(full(out[i].shape(), 1, out[i].dtype()));
      }
    }
    if (!roots.empty()) {
      backward(roots, weights);
    }
  });
}

/// Names of operators that an error may begin with: a form refers to the operator that it is of.
bool names_operator(const std::string& error, const Op& op) {
  return error.starts_with(op.name + ":") ||
         (op.form_of != nullptr && error.starts_with(op.form_of->name + ":"));
}

/// Of a temporary tensor, too.
bool lacks_memory(const std::string& error) {
  return error.find("there is not enough memory for a tensor of ") != std::string::npos;
}

bool is_dim(const std::string& parameter) {
  return parameter.starts_with("dim") || parameter.ends_with("_dim");
}

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif
constexpr double seconds_allowed = sanitized ? 10 : 1.5;

/// Everything about one value at one place. Calls `found` with what is wrong.
void check_value(const CallSample& sample, const Place& place, std::int64_t value,
                 const Outcome& meant, const std::function<void(const std::string&)>& found) {
  const Attributes attributes = with_value(sample, place, value);
  const std::int64_t before = value_at(sample, place);
  const auto judge = [&](const char* what, const Outcome& outcome) {
    if (!outcome.error.empty() && !outcome.refusal) {
      found(std::string(what) + " throws another exception than Error: " + outcome.error);
    } else if (outcome.refusal && !names_operator(outcome.error, *sample.op) &&
               std::string(what) != "backward" && !lacks_memory(outcome.error)) {
      found(std::string(what) + ": the error does not name the operator: " + outcome.error);
    }
  };
  const auto timed = [&](const char* what, const std::function<Outcome()>& f) {
    const double start = processor_seconds();
    Outcome outcome = f();
    const double seconds = processor_seconds() - start;
    if (seconds > seconds_allowed) {
      found(std::string(what) + " takes " + std::to_string(seconds) + " s");
    }
    judge(what, outcome);
    return outcome;
  };
  const Outcome outcome = timed("call", [&] { return call_outcome(sample, attributes, cpu); });
  timed("on meta", [&] { return call_outcome(sample, attributes, meta); });
  if (outcome.refusal) {
    return;
  }
  if (value != -1 && value != 0 && is_dim(place.name)) {
    found("is accepted as a dim");
  }
  if (value == two_to_32 + before && outcome == meant) {
    const Outcome far = call_outcome(sample, with_value(sample, place, two_to_62), cpu);
    if (!(far == meant)) {
      found("acts as " + std::to_string(before));
    }
  }
  if (sample.op->backward != nullptr && !sample.op->in_place) {
    timed("backward", [&] { return backward_outcome(sample, attributes); });
  }
  if (sample.op->rule != nullptr) {
    CallSample changed = sample;
    changed.attributes = attributes;
    timed("rule", [&] { return outcome_of([&](Outcome&) { strategies_of(changed); }); });
  }
}

/// Numbers the values of all samples, and writes each one's number and text before it is tried. The
/// first `done` values were tried before; the last of them ended its process, so the other values
/// at its place are left out.
void run_hostile_calls(int done, const std::function<void(const std::string&)>& write) {
  int number = 0;
  for (const CallSample& sample : call_samples(3)) {
    if (sample.op->name.starts_with("wrong_")) {
      continue;  // another test's
    }
    std::optional<Outcome> meant;
    for (const Place& place : places_of(sample)) {
      const std::vector<std::int64_t> values = hostile_values(value_at(sample, place));
      const int before = number;
      number += static_cast<int>(values.size());
      if (before < done) {
        continue;
      }
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::string text = sample.name + " " + sample.op->schema + " with " + place.name +
                                 " = " + std::to_string(values[i]) + ": ";
        write(std::to_string(before + static_cast<int>(i) + 1) + " " + text);
        if (!meant) {
          meant = call_outcome(sample, sample.attributes, cpu);
        }
        bool slow = false;
        check_value(sample, place, values[i], *meant, [&](const std::string& finding) {
          write("!" + text + finding);
          slow |= finding.find(" takes ") != std::string::npos;
        });
        if (slow) {
          break;
        }
      }
    }
  }
  write("done " + std::to_string(number));
}

constexpr const char* first_variable = "TESSERA_TEST_FIRST_HOSTILE_CALL";
constexpr int report = 3;  // the other process' descriptor

/// A process that tries the values from `first` on; its lines come from the returned descriptor.
std::pair<pid_t, int> start_process(int first) {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const std::string number = std::to_string(first);
  const auto bounded = [](const char* options) {  // a sanitizer's, whose allocator then fails
    const char* const set = std::getenv(options);
    return (set != nullptr ? std::string(set) : std::string()) +
           ":allocator_may_return_null=1:max_allocation_size_mb=1024";
  };
  const std::string address = bounded("ASAN_OPTIONS");
  const std::string thread = bounded("TSAN_OPTIONS");
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ends[1] == report) {
      fcntl(report, F_SETFD, 0);
    } else {
      dup2(ends[1], report);
    }
    setenv(first_variable, number.c_str(), 1);
    setenv("ASAN_OPTIONS", address.c_str(), 1);
    setenv("TSAN_OPTIONS", thread.c_str(), 1);
    execl("/proc/self/exe", "test_conformance", "[.hostile]", static_cast<char*>(nullptr));
    _exit(126);
  }
  close(ends[1]);
  return {child, ends[0]};
}

/// The next line; nothing at the end, or when `seconds` pass without one.
std::optional<std::string> next_line(int from, std::string& buffer, int seconds) {
  while (true) {
    const std::size_t end = buffer.find('\n');
    if (end != std::string::npos) {
      std::string line = buffer.substr(0, end);
      buffer.erase(0, end + 1);
      return line;
    }
    pollfd waiting{from, POLLIN, 0};
    if (poll(&waiting, 1, seconds * 1000) <= 0) {
      return {};
    }
    char bytes[4096];
    const ssize_t count = read(from, bytes, sizeof bytes);
    if (count <= 0) {
      return {};
    }
    buffer.append(bytes, static_cast<std::size_t>(count));
  }
}

std::string ending_of(int status) {
  if (WIFSIGNALED(status)) {
    return WTERMSIG(status) == SIGKILL ? "hangs"
                                       : "dies by signal " + std::to_string(WTERMSIG(status));
  }
  return "ends the process with status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

TEST_CASE("the calls of the next case, in a process of their own", "[.hostile]") {
  if (!sanitized) {  // whose memory is not the program's
    constexpr rlimit limit{std::size_t{3} << 29, std::size_t{3} << 29};
    REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
  }
  const char* first = std::getenv(first_variable);
  std::FILE* const out = fdopen(report, "w");
  REQUIRE((first != nullptr && out != nullptr));
  run_hostile_calls(std::atoi(first), [&](const std::string& line) {
    std::string one_line = line;
    std::replace(one_line.begin(), one_line.end(), '\n', ' ');
    std::fprintf(out, "%s\n", one_line.c_str());
    std::fflush(out);
  });
}

TEST_CASE("operators refuse integers that they cannot mean, or do with them what they say") {
  std::vector<std::string> findings;
  int first = 0;
  int tried = -1;
  while (tried < 0 && findings.size() < 1000) {
    const auto [child, from] = start_process(first);
    std::string buffer;
    std::string last = "0 before the first call";
    const int before = first;
    while (const auto line = next_line(from, buffer, sanitized ? 120 : 30)) {
      if (line->starts_with("!")) {
        findings.push_back(line->substr(1));
      } else if (line->starts_with("done ")) {
        tried = std::stoi(line->substr(5));
      } else {
        last = *line;
        first = std::stoi(last);
      }
    }
    if (tried < 0) {
      kill(child, SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, 0);
    close(from);
    if (tried < 0) {
      findings.push_back(last.substr(last.find(' ') + 1) + ending_of(status));
      REQUIRE(first > before);
    }
  }
  std::string text;
  for (const std::string& finding : findings) {
    text += "\n  " + finding;
  }
  INFO(findings.size() << " findings:" << text);
  CHECK(findings.empty());
  CHECK(tried > 2000);
}
