#define PCRE2_CODE_UNIT_WIDTH 8
#include "regex.hpp"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <tessera/shown.hpp>
#include <tessera/utf8.hpp>
#include <utility>

#include "utf8.hpp"

import tessera.base;

namespace tessera::tokenize {
namespace {

// Members of a class. PCRE2's own \s includes U+180E, and its own \w differs between versions.
constexpr std::string_view space_members = R"(\x{9}-\x{d}\x{20}\x{85}\p{Z})";
constexpr std::string_view word_members =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
// Members of which the two engines have one group each, beside what both have.
constexpr std::string_view ruby_members = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";
constexpr std::string_view rust_members = R"(\x{200C}\x{200D})";
constexpr std::string_view hex_members = "0-9A-Fa-f";

// An attempt to match at one place may take so many steps without being counted: usual patterns
// take less than this, so the work is proportional to the text.
constexpr std::uint32_t free_steps = 1000;
constexpr std::size_t places_at_once = 2048;  // between looks at the clock
constexpr std::uint32_t most_heap = 65536;    // KiB, where the pattern is interpreted

class Translator {
 public:
  Translator(std::string_view pattern, Dialect dialect, const std::string& where)
      : pattern_(pattern), dialect_(dialect), where_(where) {}

  std::string translate() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_member(c);
      } else if (c == '[') {
        open_class();
      } else if (c == '(' && dialect_ == Dialect::ruby) {
        open_group();
      } else {
        out_ += c;
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  void open_class() {
    in_class_ = true;
    out_ += '[';
    ++at_;
    if (at_ < pattern_.size() && pattern_[at_] == '^') {
      out_ += '^';
      ++at_;
    }
    if (at_ < pattern_.size() && pattern_[at_] == ']') {
      out_ += "\\]";
      ++at_;
    }
  }

  void class_member(char c) {
    if (c == '[') {
      const std::size_t end = pattern_.find(":]", at_);
      if (pattern_.substr(at_, 2) != "[:" || end == std::string_view::npos) {
        refuse("a class within a class");
      }
      out_ += pattern_.substr(at_, end + 2 - at_);
      at_ = end + 2;
      return;
    }
    if (pattern_.substr(at_, 2) == "&&") {
      refuse("the intersection of classes (&&)");
    }
    in_class_ = c != ']';
    out_ += c;
    ++at_;
  }

  /// Ruby's (?m) lets the dot match line breaks, which is (?s) elsewhere.
  void open_group() {
    out_ += '(';
    ++at_;
    if (pattern_.substr(at_, 1) != "?") {
      return;
    }
    std::size_t end = at_ + 1;
    while (end < pattern_.size() &&
           std::string_view("imx-").find(pattern_[end]) != std::string_view::npos) {
      ++end;
    }
    if (end == at_ + 1 || end == pattern_.size() ||
        (pattern_[end] != ')' && pattern_[end] != ':')) {
      return;
    }
    for (; at_ < end; ++at_) {
      out_ += pattern_[at_] == 'm' ? 's' : pattern_[at_];
    }
  }

  void members(std::string_view of, bool negated) {
    if (!in_class_) {
      out_ += negated ? "[^" : "[";
      out_ += of;
      out_ += ']';
    } else if (!negated) {
      out_ += of;
    } else if (of == space_members) {
      out_ += "\\S\\x{180E}";
    } else {
      refuse("\\W or \\H within a class");
    }
  }

  void escape() {
    if (at_ + 1 == pattern_.size()) {
      out_ += '\\';
      ++at_;
      return;
    }
    const char c = pattern_[at_ + 1];
    at_ += 2;
    const std::string word = std::string(word_members) +
                             std::string(dialect_ == Dialect::rust ? rust_members : ruby_members);
    switch (c) {
      case 's':
      case 'S':
        members(space_members, c == 'S');
        break;
      case 'w':
      case 'W':
        members(word, c == 'W');
        break;
      case 'd':
        out_ += "\\p{Nd}";
        break;
      case 'D':
        out_ += "\\P{Nd}";
        break;
      case 'h':
      case 'H':
        if (dialect_ == Dialect::rust) {
          refuse(fmt::format("\\{}", c));
        }
        members(hex_members, c == 'H');
        break;
      case 'u':
        if (at_ < pattern_.size() && pattern_[at_] == '{') {
          out_ += "\\x";
        } else {
          out_ += fmt::format("\\x{{{}}}", pattern_.substr(at_, 4));
          at_ += std::min<std::size_t>(4, pattern_.size() - at_);
        }
        break;
      default:
        out_ += '\\';
        out_ += c;
    }
  }

  [[noreturn]] void refuse(std::string_view what) const {
    fail_input({.thing = where_,
                .wrong = fmt::format("{} is not supported in a regular expression (got '{}')", what,
                                     shown(pattern_))});
  }

  std::string_view pattern_;
  Dialect dialect_;
  const std::string& where_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct FreeStack {
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};
struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

std::string pcre2_pattern(std::string_view pattern, Dialect dialect, const std::string& where) {
  return Translator(pattern, dialect, where).translate();
}

struct Regex::State {
  /// Memory that one thread matches with.
  struct Work {
    std::unique_ptr<pcre2_match_data, FreeMatch> data;
    std::unique_ptr<pcre2_match_context, FreeContext> context;
    std::unique_ptr<pcre2_jit_stack, FreeStack> stack;
  };

  std::string pattern;
  std::string where;  // it is in the file
  std::unique_ptr<pcre2_code, FreeCode> code;
  bool compiled = false;  // to machine code
  std::mutex mutex;
  std::vector<Work> idle;

  Work take() {
    {
      const std::scoped_lock lock(mutex);
      if (!idle.empty()) {
        Work work = std::move(idle.back());
        idle.pop_back();
        return work;
      }
    }
    Work work;
    work.data.reset(pcre2_match_data_create(1, nullptr));
    work.context.reset(pcre2_match_context_create(nullptr));
    work.stack.reset(pcre2_jit_stack_create(32 * 1024, 4 * 1024 * 1024, nullptr));
    pcre2_jit_stack_assign(work.context.get(), nullptr, work.stack.get());
    pcre2_set_heap_limit(work.context.get(), most_heap);
    return work;
  }
  void give(Work work) {
    const std::scoped_lock lock(mutex);
    idle.push_back(std::move(work));
  }
};

Regex::Regex(std::string_view pattern, Dialect dialect, const std::string& where)
    : state_(std::make_shared<State>()) {
  state_->pattern = pattern;
  state_->where = where;
  const std::string own = pcre2_pattern(pattern, dialect, where);
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C |
                                PCRE2_USE_OFFSET_LIMIT |
                                (dialect == Dialect::ruby ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY);
  state_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(own.data()), own.size(), options,
                                   &error, &offset, context.get()));
  if (!state_->code) {
    fail_input({.thing = where,
                .wrong = fmt::format("'{}' is not a regular expression that PCRE2 accepts: {}",
                                     shown(pattern), pcre2_message(error))});
  }
  state_->compiled = pcre2_jit_compile(state_->code.get(), PCRE2_JIT_COMPLETE) == 0;
}

Regex Regex::literal(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c >= 0 && std::string_view(R"(\^$.|?*+()[]{}#-&~ )").find(c) != std::string_view::npos) {
      escaped += '\\';
    }
    escaped += c;
  }
  return Regex(escaped, Dialect::rust, "text");
}

/// Matches one text within an allowance.
class Regex::Search {
 public:
  Search(State& state, std::string_view text, Allowance& allowance)
      : state_(state), work_(state.take()), text_(text), allowance_(allowance) {}
  ~Search() { state_.give(std::move(work_)); }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  /// The first match that begins at or after `from`: a result of PCRE2.
  int next(std::size_t from) {
    while (true) {
      if (from >= last_) {
        go_on(from);
      }
      const int result = slow_ ? PCRE2_ERROR_MATCHLIMIT : quickly(from);
      if (is_limit(result)) {
        const int found = slowly(from);
        prepare();
        return found;
      }
      if (result != PCRE2_ERROR_NOMATCH || last_ == text_.size()) {
        return result;
      }
      from = last_;
    }
  }
  std::size_t begin() const { return bounds()[0]; }
  std::size_t end() const { return bounds()[1]; }

  [[noreturn]] void refuse(int result) const {
    const std::string why =
        is_limit(result) ? fmt::format("takes too many steps on a text of {} bytes", text_.size())
                         : "cannot be matched: " + pcre2_message(result);
    fail_input({.thing = state_.where,
                .wrong = fmt::format("the regular expression '{}' {}", shown(state_.pattern), why),
                .advice = "use another tokenizer, or split the text"});
  }

 private:
  PCRE2_SPTR subject() const { return reinterpret_cast<PCRE2_SPTR>(text_.data()); }
  const PCRE2_SIZE* bounds() const { return pcre2_get_ovector_pointer(work_.data.get()); }

  static bool is_limit(int result) {
    return result == PCRE2_ERROR_MATCHLIMIT || result == PCRE2_ERROR_DEPTHLIMIT ||
           result == PCRE2_ERROR_HEAPLIMIT;
  }
  static std::int64_t cpu_time() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
  /// The next places at which matches may begin. Machine code does not count what goes through
  /// characters: where it is 100 times as slow as usual patterns are, the rest is interpreted,
  /// which counts.
  void go_on(std::size_t from) {
    if (from == 0 && text_.size() > places_at_once) {
      begun_ = cpu_time();
    }
    slow_ = slow_ || (from > 0 &&
                      cpu_time() - begun_ > 20'000'000 + 5'000 * static_cast<std::int64_t>(from));
    last_ = std::min(from + places_at_once, text_.size());
    while (last_ < text_.size() && is_continuation(text_[last_])) {
      ++last_;
    }
    prepare();
  }
  void prepare() {
    pcre2_set_match_limit(work_.context.get(), free_steps);
    pcre2_set_offset_limit(work_.context.get(), last_);
  }

  int quickly(std::size_t from) {
    int result = PCRE2_ERROR_JIT_STACKLIMIT;
    if (state_.compiled) {
      result = pcre2_jit_match(state_.code.get(), subject(), text_.size(), from, PCRE2_NO_UTF_CHECK,
                               work_.data.get(), work_.context.get());
    }
    return result == PCRE2_ERROR_JIT_STACKLIMIT ? interpreted(from, 0) : result;
  }

  int interpreted(std::size_t from, std::uint32_t options) {
    return pcre2_match(state_.code.get(), subject(), text_.size(), from,
                       options | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, work_.data.get(),
                       work_.context.get());
  }

  /// One place after the other, with steps that are counted.
  int slowly(std::size_t from) {
    pcre2_set_offset_limit(work_.context.get(), text_.size());
    while (true) {
      const int result = at_place(from);
      if (result != PCRE2_ERROR_NOMATCH || from >= text_.size()) {
        return result;
      }
      from += character_at(text_, from).bytes;
    }
  }

  int at_place(std::size_t from) {
    for (std::int64_t steps = 100; allowance_.steps > 0; steps *= 8) {
      const std::int64_t taken = std::min(steps, allowance_.steps);
      allowance_.steps -= taken;
      pcre2_set_match_limit(work_.context.get(),
                            static_cast<std::uint32_t>(std::min<std::int64_t>(taken, 1U << 30)));
      const int result = interpreted(from, PCRE2_ANCHORED);
      if (!is_limit(result)) {
        return result;
      }
    }
    return PCRE2_ERROR_MATCHLIMIT;
  }

  State& state_;
  State::Work work_;
  std::string_view text_;
  Allowance& allowance_;
  std::int64_t begun_ = 0;  // nanoseconds
  std::size_t last_ = 0;    // matches are looked for up to here
  bool slow_ = false;
};

void Regex::find_all(std::string_view text, std::uint32_t shift, Allowance& allowance,
                     std::vector<Match>& parts) const {
  Search search(*state_, text, allowance);
  const auto add = [&](std::size_t begin, std::size_t end, bool matches) {
    parts.push_back({static_cast<std::uint32_t>(begin) + shift,
                     static_cast<std::uint32_t>(end) + shift, matches});
  };
  std::size_t from = 0;  // where the search continues
  std::size_t done = 0;  // up to here parts are added
  bool empty_allowed = true;
  while (from <= text.size()) {
    const int result = search.next(from);
    if (result == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (result < 0) {
      search.refuse(result);
    }
    const std::size_t begin = search.begin();
    const std::size_t end = search.end();
    if (begin == end) {
      // An empty match divides the text, except right after another match.
      if (begin > done || (begin == done && empty_allowed)) {
        if (begin > done) {
          add(done, begin, false);
        }
        add(begin, begin, true);
        done = begin;
      }
      if (begin >= text.size()) {
        break;
      }
      from = begin + character_at(text, begin).bytes;
      empty_allowed = true;
      continue;
    }
    if (begin > done) {
      add(done, begin, false);
    }
    add(begin, end, true);
    from = done = end;
    empty_allowed = false;
  }
  if (done < text.size()) {
    add(done, text.size(), false);
  }
}

}  // namespace tessera::tokenize
