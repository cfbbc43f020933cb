module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/gguf.hpp>
#include <tessera/input_file.hpp>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>

#include "tessera/content_hash.hpp"
module tessera.hub;

import tessera.base;
import tessera.ggml;
import tessera.options;
import tessera.tokenize;
import tessera.data;
import tessera.checkpoint;

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;

constexpr const char* bytes_kind = "bytes";
constexpr const char* no_options = "{}";

/// Of the file's content; where a model is in the same file, of what precedes its weights.
std::string file_hash(const std::string& path) {
  const data::DataFile file(path);
  const std::size_t size =
      is_gguf(path) ? std::min<std::size_t>(file.size(), read_gguf(path).bytes) : file.size();
  ContentHash hash;
  data::for_each_piece(file, size, [&](std::span<const std::byte> bytes) { hash.add(bytes); });
  return hash.hex();
}

/// Of a kind that needs no file.
ModelTokenizer of_kind(const std::string& kind, const std::string& options,
                       const std::string& where) {
  ModelTokenizer made{.kind = kind, .options = options};
  made.opened.kind = kind;
  made.opened.tokenizer = tokenize::make_tokenizer(kind, "", PluginOptions(options, where), where);
  made.opened.special = made.opened.tokenizer->special_tokens();
  return made;
}

ModelTokenizer of_path(const std::string& path, const std::string& options,
                       const std::string& where) {
  ModelTokenizer made{.options = options,
                      .opened = tokenize::open_tokenizer(path, PluginOptions(options, where))};
  made.kind = made.opened.kind;
  made.path = fs::absolute(made.opened.file).lexically_normal().string();
  made.hash = file_hash(made.path);
  made.template_name = fmt::format("chat template of {}", made.text());
  return made;
}

/// Of a model's folder, in which `own` shows that there is one.
ModelTokenizer of_folder(const std::string& folder, const std::string& own,
                         const std::string& options, const std::string& where) {
  try {
    return of_path(folder, options, where);
  } catch (const Error& error) {
    fail_input(
        {.thing = folder,
         .wrong = fmt::format("its own tokenizer ({}) cannot be used: {}", own, error.what()),
         .advice = "name another with data.tokenizer, or use data.tokens"});
  }
}

/// Kinds that need no file: built in, or of plugins.
bool needs_no_file(const std::string& name) {
  constexpr std::array<std::string_view, 4> of_files = {"gguf", "sentencepiece", "tiktoken",
                                                        "tokenizer.json"};
  const std::vector<std::string> kinds = tokenize::tokenizer_kinds();
  return std::ranges::find(kinds, name) != kinds.end() &&
         std::ranges::find(of_files, name) == of_files.end();
}

nlohmann::json member(const nlohmann::json& object, const char* name) {
  return object.is_object() && object.contains(name) ? object[name] : nlohmann::json();
}

std::string text_member(const nlohmann::json& object, const char* name) {
  const nlohmann::json value = member(object, name);
  return value.is_string() ? value.get<std::string>() : std::string();
}

}  // namespace

std::string ModelTokenizer::text() const {
  return path.empty() ? kind : fmt::format("{} of {}", kind, fs::path(path).parent_path().string());
}

std::string ModelTokenizer::identity() const {
  if (path.empty() && options == no_options) {
    return kind;
  }
  return fmt::format("{} {}{}", kind, hash, options == no_options ? "" : " " + options);
}

ModelTokenizer folder_tokenizer(const std::string& from, const std::string& options,
                                const std::string& where) {
  if (is_checkpoint(from)) {
    const auto stored = stored_tokenizer(CheckpointReader(from).meta(), from);
    return stored ? *stored : of_kind(bytes_kind, options, where);
  }
  std::error_code ignored;  // a folder that is not there: who reads the model says so
  const std::string own =
      fs::is_directory(from, ignored) || is_gguf(from) ? own_tokenizer_file(from) : std::string();
  return own.empty() ? of_kind(bytes_kind, options, where) : of_folder(from, own, options, where);
}

ModelTokenizer named_tokenizer(const std::string& name, const fs::path& folder,
                               const std::string& options, const std::string& where) {
  const fs::path path = folder / name;
  std::error_code ignored;
  if (!fs::exists(path, ignored) && !needs_no_file(name)) {
    const std::vector<std::string> kinds = tokenize::tokenizer_kinds();
    fail_input(
        {.wrong = fmt::format("there is no file or folder {}, and no kind of tokenizer "
                              "'{}'{}",
                              shown(path.string()), shown(name), did_you_mean(name, kinds))});
  }
  return needs_no_file(name) ? of_kind(name, options, where)
                             : of_path(path.lexically_normal().string(), options, where);
}

void add_end_tokens(ModelTokenizer& tokenizer, std::vector<std::string> tokens) {
  tokenize::SpecialTokens& special = tokenizer.opened.special;
  for (const std::string& token : tokens) {
    const auto id = tokenizer.opened.tokenizer->id(token);
    if (!id) {
      fail_input({.wrong = fmt::format("tokenizer '{}' has no token '{}'", tokenizer.text(),
                                       shown(token, 40))});
    }
    if (std::ranges::find(special.stop, *id) == special.stop.end()) {
      special.stop.push_back(*id);
    }
    special.eos = special.eos.value_or(*id);
  }
  tokenizer.end_tokens = std::move(tokens);
}

namespace {

data::SpecialText special_text(std::string_view name) {
  return name == "letters"  ? data::SpecialText::letters
         : name == "refuse" ? data::SpecialText::refuse
                            : data::SpecialText::read;
}

std::string_view name_of(data::SpecialText special) {
  return special == data::SpecialText::letters  ? "letters"
         : special == data::SpecialText::refuse ? "refuse"
                                                : "read";
}

}  // namespace

void set_template(ModelTokenizer& tokenizer, const std::string& file) {
  std::string text = input_text(file, std::size_t{1} << 28, "the chat template");
  if (text.empty()) {
    fail_input({.thing = file, .wrong = "the chat template is empty"});
  }
  tokenizer.opened.chat_template = std::move(text);
  tokenizer.template_name = file;
  tokenizer.own_template = true;
}

std::shared_ptr<const data::ChatTemplate> chat_template_of(const ModelTokenizer& tokenizer) {
  const std::string& text = tokenizer.opened.chat_template;
  return text.empty() ? nullptr
                      : std::make_shared<const data::ChatTemplate>(
                            text, tokenizer.template_name,
                            data::template_variables(tokenizer.opened, tokenizer.template_options));
}

std::string content_identity(const ModelTokenizer& tokenizer) {
  if (!tokenize::is_built_in_kind(tokenizer.kind)) {
    return "";  // its code is a plugin's, of any version
  }
  const tokenize::SpecialTokens& special = tokenizer.opened.special;
  std::string ids;
  for (const auto& id : {special.bos, special.eos, special.pad, special.unknown}) {
    ids += fmt::format("{},", id.value_or(-1));
  }
  const std::string text =
      fmt::format("{}\n{}\n{}[{}]\n{}\n{}", tokenizer.identity(), tokenizer.vocab(), ids,
                  fmt::join(special.stop, ","),
                  data::template_variables(tokenizer.opened, tokenizer.template_options),
                  tokenizer.opened.chat_template);
  return content_hash(std::as_bytes(std::span(text)));
}

std::shared_ptr<const ModelTokenizer> limited(std::shared_ptr<const ModelTokenizer> tokenizer,
                                              std::int64_t vocab) {
  if (!tokenizer || tokenizer->vocab() <= vocab) {
    return tokenizer;
  }
  ModelTokenizer out = *tokenizer;
  out.opened = tokenize::limited(tokenizer->opened, vocab, "the model");
  return std::make_shared<const ModelTokenizer>(std::move(out));
}

std::string to_json(const std::shared_ptr<const ModelTokenizer>& tokenizer) {
  if (!tokenizer) {
    return "null";
  }
  const data::ExampleOptions& records = tokenizer->records;
  return json_text(nlohmann::ordered_json{
      {"kind", tokenizer->kind},
      {"path", tokenizer->path},
      {"hash", tokenizer->hash},
      {"options", tokenizer->options},
      {"chat_template", tokenizer->own_template ? tokenizer->opened.chat_template : ""},
      {"template_options", tokenizer->template_options},
      {"end_tokens", tokenizer->end_tokens},
      {"special_tokens", name_of(records.special)},
      {"allow_dropped", records.allow_dropped},
      {"template_members", records.template_members}});
}

namespace {

/// Of the tokenizer of a checkpoint, whose files have this hash.
fs::path kept_folder(const fs::path& checkpoints, const std::string& hash) {
  constexpr std::size_t digits = 16;
  return checkpoints / ("tokenizer-" + hash.substr(0, digits));
}

/// That of a checkpoint by its meta data; it need not be there.
fs::path kept_folder_of(const nlohmann::json& stored, const std::string& checkpoint) {
  return kept_folder(fs::absolute(checkpoint).lexically_normal().parent_path(),
                     text_member(stored, "hash"));
}

}  // namespace

std::span<const std::string_view> tokenizer_file_names() {
  static constexpr std::array<std::string_view, 11> names = {"tokenizer.json",
                                                             "tokenizer_config.json",
                                                             "special_tokens_map.json",
                                                             "added_tokens.json",
                                                             "tokenizer.model",
                                                             "tekken.json",
                                                             "vocab.json",
                                                             "vocab.txt",
                                                             "merges.txt",
                                                             "generation_config.json",
                                                             "chat_template.jinja"};
  return names;
}

namespace {

constexpr const char* kept_file = "tokenizer.json";  // of a tokenizer that has no file of its own
constexpr const char* kept_hash = "tokenizer.hash";  // of that file

/// The tokenizer in a GGUF file as files that transformers reads; none where it has no such form.
std::map<std::string, std::string> files_of_gguf(const ModelTokenizer& tokenizer) {
  try {
    return tokenize::hub_files(tokenizer.opened);
  } catch (const Error&) {
    return {};
  }
}

/// Keeps the tokenizer alone of a GGUF file: the weights in it are the base's.
void keep_gguf_tokenizer(const fs::path& to, const ModelTokenizer& tokenizer) {
  const std::map<std::string, std::string> files = files_of_gguf(tokenizer);
  if (!files.contains(kept_file)) {
    return;
  }
  write_folder(to.string(), [&](const fs::path& fresh) {
    for (const auto& [name, text] : files) {
      write_text((fresh / name).string(), text);
    }
    write_text((fresh / kept_hash).string(), file_hash((fresh / kept_file).string()));
  });
}

}  // namespace

void keep_tokenizer(const std::string& folder, const ModelTokenizer& tokenizer) {
  const fs::path to = kept_folder(folder, tokenizer.hash);
  std::error_code ignored;
  if (tokenizer.path.empty() || fs::exists(to, ignored)) {
    return;
  }
  if (is_gguf(tokenizer.path)) {
    keep_gguf_tokenizer(to, tokenizer);
    return;
  }
  const fs::path from = fs::path(tokenizer.path).parent_path();
  std::set<std::string> names = {fs::path(tokenizer.path).filename().string()};
  for (const std::string_view name : tokenizer_file_names()) {
    if (fs::is_regular_file(from / name, ignored)) {
      names.emplace(name);
    }
  }
  write_folder(to.string(), [&](const fs::path& fresh) {
    for (const std::string& name : names) {
      fs::copy_file(from / name, fresh / name);
    }
  });
}

namespace {

/// Whether the GGUF file is there as it was when the model was trained.
bool has_own_gguf(const nlohmann::json& stored) {
  const std::string path = text_member(stored, "path");
  std::error_code ignored;
  return fs::exists(path, ignored) && is_gguf(path) &&
         file_hash(path) == text_member(stored, "hash");
}

/// What is kept of a GGUF file's tokenizer, which has moved or changed; empty: nothing, or there is
/// no need. Error (input): it is damaged.
std::string kept_of_gguf(const nlohmann::json& stored, const std::string& checkpoint) {
  const fs::path file = kept_folder_of(stored, checkpoint) / kept_file;
  std::error_code ignored;
  if (text_member(stored, "kind") != "gguf" || !fs::exists(file, ignored) || has_own_gguf(stored)) {
    return "";
  }
  const std::string hash = input_text((file.parent_path() / kept_hash).string());
  if (hash.substr(0, hash.find('\n')) != file_hash(file.string())) {
    fail_input({.thing = file.string(),
                .wrong = "it has changed since the model was trained",
                .advice = "restore it, or name another tokenizer with --tokenizer"});
  }
  return file.string();
}

}  // namespace

std::string stored_tokenizer_folder(std::string_view meta, const std::string& checkpoint) {
  const nlohmann::json stored = member(parse_json_object(meta).value, "tokenizer");
  const std::string path = text_member(stored, "path");
  if (text_member(stored, "kind") == "gguf") {
    const std::string kept = kept_of_gguf(stored, checkpoint);
    return kept.empty() ? path : fs::path(kept).parent_path().string();
  }
  std::error_code ignored;
  if (const fs::path kept = kept_folder_of(stored, checkpoint);
      !path.empty() && fs::is_directory(kept, ignored)) {
    return kept.string();
  }
  return path.empty() ? path : fs::path(path).parent_path().string();
}

namespace {

/// The tokenizer alone, of a checkpoint that names one.
ModelTokenizer stored_file(const nlohmann::json& stored, const std::string& checkpoint) {
  std::string path = text_member(stored, "path");
  const std::string options = text_member(stored, "options");
  if (path.empty()) {
    return of_kind(text_member(stored, "kind"), options, checkpoint);
  }
  if (const std::string kept = kept_of_gguf(stored, checkpoint); !kept.empty()) {
    ModelTokenizer opened = of_path(kept, no_options, checkpoint);  // with its options in it
    opened.kind = text_member(stored, "kind");
    opened.hash = text_member(stored, "hash");
    opened.options = options;
    return opened;
  }
  std::error_code ignored;
  if (const fs::path kept = kept_folder_of(stored, checkpoint) / fs::path(path).filename();
      fs::exists(kept, ignored)) {
    path = kept.string();
  }
  if (!fs::exists(path, ignored)) {
    fail_input({.thing = checkpoint,
                .wrong = fmt::format("the tokenizer of its model, {}, is not there", path),
                .advice = "name it with --tokenizer"});
  }
  ModelTokenizer opened = of_path(path, options, checkpoint);
  if (opened.hash != text_member(stored, "hash")) {
    fail_input(
        {.thing = checkpoint,
         .wrong = fmt::format("the tokenizer {} has changed since the model was trained", path),
         .expected = "hash " + text_member(stored, "hash"),
         .got = opened.hash,
         .advice = "restore it, or name another with --tokenizer"});
  }
  return opened;
}

std::vector<std::string> texts_member(const nlohmann::json& object, const char* name) {
  std::vector<std::string> texts;
  for (const nlohmann::json& text : member(object, name)) {
    if (text.is_string()) {
      texts.push_back(text.get<std::string>());
    }
  }
  return texts;
}

/// What the run's config said of texts and records.
void add_stored_rules(ModelTokenizer& tokenizer, const nlohmann::json& stored,
                      const std::string& checkpoint) {
  if (const std::string text = text_member(stored, "chat_template"); !text.empty()) {
    tokenizer.opened.chat_template = text;
    tokenizer.own_template = true;
    tokenizer.template_name = fmt::format("chat template of {}", checkpoint);
  }
  if (const std::string options = text_member(stored, "template_options"); !options.empty()) {
    tokenizer.template_options = options;
  }
  tokenizer.records = {.special = special_text(text_member(stored, "special_tokens")),
                       .allow_dropped = texts_member(stored, "allow_dropped"),
                       .template_members = texts_member(stored, "template_members")};
  try {
    add_end_tokens(tokenizer, texts_member(stored, "end_tokens"));
  } catch (const Error& error) {
    fail_at(checkpoint, error);
  }
}

}  // namespace

std::shared_ptr<const ModelTokenizer> stored_tokenizer(std::string_view meta,
                                                       const std::string& checkpoint,
                                                       const std::string& named) {
  const nlohmann::json all = parse_json_object(meta).value;
  const nlohmann::json config = member(member(all, "config"), "data");
  if (!config.is_object()) {
    fail_input({.thing = checkpoint, .wrong = "is not a checkpoint of 'tessera train'"});
  }
  const nlohmann::json stored = member(all, "tokenizer");
  ModelTokenizer opened;
  if (!named.empty()) {
    const std::string options = text_member(stored, "options");
    opened = of_path(named, options.empty() ? no_options : options, "--tokenizer");
  } else if (!stored.is_null()) {
    opened = stored_file(stored, checkpoint);
  } else if (all.contains("tokenizer") || !member(config, "tokens").empty()) {
    return nullptr;
  } else {  // before tokenizers had an entry of their own, there was one
    opened = of_kind(bytes_kind, no_options, checkpoint);
  }
  add_stored_rules(opened, stored, checkpoint);
  return std::make_shared<const ModelTokenizer>(std::move(opened));
}

bool is_checkpoint(const std::string& folder) {
  return checkpoint_format("tessera").recognises(folder);
}

std::string own_tokenizer_file(const std::string& folder) {
  constexpr std::array<std::string_view, 8> names = {"vocab.json",
                                                     "vocab.txt",
                                                     "merges.txt",
                                                     "added_tokens.json",
                                                     "spiece.model",
                                                     "tekken.json",
                                                     "special_tokens_map.json",
                                                     "sentencepiece.bpe.model"};
  if (is_gguf(folder)) {
    return read_gguf(folder).fields.contains("tokenizer.ggml.model")
               ? fs::path(folder).filename().string()
               : "";
  }
  std::string first;
  std::error_code error;
  if (fs::is_regular_file(folder, error)) {
    return first;  // a program of torch.export
  }
  for (fs::directory_iterator next(folder, error), end; !error && next != end;
       next.increment(error)) {
    const std::string name = next->path().filename().string();
    if ((name.starts_with("tokenizer") || name.ends_with(".tiktoken") ||
         std::ranges::find(names, name) != names.end()) &&
        (first.empty() || name < first)) {
      first = name;
    }
  }
  if (error && !folder.empty()) {
    fail_input({.thing = folder,
                .wrong = fmt::format("the folder cannot be read ({})", error.message()),
                .advice = "check its permissions"});
  }
  // Of a model in a folder with another form, a GGUF file beside it is not part of it.
  if (const fs::path gguf = fs::path(folder) / "model.gguf";
      first.empty() && !fs::exists(fs::path(folder) / "config.json", error) && is_gguf(gguf)) {
    return own_tokenizer_file(gguf);
  }
  return first;
}

ModelTokenizer model_tokenizer(const std::string& folder, std::int64_t vocab,
                               const std::string& named) {
  constexpr std::int64_t bytes = 256;
  if (!named.empty()) {
    return of_path(named, no_options, "--tokenizer");
  }
  if (!own_tokenizer_file(folder).empty()) {
    return of_path(folder, no_options, folder);
  }
  return vocab == bytes ? of_kind(bytes_kind, no_options, folder) : ModelTokenizer();
}

namespace {

/// Error (input), which `place` begins, unless the first tokens are those of the folder's own
/// tokenizer, with the same ids.
void check_extends(const ModelTokenizer& tokenizer, const std::string& folder,
                   const std::string& place) {
  const ModelTokenizer own = of_path(folder, "{}", place);
  for (std::int64_t id = 0; id < own.vocab(); ++id) {
    const auto number = static_cast<tokenize::TokenId>(id);
    const auto before = own.opened.tokenizer->token(number);
    const auto now = id < tokenizer.vocab() ? tokenizer.opened.tokenizer->token(number)
                                            : std::optional<std::string>();
    if (before != now) {
      fail_input({.where = place,
                  .wrong = fmt::format("tokenizer '{}' does not extend that of {}: token {} is "
                                       "another one",
                                       tokenizer.text(), folder, id),
                  .expected = shown(before.value_or("none")),
                  .got = shown(now.value_or("none"))});
    }
  }
}

}  // namespace

void check_tokenizer_fits(const ModelTokenizer& tokenizer, std::int64_t vocab,
                          const std::string& folder, const std::string& place, bool adds_tokens) {
  const std::string own = own_tokenizer_file(folder);
  std::error_code ignored;
  const fs::path file =
      is_gguf(folder) ? fs::path(folder) : fs::path(folder) / fs::path(tokenizer.path).filename();
  const bool is_own = !own.empty() && !tokenizer.path.empty() &&
                      (fs::equivalent(fs::path(tokenizer.path).parent_path(), folder, ignored) ||
                       (fs::exists(file, ignored) && file_hash(file.string()) == tokenizer.hash));
  // A model may have more rows in its embedding than its own tokenizer has tokens.
  const bool has_file = !tokenizer.path.empty();
  const bool fits =
      has_file ? adds_tokens || is_own || tokenizer.vocab() <= vocab : tokenizer.vocab() == vocab;
  if (fits && has_file && adds_tokens && !own.empty() && !is_own) {
    check_extends(tokenizer, folder, place);
    return;
  }
  if (fits && (own.empty() || is_own)) {
    return;
  }
  const std::string why =
      !fits ? fmt::format("the folder's model has a vocabulary of {} tokens (expected {}{})", vocab,
                          tokenizer.path.empty() ? "" : "at least ", tokenizer.vocab())
            : fmt::format("the folder has its own tokenizer ({})", own);
  fail_input({.where = place,
              .wrong = fmt::format("{}, so the model cannot use the ids of tokenizer '{}'", why,
                                   tokenizer.text()),
              .advice = fmt::format(
                  "set data.tokenizer to the model's own tokenizer, or data.tokens to files of "
                  "its ids{}",
                  has_file ? "; model.new_tokens=mean adds tokens to the model" : "")});
}

}  // namespace tessera::hub
