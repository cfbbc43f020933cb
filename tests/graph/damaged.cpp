// Texts of real programs that were damaged at random: each is refused with an error that names its
// place, or runs. Nothing crashes, hangs or takes much memory. The cases run in processes of their
// own, whose memory is limited; one that dies is named, and the others go on.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.plugin;
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import tessera.execute;
import tessera.passes;
import tessera.graph;

using namespace tessera;

namespace {

#if defined(__SANITIZE_ADDRESS__) || (defined(__has_feature) && __has_feature(address_sanitizer))
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

/// The programs of several configs, of a small model; those on one rank are executed.
std::vector<std::string> captured_texts() {
  const std::string sizes =
      " model.dim=16 model.ffn_dim=24 model.layers=2 model.heads=2 data.seq_len=4 train.batch=4 "
      "model.dropout=0.1 data.tokenizer=bytes checkpoint.folder= log.metrics= ";
  const std::vector<std::string> configs = {
      "fully_sharded.toml mesh.shape=[1]",
      "fully_sharded.toml mesh.shape=[1] graph.passes=[]",
      "one_rank.toml train.micro_batch=2 train.activation_checkpointing=true",
      "fully_sharded.toml mesh.shape=[2]",
      "fsdp_tensor.toml",
      "lora.toml graph.memory_budget=1GiB"};
  std::vector<std::string> texts;
  for (const std::string& config : configs) {
    const std::string file =
        (std::filesystem::temp_directory_path() / ("damaged-" + std::to_string(getpid()) + ".txt"))
            .string();
    const std::string command = TESSERA_PROGRAM " graph capture " TESSERA_CONFIGS "/" + config +
                                sizes + "--to " + file + " >/dev/null";
    INFO(command);
    REQUIRE(std::system(command.c_str()) == 0);  // NOLINT(bugprone-command-processor)
    std::ifstream stream(file);
    texts.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
    std::filesystem::remove(file);
  }
  return texts;
}

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t count) {
  return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
}

/// Where runs of characters of a kind are in the text.
template <class Is>
std::vector<std::pair<std::size_t, std::size_t>> runs(const std::string& text, Is is) {
  std::vector<std::pair<std::size_t, std::size_t>> all;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && is(text[end])) {
      ++end;
    }
    if (end > at) {
      all.emplace_back(at, end - at);
    }
    at = end + 1;
  }
  return all;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void change_number(std::string& text, Random& random) {
  static const std::vector<std::string> others = {"0",
                                                  "-1",
                                                  "1",
                                                  "2",
                                                  "3",
                                                  "7",
                                                  "64",
                                                  "65537",
                                                  "16777215",
                                                  "2147483647",
                                                  "2147483648",
                                                  "4294967296",
                                                  "1152921504606846976",
                                                  "4611686018427387904",
                                                  "9223372036854775807",
                                                  "-9223372036854775808",
                                                  "18446744073709551615",
                                                  "99999999999999999999",
                                                  "nan",
                                                  "inf",
                                                  "1e308",
                                                  ""};
  const auto numbers = runs(text, is_digit);
  if (numbers.empty()) {
    return;
  }
  const auto [at, size] = numbers[below(random, numbers.size())];
  if (below(random, 3) == 0 && size < 6) {  // the next one
    text.replace(at, size, std::to_string(std::stoi(text.substr(at, size)) + 1));
  } else {
    text.replace(at, size, others[below(random, others.size())]);
  }
}

void change_word(std::string& text, Random& random) {
  const auto words = runs(text, [](char c) {
    return (c >= 'a' && c <= 'z') || is_digit(c) || c == '_' || c == '%' || c == '.';
  });
  const auto [at, size] = words[below(random, words.size())];
  const auto [from, length] = words[below(random, words.size())];
  text.replace(at, size, text.substr(from, length));
}

void change_lines(std::string& text, Random& random) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line + "\n");
  }
  if (lines.empty()) {
    return;
  }
  const std::size_t one = below(random, lines.size());
  const std::size_t other = below(random, lines.size());
  switch (below(random, 3)) {
    case 0:
      lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(one));
      break;
    case 1:
      lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(other), std::string(lines[one]));
      break;
    default:
      std::swap(lines[one], lines[other]);
  }
  text.clear();
  for (const std::string& line : lines) {
    text += line;
  }
}

std::string damaged(std::string text, Random& random) {
  for (std::size_t times = 1 + below(random, 3); times > 0 && !text.empty(); --times) {
    const std::size_t at = below(random, text.size());
    switch (below(random, 8)) {
      case 0:
        text[at] = static_cast<char>(below(random, 256));
        break;
      case 1:
        text.erase(at, 1 + below(random, 4));
        break;
      case 2:
        text.insert(at, 1, " ,;()[]%=-@{}$.\n0a"[below(random, 18)]);
        break;
      case 3:
        change_word(text, random);
        break;
      case 4:
        change_lines(text, random);
        break;
      case 5:
        text.resize(below(random, 20) == 0 ? at : text.size());
        break;
      default:
        change_number(text, random);
    }
  }
  return text;
}

constexpr std::int64_t most_elements = 1 << 20;

/// What begins and runs a step; a value for each input and variable. False: an input is large,
/// which is then up to the caller.
bool run_step(Executor& executor) {
  const Program& program = executor.program();
  std::map<std::string, Tensor> inputs;
  for (const auto& [name, input] : program.inputs) {
    const ProgramTensor& x = program.tensors[input.tensor];
    for (const std::int64_t size : x.shape) {
      if (size < 0 || size > most_elements) {
        return false;
      }
    }
    if (checked_product(x.shape, name) > most_elements) {
      return false;
    }
    inputs.emplace(name, zeros(x.shape, x.dtype));
  }
  StepVariables variables;
  for (const std::string& name : program.numbers) {
    variables.numbers[name] = 0.5;
  }
  for (const std::string& name : program.counts) {
    variables.counts[name] = 1;
  }
  for (const auto& [name, drawn] : program.draws) {
    random_stream(name);
  }
  variables.streams = random_state();
  executor.begin(inputs);
  for (const Section& section : program.sections) {
    executor.run(section.kind, variables);
  }
  executor.end();
  return true;
}

/// What is wrong with how the text is treated; empty: nothing. `where`: the stage that it reached.
std::string treated(const std::string& text, std::string& where) {
  // A line, an instruction, an input or output, or what all of the program has.
  static const std::regex place(
      "^step.txt, line [0-9]+: |section '|input '|output '|%[0-9]+|variable '|the program is |"
      "stream|collectives? |memory|^program: |there is no operator|no section '");
  try {
    where = "parse";
    const Program program = Program::parse(text, "step.txt");
    where = "text";
    static_cast<void>(Program::parse(program.to_text(), "step.txt").to_text());
    where = "verify";
    graph::verify(program);
    where = "statistics";
    static_cast<void>(graph::statistics_of(program));
    static_cast<void>(graph::communication_of(program));
    where = "planned bytes";
    if (graph::planned_bytes(program) > std::int64_t{1} << 28) {
      return "";  // more than these tests have; an executor says so
    }
    where = "passes";
    Program improved = program;
    graph::run_passes(improved, graph::default_passes());
    for (const char* name : {"interpreter", "planned"}) {
      where = name;
      const auto executor = graph::make_executor(program, {.executor = name});
      if (!run_step(*executor)) {
        return "";
      }
    }
    where = "ran";
  } catch (const Error& error) {
    const std::string said = error.what();
    if (where == "parse" && !said.starts_with("step.txt, line ")) {
      return "parse does not name the line: " + said;
    }
    if (where == "text") {
      return "the program's own text is refused: " + said;
    }
    return std::regex_search(said, place) ? "" : where + " does not name a place: " + said;
  } catch (const std::exception& error) {
    return where + ": no error of Tessera: " + error.what();
  }
  return "";
}

/// What this process has mapped, whether it uses it or not.
std::size_t mapped_bytes() {
  std::ifstream stream("/proc/self/statm");
  std::size_t pages = 0;
  stream >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// Runs cases [first, end) of a seed; returns what is wrong, a line each.
std::vector<std::string> findings(const std::vector<std::string>& texts, std::uint64_t seed,
                                  int end) {
  using namespace std::chrono_literals;
  constexpr int batch = 250;
  std::vector<std::string> found;
  std::map<std::string, int> reached;
  for (int first = 0; first < end;) {
    const int last = std::min(first + batch, end);
    int at = first;
    const ChildResult child = run_in_child("damaged programs", 100s, [&](const SendReport& send) {
      if (!sanitized) {
        const std::size_t most = mapped_bytes() + (std::size_t{1} << 30);
        const rlimit limit{most, most};
        setrlimit(RLIMIT_AS, &limit);
      }
      ops::set_threads(1);
      for (int i = first; i < last; ++i) {
        send("case " + std::to_string(i) + "\n");
        Random random(seed * 1'000'003 + static_cast<std::uint64_t>(i));
        const std::string text = damaged(texts[below(random, texts.size())], random);
        std::string where;
        std::string wrong = treated(text, where);
        std::ranges::replace(wrong, '\n', ' ');
        send("reached " + where + "\n");
        if (!wrong.empty()) {
          send("wrong case " + std::to_string(i) + ": " + wrong + "\n");
        }
      }
    });
    std::istringstream lines(child.report);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("case ")) {
        at = std::stoi(line.substr(5));
      } else if (line.starts_with("reached ")) {
        ++reached[line.substr(8)];
      } else {
        found.push_back(line);
      }
    }
    if (!child.problem.empty()) {
      found.push_back("case " + std::to_string(at) + ": " + child.problem);
      first = at + 1;
    } else {
      first = last;
    }
  }
  for (const auto& [where, count] : reached) {
    UNSCOPED_INFO(where << ": " << count);
  }
  // Each stage is tried, so that the others are not tested by their absence.
  CHECK(reached["parse"] > end / 20);
  CHECK(reached["verify"] > end / 100);
  CHECK(reached["ran"] > end / 100);
  return found;
}

void no_findings(std::uint64_t seed, int cases) {
  const std::vector<std::string> texts = captured_texts();
  for (const std::string& text : texts) {
    std::string where;
    CHECK(treated(text, where).empty());
  }
  std::string all;
  for (const std::string& finding : findings(texts, seed, cases)) {
    all += "\n  " + finding;
  }
  INFO("seed " << seed << all);
  CHECK(all.empty());
}

}  // namespace

TEST_CASE("damaged programs are refused where they are damaged, or run") { no_findings(1, 1500); }

// TESSERA_DAMAGED="SEED CASE": one of them, in this process, with its text in damaged.txt.
TEST_CASE("one damaged program", "[.one]") {
  const char* const chosen = std::getenv("TESSERA_DAMAGED");
  REQUIRE(chosen != nullptr);
  std::istringstream words(chosen);
  std::uint64_t seed = 0;
  std::uint64_t number = 0;
  words >> seed >> number;
  const std::vector<std::string> texts = captured_texts();
  Random random(seed * 1'000'003 + number);
  const std::size_t which = below(random, texts.size());
  const std::string text = damaged(texts[which], random);
  std::ofstream("undamaged.txt") << texts[which];
  std::ofstream("damaged.txt") << text;
  std::string where;
  CHECK(treated(text, where) == "");
  WARN(where);
}

TEST_CASE("many damaged programs", "[.long]") {
  for (std::uint64_t seed = 2; seed < 12; ++seed) {
    no_findings(seed, 3000);
  }
}
