#define PCRE2_CODE_UNIT_WIDTH 8
#include "regex.hpp"

#include <fmt/format.h>
#include <pcre2.h>

#include <mutex>
#include <tessera/shown.hpp>
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
  const std::string own = pcre2_pattern(pattern, dialect, where);
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C |
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

void Regex::find_all(std::string_view text, std::uint32_t shift, std::vector<Match>& parts) const {
  State::Work work = state_->take();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(work.data.get());
  const auto add = [&](std::size_t begin, std::size_t end, bool matches) {
    parts.push_back({static_cast<std::uint32_t>(begin) + shift,
                     static_cast<std::uint32_t>(end) + shift, matches});
  };
  std::size_t from = 0;  // where the search continues
  std::size_t done = 0;  // up to here parts are added
  bool empty_allowed = true;
  while (from <= text.size()) {
    const std::uint32_t options = PCRE2_NO_UTF_CHECK;
    int result = state_->compiled ? pcre2_jit_match(state_->code.get(), subject, text.size(), from,
                                                    options, work.data.get(), work.context.get())
                                  : PCRE2_ERROR_JIT_STACKLIMIT;
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      result = pcre2_match(state_->code.get(), subject, text.size(), from, options | PCRE2_NO_JIT,
                           work.data.get(), work.context.get());
    }
    if (result == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (result < 0) {
      state_->give(std::move(work));
      fail_input({.thing = "tokenizer",
                  .wrong = fmt::format("the regular expression '{}' cannot be matched: {}",
                                       shown(state_->pattern), pcre2_message(result)),
                  .advice = "split the text"});
    }
    const std::size_t begin = bounds[0];
    const std::size_t end = bounds[1];
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
  state_->give(std::move(work));
}

}  // namespace tessera::tokenize
