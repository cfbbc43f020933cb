module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/shown.hpp>
#include <vector>
module tessera.pipeline;

import tessera.base;

namespace tessera::pipeline {
namespace {

constexpr std::array<std::string_view, work_count> marks = {"F",  "B",  "I",  "W",
                                                            ">F", "<F", ">B", "<B"};
/// More would be no use, and a wrong file must not take all memory.
constexpr int most = 1'000'000;

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view blank = " \t\r";
  std::vector<std::string_view> words;
  for (std::size_t at = line.find_first_not_of(blank); at != std::string_view::npos;
       at = line.find_first_not_of(blank, at)) {
    const std::size_t end = std::min(line.find_first_of(blank, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

std::optional<int> number_in(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0 || value > most) {
    return std::nullopt;
  }
  return value;
}

std::optional<Action> action_in(std::string_view text) {
  const std::size_t digits = text.find_first_of("0123456789");
  const std::size_t dot = text.find('.');
  if (digits == std::string_view::npos || dot == std::string_view::npos || dot < digits) {
    return std::nullopt;
  }
  const auto mark = std::ranges::find(marks, text.substr(0, digits));
  const std::optional<int> stage = number_in(text.substr(digits, dot - digits));
  const std::optional<int> micro_batch = number_in(text.substr(dot + 1));
  if (mark == marks.end() || !stage || !micro_batch) {
    return std::nullopt;
  }
  return Action{static_cast<Work>(mark - marks.begin()), *stage, *micro_batch};
}

/// Reads the lines of a schedule one after the other.
class Reader {
 public:
  explicit Reader(const std::string& where) : where_(where) {}

  void line(std::string_view text) {
    ++number_;
    text = text.substr(0, std::min(text.find('#'), text.size()));
    const std::vector<std::string_view> words = words_of(text);
    if (words.empty()) {
      return;
    }
    const std::string_view key = words[0];
    const std::span<const std::string_view> values(words.begin() + 1, words.end());
    if (key == "rank") {
      rank(values);
      return;
    }
    if (!seen_.insert(std::string(key)).second) {
      refuse(fmt::format("'{}' is there a second time", key));
    }
    if (key == "schedule" && values.size() == 1) {
      schedule_.name = values[0];
    } else if (key == "micro_batches" && values.size() == 1) {
      schedule_.micro_batches = number(values[0]);
    } else if (key == "stages" && !values.empty()) {
      schedule_.rank_of_stage = numbers(values);
    } else if (key == "kept" && !values.empty()) {
      schedule_.most_kept = numbers(values);
    } else {
      refuse(fmt::format("'{}' cannot be read", shown(key)),
             "'schedule NAME', 'micro_batches N', 'stages RANK...', 'kept N...' or 'rank N: "
             "ACTION...'");
    }
  }

  Schedule finished() {
    for (const char* const key : {"micro_batches", "stages"}) {
      if (!seen_.contains(key)) {
        fail_input({.where = where_,
                    .thing = "schedule",
                    .wrong = fmt::format("there is no line '{}'", key)});
      }
    }
    const bool has_transfers =
        std::ranges::any_of(schedule_.actions, [](const std::vector<Action>& of_rank) {
          return std::ranges::any_of(of_rank, [](const Action& a) { return !computes(a.work); });
        });
    if (!has_transfers) {
      check_stages();
      add_transfers(schedule_);
    }
    return std::move(schedule_);
  }

 private:
  [[noreturn]] void refuse(std::string wrong, std::string expected = {}) const {
    fail_input({.where = fmt::format("{}:{}", where_, number_),
                .thing = "schedule",
                .wrong = std::move(wrong),
                .expected = std::move(expected)});
  }

  int number(std::string_view text) const {
    const std::optional<int> value = number_in(text);
    if (!value) {
      refuse(fmt::format("'{}' is no number", shown(text)), fmt::format("0 to {}", most));
    }
    return *value;
  }

  std::vector<int> numbers(std::span<const std::string_view> words) const {
    std::vector<int> values;
    for (const std::string_view word : words) {
      values.push_back(number(word));
    }
    return values;
  }

  void rank(std::span<const std::string_view> words) {
    const auto expected = static_cast<int>(schedule_.actions.size());
    if (words.empty() || words[0] != fmt::format("{}:", expected)) {
      refuse("the ranks are not in order", fmt::format("rank {}:", expected));
    }
    std::vector<Action>& actions = schedule_.actions.emplace_back();
    for (const std::string_view word : words.subspan(1)) {
      const std::optional<Action> action = action_in(word);
      if (!action) {
        refuse(fmt::format("'{}' is no action", shown(word)),
               "a kind (F, B, I, W, >F, <F, >B, <B), a stage, a dot and a micro-batch, as F0.3");
      }
      actions.push_back(*action);
    }
  }

  /// add_transfers() looks stages up.
  void check_stages() const {
    for (const std::vector<Action>& of_rank : schedule_.actions) {
      for (const Action& action : of_rank) {
        if (action.stage >= schedule_.stages()) {
          fail_input({.where = where_,
                      .thing = "schedule",
                      .wrong = fmt::format("{}: there is no such stage", to_string(action)),
                      .expected = fmt::format("0 to {}", schedule_.stages() - 1)});
        }
      }
    }
  }

  std::string where_;
  int number_ = 0;
  std::set<std::string> seen_;
  Schedule schedule_;
};

}  // namespace

std::string to_text(const Schedule& schedule) {
  std::string text = fmt::format("schedule {}\nmicro_batches {}\nstages {}\n", schedule.name,
                                 schedule.micro_batches, fmt::join(schedule.rank_of_stage, " "));
  if (!schedule.most_kept.empty()) {
    text += fmt::format("kept {}\n", fmt::join(schedule.most_kept, " "));
  }
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    text += fmt::format("rank {}:", rank);
    for (const Action& action : schedule.actions[static_cast<std::size_t>(rank)]) {
      text += fmt::format(" {}{}.{}", marks[static_cast<std::size_t>(action.work)], action.stage,
                          action.micro_batch);
    }
    text += '\n';
  }
  return text;
}

Schedule parse_schedule(std::string_view text, const std::string& where) {
  Reader reader(where);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    reader.line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return reader.finished();
}

}  // namespace tessera::pipeline
