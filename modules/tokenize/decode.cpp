#include "decode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "byte_level.hpp"
#include "fields.hpp"
#include "regex.hpp"
#include "text.hpp"
#include "utf8.hpp"

import tessera.base;

namespace tessera::tokenize {
namespace {

using Json = nlohmann::json;
using Tokens = std::vector<std::string>;

std::string replaced(const std::string& text, std::string_view from, std::string_view to,
                     std::size_t most = std::string::npos) {
  std::size_t next = find_bytes(text, from);
  if (next == std::string::npos) {
    return text;
  }
  std::string out;
  std::size_t at = 0;
  for (; next != std::string::npos && out.size() <= most; next = find_bytes(text, from, at)) {
    out.append(text, at, next - at);
    out += to;
    at = next + from.size();
  }
  return out.append(text, at);
}

/// Counts what a step writes.
class OutputLimit {
 public:
  OutputLimit(std::size_t most, const std::string& where) : most_(most), where_(where) {}
  void add(std::size_t bytes) {
    bytes_ += bytes;
    if (bytes_ > most_) {
      fail_input({.thing = where_,
                  .wrong = fmt::format("the texts of the tokens grow to more than {} bytes", most_),
                  .advice = "use another tokenizer"});
    }
  }

 private:
  std::size_t most_;
  const std::string& where_;
  std::size_t bytes_ = 0;
};

class ByteLevel final : public Decoder {
 public:
  void apply(Tokens& tokens, std::size_t /*most*/) const override {
    std::string bytes;
    for (const std::string& token : tokens) {
      bytes += byte_level_decoded(token);
    }
    tokens.assign(1, repaired(bytes));
  }
};

class ByteFallback final : public Decoder {
 public:
  void apply(Tokens& tokens, std::size_t /*most*/) const override {
    Tokens out;
    std::string bytes;
    const auto end_bytes = [&] {
      if (valid_bytes(bytes) == bytes.size()) {
        if (!bytes.empty()) {
          out.push_back(bytes);
        }
      } else {
        out.insert(out.end(), bytes.size(), std::string(replacement_character));
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      const int value = byte_of(token);
      if (value >= 0) {
        bytes += static_cast<char>(value);
      } else {
        end_bytes();
        out.push_back(std::move(token));
      }
    }
    end_bytes();
    tokens = std::move(out);
  }

 private:
  /// Byte of "<0x41>"; -1 of another token.
  static int byte_of(const std::string& token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') {
      return -1;
    }
    int value = 0;
    for (const char c : token.substr(3, 2)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                               : -1;
      if (digit < 0) {
        return -1;
      }
      value = value * 16 + digit;
    }
    return value;
  }
};

class Fuse final : public Decoder {
 public:
  void apply(Tokens& tokens, std::size_t /*most*/) const override {
    std::string all;
    for (const std::string& token : tokens) {
      all += token;
    }
    tokens.assign(1, all);
  }
};

class Strip final : public Decoder {
 public:
  Strip(char32_t content, std::int64_t start, std::int64_t stop) : start_(start), stop_(stop) {
    append_utf8(content_, content);
  }
  void apply(Tokens& tokens, std::size_t /*most*/) const override {
    for (std::string& token : tokens) {
      std::size_t begin = 0;
      std::size_t end = token.size();
      for (std::int64_t i = 0;
           i < start_ && std::string_view(token).substr(begin).starts_with(content_); ++i) {
        begin += content_.size();
      }
      for (std::int64_t i = 0;
           i < stop_ && std::string_view(token).substr(begin, end - begin).ends_with(content_);
           ++i) {
        end -= content_.size();
      }
      token = token.substr(begin, end - begin);
    }
  }

 private:
  std::string content_;
  std::int64_t start_, stop_;
};

class Replace final : public Decoder {
 public:
  Replace(Regex pattern, std::string content, std::string where)
      : pattern_(std::move(pattern)), content_(std::move(content)), where_(std::move(where)) {}
  void apply(Tokens& tokens, std::size_t most) const override {
    OutputLimit written(most, where_);
    Allowance allowance(most / 32);
    std::vector<Match> parts;
    for (std::string& token : tokens) {
      parts.clear();
      pattern_.find_all(token, 0, allowance, parts);
      std::string out;
      for (const Match& part : parts) {
        const std::string_view own =
            part.matches ? std::string_view(content_)
                         : std::string_view(token).substr(part.begin, part.end - part.begin);
        written.add(own.size());
        out += own;
      }
      token = std::move(out);
    }
  }

 private:
  Regex pattern_;
  std::string content_;
  std::string where_;
};

class ReplaceText final : public Decoder {
 public:
  ReplaceText(std::string from, std::string to, std::string where)
      : from_(std::move(from)), to_(std::move(to)), where_(std::move(where)) {}
  void apply(Tokens& tokens, std::size_t most) const override {
    OutputLimit written(most, where_);
    for (std::string& token : tokens) {
      token = replaced(token, from_, to_, most);
      written.add(token.size());
    }
  }

 private:
  std::string from_, to_, where_;
};

class Metaspace final : public Decoder {
 public:
  Metaspace(char32_t replacement, bool drops_first) : drops_first_(drops_first) {
    append_utf8(replacement_, replacement);
  }
  void apply(Tokens& tokens, std::size_t /*most*/) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = replaced(tokens[i], replacement_, i == 0 && drops_first_ ? "" : " ");
    }
  }

 private:
  std::string replacement_;
  bool drops_first_;
};

class WordPiece final : public Decoder {
 public:
  WordPiece(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void apply(Tokens& tokens, std::size_t /*most*/) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) {
        tokens[i] =
            tokens[i].starts_with(prefix_) ? tokens[i].substr(prefix_.size()) : " " + tokens[i];
      }
      if (cleanup_) {
        for (const auto& [from, to] : cleaned) {
          tokens[i] = replaced(tokens[i], from, to);
        }
      }
    }
  }

 private:
  static constexpr std::pair<std::string_view, std::string_view> cleaned[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  std::string prefix_;
  bool cleanup_;
};

class EndOfWord final : public Decoder {
 public:
  explicit EndOfWord(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(Tokens& tokens, std::size_t /*most*/) const override {
    for (std::size_t i = 0; i < tokens.size() && !suffix_.empty(); ++i) {
      tokens[i] = replaced(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
    }
  }

 private:
  std::string suffix_;
};

void read_replace(Fields& fields, Decoders& out) {
  Fields pattern(fields.object("pattern"), fields.path("pattern"));
  std::string content = fields.text("content");
  if (pattern.has("Regex")) {
    out.steps.push_back(std::make_unique<Replace>(
        Regex(pattern.text("Regex"), Dialect::ruby, pattern.path("Regex")), std::move(content),
        fields.where()));
  } else if (std::string from = pattern.text("String"); !from.empty()) {
    out.steps.push_back(
        std::make_unique<ReplaceText>(std::move(from), std::move(content), fields.where()));
  }
  pattern.finish();
}

void read_metaspace(Fields& fields, Decoders& out) {
  const char32_t replacement = fields.character("replacement");
  bool drops_first = !fields.has("prepend_scheme") ||
                     fields.choice("prepend_scheme", {"always", "first", "never"}) != "never";
  drops_first = fields.flag("add_prefix_space", true) && drops_first;
  fields.ignore({"str_rep", "split"});
  out.steps.push_back(std::make_unique<Metaspace>(replacement, drops_first));
}

void read(const Json& json, const std::string& where, Decoders& out) {
  Fields fields(json, where);
  const std::string type =
      fields.choice("type", {"Sequence", "ByteLevel", "Metaspace", "ByteFallback", "Fuse", "Strip",
                             "Replace", "WordPiece", "BPEDecoder"});
  if (type == "Sequence") {
    const Json& list = fields.list("decoders");
    for (std::size_t i = 0; i < list.size(); ++i) {
      read(list[i], fmt::format("{}.decoders[{}]", where, i), out);
    }
    fields.finish();
    return;
  }
  out.only_byte_level = type == "ByteLevel" && out.steps.empty();
  if (type == "ByteLevel") {
    fields.ignore({"add_prefix_space", "trim_offsets", "use_regex"});
    out.steps.push_back(std::make_unique<ByteLevel>());
  } else if (type == "Metaspace") {
    read_metaspace(fields, out);
  } else if (type == "ByteFallback") {
    out.steps.push_back(std::make_unique<ByteFallback>());
  } else if (type == "Fuse") {
    out.steps.push_back(std::make_unique<Fuse>());
  } else if (type == "Strip") {
    const char32_t content = fields.character("content");
    const std::int64_t start = fields.integer("start", 0, 1 << 20, 0);
    out.steps.push_back(
        std::make_unique<Strip>(content, start, fields.integer("stop", 0, 1 << 20, 0)));
  } else if (type == "Replace") {
    read_replace(fields, out);
  } else if (type == "WordPiece") {
    std::string prefix = fields.text("prefix", "##");
    out.steps.push_back(
        std::make_unique<WordPiece>(std::move(prefix), fields.flag("cleanup", true)));
  } else {
    out.steps.push_back(std::make_unique<EndOfWord>(fields.text("suffix", "</w>")));
  }
  fields.finish();
  if (out.steps.size() > most_steps) {
    fail_input(
        {.thing = where,
         .wrong = fmt::format("there are too many steps (expected at most {})", most_steps)});
  }
}

}  // namespace

std::string byte_level_decoded(const std::string& token) {
  return byte_level_bytes(token).value_or(token);
}

Decoders read_decoders(const Json& json, const std::string& where) {
  Decoders out;
  if (!json.is_null()) {
    out.present = true;
    read(json, where, out);
  }
  return out;
}

}  // namespace tessera::tokenize
