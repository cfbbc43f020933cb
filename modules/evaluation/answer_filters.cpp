module;
#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <tessera/utf8.hpp>
#include <utility>
#include <vector>
module tessera.evaluation;

import :answer_filters;
import :python_values;
import tessera.base;

namespace tessera::evaluation {
namespace {

using Json = nlohmann::json;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

std::string in_case(const std::string& text, utf8proc_int32_t (*change)(utf8proc_int32_t)) {
  std::string changed;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (auto left = static_cast<utf8proc_ssize_t>(text.size()); left > 0;) {
    utf8proc_int32_t code = 0;
    const utf8proc_ssize_t read = utf8proc_iterate(bytes, left, &code);
    if (read <= 0) {
      changed += static_cast<char>(*bytes++);
      --left;
      continue;
    }
    std::array<utf8proc_uint8_t, 4> encoded{};
    const utf8proc_ssize_t size = utf8proc_encode_char(change(code), encoded.data());
    changed.append(reinterpret_cast<const char*>(encoded.data()), static_cast<std::size_t>(size));
    bytes += read;
    left -= read;
  }
  return changed;
}

std::string without_bytes(std::string text, std::string_view bytes) {
  std::erase_if(text, [&](char c) { return bytes.find(c) != std::string_view::npos; });
  return text;
}

}  // namespace

struct Pattern::Match {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<std::string> groups;
};

struct Pattern::State {
  State(const std::string& pattern, std::string at) : where(std::move(at)) {
    int error = 0;
    PCRE2_SIZE place = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &place, nullptr);
    if (code == nullptr) {
      fail_input({.thing = where,
                  .wrong = fmt::format("the regular expression '{}' is not supported: {} at {}",
                                       shown(pattern, 80), message_of(error), place)});
    }
    context = pcre2_match_context_create(nullptr);
    constexpr std::uint32_t most_steps = 10'000'000;
    pcre2_set_match_limit(context, most_steps);
    found = pcre2_match_data_create_from_pattern(code, nullptr);
  }
  ~State() {
    pcre2_match_data_free(found);
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::string where;
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_match_data* found = nullptr;
};

Pattern::Pattern(const std::string& pattern, const std::string& where)
    : state_(std::make_unique<State>(pattern, where)) {}
Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;

std::vector<Pattern::Match> Pattern::matches(const std::string& text) const {
  std::vector<Match> all;
  std::size_t at = 0;
  std::uint32_t options = 0;
  while (at <= text.size()) {
    const int count = pcre2_match(state_->code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), at, options, state_->found, state_->context);
    if (count == PCRE2_ERROR_NOMATCH) {
      if (options == 0) {
        break;
      }
      // After an empty match: the next character.
      options = 0;
      ++at;
      while (at < text.size() && is_continuation(text[at])) {
        ++at;
      }
      continue;
    }
    if (count < 0) {
      fail_input({.thing = state_->where,
                  .wrong = "the regular expression cannot be matched: " + message_of(count)});
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state_->found);
    Match match{.begin = ends[0], .end = ends[1], .groups = {}};
    for (std::uint32_t group = 1; group < pcre2_get_ovector_count(state_->found); ++group) {
      const bool there = static_cast<int>(group) < count && ends[2 * group] != PCRE2_UNSET;
      match.groups.push_back(
          there ? text.substr(ends[2 * group], ends[2 * group + 1] - ends[2 * group]) : "");
    }
    options = match.begin == match.end ? PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED : 0;
    at = match.end;
    all.push_back(std::move(match));
  }
  return all;
}

std::vector<std::string> Pattern::find_all(const std::string& text) const {
  std::vector<std::string> found;
  for (const Match& match : matches(text)) {
    if (match.groups.size() <= 1) {
      found.push_back(match.groups.empty() ? text.substr(match.begin, match.end - match.begin)
                                           : match.groups[0]);
      continue;
    }
    const auto group =
        std::ranges::find_if(match.groups, [](const std::string& one) { return !one.empty(); });
    found.push_back(group == match.groups.end() ? std::string() : *group);
  }
  return found;
}

bool Pattern::has_several_groups() const { return pcre2_get_ovector_count(state_->found) > 2; }

std::string Pattern::without(const std::string& text) const {
  std::string rest;
  std::size_t at = 0;
  for (const Match& match : matches(text)) {
    rest.append(text, at, match.begin - at);
    at = match.end;
  }
  return rest.append(text, at);
}

AnswerFilters::AnswerFilters(const FilterChain& chain, const std::string& where)
    : name_(chain.name), where_(where) {
  for (const AnswerFilter& filter : chain.filters) {
    Step& step = steps_.emplace_back(filter, std::nullopt);
    if (filter.kind == AnswerFilter::Kind::regex) {
      step.pattern.emplace(filter.pattern, where);
    }
  }
}

std::string AnswerFilters::selected(const Step& step, const std::string& answer) const {
  const AnswerFilter& filter = step.filter;
  const std::vector<std::string> found = step.pattern->find_all(answer);
  const std::int64_t at = filter.group < 0 ? std::ssize(found) + filter.group : filter.group;
  if (found.empty()) {
    return filter.fallback;
  }
  if (at < 0 || at >= std::ssize(found)) {
    fail_input({.thing = where_,
                .wrong = "group_select names a match that is not there",
                .expected = fmt::format("one of {}", found.size()),
                .got = fmt::format("{}", filter.group)});
  }
  const std::string& one = found[static_cast<std::size_t>(at)];
  return one.empty() && step.pattern->has_several_groups() ? filter.fallback
                                                           : std::string(without_space(one));
}

Json AnswerFilters::of(const std::string& answer) const {
  Json value = answer;
  for (const Step& step : steps_) {
    const AnswerFilter& filter = step.filter;
    const std::string text = value.is_string() ? value.get<std::string>() : std::string();
    switch (filter.kind) {
      case AnswerFilter::Kind::regex:
        value = selected(step, text);
        break;
      case AnswerFilter::Kind::strip:
        value = std::string(without_space(text));
        break;
      case AnswerFilter::Kind::lower:
        value = in_case(text, &utf8proc_tolower);
        break;
      case AnswerFilter::Kind::upper:
        value = in_case(text, &utf8proc_toupper);
        break;
      case AnswerFilter::Kind::map:
        value = filter.words.contains(text) ? filter.words[text] : filter.otherwise;
        break;
      case AnswerFilter::Kind::take_first:
        break;
    }
  }
  return value;
}

AnswerMatch::AnswerMatch(const ExactMatch& options, const std::string& where) : options_(options) {
  for (const std::string& pattern : options.ignored) {
    ignored_.emplace_back(pattern, where);
  }
}

std::string AnswerMatch::compared(std::string text) const {
  for (const Pattern& pattern : ignored_) {
    text = pattern.without(text);
  }
  if (options_.ignore_case) {
    text = in_case(text, &utf8proc_tolower);
  }
  if (options_.ignore_punctuation) {
    text = without_bytes(std::move(text), "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~");
  }
  return options_.ignore_numbers ? without_bytes(std::move(text), "0123456789") : text;
}

bool AnswerMatch::is_one_of(const std::string& answer,
                            const std::vector<std::string>& right) const {
  const std::string given = compared(answer);
  return std::ranges::any_of(right, [&](const std::string& one) { return compared(one) == given; });
}

}  // namespace tessera::evaluation
