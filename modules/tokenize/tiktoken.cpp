module;
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/input_file.hpp>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>

#include "fields.hpp"
#include "patterns.hpp"
#include "pipeline.hpp"
#include "stored_bytes.hpp"
#include "utf8.hpp"
#include "vocabulary.hpp"
module tessera.tokenize;

import tessera.base;
import tessera.options;
import :built_in;

namespace tessera::tokenize {
namespace {

// Patterns, from tiktoken_ext/openai_public.py, llama_models and Qwen's tokenizer.
constexpr std::string_view gpt2_pattern =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)";
constexpr std::string_view cl100k_pattern =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr std::string_view qwen35_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

using Names = std::vector<std::pair<std::string, TokenId>>;

/// `count` names with a number, from `first` on.
void add_numbered(Names& names, std::string_view before, int first, int count) {
  for (int i = first; i < first + count; ++i) {
    names.emplace_back(fmt::format("{}{}|>", before, i), 0);
  }
}

/// Ids from `first` on.
Names numbered(Names names, TokenId first) {
  for (auto& [name, id] : names) {
    id = first++;
  }
  return names;
}

Names named(std::initializer_list<std::string_view> texts) {
  Names names;
  for (const std::string_view text : texts) {
    names.emplace_back(text, 0);
  }
  return names;
}

Names llama3_names() {
  Names names = named({"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
                       "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|step_id|>",
                       "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
                       "<|python_tag|>", "<|image|>"});
  add_numbered(names, "<|reserved_special_token_", 2, 244);
  return numbered(std::move(names), 128000);
}

Names llama4_names() {
  constexpr std::string_view text = "<|text_post_train_reserved_special_token_";
  constexpr std::string_view vision = "<|vision_reserved_special_token_";
  constexpr std::string_view reasoning = "<|reasoning_reserved_special_token_";
  Names names = named({"<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>",
                       "<|fim_suffix|>", "<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>",
                       "<|step|>"});
  const auto add = [&](std::initializer_list<std::string_view> more) {
    for (const std::string_view one : more) {
      names.emplace_back(one, 0);
    }
  };
  add_numbered(names, text, 0, 6);
  add({"<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"});
  add_numbered(names, text, 8, 61);
  add({"<|image_start|>", "<|image_end|>"});
  add_numbered(names, vision, 0, 2);
  add({"<|tile_x_separator|>", "<|tile_y_separator|>"});
  add_numbered(names, vision, 2, 4);
  add({"<|image|>"});
  add_numbered(names, vision, 6, 1);
  add({"<|patch|>"});
  add_numbered(names, vision, 7, 1041);
  add_numbered(names, reasoning, 0, 8);
  add({"<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"});
  add_numbered(names, "<|reserved_special_token_", 0, 2048 - static_cast<int>(names.size()));
  return numbered(std::move(names), 200000);
}

Names qwen_names() {
  Names names = named({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  add_numbered(names, "<|extra_", 0, 205);
  return numbered(std::move(names), 151643);
}

Names qwen35_names() {
  return numbered(named({"<|endoftext|>",
                         "<|im_start|>",
                         "<|im_end|>",
                         "<|object_ref_start|>",
                         "<|object_ref_end|>",
                         "<|box_start|>",
                         "<|box_end|>",
                         "<|quad_start|>",
                         "<|quad_end|>",
                         "<|vision_start|>",
                         "<|vision_end|>",
                         "<|vision_pad|>",
                         "<|image_pad|>",
                         "<|video_pad|>",
                         "<tool_call>",
                         "</tool_call>",
                         "<|fim_prefix|>",
                         "<|fim_middle|>",
                         "<|fim_suffix|>",
                         "<|fim_pad|>",
                         "<|repo_name|>",
                         "<|file_sep|>",
                         "<tool_response>",
                         "</tool_response>",
                         "<think>",
                         "</think>",
                         "<|audio_start|>",
                         "<|audio_end|>",
                         "<tts_pad>",
                         "<tts_text_bos>",
                         "<tts_text_eod>",
                         "<tts_text_bos_single>",
                         "<|audio_pad|>"}),
                  248044);
}

/// Settings that go with a file of ranks, which has no word about them.
struct EncodingSettings {
  std::string_view name;
  std::size_t ranks;  // by which the file is known
  std::string_view pattern;
  Names (*names)();
  std::string_view bos, eos;
  bool composes = false;  // the text is normalized to NFC
};

const EncodingSettings forms[] = {
    {"gpt2", 50256, gpt2_pattern, [] { return Names{{"<|endoftext|>", 50256}}; }, "",
     "<|endoftext|>"},
    {"cl100k", 100256, cl100k_pattern,
     [] {
       return Names{{"<|endoftext|>", 100257},
                    {"<|fim_prefix|>", 100258},
                    {"<|fim_middle|>", 100259},
                    {"<|fim_suffix|>", 100260},
                    {"<|endofprompt|>", 100276}};
     },
     "", "<|endoftext|>"},
    {"o200k", 199998, o200k_pattern,
     [] { return Names{{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}; }, "",
     "<|endoftext|>"},
    {"llama3", 128000, llama3_pattern, llama3_names, "<|begin_of_text|>", "<|end_of_text|>"},
    {"llama4", 200000, o200k_pattern, llama4_names, "<|begin_of_text|>", "<|end_of_text|>"},
    {"qwen", 151643, qwen_pattern, qwen_names, "", "<|endoftext|>", true},
    {"qwen3.5", 248044, qwen35_pattern, qwen35_names, "", "<|endoftext|>", true},
};

/// The bytes of a line and their rank; nothing where it is not such a line.
std::optional<std::pair<std::string_view, std::int64_t>> parse_line(std::string_view line) {
  const std::size_t space = line.find(' ');
  std::int64_t rank = 0;
  if (space == 0 || space == std::string_view::npos) {
    return std::nullopt;
  }
  const char* const end = line.data() + line.size();
  const auto parsed = std::from_chars(line.data() + space + 1, end, rank);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return std::nullopt;
  }
  return std::pair(line.substr(0, space), rank);
}

/// Above the ranks that a file of so many bytes may have: memory is taken for all up to the
/// highest.
std::int64_t most_ranks(std::size_t file_bytes) {
  return std::clamp(static_cast<std::int64_t>(file_bytes), std::int64_t{1} << 16, most_ids);
}

void add_rank(std::vector<std::string>& ranks, std::int64_t rank, std::string bytes,
              const std::string& where, std::int64_t most) {
  if (rank < 0 || rank >= most) {
    fail_input({.thing = where,
                .wrong = fmt::format("the rank {} is not valid", rank),
                .expected = fmt::format("0 to {}", most - 1)});
  }
  const auto at = static_cast<std::size_t>(rank);
  ranks.resize(std::max(ranks.size(), at + 1));
  if (bytes.empty() || !ranks[at].empty()) {
    fail_input({.thing = where,
                .wrong = bytes.empty() ? "a token has no bytes"
                                       : fmt::format("the rank {} is there twice", rank)});
  }
  ranks[at] = std::move(bytes);
}

std::vector<std::string> read_ranks(const std::string& file) {
  const std::string text = input_text(file);
  std::vector<std::string> ranks;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (line.empty()) {
      continue;
    }
    const std::string where = fmt::format("{}:{}", file, number);
    const auto parsed = parse_line(line);
    if (!parsed) {
      fail_input(
          {.thing = where,
           .wrong = fmt::format("'{}' is not a token in base64 and its rank", shown(line, 40))});
    }
    add_rank(ranks, parsed->second, bytes_in_base64(parsed->first, where), where,
             most_ranks(text.size()));
  }
  return ranks;
}

/// Byte pair encoding by ranks, and special tokens beside it.
class TiktokenTokenizer final : public Tokenizer {
 public:
  TiktokenTokenizer(const std::string& file, PluginOptions& options,
                    const FolderDefaults& defaults) {
    if (file.ends_with(".json")) {
      read_tekken(file, options, defaults);
    } else {
      read_ranks_file(file, options, defaults);
    }
  }

  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(tokens_.size()); }
  std::optional<TokenId> id(std::string_view token) const override {
    if (const auto special = special_ids_.find(token); special != special_ids_.end()) {
      return special->second;
    }
    const auto rank = pipeline_.model->find(token);
    return rank ? std::optional(*rank + shift_) : std::nullopt;
  }
  std::optional<std::string> token(TokenId id) const override {
    return id >= 0 && id < vocab_size() ? tokens_[static_cast<std::size_t>(id)] : std::nullopt;
  }
  bool is_special(TokenId id) const override {
    return id >= 0 && id < vocab_size() && special_[static_cast<std::size_t>(id)];
  }
  SpecialTokens special_tokens() const override { return roles_; }

  void encode_to(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& ids,
                 std::vector<ByteRange>* offsets) const override {
    std::vector<Source> sources;
    TokenSink sink{ids, offsets == nullptr ? nullptr : &sources};
    if (options.add_special && add_bos_) {
      sink.add(*roles_.bos, {0, 0});
    }
    const std::size_t first = ids.size();
    pipeline_.encode(text, options.parse_special, sink);
    if (shift_ > 0) {  // special tokens have their own ids already, below those of the ranks
      for (std::size_t i = first; i < ids.size(); ++i) {
        ids[i] = ids[i] >= special_base ? ids[i] - special_base : ids[i] + shift_;
      }
    }
    if (options.add_special && add_eos_) {
      const auto size = static_cast<std::uint32_t>(text.size());
      sink.add(*roles_.eos, {size, size});
    }
    if (offsets != nullptr) {
      for (const Source& source : sources) {
        offsets->push_back({source.begin, source.end});
      }
    }
  }

  std::string decode(std::span<const TokenId> ids, bool skip_special) const override {
    std::string bytes;
    for (const TokenId id : ids) {
      if (id < 0 || id >= vocab_size() || !tokens_[static_cast<std::size_t>(id)]) {
        fail_input({.thing = "tokenizer",
                    .wrong = fmt::format("there is no token {}", id),
                    .expected = fmt::format("ids of the vocabulary, below {}", vocab_size())});
      }
      if (!skip_special || !special_[static_cast<std::size_t>(id)]) {
        bytes += *tokens_[static_cast<std::size_t>(id)];
      }
    }
    return valid_bytes(bytes) == bytes.size() ? bytes : repaired(bytes);
  }

 private:
  /// Base of a special token's id within the pipeline, where ranks do not begin at id 0.
  static constexpr TokenId special_base = 1 << 30;

  void read_ranks_file(const std::string& file, PluginOptions& options,
                       const FolderDefaults& defaults) {
    std::vector<std::string> ranks = read_ranks(file);
    const auto count = static_cast<std::size_t>(
        std::ranges::count_if(ranks, [](const std::string& rank) { return !rank.empty(); }));
    const std::string pattern = options.text("pattern", "");
    const EncodingSettings* form = std::ranges::find_if(forms, [&](const EncodingSettings& one) {
      return pattern.empty() ? one.ranks == count : one.name == pattern;
    });
    if (form == std::end(forms)) {
      form = nullptr;
    }
    if (form == nullptr && pattern.empty()) {
      fail_input({.thing = file,
                  .wrong = fmt::format("nothing in it says how a text is divided into words, and "
                                       "no form with {} ranks is known",
                                       count),
                  .advice = "set the option pattern to gpt2, cl100k, o200k, llama3, llama4, qwen, "
                            "qwen3.5, or to a regular expression"});
    }
    Names names;
    const std::vector<std::string> given = options.texts("special_tokens");
    if (!given.empty()) {
      for (const std::string& name : given) {
        names.emplace_back(name, 0);
      }
      names = numbered(std::move(names), static_cast<TokenId>(ranks.size()));
    } else if (form != nullptr) {
      names = form->names();
    }
    const bool known = form != nullptr && given.empty();
    if (form != nullptr && form->composes) {
      pipeline_.normalizers = read_normalizers({{"type", "NFC"}}, file);
    }
    build(std::move(ranks), 0, names, form == nullptr ? std::string_view(pattern) : form->pattern,
          file);
    const std::string bos = options.text("bos", known ? std::string(form->bos) : "");
    const std::string eos = options.text("eos", known ? std::string(form->eos) : "");
    set_roles(bos, eos, options, defaults, file);
  }

  void read_tekken(const std::string& file, PluginOptions& options,
                   const FolderDefaults& defaults) {
    const ParsedJson parsed = read_json_object(file);
    if (!parsed.problem.empty()) {
      fail_input({.thing = file, .wrong = parsed.problem});
    }
    Fields fields(parsed.value, file + ": tekken");
    Fields config(fields.object("config"), fields.path("config"));
    const std::string pattern = config.text("pattern");
    const std::int64_t specials = config.integer("default_num_special_tokens", 0, 1 << 20, 1000);
    const std::int64_t size = config.integer("default_vocab_size", specials, most_ids, 131072);
    const nlohmann::json& list = fields.list("vocab");
    std::vector<std::string> ranks;
    const std::int64_t most = most_ranks(std::filesystem::file_size(file));
    for (std::size_t i = 0; i < list.size() && static_cast<std::int64_t>(i) < size - specials;
         ++i) {
      Fields entry(list[i], fmt::format("{}[{}]", fields.path("vocab"), i));
      add_rank(ranks, entry.integer("rank", 0, most_ids - 1, -1),
               bytes_in_base64(entry.text("token_bytes"), entry.where()), entry.where(), most);
    }
    build(std::move(ranks), static_cast<TokenId>(specials), tekken_names(fields, specials), pattern,
          file);
    set_roles("<s>", "</s>", options, defaults, file);
  }

  /// The special tokens of a tekken.json; those of the first versions are known.
  static Names tekken_names(Fields& fields, std::int64_t count) {
    Names names;
    if (fields.has("special_tokens")) {
      const nlohmann::json& list = fields.list("special_tokens");
      for (std::size_t i = 0; i < list.size(); ++i) {
        Fields entry(list[i], fmt::format("{}[{}]", fields.path("special_tokens"), i));
        const std::int64_t rank = entry.integer("rank", 0, count - 1, -1);
        names.emplace_back(entry.text("token_str"), static_cast<TokenId>(rank));
        if (rank < 0) {
          entry.wrong("rank", "the token's id");
        }
      }
    } else {
      names = numbered(named({"<unk>",
                              "<s>",
                              "</s>",
                              "[INST]",
                              "[/INST]",
                              "[AVAILABLE_TOOLS]",
                              "[/AVAILABLE_TOOLS]",
                              "[TOOL_RESULTS]",
                              "[/TOOL_RESULTS]",
                              "[TOOL_CALLS]",
                              "[IMG]",
                              "<pad>",
                              "[IMG_BREAK]",
                              "[IMG_END]",
                              "[PREFIX]",
                              "[MIDDLE]",
                              "[SUFFIX]",
                              "[SYSTEM_PROMPT]",
                              "[/SYSTEM_PROMPT]",
                              "[TOOL_CONTENT]"}),
                       0);
    }
    for (auto id = static_cast<TokenId>(names.size()); id < count; ++id) {
      names.emplace_back(fmt::format("<SPECIAL_{}>", id), id);
    }
    return names;
  }

  void build(std::vector<std::string> ranks, TokenId shift, const Names& names,
             std::string_view pattern, const std::string& file) {
    shift_ = shift;
    pipeline_.model = ranked_bytes(std::move(ranks), file);
    pipeline_.pre_tokenizers.push_back(
        split_isolated(Regex(pattern, Dialect::rust, file + ": pattern")));
    const auto& model_tokens = pipeline_.model->tokens();
    tokens_.resize(static_cast<std::size_t>(shift));
    tokens_.insert(tokens_.end(), model_tokens.begin(), model_tokens.end());
    special_.resize(tokens_.size());
    for (const auto& [name, id] : names) {
      const auto at = static_cast<std::size_t>(id);
      if (at >= tokens_.size()) {
        tokens_.resize(at + 1);
        special_.resize(at + 1);
      }
      if (tokens_[at] || !special_ids_.emplace(name, id).second) {
        fail_input(
            {.thing = file,
             .wrong = tokens_[at]
                          ? fmt::format("the special token '{}' has the id {} of another token",
                                        shown(name), id)
                          : fmt::format("the special token '{}' is there twice", shown(name))});
      }
      tokens_[at] = name;
      special_[at] = true;
      // Where a text is normalized, that is done before these tokens are looked for.
      (pipeline_.normalizers.empty() ? pipeline_.added : pipeline_.normalized_added)
          .add({.content = name, .id = shift > 0 ? id + special_base : id, .special = true}, name);
    }
  }

  void set_roles(const std::string& bos, const std::string& eos, PluginOptions& options,
                 const FolderDefaults& defaults, const std::string& file) {
    const auto role = [&](const std::string& name) -> std::optional<TokenId> {
      if (name.empty()) {
        return std::nullopt;
      }
      const auto found = id(name);
      if (!found) {
        fail_input({.thing = file, .wrong = fmt::format("there is no token '{}'", shown(name))});
      }
      return found;
    };
    roles_.bos = role(bos);
    roles_.eos = role(eos);
    for (const char* pad : {"<|finetune_right_pad_id|>", "<|finetune_right_pad|>", "<pad>"}) {
      roles_.pad = roles_.pad ? roles_.pad : id(pad);
    }
    add_bos_ = options.flag("add_bos", defaults.add_bos.value_or(roles_.bos.has_value()));
    add_eos_ = options.flag("add_eos", defaults.add_eos.value_or(false));
    if ((add_bos_ && !roles_.bos) || (add_eos_ && !roles_.eos)) {
      options.refuse(
          fmt::format("{} is true, and no token is known as {}; set the option {}",
                      add_bos_ && !roles_.bos ? "add_bos" : "add_eos",
                      add_bos_ && !roles_.bos ? "the beginning of a text" : "the end of a text",
                      add_bos_ && !roles_.bos ? "bos" : "eos"));
    }
  }

  Pipeline pipeline_;
  TokenId shift_ = 0;  // the id of rank 0
  std::vector<std::optional<std::string>> tokens_;
  std::vector<bool> special_;
  std::map<std::string, TokenId, std::less<>> special_ids_;
  SpecialTokens roles_;
  bool add_bos_ = false, add_eos_ = false;
};

}  // namespace

bool is_tiktoken(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string line;
  line.resize(200);
  stream.read(line.data(), 200);
  line.resize(static_cast<std::size_t>(std::max<std::streamsize>(stream.gcount(), 0)));
  const std::size_t end = line.find('\n');
  return end != std::string::npos && parse_line(std::string_view(line).substr(0, end)).has_value();
}

std::unique_ptr<Tokenizer> tiktoken_tokenizer(const std::string& file, PluginOptions& options,
                                              const FolderDefaults& defaults) {
  return std::make_unique<TiktokenTokenizer>(file, options, defaults);
}

}  // namespace tessera::tokenize
